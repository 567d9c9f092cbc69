//! Ratios between policies, as text and as a matrix.
//!
//! The columns of a matrix are compared with each other, so it scrolls on a narrow screen.

use maud::{Markup, html};
use wattle_saving::report::markers::named;
use wattle_saving::spread::RatioSpread;

/// A geometric mean with its range: `1.06 (1.04 to 1.09)`.
pub(super) fn spread(spread: &RatioSpread) -> Markup {
    html! {
        (format!("{:.2} ", spread.geometric_mean))
        small { (format!("({:.2} to {:.2})", spread.smallest, spread.largest)) }
    }
}

/// Two policies at equal totals.
pub(super) struct Pair<'a> {
    /// The policy.
    pub(super) policy: &'a str,
    /// The policy it is compared with.
    pub(super) baseline: &'a str,
    /// The baseline's completion time over the policy's.
    pub(super) spread: Option<RatioSpread>,
    /// Number of totals that the policy does not reach, and number of totals.
    pub(super) not_reached: (usize, usize),
}

/// Completion time of each row's policy over that of each column's.
pub(super) fn matrix(policies: &[(&str, usize)], pairs: &[Pair<'_>]) -> Markup {
    let pair = |policy: &str, baseline: &str| {
        pairs.iter().find(|pair| pair.policy == policy && pair.baseline == baseline)
    };
    html! {
        div.scroll {
            table.matrix {
                thead {
                    tr {
                        th scope="col" {}
                        @for (name, slot) in policies { th scope="col" { (named(*slot, name)) } }
                    }
                }
                tbody {
                    @for (baseline, slot) in policies {
                        tr {
                            th scope="row" { (named(*slot, baseline)) }
                            @for (policy, _) in policies { td { (ratio(pair(policy, baseline))) } }
                        }
                    }
                }
            }
        }
    }
}

/// A ratio on a background that deepens with it, in one colour above 1 and another below.
fn ratio(pair: Option<&Pair<'_>>) -> Markup {
    /// The ratio with the deepest background.
    const DEEPEST: f64 = 2.0;
    let (not, of) = pair.map_or((0, 0), |pair| pair.not_reached);
    let star = html! {
        @if not > 0 { sup title={ "not at " (not) " of " (of) " totals" } { "*" } }
    };
    let Some(ratios) = pair.and_then(|pair| pair.spread.as_ref()) else {
        return html! { span.none { "-" (star) } };
    };
    let size = (ratios.geometric_mean.ln().abs() / DEEPEST.ln()).min(1.0);
    let class = if ratios.geometric_mean >= 1.0 { "cell ahead" } else { "cell behind" };
    html! {
        span class=(class) style={ "--d:" ((size * 45.0).round()) "%" } { (spread(ratios)) (star) }
    }
}

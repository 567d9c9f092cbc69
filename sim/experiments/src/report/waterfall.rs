//! The causes of a policy's distance to the lower bound: a table with stacked bars.

use maud::{Markup, Render, html};

use super::ratios;
use crate::compare::{Comparison, Waterfall};
use wattle_saving::report::format::number;
use wattle_saving::report::markers;
use wattle_saving::report::table::{Table, cell};

/// The tables of a comparison; empty without waterfalls.
pub(super) fn draw(comparison: &Comparison, policies: &[(&str, usize)]) -> Markup {
    let slot = |waterfall: &Waterfall| {
        let own = policies.iter().find(|(name, _)| *name == waterfall.policy);
        own.map_or(policies.len(), |(_, slot)| *slot)
    };
    html! {
        @for waterfall in &comparison.waterfalls {
            h3 { "What keeps " (waterfall.policy) " from the bound" }
            (one(waterfall, slot(waterfall)))
        }
    }
}

fn one(waterfall: &Waterfall, slot: usize) -> Markup {
    let Some(last) = waterfall.causes.last() else {
        return html! { p { "No energy is reached by all its runs and the bound." } };
    };
    let mut table = Table::new(&["cause", "", "added, h", "total, h", "ratio to the line before"]);
    for cause in &waterfall.causes {
        let share = |s: f64| 100.0 * s / last.jct_s;
        let from = share((cause.jct_s - cause.added_s).min(cause.jct_s));
        let width = share(cause.added_s.abs()).max(0.4);
        let bar = html! {
            svg class={ "bar " (markers::class(slot)) } viewBox="0 0 100 8"
                preserveAspectRatio="none" aria-hidden="true" {
                rect x=(format!("{from:.2}")) y="1" width=(format!("{width:.2}")) height="6" {}
            }
        };
        table.row(vec![
            cause.what.render(),
            bar,
            cell(number(cause.added_s / 3.6e3)),
            cell(number(cause.jct_s / 3.6e3)),
            cause.ratio.as_ref().map_or_else(|| cell(None::<String>), ratios::spread),
        ]);
    }
    html! {
        p {
            "Mean completion time at equal energy, over " (waterfall.totals) " energies. Each line "
            "removes one idealization from the line before."
        }
        (table)
    }
}

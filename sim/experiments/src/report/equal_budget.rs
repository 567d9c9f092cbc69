//! Completion times at equal energy and equal emissions, and untuned policies.

use maud::{Markup, html};

use super::ratios::{self, Pair};
use crate::compare::{Comparison, Summary};
use wattle_saving::report::format::percent;
use wattle_saving::report::markers::named;
use wattle_saving::report::table::{Table, cell};
use wattle_saving::spread::RatioSpread;

/// The ratios of a comparison; `policies` come with their colours.
pub(super) fn draw(comparison: &Comparison, policies: &[(&str, usize)]) -> Markup {
    let energy = |of| matrix(comparison, policies, of, true);
    let at_equal_carbon = comparison.summary.iter().any(|summary| summary.spread_carbon.is_some());
    html! {
        @if policies.len() > 1 {
            h3 { "At equal energy" }
            p {
                "Completion time of the row's policy over that of the column's, at equal energy: "
                "geometric mean from 1.1 times the row's least energy on (smallest to largest). "
                "Above 1 the column's policy is faster. A star marks a column whose policy does not "
                "reach all of the row's energies."
            }
            (energy(|summary| summary.spread))
            details {
                summary { "The median job at the same settings" }
                (energy(|summary| summary.spread_p50))
            }
            details {
                summary { "The slowest jobs (99th percentile) at the same settings" }
                (energy(|summary| summary.spread_p99))
            }
        }
        @if at_equal_carbon {
            h3 { "At equal emissions" }
            (matrix(comparison, policies, |summary| summary.spread_carbon, false))
        }
        (untuned(comparison, policies))
    }
}

fn matrix(
    comparison: &Comparison,
    policies: &[(&str, usize)],
    of: fn(&Summary) -> Option<RatioSpread>,
    of_energy: bool,
) -> Markup {
    let pairs: Vec<Pair<'_>> = comparison
        .summary
        .iter()
        .map(|summary| Pair {
            policy: &summary.policy,
            baseline: &summary.baseline,
            spread: of(summary),
            not_reached: if of_energy { (summary.not_reachable, summary.totals) } else { (0, 0) },
        })
        .collect();
    ratios::matrix(policies, &pairs)
}

/// Policies at the top clock against the first of them.
fn untuned(comparison: &Comparison, policies: &[(&str, usize)]) -> Markup {
    let [first, _, ..] = &comparison.untuned[..] else { return html! {} };
    let mut headings =
        vec!["policy", "energy", "mean time on GPUs", "mean JCT", "nodes with a job"];
    headings.extend(comparison.deadlines.then_some("deadlines missed"));
    let mut table = Table::new(&headings);
    for untuned in &comparison.untuned {
        let slot = policies.iter().find(|(name, _)| *name == untuned.policy).map_or(0, |p| p.1);
        let mut cells = vec![named(slot, &untuned.policy)];
        for change in [untuned.energy, untuned.runtime, untuned.jct, untuned.active_nodes] {
            let is_first = untuned.policy == first.policy;
            let change = change.map(|change| change.to_string());
            cells.push(cell(if is_first { Some("1".to_owned()) } else { change }));
        }
        cells.extend(comparison.deadlines.then(|| cell(percent(untuned.missed_share))));
        table.row(cells);
    }
    html! {
        h3 { "Untuned" }
        p {
            "Each policy at the top clock with its default parameter, against " (first.baseline)
            ": mean over the orders (least to greatest)."
        }
        (table)
    }
}

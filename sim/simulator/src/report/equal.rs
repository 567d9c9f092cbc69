//! Who is ahead: completion times at equal energy and equal emissions, and policies as they come.

use std::fmt::Write;

use super::markup::{escaped, percent};
use super::table::{self, Against, Table, named};
use crate::compare::{Comparison, Summary};
use crate::frontier::Spread;

/// The tables of a comparison; the policies are given with their colours.
pub(super) fn draw(comparison: &Comparison, policies: &[(&str, usize)]) -> String {
    let mut text = String::new();
    if policies.len() > 1 {
        let _ = write!(
            text,
            "<h3>At equal energy</h3>\n<p>How many times longer the row's jobs take than the \
             column's, at equal energy: geometric mean from 1.1 times the row's least energy on \
             (smallest to largest). Above 1 the column is ahead; with a star, only where it spends so little: at some of \
             the row's totals the column cannot.</p>\n{}",
            matrix(comparison, policies, |summary| summary.spread, true)
        );
        for (what, of) in [
            ("The median job", (|summary| summary.spread_p50) as fn(&Summary) -> Option<Spread>),
            ("The slowest jobs (99th percentile)", |summary| summary.spread_p99),
        ] {
            let matrix = matrix(comparison, policies, of, true);
            let _ = write!(
                text,
                "<details><summary>{what} at the same settings</summary>\n{matrix}</details>\n"
            );
        }
    }
    if comparison.summary.iter().any(|summary| summary.spread_carbon.is_some()) {
        let matrix = matrix(comparison, policies, |summary| summary.spread_carbon, false);
        let _ = write!(text, "<h3>At equal emissions</h3>\n{matrix}");
    }
    text.push_str(&untuned(comparison, policies));
    text
}

fn matrix(
    comparison: &Comparison,
    policies: &[(&str, usize)],
    of: fn(&Summary) -> Option<Spread>,
    of_energy: bool,
) -> String {
    let all: Vec<Against<'_>> = comparison
        .summary
        .iter()
        .map(|s| Against {
            policy: &s.policy,
            baseline: &s.baseline,
            spread: of(s),
            not_reached: if of_energy { (s.not_reachable, s.totals) } else { (0, 0) },
        })
        .collect();
    table::matrix(policies, &all)
}

/// Policies at the top clock, against the first of them.
fn untuned(comparison: &Comparison, policies: &[(&str, usize)]) -> String {
    let [first, others @ ..] = &comparison.untuned[..] else { return String::new() };
    if others.is_empty() {
        return String::new();
    }
    let mut headings =
        vec!["policy", "energy", "mean time on GPUs", "mean completion", "nodes with a job"];
    headings.extend(comparison.deadlines.then_some("deadlines missed"));
    let mut table = Table::of_cards(&headings);
    for one in &comparison.untuned {
        let slot = policies.iter().find(|(name, _)| *name == one.policy).map_or(0, |p| p.1);
        let mut cells = vec![named(slot, &one.policy)];
        for change in [one.energy, one.runtime, one.jct, one.active_nodes] {
            let said = change.map_or_else(|| "-".to_owned(), escaped);
            cells.push(if one.policy == first.policy { "1".to_owned() } else { said });
        }
        cells.extend(comparison.deadlines.then(|| percent(one.missed_share)));
        table.row(&cells);
    }
    let baseline = escaped(&first.baseline);
    format!(
        "<h3>As they come</h3>\n<p>Each policy at the top clock, its knob left alone, against \
         {baseline}: mean over the orders (least to greatest).</p>\n{}",
        table.done()
    )
}

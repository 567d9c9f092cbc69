//! What keeps policies from the bound: a table whose bars stand where the one before ends.

use std::fmt::Write;

use super::marks;
use super::markup::{escaped, figure};
use super::table::{self, Table};
use crate::compare::{Comparison, Waterfall};

/// The tables of a comparison; nothing where nobody asked.
pub(super) fn draw(comparison: &Comparison, policies: &[(&str, usize)]) -> String {
    let mut text = String::new();
    for waterfall in &comparison.waterfalls {
        let own = policies.iter().find(|(name, _)| *name == waterfall.policy);
        let slot = own.map_or(policies.len(), |(_, slot)| *slot);
        let name = escaped(&waterfall.policy);
        let _ = write!(text, "<h3>What keeps {name} from the bound</h3>\n{}", one(waterfall, slot));
    }
    text
}

fn one(waterfall: &Waterfall, slot: usize) -> String {
    let Some(last) = waterfall.causes.last() else {
        return "<p>There is no energy that all its runs and the bound reach.</p>\n".to_owned();
    };
    let mut table =
        Table::of_cards(&["cause", "", "adds, h", "so far, h", "times the line before"]);
    for cause in &waterfall.causes {
        let share = |s: f64| 100.0 * s / last.jct_s;
        let from = share((cause.jct_s - cause.added_s).min(cause.jct_s));
        let bar = format!(
            "<svg class=\"bar {}\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect x=\"{from:.2}\" y=\"1\" width=\"{:.2}\" height=\"6\"/></svg>",
            marks::class(slot),
            share(cause.added_s.abs()).max(0.4)
        );
        table.row(&[
            escaped(cause.what),
            bar,
            figure(cause.added_s / 3.6e3),
            figure(cause.jct_s / 3.6e3),
            cause.ratio.as_ref().map_or_else(|| "-".to_owned(), table::spread),
        ]);
    }
    format!(
        "<p>Mean completion time at equal energy, over {} energies: each line takes one ease away \
         from the one before, and what they add is the whole.</p>\n{}",
        waterfall.totals,
        table.done()
    )
}

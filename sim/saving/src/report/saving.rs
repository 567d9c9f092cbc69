//! The page of `wattle saving`: verdict, both schedules, parts and assumptions.

use maud::{Markup, Render, html};

use super::format::{NO_BREAK, Unit, change, duration, number};
use super::page::{Section, page};
use super::table::{Table, cell};
use crate::estimate::{SavingEstimate, Totals};

/// The page of an estimate; `currency` names the unit of its cost.
#[must_use]
pub fn saving_page(estimate: &SavingEstimate, currency: &str) -> String {
    let lead = html! {
        p.headline { strong { (unbroken(&estimate.verdict())) } "; " (unbroken(&estimate.interval())) "." }
        @if let Some(worth) = estimate.worth(currency) { p { "S" (unbroken(worth.trim_start_matches('s'))) "." } }
        p.lead { (unbroken(&estimate.conclusion())) }
        p { (estimate.trace) " on " (estimate.cluster) ": " (number(estimate.jobs as f64)) " jobs, " (duration(estimate.period_s)) "." }
    };
    let sections = [
        Section::new("schedules", "Before and after", schedules(estimate)),
        Section::new("parts", "What saves", parts(estimate)),
        Section::new("restarts", "Restarts", ends(estimate)),
        Section::new(
            "assumptions",
            "Assumptions",
            html! { ul { @for text in &estimate.assumptions { li { (unbroken(text)) } } } },
        ),
    ];
    page(&format!("Wattle: saving on {}", estimate.trace), &lead, &sections)
}

/// Keeps numbers on one line with their units.
fn unbroken(text: &str) -> String {
    [" %", " kWh", " MWh", " kg"].iter().fold(text.to_owned(), |text, unit| {
        text.replace(unit, &format!("{NO_BREAK}{}", unit.trim_start()))
    })
}

fn energy(kwh: f64) -> String {
    Unit::energy(kwh.abs()).format(kwh)
}

fn schedules(estimate: &SavingEstimate) -> Markup {
    let name = if estimate.recorded { "as recorded" } else { "FIFO" };
    let mut table = Table::new(&["", name, "backfill", "Wattle", "change"]);
    let (before, after) = (&estimate.baseline, &estimate.wattle);
    let mut row = |name: &str, of: fn(&Totals) -> f64, unit: fn(f64) -> Unit| {
        let (old, easy, new) = (of(before), of(&estimate.backfill), of(after));
        // One unit in a row.
        let unit = unit(old.max(easy).max(new));
        let cells = [
            unit.format(old),
            unit.format(easy),
            unit.format(new),
            change(new, old).unwrap_or_else(|| "-".to_owned()),
        ];
        let mut row = vec![name.render()];
        row.extend(cells.map(cell));
        table.row(row);
    };
    row("energy", |totals| totals.energy_kwh, Unit::energy);
    row("mean completion time", |totals| totals.jct_s_mean, Unit::time);
    row("95th percentile", |totals| totals.jct_s_p95, Unit::time);
    row("mean wait", |totals| totals.wait_s_mean, Unit::time);
    row("95th percentile of the wait", |totals| totals.wait_s_p95, Unit::time);
    html! { (table) }
}

fn parts(estimate: &SavingEstimate) -> Markup {
    let parts = estimate.parts;
    let mut table = Table::new(&["without", "more energy", "of the baseline, %"]);
    for (name, kwh) in [
        ("caps and clocks", parts.settings),
        ("node sleep", parts.sleep),
        ("packing", parts.packing),
        ("sizes", parts.sizes),
    ] {
        let share = number(100.0 * estimate.share(kwh));
        table.row(vec![name.render(), cell(energy(kwh)), cell(share)]);
    }
    html! {
        p { "Each part is switched off in turn at the same energy price. Parts interact, so their sum differs from the saving." }
        (table)
    }
}

fn ends(estimate: &SavingEstimate) -> Markup {
    let mut table =
        Table::new(&["restartable", "saved", "of the baseline, %", "mean completion time"]);
    for (name, end) in ["no job", "every job"].iter().zip(estimate.ends) {
        let share = number(100.0 * estimate.share(end.energy_kwh));
        let cells = [energy(end.energy_kwh), share, duration(end.jct_s_mean)].map(cell);
        let mut row = vec![name.render()];
        row.extend(cells);
        table.row(row);
    }
    html! { (table) }
}

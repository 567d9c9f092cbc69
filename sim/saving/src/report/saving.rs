//! The page of `wattle saving`: verdict, curve, both schedules, parts and assumptions.

use maud::{Markup, Render, html};

use super::format::{NO_BREAK, Unit, change, duration, number};
use super::frontier_plot::{self, Curve, Run};
use super::page::{Section, page};
use super::table::{Table, cell};
use crate::baseline::BaselineKind;
use crate::estimate::{SavingEstimate, Totals};

/// The page of an estimate; `currency` names the unit of its cost.
#[must_use]
pub fn saving_page(estimate: &SavingEstimate, currency: &str) -> String {
    let lead = html! {
        p.headline { strong { (unbroken(&estimate.verdict())) } }
        @if estimate.is_within {
            p { (unbroken(&estimate.interval())) "." }
            @if let Some(worth) = estimate.worth(currency) { p { "S" (unbroken(worth.trim_start_matches('s'))) "." } }
        }
        p.lead { (unbroken(&estimate.conclusion())) }
        p { (estimate.trace) " on " (estimate.cluster) ": " (number(estimate.jobs as f64)) " jobs, " (duration(estimate.period_s)) "." }
    };
    let mut sections = Vec::new();
    if !estimate.curve.is_empty() {
        sections.push(Section::new("curve", "Saving and completion", curve(estimate, currency)));
    }
    sections.extend([
        Section::new("schedules", "Before and after", schedules(estimate)),
        Section::new("parts", "What saves", parts(estimate)),
        Section::new("restarts", "Restarts", ends(estimate)),
        Section::new(
            "assumptions",
            "Assumptions",
            html! { ul { @for text in &estimate.assumptions { li { (unbroken(text)) } } } },
        ),
    ]);
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

/// The points of the curve, drawn with the baseline and listed.
fn curve(estimate: &SavingEstimate, currency: &str) -> Markup {
    let most = estimate
        .curve
        .iter()
        .flat_map(|point| [point.baseline.energy_kwh, point.wattle.energy_kwh]);
    let unit = Unit::energy(most.fold(0.0, f64::max));
    let run = |name: &str, totals: &Totals, best: bool| {
        let (total, jct_s) = (totals.energy_kwh, totals.jct_s_mean);
        let title = format!("{name}: {}, mean {}", unit.format(total), duration(jct_s));
        Run { total, jct_s, title, best, selected: false }
    };
    let mut runs: Vec<Run> = Vec::new();
    for point in &estimate.curve {
        let name = format!("at most {} % later", number(100.0 * point.allowed));
        // Points that are not possible share the schedule with free energy.
        if point.is_within {
            runs.push(run(&name, &point.wattle, true));
        } else if runs.is_empty() {
            runs.push(run("with free energy", &point.wattle, true));
        }
    }
    runs.sort_by(|a, b| a.total.total_cmp(&b.total));
    let before = |name: &'static str, slot: usize, totals: &Totals| {
        let runs = vec![run(name, totals, true)];
        Curve { name, slot, runs, others: Vec::new() }
    };
    let mut curves = vec![
        before(estimate.baseline_name(), 0, &estimate.baseline),
        Curve { name: "Wattle", slot: 1, runs, others: Vec::new() },
    ];
    if estimate.baseline_kind != BaselineKind::Backfill {
        curves.push(before("backfill", 2, &estimate.backfill));
    }
    let rows = estimate.curve_rows(currency);
    let head = estimate.curve_head();
    let mut table = Table::new(&head);
    for row in rows {
        let mut cells: Vec<Markup> = row.into_iter().map(cell).collect();
        cells.resize_with(head.len(), || html! {});
        table.row(cells);
    }
    let title = estimate.curve_title();
    html! {
        figure.frontier {
            figcaption { "Mean completion time over energy: lower and further left is better." }
            (frontier_plot::draw(&curves, None, "Energy of whole nodes", unit))
        }
        p { "S" (title.trim_start_matches('s')) }
        (table)
    }
}

fn schedules(estimate: &SavingEstimate) -> Markup {
    let name = estimate.baseline_name();
    // Backfilling has a column of its own beside a recorded schedule.
    let beside = estimate.baseline_kind != BaselineKind::Backfill;
    let mut head = vec!["", name];
    head.extend(beside.then_some("backfill"));
    head.extend(["Wattle", "change"]);
    let mut table = Table::new(&head);
    let (before, after) = (&estimate.baseline, &estimate.wattle);
    let mut row = |name: &str, of: fn(&Totals) -> f64, unit: fn(f64) -> Unit| {
        let (old, easy, new) = (of(before), of(&estimate.backfill), of(after));
        // One unit in a row.
        let unit = unit(old.max(easy).max(new));
        let mut row = vec![name.render(), cell(unit.format(old))];
        row.extend(beside.then(|| cell(unit.format(easy))));
        row.push(cell(unit.format(new)));
        row.push(cell(change(new, old).unwrap_or_else(|| "-".to_owned())));
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
        let share = number(100.0 * end.energy_share);
        let cells = [energy(end.energy_kwh), share, duration(end.jct_s_mean)].map(cell);
        let mut row = vec![name.render()];
        row.extend(cells);
        table.row(row);
    }
    html! { (table) }
}

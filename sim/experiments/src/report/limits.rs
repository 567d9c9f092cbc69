//! The page of a comparison below power limits: completion time over the limit, with the lower bound.

use maud::{Markup, Render, html};
use wattle_saving::report::format::{Unit, duration, percent};
use wattle_saving::report::frontier_plot::{self, Curve, Limit, Run};
use wattle_saving::report::markers::named;
use wattle_saving::report::page::{Section, page};
use wattle_saving::report::table::{Table, cell};

use super::captions::surfaces_and_lengths;
use super::ratios;
use crate::compare::{Accounting, LimitComparison, LimitRun, LimitSummary};

/// The page of these comparisons.
#[must_use]
pub fn limits_page(comparisons: &[LimitComparison]) -> String {
    let Some(first) = comparisons.first() else { return page("Wattle", &html! {}, &[]) };
    let lead = html! {
        (headline(first))
        p {
            "Each policy runs at several limits on the power of all nodes. Its mean completion time is compared "
            "with a lower bound, which holds for every schedule that never draws more than the limit."
        }
    };
    let section = |(at, comparison): (usize, &LimitComparison)| {
        let anchor = ANCHORS.get(at).copied().unwrap_or("further");
        Section::new(anchor, &heading(comparison), case(comparison))
    };
    let sections: Vec<Section> = comparisons.iter().enumerate().map(section).collect();
    page(&format!("Wattle: {}", first.scenario), &lead, &sections)
}

/// Ids of sections.
const ANCHORS: [&str; 8] =
    ["case-a", "case-b", "case-c", "case-d", "case-e", "case-f", "case-g", "case-h"];

/// Completion time over the limit of a comparison, with its bound, as an SVG file.
#[must_use]
pub fn limits_figure(comparison: &LimitComparison) -> String {
    let bound = bound(comparison);
    let (curves, unit) = curves(comparison);
    frontier_plot::figure(&heading(comparison), &curves, limit(&bound), QUANTITY, unit)
}

const QUANTITY: &str = "Power limit";

fn heading(comparison: &LimitComparison) -> String {
    let nodes = match comparison.accounting {
        Accounting::AboveIdle | Accounting::SleepNone => "nodes always awake",
        Accounting::SleepAll | Accounting::SleepPacking => "unused nodes asleep",
    };
    let LimitComparison { scenario, load, workload, .. } = comparison;
    format!("{scenario}: load {load:.2}, {workload} jobs, {nodes}")
}

/// The lowest limit that all policies held, and the policy nearest to the bound there.
fn headline(comparison: &LimitComparison) -> Markup {
    let ratio = |at: &LimitSummary| at.ratio.map(|ratio| ratio.geometric_mean);
    let held = comparison.summary.iter().filter(|at| at.ratio.is_some());
    let Some(lowest) = held.map(|at| at.limit_share).min_by(f64::total_cmp) else {
        return html! { p.headline { "No policy held a limit." } };
    };
    let mut there: Vec<&LimitSummary> = comparison
        .summary
        .iter()
        .filter(|at| at.limit_share <= lowest && at.ratio.is_some())
        .collect();
    there.sort_by(|a, b| ratio(a).unwrap_or(0.0).total_cmp(&ratio(b).unwrap_or(0.0)));
    html! {
        p.headline {
            "At " (percent(lowest)) " of the peak power jobs take on average "
            @for (i, at) in there.iter().enumerate() {
                @if i > 0 { ", " }
                @if let Some(spread) = &at.ratio { (ratios::spread(spread)) }
                @if i == 0 { " times the lower bound" }
                " under " @if i == 0 { strong { (at.policy) } } @else { (at.policy) }
            }
            "."
        }
    }
}

fn families(comparison: &LimitComparison) -> Vec<&str> {
    let mut families: Vec<&str> = Vec::new();
    for run in &comparison.runs {
        if !families.contains(&run.family.as_str()) {
            families.push(&run.family);
        }
    }
    families
}

/// The bound over watts.
fn bound(comparison: &LimitComparison) -> Vec<(f64, f64)> {
    comparison.bound.iter().map(|&(kw, s)| (1e3 * kw, s)).collect()
}

fn limit(bound: &[(f64, f64)]) -> Option<Limit<'_>> {
    (!bound.is_empty()).then_some(Limit { tight: bound, alone: &[] })
}

/// A curve for each policy over watts: the first order with marks, the others as lines.
fn curves(comparison: &LimitComparison) -> (Vec<Curve<'_>>, Unit) {
    let unit = Unit::power(1e3 * comparison.peak_kw);
    let of = |(slot, name)| {
        let at = |order: u64| {
            let own = move |run: &&LimitRun| run.family == name && run.order == order;
            let points = comparison
                .runs
                .iter()
                .filter(own)
                .filter_map(|run| Some((run, 1e3 * run.limit_kw, run.outcome.jct_s_mean?)));
            let mut points: Vec<_> = points.collect();
            points.sort_by(|a, b| a.1.total_cmp(&b.1));
            points
        };
        let mark = |(run, total, jct_s): (&LimitRun, f64, f64)| {
            let ratio = run.ratio.map_or_else(String::new, |r| format!(", {r:.2} times the bound"));
            let title = format!(
                "{name} at {}: {}{ratio}",
                unit.format(total),
                Unit::hours(jct_s).format(jct_s)
            );
            Run { total, jct_s, title, best: true, selected: false }
        };
        let line = |order: &u64| at(*order).into_iter().map(|(_, w, s)| (w, s)).collect();
        let first = comparison.seeds.first().copied().unwrap_or(0);
        Curve {
            name,
            slot,
            runs: at(first).into_iter().map(mark).collect(),
            others: comparison.seeds.iter().skip(1).map(line).collect(),
        }
    };
    (families(comparison).into_iter().enumerate().map(of).collect(), unit)
}

fn case(comparison: &LimitComparison) -> Markup {
    let bound = bound(comparison);
    let (curves, unit) = curves(comparison);
    let mut table = Table::new(&[
        "policy",
        "limit",
        "mean JCT",
        "95th percentile",
        "99th percentile",
        "energy",
        "ratio to the bound",
    ]);
    let time = |s: Option<f64>| cell(s.map(duration));
    for at in &comparison.summary {
        let slot = families(comparison).iter().position(|name| *name == at.policy).unwrap_or(0);
        let watts = 1e3 * at.limit_kw;
        table.row(vec![
            named(slot, &at.policy),
            cell(format!("{} ({})", unit.format(watts), percent(at.limit_share))),
            time(at.jct_s_mean),
            time(at.jct_s_p95),
            time(at.jct_s_p99),
            cell(Unit::energy(at.energy_kwh).format(at.energy_kwh)),
            at.ratio.as_ref().map_or_else(|| cell(None::<String>), ratios::spread),
        ]);
    }
    html! {
        p {
            (surfaces_and_lengths(comparison.surfaces, comparison.lengths)) " Limits are shares of "
            (unit.format(1e3 * comparison.peak_kw)) ", the peak of fifo without a limit."
        }
        figure.frontier {
            figcaption {
                "Mean completion time over the power limit: lower is better. Thin lines are other orders of the "
                "jobs. The grey area is infeasible: the lower bound (of the first order) knows the future and "
                "resizes jobs at no cost, and left of it some job cannot run."
            }
            (frontier_plot::draw(&curves, limit(&bound), QUANTITY, unit))
        }
        (table.render())
        @if !comparison.notes.is_empty() {
            ul.note { @for note in &comparison.notes { li { (note) } } }
        }
    }
}

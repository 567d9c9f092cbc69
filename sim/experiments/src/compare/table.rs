//! Comparisons as text tables.

use std::fmt::Write;

use super::{Comparison, Summary, Waterfall};
use crate::frontier::RatioSpread;
use wattle_simulator::PolicyOutcome;

/// Width of the policy column.
const NAME: usize = 15;

/// The table of one comparison.
#[must_use]
pub fn to_table(comparison: &Comparison) -> String {
    let mut out = header(comparison);
    let _ = write!(out, "  {}\n\n", comparison.accounting.as_str());
    let families = families(comparison);
    let _ = writeln!(
        out,
        "{:NAME$} {:>15} {:>15} {:>15} {:>15} {:>21} {:>21}",
        "",
        "energy, MWh",
        "mean JCT, h",
        "median, h",
        "99th, h",
        "ratio to bound",
        "without contention",
    );

    for family in &families {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        let hours = |of: fn(&PolicyOutcome) -> Option<f64>| {
            span(runs().filter_map(|run| Some(of(&run.outcome)? / 3.6e3)))
        };
        let energy = span(runs().map(|run| run.counted_kwh / 1e3));
        let above = || comparison.above_bound.iter().filter(|above| above.policy == *family);
        let tight = RatioSpread::of(above().filter_map(|above| above.ratio));
        let alone = RatioSpread::of(above().filter_map(|above| above.ratio_alone));
        let _ = writeln!(
            out,
            "{family:NAME$} {energy:>15} {:>15} {:>15} {:>15} {:>21} {:>21}",
            hours(|outcome| outcome.jct_s_mean),
            hours(|outcome| outcome.jct_s_p50),
            hours(|outcome| outcome.jct_s_p99),
            shown(tight.as_ref()),
            shown(alone.as_ref()),
        );
    }
    emissions(&mut out, comparison, &families);
    out.push_str(
        "\nMean JCT of the row's jobs over the column's, at equal energy: geometric mean (smallest \
         to largest)\n",
    );
    matrix(&mut out, comparison, &families, |summary| {
        let missing = if summary.not_reachable > 0 { "*" } else { "" };
        format!("{}{missing}", shown(summary.spread.as_ref()))
    });
    out.push_str("\nMedian and 99th percentile likewise: geometric means\n");
    matrix(&mut out, comparison, &families, |summary| {
        let mean = |spread: &Option<RatioSpread>| {
            spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.2}", spread.geometric_mean))
        };
        format!("{} / {}", mean(&summary.spread_p50), mean(&summary.spread_p99))
    });
    if comparison.summary.iter().any(|summary| summary.spread_carbon.is_some()) {
        out.push_str("\nMean JCT at equal emissions\n");
        matrix(&mut out, comparison, &families, |summary| shown(summary.spread_carbon.as_ref()));
    }
    let short: Vec<String> = comparison
        .summary
        .iter()
        .filter(|summary| summary.not_reachable > 0)
        .map(|s| {
            let (row, column) = (&s.baseline, &s.policy);
            format!("{row} to {column}: {} of {}", s.not_reachable, s.totals)
        })
        .collect();
    if !short.is_empty() {
        let _ = writeln!(
            out,
            "\n* the column does not reach some of the row's energies: {}",
            short.join("; ")
        );
    }
    for text in &comparison.notes {
        let _ = writeln!(out, "note: {text}");
    }
    out
}

/// Savings of untuned policies under several accountings of the same jobs; empty without any.
#[must_use]
pub fn side_by_side(comparisons: &[Comparison]) -> String {
    let Some(first) = comparisons.first().filter(|first| first.untuned.len() > 1) else {
        return String::new();
    };
    let mut out = header(first);
    let baseline = &first.untuned[0].baseline;
    let _ = write!(
        out,
        "\n\nat the top clock, against {baseline}: mean over the orders (least to greatest)\n{:NAME$}",
        ""
    );
    for comparison in comparisons {
        let _ = write!(out, " {:>26}", format!("energy, {}", comparison.accounting.as_str()));
    }
    let _ = writeln!(
        out,
        " {:>26} {:>26} {:>26} {:>7}",
        "run time", "completion time", "nodes with a job", "missed"
    );
    for one in first.untuned.iter().filter(|one| one.policy != one.baseline || first.deadlines) {
        let _ = write!(out, "{:NAME$}", one.policy);
        let change = |change: &Option<crate::saving::ChangeSpread>| {
            change.map_or_else(|| "-".to_owned(), |change| change.to_string())
        };
        for comparison in comparisons {
            let own = comparison.untuned.iter().find(|other| other.policy == one.policy);
            let energy = own.and_then(|own| own.energy);
            let _ = write!(out, " {:>26}", change(&energy));
        }
        let _ = writeln!(
            out,
            " {:>26} {:>26} {:>26} {:>5.1} %",
            change(&one.runtime),
            change(&one.jct),
            change(&one.active_nodes),
            100.0 * one.missed_share
        );
    }
    out
}

/// The causes of a policy's distance to the bound, one line each.
#[must_use]
pub fn waterfall_table(waterfall: &Waterfall) -> String {
    /// Width of the cause column.
    const CAUSE: usize = 62;
    let mut out = format!("what keeps {} from the bound", waterfall.policy);
    if waterfall.causes.is_empty() {
        out.push_str(": no energy is reached by all its runs and the bound\n");
        return out;
    }
    let _ = writeln!(
        out,
        ", mean JCT at equal energy ({} energies)\n{:CAUSE$} {:>9} {:>9} {:>21}",
        waterfall.totals, "", "added, h", "total, h", "ratio to line before"
    );
    for cause in &waterfall.causes {
        let _ = writeln!(
            out,
            "{:CAUSE$} {:>9.2} {:>9.2} {:>21}",
            cause.what,
            cause.added_s / 3.6e3,
            cause.jct_s / 3.6e3,
            shown(cause.ratio.as_ref())
        );
    }
    out
}

fn header(comparison: &Comparison) -> String {
    let over = if comparison.load > 1.0 { " (over-subscribed)" } else { "" };
    let orders = comparison.seeds.len();
    let deadlines = if comparison.deadlines { "  deadlines" } else { "" };
    let mut out = format!("{}  load {:.2}{over}", comparison.scenario, comparison.load);
    if !comparison.workload.is_empty() {
        let _ = write!(out, "  {}", comparison.workload);
    }
    let _ = write!(
        out,
        "{deadlines}  co-location {}  surfaces {}  lengths {}  {} jobs in {orders} order{}",
        comparison.world.as_str(),
        comparison.surfaces,
        comparison.lengths,
        comparison.jobs,
        if orders == 1 { "" } else { "s" },
    );
    out
}

fn families(comparison: &Comparison) -> Vec<&str> {
    let mut families: Vec<&str> = Vec::new();
    for run in &comparison.policies {
        if !families.contains(&run.family.as_str()) {
            families.push(&run.family);
        }
    }
    families
}

/// Emissions and carbon deferral of each policy.
fn emissions(out: &mut String, comparison: &Comparison, families: &[&str]) {
    if comparison.policies.iter().all(|run| run.counted_kg.is_none()) {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:NAME$} {:>19} {:>19} {:>21}",
        "", "emitted, kg", "deferred, h", "ratio to bound"
    );
    for family in families {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        let kg = span(runs().filter_map(|run| run.counted_kg));
        let deferred = span(runs().filter_map(|run| Some(run.outcome.deferred_s_mean? / 3.6e3)));
        let above = comparison.above_carbon_bound.iter().filter(|above| above.policy == *family);
        let above = RatioSpread::of(above.filter_map(|above| above.ratio));
        let above = shown(above.as_ref());
        let _ = writeln!(out, "{family:NAME$} {kg:>19} {deferred:>19} {above:>21}");
    }
}

/// Rows are baselines, columns policies.
fn matrix(
    out: &mut String,
    comparison: &Comparison,
    families: &[&str],
    cell: impl Fn(&Summary) -> String,
) {
    let _ = write!(out, "{:NAME$}", "");
    for policy in families {
        let _ = write!(out, " {policy:>21}");
    }
    out.push('\n');
    for baseline in families {
        let _ = write!(out, "{baseline:NAME$}");
        for policy in families {
            let of = |s: &&Summary| s.policy == *policy && s.baseline == *baseline;
            let text = comparison.summary.iter().find(of).map_or_else(|| "-".to_owned(), &cell);
            let _ = write!(out, " {text:>21}");
        }
        out.push('\n');
    }
}

fn shown(spread: Option<&RatioSpread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |s| format!("{:.2} ({:.2} to {:.2})", s.geometric_mean, s.smallest, s.largest),
    )
}

/// `5.3 to 9.7`
fn span(values: impl Iterator<Item = f64>) -> String {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low.is_finite() { format!("{low:.1} to {high:.1}") } else { "-".to_owned() }
}

//! Comparisons as text tables.
//!
//! The narrow form fits 80 columns: it leaves out ranges of ratios and some columns.

use std::fmt::Write;

use super::{Comparison, Summary, Untuned, Waterfall};
use wattle_saving::spread::ChangeSpread;
use wattle_saving::spread::RatioSpread;
use wattle_simulator::PolicyOutcome;
use wattle_simulator::text::note;

/// Width of the policy column.
const NAME: usize = 15;
/// Width of the narrow form.
const WIDTH: usize = 80;

/// How much a table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The main figures in 80 columns.
    Narrow,
    /// All figures with their ranges.
    Wide,
}

/// Energies are in kWh up to this largest total.
const MWH_FROM_KWH: f64 = 10_000.0;

/// The table of one comparison.
#[must_use]
pub fn to_table(comparison: &Comparison, form: Form) -> String {
    let wide = form == Form::Wide;
    let mut out = header(comparison, Some(comparison.accounting.as_str()), form);
    out.push_str("\n\n");
    let families = families(comparison);
    let most_kwh = comparison.policies.iter().map(|run| run.counted_kwh).fold(0.0, f64::max);
    let (unit, per_unit) = if most_kwh < MWH_FROM_KWH { ("kWh", 1.0) } else { ("MWh", 1e3) };
    let energy = format!("energy, {unit}");
    let _ = write!(out, "{:NAME$} {energy:>15} {:>15}", "", "mean JCT, h");
    let _ = if wide {
        let contention = "without contention";
        let (median, bound) = ("median, h", "ratio to bound");
        writeln!(out, " {median:>15} {:>15} {bound:>21} {contention:>21}", "99th, h")
    } else {
        writeln!(out, " {:>15} {:>15}", "99th, h", "ratio to bound")
    };

    for family in &families {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        let hours = |of: fn(&PolicyOutcome) -> Option<f64>| {
            span(runs().filter_map(|run| Some(of(&run.outcome)? / 3.6e3)))
        };
        let energy = span(runs().map(|run| run.counted_kwh / per_unit));
        let above = || comparison.above_bound.iter().filter(|above| above.policy == *family);
        let tight = RatioSpread::of(above().filter_map(|above| above.ratio));
        let alone = RatioSpread::of(above().filter_map(|above| above.ratio_alone));
        let mean_jct = hours(|outcome| outcome.jct_s_mean);
        let p99 = hours(|outcome| outcome.jct_s_p99);
        let _ = write!(out, "{family:NAME$} {energy:>15} {mean_jct:>15}");
        let _ = if wide {
            let median = hours(|outcome| outcome.jct_s_p50);
            let (tight, alone) = (shown(tight.as_ref()), shown(alone.as_ref()));
            writeln!(out, " {median:>15} {p99:>15} {tight:>21} {alone:>21}")
        } else {
            writeln!(out, " {p99:>15} {:>15}", mean(tight.as_ref()))
        };
    }
    emissions(&mut out, comparison, &families);
    out.push_str("\nMean JCT of the row's jobs over the column's, at equal energy: ");
    out.push_str(if wide { "geometric mean (smallest to largest)\n" } else { "mean\n" });
    let spread = |spread: Option<&RatioSpread>| if wide { shown(spread) } else { mean(spread) };
    matrix(&mut out, comparison, &families, form, |summary| {
        let missing = if summary.not_reachable > 0 { "*" } else { "" };
        format!("{}{missing}", spread(summary.spread.as_ref()))
    });
    if wide {
        out.push_str("\nMedian and 99th percentile likewise: geometric means\n");
        matrix(&mut out, comparison, &families, form, |summary| {
            let (median, p99) = (summary.spread_p50.as_ref(), summary.spread_p99.as_ref());
            format!("{} / {}", mean(median), mean(p99))
        });
    }
    if comparison.summary.iter().any(|summary| summary.spread_carbon.is_some()) {
        out.push_str("\nMean JCT at equal emissions\n");
        matrix(&mut out, comparison, &families, form, |s| spread(s.spread_carbon.as_ref()));
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
        out.push_str("\n* the column does not reach some of the row's energies:\n");
        for line in short {
            let _ = writeln!(out, "  {line}");
        }
    }
    for text in &comparison.notes {
        let _ = writeln!(out, "{}", note(text));
    }
    out
}

/// Savings of untuned policies under several accountings of the same jobs; empty without any.
///
/// One column per policy.
#[must_use]
pub fn side_by_side(comparisons: &[Comparison], form: Form) -> String {
    let Some(first) = comparisons.first().filter(|first| first.untuned.len() > 1) else {
        return String::new();
    };
    let untuned: Vec<&Untuned> =
        first.untuned.iter().filter(|one| one.policy != one.baseline || first.deadlines).collect();
    let change = |change: Option<&ChangeSpread>| {
        change.map_or_else(
            || "-".to_owned(),
            |change| match form {
                Form::Wide => change.to_string(),
                Form::Narrow => format!("{:+.1} %", change.mean),
            },
        )
    };
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |label: String, cell: &dyn Fn(&Untuned) -> String| {
        rows.push((label, untuned.iter().map(|one| cell(one)).collect()));
    };
    for comparison in comparisons {
        add(format!("energy, {}", comparison.accounting.as_str()), &|one| {
            let own = comparison.untuned.iter().find(|other| other.policy == one.policy);
            change(own.and_then(|own| own.energy.as_ref()))
        });
    }
    add("run time".to_owned(), &|one| change(one.runtime.as_ref()));
    add("completion time".to_owned(), &|one| change(one.jct.as_ref()));
    add("nodes with a job".to_owned(), &|one| change(one.active_nodes.as_ref()));
    add("missed deadlines".to_owned(), &|one| format!("{:.1} %", 100.0 * one.missed_share));
    let baseline = &first.untuned[0].baseline;
    let spread = if form == Form::Wide { " (least to greatest)" } else { "" };
    let policies: Vec<&str> = untuned.iter().map(|one| one.policy.as_str()).collect();
    format!(
        "{}\n\nat the top clock, against {baseline}: mean over the orders{spread}\n{}",
        header(first, None, form),
        grid(&policies, &rows, form)
    )
}

/// The causes of a policy's distance to the bound, one line each.
#[must_use]
pub fn waterfall_table(waterfall: &Waterfall, form: Form) -> String {
    /// Width of the cause column.
    const CAUSE: usize = 62;
    let mut out = format!("what keeps {} from the bound", waterfall.policy);
    if waterfall.causes.is_empty() {
        out.push_str(": no energy is reached by all its runs and the bound\n");
        return out;
    }
    let _ = writeln!(out, ", mean JCT at equal energy ({} energies)", waterfall.totals);
    let _ = match form {
        Form::Wide => writeln!(
            out,
            "{:CAUSE$} {:>9} {:>9} {:>21}",
            "", "added, h", "total, h", "ratio to line before"
        ),
        Form::Narrow => writeln!(out, "{:CAUSE$} {:>8} {:>8}", "", "added, h", "total, h"),
    };
    for cause in &waterfall.causes {
        let (added, total) = (cause.added_s / 3.6e3, cause.jct_s / 3.6e3);
        let _ = match form {
            Form::Wide => {
                let ratio = shown(cause.ratio.as_ref());
                writeln!(out, "{:CAUSE$} {added:>9.2} {total:>9.2} {ratio:>21}", cause.what)
            }
            Form::Narrow => writeln!(out, "{:CAUSE$} {added:>8.2} {total:>8.2}", cause.what),
        };
    }
    out
}

/// The case in words; the narrow form breaks the line before it is too long.
fn header(comparison: &Comparison, accounting: Option<&str>, form: Form) -> String {
    let over = if comparison.load > 1.0 { " (over-subscribed)" } else { "" };
    let orders = comparison.seeds.len();
    let mut words =
        vec![comparison.scenario.to_string(), format!("load {:.2}{over}", comparison.load)];
    if !comparison.workload.is_empty() {
        words.push(comparison.workload.to_string());
    }
    words.extend(comparison.deadlines.then(|| "deadlines".to_owned()));
    words.push(format!("co-location {}", comparison.world.as_str()));
    words.push(format!("surfaces {}", comparison.surfaces));
    words.push(format!("lengths {}", comparison.lengths));
    let plural = if orders == 1 { "" } else { "s" };
    words.push(format!("{} jobs in {orders} order{plural}", comparison.jobs));
    words.extend(accounting.map(str::to_owned));
    header_words(&words, form)
}

/// Words in a line, which the narrow form breaks before it is too long.
pub(super) fn header_words(words: &[String], form: Form) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in words {
        if column > 0 && form == Form::Narrow && column + 2 + word.len() > WIDTH {
            out.push('\n');
            column = 0;
        }
        let gap = if column == 0 { "" } else { "  " };
        let _ = write!(out, "{gap}{word}");
        column += gap.len() + word.len();
    }
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
    form: Form,
    cell: impl Fn(&Summary) -> String,
) {
    let row = |baseline: &&str| {
        let cells = families.iter().map(|policy| {
            let of = |s: &&Summary| s.policy == *policy && s.baseline == *baseline;
            comparison.summary.iter().find(of).map_or_else(|| "-".to_owned(), &cell)
        });
        ((*baseline).to_owned(), cells.collect())
    };
    let rows: Vec<(String, Vec<String>)> = families.iter().map(row).collect();
    out.push_str(&grid(families, &rows, form));
}

/// Labelled rows under labelled columns of equal width. The narrow form continues below with the
/// columns that do not fit.
fn grid(columns: &[&str], rows: &[(String, Vec<String>)], form: Form) -> String {
    let label = rows.iter().map(|(label, _)| label.chars().count()).fold(NAME, usize::max);
    let cells = rows.iter().flat_map(|(_, cells)| cells.iter().map(|cell| cell.chars().count()));
    let width =
        columns.iter().map(|column| column.chars().count()).chain(cells).fold(0, usize::max);
    let fit = match form {
        Form::Wide => columns.len(),
        Form::Narrow => (WIDTH - label.min(WIDTH)) / (width + 2),
    };
    let mut out = String::new();
    for (block, headings) in columns.chunks(fit.max(1)).enumerate() {
        let _ = write!(out, "{:label$}", "");
        for heading in headings {
            let _ = write!(out, "  {heading:>width$}");
        }
        out.push('\n');
        for (name, cells) in rows {
            let _ = write!(out, "{name:label$}");
            for cell in cells.iter().skip(block * fit.max(1)).take(headings.len()) {
                let _ = write!(out, "  {cell:>width$}");
            }
            out.push('\n');
        }
    }
    out
}

/// The geometric mean alone.
fn mean(spread: Option<&RatioSpread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.2}", spread.geometric_mean))
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

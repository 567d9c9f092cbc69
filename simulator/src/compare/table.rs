//! A comparison as a table for people.

use std::fmt::Write;

use super::Comparison;
use crate::frontier::Spread;

/// The table of one comparison.
#[must_use]
pub fn to_table(comparison: &Comparison) -> String {
    let mut out = String::new();
    let knows = if comparison.oracle { "true surfaces" } else { "predicted surfaces" };
    let over = if comparison.load > 1.0 { " (over-subscribed)" } else { "" };
    let orders = comparison.seeds.len();
    let _ = writeln!(
        out,
        "{}  load {:.2}{over}  {}  {knows}  {orders} job order{}",
        comparison.scenario,
        comparison.load,
        comparison.accounting.as_str(),
        if orders == 1 { "" } else { "s" },
    );
    let mut families: Vec<&str> = Vec::new();
    for run in &comparison.policies {
        if !families.contains(&run.family.as_str()) {
            families.push(&run.family);
        }
    }
    let _ = writeln!(
        out,
        "\n{:12} {:>21} {:>17} {:>24}",
        "", "energy, MWh", "mean JCT, h", "above the bound"
    );
    for family in &families {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        let energy = span(runs().map(|run| run.counted_kwh / 1e3));
        let jct = span(runs().filter_map(|run| Some(run.outcome.jct_s_mean? / 3.6e3)));
        let above = comparison.above_bound.iter().filter(|above| above.policy == *family);
        let above = Spread::of(above.filter_map(|above| above.ratio));
        let _ = writeln!(
            out,
            "{family:12} {energy:>21} {jct:>17} {:>24}",
            above.map_or_else(|| "-".to_owned(), |s| shown(&s))
        );
    }
    let _ = writeln!(
        out,
        "\nHow many times longer the row's jobs take than the column's, at equal energy: geometric \
         mean (smallest to largest)"
    );
    let policies: Vec<&str> = families.clone();
    let _ = write!(out, "{:12}", "");
    for policy in &policies {
        let _ = write!(out, " {policy:>20}");
    }
    out.push('\n');
    for baseline in &families {
        let _ = write!(out, "{baseline:12}");
        for policy in &policies {
            let cell = comparison
                .summary
                .iter()
                .find(|s| s.policy == *policy && s.baseline == *baseline)
                .and_then(|s| s.spread.as_ref())
                .map_or_else(|| "-".to_owned(), shown);
            let _ = write!(out, " {cell:>20}");
        }
        out.push('\n');
    }
    out
}

fn shown(spread: &Spread) -> String {
    format!("{:.2} ({:.2} to {:.2})", spread.geometric_mean, spread.smallest, spread.largest)
}

/// `5.3 to 9.7`
fn span(values: impl Iterator<Item = f64>) -> String {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low.is_finite() { format!("{low:.1} to {high:.1}") } else { "-".to_owned() }
}

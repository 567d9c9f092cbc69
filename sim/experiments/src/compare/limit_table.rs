//! A comparison below power limits as a text table.

use std::fmt::Write as _;

use super::power_limits::{LimitComparison, LimitSummary};
use super::table::{Form, header_words};
use wattle_simulator::text::note;

/// Width of the policy column.
const NAME: usize = 12;

/// The table of one comparison below power limits.
#[must_use]
pub fn limits_table(comparison: &LimitComparison, form: Form) -> String {
    let orders = comparison.seeds.len();
    let words = vec![
        comparison.scenario.to_string(),
        format!("load {:.2}", comparison.load),
        comparison.workload.to_string(),
        format!("surfaces {}", comparison.surfaces),
        format!("lengths {}", comparison.lengths),
        format!("{} jobs in {orders} order{}", comparison.jobs, if orders == 1 { "" } else { "s" }),
        comparison.accounting.as_str().to_owned(),
    ];
    let mut out = header_words(&words, form);
    let _ = write!(
        out,
        "\n\nlimits as shares of {:.1} kW, the peak of fifo without a limit\n",
        comparison.peak_kw
    );
    let hours = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{:.1}", s / 3.6e3));
    block(&mut out, comparison, "mean JCT, h (ratio to the lower bound)", &|at| {
        let ratio = at.ratio.map_or_else(|| "-".to_owned(), |r| format!("{:.2}", r.geometric_mean));
        format!("{} ({ratio})", hours(at.jct_s_mean))
    });
    block(&mut out, comparison, "99th percentile, h", &|at| hours(at.jct_s_p99));
    if form == Form::Wide {
        block(&mut out, comparison, "95th percentile, h", &|at| hours(at.jct_s_p95));
    }
    block(&mut out, comparison, "energy of whole nodes, MWh", &|at| {
        format!("{:.1}", at.energy_kwh / 1e3)
    });
    for text in &comparison.notes {
        let _ = writeln!(out, "{}", note(text));
    }
    out
}

/// A row for each policy, a column for each limit.
fn block(
    out: &mut String,
    comparison: &LimitComparison,
    what: &str,
    cell: &dyn Fn(&LimitSummary) -> String,
) {
    let mut policies: Vec<&str> = Vec::new();
    let mut limits: Vec<f64> = Vec::new();
    for at in &comparison.summary {
        if !policies.contains(&at.policy.as_str()) {
            policies.push(&at.policy);
        }
        if !limits.contains(&at.limit_share) {
            limits.push(at.limit_share);
        }
    }
    let _ = write!(out, "\n{what}\n{:NAME$}", "");
    for share in &limits {
        let _ = write!(out, "{:>13}", format!("{:.0} %", 100.0 * share));
    }
    out.push('\n');
    for policy in policies {
        let _ = write!(out, "{policy:NAME$}");
        for at in comparison.summary.iter().filter(|at| at.policy == policy) {
            let _ = write!(out, "{:>13}", cell(at));
        }
        out.push('\n');
    }
}

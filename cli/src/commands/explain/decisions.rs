//! The decisions about a job, oldest first: each with its reason, and what it changes.

use wattle_common::duration::span;
use wattle_common::messages::JobRecord;
use wattle_view::consequence;

/// The section of the decisions, with the prices behind them or without; empty: there are none.
pub(super) fn section(record: &JobRecord, with_details: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for reason in &record.reasons {
        let after = reason.at_us.since(record.spec.submitted_at_us).as_secs_f64();
        lines.push(format!("+{:<8} {}", span(after), reason.decision));
        lines.push(format!("    {}: {}", reason.decided_by(), reason.reason));
        let consequence = reason.consequence.as_ref().and_then(consequence::sentence);
        lines.extend(consequence.map(|sentence| format!("    {sentence}")));
        let details = reason.details.iter().filter(|_| with_details);
        lines.extend(details.map(|details| format!("    details: {details}")));
    }
    lines
}

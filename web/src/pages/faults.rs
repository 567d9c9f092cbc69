//! What an operator should look at ([`wattle_view::verdict`]): findings with their remedies, the gravest first.

use serde_json::{Value, json};
use wattle_view::verdict::{self, Finding, Level, Stored};

use crate::model::{Model, Now};

/// Most findings on a page.
const FAULTS_MAX: usize = 20;

const fn name(level: Level) -> &'static str {
    match level {
        Level::Fault => "fault",
        Level::Warning => "warning",
    }
}

/// All findings, the gravest first.
pub(super) fn all(model: &Model, now: Now) -> Vec<Finding> {
    if let Some(since) = model.lost_since() {
        // The figures are old, and so is what follows from them.
        return vec![verdict::server_away("", now.steady.saturating_sub(since))];
    }
    let mut findings = Vec::new();
    for service in ["placer", "registry"] {
        if !model.leases.get(service).is_some_and(|lease| lease.is_active(now.steady)) {
            findings.extend(verdict::service_away(service));
        }
    }
    let over = model.power().zip(model.limit());
    findings.extend(over.and_then(|(drawn, limit)| verdict::over_limit(drawn, limit)));
    let stored = Stored {
        jobs: model.jobs.group(0).chain(model.jobs.group(1)).collect(),
        budget: model.budget.as_ref(),
        status: model.status.as_ref(),
        aim: model.aim.as_ref(),
        twin: model.twin.as_ref(),
        now: now.at,
    };
    findings.extend(stored.findings());
    for node in model.nodes.values().filter(|node| node.sleep.is_none()) {
        for (power, service) in [(true, "power-agent"), (false, "launcher")] {
            if model.is_overdue(node, power, now) {
                findings.push(verdict::node_silent(&node.node, service));
            }
        }
        if model.is_unread(node, now) {
            findings.push(verdict::node_silent(&node.node, "profiler"));
        }
        findings.extend(verdict::fault(node));
        findings.extend(verdict::gpus(node));
    }
    findings.extend(
        model.predictors.iter().filter_map(|(name, status)| verdict::predictor(name, status)),
    );
    if let Some(fault) = &model.fault {
        let text = format!("{} values could not be read; the last: {fault}", model.unreadable);
        let remedy = "update wattle-web, or look at the log of the writer";
        findings.push(Finding::warning("services", "page", text, remedy));
    }
    verdict::sort(&mut findings);
    findings
}

/// The first findings, for a page.
pub(super) fn shown(findings: &[Finding]) -> Value {
    let rows: Vec<Value> = findings
        .iter()
        .take(FAULTS_MAX)
        .map(|found| {
            json!({
                "level": name(found.level), "of": found.of, "text": found.text,
                "remedy": found.remedy,
            })
        })
        .collect();
    json!({ "shown": rows, "count": findings.len() })
}

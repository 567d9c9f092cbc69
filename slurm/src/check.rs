//! What a site's Slurm lacks for each level.
//!
//! [`check`] is a function of [`Facts`], which the command line reads from Slurm's programs and files. The
//! report begins with one verdict for each level; each finding has its remedy, a line to add or a command.

mod facts;
mod rules;
#[cfg(test)]
mod tests;

pub use facts::{Facts, Files, IntakeSettings, Partition, Settings};
pub use wattle_site::check::{Finding, Findings, Kind, Report, Verdict};

/// Checks a site.
#[must_use]
pub fn check(facts: &Facts) -> Report {
    let mut findings = Findings::default();
    rules::all(facts, &mut findings);
    let (levels, findings) = findings.judge();
    let nodes = facts.gpu_nodes();
    Report {
        scheduler: "Slurm",
        version: facts.config.get("SLURM_VERSION").to_owned(),
        cluster: facts.config.get("ClusterName").to_owned(),
        user: facts.user.clone(),
        nodes: nodes.len(),
        gpus: nodes.iter().map(|node| node.gres.count("gpu")).sum(),
        levels,
        findings,
    }
}

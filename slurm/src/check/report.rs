//! The report: a verdict for each level, then the findings with their remedies.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::Facts;
use crate::level::Level;

/// What a finding means for its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The level is not possible.
    Missing,
    /// The level is possible, but slower or with less information.
    Advice,
}

/// Something that a site's Slurm lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The lowest level that it concerns.
    pub level: Level,
    /// Whether this level and those above it are impossible or impaired without it.
    pub kind: Kind,
    /// What was found.
    pub finding: String,
    /// The line to add or the command to run.
    pub remedy: String,
}

/// Whether a level is possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The level.
    pub level: Level,
    /// Whether nothing is missing.
    pub is_ready: bool,
    /// Number of missing things, those of lower levels included.
    pub missing: usize,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of slurmctld.
    pub version: String,
    /// Name of the cluster in Slurm.
    pub cluster: String,
    /// The user whose rights were checked.
    pub user: String,
    /// Number of nodes with GPUs in the partitions that Wattle manages.
    pub nodes: usize,
    /// Number of their GPUs.
    pub gpus: u64,
    /// One verdict for each level, in order.
    pub levels: Vec<Verdict>,
    /// The findings, by level.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(facts: &Facts, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| (finding.kind, finding.level));
        let verdict = |level: Level| {
            let blocks = |f: &&Finding| f.kind == Kind::Missing && f.level <= level;
            let missing = findings.iter().filter(blocks).count();
            Verdict { level, is_ready: missing == 0, missing }
        };
        let nodes = facts.gpu_nodes();
        Self {
            version: facts.config.get("SLURM_VERSION").to_owned(),
            cluster: facts.config.get("ClusterName").to_owned(),
            user: facts.user.clone(),
            nodes: nodes.len(),
            gpus: nodes.iter().map(|node| node.gres.count("gpu")).sum(),
            levels: Level::ALL.into_iter().map(verdict).collect(),
            findings,
        }
    }

    /// Whether nothing is missing for a level.
    #[must_use]
    pub fn is_ready(&self, level: Level) -> bool {
        self.levels.iter().any(|verdict| verdict.level == level && verdict.is_ready)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for verdict in &self.levels {
            if verdict.is_ready {
                writeln!(f, "level {}: ready", verdict.level)?;
            } else {
                writeln!(f, "level {}: missing {}", verdict.level, verdict.missing)?;
            }
        }
        let Self { version, cluster, nodes, gpus, user, .. } = self;
        writeln!(
            f,
            "\nSlurm {version}, cluster {cluster}, {nodes} nodes with {gpus} GPUs, user {user}"
        )?;
        let mut text = String::new();
        for Finding { level, kind, finding, remedy } in &self.findings {
            let kind = match kind {
                Kind::Missing => "missing",
                Kind::Advice => "advice",
            };
            writeln!(text, "\n{kind} ({level}): {finding}")?;
            for line in remedy.lines() {
                writeln!(text, "  {line}")?;
            }
        }
        f.write_str(&text)
    }
}

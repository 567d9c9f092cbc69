//! What a site lacks for each level: findings with their remedies, and a verdict for each level.
//!
//! The rules are those of a scheduler; they add what they find to [`Findings`].

use std::fmt::{self, Write as _};

use serde::Serialize;

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

/// Something that a site lacks.
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

/// The findings of a check.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds something without which the level is not possible.
    pub fn missing(&mut self, level: Level, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(level, Kind::Missing, finding.into(), remedy.into());
    }

    /// Adds something without which the level is slower or has less information.
    pub fn advice(&mut self, level: Level, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(level, Kind::Advice, finding.into(), remedy.into());
    }

    fn add(&mut self, level: Level, kind: Kind, finding: String, remedy: String) {
        self.0.push(Finding { level, kind, finding, remedy });
    }

    /// One verdict for each level, in order, and the findings: missing things first, each kind by level.
    #[must_use]
    pub fn judge(mut self) -> (Vec<Verdict>, Vec<Finding>) {
        self.0.sort_by_key(|finding| (finding.kind, finding.level));
        let verdict = |level: Level| {
            let blocks = |f: &&Finding| f.kind == Kind::Missing && f.level <= level;
            let missing = self.0.iter().filter(blocks).count();
            Verdict { level, is_ready: missing == 0, missing }
        };
        (Level::ALL.into_iter().map(verdict).collect(), self.0)
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scheduler's name, for people: `Slurm`.
    #[serde(skip)]
    pub scheduler: &'static str,
    /// Its version.
    pub version: String,
    /// Name of the cluster in the scheduler.
    pub cluster: String,
    /// The user whose rights were checked.
    pub user: String,
    /// Number of nodes with GPUs that Wattle manages.
    pub nodes: usize,
    /// Number of their GPUs.
    pub gpus: u64,
    /// One verdict for each level, in order.
    pub levels: Vec<Verdict>,
    /// The findings of [`Findings::judge`].
    pub findings: Vec<Finding>,
}

impl Report {
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
        let Self { scheduler, version, cluster, nodes, gpus, user, .. } = self;
        writeln!(
            f,
            "\n{scheduler} {version}, cluster {cluster}, {nodes} nodes with {gpus} GPUs, user {user}"
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

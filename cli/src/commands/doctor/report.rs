//! The report: a verdict, the findings with their remedies, and what was checked.

use std::fmt;

use serde::Serialize;

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Something does not work.
    Problem,
    /// It works, but may be better.
    Advice,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How severe it is.
    pub(crate) kind: Kind,
    /// The part that it is about: `server`, `clock`, `services`, `node`, `driver`, `disk`, `slurm`, `grid`.
    pub(crate) about: &'static str,
    /// What was found.
    pub(crate) finding: String,
    /// The command to run or the key to change.
    pub(crate) remedy: String,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Whether there is no problem.
    pub(crate) is_fine: bool,
    /// The findings, problems first.
    pub(crate) findings: Vec<Finding>,
    /// What was checked, one line for each part.
    pub(crate) checked: Vec<String>,
}

impl Report {
    pub(super) fn new(mut findings: Vec<Finding>, checked: Vec<String>) -> Self {
        findings.sort_by_key(|finding| finding.kind);
        let is_fine = findings.iter().all(|finding| finding.kind != Kind::Problem);
        Self { is_fine, findings, checked }
    }

    /// Number of problems.
    pub(crate) fn problems(&self) -> usize {
        self.findings.iter().filter(|finding| finding.kind == Kind::Problem).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = self.findings.len() - self.problems();
        match self.problems() {
            0 => write!(f, "no problem found")?,
            1 => write!(f, "1 problem")?,
            problems => write!(f, "{problems} problems")?,
        }
        writeln!(f, "{}", if advice == 0 { String::new() } else { format!(", advice: {advice}") })?;
        for Finding { kind, about, finding, remedy } in &self.findings {
            let kind = match kind {
                Kind::Problem => "problem",
                Kind::Advice => "advice",
            };
            writeln!(f, "\n{kind} ({about}): {finding}")?;
            for line in remedy.lines() {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "\nchecked:")?;
        for line in &self.checked {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

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
    /// The part that it is about: `server`, `clock`, `services`, `node`, `driver`, `disk`, `slurm`, `grid`,
    /// `budget`, `aim`, `jobs`.
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

    /// The number of problems and the first of them, which has the gravest cause; without one, the first advice.
    pub(crate) fn verdict(&self) -> String {
        let (problems, advice) = (self.problems(), self.findings.len() - self.problems());
        let first = self.findings.first().and_then(|finding| finding.finding.lines().next());
        let first = first.unwrap_or_default();
        let more = |others: usize| match others {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let mut text = match (problems, advice) {
            (0, 0) => return "no problem found".to_owned(),
            (0, _) => return format!("no problem found; advice: {first}{}", more(advice - 1)),
            (1, _) => format!("1 problem: {first}"),
            (_, _) => format!("{problems} problems: {first}{}", more(problems - 1)),
        };
        if advice > 0 {
            text.push_str(&format!("; advice: {advice}"));
        }
        text
    }

    /// Number of problems.
    pub(crate) fn problems(&self) -> usize {
        self.findings.iter().filter(|finding| finding.kind == Kind::Problem).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict())?;
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

//! What a site's Slurm lacks for each level.
//!
//! [`check`] is a function of [`Facts`], which the command line reads from Slurm's programs and files. The
//! report begins with one verdict for each level; each finding has its remedy, a line to add or a command.

mod facts;
mod report;
mod rules;
#[cfg(test)]
mod tests;

pub use facts::{Facts, Files, IntakeSettings, Partition, Settings};
pub use report::{Finding, Kind, Report, Verdict};

/// Checks a site.
#[must_use]
pub fn check(facts: &Facts) -> Report {
    let mut findings = Vec::new();
    rules::all(facts, &mut findings);
    Report::new(facts, findings)
}

//! Changes of each policy against the first, over several seeds of one simulation.
//!
//! A trace without models leaves each job's workload open, and every seed draws the workloads again. The
//! spread over seeds is the part of the uncertainty that comes from these draws. What a site would have saved
//! is another question, which [`crate::estimate`] answers: it has the schedule that the trace records, the
//! bound on completion time and the errors of predictions.

use serde::Serialize;
use wattle_simulator::text::pluralize;
use wattle_simulator::{Outcome, PolicyOutcome};

use crate::spread::ChangeSpread;

/// One policy against the first, over several seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyChange {
    /// The policy.
    pub policy: String,
    /// The policy it is compared with.
    pub baseline: String,
    /// Number of seeds.
    pub seeds: usize,
    /// Change of the energy; null where the baseline's energy is zero.
    pub energy: Option<ChangeSpread>,
    /// Change of the emissions; null without a carbon series.
    pub carbon: Option<ChangeSpread>,
    /// Change of the mean completion time; null where no job finished.
    pub jct_mean: Option<ChangeSpread>,
}

/// The changes of every policy against the first. `seeds` holds the runs of each seed; runs with
/// true surfaces (oracle) are skipped.
#[must_use]
pub fn changes(seeds: &[Vec<PolicyOutcome>]) -> Vec<PolicyChange> {
    let predicted = |runs: &Vec<PolicyOutcome>| -> Vec<PolicyOutcome> {
        runs.iter().filter(|run| !run.oracle).cloned().collect()
    };
    let seeds: Vec<Vec<PolicyOutcome>> = seeds.iter().map(predicted).collect();
    let policies = seeds.iter().map(Vec::len).min().unwrap_or(0);
    let change = |new: Option<f64>, old: Option<f64>| {
        let (new, old) = (new?, old?);
        (old > 0.0).then_some(new / old - 1.0)
    };
    let spread = |policy: usize, of: fn(&PolicyOutcome) -> Option<f64>| {
        let changes: Vec<Option<f64>> =
            seeds.iter().map(|runs| change(of(&runs[policy]), of(&runs[0]))).collect();
        ChangeSpread::of(&changes)
    };
    (1..policies)
        .map(|policy| PolicyChange {
            policy: seeds[0][policy].policy.clone(),
            baseline: seeds[0][0].policy.clone(),
            seeds: seeds.len(),
            energy: spread(policy, |run| Some(run.energy_kwh)),
            carbon: spread(policy, |run| run.carbon_kg),
            jct_mean: spread(policy, |run| run.jct_s_mean),
        })
        .collect()
}

/// The runs of one seed, with the changes over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedStudy {
    /// The runs of the first seed.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Changes of each policy against the first; empty where one seed was run.
    #[serde(rename = "savings")]
    pub changes: Vec<PolicyChange>,
}

impl From<Outcome> for SeedStudy {
    /// A study of one seed.
    fn from(outcome: Outcome) -> Self {
        Self { outcome, changes: Vec::new() }
    }
}

impl SeedStudy {
    /// One JSON object with a line break at its end.
    ///
    /// # Panics
    /// Never: all fields are plain values.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain values become JSON");
        text.push('\n');
        text
    }

    /// Tables of at most 80 columns.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = self.outcome.to_table();
        if self.changes.is_empty() {
            return text;
        }
        text.push('\n');
        for change in &self.changes {
            text.push_str(&change.to_lines());
        }
        text.push_str(
            "mean over the seeds (least to greatest); each seed draws the workloads again\n",
        );
        text
    }
}

impl PolicyChange {
    fn to_lines(&self) -> String {
        let show = |spread: Option<ChangeSpread>| spread.map_or("-".to_owned(), |s| s.to_string());
        let carbon = self.carbon.map_or(String::new(), |spread| format!(", carbon {spread}"));
        format!(
            "{} against {} over {}: energy {}\n    mean JCT {}{carbon}\n",
            self.policy,
            self.baseline,
            pluralize(self.seeds, "seed"),
            show(self.energy),
            show(self.jct_mean)
        )
    }
}

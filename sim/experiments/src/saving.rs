//! Savings of each policy against the first, over several seeds.
//!
//! A trace without models leaves each job's workload open, and every seed draws the workloads
//! again. The spread over seeds is the part of the saving's uncertainty that comes from these
//! draws.

use std::fmt;

use serde::Serialize;
use wattle_simulator::text::pluralize;
use wattle_simulator::{Outcome, PolicyOutcome};

/// A relative change over seeds: mean, least and greatest; -0.1 is a tenth less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChangeSpread {
    /// Mean over the seeds.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl ChangeSpread {
    /// The spread of one change per seed; `None` where a change is missing or the list is empty.
    pub(crate) fn of(changes: &[Option<f64>]) -> Option<Self> {
        let changes: Vec<f64> = changes.iter().copied().collect::<Option<_>>()?;
        let n = changes.len();
        let rounded = |change: f64| (change * 1e6).round() / 1e6;
        (n > 0).then(|| Self {
            mean: rounded(changes.iter().sum::<f64>() / n as f64),
            min: rounded(changes.iter().copied().fold(f64::INFINITY, f64::min)),
            max: rounded(changes.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        })
    }
}

impl fmt::Display for ChangeSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, min, max] = [self.mean, self.min, self.max].map(|change| 100.0 * change);
        write!(f, "{mean:+.1} % ({min:+.1} to {max:+.1})")
    }
}

/// One policy against the first, over several seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
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

/// The savings of every policy against the first. `seeds` holds the runs of each seed; runs with
/// true surfaces (oracle) are skipped.
#[must_use]
pub fn savings(seeds: &[Vec<PolicyOutcome>]) -> Vec<Saving> {
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
        .map(|policy| Saving {
            policy: seeds[0][policy].policy.clone(),
            baseline: seeds[0][0].policy.clone(),
            seeds: seeds.len(),
            energy: spread(policy, |run| Some(run.energy_kwh)),
            carbon: spread(policy, |run| run.carbon_kg),
            jct_mean: spread(policy, |run| run.jct_s_mean),
        })
        .collect()
}

/// The runs of one seed, with the savings over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedStudy {
    /// The runs of the first seed.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Savings of each policy against the first; empty where one seed was run.
    pub savings: Vec<Saving>,
}

impl From<Outcome> for SeedStudy {
    /// A study of one seed.
    fn from(outcome: Outcome) -> Self {
        Self { outcome, savings: Vec::new() }
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
        if self.savings.is_empty() {
            return text;
        }
        text.push('\n');
        for saving in &self.savings {
            text.push_str(&saving.to_lines());
        }
        text.push_str(
            "mean over the seeds (least to greatest); each seed draws the workloads again\n",
        );
        text
    }
}

impl Saving {
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

//! What a policy saves against another one, over several seeds.
//!
//! A trace without models leaves open what its jobs computed: each seed draws that anew. So the
//! spread over seeds is what is not known of the saving, as far as it hangs on that.

use std::fmt;

use serde::Serialize;

use crate::outcome::PolicyOutcome;
use crate::said::counted;

/// A relative change over seeds: its mean, least and greatest; -0.1 is a tenth less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean over the seeds.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of one change for each seed; `None` where one is missing or there is none.
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

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, min, max] = [self.mean, self.min, self.max].map(|change| 100.0 * change);
        write!(f, "{mean:+.1} % ({min:+.1} to {max:+.1})")
    }
}

/// One policy against the first one, over several seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub baseline: String,
    /// How many seeds.
    pub seeds: usize,
    /// Change of the energy; null where the baseline spent none.
    pub energy: Option<Spread>,
    /// Change of the emissions; null without a carbon series.
    pub carbon: Option<Spread>,
    /// Change of the mean completion time; null where no job finished.
    pub jct_mean: Option<Spread>,
}

/// Every policy against the first, from what came of them under each seed. Runs on true surfaces
/// do not count.
#[must_use]
pub fn savings(seeds: &[Vec<PolicyOutcome>]) -> Vec<Saving> {
    let own = |runs: &Vec<PolicyOutcome>| -> Vec<PolicyOutcome> {
        runs.iter().filter(|run| !run.oracle).cloned().collect()
    };
    let seeds: Vec<Vec<PolicyOutcome>> = seeds.iter().map(own).collect();
    let policies = seeds.iter().map(Vec::len).min().unwrap_or(0);
    let change = |new: Option<f64>, old: Option<f64>| {
        let (new, old) = (new?, old?);
        (old > 0.0).then_some(new / old - 1.0)
    };
    let spread = |policy: usize, of: fn(&PolicyOutcome) -> Option<f64>| {
        let changes: Vec<Option<f64>> =
            seeds.iter().map(|runs| change(of(&runs[policy]), of(&runs[0]))).collect();
        Spread::of(&changes)
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

/// What [`savings`] says, a line for each policy.
#[must_use]
pub(crate) fn savings_table(savings: &[Saving]) -> String {
    let text = |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| spread.to_string());
    let mut lines = String::new();
    for saving in savings {
        lines += &format!(
            "{} against {} over {}: energy {}\n",
            saving.policy,
            saving.baseline,
            counted(saving.seeds, "seed"),
            text(saving.energy)
        );
        lines += &format!("    mean JCT {}", text(saving.jct_mean));
        if saving.carbon.is_some() {
            lines += &format!(", carbon {}", text(saving.carbon));
        }
        lines.push('\n');
    }
    if !lines.is_empty() {
        lines += "mean over the seeds (least to greatest); each draws anew what is not known of the jobs\n";
    }
    lines
}

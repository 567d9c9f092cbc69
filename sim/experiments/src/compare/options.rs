//! Options of a comparison: energy accounting, co-location model, surfaces, parameters.

use std::str::FromStr;

use serde::{Serialize, Serializer};
use wattle_baselines::POLICIES;
use wattle_common::Budget;
use wattle_world::Interference;

use crate::bound::PricedSearch;
use wattle_simulator::{ErrorShape, SurfaceNoise};
use wattle_simulator::{Forecast, Lengths, PlannedEvent};

/// The energy that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// Energy of GPUs above idle; for comparisons equivalent to always-on nodes over one horizon.
    AboveIdle,
    /// Whole nodes, with the same sleep rule for every policy.
    SleepAll,
    /// Whole nodes, always awake.
    SleepNone,
    /// Whole nodes, which sleep only under policies that pack jobs to free nodes.
    SleepPacking,
}

impl Accounting {
    /// All there are.
    pub const ALL: [Self; 4] =
        [Self::AboveIdle, Self::SleepAll, Self::SleepNone, Self::SleepPacking];

    /// Its name in options and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AboveIdle => "above-idle",
            Self::SleepAll => "sleep-all",
            Self::SleepNone => "sleep-none",
            Self::SleepPacking => "sleep-packing",
        }
    }

    /// Whether unused nodes sleep under this policy.
    pub(super) fn sleeps(self, family: &str) -> bool {
        match self {
            Self::AboveIdle | Self::SleepNone => false,
            Self::SleepAll => true,
            Self::SleepPacking => ["eaco", "wattle"].contains(&name_of(family)),
        }
    }
}

/// A policy's name without its parameters.
pub(super) fn name_of(family: &str) -> &str {
    family.split([':', '@', '+']).next().unwrap_or(family)
}

/// The suffix of a policy whose jobs may be deferred within their slack.
const DEFERS: &str = "+defer";

/// The policy of a family, and whether its jobs may be deferred to a cleaner grid.
#[must_use]
pub fn policy_of(family: &str) -> (&str, bool) {
    family.strip_suffix(DEFERS).map_or((family, false), |policy| (policy, true))
}

/// Whether a policy co-locates jobs.
pub(super) fn shares(family: &str) -> bool {
    POLICIES.entry(name_of(family)).is_some_and(|entry| entry.capabilities().shares_gpus)
}

/// The model of slowdown between jobs that share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbours {
    /// No sharing.
    Alone,
    /// Slowdowns of pairs measured on V100s.
    Pairs,
    /// One mild slowdown curve.
    Mild,
}

impl Neighbours {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Alone, Self::Pairs, Self::Mild];

    /// Its name in options and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Pairs => "pairs",
            Self::Mild => "mild",
        }
    }

    /// The world's co-location model.
    pub(super) const fn interference(self) -> Interference {
        match self {
            Self::Alone | Self::Pairs => Interference::Pairs,
            Self::Mild => Interference::Mild,
        }
    }
}

/// The surfaces that policies receive.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Surfaces {
    /// True surfaces.
    Oracle,
    /// Surfaces that the predictor learns from noisy windows.
    #[default]
    Predicted,
    /// True surfaces with errors of this share, independent for each number of GPUs.
    Independent(f64),
    /// True surfaces with errors of this share, linear over the logarithm of the number of GPUs.
    Smooth(f64),
}

/// An invalid name of surfaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown surfaces `{0}`; use oracle, predicted, independent:SHARE or smooth:SHARE, with a \
     share from 0 to 1, as in independent:0.1"
)]
pub struct SurfaceError(String);

impl FromStr for Surfaces {
    type Err = SurfaceError;

    fn from_str(text: &str) -> Result<Self, SurfaceError> {
        let share = |text: &str| text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        match text.split_once(':') {
            None if text == "oracle" => Some(Self::Oracle),
            None if text == "predicted" => Some(Self::Predicted),
            Some(("independent", number)) => share(number).map(Self::Independent),
            Some(("smooth", number)) => share(number).map(Self::Smooth),
            _ => None,
        }
        .ok_or_else(|| SurfaceError(text.to_owned()))
    }
}

impl std::fmt::Display for Surfaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Oracle => f.write_str("oracle"),
            Self::Predicted => f.write_str("predicted"),
            Self::Independent(share) => write!(f, "independent:{share}"),
            Self::Smooth(share) => write!(f, "smooth:{share}"),
        }
    }
}

impl Serialize for Surfaces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Surfaces {
    /// Whether they are true surfaces, with or without errors.
    #[must_use]
    pub fn are_of_the_world(self) -> bool {
        self != Self::Predicted
    }

    /// Their errors in this order.
    pub(super) fn surface_noise(self, order: u64) -> Option<SurfaceNoise> {
        // Each order has its own seed.
        let seed = order;
        match self {
            Self::Oracle | Self::Predicted => None,
            Self::Independent(share) => {
                Some(SurfaceNoise { shape: ErrorShape::Independent, share, seed })
            }
            Self::Smooth(share) => Some(SurfaceNoise { shape: ErrorShape::Smooth, share, seed }),
        }
    }
}

/// The density of the tuning parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knobs {
    /// Every setting.
    #[default]
    Full,
    /// Every third setting.
    Few,
}

/// Options of a comparison.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Policies without parameters; empty: the scenario's.
    pub policies: Vec<String>,
    /// Their surfaces.
    pub surfaces: Surfaces,
    /// Knowledge of job lengths.
    pub lengths: Lengths,
    /// The density of the tuning parameters.
    pub knobs: Knobs,
    /// The carbon forecast.
    pub forecast: Forecast,
    /// A budget of every run, besides the energy price.
    pub budget: Option<Budget>,
    /// Grid events of every run.
    pub events: Vec<PlannedEvent>,
    /// Precision of the bounds; absent: by the number of jobs.
    pub bound: Option<PricedSearch>,
    /// Number of threads.
    pub threads: usize,
}

impl CompareOptions {
    /// The name of `lengths` in output.
    pub(super) const fn lengths_name(&self) -> &'static str {
        match self.lengths {
            Lengths::Known => "known",
            Lengths::Reported => "reported",
            Lengths::Unknown => "unknown",
            Lengths::Past => "past",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surface_options_print_as_they_parse() {
        for text in ["oracle", "predicted", "independent:0.1", "smooth:0.25"] {
            assert_eq!(text.parse::<Surfaces>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "true", "independent", "smooth:", "smooth:-1", "independent:2", "oracle:1"]
        {
            let error = wrong.parse::<Surfaces>().unwrap_err().to_string();
            assert!(error.contains("independent:SHARE"), "{wrong}: {error}");
        }
    }

    #[test]
    fn only_packing_policies_sleep_under_sleep_packing() {
        let sleep = |policy| Accounting::SleepPacking.sleeps(policy);
        assert!(sleep("eaco") && sleep("wattle") && !sleep("fifo") && !sleep("fifo-packed"));
        assert!(shares("gandiva") && shares("fifo-packed") && !shares("powerflow"));
        assert!(!shares("afs:0.5"), "a tuned policy is the same policy");
        assert!(sleep("eaco+defer") && shares("wattle+defer"));
        assert_eq!(policy_of("afs:0.5+defer"), ("afs:0.5", true));
        assert_eq!(policy_of("fifo+zeus"), ("fifo+zeus", false));
    }
}

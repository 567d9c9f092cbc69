//! What can be asked of a comparison: what counts, who slows whom, what policies see.

use std::str::FromStr;

use serde::{Serialize, Serializer};
use wattle_common::Budget;
use wattle_world::Interference;

use crate::bound::PricedSearch;
use wattle_simulator::{ErrorShape, SurfaceNoise};
use wattle_simulator::{Forecast, Lengths};

/// What counts as spent energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// What cards draw above idle; equal, for matching, to everything always on over one horizon.
    AboveIdle,
    /// Whole nodes, awake or asleep, with one sleep rule for every policy.
    SleepAll,
    /// Whole nodes, always awake.
    SleepNone,
    /// Whole nodes; only those of policies that pack to free nodes sleep, everybody else's idle on.
    SleepOurs,
}

impl Accounting {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::AboveIdle, Self::SleepAll, Self::SleepNone, Self::SleepOurs];

    /// Its name in options and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AboveIdle => "above-idle",
            Self::SleepAll => "sleep-all",
            Self::SleepNone => "sleep-none",
            Self::SleepOurs => "sleep-ours",
        }
    }

    /// Whether unused nodes of this policy sleep.
    pub(super) fn sleeps(self, family: &str) -> bool {
        match self {
            Self::AboveIdle | Self::SleepNone => false,
            Self::SleepAll => true,
            Self::SleepOurs => ["eaco", "wattle"].contains(&name_of(family)),
        }
    }
}

/// A policy's own name, without what it is tuned by.
pub(super) fn name_of(family: &str) -> &str {
    family.split([':', '@', '+']).next().unwrap_or(family)
}

/// What a policy is called whose jobs may wait for a cleaner grid as long as they declare.
const DEFERS: &str = "+defer";

/// The policy that a family runs, and whether its jobs may wait for a cleaner grid.
#[must_use]
pub fn policy_of(family: &str) -> (&str, bool) {
    family.strip_suffix(DEFERS).map_or((family, false), |policy| (policy, true))
}

/// Whether a policy ever puts two jobs on one GPU.
pub(super) fn shares(family: &str) -> bool {
    ["fifo-packed", "gandiva", "eaco", "wattle"].contains(&name_of(family))
}

/// How jobs that share a GPU slow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbours {
    /// Nobody shares.
    Alone,
    /// As pairs were measured on V100s.
    Pairs,
    /// By one mild curve.
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

    /// What the world is asked to be.
    pub(super) const fn interference(self) -> Interference {
        match self {
            Self::Alone | Self::Pairs => Interference::Pairs,
            Self::Mild => Interference::Mild,
        }
    }
}

/// What policies see of speeds and powers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Surfaces {
    /// The world's own.
    Oracle,
    /// What the predictor learns from noisy windows.
    #[default]
    Predicted,
    /// The world's own with errors of this share, each number of GPUs for itself.
    Independent(f64),
    /// The world's own with errors of this share that are a line over the number of GPUs.
    Smooth(f64),
}

/// A text that says no surfaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no surfaces are called `{0}`; use oracle, predicted, independent:SHARE or smooth:SHARE, with a \
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
    /// Whether they are made from the world.
    #[must_use]
    pub fn are_of_the_world(self) -> bool {
        self != Self::Predicted
    }

    /// How they err in this order.
    pub(super) fn surface_noise(self, order: u64) -> Option<SurfaceNoise> {
        // Orders are few and seeds are many: no two orders err alike.
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

/// How densely knobs are turned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knobs {
    /// Every setting.
    #[default]
    Full,
    /// Every third: to look at a scenario, not to quote it.
    Quick,
}

/// What is compared, and how far.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Policies, without knobs; empty: those that a scenario asks about.
    pub policies: Vec<String>,
    /// What they see.
    pub surfaces: Surfaces,
    /// From when on a job's length is known.
    pub lengths: Lengths,
    /// How densely knobs are turned.
    pub knobs: Knobs,
    /// What is expected of the grid's carbon intensity.
    pub forecast: Forecast,
    /// What every run may spend, beside the price it is run at; absent: no matter.
    pub budget: Option<Budget>,
    /// How hard bounds are sought; absent: as hard as the number of jobs allows.
    pub bound: Option<PricedSearch>,
    /// Runs at a time.
    pub threads: usize,
}

impl CompareOptions {
    /// How `lengths` is called.
    pub(super) const fn lengths_said(&self) -> &'static str {
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
    fn surfaces_are_called_as_they_are_spelt() {
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
    fn only_who_packs_sleeps_where_only_ours_do() {
        let sleep = |policy| Accounting::SleepOurs.sleeps(policy);
        assert!(sleep("eaco") && sleep("wattle") && !sleep("fifo") && !sleep("fifo-packed"));
        assert!(shares("gandiva") && shares("fifo-packed") && !shares("powerflow"));
        assert!(!shares("afs:0.5"), "a tuned policy is the same policy");
        assert!(sleep("eaco+defer") && shares("wattle+defer"));
        assert_eq!(policy_of("afs:0.5+defer"), ("afs:0.5", true));
        assert_eq!(policy_of("fifo+zeus"), ("fifo+zeus", false));
    }
}

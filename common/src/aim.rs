//! A cluster's aim: what the scheduler optimises where no budget decides.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the scheduler optimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aim {
    /// The least mean completion time. Energy is free.
    Time,
    /// The least energy, while the mean completion time stays within a bound of that of the time aim.
    #[default]
    Energy,
    /// The least mean completion time within a budget.
    Budget,
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Time => "time",
            Self::Energy => "energy",
            Self::Budget => "budget",
        })
    }
}

impl FromStr for Aim {
    type Err = AimError;

    fn from_str(text: &str) -> Result<Self, AimError> {
        match text {
            "time" => Ok(Self::Time),
            "energy" => Ok(Self::Energy),
            "budget" => Ok(Self::Budget),
            _ => Err(AimError::Name(text.to_owned())),
        }
    }
}

/// The scheduler that a site had before, as the reference of completion times: a policy of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// EASY backfilling, what sites with time limits have.
    #[default]
    Backfill,
    /// First come, first served.
    Fifo,
}

impl Baseline {
    /// The name of its policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backfill => "backfill",
            Self::Fifo => "fifo",
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Baseline {
    type Err = AimError;

    fn from_str(text: &str) -> Result<Self, AimError> {
        let known = [Self::Backfill, Self::Fifo].into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| AimError::Baseline(text.to_owned()))
    }
}

/// The bound of the energy aim on the mean completion time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AimBound {
    /// The scheduler relative to which completion times count; absent: the time aim.
    pub baseline: Option<Baseline>,
    /// How much later jobs may complete on average, a share of the reference's mean completion time.
    pub share: f64,
    /// How much later the jobs of each project may complete on average than under the baseline, a share; absent:
    /// projects are not bounded.
    pub project: Option<f64>,
}

/// A share in per cent, with at most two decimals.
pub(crate) fn percent(share: f64) -> f64 {
    (1e4 * share).round() / 1e2
}

impl fmt::Display for AimBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reference = self.baseline.map_or("the time aim", Baseline::name);
        let later = percent(self.share);
        f.write_str("jobs complete on average ")?;
        if later > 0.0 {
            write!(f, "at most {later} % later than under {reference}")?;
        } else {
            write!(f, "no later than under {reference}")?;
        }
        let project = |share| format!(", those of no project over {} % later", percent(share));
        f.write_str(&self.project.map_or_else(String::new, project))
    }
}

impl AimBound {
    /// The bound where none is given.
    pub const DEFAULT: Self = Self::mean(Some(Baseline::Backfill), 0.0);

    /// A bound on the mean of all jobs only.
    #[must_use]
    pub const fn mean(baseline: Option<Baseline>, share: f64) -> Self {
        Self { baseline, share, project: None }
    }
}

/// Why an aim or its bound is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AimError {
    /// An unknown name.
    #[error("no aim `{0}`: give time, energy or budget")]
    Name(String),
    /// An unknown baseline.
    #[error("no baseline `{0}`: give backfill or fifo")]
    Baseline(String),
    /// A bound that is not a share.
    #[error("invalid slowdown `{0}`: give 0% to 100%, or a share from 0 to 1, as in 5% or 0.05")]
    Slowdown(String),
}

/// A bound on the increase of completion time, as a share: `5%` and `0.05` are both 0.05.
///
/// # Errors
/// [`AimError::Slowdown`] if the text is not a number from 0 to 1, or from 0 to 100 with a per cent sign.
pub fn parse_slowdown(text: &str) -> Result<f64, AimError> {
    let invalid = || AimError::Slowdown(text.to_owned());
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().map_err(|_| invalid())? / unit;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(invalid()) }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_a_percentage_or_a_share() {
        assert_eq!(parse_slowdown("5%").unwrap(), 0.05);
        assert_eq!(parse_slowdown("0.05").unwrap(), 0.05);
        assert_eq!(parse_slowdown(" 0 % ").unwrap(), 0.0);
        assert_eq!(parse_slowdown("100%").unwrap(), 1.0);
        for text in ["", "%", "-1%", "5 percent", "nan", "inf", "50", "150%", "1.5"] {
            let error = parse_slowdown(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn names_of_aims_round_trip() {
        for aim in [Aim::Time, Aim::Energy, Aim::Budget] {
            assert_eq!(aim.to_string().parse(), Ok(aim));
        }
        assert!("speed".parse::<Aim>().unwrap_err().to_string().contains("time, energy or budget"));
    }
}

//! How much Wattle decides beside a site's scheduler.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What Wattle decides; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing: its decisions are only reported. No command is sent to the scheduler.
    Advise,
    /// Caps and clocks of the GPUs that the scheduler assigns.
    Caps,
    /// When a job starts, on which nodes, and on how many GPUs. The scheduler chooses their indices.
    Start,
    /// The GPU indices.
    Exact,
    /// Which jobs share GPUs.
    Share,
}

impl Level {
    /// All levels in order.
    pub const ALL: [Self; 5] = [Self::Advise, Self::Caps, Self::Start, Self::Exact, Self::Share];

    /// Its name in configuration files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Advise => "advise",
            Self::Caps => "caps",
            Self::Start => "start",
            Self::Exact => "exact",
            Self::Share => "share",
        }
    }

    /// Whether Wattle places jobs.
    #[must_use]
    pub fn places(self) -> bool {
        self >= Self::Start
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a text is not a [`Level`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid level `{0}`: expected advise, caps, start, exact or share")]
pub struct LevelError(String);

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        let known = Self::ALL.into_iter().find(|level| level.as_str() == text);
        known.ok_or_else(|| LevelError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_by_their_names() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let error = "Exact".parse::<Level>().unwrap_err();
        assert!(error.to_string().contains("`Exact`"), "{error}");
    }
}

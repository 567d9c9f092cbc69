//! What the owner of a job gives up during a grid event.

use serde::{Deserialize, Serialize};

use crate::bounds::{OutOfBounds, invalid};

/// A promise: the share of its throughput that a job may lose during a grid event, and by which means besides lower
/// caps and clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flexibility {
    /// The largest loss, on average over an event with its ramps, per mille of the predicted speed at the default
    /// setting on the same GPUs.
    pub loss_permille: u32,
    /// Whether it may be paused, if it has a checkpoint signal.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_pause: bool,
    /// Whether its number of GPUs may change, within its range.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_resize: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Flexibility {
    /// The largest loss, a share.
    #[must_use]
    pub fn loss(self) -> f64 {
        f64::from(self.loss_permille) / 1e3
    }

    /// In words: `25 %, may be paused`.
    #[must_use]
    pub fn sentence(self) -> String {
        let pause = if self.may_pause { ", may be paused" } else { "" };
        let resize = if self.may_resize { ", may be resized" } else { "" };
        format!("{} %{pause}{resize}", f64::from(self.loss_permille) / 10.0)
    }

    /// Checks the loss.
    ///
    /// # Errors
    /// If it exceeds the whole throughput.
    pub fn check(self) -> Result<(), OutOfBounds> {
        match self.loss_permille {
            0..=1_000 => Ok(()),
            permille => {
                Err(invalid("flexibility", format_args!("{permille} per mille"), "0 to 1000"))
            }
        }
    }
}

/// Why a text is not a loss of throughput.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid flexibility `{0}`: expected 0% to 100%, or a share from 0 to 1, as in 25% or 0.25"
)]
pub struct FlexibilityError(String);

/// Parses the largest loss of throughput during an event, a share.
///
/// # Errors
/// If the text is no number from 0 to 1, or from 0 to 100 with a per cent sign.
pub fn parse_flexibility(text: &str) -> Result<f64, FlexibilityError> {
    crate::aim::parse_slowdown(text).map_err(|_| FlexibilityError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flexibility_is_from_none_to_all_of_the_throughput() {
        for (text, permille) in [("0%", 0), ("25 %", 250), ("0.25", 250), ("1", 1_000)] {
            let loss_permille = (parse_flexibility(text).unwrap() * 1e3).round() as u32;
            assert_eq!(loss_permille, permille, "{text}");
        }
        for text in ["", "-1%", "101%", "1.01", "nan", "much"] {
            let error = parse_flexibility(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("0% to 100%"),
                "{error}"
            );
        }
        let promise = Flexibility { loss_permille: 125, may_pause: true, may_resize: false };
        assert_eq!(promise.sentence(), "12.5 %, may be paused");
        assert!(promise.check().is_ok());
        assert!(Flexibility { loss_permille: 1_001, ..promise }.check().is_err());
    }
}

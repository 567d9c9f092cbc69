//! Grid events: for a while, a site or one of its feeders draws less power than it would.
//!
//! An event has a start, a ramp down, a depth, a duration at that depth, and a ramp up ([`GridEvent`]). At its notice
//! the depth is resolved to a *target*, in watts, against the power drawn before, which stays in the record
//! ([`EventRecord`]). The records of all events are an [`EventBook`], and the target over time is a pure function of
//! them ([`TargetSteps`]).
//!
//! ```text
//! power drawn before ─────╮                                  ╭────────────  until SETTLING has passed
//!                          ╲ ramp down             ramp up ╱
//! target                     ╰──────────────────────────╯
//!                         start            duration    end
//! ```

mod book;
mod performance;
mod record;
pub mod report;
mod targets;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds::{OutOfBounds, invalid};
use crate::duration::span;
use crate::id::{EventId, FeederId};
use crate::time::Timestamp;
use crate::units::Power;

pub use book::{BookChange, ENDED_KEPT, EVENTS_MAX, EventBook, EventError, SiteFigures};
pub use performance::{
    EventPerformances, JobPerformance, LOSS_ERROR, PERFORMANCES_MAX, PromiseOutcome,
};
pub use record::{Closed, EventRecord, EventState, MeasuredBy, MeasuredMean, SETTLING};
pub use targets::{EventTargets, RAMP_STEP, RAMP_STEPS_MAX, TargetSteps};

/// Shortest time at the target.
pub const DURATION_MIN: Duration = Duration::from_secs(60);
/// Longest time at the target: a week.
pub const DURATION_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Longest time from the notice to the start.
pub const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Longest name of a source, characters.
pub const SOURCE_LEN_MAX: usize = 128;
/// Largest number of a priority.
pub const PRIORITY_MAX: u32 = 255;

/// By how much less a site or a feeder draws.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Depth {
    /// It draws at most this.
    Target {
        /// The target.
        power_mw: Power,
    },
    /// It draws less than before by this.
    Reduction {
        /// The difference from the baseline.
        power_mw: Power,
    },
    /// It draws less than before by this share of the power drawn before.
    Percent {
        /// Per cent of the baseline.
        percent: f64,
    },
}

/// Whether a site may decline an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Participation {
    /// Until its start it may be declined.
    #[default]
    Voluntary,
    /// It may not.
    Mandatory,
}

/// A grid event, as its source announces it. It does not change: a record holds what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridEvent {
    /// Its name, unique among the known events.
    pub event: EventId,
    /// The utility, operator or program that announces it.
    pub source: String,
    /// The feeder whose power it limits; absent: it limits that of the whole site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feeder: Option<FeederId>,
    /// Start of the ramp down.
    pub start_us: Timestamp,
    /// Time from the start until the target is reached, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ramp_down_s: u64,
    /// By how much less the site draws.
    pub depth: Depth,
    /// Time at the target, seconds.
    pub duration_s: u64,
    /// Time from the end of the target until the power may be that of before, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ramp_up_s: u64,
    /// Its order among events of one start, in lists: 0 is the first. Of several targets the lowest counts, whatever the
    /// priorities.
    #[serde(default)]
    pub priority: u32,
    /// Whether it may be declined.
    #[serde(default)]
    pub participation: Participation,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

/// The site or a feeder, in words: `the site`, `feeder pdu-a`.
#[must_use]
pub fn place(feeder: Option<&FeederId>) -> String {
    feeder.map_or_else(|| "the site".to_owned(), |feeder| format!("feeder {feeder}"))
}

/// Kilowatts, to the watt: `71.1 kW`.
#[must_use]
pub fn kw(power: Power) -> String {
    format!("{} kW", (power.as_w().round()) / 1e3)
}

impl GridEvent {
    /// What it limits, in words: `the site`, or `feeder pdu-a`.
    #[must_use]
    pub fn place(&self) -> String {
        place(self.feeder.as_ref())
    }

    /// End of the target, by the announced duration.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        let span_s = self.ramp_down_s.saturating_add(self.duration_s);
        self.start_us + Duration::from_secs(span_s)
    }

    /// Checks all that needs no figure of the site.
    ///
    /// # Errors
    /// [`OutOfBounds`] names the field, its value and what is accepted.
    pub fn check(&self, now: Timestamp) -> Result<(), OutOfBounds> {
        let characters = self.source.chars().count();
        if !(1..=SOURCE_LEN_MAX).contains(&characters) || self.source.chars().any(char::is_control)
        {
            let expected = format!("1 to {SOURCE_LEN_MAX} characters without control characters");
            return Err(invalid("source", format_args!("{characters} characters"), expected));
        }
        if self.priority > PRIORITY_MAX {
            return Err(invalid("priority", self.priority, format_args!("0 to {PRIORITY_MAX}")));
        }
        check_duration(self.duration_s)?;
        for (field, ramp_s) in [("ramp_down", self.ramp_down_s), ("ramp_up", self.ramp_up_s)] {
            if ramp_s > self.duration_s {
                let (ramp, most) = (span(ramp_s as f64), span(self.duration_s as f64));
                return Err(invalid(field, ramp, format_args!("at most the duration of {most}")));
            }
        }
        match self.depth {
            Depth::Target { power_mw } | Depth::Reduction { power_mw }
                if power_mw == Power::ZERO =>
            {
                return Err(invalid("depth", "0 kW", "a power above 0"));
            }
            Depth::Percent { percent } if !(percent > 0.0 && percent < 100.0) => {
                let value = format_args!("{percent} %");
                return Err(invalid("depth", value, "above 0 % and below 100 %"));
            }
            _ => {}
        }
        if self.end() <= now {
            let ago = span(now.since(self.end()).as_secs_f64());
            let value = format_args!("an event that ended {ago} ago");
            return Err(invalid("start", value, "an event whose end is later than now"));
        }
        if self.start_us.since(now) > AHEAD_MAX {
            let ahead = span(self.start_us.since(now).as_secs_f64());
            return Err(invalid("start", format_args!("in {ahead}"), "at most a year ahead"));
        }
        Ok(())
    }
}

/// Checks a time at the target.
pub(crate) fn check_duration(duration_s: u64) -> Result<(), OutOfBounds> {
    let duration = Duration::from_secs(duration_s);
    if (DURATION_MIN..=DURATION_MAX).contains(&duration) {
        return Ok(());
    }
    Err(invalid("duration", span(duration_s as f64), "1 min to 7 d"))
}

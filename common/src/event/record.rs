//! The record of an event: what was announced, the power before it, its target, and its state over time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Depth, EventError, GridEvent, SiteFigures, kw};
use crate::bounds::invalid;
use crate::time::Timestamp;
use crate::units::Power;

/// How long after the ramp up the power stays at most that of before, so that delayed work does not follow at once.
pub const SETTLING: Duration = Duration::from_secs(900);

/// A mean of measured power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredMean {
    /// The mean power of the site, or of the event's feeder with the configured power of its static loads.
    pub power_mw: Power,
    /// Start of the measurement.
    pub from_us: Timestamp,
    /// Its end.
    pub until_us: Timestamp,
    /// How it was measured.
    pub method: MeasuredBy,
}

/// How the power of a site or feeder was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredBy {
    /// As the sum over the nodes of their mean power by the energy ledger, on a feeder by the parts that it carries.
    EnergyLedger,
    /// In a way that this release does not know.
    #[serde(other)]
    Other,
}

impl MeasuredBy {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnergyLedger => "mean of the energy ledger",
            Self::Other => "another method",
        }
    }
}

/// A decision about an event after its notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "how")]
pub enum Closed {
    /// It was cancelled: before its start it has no target, afterwards its ramp up begins then.
    Cancelled {
        /// When.
        at_us: Timestamp,
    },
    /// It was declined before its start: it has no target.
    Declined {
        /// When.
        at_us: Timestamp,
    },
}

/// Where an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventState {
    /// Before its start.
    Planned,
    /// From its start until the target is reached.
    RampingDown,
    /// At the target.
    Active,
    /// From the end of the target on, until the power may be that of before.
    RampingUp,
    /// It is over.
    Ended,
    /// It was cancelled, and its ramp up is over.
    Cancelled,
    /// It was declined.
    Declined,
}

impl EventState {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::RampingDown => "ramping down",
            Self::Active => "active",
            Self::RampingUp => "ramping up",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Declined => "declined",
        }
    }

    /// Whether the event is over.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Cancelled | Self::Declined)
    }

    /// Whether the event has begun and is not over.
    #[must_use]
    pub const fn is_under_way(self) -> bool {
        matches!(self, Self::RampingDown | Self::Active | Self::RampingUp)
    }
}

/// An event and what has become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// As it was announced.
    pub event: GridEvent,
    /// When it was accepted: its notice.
    pub notice_us: Timestamp,
    /// The most that the site or the feeder draws during it.
    pub target_mw: Power,
    /// By how much more than the target is drawn, so that a voluntary event keeps the promises of jobs.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shortfall_mw: Power,
    /// The power before its notice, to which its depth refers; absent: it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<MeasuredMean>,
    /// The power before its start, from which the ramps lead and to which the power returns; absent: it has not begun, or
    /// was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<MeasuredMean>,
    /// End of the target: shortened, extended, or when it was cancelled.
    pub end_us: Timestamp,
    /// Whether it was cancelled or declined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(power: &Power) -> bool {
    *power == Power::ZERO
}

impl EventRecord {
    /// The record of an event that is announced now: resolves its depth.
    pub(super) fn announced(
        event: GridEvent,
        now: Timestamp,
        site: &SiteFigures,
    ) -> Result<Self, EventError> {
        event.check(now)?;
        let baseline = site.drawn;
        let target_mw = target(&event, site)?;
        let end_us = event.end();
        Ok(Self {
            event,
            notice_us: now,
            target_mw,
            shortfall_mw: Power::ZERO,
            baseline,
            before: None,
            end_us,
            closed: None,
        })
    }

    /// The most that is drawn at the target: its shortfall included.
    #[must_use]
    pub fn limit(&self) -> Power {
        self.target_mw + self.shortfall_mw
    }

    /// The power that was drawn before it, at least its limit; absent: not measured.
    #[must_use]
    pub fn drawn_before(&self) -> Option<Power> {
        let measured = self.before.or(self.baseline)?;
        Some(measured.power_mw.max(self.limit()))
    }

    /// By how much less is drawn than before.
    #[must_use]
    pub fn reduction(&self) -> Option<Power> {
        self.drawn_before().map(|before| before.saturating_sub(self.limit()))
    }

    /// When the target is reached.
    #[must_use]
    pub fn reached(&self) -> Timestamp {
        self.event.start_us + Duration::from_secs(self.event.ramp_down_s)
    }

    /// When the ramp up is over.
    #[must_use]
    pub fn returned(&self) -> Timestamp {
        self.end_us + Duration::from_secs(self.event.ramp_up_s)
    }

    /// Whether it ever has a target: it was neither declined nor cancelled before its start.
    #[must_use]
    pub fn has_target(&self) -> bool {
        match self.closed {
            None => true,
            Some(Closed::Declined { .. }) => false,
            Some(Closed::Cancelled { at_us }) => at_us > self.event.start_us,
        }
    }

    /// When it no longer bounds the power: [`SETTLING`] after the ramp up.
    #[must_use]
    pub fn settled(&self) -> Timestamp {
        if !self.has_target() {
            return self.notice_us;
        }
        self.returned() + SETTLING
    }

    /// Its state at an instant.
    #[must_use]
    pub fn state(&self, at: Timestamp) -> EventState {
        match self.closed {
            Some(Closed::Declined { .. }) => return EventState::Declined,
            Some(Closed::Cancelled { .. }) if !self.has_target() || at >= self.returned() => {
                return EventState::Cancelled;
            }
            _ => {}
        }
        if at < self.event.start_us {
            EventState::Planned
        } else if at >= self.returned() {
            EventState::Ended
        } else if at >= self.end_us {
            EventState::RampingUp
        } else if at >= self.reached() {
            EventState::Active
        } else {
            EventState::RampingDown
        }
    }
}

/// The most that is drawn during an event.
fn target(event: &GridEvent, site: &SiteFigures) -> Result<Power, EventError> {
    let drawn = site.drawn.map(|drawn| drawn.power_mw);
    let (target, requested) = match event.depth {
        Depth::Target { power_mw } => (power_mw, format!("to {}", kw(power_mw))),
        Depth::Reduction { power_mw } => {
            let requested = format!("{} less", kw(power_mw));
            let Some(drawn) = drawn else { return Err(EventError::NoBaseline { requested }) };
            if power_mw >= drawn {
                let expected = format!("less than the {} drawn now", kw(drawn));
                return Err(invalid("depth", requested, expected).into());
            }
            (drawn - power_mw, requested)
        }
        Depth::Percent { percent } => {
            let requested = format!("{percent} % less");
            let Some(drawn) = drawn else { return Err(EventError::NoBaseline { requested }) };
            (drawn.scale(1.0 - percent / 100.0), requested)
        }
    };
    if let Some(idle) = site.idle.filter(|idle| target < *idle) {
        let less = drawn.filter(|drawn| *drawn > idle).map(|drawn| {
            let share = 100.0 * (1.0 - idle.ratio(drawn));
            // Rounded down, so that the named value is accepted.
            let share = (share * 10.0).floor() / 10.0;
            format!(", {} or {share} % less than the {} drawn now", kw(drawn - idle), kw(drawn))
        });
        let expected = format!(
            "a target of at least {}, which {} draws without jobs{}",
            kw(rounded_up(idle)),
            event.place(),
            less.unwrap_or_default()
        );
        return Err(invalid("depth", requested, expected).into());
    }
    Ok(target)
}

/// To the next whole watt, so that the named value is accepted.
fn rounded_up(power: Power) -> Power {
    Power::from_w(power.as_mw().div_ceil(1_000))
}

//! The known events, and the changes that people and sources make to them.
//!
//! Each change is checked against the present state; one that is repeated changes nothing. The book is a value: the
//! live placer stores it before a change is acknowledged, and the simulator uses the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{Closed, EventRecord, EventState, MeasuredMean};
use super::targets::{EventTargets, TargetSteps};
use super::{DURATION_MAX, GridEvent, Participation, check_duration};
use crate::bounds::{OutOfBounds, invalid};
use crate::duration::span;
use crate::generation;
use crate::generation::is_unknown;
use crate::id::{EventId, FeederId};
use crate::time::Timestamp;
use crate::units::Power;

/// Most events that are not over.
pub const EVENTS_MAX: usize = 100;
/// Events that are over and whose records are kept; the ones that were over first are dropped.
pub const ENDED_KEPT: usize = 100;

/// Figures of the site, or of an event's feeder, that its depth refers to. Those that are not known are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteFigures {
    /// The mean power drawn lately.
    pub drawn: Option<MeasuredMean>,
    /// The least power, without jobs.
    pub idle: Option<Power>,
}

/// Why a change of the events is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A field of the event.
    #[error(transparent)]
    Field(#[from] OutOfBounds),
    /// A depth that needs a baseline.
    #[error(
        "depth = {requested}: the power drawn now is not known, because some node has no entry of the energy ledger of the \
         last minutes; give a target in kilowatts, or repeat the request when every node was metered"
    )]
    NoBaseline {
        /// The depth.
        requested: String,
    },
    /// Another event has this name.
    #[error(
        "an event `{0}` with other values exists: give another id, or change its duration with `wattle event change`"
    )]
    Exists(EventId),
    /// No event has this name.
    #[error("no event `{0}`; `wattle event list` lists all")]
    Unknown(EventId),
    /// Too many events.
    #[error(
        "{EVENTS_MAX} events are not over, which is the limit: cancel one with `wattle event cancel`"
    )]
    TooMany,
    /// The state of the event does not permit the change.
    #[error("event `{event}` is {}: {remedy}", state.as_str())]
    State {
        /// The event.
        event: EventId,
        /// Its state.
        state: EventState,
        /// What is possible.
        remedy: &'static str,
    },
    /// It is mandatory.
    #[error("event `{0}` is mandatory and cannot be declined; its source may cancel it")]
    Mandatory(EventId),
}

/// What a change of the book has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookChange {
    /// The book has changed.
    Changed,
    /// The request was a repetition.
    Repeated,
}

/// The known events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventBook {
    /// Number of changes ([`crate::generation`]).
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub generation: u64,
    /// The records.
    pub events: BTreeMap<EventId, EventRecord>,
}

impl EventBook {
    /// Adds an announced event. A repetition of the same announcement changes nothing.
    ///
    /// # Errors
    /// [`EventError`] names the field, its value and what is accepted.
    pub fn add(
        &mut self,
        event: GridEvent,
        now: Timestamp,
        site: &SiteFigures,
    ) -> Result<BookChange, EventError> {
        if let Some(known) = self.events.get(&event.event) {
            let is_same = known.event == event;
            return if is_same {
                Ok(BookChange::Repeated)
            } else {
                Err(EventError::Exists(event.event))
            };
        }
        let open = self.events.values().filter(|record| !record.state(now).is_over()).count();
        if open >= EVENTS_MAX {
            return Err(EventError::TooMany);
        }
        let record = EventRecord::announced(event, now, site)?;
        self.events.insert(record.event.event.clone(), record);
        Ok(self.changed())
    }

    /// Sets the time at the target of an event, also of one that has begun.
    ///
    /// # Errors
    /// If the target has ended, or would have.
    pub fn change(
        &mut self,
        event: &EventId,
        duration_s: u64,
        now: Timestamp,
    ) -> Result<BookChange, EventError> {
        let record = self.record(event)?;
        let end_us = record.reached() + Duration::from_secs(duration_s);
        let state = record.state(now);
        if record.closed.is_some() || state == EventState::RampingUp || state.is_over() {
            let remedy = "add a new event";
            return Err(EventError::State { event: event.clone(), state, remedy });
        }
        if end_us == record.end_us {
            return Ok(BookChange::Repeated);
        }
        check_duration(duration_s)?;
        if end_us <= now {
            let expected = "an end later than now; `wattle event cancel` ends the event at once";
            return Err(invalid("duration", span(duration_s as f64), expected).into());
        }
        record.end_us = end_us;
        Ok(self.changed())
    }

    /// Cancels an event. Of one that has begun the ramp up begins now.
    ///
    /// # Errors
    /// If it is over or was declined.
    pub fn cancel(&mut self, event: &EventId, now: Timestamp) -> Result<BookChange, EventError> {
        let record = self.record(event)?;
        let state = record.state(now);
        match (record.closed, state) {
            (Some(Closed::Cancelled { .. }), _) => return Ok(BookChange::Repeated),
            (_, EventState::RampingUp | EventState::Ended | EventState::Declined) => {
                let remedy = "nothing is left to cancel";
                return Err(EventError::State { event: event.clone(), state, remedy });
            }
            _ => {}
        }
        record.closed = Some(Closed::Cancelled { at_us: now });
        if state.is_under_way() {
            record.end_us = now;
        }
        Ok(self.changed())
    }

    /// Declines a voluntary event before its start.
    ///
    /// # Errors
    /// If it is mandatory or has begun.
    pub fn decline(&mut self, event: &EventId, now: Timestamp) -> Result<BookChange, EventError> {
        let record = self.record(event)?;
        let state = record.state(now);
        match state {
            EventState::Declined => return Ok(BookChange::Repeated),
            _ if record.event.participation == Participation::Mandatory => {
                return Err(EventError::Mandatory(event.clone()));
            }
            EventState::Planned => {}
            _ => {
                let remedy = "only an event that has not begun can be declined";
                return Err(EventError::State { event: event.clone(), state, remedy });
            }
        }
        record.closed = Some(Closed::Declined { at_us: now });
        Ok(self.changed())
    }

    /// Declares by how much more than its target the site draws during an event.
    pub fn declare_shortfall(&mut self, event: &EventId, shortfall: Power) {
        if let Some(record) = self.events.get_mut(event) {
            record.shortfall_mw = shortfall;
            self.changed();
        }
    }

    /// Follows the passing of time: records the power before an event that has begun, and drops old records. `drawn` is
    /// the mean power of the site or a feeder before now. Returns whether the book has changed.
    pub fn follow(
        &mut self,
        now: Timestamp,
        drawn: impl Fn(Option<&FeederId>) -> Option<MeasuredMean>,
    ) -> bool {
        let mut changed = false;
        let begins =
            |record: &&mut EventRecord| record.before.is_none() && record.state(now).is_under_way();
        for record in self.events.values_mut().filter(begins) {
            // The baseline counts where nothing was measured since, as after a restart.
            let before = drawn(record.event.feeder.as_ref()).or(record.baseline);
            changed |= before.is_some();
            record.before = before;
        }
        let over = |record: &&EventRecord| record.settled() <= now && record.state(now).is_over();
        let mut ended: Vec<_> = self.events.values().filter(over).collect();
        ended.sort_by_key(|record| (record.settled(), record.event.event.clone()));
        let count = ended.len().saturating_sub(ENDED_KEPT);
        let dropped: Vec<EventId> =
            ended[..count].iter().map(|record| record.event.event.clone()).collect();
        changed |= !dropped.is_empty();
        for event in &dropped {
            self.events.remove(event);
        }
        if changed {
            self.changed();
        }
        changed
    }

    /// The next instant after `now` at which an event begins or no longer bounds the power.
    #[must_use]
    pub fn follow_at(&self, now: Timestamp) -> Option<Timestamp> {
        let open = self.events.values().filter(|record| record.has_target());
        let instants = open.flat_map(|record| [record.event.start_us, record.settled()]);
        instants.filter(|at| *at > now).min()
    }

    /// The targets over time of the events that still bound the power.
    #[must_use]
    pub fn targets(&self, now: Timestamp) -> EventTargets {
        EventTargets::of(self.events.values().filter(|record| record.settled() > now))
    }

    /// The feeders of events that still bound the power, or will.
    #[must_use]
    pub fn feeders(&self, now: Timestamp) -> BTreeSet<&FeederId> {
        let open =
            self.events.values().filter(|record| record.has_target() && record.settled() > now);
        open.filter_map(|record| record.event.feeder.as_ref()).collect()
    }

    /// The event with the lowest limit of the site or of a feeder at an instant, and that limit.
    #[must_use]
    pub fn in_force(
        &self,
        at: Timestamp,
        feeder: Option<&FeederId>,
    ) -> Option<(&EventRecord, Power)> {
        let bounds = |record: &&EventRecord| {
            record.event.feeder.as_ref() == feeder
                && record.event.start_us <= at
                && at < record.settled()
        };
        let limit = |record| Some((record, TargetSteps::of([record]).at(at)?));
        let limits = self.in_order().into_iter().filter(bounds).filter_map(limit);
        limits.min_by_key(|(_, limit)| *limit)
    }

    /// Checks a stored book.
    ///
    /// # Errors
    /// [`OutOfBounds`] names what is out of range.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        // An event that is over counts among the open ones until it has settled.
        let most = EVENTS_MAX + EVENTS_MAX + ENDED_KEPT;
        if self.events.len() > most {
            return Err(invalid(
                "number of events",
                self.events.len(),
                format_args!("at most {most}"),
            ));
        }
        for (id, record) in &self.events {
            if *id != record.event.event {
                return Err(invalid("event", &record.event.event, format_args!("its key {id}")));
            }
            record.event.check(record.event.start_us)?;
            if record.end_us > record.reached() + DURATION_MAX {
                return Err(invalid("end_us", record.end_us, "at most 7 d at the target"));
            }
        }
        Ok(())
    }

    /// The records in the order of their starts, priorities and names.
    #[must_use]
    pub fn in_order(&self) -> Vec<&EventRecord> {
        let mut records: Vec<&EventRecord> = self.events.values().collect();
        records.sort_by_key(|record| (record.event.start_us, record.event.priority));
        records
    }

    fn record(&mut self, event: &EventId) -> Result<&mut EventRecord, EventError> {
        self.events.get_mut(event).ok_or_else(|| EventError::Unknown(event.clone()))
    }

    const fn changed(&mut self) -> BookChange {
        self.generation = generation::next(self.generation);
        BookChange::Changed
    }
}

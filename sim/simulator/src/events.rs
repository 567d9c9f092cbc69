//! Grid events of a simulation, and how a run kept their targets.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::event::{EventBook, EventPerformances, GridEvent, JobPerformance, LOSS_ERROR};
use wattle_common::messages::EventPlan;
use wattle_common::{EventId, Power, Timestamp};

/// Microseconds in a minute.
const MINUTE_US: u64 = 60_000_000;

/// A grid event of a simulation, whose times count from the first submission.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedEvent {
    /// When it is announced.
    pub notice: Timestamp,
    /// The event.
    pub event: GridEvent,
}

impl PlannedEvent {
    /// The same event in a run whose first submission is at `start`.
    pub(crate) fn counted_from(&self, start: Timestamp) -> Self {
        let shifted = |at: Timestamp| start + at.since(Timestamp::EPOCH);
        let event = GridEvent { start_us: shifted(self.event.start_us), ..self.event.clone() };
        Self { notice: shifted(self.notice), event }
    }
}

/// How a run kept the targets of grid events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventsOutcome {
    /// Number of events with a target.
    pub events: usize,
    /// Number of events that were refused.
    pub refused: usize,
    /// Minutes with a target, or with a limit of a ramp or of the return; those of the site and of each feeder add up.
    pub minutes: u64,
    /// Those of them in which the power was above it at some instant.
    pub minutes_above: u64,
    /// The largest power above the target.
    pub kw_above_max: f64,
    /// The largest declared shortfall.
    pub kw_short_max: f64,
    /// The root mean square over the events of predicted over measured power minus 1; absent without an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction_rmse: Option<f64>,
    /// What the jobs with promises lost, by event and job.
    #[serde(skip_serializing_if = "is_empty")]
    pub jobs: EventPerformances,
    /// What could be delivered as planned at the notice, by event, where it was.
    #[serde(skip)]
    pub plans: BTreeMap<EventId, EventPlan>,
}

fn is_empty(jobs: &EventPerformances) -> bool {
    jobs.events.is_empty()
}

/// Accumulates [`EventsOutcome`].
#[derive(Clone, Debug, Default)]
pub(crate) struct EventMeter {
    limited: Minutes,
    above: Minutes,
    above_mw_max: u64,
    /// The seconds of events, and the integral of the squared error of predicted power.
    predicted: (f64, f64),
}

/// Number of minutes with some property; each counts once.
#[derive(Clone, Copy, Debug, Default)]
struct Minutes {
    count: u64,
    /// The minute after the last one that counts.
    until: u64,
}

impl Minutes {
    fn add(&mut self, (from_us, until_us): (u64, u64)) {
        let (first, after) = (from_us / MINUTE_US, until_us.div_ceil(MINUTE_US));
        let first = first.max(self.until);
        self.count += after.saturating_sub(first);
        self.until = self.until.max(after);
    }
}

impl EventMeter {
    /// Adds an interval of constant power and target.
    pub(crate) fn add(&mut self, power_mw: u64, interval: (u64, u64), target: Option<Power>) {
        let Some(target) = target.filter(|_| interval.0 < interval.1) else { return };
        self.limited.add(interval);
        let above_mw = power_mw.saturating_sub(target.as_mw());
        if above_mw > 0 {
            self.above.add(interval);
            self.above_mw_max = self.above_mw_max.max(above_mw);
        }
    }

    /// Adds an interval of an event with constant predicted and measured power.
    pub(crate) fn predicted(&mut self, predicted: Power, power_mw: u64, seconds: f64) {
        if power_mw > 0 {
            let off = predicted.as_mw() as f64 / power_mw as f64 - 1.0;
            self.predicted.0 += seconds;
            self.predicted.1 += seconds * off * off;
        }
    }

    /// Of the site and of feeders: the sum of their minutes, and the largest of their powers.
    pub(crate) fn outcome<'a>(
        meters: impl Iterator<Item = &'a Self> + Clone,
        events: usize,
        refused: usize,
    ) -> EventsOutcome {
        let sum = |of: fn(&Self) -> f64| meters.clone().map(of).sum::<f64>();
        let predicted_s = sum(|meter| meter.predicted.0);
        let above_mw = meters.clone().map(|meter| meter.above_mw_max).max();
        EventsOutcome {
            events,
            refused,
            minutes: meters.clone().map(|meter| meter.limited.count).sum(),
            minutes_above: meters.clone().map(|meter| meter.above.count).sum(),
            kw_above_max: above_mw.unwrap_or_default() as f64 / 1e6,
            kw_short_max: 0.0,
            prediction_rmse: (predicted_s > 0.0)
                .then(|| (sum(|meter| meter.predicted.1) / predicted_s).sqrt()),
            jobs: EventPerformances::default(),
            plans: BTreeMap::new(),
        }
    }
}

impl EventsOutcome {
    /// With the shortfalls of these events, and what jobs with promises lost.
    pub(crate) fn with(self, book: &EventBook, jobs: &EventPerformances) -> Self {
        let short = book.events.values().map(|record| record.shortfall_mw).max();
        let mut jobs = jobs.clone();
        for of in jobs.events.values_mut() {
            of.retain(|_, job| job.promise.is_some());
        }
        jobs.events.retain(|_, of| !of.is_empty());
        Self { kw_short_max: short.unwrap_or_default().as_w() / 1e3, jobs, ..self }
    }

    /// The number of promises, and of those that were not kept by more than [`LOSS_ERROR`].
    #[must_use]
    pub fn promises(&self) -> (usize, usize) {
        let jobs = || self.jobs.events.values().flat_map(|of| of.values());
        let is_broken = |job: &&JobPerformance| {
            job.promise.is_some_and(|promise| job.loss() > promise.loss() + LOSS_ERROR)
        };
        (jobs().count(), jobs().filter(is_broken).count())
    }

    /// In words: `2 grid events, 0 of 210 minutes above the target`.
    #[must_use]
    pub fn sentence(&self) -> String {
        let events = crate::text::pluralize(self.events, "grid event");
        let (above, minutes) = (self.minutes_above, self.minutes);
        let most = match self.minutes_above {
            0 => String::new(),
            _ => format!(" by up to {:.3} kW", self.kw_above_max),
        };
        let short = match self.kw_short_max {
            short if short > 0.0 => format!(", {short:.1} kW declared short"),
            _ => String::new(),
        };
        let promises = match self.promises() {
            (0, _) => String::new(),
            (all, broken) => format!(", {} of {all} promises kept", all - broken),
        };
        format!("{events}, {above} of {minutes} minutes above the target{most}{short}{promises}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_counts_once_whatever_part_of_it_is_above() {
        let mut meter = EventMeter::default();
        let s = |from: u64, until: u64| (from * 1_000_000, until * 1_000_000);
        let target = Some(Power::from_w(100));
        meter.add(150_000, s(0, 30), None);
        meter.add(100_000, s(30, 61), target);
        meter.add(100_500, s(61, 62), target);
        meter.add(100_200, s(62, 62), target);
        meter.add(102_000, s(100, 180), target);
        meter.add(90_000, s(180, 300), target);
        let outcome = EventMeter::outcome([&meter].into_iter(), 1, 0);
        assert_eq!((outcome.minutes, outcome.minutes_above), (5, 2));
        assert_eq!(
            outcome.sentence(),
            "1 grid event, 2 of 5 minutes above the target by up to 0.002 kW"
        );
    }
}

//! Grid events in a run: announced at their notices, with the meter in place of the energy ledger, and followed as in a
//! live placer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wattle_common::event::{EventBook, EventPerformances, SiteFigures};
use wattle_common::messages::EventPlan;
use wattle_common::{EventId, NodeId, Timestamp};
use wattle_placer::power::event_plan::EventPlanning;
use wattle_placer::power::model::{expected_power, least_baseline};
use wattle_placer::power::promises::EventPromises;
use wattle_placer::power::recent_power::RecentPower;

use crate::engine::{Engine, node_id};
use crate::events::{EventMeter, EventsOutcome, PlannedEvent};

/// The events of a run.
pub(super) struct GridEvents {
    /// Those that are not announced yet, the next one last.
    pending: Vec<PlannedEvent>,
    book: EventBook,
    promises: EventPromises,
    /// The power of the whole site, as one node.
    recent: RecentPower,
    site: NodeId,
    follow_at: Option<Timestamp>,
    meter: EventMeter,
    refused: Vec<String>,
    /// Plans at the notices, where they are made.
    plans: Option<BTreeMap<EventId, EventPlan>>,
}

impl GridEvents {
    /// The events of a run whose first submission is at `start`; `None` without any.
    pub(super) fn new(planned: &[PlannedEvent], plans: bool, start: Timestamp) -> Option<Self> {
        let mut pending: Vec<PlannedEvent> =
            planned.iter().map(|planned| planned.counted_from(start)).collect();
        pending.sort_by_key(|planned| Reverse(planned.notice));
        (!pending.is_empty()).then(|| Self {
            pending,
            book: EventBook::default(),
            promises: EventPromises::restored(EventPerformances::default(), start),
            recent: RecentPower::default(),
            site: node_id(0),
            follow_at: None,
            meter: EventMeter::default(),
            refused: Vec::new(),
            plans: plans.then(BTreeMap::new),
        })
    }

    /// When an event is announced, begins, or no longer bounds the power.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let notice = self.pending.last().map(|planned| planned.notice);
        notice.into_iter().chain(self.follow_at).min()
    }

    /// A job starts: its promise during an event is looked at once more at this instant.
    pub(super) fn job_starts(&mut self, now: Timestamp) {
        if EventPromises::is_near(&self.book, now) {
            self.follow_at = Some(now);
        }
    }

    /// The outcome, and why events were refused.
    pub(super) fn outcome(self) -> (EventsOutcome, Vec<String>) {
        let accepted = self.book.events.values().filter(|record| record.has_target()).count();
        let outcome = self.meter.outcome(accepted, self.refused.len());
        let outcome = outcome.with(&self.book, self.promises.performances());
        let plans = self.plans.unwrap_or_default();
        (EventsOutcome { plans, ..outcome }, self.refused)
    }
}

impl Engine<'_> {
    /// Announces and follows the events that are due. Returns whether a plan may differ after it.
    pub(super) fn follow_grid_events(&mut self) -> bool {
        let now = self.now();
        let Some(events) = &mut self.grid_events else { return false };
        if events.next_at().is_none_or(|at| now < at) {
            return false;
        }
        let drawn = events.recent.mean(now, [(&events.site, None)]);
        let figures = SiteFigures { drawn, idle: least_baseline(self.controller.input()) };
        while let Some(planned) = events.pending.pop_if(|planned| planned.notice <= now) {
            let event = planned.event.event.clone();
            if let Err(error) = events.book.add(planned.event, now, &figures) {
                events.refused.push(format!("grid event {event} was refused: {error}"));
            } else if let Some(plans) = &mut events.plans {
                let (book, promises) = (&events.book, &events.promises);
                let record = book.events.get(&event).cloned();
                let planning = EventPlanning::of(&self.controller, book, promises, record, now);
                plans.insert(event, planning.plan());
            }
        }
        events.book.follow(now, || drawn);
        let (_, again) = events.promises.follow(&mut self.controller, &mut events.book, now);
        let follow_at = EventPromises::follow_at(&events.book, now);
        events.follow_at = events.book.follow_at(now).into_iter().chain(follow_at).min();
        again
    }

    /// Accounts for the power since the last event, which was constant, until `until_us`.
    pub(super) fn meter_grid_events(&mut self, until_us: u64) {
        let Some(events) = &mut self.grid_events else { return };
        let (from, until) = (Timestamp::from_us(self.now_us), Timestamp::from_us(until_us));
        let power_mw = self.hardware.gpus.power_mw;
        let joules = power_mw as f64 / 1e3 * until.since(from).as_secs_f64();
        events.recent.metered(&events.site, from, until, joules);
        // A change of the target is an event, so that one target holds since the last one.
        let target = self.controller.event_targets().at(from);
        events.meter.add(power_mw, (self.now_us, until_us), target);
        if self.controller.event_targets().returned(from, from).is_some() {
            let predicted = expected_power(self.controller.input());
            events.meter.predicted(predicted, power_mw, until.since(from).as_secs_f64());
        }
        let (jobs, hardware, cluster) = (&self.jobs, &self.hardware.gpus, &self.scenario.cluster);
        events.promises.count(&events.book, self.controller.state(), until, |key, job, gpus| {
            let running = &jobs[jobs.of(key)];
            let on = job.state.gpus()?;
            let model = hardware.model(on.by_node.first()?.node);
            let per_node = cluster.nodes().map(|(gpus, _)| gpus).max()?.max(1);
            let default = running.workload.steps_per_s(model, gpus, gpus.div_ceil(per_node).max(1));
            let runs = running.resume_us <= from.as_us();
            Some(if runs { running.rate * running.steps_per_us * 1e6 / default } else { 0.0 })
        });
    }
}

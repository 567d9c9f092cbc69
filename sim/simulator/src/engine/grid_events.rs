//! Grid events in a run: announced at their notices, with the meter in place of the energy ledger, and followed as in a
//! live placer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use wattle_common::event::{EventBook, EventError, EventPerformances, MeasuredMean, SiteFigures};
use wattle_common::messages::EventPlan;
use wattle_common::{EventId, FeederId, Power, Timestamp};
use wattle_placer::NodeKey;
use wattle_placer::power::event_plan::{EventPlanning, PlanOf};
use wattle_placer::power::model::{expected_by_node, expected_power, least_by_node};
use wattle_placer::power::promises::EventPromises;
use wattle_placer::power::recent_power::RecentPower;

use crate::engine::{Engine, node_id};
use crate::events::{EventMeter, EventsOutcome, PlannedEvent};
use crate::feeders::CarriedPower;
use crate::scenario::Scenario;

/// The events of a run.
pub(super) struct GridEvents {
    /// Those that are not announced yet, the next one last.
    pending: Vec<PlannedEvent>,
    book: EventBook,
    promises: EventPromises,
    /// The site and the feeders that events name, each metered as one node.
    places: BTreeMap<Option<FeederId>, Place>,
    follow_at: Option<Timestamp>,
    refused: Vec<String>,
    /// Plans at the notices, where they are made.
    plans: Option<BTreeMap<EventId, EventPlan>>,
}

/// The power of the site or of a feeder.
struct Place {
    /// What the feeder carries; absent: the site.
    carried: Option<CarriedPower>,
    recent: RecentPower,
    meter: EventMeter,
}

impl Place {
    /// Its mean power over the last minutes.
    fn drawn(&self, now: Timestamp) -> Option<MeasuredMean> {
        self.recent.mean(now, [(&node_id(0), 1.0, None)])
    }
}

impl GridEvents {
    /// The events of a run whose first submission is at `start`; `None` without any.
    pub(super) fn new(
        planned: &[PlannedEvent],
        plans: bool,
        start: Timestamp,
        scenario: &Scenario,
    ) -> Option<Self> {
        let wholes = scenario.feeders.wholes();
        let place = |feeder: Option<FeederId>| {
            let whole =
                wholes.iter().flatten().find(|whole| Some(&whole.feeder) == feeder.as_ref());
            let carried = whole.map(|whole| CarriedPower::new(scenario, whole));
            let (recent, meter) = (RecentPower::default(), EventMeter::default());
            // An event of another feeder is refused.
            (carried.is_some() == feeder.is_some())
                .then_some((feeder, Place { carried, recent, meter }))
        };
        let feeders = planned.iter().map(|planned| planned.event.feeder.clone());
        let feeders: BTreeSet<Option<FeederId>> = feeders.chain([None]).collect();
        let mut pending: Vec<PlannedEvent> =
            planned.iter().map(|planned| planned.counted_from(start)).collect();
        pending.sort_by_key(|planned| Reverse(planned.notice));
        (!pending.is_empty()).then(|| Self {
            pending,
            book: EventBook::default(),
            promises: EventPromises::restored(EventPerformances::default(), start),
            places: feeders.into_iter().filter_map(place).collect(),
            follow_at: None,
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
        let meters = self.places.values().map(|place| &place.meter);
        let outcome = EventMeter::outcome(meters, accepted, self.refused.len());
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
        let (least, state) = (least_by_node(self.controller.input()), self.controller.state());
        let idle = |place: &Place| {
            let least = least.as_ref()?;
            let node_w = |node: NodeKey| least[node.index()].as_w();
            let all_w = || state.keyed_nodes().map(|(node, _)| node_w(node)).sum();
            let idle_w = place.carried.as_ref().map_or_else(all_w, |feeder| feeder.power_w(node_w));
            Some(Power::from_w_f64(idle_w))
        };
        while let Some(planned) = events.pending.pop_if(|planned| planned.notice <= now) {
            let event = planned.event.event.clone();
            let figures = events.places.get(&planned.event.feeder).map_or_else(
                SiteFigures::default,
                |place| SiteFigures { drawn: place.drawn(now), idle: idle(place) },
            );
            let checked = self.controller.check_feeder_of(&planned.event).map_err(EventError::from);
            let added = checked.and_then(|()| events.book.add(planned.event, now, &figures));
            if let Err(error) = added {
                events.refused.push(format!("grid event {event} was refused: {error}"));
            } else if let Some(plans) = &mut events.plans {
                let (book, promises) = (&events.book, &events.promises);
                let Some(record) = book.events.get(&event).cloned() else { continue };
                let of = PlanOf::Event(Box::new(record));
                let planning = EventPlanning::of(&self.controller, book, promises, of, now);
                plans.insert(event, planning.plan());
            }
        }
        let places = &events.places;
        events.book.follow(now, |feeder| places.get(&feeder.cloned())?.drawn(now));
        let (_, again) = events.promises.follow(&mut self.controller, &mut events.book, now);
        let follow_at = EventPromises::follow_at(&events.book, now);
        events.follow_at = events.book.follow_at(now).into_iter().chain(follow_at).min();
        again
    }

    /// Accounts for the power since the last event, which was constant, until `until_us`.
    pub(super) fn meter_grid_events(&mut self, until_us: u64) {
        let Some(events) = &mut self.grid_events else { return };
        let (from, until) = (Timestamp::from_us(self.now_us), Timestamp::from_us(until_us));
        let gpus = &self.hardware.gpus;
        let input = self.controller.input();
        for (feeder, place) in &mut events.places {
            let power_mw = match &place.carried {
                None => gpus.power_mw,
                Some(feeder) => {
                    (1e3 * feeder.power_w(|node| gpus.node_mw(node) as f64 / 1e3)).round() as u64
                }
            };
            let seconds = until.since(from).as_secs_f64();
            place.recent.metered(&node_id(0), from, until, power_mw as f64 / 1e3 * seconds);
            let Some(targets) = self.controller.event_targets().on(feeder.as_ref()) else {
                continue;
            };
            // A change of the target is an event, so that one target holds since the last one.
            place.meter.add(power_mw, (self.now_us, until_us), targets.at(from));
            if targets.returned(from, from).is_some() {
                let predicted = match &place.carried {
                    None => Some(expected_power(input)),
                    Some(feeder) => expected_by_node(input).map(|by_node| {
                        Power::from_w_f64(feeder.power_w(|node| by_node[node.index()].as_w()))
                    }),
                };
                if let Some(predicted) = predicted {
                    place.meter.predicted(predicted, power_mw, seconds);
                }
            }
        }
        let (jobs, hardware, cluster) = (&self.jobs, &self.hardware.gpus, &self.scenario.cluster);
        events.promises.count(&events.book, self.controller.input(), until, |key, job, gpus| {
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

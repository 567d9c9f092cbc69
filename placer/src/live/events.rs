//! Grid events, live: announced and changed by requests, followed over time, and compared with measured power.
//!
//! The book of events is stored before a request is acknowledged; a repetition changes nothing and is stored again, before
//! its answer. The baseline of an event is the mean power of the energy ledger over the last minutes. What the events
//! limit is decided by the controller, to which their targets go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::event::{
    BookChange, EventBook, EventError, EventPerformances, EventRecord, EventState, MeasuredMean,
    SiteFigures, TargetSteps, kw,
};
use wattle_common::job::GpuSetting;
use wattle_common::messages::{EventReply, EventRequest, LedgerEntry, PlanEvent};
use wattle_common::{FeederId, Power, Timestamp};

use crate::live::budget::Spending;
use crate::live::nodes::Nodes;
use crate::live::{Action, LiveController, Turn};
use crate::power::event_plan::{EventPlanning, PlanOf};
use crate::power::model::baseline_by_node_w;
use crate::power::promises::EventPromises;
use crate::power::recent_power::RecentPower;
use crate::state::job_forecast::running_rate;

/// Age up to which the reported speed of a job counts.
const REPORTED: Duration = Duration::from_secs(60);
/// How long measured power may be above a target, and how far behind a ramp.
const EXCEEDED_AFTER: Duration = Duration::from_secs(10);

/// The events in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventMeasures {
    /// Number of events that have not begun.
    pub planned: usize,
    /// Number of events that have begun and are not over.
    pub under_way: usize,
    /// The power of the site and of each feeder that has a target now.
    pub power: Vec<TargetMeasures>,
}

/// The power of the site or a feeder under a target.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetMeasures {
    /// The feeder; absent: the site.
    pub feeder: Option<FeederId>,
    /// The lowest target now, or the limit of a ramp or of the return.
    pub target: Power,
    /// By how much it is below the power before the event.
    pub reduction: Option<Power>,
    /// The measured power.
    pub measured: Option<Power>,
}

/// The grid events.
pub(super) struct GridEvents {
    book: EventBook,
    recent: RecentPower,
    promises: EventPromises,
    /// When an event begins or no longer bounds the power.
    follow_at: Option<Timestamp>,
    /// Since when the measured power of the site or a feeder has been above its target.
    above_since: BTreeMap<Option<FeederId>, Timestamp>,
    /// Whether the book is to be stored.
    to_store: bool,
    /// Whether the performances are to be stored.
    jobs_to_store: bool,
}

impl GridEvents {
    pub(super) fn new() -> Self {
        Self {
            book: EventBook::default(),
            recent: RecentPower::default(),
            promises: EventPromises::default(),
            follow_at: None,
            above_since: BTreeMap::new(),
            to_store: false,
            jobs_to_store: false,
        }
    }

    /// Restores the events that were known before a restart.
    pub(super) fn restore(
        &mut self,
        turn: &mut Turn<'_>,
        book: EventBook,
        performances: EventPerformances,
    ) {
        if let Err(error) = book.check() {
            turn.outbox.alarm_out_of_bounds(turn.now, "the stored events".to_owned(), &error);
            return;
        }
        self.book = book;
        self.promises = EventPromises::restored(performances, turn.now);
        // The jobs are not known yet; their promises follow.
        turn.controller.set_event_targets(self.book.targets(turn.now), turn.now);
        self.note_when(turn.now);
        // The configuration may have changed since.
        let open = self.book.events.values().filter(|record| record.settled() > turn.now);
        for record in open {
            if let Err(error) = turn.controller.check_feeder_of(&record.event) {
                let event = &record.event.event;
                turn.outbox.alarm_of(
                    format!("event {event} feeder"),
                    format!(
                        "grid event {event} limits nothing, because its feeder is no longer configured: {error}; \
                         restore the feeder, or cancel the event with `wattle event cancel {event}`"
                    ),
                );
            }
        }
    }

    /// Stores all events again.
    pub(super) const fn store_again(&mut self) {
        self.to_store = true;
        self.jobs_to_store = true;
    }

    /// A request of a person or a source.
    pub(super) fn request(
        &mut self,
        turn: &mut Turn<'_>,
        request: EventRequest,
        spending: &Spending,
        nodes: &mut Nodes,
    ) -> EventReply {
        let now = turn.now;
        // What has begun meanwhile has its power before the start.
        self.follow(turn, nodes);
        let event = request.event().clone();
        let changed = match request {
            EventRequest::Add { event } => {
                let figures =
                    self.figures(now, event.feeder.as_ref(), (spending, nodes), turn.controller);
                let checked = turn.controller.check_feeder_of(&event).map_err(EventError::from);
                let added = checked.and_then(|()| self.book.add(event, now, &figures));
                if added == Ok(BookChange::Changed) {
                    // An immediate event has begun.
                    let (recent, controller) = (&self.recent, &*turn.controller);
                    self.book.follow(now, |feeder| drawn(recent, now, feeder, controller));
                }
                added
            }
            EventRequest::Change { event, duration_s } => self.book.change(&event, duration_s, now),
            EventRequest::Cancel { event } => self.book.cancel(&event, now),
            EventRequest::Decline { event } => self.book.decline(&event, now),
        };
        if changed == Ok(BookChange::Changed) {
            self.apply(turn);
            nodes.order_all();
            turn.outbox.plan_soon();
        }
        let record = changed.map(|_| self.book.events.get(&event).cloned());
        match record {
            Ok(Some(record)) => {
                self.to_store = true;
                EventReply::Stored { record: Box::new(record), generation: self.book.generation }
            }
            Ok(None) => EventReply::Refused { error: format!("no event `{event}`") },
            Err(error) => EventReply::Refused { error: error.to_string() },
        }
    }

    /// The input of a plan of what can be delivered.
    pub(super) fn planning(
        &self,
        now: Timestamp,
        request: &PlanEvent,
        site: (&Spending, &Nodes),
        controller: &LiveController,
    ) -> Result<EventPlanning, EventError> {
        let of = match request {
            PlanEvent::Day { feeder } => {
                if let Some(feeder) = feeder {
                    controller.check_feeder(feeder)?;
                }
                PlanOf::Day(feeder.clone())
            }
            PlanEvent::Announced { event } => {
                let known = self.book.events.get(event);
                let known = known.ok_or_else(|| EventError::Unknown(event.clone()))?;
                PlanOf::Event(Box::new(known.clone()))
            }
            PlanEvent::Event { event } => {
                controller.check_feeder_of(event)?;
                let figures = self.figures(now, event.feeder.as_ref(), site, controller);
                let mut book = self.book.clone();
                book.add(event.clone(), now, &figures)?;
                let added = book.events.remove(&event.event);
                let added = added.ok_or_else(|| EventError::Unknown(event.event.clone()))?;
                PlanOf::Event(Box::new(added))
            }
        };
        if let PlanOf::Event(record) = &of
            && record.state(now).is_over()
        {
            let (event, state) = (record.event.event.clone(), record.state(now));
            return Err(EventError::State { event, state, remedy: "nothing is left to plan" });
        }
        Ok(EventPlanning::of(controller, &self.book, &self.promises, of, now))
    }

    /// The figures of the site or a feeder to which depths refer.
    fn figures(
        &self,
        now: Timestamp,
        feeder: Option<&FeederId>,
        (spending, nodes): (&Spending, &Nodes),
        controller: &LiveController,
    ) -> SiteFigures {
        SiteFigures {
            drawn: drawn(&self.recent, now, feeder, controller),
            idle: spending.idle_at_least(feeder, nodes, controller),
        }
    }

    /// The feeders of events that still bound the power, or will.
    pub(super) fn feeders(&self, now: Timestamp) -> BTreeSet<&FeederId> {
        self.book.feeders(now)
    }

    /// A node's entry in the energy ledger arrived.
    pub(super) fn metered(&mut self, entry: &LedgerEntry) {
        // Over an interval that was not measured completely, mean power is too low.
        if entry.unknown.iter().all(|unknown| !unknown.unmeasured) {
            let joules = (entry.gpus() + entry.energy_mj_host).as_j();
            self.recent.metered(&entry.node, entry.from_us, entry.until_us, joules);
        }
    }

    /// The lowest limit of events of the site or a feeder from `from` until before `until`.
    pub(super) fn lowest(
        &self,
        from: Timestamp,
        until: Timestamp,
        feeder: Option<&FeederId>,
    ) -> Option<Power> {
        let near = self.book.events.values();
        let near =
            near.filter(|record| record.settled() > from && record.event.feeder.as_ref() == feeder);
        TargetSteps::of(near).least(from, until)
    }

    /// When an event begins or no longer bounds the power.
    pub(super) const fn follow_at(&self) -> Option<Timestamp> {
        self.follow_at
    }

    /// Jobs start: their promises during an event are looked at at once.
    pub(super) fn jobs_start(&mut self, now: Timestamp) {
        if EventPromises::is_near(&self.book, now) {
            self.follow_at = Some(now);
        }
    }

    /// Follows the events that begin or no longer bound the power, where one is due.
    pub(super) fn follow(&mut self, turn: &mut Turn<'_>, nodes: &mut Nodes) {
        let now = turn.now;
        if self.follow_at.is_none_or(|at| now < at) {
            return;
        }
        self.count(turn);
        self.jobs_to_store |= !self.promises.performances().events.is_empty();
        let (recent, controller) = (&self.recent, &*turn.controller);
        self.to_store |= self.book.follow(now, |feeder| drawn(recent, now, feeder, controller));
        self.apply(turn);
        nodes.order_all();
    }

    /// Compares measured power with the targets.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.count(turn);
        let mut above_since = BTreeMap::new();
        for (feeder, targets) in turn.controller.event_targets().iter() {
            // On a ramp, the highest of the last seconds.
            let target = targets.most(now - EXCEEDED_AFTER, now);
            let above = target.and_then(|target| {
                let measured = turn.controller.measured_power(feeder, now)?;
                (measured > target).then_some((measured, target))
            });
            let Some((measured, target)) = above else { continue };
            let feeder = feeder.cloned();
            let since = self.above_since.get(&feeder).copied().unwrap_or(now);
            let lowest = self.bounding(now, feeder.as_ref()).min_by_key(|record| record.limit());
            if let Some(lowest) = lowest.filter(|_| now.since(since) > EXCEEDED_AFTER) {
                let place = lowest.event.place();
                turn.outbox.alarm_of(
                    format!("event target of {place} exceeded"),
                    format!(
                        "{place} draws {} and the target of grid event {} is {}: `wattle nodes` shows what draws it",
                        kw(measured),
                        lowest.event.event,
                        kw(target)
                    ),
                );
            }
            above_since.insert(feeder, since);
        }
        self.above_since = above_since;
    }

    /// The events that bound the power of the site or a feeder now.
    fn bounding(
        &self,
        now: Timestamp,
        feeder: Option<&FeederId>,
    ) -> impl Iterator<Item = &EventRecord> {
        let bounds = move |record: &&EventRecord| {
            record.has_target()
                && record.event.feeder.as_ref() == feeder
                && record.event.start_us <= now
                && now < record.settled()
        };
        self.book.events.values().filter(bounds)
    }

    /// Passes targets and promises on, and notes when to follow the events next.
    fn apply(&mut self, turn: &mut Turn<'_>) {
        let (changed, again) = self.promises.follow(turn.controller, &mut self.book, turn.now);
        self.to_store |= changed;
        self.note_when(turn.now);
        if again {
            turn.outbox.plan_soon();
        }
    }

    fn note_when(&mut self, now: Timestamp) {
        let promises = EventPromises::follow_at(&self.book, now);
        self.follow_at = self.book.follow_at(now).into_iter().chain(promises).min();
    }

    /// Counts what jobs lose: by the steps that they report, else by their predictions.
    fn count(&mut self, turn: &Turn<'_>) {
        let state = turn.controller.state();
        self.promises.count(&self.book, turn.controller.input(), turn.now, |_, job, gpus| {
            let points = job.operating_points_on(state.gpu_type_of(job)?)?;
            let default = points.point(gpus, GpuSetting::DEFAULT)?.steps_per_s;
            let reported = job.progress.filter(|progress| turn.now.since(progress.at) <= REPORTED);
            let reported = reported.and_then(|progress| progress.steps_per_s);
            Some(reported.or_else(|| running_rate(state, job))? / default)
        });
    }

    /// Stores the events where they have changed.
    pub(super) fn store(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.to_store) {
            out.push(Action::StoreEvents(Box::new(self.book.clone())));
        }
        if std::mem::take(&mut self.jobs_to_store) {
            out.push(Action::StoreEventJobs(Box::new(self.promises.performances().clone())));
        }
    }

    /// The events in numbers.
    pub(super) fn measures(&self, now: Timestamp, controller: &LiveController) -> EventMeasures {
        let count = |is: fn(EventState) -> bool| {
            self.book.events.values().filter(|record| is(record.state(now))).count()
        };
        let power = controller.event_targets().iter().filter_map(|(feeder, targets)| {
            let target = targets.at(now)?;
            let before = self.bounding(now, feeder).filter_map(EventRecord::drawn_before).max();
            Some(TargetMeasures {
                feeder: feeder.cloned(),
                target,
                reduction: before.map(|before| before.saturating_sub(target)),
                measured: controller.measured_power(feeder, now),
            })
        });
        EventMeasures {
            planned: count(|state| state == EventState::Planned),
            under_way: count(EventState::is_under_way),
            power: power.collect(),
        }
    }
}

/// The mean power of the site or a feeder by the ledger, of a feeder with its static loads. A node that sleeps is not
/// metered and counts with its power asleep.
fn drawn(
    recent: &RecentPower,
    now: Timestamp,
    feeder: Option<&FeederId>,
    controller: &LiveController,
) -> Option<MeasuredMean> {
    let carried = match feeder {
        None => None,
        Some(feeder) => Some(controller.limits().carried.on(feeder)?),
    };
    let asleep = baseline_by_node_w(controller.input());
    let nodes = controller.state().nodes().iter().zip(asleep);
    let nodes = nodes.filter_map(|(node, asleep_w)| {
        let share = carried.map_or(Some(1.0), |of| of.shares.get(&node.facts.id).copied())?;
        let otherwise = (!node.is_awake()).then(|| Power::from_w_f64(asleep_w));
        Some((&node.facts.id, share, otherwise))
    });
    let mean = recent.mean(now, nodes)?;
    let static_load = carried.map_or(Power::ZERO, |carried| carried.static_load);
    Some(MeasuredMean { power_mw: mean.power_mw + static_load, ..mean })
}

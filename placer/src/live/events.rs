//! Grid events, live: announced and changed by requests, followed over time, and compared with measured power.
//!
//! The book of events is stored before a request is acknowledged; a repetition changes nothing and is stored again, before
//! its answer. The baseline of an event is the mean power of the energy ledger over the last minutes. What the events
//! limit is decided by the controller, to which their targets go.

use std::time::Duration;

use wattle_common::event::{
    BookChange, EventBook, EventError, EventPerformances, EventRecord, EventState, MeasuredMean,
    SiteFigures, TargetSteps, kw,
};
use wattle_common::job::GpuSetting;
use wattle_common::messages::{EventReply, EventRequest, LedgerEntry, PlanEvent};
use wattle_common::{Power, Timestamp};

use crate::live::budget::Spending;
use crate::live::nodes::Nodes;
use crate::live::{Action, LiveController, Turn};
use crate::power::event_plan::EventPlanning;
use crate::power::model::baseline_by_node_w;
use crate::power::promises::EventPromises;
use crate::power::recent_power::RecentPower;
use crate::state::job_forecast::running_rate;

/// Age up to which the reported speed of a job counts.
const REPORTED: Duration = Duration::from_secs(60);
/// How long measured power may be above a target, and how far behind a ramp.
const EXCEEDED_AFTER: Duration = Duration::from_secs(10);

/// The events in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventMeasures {
    /// Number of events that have not begun.
    pub planned: usize,
    /// Number of events that have begun and are not over.
    pub under_way: usize,
    /// The lowest target now, or the limit of a ramp or of the return.
    pub target: Option<Power>,
    /// By how much it is below the power before the event.
    pub reduction: Option<Power>,
    /// The measured power of the site, while there is a target.
    pub measured: Option<Power>,
}

/// The grid events.
pub(super) struct GridEvents {
    book: EventBook,
    recent: RecentPower,
    promises: EventPromises,
    /// When an event begins or no longer bounds the power.
    follow_at: Option<Timestamp>,
    /// Since when measured power has been above the target.
    above_since: Option<Timestamp>,
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
            above_since: None,
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
                let idle = spending.idle_at_least(nodes, turn.controller);
                let site = self.figures(now, idle, turn.controller);
                let added = self.book.add(event, now, &site);
                if added == Ok(BookChange::Changed) {
                    // An immediate event has begun.
                    self.book.follow(now, || site.drawn);
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
        site: &SiteFigures,
        controller: &LiveController,
    ) -> Result<EventPlanning, EventError> {
        let record = match request {
            PlanEvent::Day => None,
            PlanEvent::Announced { event } => {
                let known = self.book.events.get(event);
                Some(known.ok_or_else(|| EventError::Unknown(event.clone()))?.clone())
            }
            PlanEvent::Event { event } => {
                let mut book = self.book.clone();
                book.add(event.clone(), now, site)?;
                book.events.remove(&event.event)
            }
        };
        if let Some(record) = record.as_ref().filter(|record| record.state(now).is_over()) {
            let (event, state) = (record.event.event.clone(), record.state(now));
            return Err(EventError::State { event, state, remedy: "nothing is left to plan" });
        }
        Ok(EventPlanning::of(controller, &self.book, &self.promises, record, now))
    }

    /// The figures of the site to which depths refer.
    pub(super) fn figures(
        &self,
        now: Timestamp,
        idle: Option<Power>,
        controller: &LiveController,
    ) -> SiteFigures {
        SiteFigures { drawn: drawn(&self.recent, now, controller), idle }
    }

    /// A node's entry in the energy ledger arrived.
    pub(super) fn metered(&mut self, entry: &LedgerEntry) {
        // Over an interval that was not measured completely, mean power is too low.
        if entry.unknown.iter().all(|unknown| !unknown.unmeasured) {
            let joules = (entry.gpus() + entry.energy_mj_host).as_j();
            self.recent.metered(&entry.node, entry.from_us, entry.until_us, joules);
        }
    }

    /// The lowest limit of events from `from` until before `until`.
    pub(super) fn lowest(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let near = self.book.events.values().filter(|record| record.settled() > from);
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
        self.to_store |= self.book.follow(now, || drawn(recent, now, controller));
        self.apply(turn);
        nodes.order_all();
    }

    /// Compares measured power with the target.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.count(turn);
        let targets = turn.controller.event_targets();
        // On a ramp, the highest of the last seconds.
        let target = targets.most(now - EXCEEDED_AFTER, now);
        let above = target.and_then(|target| {
            let measured = turn.controller.measured_site_power(now)?;
            (measured > target).then_some((measured, target))
        });
        let Some((measured, target)) = above else {
            self.above_since = None;
            return;
        };
        let since = *self.above_since.get_or_insert(now);
        if now.since(since) > EXCEEDED_AFTER {
            let Some(lowest) = self.bounding(now).min_by_key(|record| record.limit()) else {
                return;
            };
            turn.outbox.alarm_of(
                "event target exceeded".to_owned(),
                format!(
                    "the site draws {} and the target of grid event {} is {}: `wattle nodes` shows what draws it",
                    kw(measured),
                    lowest.event.event,
                    kw(target)
                ),
            );
        }
    }

    /// The events that bound the power now.
    fn bounding(&self, now: Timestamp) -> impl Iterator<Item = &EventRecord> {
        let bounds = move |record: &&EventRecord| {
            record.has_target() && record.event.start_us <= now && now < record.settled()
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
        self.promises.count(&self.book, state, turn.now, |_, job, gpus| {
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
        let target = controller.event_targets().at(now);
        let before = self.bounding(now).filter_map(EventRecord::drawn_before).max();
        EventMeasures {
            planned: count(|state| state == EventState::Planned),
            under_way: count(EventState::is_under_way),
            target,
            reduction: target.zip(before).map(|(target, before)| before.saturating_sub(target)),
            measured: target.and_then(|_| controller.measured_site_power(now)),
        }
    }
}

/// The mean power of the site by the ledger. A node that sleeps is not metered and counts with its power asleep.
fn drawn(
    recent: &RecentPower,
    now: Timestamp,
    controller: &LiveController,
) -> Option<MeasuredMean> {
    let asleep = baseline_by_node_w(controller.input());
    let nodes = controller.state().nodes().iter().zip(asleep);
    let nodes = nodes.map(|(node, asleep_w)| {
        let otherwise = (!node.is_awake()).then(|| Power::from_w_f64(asleep_w));
        (&node.facts.id, otherwise)
    });
    recent.mean(now, nodes)
}

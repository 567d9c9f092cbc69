//! What an event leaves for its end, beside records and orders: replies, alarms, and a planning round.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::bounds::OutOfBounds;
use wattle_common::messages::{BudgetReply, EventReply, Reply};
use wattle_common::{RaisedAlarms, Timestamp};

use crate::live::{Action, RequestNumber};

/// Time after which the same sender and field raise an alarm again.
const ALARM_AGAIN: Duration = Duration::from_secs(600);

/// Most senders and fields that are remembered; beyond it, none raises a new alarm until the oldest is
/// forgotten.
const ALARMS_MAX: usize = 1_000;

/// Most alarms that are remembered, so that each is raised once.
const RAISED_MAX: usize = 256;

/// What the event being handled leaves for its end.
pub(super) struct Outbox {
    replies: Vec<(RequestNumber, Reply)>,
    budget_replies: Vec<(RequestNumber, BudgetReply)>,
    event_replies: Vec<(RequestNumber, EventReply)>,
    /// What distinguishes each alarm, and its text.
    alarms: Vec<(String, String)>,
    /// Whether a plan may differ from the last one.
    plan: bool,
    /// Whether a job was submitted, whose predictions follow.
    submitted: bool,
    /// The alarms raised lately.
    raised: RaisedAlarms,
    /// When each sender and field last raised an alarm.
    out_of_bounds: BTreeMap<(String, &'static str), Timestamp>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            replies: Vec::new(),
            budget_replies: Vec::new(),
            event_replies: Vec::new(),
            alarms: Vec::new(),
            plan: false,
            submitted: false,
            raised: RaisedAlarms::new(RAISED_MAX),
            out_of_bounds: BTreeMap::new(),
        }
    }

    pub(super) fn reply(&mut self, number: RequestNumber, reply: Reply) {
        self.replies.push((number, reply));
    }

    pub(super) fn reply_budget(&mut self, number: RequestNumber, reply: BudgetReply) {
        self.budget_replies.push((number, reply));
    }

    pub(super) fn reply_event(&mut self, number: RequestNumber, reply: EventReply) {
        self.event_replies.push((number, reply));
    }

    /// Reports a fault to the operator.
    pub(super) fn alarm(&mut self, text: String) {
        self.alarm_of(text.clone(), text);
    }

    /// Reports a fault whose text changes while it lasts; `key` distinguishes it from others.
    pub(super) fn alarm_of(&mut self, key: String, text: String) {
        self.alarms.push((key, text));
    }

    /// Raises an alarm about an ignored message, at most once in ten minutes for each sender and field.
    pub(super) fn alarm_out_of_bounds(
        &mut self,
        now: Timestamp,
        sender: String,
        error: &OutOfBounds,
    ) {
        let text = format!("{sender} is ignored: {error}");
        let recent = |at: &Timestamp| *at <= now && now.since(*at) < ALARM_AGAIN;
        let key = (sender, error.field);
        if self.out_of_bounds.get(&key).is_some_and(recent) {
            return;
        }
        if self.out_of_bounds.len() >= ALARMS_MAX {
            self.out_of_bounds.retain(|_, at| recent(at));
        }
        if self.out_of_bounds.len() < ALARMS_MAX {
            self.out_of_bounds.insert(key, now);
            self.alarm(text);
        }
    }

    /// A planning round follows after the delay that collects events.
    pub(super) const fn plan_soon(&mut self) {
        self.plan = true;
    }

    /// A planning round follows after the delay, in which the predictions of a submitted job arrive.
    pub(super) const fn plan_with_predictions(&mut self) {
        (self.plan, self.submitted) = (true, true);
    }

    /// Whether a job was submitted since the last call.
    pub(super) const fn take_submitted(&mut self) -> bool {
        std::mem::replace(&mut self.submitted, false)
    }

    /// Whether a planning round was requested since the last call.
    pub(super) const fn take_plan(&mut self) -> bool {
        std::mem::replace(&mut self.plan, false)
    }

    /// Answers the requests.
    pub(super) fn send_replies(&mut self, out: &mut Vec<Action>) {
        let budgets = self.budget_replies.drain(..);
        out.extend(budgets.map(|(number, reply)| Action::AnswerBudget(number, reply)));
        let events = self.event_replies.drain(..);
        out.extend(events.map(|(number, reply)| Action::AnswerEvent(number, reply)));
        out.extend(self.replies.drain(..).map(|(number, reply)| Action::Answer(number, reply)));
    }

    /// Raises the alarms that were not raised lately.
    pub(super) fn raise_alarms(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        for (key, text) in self.alarms.drain(..) {
            if self.raised.is_new(now, &key) {
                out.push(Action::Alarm(text));
            }
        }
    }
}

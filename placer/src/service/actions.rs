//! Carries out the placer's actions.
//!
//! Actions have an order that survives a kill: a job's record is stored before the orders of its nodes, and
//! every write before the answer that depends on it. Consecutive writes to one bucket are sent together,
//! and the next step begins after all of them are acknowledged. An answer waits for the writes before it.

use wattle_common::Machine as _;
use wattle_common::messages::{BudgetReply, EventReply, JobRecord, NodeDesired, Reply};
use wattle_common::subject::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, EVENT_JOBS, EVENTS, EXPECTED_STATUS, FEEDERS_STATUS,
    GRID_STATUS, STORE_RESTORED, TWIN_OPEN, TWIN_STATUS, WHAT_IF,
};
use wattle_runtime::bus::{ExclusiveError, Stored};
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

use super::PlacerService;
use crate::live::{Action, Event};

/// Actions that are carried out together: the writes, then the answers, then the deletions.
#[derive(Default)]
struct Step {
    records: Vec<JobRecord>,
    orders: Vec<NodeDesired>,
    answers: Vec<Action>,
    forgotten: Vec<String>,
}

impl Step {
    /// Adds an action, unless it belongs to a later step.
    fn add(&mut self, action: Action) -> Option<Action> {
        match action {
            Action::ForgetJob(job) => self.forgotten.push(job.to_string()),
            // Deletions are the end of a step.
            action if !self.forgotten.is_empty() => return Some(action),
            Action::StoreJob(record) if self.orders.is_empty() => self.records.push(*record),
            Action::StoreDesired(desired) if self.records.is_empty() && self.answers.is_empty() => {
                self.orders.push(desired);
            }
            Action::Answer(..) | Action::AnswerBudget(..) | Action::AnswerEvent(..) => {
                self.answers.push(action);
            }
            action => return Some(action),
        }
        None
    }
}

/// The later of two outcomes in the order: immediate, after a retry, interrupted.
const fn worse(one: Stored, other: Stored) -> Stored {
    match (one, other) {
        (Stored::Interrupted, _) | (_, Stored::Interrupted) => Stored::Interrupted,
        (Stored::AfterRetry, _) | (_, Stored::AfterRetry) => Stored::AfterRetry,
        (Stored::Immediately, Stored::Immediately) => Stored::Immediately,
    }
}

impl PlacerService {
    /// Carries out all actions. After an interruption the rest is dropped.
    pub(super) async fn carry_out(
        &mut self,
        actions: &mut Vec<Action>,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let mut stored = Stored::Immediately;
        let mut step = Step::default();
        for action in actions.drain(..) {
            let Some(later) = step.add(action) else { continue };
            stored = worse(stored, self.carry_out_step(&mut step, shutdown).await?);
            if let Some(other) = step.add(later) {
                stored = worse(stored, self.execute(other, shutdown).await?);
            }
            if stored == Stored::Interrupted {
                return Ok(stored);
            }
        }
        Ok(worse(stored, self.carry_out_step(&mut step, shutdown).await?))
    }

    async fn carry_out_step(
        &mut self,
        step: &mut Step,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let Step { records, orders, answers, forgotten } = std::mem::take(step);
        let mut stored = Stored::Immediately;
        if !records.is_empty() {
            let values: Vec<_> =
                records.iter().map(|record| (record.spec.job.as_str(), record)).collect();
            let results = self.jobs.put_all(&values, shutdown).await;
            for (record, result) in records.into_iter().zip(results) {
                stored = worse(stored, self.job_stored(record, result)?);
            }
        }
        if !orders.is_empty() {
            let values: Vec<_> = orders.iter().map(|order| (order.node.as_str(), order)).collect();
            for result in self.orders.put_all(&values, shutdown).await {
                stored = worse(stored, self.value_stored(result)?);
            }
        }
        // Unanswered requests are repeated by their clients, also to the next placer.
        if stored != Stored::Interrupted {
            for answer in answers {
                self.answer(answer).await;
            }
        }
        if stored != Stored::Interrupted && !forgotten.is_empty() {
            for result in self.jobs.delete_all(&forgotten, shutdown).await {
                stored = worse(stored, self.value_stored(result)?);
            }
        }
        Ok(stored)
    }

    /// Records the result of storing a record. Without room, the record of a known job is stored later, and
    /// a new job is refused.
    fn job_stored(
        &mut self,
        record: JobRecord,
        result: Result<Stored, ExclusiveError>,
    ) -> Result<Stored, ExclusiveError> {
        let job = record.spec.job.clone();
        let error = match result {
            Ok(stored) => {
                self.unstored.remove(&job);
                return Ok(stored);
            }
            Err(error) => error,
        };
        let Some(cause) = error.refused_value() else { return Err(error) };
        self.storage.job_not_stored(&job, cause);
        if self.jobs.contains(job.as_str()) {
            self.unstored.insert(job, Box::new(record));
        } else {
            self.not_stored.insert(job);
        }
        Ok(Stored::Immediately)
    }

    /// A value for which the server has no room is left out with an alarm: orders, the budget's status
    /// and the aim are written again.
    fn value_stored(
        &mut self,
        result: Result<Stored, ExclusiveError>,
    ) -> Result<Stored, ExclusiveError> {
        if let Err(ExclusiveError::Bus { bucket, source }) = &result
            && source.is_value_refused()
        {
            self.storage.not_stored(bucket, "a value", source);
            return Ok(Stored::Immediately);
        }
        result
    }

    /// Completes what a full bucket interrupted: removes refused jobs, and repeats one write.
    pub(super) async fn repeat_unstored(
        &mut self,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let mut out = Vec::new();
        for job in std::mem::take(&mut self.not_stored) {
            self.placer.handle(clock::now(), Event::SubmissionNotStored(job), &mut out);
        }
        let mut stored = self.carry_out(&mut out, shutdown).await?;
        if let Some((_, record)) = self.unstored.pop_first() {
            let result = self.jobs.put(record.spec.job.as_str(), &*record, shutdown).await;
            stored = worse(stored, self.job_stored(*record, result)?);
        }
        Ok(stored)
    }

    /// Carries out an action that is a step of its own.
    async fn execute(
        &mut self,
        action: Action,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let result = match action {
            Action::StoreBudget(record) => {
                let stored = self.budget.put(BUDGET_SET, &*record, shutdown).await;
                let refused = |error: &ExclusiveError| error.refused_value().is_some();
                self.budget_not_stored = stored.as_ref().is_err_and(refused);
                stored
            }
            Action::StoreEvents(book) => {
                let stored = self.budget.put(EVENTS, &*book, shutdown).await;
                let refused = |error: &ExclusiveError| error.refused_value().is_some();
                self.events_not_stored = stored.as_ref().is_err_and(refused);
                stored
            }
            Action::StoreSiteMinute(minute) => {
                return Ok(self.site.store(&self.bus, *minute, shutdown).await);
            }
            Action::StoreEventJobs(jobs) => self.budget.put(EVENT_JOBS, &*jobs, shutdown).await,
            Action::StoreBudgetStatus(status) => {
                self.budget.put(BUDGET_STATUS, &*status, shutdown).await
            }
            Action::StoreAimStatus(status) => self.budget.put(AIM_STATUS, &status, shutdown).await,
            Action::StoreGridStatus(status) => {
                self.budget.put(GRID_STATUS, &*status, shutdown).await
            }
            Action::StoreFeedersStatus(status) => {
                self.budget.put(FEEDERS_STATUS, &*status, shutdown).await
            }
            Action::StoreTwin(twin) => {
                let (status, open) = *twin;
                match self.budget.put(TWIN_OPEN, &open, shutdown).await {
                    Ok(_) => self.budget.put(TWIN_STATUS, &status, shutdown).await,
                    refused => refused,
                }
            }
            Action::StoreExpected(status) => {
                self.budget.put(EXPECTED_STATUS, &*status, shutdown).await
            }
            Action::StoreWhatIf(what_if) => self.budget.put(WHAT_IF, &*what_if, shutdown).await,
            Action::ForgetRestoration => self.budget.delete(STORE_RESTORED, shutdown).await,
            Action::WakeNode(node) => {
                self.wake_node(node);
                Ok(Stored::Immediately)
            }
            Action::Alarm(text) => {
                tracing::error!("{text}");
                Ok(Stored::Immediately)
            }
            // Every step begins empty and accepts these.
            Action::StoreJob(_)
            | Action::ForgetJob(_)
            | Action::StoreDesired(_)
            | Action::Answer(..)
            | Action::AnswerBudget(..)
            | Action::AnswerEvent(..) => Ok(Stored::Immediately),
        };
        self.value_stored(result)
    }

    async fn answer(&mut self, action: Action) {
        match action {
            Action::AnswerBudget(number, mut reply) => {
                if self.budget_not_stored && matches!(reply, BudgetReply::Stored { .. }) {
                    let error = "the budget is in force until the placer ends and is not stored, because the NATS \
                                 server has no room for it: make room, and set it again";
                    reply = BudgetReply::Refused { error: error.to_owned() };
                }
                let refused = match &reply {
                    BudgetReply::Refused { error } => Some(error.as_str()),
                    BudgetReply::Stored { .. } => None,
                };
                self.conclude(number, &reply, refused).await;
            }
            Action::AnswerEvent(number, mut reply) => {
                if self.events_not_stored && matches!(reply, EventReply::Stored { .. }) {
                    let error = "the event is in force until the placer ends and is not stored, because the NATS \
                                 server has no room for it: make room, and repeat the request";
                    reply = EventReply::Refused { error: error.to_owned() };
                }
                let refused = match &reply {
                    EventReply::Refused { error } => Some(error.as_str()),
                    EventReply::Stored { .. } => None,
                };
                self.conclude(number, &reply, refused).await;
            }
            Action::Answer(number, mut reply) => {
                if let Reply::Accepted { job, generation } = &reply {
                    if self.not_stored.contains(job) {
                        reply = Reply::Refused { error: self.storage.refusal() };
                    } else if *generation > 1 && self.unstored.contains_key(job) {
                        // Generation 1 is that of the submission.
                        let error = "the cancellation is in force until the placer ends and is not stored, because \
                                     the NATS server has no room for it: make room, and cancel the job again";
                        reply = Reply::Refused { error: error.to_owned() };
                    }
                }
                let refused = match &reply {
                    Reply::Refused { error } => Some(error.as_str()),
                    Reply::Accepted { .. } => None,
                };
                self.conclude(number, &reply, refused).await;
            }
            _ => {}
        }
    }
}

//! A simulated cluster around the placer: buckets, nodes that follow orders, clients that retry until
//! they get a reply.
//!
//! It keeps the contract of the real components and checks these invariants at every step: no attempt
//! starts twice, no job has two live attempts on reachable nodes, no GPU has too many jobs, no
//! exclusive job has a co-tenant, and the records agree with the cluster's state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::Machine;
use wattle_common::event::{EventBook, EventPerformances};
use wattle_common::job::JobSpec;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetReply, BudgetStatus, CancelJob, DesiredJob, EventReply,
    ExpectedStatus, GpuConditionKind, JobRecord, LaunchReport, LaunchState, LaunchedJob,
    LedgerEntry, NodeDesired, PowerReport, Reply, SiteMinute, SleepState, StoreRestored, SubmitJob,
    TwinOpen, TwinStatus, WhatIf,
};
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, Timestamp};

mod faults;
mod readings;
mod records;
mod start;

use crate::Config;
use crate::live::site_jobs::placed_by_site;
use crate::live::tests::fault_injection::Faults;
use crate::live::tests::node::{Node, RunKey, SimulatedSleep, is_live};
use crate::live::{Action, Event, PersistedState, Placer};
use crate::policies::Policy;

/// Time a node takes to wake.
const WAKES_IN: Duration = Duration::from_secs(20);

/// Run time of every job, s.
const WORK: u32 = 6;

/// The run that an order names.
fn key_of(job: &DesiredJob) -> RunKey {
    (job.job.clone(), job.admission.clone(), job.attempt)
}

enum Request {
    Submit(Box<SubmitJob>),
    Cancel(JobId),
}

pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) config: Config,
    pub(super) policy: fn() -> Box<dyn Policy>,
    pub(super) placer: Placer,
    pub(super) jobs: BTreeMap<JobId, JobRecord>,
    pub(super) orders: BTreeMap<NodeId, NodeDesired>,
    nodes: Vec<Node>,
    work: BTreeMap<JobId, u32>,
    started: BTreeSet<(RunKey, NodeId)>,
    requests: BTreeMap<u64, (Request, Option<Reply>)>,
    requests_sent: u64,
    pub(super) writes: usize,
    pub(super) kill_at: Option<usize>,
    pub(super) log: Vec<String>,
    /// Jobs whose program no node has.
    pub(super) refuse: BTreeSet<JobId>,
    /// The signal that ends jobs which are requested to stop.
    pub(super) killed_by: Option<i32>,
    /// Largest number of jobs on one GPU, including attempts that are still stopping.
    pub(super) tenants_max: usize,
    /// Whether jobs never complete.
    pub(super) long: bool,
    /// Whether jobs never finish stopping.
    pub(super) slow_stop: bool,
    /// Faults of the message transport; `None`: every message arrives once and in order.
    pub(super) faults: Option<Faults>,
    pub(super) budget: Option<BudgetRecord>,
    pub(super) budget_status: Option<BudgetStatus>,
    pub(super) events: Option<EventBook>,
    pub(super) event_jobs: Option<EventPerformances>,
    pub(super) event_reply: Option<EventReply>,
    /// The power of the site by minute, and the entries of the ledger that were delivered.
    pub(super) site_minutes: Vec<SiteMinute>,
    pub(super) ledger: Vec<LedgerEntry>,
    pub(super) aim_status: Option<AimStatus>,
    pub(super) grid: Option<wattle_common::messages::GridStatus>,
    pub(super) feeders: Option<wattle_common::messages::FeedersStatus>,
    pub(super) twin: Option<(TwinStatus, TwinOpen)>,
    pub(super) expected: Option<ExpectedStatus>,
    pub(super) what_if: Option<WhatIf>,
    pub(super) budget_reply: Option<BudgetReply>,
    /// The mark of a restored store.
    pub(super) restored: Option<StoreRestored>,
    /// Whether a test has written an order, so that generations may decrease.
    pub(super) orders_may_be_forged: bool,
    /// By how much the placer's clock is ahead of the nodes', s.
    ahead_s: i64,
    /// Number of placers so far.
    pub(super) placers: usize,
}

impl World {
    // Actions of a test.

    pub(super) fn submit(&mut self, spec: JobSpec) {
        self.request_submit(spec);
    }
    pub(super) fn cancel(&mut self, job: &str) {
        self.ask(Request::Cancel(JobId::new(job).unwrap()));
    }
    pub(super) fn request_submit(&mut self, spec: JobSpec) -> Reply {
        self.request_submission(SubmitJob { spec, submission: None, user_proven: false })
    }
    pub(super) fn request_submission(&mut self, request: SubmitJob) -> Reply {
        self.ask(Request::Submit(Box::new(request)))
    }
    pub(super) fn request_cancel(&mut self, job: &str) -> Reply {
        self.ask(Request::Cancel(JobId::new(job).unwrap()))
    }
    fn ask(&mut self, request: Request) -> Reply {
        self.requests_sent += 1;
        let number = self.requests_sent;
        self.requests.insert(number, (request, None));
        self.send(number);
        let answer = self.requests[&number].1.clone();
        // The placer was killed before it replied; the client retries.
        answer.unwrap_or(Reply::Refused { error: "no answer".to_owned() })
    }
    fn send(&mut self, number: u64) {
        let event = match &self.requests[&number].0 {
            Request::Submit(submit) => {
                let admission = AdmissionId::accepted(self.placer_now(), number);
                Event::Submitted(number, admission, submit.clone())
            }
            Request::Cancel(job) => Event::Cancelled(number, CancelJob { job: job.clone() }),
        };
        self.deliver(event);
    }
    /// Whether the submission of this job was refused because its deadline has passed.
    pub(super) fn is_refused(&self, job: &JobId) -> bool {
        self.requests.values().any(|request| {
            matches!(request, (Request::Submit(submit), Some(Reply::Refused { error }))
                if submit.spec.job == *job && error.starts_with("its deadline"))
        })
    }
    pub(super) fn unanswered(&self) -> usize {
        self.requests.values().filter(|(_, answer)| answer.is_none()).count()
    }
    /// The time of the placer's clock.
    fn placer_now(&self) -> Timestamp {
        let ahead = Duration::from_secs(self.ahead_s.unsigned_abs());
        if self.ahead_s < 0 { self.now - ahead } else { self.now + ahead }
    }

    // Observations of a test.

    pub(super) fn record(&self, job: &str) -> &JobRecord {
        self.jobs.get(&JobId::new(job).unwrap()).unwrap_or_else(|| panic!("{job} has no record"))
    }
    pub(super) fn desired(&self, node: &str) -> &NodeDesired {
        &self.orders[&NodeId::new(node).unwrap()]
    }
    /// The current reports of a node.
    pub(super) fn reports(&self, node: &str) -> (PowerReport, LaunchReport) {
        let node = self.nodes.iter().find(|known| known.id.as_str() == node).unwrap();
        (node.power(self.now), node.launch(self.now))
    }
    pub(super) fn is_live(&self, node: &str, job: &str, attempt: u32) -> bool {
        let node = self.nodes.iter().find(|known| known.id.as_str() == node).unwrap();
        let is_of = |run: &&LaunchedJob| run.job.as_str() == job && run.attempt == attempt;
        node.runs.values().filter(is_of).any(is_live)
    }
    pub(super) fn idle(&self) -> bool {
        !self.nodes.iter().any(|node| node.runs.values().any(is_live))
    }
    fn node_mut(&mut self, node: &str) -> &mut Node {
        self.nodes.iter_mut().find(|known| known.id.as_str() == node).unwrap()
    }

    // Progress of the simulated cluster.

    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.work();
            self.finish_waking();
            self.carry_out_orders();
            self.report();
            self.wake();
            self.carry_out_orders();
            self.report();
            let open: Vec<u64> = self
                .requests
                .iter()
                .filter(|(_, (_, answer))| answer.is_none())
                .map(|(number, _)| *number)
                .collect();
            for number in open {
                self.send(number);
            }
        }
    }

    pub(super) fn deliver(&mut self, event: Event) {
        if let Event::EnergyMetered(entry) = &event {
            self.ledger.push((**entry).clone());
        }
        let mut out = Vec::new();
        self.placer.handle(self.placer_now(), event, &mut out);
        records::check(&self.placer);
        self.carry_out(out);
    }

    pub(super) fn wake(&mut self) {
        // A few calls must suffice, or the placer would never become idle.
        for calls in 0.. {
            assert!(calls < 20, "wake-ups without end: {:?}", self.placer.next_wake());
            let now = self.placer_now();
            if self.placer.next_wake().is_none_or(|(at, _)| at > now) {
                return;
            }
            let mut out = Vec::new();
            self.placer.wake(now, &mut out);
            records::check(&self.placer);
            self.carry_out(out);
        }
    }

    fn carry_out(&mut self, out: Vec<Action>) {
        for action in out {
            if self.kill_at == Some(self.writes) {
                self.kill_at = None;
                self.log.push("--- killed ---".to_owned());
                self.restart();
                return;
            }
            self.writes += 1;
            match action {
                Action::StoreJob(record) => {
                    self.log.push(format!("{} {}", record.spec.job, record.phase));
                    let last = self.jobs.insert(record.spec.job.clone(), *record.clone());
                    if let Some(last) = last {
                        let is_other = last.admission < record.admission;
                        let grows = is_other || last.attempt <= record.attempt;
                        assert!(grows, "attempt numbers never decrease");
                        // The energy of an ended job still grows with the ledger.
                        let ended = JobRecord {
                            energy_mj: record.energy_mj,
                            energy_until_us: record.energy_until_us.clone(),
                            compared: record.compared,
                            ..last.clone()
                        };
                        let same = is_other || !last.phase.is_final() || ended == *record;
                        assert!(same, "{} ended twice", record.spec.job);
                    }
                }
                Action::ForgetJob(job) => {
                    self.jobs.remove(&job);
                }
                Action::StoreDesired(desired) => {
                    let runs: Vec<String> = desired
                        .jobs
                        .iter()
                        .map(|job| {
                            let stop = if job.stop { " stop" } else { "" };
                            format!("{}.{}{stop}", job.job, job.attempt)
                        })
                        .collect();
                    let last = self.orders.insert(desired.node.clone(), desired.clone());
                    let renewed = last.is_some_and(|last| {
                        let newer = (last.generation, last.issued_at_us)
                            <= (desired.generation, desired.issued_at_us);
                        assert!(
                            newer || self.orders_may_be_forged,
                            "order generations never decrease"
                        );
                        last.generation == desired.generation
                    });
                    let what = if renewed { "renew" } else { "order" };
                    let line = format!(
                        "{what} {} {}: {}",
                        desired.node,
                        desired.generation,
                        runs.join(" ")
                    );
                    self.log.push(line.trim_end().to_owned());
                    let sleeps = desired.sleep.is_some_and(|sleep| {
                        matches!(sleep.state, SleepState::EnteringSleep | SleepState::Asleep)
                    });
                    assert!(
                        !sleeps || desired.jobs.is_empty(),
                        "{} sleeps with jobs",
                        desired.node
                    );
                    for job in &desired.jobs {
                        let stored = &self.jobs[&job.job];
                        assert!(stored.attempt >= job.attempt, "stored before it is ordered");
                    }
                }
                Action::StoreBudget(record) => self.budget = Some(*record),
                Action::ForgetRestoration => self.restored = None,
                Action::StoreAimStatus(status) => self.aim_status = Some(status),
                Action::StoreGridStatus(status) => self.grid = Some(*status),
                Action::StoreFeedersStatus(status) => self.feeders = Some(*status),
                Action::StoreTwin(twin) => self.twin = Some(*twin),
                Action::StoreExpected(status) => self.expected = Some(*status),
                Action::StoreWhatIf(what_if) => self.what_if = Some(*what_if),
                Action::StoreBudgetStatus(status) => {
                    let before = self.budget_status.as_ref().map(|last| last.observed_generation);
                    if before != Some(status.observed_generation) {
                        self.log.push(format!("status of budget {}", status.observed_generation));
                    }
                    self.budget_status = Some(*status);
                }
                Action::StoreEvents(book) => self.events = Some(*book),
                Action::StoreEventJobs(jobs) => self.event_jobs = Some(*jobs),
                Action::StoreSiteMinute(minute) => self.site_minutes.push(*minute),
                Action::AnswerEvent(_, reply) => {
                    if let EventReply::Stored { record, .. } = &reply {
                        let stored = self.events.as_ref().unwrap();
                        let stored = stored.events.get(&record.event.event);
                        assert_eq!(stored, Some(&**record), "stored before it is acknowledged");
                    }
                    self.event_reply = Some(reply);
                }
                Action::AnswerBudget(_, reply) => {
                    if let BudgetReply::Stored { budget, .. } = &reply {
                        let stored = self.budget.as_ref().map(|record| &record.budget);
                        assert_eq!(stored, Some(budget), "stored before it is acknowledged");
                    }
                    self.budget_reply = Some(reply);
                }
                Action::Answer(number, reply) => {
                    // A request that a test delivers itself has no client.
                    let Some((request, answer)) = self.requests.get_mut(&number) else { continue };
                    if let (Request::Submit(submit), Reply::Accepted { .. }) = (request, &reply) {
                        assert!(
                            self.jobs.contains_key(&submit.spec.job),
                            "stored before it is acknowledged"
                        );
                        self.log.push(format!("answer {} accepted", submit.spec.job));
                    }
                    *answer = Some(reply);
                }
                Action::WakeNode(node) => {
                    let stored = self.orders[&node].sleep.unwrap();
                    assert_eq!(stored.state, SleepState::Waking, "stored before the wake command");
                    self.log.push(format!("wake {node}"));
                    let at = self.now + WAKES_IN;
                    let sleep = &mut self.node_mut(node.as_str()).sleep;
                    if !sleep.ignores_orders && sleep.asleep {
                        sleep.wakes_at.get_or_insert(at);
                    }
                }
                Action::Alarm(text) => self.log.push(format!("alarm {text}")),
            }
        }
    }

    /// Advances the running jobs by one second.
    fn work(&mut self) {
        if self.long {
            return;
        }
        let running: BTreeSet<RunKey> = self
            .nodes
            .iter()
            .flat_map(|node| &node.runs)
            .filter(|(_, run)| run.state == LaunchState::Running)
            .map(|(key, _)| key.clone())
            .collect();
        for key in running {
            let done = self.work.entry(key.0.clone()).or_default();
            *done += 1;
            if *done >= WORK {
                for node in &mut self.nodes {
                    if let Some(run) = node.runs.get_mut(&key).filter(|run| is_live(run)) {
                        run.state = LaunchState::exited(0);
                    }
                }
            }
        }
    }

    /// Completes the wake-ups that are due.
    fn finish_waking(&mut self) {
        for node in &mut self.nodes {
            if node.sleep.wakes_at.is_some_and(|at| at <= self.now) {
                (node.sleep.asleep, node.sleep.wakes_at) = (false, None);
            }
        }
    }

    fn carry_out_orders(&mut self) {
        for at in 0..self.nodes.len() {
            let late = self.faults.as_mut().is_some_and(Faults::is_late);
            if self.nodes[at].is_silent() || (late && !self.nodes[at].reconnected) {
                continue;
            }
            self.nodes[at].reconnected = false;
            let Some(desired) = self.orders.get(&self.nodes[at].id).cloned() else { continue };
            let node = &mut self.nodes[at];
            let current = |order: &NodeDesired| (order.generation, order.issued_at_us);
            if node.seen.as_ref().is_some_and(|seen| current(&desired) < current(seen)) {
                node.reads_older_order = true;
                continue;
            }
            node.reads_older_order = false;
            node.seen = Some(desired.clone());
            node.fall_asleep(&desired);
            for (key, run) in &mut node.runs {
                let named = desired.jobs.iter().find(|job| key == &key_of(job));
                let continues = named.is_none() && node.site.is_some();
                if named.is_none_or(|named| named.stop) && is_live(run) && !continues {
                    // Writing the checkpoint takes one second, or several with transport faults.
                    let writes = self.faults.as_mut().is_some_and(Faults::is_slow);
                    run.state = match run.state {
                        LaunchState::Stopping if !self.slow_stop && !writes => {
                            LaunchState::Stopped { killed_by: self.killed_by }
                        }
                        _ => LaunchState::Stopping,
                    };
                }
            }
            for job in &desired.jobs {
                let key = key_of(job);
                let older_lives =
                    node.runs.iter().any(|((id, ..), run)| *id == job.job && is_live(run));
                let by_site = placed_by_site(&self.jobs[&job.job].spec);
                if node.runs.contains_key(&key) || older_lives || by_site {
                    continue;
                }
                let state = if job.stop {
                    LaunchState::STOPPED
                } else if self.refuse.contains(&job.job) {
                    LaunchState::refused("no such program".to_owned())
                } else if node.is_broken {
                    node.prevent(self.now)
                } else {
                    let first = self.started.insert((key.clone(), node.id.clone()));
                    assert!(first, "{} attempt {} starts twice", job.job, job.attempt);
                    LaunchState::Running
                };
                node.runs.insert(
                    key,
                    LaunchedJob {
                        job: job.job.clone(),
                        admission: job.admission.clone(),
                        attempt: job.attempt,
                        gpus: job.gpus.clone(),
                        state,
                        processes: None,
                        since_us: self.now,
                        log_path: format!("/log/{}", job.job),
                    },
                );
            }
        }
        self.check();
    }

    fn check(&self) {
        let mut attempts: BTreeMap<&JobId, u32> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !node.cut_off) {
            let mut tenants: Vec<Vec<&JobId>> = vec![Vec::new(); node.gpus as usize];
            for ((job, admission, attempt), run) in node.runs.iter().filter(|(_, run)| is_live(run))
            {
                // A reconnected node may still be stopping an attempt that has been placed again, or has not
                // read the order that stops it.
                let order = self.orders.get(&node.id).filter(|order| {
                    node.seen.as_ref().is_some_and(|seen| seen.generation < order.generation)
                });
                let is_undone = order.is_some_and(|order| {
                    let key = (job.clone(), admission.clone(), *attempt);
                    order.jobs.iter().all(|named| key_of(named) != key)
                });
                if run.state == LaunchState::Running && !is_undone {
                    let other = attempts.insert(job, *attempt);
                    assert!(other.is_none_or(|other| other == *attempt), "{job} runs twice");
                }
                run.gpus.iter().for_each(|gpu| tenants[*gpu as usize].push(job));
            }
            for (gpu, jobs) in tenants.iter().enumerate().filter(|(_, jobs)| jobs.len() > 1) {
                let exclusive =
                    |job: &&JobId| self.jobs.get(*job).is_some_and(|record| record.spec.exclusive);
                let limit = if jobs.iter().any(exclusive) { 1 } else { self.tenants_max };
                assert!(jobs.len() <= limit, "too many jobs on {} GPU {gpu}: {jobs:?}", node.id);
            }
        }
    }

    fn report(&mut self) {
        let reports: Vec<(PowerReport, LaunchReport)> = self
            .nodes
            .iter()
            .filter(|node| !node.is_silent())
            .map(|node| (node.power(self.now), node.launch(self.now)))
            .collect();
        for (node, sent) in self.nodes.iter_mut().filter(|node| !node.is_silent()).zip(&reports) {
            node.sleep.last = Some(sent.clone());
        }
        let events = reports.into_iter().flat_map(|(power, launch)| {
            // The site's service reports for a node that is switched off.
            let is_off = launch.site.as_ref().is_some_and(|site| site.asleep);
            let power = (!is_off).then_some(Event::PowerReported(power));
            power.into_iter().chain([Event::LaunchReported(launch)])
        });
        let events: Vec<Event> = match &mut self.faults {
            Some(faults) => faults.transmit(events),
            None => events.collect(),
        };
        // Every other time together, as the service delivers reports that have arrived meanwhile.
        if (self.now.as_us() / 1_000_000).is_multiple_of(2) {
            self.deliver(Event::Batch(events));
        } else {
            for event in events {
                self.deliver(event);
            }
        }
        // Distinct timestamps for reports within one second.
        self.now = self.now + Duration::from_micros(1);
    }
}

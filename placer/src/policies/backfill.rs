//! EASY backfilling: the schedule of a site without an energy-aware scheduler.
//!
//! Jobs start in order, exclusively, on the number of GPUs that they request, at default caps and clocks; nothing is
//! preempted. The first job that does not fit, the head of the queue, gets a reservation. A later job starts before
//! the head if that does not delay the reservation (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and
//! Feitelson, IEEE TPDS 12(6), 2001). Only the head has a reservation, as in EASY and unlike in conservative
//! backfilling. Slurm's `sched/backfill` has one for each job that it examines (`bf_max_job_test` in slurm.conf).
//!
//! * **Order.** Priority, then the priority of the site's scheduler where the trace has it, then arrival.
//! * **Time limits.** The policy knows the time limit of a job and not its end. A job without a limit has its owner's
//!   estimate, else the default limit of the policy. The limit counts from the last start, as in Slurm.
//! * **Expected ends.** A running job ends at its limit. One past its limit, and one that is stopping, ends after
//!   [`OVERDUE`]: a site's scheduler would have ended it, a trace has not.
//! * **Reservation.** The earliest of the expected ends at which first fit places the head on the GPUs that are free
//!   then. GPUs of nodes that are asleep count as free. Where no end suffices, as with unhealthy GPUs, there is no
//!   reservation.
//! * **Backfilling.** A later job starts by first fit if its limit ends before the reserved start. Otherwise it
//!   starts on the first GPUs without which the head still fits at the reserved start, where reserved or elsewhere.
//!
//! A backfilled job keeps the head's start possible at the reserved time, and a job that ends early only frees GPUs.
//! So the reserved start of a head never moves to a later time while every job keeps its limit and no GPU fails.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::bounds::DURATION_MAX;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::first_fit::{first_fit, first_fit_where, no_room};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::fifo::start_in_order;
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Service};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};

/// Default limit of a job without one: our own choice. In Slurm it is the partition's `DefaultTime`, else its
/// `MaxTime`.
const LIMIT_DEFAULT: Duration = Duration::from_hours(24);

/// Least default limit, Slurm's resolution of time limits.
const LIMIT_MIN: Duration = Duration::from_secs(60);

/// Expected rest of a job past its limit: Slurm kills a job's processes this long after its limit (`KillWait` in
/// slurm.conf, default 30 s).
const OVERDUE: Duration = Duration::from_secs(30);

/// EASY backfilling.
#[derive(Clone, Copy, Debug)]
pub struct Backfill {
    /// The limit of a job without one.
    limit_default: Duration,
}

impl Default for Backfill {
    fn default() -> Self {
        Self { limit_default: LIMIT_DEFAULT }
    }
}

impl Backfill {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "backfill",
        rule: "FIFO by priority; a later job starts first if, by time limits, it does not delay the head of the queue",
        source: "EASY: Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001",
        build: Build::Tuned {
            number: "time limit of a job without one, hours (24)",
            build: |hours| Box::new(hours.map_or_else(Self::default, Self::with_default_limit)),
        },
    };

    /// A job without a limit has this one, at least a minute.
    fn with_default_limit(hours: f64) -> Self {
        let limit = Duration::try_from_secs_f64(3_600.0 * hours).unwrap_or(DURATION_MAX);
        Self { limit_default: limit.clamp(LIMIT_MIN, DURATION_MAX) }
    }

    fn limit(&self, job: &Job) -> Duration {
        let known = job.facts.time_limit.or(job.facts.duration_alone);
        known.unwrap_or(self.limit_default).min(DURATION_MAX)
    }

    /// The expected end of a job that holds GPUs, or starts now.
    fn expected_end(&self, job: &Job, now: Timestamp) -> Timestamp {
        let end = match &job.state {
            State::Running { since, .. } => *since + self.limit(job),
            State::Queued => now + self.limit(job),
            State::Stopping { .. } => now,
        };
        if end > now { end } else { now + OVERDUE }
    }

    /// The GPUs that are held now, with the instant at which the last job on each is expected to end, in the order of
    /// these instants. `plan` has the jobs that start now.
    fn releases(&self, input: PlanningInput<'_>, plan: &Plan) -> Vec<Release> {
        let running = input.state.running();
        let running = running.filter_map(|(_, job)| Some((job, job.state.gpus()?)));
        let starting = plan.decisions.iter().filter_map(|decision| match decision {
            Decision::Start { job, on, .. } => Some((input.state.job(*job)?, on)),
            _ => None,
        });
        let end = |(job, on)| (self.expected_end(job, input.now()), on);
        let mut held: Vec<(Timestamp, &GpuSet)> = running.chain(starting).map(end).collect();
        // The latest first, so that a GPU with several jobs is free after the last of them.
        held.sort_by_key(|(end, _)| Reverse(*end));
        let mut seen = vec![0; input.state.nodes().len()];
        let mut releases = Vec::new();
        for (at, on) in held {
            for here in &on.by_node {
                let gpus = here.gpus & !seen[here.node.index()];
                seen[here.node.index()] |= gpus;
                if gpus != 0 {
                    releases.push(Release { at, node: here.node, gpus });
                }
            }
        }
        releases.reverse();
        releases
    }

    /// The reservation of `head`; `None` if no expected end frees enough GPUs.
    fn reserve<'a>(
        &self,
        input: PlanningInput<'a>,
        plan: &Plan,
        head: &'a Job,
    ) -> Option<Reservation<'a>> {
        let releases = self.releases(input, plan);
        let mut held = FreeCapacity::new(input.state, Scope::All);
        releases.iter().for_each(|release| held.take_on(release.node, release.gpus));
        let free_at = |at: Timestamp| {
            let mut free = held.clone();
            let released = releases.iter().take_while(|release| release.at <= at);
            released.for_each(|release| free.give_back_on(release.node, release.gpus));
            free
        };
        let fits = |at: Timestamp| first_fit(&free_at(at), head).is_some();
        // More GPUs are free at every later end.
        let at = if fits(input.now()) {
            input.now() + OVERDUE
        } else {
            let first = releases.partition_point(|release| !fits(release.at));
            releases.get(first)?.at
        };
        let free = free_at(at);
        let (on, _) = first_fit(&free, head)?;
        Some(Reservation { at, head, free, on })
    }
}

impl Policy for Backfill {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        let serves = Service::ByLimits { limit_default: self.limit_default };
        Capabilities { reads_time_limits: true, serves, ..Capabilities::default() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut capacity = FreeCapacity::new(input.state, Scope::Idle);
        let mut queue = in_order(input.state).into_iter();
        let Some((key, head)) = start_in_order(input, &mut queue, &mut capacity, &mut plan) else {
            return plan;
        };
        let mut reservation = self.reserve(input, &plan, head);
        let reserved_at = reservation.as_ref().map(|reservation| reservation.at);
        let mut free = capacity.type_counts().total();
        let mut passed_over = PassedOver::default();
        for (key, job) in queue {
            if free == 0 {
                break;
            }
            let end = input.now() + self.limit(job);
            let delaying = reservation.as_mut().filter(|reservation| reservation.at < end);
            let ends_before = delaying.is_none();
            if passed_over.has(job, ends_before) {
                continue;
            }
            let place = match &delaying {
                None => first_fit(&capacity, job),
                Some(reservation) => {
                    first_fit_where(&capacity, job, |on| reservation.without(on).is_some())
                }
            };
            let Some((on, _)) = place else {
                passed_over.add(job, ends_before);
                continue;
            };
            if let Some(reservation) = delaying {
                reservation.give_up(&on);
            }
            capacity.take(&on);
            free -= on.gpu_count();
            let head = head.facts.id.clone();
            let reason = Reason::Backfilled { head, reserved_at, ends_before };
            plan.decisions.push(Decision::start(key, on, reason));
        }
        plan.blocked = Some(Blocked { job: key, reason: waiting(&capacity, head, reserved_at) });
        plan
    }
}

/// The queue by priority, by the priority of the site's scheduler, and by arrival.
fn in_order(state: &ClusterState) -> Vec<(JobKey, &Job)> {
    let mut queue: Vec<(JobKey, &Job)> = state.queue().collect();
    // The order of arrival is kept.
    queue.sort_by_key(|(_, job)| (Reverse(job.facts.priority), Reverse(job.facts.site_priority)));
    queue
}

/// Why the head waits, with its reserved start.
fn waiting(capacity: &FreeCapacity<'_>, head: &Job, reserved: Option<Timestamp>) -> Reason {
    let mut reason = no_room(capacity, head, None);
    if let Reason::NoRoom { reserved_at, .. } = &mut reason {
        *reserved_at = reserved;
    }
    reason
}

/// GPUs of a node that become free.
struct Release {
    at: Timestamp,
    node: NodeKey,
    gpus: u64,
}

/// The reserved start of the head of the queue.
struct Reservation<'a> {
    at: Timestamp,
    head: &'a Job,
    /// The GPUs that are free at that instant, without those of jobs that start now and end later.
    free: FreeCapacity<'a>,
    /// Where first fit places the head on them.
    on: GpuSet,
}

impl Reservation<'_> {
    /// The GPUs of the head if these are not free at its start; `None` if it would start later.
    fn without(&self, gpus: &GpuSet) -> Option<GpuSet> {
        let is_reserved = |node: NodeKey| self.on.by_node.iter().any(|here| here.node == node);
        if !gpus.by_node.iter().any(|here| is_reserved(here.node)) {
            return Some(self.on.clone());
        }
        let mut free = self.free.clone();
        free.take(gpus);
        first_fit(&free, self.head).map(|(on, _)| on)
    }

    /// Gives up GPUs without which the head still fits.
    fn give_up(&mut self, gpus: &GpuSet) {
        if let Some(on) = self.without(gpus) {
            self.on = on;
        }
        self.free.take(gpus);
    }
}

/// The requests for which no GPUs were found. Free GPUs only become fewer in a round, so an equal request finds none.
#[derive(Default)]
struct PassedOver<'a> {
    /// Without room now.
    any: BTreeSet<Request<'a>>,
    /// Without room that the head does not need.
    delaying: BTreeSet<Request<'a>>,
}

/// Number, type and device memory of the requested GPUs.
type Request<'a> = (u32, Option<&'a str>, Option<u64>);

fn request_of(job: &Job) -> Request<'_> {
    (job.facts.request.min, job.facts.gpu_type.as_deref(), job.facts.memory_mib_max)
}

impl<'a> PassedOver<'a> {
    fn has(&self, job: &Job, ends_before: bool) -> bool {
        let request = request_of(job);
        self.any.contains(&request) || (!ends_before && self.delaying.contains(&request))
    }

    fn add(&mut self, job: &'a Job, ends_before: bool) {
        let requests = if ends_before { &mut self.any } else { &mut self.delaying };
        requests.insert(request_of(job));
    }
}

//! What elastic policies begin with: whose size is open, whose is not, and how many GPUs there are.
//!
//! A job's size is open where its surface says what sizes give. A running job of which nothing is
//! known keeps what it has, and a waiting one gets the least it asks for, in the order of arrival,
//! before anything is shared out: it must run to be known.

use std::collections::BTreeMap;

use wattle_common::job::GpuSetting;

use crate::allocation::first_fit::{never, suits_some};
use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::is_unmeasured;
use crate::state::operating_points::{OperatingPoint, OperatingPoints};

/// A job whose size is open.
pub(crate) struct Contender<'a> {
    pub(crate) key: JobKey,
    pub(crate) job: &'a Job,
    pub(crate) menu: &'a OperatingPoints,
    /// It runs and cannot stop: its size stands.
    pub(crate) held: Option<u32>,
}

impl<'a> Contender<'a> {
    /// Its choices with so many GPUs.
    pub(crate) fn with_gpus(&self, gpus: u32) -> &'a [OperatingPoint] {
        if self.held.is_some_and(|held| held != gpus) { &[] } else { self.menu.with_gpus(gpus) }
    }
    /// The sizes it may have, ascending.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u32> {
        self.menu.sizes().filter(|&gpus| self.held.is_none_or(|held| held == gpus))
    }
}

/// Everybody, and the room for those whose size is open.
pub(crate) struct Contest<'a> {
    /// Those that run and cannot stop first, then all others, each in the order of arrival.
    pub(crate) jobs: Vec<Contender<'a>>,
    /// Targets that stand whatever is shared out.
    pub(crate) fixed: Vec<Target>,
    /// GPUs left of each kind, awake or asleep.
    pub(crate) room: BTreeMap<&'a str, u32>,
    /// Jobs that can never be placed.
    pub(crate) rejected: Vec<Decision>,
}

impl<'a> Contest<'a> {
    pub(crate) fn of(input: PlanningInput<'a>) -> Self {
        let mut room: BTreeMap<&str, u32> = BTreeMap::new();
        for node in input.state.nodes() {
            *room.entry(&node.facts.gpu_type).or_default() += node.facts.healthy.count_ones();
        }
        let mut contest = Self { jobs: Vec::new(), fixed: Vec::new(), room, rejected: Vec::new() };
        // By arrival alone, so that a job stopped to go on elsewhere counts as it did before.
        let mut all: Vec<(JobKey, &Job)> =
            input.state.running().chain(input.state.queue()).collect();
        let stands = |job: &Job| matches!(job.state, State::Running { .. }) && !job.facts.can_stop;
        all.sort_by_key(|(_, job)| (!stands(job), job.arrival));
        for (key, job) in all {
            contest.add(input, key, job);
        }
        contest
    }

    fn add(&mut self, input: PlanningInput<'a>, key: JobKey, job: &'a Job) {
        let running = match &job.state {
            State::Running { on, setting, .. } => Some((on, *setting)),
            // It stops to wait: the GPUs it holds a little longer are others' already.
            State::Stopping { .. } if job.next_gpus.is_none() => return,
            // It stops to go on elsewhere, and counts as if it did: what was shared out is so again.
            State::Stopping { .. } | State::Queued => None,
        };
        if job.state == State::Queued
            && let Some(reason) = never(input.state, job)
        {
            self.rejected.push(Decision::Reject { job: key, reason });
            return;
        }
        let menu = menu(input, job).filter(|menu| {
            !menu.choices().is_empty() && self.room.contains_key(menu.gpu_type.as_str())
        });
        let held = running.filter(|_| !job.facts.can_stop).map(|(on, _)| on.gpu_count());
        if let Some(menu) = menu
            && held.is_none_or(|held| !menu.with_gpus(held).is_empty())
        {
            self.jobs.push(Contender { key, job, menu, held });
            return;
        }
        // Nothing is known of it: what it has, or the least it asks for.
        let (gpus, kind, setting) = match running {
            Some((on, setting)) => {
                let kind = input.state.node(on.by_node[0].node).facts.gpu_type.clone();
                (on.gpu_count(), kind, setting)
            }
            None => {
                let next = job.next_kind.as_deref().map(str::to_owned);
                let kinds = self.room.iter().filter(|(kind, _)| suits_some(input.state, job, kind));
                let most = || kinds.max_by_key(|(_, left)| **left).map(|(kind, _)| *kind);
                let kind = next.unwrap_or_else(|| most().unwrap_or_default().to_owned());
                (job.next_gpus.unwrap_or(job.facts.request.min), kind, GpuSetting::DEFAULT)
            }
        };
        let Some(left) = self.room.get_mut(kind.as_str()).filter(|left| **left >= gpus) else {
            return;
        };
        *left -= gpus;
        let reason = Reason::Share { gpus };
        self.fixed.push(Target { jobs: vec![key], gpus, kind, setting, reason });
    }

    /// The plan of these targets beside the fixed ones.
    pub(crate) fn plan(
        mut self,
        input: PlanningInput<'_>,
        shared_out: Vec<Target>,
        before: u32,
    ) -> Plan {
        let targets = self.targets(input, shared_out);
        self.arranged(input, &targets, before)
    }

    /// These targets beside the fixed ones.
    pub(crate) fn targets(
        &mut self,
        input: PlanningInput<'_>,
        shared_out: Vec<Target>,
    ) -> Vec<Target> {
        let mut targets = std::mem::take(&mut self.fixed);
        targets.extend(shared_out);
        // Who was never measured is first looked at as the site sets its cards.
        for target in &mut targets {
            let mut jobs = target.jobs.iter().filter_map(|&job| input.state.job(job));
            if jobs.any(is_unmeasured) {
                target.setting = GpuSetting::DEFAULT;
            }
        }
        targets
    }

    /// The plan of all targets.
    pub(crate) fn arranged(
        self,
        input: PlanningInput<'_>,
        targets: &[Target],
        before: u32,
    ) -> Plan {
        let mut plan = crate::allocation::transition::plan_transition(
            input,
            targets,
            &Reason::Outranked { before },
        );
        plan.decisions.extend(self.rejected);
        plan
    }
}

/// The menu that counts before kinds are chosen: of the GPUs the job has or goes on with, else of
/// those it was first spoken of, else of any that are there.
fn menu<'a>(input: PlanningInput<'_>, job: &'a Job) -> Option<&'a OperatingPoints> {
    if let Some(kind) = job.next_kind.as_deref().or_else(|| input.state.gpu_type_of(job)) {
        return job.menu_on(kind);
    }
    let mut menus = job.menus().map(|menu| &**menu).filter(|menu| !menu.choices().is_empty());
    menus.find(|menu| suits_some(input.state, job, &menu.gpu_type))
}

//! What a decision changes, for the job and for others, against what it replaces.
//!
//! | decision | is compared with |
//! |---|---|
//! | start on fewer GPUs than permitted | the largest size that its surface has, at the default setting, once that many GPUs are free |
//! | start beside other jobs | waiting for as many GPUs of its own |
//! | start at another setting than the default, on the largest size | the default setting |
//! | another setting | the setting before |
//! | stop, undone placement | keeping its GPUs |
//!
//! The job's end and energy at another setting or size follow from its operating points and its remaining work. Where
//! GPUs change hands, or are free sooner or later by another setting, two forecasts are compared, one of the plan and
//! one with the job elsewhere: their difference is when the job ends and when the queued jobs start. The assumptions
//! are those of the expected times ([`crate::expected`]).
//!
//! A forecast takes time in proportion to the number of jobs, so that a round makes as many as [`JOBS_MAX`] permits;
//! those of other settings come last.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;
use wattle_common::messages::{Consequence, MovedJobs};
use wattle_common::time::span_s;

use super::outlook::{Elsewhere, Scheduled, Settings, running_end, scheduled};
use crate::pipeline::StageReports;
use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::plan::{Decision, Plan};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::Job;
use crate::state::job_forecast::remaining_work;

/// Most jobs in all forecasts of a round: about 10 µs of processor time for each.
const JOBS_MAX: usize = 4_000;
/// Smaller changes of a start or an end are not counted, s.
const MOVED_LEAST_S: f64 = 60.0;

/// A decision beside what it replaces, as the state before the plan shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compared {
    consequence: Consequence,
    /// Where the job is without the decision; absent: on the same GPUs.
    instead: Option<Elsewhere>,
    /// The cost of the restart, if it returns to the queue by the decision.
    restart_s: Option<f64>,
    /// The jobs on the same GPUs, and when they end without it.
    tenants: Vec<(JobKey, Timestamp)>,
}

/// The decisions of a plan that replace something. `state`: the state before the plan.
pub(crate) fn compared(state: &ClusterState, plan: &Plan) -> BTreeMap<JobKey, Compared> {
    let decisions = plan.decisions.iter();
    decisions.filter_map(|decision| Some((decision.job(), one(state, decision)?))).collect()
}

fn one(state: &ClusterState, decision: &Decision) -> Option<Compared> {
    let job = state.job(decision.job())?;
    match decision {
        Decision::Start { on, setting, .. } => start(state, decision.job(), job, on, *setting),
        Decision::Set { setting, .. } => {
            let (on, before) = (job.state.gpus()?, job.setting()?);
            let work = RemainingWork::of(state, job, on)?;
            let shared = !tenants(state, decision.job(), on).is_empty();
            let gpus = on.gpu_count();
            let own = work.difference((gpus, *setting), (gpus, before))?;
            let mut compared = Compared::own(setting_text(before), own.unless_shared(shared));
            compared.instead = Some(Elsewhere::Holds { until: running_end(state, job) });
            Some(compared)
        }
        Decision::Stop { next_gpus, .. } => {
            let on = job.state.gpus()?;
            let setting = job.setting()?;
            let gpus = on.gpu_count();
            let work = RemainingWork::of(state, job, on);
            let own = next_gpus.and_then(|next| {
                let shared = !tenants(state, decision.job(), on).is_empty();
                let next = (next, GpuSetting::DEFAULT);
                Some(work?.difference(next, (gpus, setting))?.unless_shared(shared))
            });
            Some(keeping(state, job, own.unwrap_or_default()))
        }
        Decision::Undo { .. } => Some(keeping(state, job, Difference::default())),
        Decision::Confirm { .. } | Decision::Reject { .. } => None,
    }
}

fn keeping(state: &ClusterState, job: &Job, own: Difference) -> Compared {
    let gpus = job.state.gpus().map_or(0, GpuSet::gpu_count);
    let mut compared = Compared::own("staying on its GPUs".to_owned(), own);
    compared.instead = Some(Elsewhere::Holds { until: running_end(state, job) });
    compared.restart_s = Some(state.restart_cost(job, gpus).as_secs_f64());
    compared
}

fn start(
    state: &ClusterState,
    key: JobKey,
    job: &Job,
    on: &GpuSet,
    setting: GpuSetting,
) -> Option<Compared> {
    let work = RemainingWork::of(state, job, on)?;
    let gpus = on.gpu_count();
    let beside = tenants(state, key, on);
    if !beside.is_empty() {
        let run_time = span_s(work.time_s(gpus, GpuSetting::DEFAULT)?);
        let of_its_own = format!("{} of its own", gpus_text(gpus));
        let mut compared = Compared::own(of_its_own, Difference::default());
        compared.instead = Some(Elsewhere::First { gpus, run_time });
        let end = |key| Some((key, running_end(state, state.job(key)?)));
        compared.tenants = beside.into_iter().filter_map(end).collect();
        return Some(compared);
    }
    let largest = work.points.sizes().max().filter(|largest| *largest > gpus);
    if let Some(largest) = largest {
        let own = work.difference((gpus, setting), (largest, GpuSetting::DEFAULT))?;
        let mut compared = Compared::own(gpus_text(largest), own);
        let run_time = span_s(work.time_s(largest, GpuSetting::DEFAULT)?);
        compared.instead = Some(Elsewhere::First { gpus: largest, run_time });
        return Some(compared);
    }
    if setting.is_default() {
        return None;
    }
    let own = work.difference((gpus, setting), (gpus, GpuSetting::DEFAULT))?;
    let mut compared = Compared::own(setting_text(GpuSetting::DEFAULT), own);
    let run_time = span_s(work.time_s(gpus, GpuSetting::DEFAULT)?);
    compared.instead = Some(Elsewhere::Holds { until: state.now() + run_time });
    Some(compared)
}

/// The jobs that share GPUs with `key` on these GPUs.
fn tenants(state: &ClusterState, key: JobKey, on: &GpuSet) -> Vec<JobKey> {
    let all = on.gpus().flat_map(|(node, gpu)| state.node(node).tenants(gpu).iter().copied());
    let mut tenants: Vec<JobKey> = all.filter(|tenant| *tenant != key).collect();
    tenants.sort_unstable();
    tenants.dedup();
    tenants
}

fn gpus_text(gpus: u32) -> String {
    format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" })
}

fn setting_text(setting: GpuSetting) -> String {
    if setting.is_default() { "the default setting".to_owned() } else { setting.to_string() }
}

/// The job's own end and energy, relative to those without the decision.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    end_later_s: Option<f64>,
    energy_more_j: Option<f64>,
}

impl Difference {
    /// Other jobs draw a part of the power of shared GPUs.
    fn unless_shared(self, shared: bool) -> Self {
        Self { energy_more_j: self.energy_more_j.filter(|_| !shared), ..self }
    }
}

/// The remaining work of a job, with its operating points on one type of GPUs.
#[derive(Clone, Copy)]
struct RemainingWork<'a> {
    points: &'a crate::OperatingPoints,
    steps: f64,
}

impl<'a> RemainingWork<'a> {
    fn of(state: &'a ClusterState, job: &'a Job, on: &GpuSet) -> Option<Self> {
        let (first, _) = on.gpus().next()?;
        let points = job.operating_points_on(&state.node(first).facts.gpu_type)?;
        let unit = points.unit_rate()?;
        let steps = remaining_work(state, job, unit).left_s * unit;
        Some(Self { points, steps })
    }

    /// The time for the work at a size and setting, s.
    fn time_s(self, gpus: u32, setting: GpuSetting) -> Option<f64> {
        let rate = self.points.point(gpus, setting)?.steps_per_s;
        (rate > 0.0).then(|| self.steps / rate)
    }

    /// The energy of its GPUs for the work, J.
    fn energy_j(self, gpus: u32, setting: GpuSetting) -> Option<f64> {
        let watts = self.points.point(gpus, setting)?.gpu_power_w * f64::from(gpus);
        Some(watts * self.time_s(gpus, setting)?)
    }

    fn difference(self, new: (u32, GpuSetting), old: (u32, GpuSetting)) -> Option<Difference> {
        let time_s = self.time_s(new.0, new.1)? - self.time_s(old.0, old.1)?;
        let energy_j = self.energy_j(new.0, new.1)? - self.energy_j(old.0, old.1)?;
        Some(Difference { end_later_s: Some(time_s), energy_more_j: Some(energy_j) })
    }
}

impl Compared {
    /// Whether the job ends later by the decision itself.
    pub(crate) fn is_slower(&self) -> Option<bool> {
        self.consequence.end_later_s.map(|later_s| later_s > 0.0)
    }

    /// Whether the job has the same GPUs without the decision, at another setting.
    const fn keeps_gpus(&self) -> bool {
        matches!(self.instead, Some(Elsewhere::Holds { .. })) && self.restart_s.is_none()
    }

    fn own(in_place_of: String, own: Difference) -> Self {
        let Difference { end_later_s, energy_more_j } = own;
        let consequence =
            Consequence { in_place_of, end_later_s, energy_more_j, ..Consequence::default() };
        Self { consequence, instead: None, restart_s: None, tenants: Vec::new() }
    }
}

/// The consequences of the compared decisions. `input`: the state after the plan.
pub(crate) fn consequences(
    input: PlanningInput<'_>,
    can: Capabilities,
    reports: &StageReports,
    compared: BTreeMap<JobKey, Compared>,
) -> BTreeMap<JobKey, Consequence> {
    let state = input.state;
    let mut forecasts_left = JOBS_MAX / state.job_count().max(1);
    let mut with_plan = None;
    let mut found = BTreeMap::new();
    let mut compared: Vec<(JobKey, Compared)> = compared.into_iter().collect();
    compared.sort_by_key(|(_, of)| of.keeps_gpus());
    let has_queue = state.queue().next().is_some();
    for (key, of) in compared {
        let keeps_gpus = of.keeps_gpus();
        let Compared { mut consequence, instead, restart_s, tenants } = of;
        // Without a queue no other job moves by another setting.
        let instead = instead.filter(|_| has_queue || !keeps_gpus);
        let ends = tenants.into_iter().filter_map(|(tenant, before)| {
            Some(seconds_later(running_end(state, state.job(tenant)?), before))
        });
        consequence.tenants_later = moved(ends.filter(|later_s| *later_s >= MOVED_LEAST_S));
        if let Some(instead) = instead.filter(|_| forecasts_left > 0) {
            forecasts_left -= 1;
            let forecast = |of| by_job(scheduled(input, can, reports, of, Settings::Planned));
            let without = forecast(Some((key, instead)));
            if let Some(restart_s) = restart_s {
                let with_plan = forecast(Some((key, Elsewhere::Returns)));
                // The plan has GPUs for a job that continues, which a forecast may give to others.
                let continues_s = consequence.end_later_s;
                add_forecast(&mut consequence, key, &with_plan, &without);
                let end_later_s = continues_s.or(consequence.end_later_s);
                consequence.end_later_s = end_later_s.map(|later_s| later_s + restart_s);
            } else {
                let with_plan = with_plan.get_or_insert_with(|| forecast(None));
                let by_points_s = consequence.end_later_s.filter(|_| keeps_gpus);
                add_forecast(&mut consequence, key, with_plan, &without);
                consequence.end_later_s = by_points_s.or(consequence.end_later_s);
            }
            if without.get(&key).and_then(|(start, _)| *start).is_some_and(|at| at > input.now()) {
                consequence.in_place_of = format!("waiting for {}", consequence.in_place_of);
            }
        }
        found.insert(key, consequence);
    }
    found
}

type Times = BTreeMap<JobKey, (Option<Timestamp>, Option<Timestamp>)>;

fn by_job(all: Vec<Scheduled>) -> Times {
    all.into_iter().map(|one| (one.job, (one.start, one.end.map(|(end, _)| end)))).collect()
}

/// When the job ends and the queued jobs start, against a forecast with the job elsewhere.
fn add_forecast(of: &mut Consequence, key: JobKey, with_plan: &Times, without: &Times) {
    let end = |times: &Times| times.get(&key).and_then(|(_, end)| *end);
    // The forecast holds what the job waits for its GPUs, which its operating points do not.
    of.end_later_s = match (end(with_plan), end(without)) {
        (Some(with_plan), Some(without)) => Some(seconds_later(with_plan, without)),
        _ => None,
    };
    let others = with_plan.iter().filter(|(job, _)| **job != key);
    let later_s: Vec<f64> = others
        .filter_map(|(job, (start, _))| Some(seconds_later((*start)?, without.get(job)?.0?)))
        .collect();
    let of_sign = |sign: f64| {
        moved(later_s.iter().map(|later_s| sign * later_s).filter(|s| *s >= MOVED_LEAST_S))
    };
    (of.queued_later, of.queued_sooner) = (of_sign(1.0), of_sign(-1.0));
}

/// The number of moves and their mean; `None`: there are none.
fn moved(by_s: impl Iterator<Item = f64>) -> Option<MovedJobs> {
    let (jobs, sum) = by_s.fold((0_u32, 0.0), |(jobs, sum), one| (jobs + 1, sum + one));
    (jobs > 0).then(|| MovedJobs { jobs, by_s: sum / f64::from(jobs) })
}

/// By how much `a` is after `b`, s; negative: before.
fn seconds_later(a: Timestamp, b: Timestamp) -> f64 {
    a.since(b).as_secs_f64() - b.since(a).as_secs_f64()
}

//! Which GPU type each job gets from an elastic policy on a cluster with several types.
//!
//! The published policies know one type; everything here is our own choice. The policy states the value
//! of a number of GPUs of a type to a job, on a scale on which differences are relative gains (the
//! logarithm of speed, less the price times that of energy). Jobs are assigned to types so that the
//! sum of values is greatest if the jobs on a type share its GPUs equally ([`assignment`]). A job that
//! gains more from the fast GPUs gets them, and jobs do not crowd onto one type while another is idle.
//!
//! * A queued job gets the type on which the sum of values grows most, in arrival order. Then single
//!   jobs move and pairs of jobs swap as long as the sum grows.
//! * A running job moves only if it gains more than the cost of its restart
//!   ([`crate::state::restarts`]), spread over an hour or the rest of its run. A job that cannot stop, that
//!   has not settled ([`crate::allocation::settling`]) or that is on its way to a type does not move.
//! * Running jobs keep their GPUs as long as the other jobs find some of another type.
//! * A job without room gets GPUs of a type for which it has no surface, if there are some: only a run
//!   can measure it there.
//!
//! The policy itself decides how many GPUs of its type a job gets.

mod assignment;
mod value_curve;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use wattle_common::job::GpuSetting;

use crate::allocation::feasibility::some_node_suits;
use crate::allocation::settling::{SIZE_LASTS_S, is_held, restart_cost};
use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::policies::elastic::{ElasticJob, Sizing};
use crate::policies::gpu_type_assignment::assignment::{Assignment, Candidate};
use crate::policies::gpu_type_assignment::value_curve::ValueCurve;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;
use crate::state::operating_points::OperatingPoints;

/// The greatest cost of a move, as a share of the job's progress during that time.
const MOVE_COST_MAX: f64 = 0.5;

/// The value of a number of GPUs to a job with these operating points.
pub type Value<'v> = dyn Fn(&OperatingPoints, u32) -> Option<f64> + 'v;

/// Sets each job's operating points to those of its type. Returns the jobs without room on any type.
pub fn assign_types<'a>(
    input: PlanningInput<'a>,
    sizing: &mut Sizing<'a>,
    value: &Value<'_>,
) -> BTreeSet<JobKey> {
    assign(input, sizing, value, false)
}

/// The same for a policy under which all jobs compete for GPUs and some may wait: every job is
/// assigned, as if the jobs on a type took turns where it is short.
pub(crate) fn assign_types_by_turns<'a>(
    input: PlanningInput<'a>,
    sizing: &mut Sizing<'a>,
    value: &Value<'_>,
) {
    // A job without operating points on any type of the cluster keeps those it has.
    let _ = assign(input, sizing, value, true);
}

fn assign<'a>(
    input: PlanningInput<'a>,
    sizing: &mut Sizing<'a>,
    value: &Value<'_>,
    by_turns: bool,
) -> BTreeSet<JobKey> {
    let types: Vec<(&str, u32)> = sizing.free.by_name().into_iter().collect();
    if types.len() < 2 {
        return BTreeSet::new();
    }
    let mut assignment = Assignment {
        gpus: types.iter().map(|(_, gpus)| *gpus).collect(),
        candidates: candidates(input, &sizing.jobs, &types, value),
        by_turns,
    };
    assignment.admit();
    assignment.improve();
    carry_out(input, sizing, &types, &assignment)
}

fn candidates(
    input: PlanningInput<'_>,
    jobs: &[ElasticJob<'_>],
    types: &[(&str, u32)],
    value: &Value<'_>,
) -> Vec<Candidate> {
    let mut known: BTreeMap<(*const OperatingPoints, Option<u32>), Option<Rc<ValueCurve>>> =
        BTreeMap::new();
    let candidate = |elastic: &ElasticJob<'_>| {
        let (job, fixed_size) = (elastic.job, elastic.fixed_size);
        let home = job.next_gpu_type.as_deref().or_else(|| input.state.gpu_type_of(job));
        let home = home.and_then(|home| types.iter().position(|(name, _)| *name == home));
        let curves = types.iter().enumerate().map(|(index, (name, _))| {
            if !some_node_suits(input.state, job, name)
                || fixed_size.is_some() && home != Some(index)
            {
                return None;
            }
            let points = job.operating_points_on(name)?;
            let sizes = points.sizes().filter(|gpus| fixed_size.is_none_or(|size| size == *gpus));
            known
                .entry((std::ptr::from_ref(points), fixed_size))
                .or_insert_with(|| ValueCurve::of(points, sizes, value).map(Rc::new))
                .clone()
        });
        let curves = curves.collect();
        let (may_move, move_cost) = move_cost(input, job);
        Candidate { curves, home, may_move, move_cost, at: None }
    };
    jobs.iter().map(candidate).collect()
}

/// Whether a job may move to another type, and the cost of the move.
fn move_cost(input: PlanningInput<'_>, job: &Job) -> (bool, f64) {
    let State::Running { on, .. } = &job.state else {
        // Either on its way to a type, or free to choose.
        return (job.next_gpu_type.is_none(), 0.0);
    };
    if !job.facts.can_stop || is_held(input, job) {
        return (false, 0.0);
    }
    let left = remaining_alone(input.now(), job, on.gpu_count(), on.node_count());
    let stay_s = left.map_or(SIZE_LASTS_S, |left| left.as_secs_f64().clamp(1.0, SIZE_LASTS_S));
    let restart_s = restart_cost(input, job, on.gpu_count()).as_secs_f64();
    let share = (restart_s / stay_s).min(MOVE_COST_MAX);
    (true, -(1.0 - share).ln())
}

/// Sets the operating points of the assigned jobs. A job without room goes to a type for which it has no
/// surface, or is returned.
fn carry_out<'a>(
    input: PlanningInput<'a>,
    sizing: &mut Sizing<'a>,
    types: &[(&str, u32)],
    assignment: &Assignment,
) -> BTreeSet<JobKey> {
    let mut spare = assignment.spare();
    let mut used = vec![0; types.len()];
    let mut without_room = BTreeSet::new();
    let jobs = std::mem::take(&mut sizing.jobs);
    for (mut elastic, candidate) in jobs.into_iter().zip(&assignment.candidates) {
        let mut has_room = false;
        if let Some((at, curve)) = candidate.at.and_then(|at| Some((at, candidate.on(at)?)))
            && let Some(points) = elastic.job.operating_points_on(types[at].0)
        {
            elastic.points = points;
            used[at] += curve.least;
            // If not all jobs of the type can run at once, the later ones may wait.
            has_room = used[at] <= assignment.gpus[at];
        }
        if has_room {
            sizing.jobs.push(elastic);
            continue;
        }
        let (key, job, gpus) = (elastic.key, elastic.job, elastic.job.facts.request.min);
        let may_choose = job.state == State::Queued && job.next_gpu_type.is_none();
        let unknown = (0..types.len()).find(|&index| {
            may_choose
                && candidate.curves[index].is_none()
                && spare[index] >= gpus
                && some_node_suits(input.state, job, types[index].0)
        });
        match unknown {
            Some(index) => {
                spare[index] -= gpus;
                let gpu_type = types[index].0.to_owned();
                sizing.free.take(&gpu_type, gpus);
                let (setting, reason) = (GpuSetting::DEFAULT, Reason::Share { gpus });
                sizing.fixed.push(Target { jobs: vec![key], gpus, gpu_type, setting, reason });
            }
            None => {
                if candidate.at.is_none() {
                    without_room.insert(key);
                }
                sizing.jobs.push(elastic);
            }
        }
    }
    without_room
}

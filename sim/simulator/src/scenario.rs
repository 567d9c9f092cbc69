//! What is simulated: jobs, a cluster, a seed.
//!
//! A trace says how long its jobs ran, not what they computed. Where it names a model that the
//! catalog has, the job is that workload; any other model, and a job without one, gets a workload
//! from the catalog's mix, drawn with the seed and named in the outcome; runs of the same thing get
//! the same one. Policies that read profiles are told the workload's name as if the owner had
//! declared it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use wattle_common::job::GpuRequest;
use wattle_common::rng::Stream;
use wattle_common::topology::ClusterShape;
use wattle_common::{JobId, WorkloadId};
use wattle_world::{Tenant, Workload, World};

use crate::carbon::CarbonSeries;
use crate::text::{pluralize, sanitize};
use crate::trace::{DeadlineKind, Trace, TraceJob};

/// How much a job has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// So long, at its first placement, alone.
    Lasts(Duration),
    /// So many steps, each as long as the world says.
    Steps(u64),
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct SimJob {
    /// Its id.
    pub id: JobId,
    /// When it is submitted, from the beginning.
    pub submit: Duration,
    /// How many GPUs it asks for.
    pub gpus: GpuRequest,
    /// What it is, as the catalog calls it.
    pub workload: WorkloadId,
    /// How much it has to do.
    pub work: Work,
    /// Steps in its epoch, where it differs from the workload's.
    pub steps_per_epoch: Option<u64>,
    /// When it must be done, from the beginning.
    pub deadline: Option<Duration>,
    /// How long its owner lets it wait in all for a cleaner grid.
    pub slack: Option<Duration>,
    /// How long its owner says it takes alone.
    pub duration_estimate: Option<Duration>,
    /// Never to share a GPU.
    pub exclusive: bool,
    /// Who has more is served first.
    pub priority: u8,
    /// The kind of GPU it must have.
    pub gpu_type: Option<String>,
    /// Whether it can checkpoint and stop.
    pub can_stop: bool,
}

/// Jobs of one workload in a scenario, and why they are of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkloadShare {
    /// The catalog's workload.
    pub workload: WorkloadId,
    /// How many jobs.
    pub jobs: usize,
    /// What the trace calls their model; absent where it says nothing.
    pub model: Option<String>,
    /// Whether the seed chose it, since the catalog does not have the model.
    pub drawn: bool,
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The trace's name.
    pub trace: String,
    /// The cluster.
    pub cluster: ClusterShape,
    /// The jobs, by submission.
    pub jobs: Vec<SimJob>,
    /// Carbon intensity, where one is given.
    pub carbon: Option<CarbonSeries>,
    /// What somebody says of it beforehand, where a budget is to be held by that.
    pub day_ahead: Option<CarbonSeries>,
    /// Every random draw follows from it.
    pub seed: u64,
    /// Which workloads the jobs are.
    pub workloads: Vec<WorkloadShare>,
    /// What a reader should know of the input.
    pub notes: Vec<String>,
    /// The GPU time that the jobs ask for alone, of the cluster's from the first arrival to the
    /// last; `None` where all arrive at once.
    pub load: Option<f64>,
}

/// Why a trace cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The trace names a workload that the catalog does not have.
    #[error(
        "job {job}: no workload `{workload}` in the catalog; leave the cell empty, or use one of {known}"
    )]
    UnknownWorkload {
        /// The job.
        job: JobId,
        /// What it asks for.
        workload: String,
        /// What there is.
        known: String,
    },
    /// The cluster has GPUs that the catalog does not have.
    #[error("no GPU `{kind}` in the catalog; use one of {known}")]
    UnknownGpu {
        /// The kind.
        kind: String,
        /// What there is.
        known: String,
    },
    /// The catalog has no workload that fits the cluster's cards.
    #[error("the catalog has no workload in its mix that fits the cards' memory")]
    NoMix,
}

impl Scenario {
    /// The jobs of `trace` on `cluster`.
    ///
    /// # Errors
    /// Where trace or cluster name what the catalog does not have.
    pub fn from_trace(
        world: &World,
        trace: &Trace,
        cluster: &ClusterShape,
        seed: u64,
    ) -> Result<Self, ScenarioError> {
        let mix = fitting_mix(world, cluster)?;
        let mut stream = Stream::new(seed, "workloads");
        let mut drawn_for: BTreeMap<(bool, &str), &Workload> = BTreeMap::new();
        let mut shares: BTreeMap<(bool, Option<&str>, &str), usize> = BTreeMap::new();
        let mut jobs = Vec::with_capacity(trace.jobs.len());
        for job in &trace.jobs {
            let mut draw = || stream.pick(&mix).copied().ok_or(ScenarioError::NoMix);
            let model = job.model.as_deref();
            // One model is one workload, however often it comes, and so is what recurs.
            let same = model.map(|model| (true, model));
            let same = same.or(job.recurs_as.as_deref().map(|name| (false, name)));
            let named = named(world, cluster, job)?;
            let (workload, drawn) = match (named, same) {
                (Some(workload), _) => (workload, false),
                (None, Some(same)) => match drawn_for.get(&same) {
                    Some(workload) => (*workload, true),
                    None => (*drawn_for.entry(same).or_insert(draw()?), true),
                },
                (None, None) => (draw()?, true),
            };
            *shares.entry((drawn, model, workload.id.as_str())).or_default() += 1;
            let measured = job.measured_as.as_ref();
            let measured = measured.filter(|(id, _)| *id == workload.id.as_str());
            let steps = job.iterations.filter(|_| {
                let of_batch = |id: &String| *id == workload.id.as_str();
                job.batch.is_some() && ids_of_batch(cluster, job).iter().any(of_batch)
            });
            jobs.push(SimJob {
                id: job.id.clone(),
                submit: job.submit,
                gpus: GpuRequest::exactly(job.gpus),
                workload: workload.id.clone(),
                work: measured
                    .map(|(_, steps)| *steps)
                    .or(steps)
                    .map_or(Work::Lasts(job.duration), Work::Steps),
                steps_per_epoch: None,
                deadline: job.deadline,
                slack: None,
                // Who sets a deadline knows how long the job takes.
                duration_estimate: job.deadline.map(|_| job.duration),
                exclusive: false,
                priority: 0,
                gpu_type: asked_kind(cluster, job),
                can_stop: true,
            });
        }
        let share = |((drawn, model, id), jobs): ((bool, Option<&str>, &str), usize)| {
            let workload = world.workload(id)?.id.clone();
            Some(WorkloadShare { workload, jobs, model: model.map(str::to_owned), drawn })
        };
        let mut notes: Vec<String> = trace.notes.iter().map(ToString::to_string).collect();
        notes.extend(not_heeded(trace, cluster));
        let mut scenario = Self {
            trace: trace.name.clone(),
            cluster: cluster.clone(),
            jobs,
            carbon: None,
            day_ahead: None,
            seed,
            workloads: shares.into_iter().filter_map(share).collect(),
            notes,
            load: None,
        };
        scenario.load = scenario.offered_load(world);
        Ok(scenario)
    }
}

/// The kind of GPU the job asks for, as the cluster calls it, where that has it.
fn asked_kind(cluster: &ClusterShape, job: &TraceJob) -> Option<String> {
    let asked = job.gpu_type.as_deref()?;
    let mut kinds = cluster.groups().iter().map(|group| &group.gpu_type);
    kinds.find(|kind| kind.eq_ignore_ascii_case(asked)).cloned()
}

/// What the trace asks for and nothing here heeds.
fn not_heeded(trace: &Trace, cluster: &ClusterShape) -> Vec<String> {
    let mut notes = Vec::new();
    let there = |kind: &str| cluster.groups().iter().any(|g| g.gpu_type.eq_ignore_ascii_case(kind));
    let other = |job: &&TraceJob| job.gpu_type.as_deref().is_some_and(|kind| !there(kind));
    let others = trace.jobs.iter().filter(other).count();
    if others > 0 {
        let kinds: BTreeSet<&str> =
            trace.jobs.iter().filter(other).filter_map(|job| job.gpu_type.as_deref()).collect();
        let kinds = kinds.into_iter().map(sanitize).collect::<Vec<_>>().join(", ");
        notes.push(format!(
            "{} had GPUs that {cluster} does not have ({kinds}), taken to last as long on its own",
            pluralize(others, "job")
        ));
    }
    let soft = |job: &&TraceJob| job.deadline_kind == DeadlineKind::Soft && job.deadline.is_some();
    let soft = trace.jobs.iter().filter(soft).count();
    if soft > 0 {
        notes.push(format!(
            "{} with a soft deadline, which is held like a strict one",
            pluralize(soft, "job")
        ));
    }
    notes
}

/// What the catalog may call a job of this model and batch, the likeliest first.
fn ids_of_batch(cluster: &ClusterShape, job: &TraceJob) -> Vec<String> {
    let Some(model) = &job.model else { return Vec::new() };
    let Some(batch) = job.batch else { return vec![model.clone()] };
    let plain = format!("{model}-b{batch}");
    let kinds = cluster.groups().iter().map(|group| group.gpu_type.as_str());
    let of_kind = kinds.chain(["a100"]).map(|kind| format!("{plain}-{kind}"));
    of_kind.chain([plain.clone()]).collect()
}

/// The workload that a job names, outright or by its model, where the catalog has it.
fn named<'w>(
    world: &'w World,
    cluster: &ClusterShape,
    job: &TraceJob,
) -> Result<Option<&'w Workload>, ScenarioError> {
    if let Some(id) = &job.workload {
        let known = || world.workloads().map(|w| w.id.as_str()).collect::<Vec<_>>().join(", ");
        return world.workload(id).map(Some).ok_or_else(|| ScenarioError::UnknownWorkload {
            job: job.id.clone(),
            workload: sanitize(id),
            known: known(),
        });
    }
    let measured = job.measured_as.as_ref().and_then(|(id, _)| world.workload(id));
    if measured.is_some() {
        return Ok(measured);
    }
    let of_batch = ids_of_batch(cluster, job).into_iter().find_map(|id| world.workload(&id));
    Ok(of_batch.or_else(|| world.workload_for_model(job.model.as_deref()?)))
}

/// The catalog's mix, as far as one job of it fits every card of the cluster.
fn fitting_mix<'w>(
    world: &'w World,
    cluster: &ClusterShape,
) -> Result<Vec<&'w Workload>, ScenarioError> {
    let mut gpus = Vec::new();
    for group in cluster.groups() {
        gpus.push(world.gpu(&group.gpu_type).ok_or_else(|| ScenarioError::UnknownGpu {
            kind: group.gpu_type.clone(),
            known: world.gpus().map(|gpu| gpu.gpu_type.as_str()).collect::<Vec<_>>().join(", "),
        })?);
    }
    let alone = |workload| [Tenant { workload, gpus: 1, nodes: 1 }];
    let mix: Vec<&Workload> =
        world.mix().filter(|w| gpus.iter().all(|gpu| world.fits(gpu, &alone(w)))).collect();
    if mix.is_empty() { Err(ScenarioError::NoMix) } else { Ok(mix) }
}

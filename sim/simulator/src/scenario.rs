//! The input of a simulation: jobs, a cluster, a seed.
//!
//! A trace contains the duration of its jobs, but often no workload. A job whose model is in the
//! catalog has that workload. Any other job gets a workload from the catalog's mix, drawn with the
//! seed and listed in the outcome; recurring jobs get the same workload. The predictor receives the
//! workload's name as if the owner had declared it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use wattle_common::feeders::FeederTree;
use wattle_common::gpu_type::{gpu_type_of, variants_of};
use wattle_common::job::{Flexibility, GpuRequest};
use wattle_common::rng::Stream;
use wattle_common::topology::ClusterShape;
use wattle_common::{JobId, WorkloadId};
use wattle_world::{SPEED_ERROR, Tenant, Workload, World};

use crate::carbon::CarbonSeries;
use crate::price::PriceSeries;
use crate::text::{pluralize, sanitize};
use crate::trace::{DeadlineKind, Trace, TraceJob};

/// A job's amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Run time at its first placement without co-tenants.
    Lasts(Duration),
    /// Number of steps; the world determines their rate.
    Steps(u64),
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct SimJob {
    /// Its id.
    pub id: JobId,
    /// Submission time, from the start.
    pub submit: Duration,
    /// Requested GPUs.
    pub gpus: GpuRequest,
    /// Its workload in the catalog.
    pub workload: WorkloadId,
    /// Its amount of work.
    pub work: Work,
    /// Steps per epoch, where they differ from the workload's.
    pub steps_per_epoch: Option<u64>,
    /// Deadline, from the start.
    pub deadline: Option<Duration>,
    /// Longest total delay for a cleaner grid.
    pub slack: Option<Duration>,
    /// The owner's estimate of its run time without co-tenants.
    pub duration_estimate: Option<Duration>,
    /// The time limit of a run, where the trace states it. A policy that reads limits receives drawn ones for the other
    /// jobs ([`crate::time_limits`]).
    pub time_limit: Option<Duration>,
    /// The priority that the site's scheduler gave it, which only `backfill` reads; 0 if unknown.
    pub site_priority: u32,
    /// Whether it must not share a GPU.
    pub exclusive: bool,
    /// Priority; higher is served first.
    pub priority: u8,
    /// The required GPU type.
    pub gpu_type: Option<String>,
    /// Its project: the account, or the user where the trace names no account.
    pub project: Option<Arc<str>>,
    /// Whether it can be preempted.
    pub can_stop: bool,
    /// What it gives up during a grid event.
    pub flexibility: Option<Flexibility>,
}

/// The largest size of a job whose sizes are open ([`Scenario::open_sizes`]): that of ElasticFlow's measurements.
pub const OPEN_GPUS_MAX: u32 = 64;

impl SimJob {
    /// A job that can be preempted, on exactly this number of GPUs of any type, without deadline, estimate or limit.
    #[must_use]
    pub const fn new(
        id: JobId,
        submit: Duration,
        gpus: u32,
        workload: WorkloadId,
        work: Work,
    ) -> Self {
        Self {
            id,
            submit,
            gpus: GpuRequest::exactly(gpus),
            workload,
            work,
            steps_per_epoch: None,
            deadline: None,
            slack: None,
            duration_estimate: None,
            time_limit: None,
            site_priority: 0,
            exclusive: false,
            priority: 0,
            gpu_type: None,
            project: None,
            can_stop: true,
            flexibility: None,
        }
    }
}

/// Jobs of one workload in a scenario, and the workload's origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkloadShare {
    /// The catalog's workload.
    pub workload: WorkloadId,
    /// Number of jobs.
    pub jobs: usize,
    /// Their model in the trace, where it names one.
    pub model: Option<String>,
    /// Whether it was drawn with the seed, since the catalog does not have the model.
    pub drawn: bool,
}

/// The input of a simulation.
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
    /// A day-ahead forecast of it, where budgets use one.
    pub day_ahead: Option<CarbonSeries>,
    /// The feeders and the nodes on them; empty: the power of no feeder is limited.
    pub feeders: FeederTree,
    /// Electricity prices, where they are given. They change no decision.
    pub prices: Option<PriceSeries>,
    /// The seed of all random draws.
    pub seed: u64,
    /// The jobs' workloads.
    pub workloads: Vec<WorkloadShare>,
    /// Notes on the input.
    pub notes: Vec<String>,
    /// Offered load ([`Scenario::offered_load`]); `None` where all jobs arrive at once.
    pub load: Option<f64>,
}

/// Why a scenario is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The trace names an unknown workload.
    #[error(
        "job {job}: unknown workload `{workload}`; leave the cell empty, or use one of {known}"
    )]
    UnknownWorkload {
        /// The job.
        job: JobId,
        /// The workload.
        workload: String,
        /// The known ones.
        known: String,
    },
    /// The cluster has an unknown GPU type.
    #[error("unknown GPU type `{gpu_type}`; use one of {known}")]
    UnknownGpu {
        /// The GPU type.
        gpu_type: String,
        /// The known ones.
        known: String,
    },
    /// No workload of the mix fits the cluster's GPUs.
    #[error("no workload of the catalog's mix fits the GPUs' memory")]
    NoMix,
}

impl Scenario {
    /// Lets every job run on any power of two of GPUs, up to 64 or the size that it requests. One that cannot stop keeps the
    /// size that it gets first.
    pub fn open_sizes(&mut self) {
        for job in &mut self.jobs {
            let whole = 1 << job.gpus.min.max(1).ilog2();
            job.gpus = GpuRequest { min: 1, max: OPEN_GPUS_MAX.max(whole) };
        }
    }

    /// These jobs, in the order of their submission, on a cluster without feeders, carbon intensity and prices.
    #[must_use]
    pub fn new(trace: &str, cluster: ClusterShape, jobs: Vec<SimJob>, seed: u64) -> Self {
        Self {
            trace: trace.to_owned(),
            cluster,
            jobs,
            carbon: None,
            day_ahead: None,
            feeders: FeederTree::default(),
            prices: None,
            seed,
            workloads: Vec::new(),
            notes: Vec::new(),
            load: None,
        }
    }

    /// The jobs of `trace` on `cluster`.
    ///
    /// # Errors
    /// Where the trace or the cluster names an unknown workload or GPU type.
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
            // All jobs of a model, and all runs of a recurring job, have one workload.
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
            let work = measured.map(|(_, steps)| *steps).or(steps);
            let work = work.map_or(Work::Lasts(job.duration), Work::Steps);
            let id = job.id.clone();
            jobs.push(SimJob {
                deadline: job.deadline,
                // A deadline implies that the owner knows the run time.
                duration_estimate: job.deadline.map(|_| job.duration),
                time_limit: job.time_limit,
                site_priority: job.site_priority,
                gpu_type: job.gpu_type.as_deref().and_then(|name| type_in(cluster, name)).cloned(),
                project: job.project().map(Arc::from),
                can_stop: job.can_checkpoint.unwrap_or(true),
                ..SimJob::new(id, job.submit, job.gpus, workload.id.clone(), work)
            });
        }
        let share = |((drawn, model, id), jobs): ((bool, Option<&str>, &str), usize)| {
            let workload = world.workload(id)?.id.clone();
            Some(WorkloadShare { workload, jobs, model: model.map(str::to_owned), drawn })
        };
        let mut notes: Vec<String> = trace.notes.iter().map(ToString::to_string).collect();
        notes.extend(ignored_requests(trace, cluster));
        notes.extend(derived_types(world, cluster));
        let mut scenario = Self {
            workloads: shares.into_iter().filter_map(share).collect(),
            notes,
            ..Self::new(&trace.name, cluster.clone(), jobs, seed)
        };
        scenario.load = scenario.offered_load(world);
        Ok(scenario)
    }
}

/// The cluster's name of a GPU type as the trace names it (`nvidia_a100-sxm4-80gb`), where the
/// cluster has it; a variant (`a100-40gb`) also matches its type (`a100`), and the reverse.
fn type_in<'c>(cluster: &'c ClusterShape, named: &str) -> Option<&'c String> {
    let find = |name: &str| {
        let mut gpu_types = cluster.groups().iter().map(|group| &group.gpu_type);
        gpu_types.find(|own| own.eq_ignore_ascii_case(name))
    };
    let variants = || variants_of(named).iter().find_map(|variant| find(variant));
    let base = || {
        let base = gpu_type_of(named);
        let mut gpu_types = cluster.groups().iter().map(|group| &group.gpu_type);
        gpu_types.find(|own| gpu_type_of(own) == base)
    };
    find(named).or_else(variants).or_else(base)
}

/// A note on each GPU type of the cluster whose response to caps and clocks was not measured.
fn derived_types(world: &World, cluster: &ClusterShape) -> Vec<String> {
    let types: BTreeSet<&str> = cluster.groups().iter().map(|g| g.gpu_type.as_str()).collect();
    let note = |gpu_type: &str| {
        let from = world.gpu(gpu_type)?.derived_from.as_ref()?;
        let [(low, low_error), (high, high_error), ..] = SPEED_ERROR;
        Some(format!(
            "{gpu_type} is derived from {from} by data-sheet ratios, not measured: speed under a cap \
             or clock within {:.0} % at {:.0} % of active power or more, {:.0} % at {:.0} %",
            100.0 * high_error,
            100.0 * high,
            100.0 * low_error,
            100.0 * low
        ))
    };
    types.into_iter().filter_map(note).collect()
}

/// Notes on properties of the trace that the simulation ignores.
fn ignored_requests(trace: &Trace, cluster: &ClusterShape) -> Vec<String> {
    let mut notes = Vec::new();
    let other = |job: &&TraceJob| {
        job.gpu_type.as_deref().is_some_and(|name| type_in(cluster, name).is_none())
    };
    let others = trace.jobs.iter().filter(other).count();
    if others > 0 {
        let kinds: BTreeSet<&str> =
            trace.jobs.iter().filter(other).filter_map(|job| job.gpu_type.as_deref()).collect();
        let kinds = kinds.into_iter().map(sanitize).collect::<Vec<_>>().join(", ");
        notes.push(format!(
            "{} ran on GPUs that {cluster} does not have ({kinds}); the same run time is used",
            pluralize(others, "job")
        ));
    }
    let soft = |job: &&TraceJob| job.deadline_kind == DeadlineKind::Soft && job.deadline.is_some();
    let soft = trace.jobs.iter().filter(soft).count();
    if soft > 0 {
        notes.push(format!(
            "{} with a soft deadline, treated as a strict one",
            pluralize(soft, "job")
        ));
    }
    notes
}

/// Possible workload ids of a job with this model and batch, most specific first.
fn ids_of_batch(cluster: &ClusterShape, job: &TraceJob) -> Vec<String> {
    let Some(model) = &job.model else { return Vec::new() };
    let Some(batch) = job.batch else { return vec![model.clone()] };
    let plain = format!("{model}-b{batch}");
    let kinds = cluster.groups().iter().map(|group| group.gpu_type.as_str());
    let of_kind = kinds.chain(["a100"]).map(|kind| format!("{plain}-{kind}"));
    of_kind.chain([plain.clone()]).collect()
}

/// The workload that a job names, by id or by model, where the catalog has it.
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

/// The workloads of the catalog's mix that fit every GPU type of the cluster.
fn fitting_mix<'w>(
    world: &'w World,
    cluster: &ClusterShape,
) -> Result<Vec<&'w Workload>, ScenarioError> {
    let mut gpus = Vec::new();
    for group in cluster.groups() {
        gpus.push(world.gpu(&group.gpu_type).ok_or_else(|| ScenarioError::UnknownGpu {
            gpu_type: group.gpu_type.clone(),
            known: world.gpus().map(|gpu| gpu.gpu_type.as_str()).collect::<Vec<_>>().join(", "),
        })?);
    }
    let alone = |workload| [Tenant { workload, gpus: 1, nodes: 1 }];
    let mix: Vec<&Workload> =
        world.mix().filter(|w| gpus.iter().all(|gpu| world.fits(gpu, &alone(w)))).collect();
    if mix.is_empty() { Err(ScenarioError::NoMix) } else { Ok(mix) }
}

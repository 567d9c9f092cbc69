//! Replay of the schedule that a trace records: every job runs from its recorded start to its
//! recorded end.
//!
//! The replay makes no decision. A job runs for its duration between its start and its end; for the rest it was
//! suspended, and its GPUs draw idle power or run another job ([`timeline`]). Jobs run at default caps and clocks without co-tenants, all nodes
//! are awake, and the world determines the power, as in a simulation. A job runs on the nodes that the
//! trace names, where they have enough free GPUs. Otherwise the replay chooses its GPUs by first fit:
//! on the first node with enough free GPUs of the requested type, or on the nodes with the most free
//! GPUs. The choice has no effect on the times, and a small one on energy: the number of nodes of a
//! job changes its power.
//!
//! A recorded schedule that uses more GPUs at one instant than the cluster has is an error, since the
//! cluster is then not the one on which the trace was recorded.

mod site;
mod timeline;

use wattle_common::{JobId, NodeId};
use wattle_placer::NodeKey;
use wattle_world::{Workload, World};

use crate::detail::{Detail, JobOutcome, NodeOutcome};
use crate::gpus::Gpus;
use crate::meter::Meter;
use crate::outcome::{seconds, us};
use crate::scenario::{Scenario, ScenarioError};
use crate::simulation::SimulationError;
use crate::text::pluralize;
use crate::trace::{Trace, TraceJob};

/// A replayed schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Energy of the cluster from the first submission to the last recorded end, kWh.
    pub energy_kwh: f64,
    /// Energy of the GPUs above idle power, kWh.
    pub energy_kwh_above_idle: f64,
    /// Emissions, kg; `None` without a carbon series.
    pub carbon_kg: Option<f64>,
    /// Cost of the energy, in the currency of the prices; `None` without prices.
    pub cost: Option<f64>,
    /// From the first submission to the last recorded end, s.
    pub makespan_s: f64,
    /// Jobs and nodes.
    pub detail: Detail,
    /// Notes on the schedule.
    pub notes: Vec<String>,
}

/// Why a recorded schedule cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The world lacks an entry.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The world lacks a workload.
    #[error(transparent)]
    Workload(#[from] Box<SimulationError>),
    /// The recorded schedule exceeds the cluster.
    #[error(
        "the recorded schedule uses {used} GPUs at once when job {job} starts, {day:.1} days after \
         the first submission, and the cluster {cluster} has {gpus}; name the cluster that ran the jobs, with at \
         least {peak} GPUs, in --cluster, or export times in seconds (SLURM_TIME_FORMAT=%s) if the site's clocks \
         changed"
    )]
    TooManyGpus {
        /// The job that exceeds it.
        job: JobId,
        /// When it starts, days after the first submission.
        day: f64,
        /// GPUs in use, the job's included.
        used: u64,
        /// The greatest number of GPUs in use at any instant of the schedule.
        peak: u64,
        /// The cluster.
        cluster: String,
        /// Its GPUs.
        gpus: u64,
    },
}

/// Whether every job of a trace has a recorded start and end.
#[must_use]
pub fn is_recorded(trace: &Trace) -> bool {
    !trace.jobs.is_empty() && trace.jobs.iter().all(|job| span_us(job).is_some())
}

/// Recorded start and end of a job, microseconds.
fn span_us(job: &TraceJob) -> Option<(u64, u64)> {
    let (from, until) = (us(job.started?), us(job.ended?));
    (until > from).then_some((from, until))
}

/// Replays the schedule that `trace` records. `scenario` holds its jobs in the trace's order; jobs
/// without a recorded start and end are left out.
///
/// # Errors
/// If the schedule uses more GPUs than the cluster has, or the world lacks an entry.
pub fn replay(world: &World, scenario: &Scenario, trace: &Trace) -> Result<Replay, ReplayError> {
    let (workloads, indices) = workloads(world, scenario)?;
    let mut hardware = Gpus::new(world, &scenario.cluster, workloads)?;
    let start_us = scenario.jobs.iter().map(|job| us(job.submit)).min().unwrap_or(0);
    check(scenario, trace, start_us)?;
    let mut meter = Meter::starting(start_us, scenario);
    let made = timeline::run(scenario, trace, &indices, &mut hardware, |at_us, hardware| {
        meter.advance(at_us.max(start_us), hardware);
    });
    let makespan_us = made.until_us.saturating_sub(start_us);
    let jobs = scenario.jobs.iter().zip(&trace.jobs).zip(&made.runs);
    let jobs = jobs.map(|((job, traced), run)| {
        let span = span_us(traced);
        let s = |us: u64| seconds(us as f64);
        JobOutcome {
            id: job.id.clone(),
            gpus: job.gpus.min,
            // A job that was held may start at the second before it became eligible.
            submit_s: s(us(job.submit).min(span.map_or(u64::MAX, |(from, _)| from))),
            start_s: span.map(|(from, _)| s(from)),
            end_s: span.map(|(_, until)| s(until)),
            on_gpus_s: s(run.ran_us),
            energy_kwh: run.above_idle_mw_us / 3.6e15,
        }
    });
    let nodes = scenario.cluster.nodes().enumerate().map(|(i, (gpus, gpu_type))| NodeOutcome {
        id: NodeId::new(&format!("n{i}")).expect("a letter and digits are an id"),
        gpu_type: gpu_type.to_owned(),
        gpus,
        awake_s: seconds(makespan_us as f64),
        asleep_s: 0.0,
        awake_w: hardware.idle_w(NodeKey::at(i)),
        asleep_w: world.gpu(gpu_type).map_or(0.0, |gpu| gpu.sleep.power.as_w()),
    });
    let left_out = trace.jobs.iter().filter(|job| span_us(job).is_none()).count();
    let suspended = trace.jobs.iter().filter(|job| !job.suspended().is_zero()).count();
    let notes = [
        (made.other_type, "replayed on another GPU type, as theirs had no free GPU"),
        (made.divided, "replayed on more nodes than needed, as no node had room"),
        (left_out, "without a recorded start and end, not replayed"),
        (
            suspended,
            "suspended for a part of the recorded run, which the trace does not place: replayed as running \
             where the GPUs were free, and idle otherwise",
        ),
        (made.short, "suspended for longer than recorded, as other jobs had the GPUs"),
    ];
    let notes = notes.into_iter().filter(|(jobs, _)| *jobs > 0);
    let notes = notes.map(|(jobs, what)| format!("{} {what}", pluralize(jobs, "job"))).collect();
    Ok(Replay {
        energy_kwh: meter.energy_kwh(),
        energy_kwh_above_idle: meter.energy_kwh_above_idle(),
        carbon_kg: meter.carbon_kg(),
        cost: meter.cost(),
        makespan_s: seconds(makespan_us as f64),
        detail: Detail { jobs: jobs.collect(), nodes: nodes.collect() },
        notes,
    })
}

/// The workloads of the scenario's jobs, and the index of each job's.
fn workloads<'w>(
    world: &'w World,
    scenario: &Scenario,
) -> Result<(Vec<&'w Workload>, Vec<u32>), ReplayError> {
    let mut workloads: Vec<&Workload> = Vec::new();
    let mut indices = Vec::with_capacity(scenario.jobs.len());
    for job in &scenario.jobs {
        let known = workloads.iter().position(|known| known.id == job.workload);
        indices.push(match known {
            Some(index) => index as u32,
            None => {
                let unknown = || {
                    let (job, workload) = (job.id.clone(), job.workload.clone());
                    Box::new(SimulationError::UnknownWorkload { job, workload })
                };
                workloads.push(world.workload(job.workload.as_str()).ok_or_else(unknown)?);
                workloads.len() as u32 - 1
            }
        });
    }
    Ok((workloads, indices))
}

/// Verifies that the schedule fits the cluster at every instant. A suspended job leaves its GPUs to others, so it
/// only has to fit alone.
fn check(scenario: &Scenario, trace: &Trace, start_us: u64) -> Result<(), ReplayError> {
    let gpus = scenario.cluster.gpu_count() as u64;
    let mut instants = Vec::with_capacity(2 * trace.jobs.len());
    let jobs = scenario.jobs.iter().zip(&trace.jobs);
    for (job, (simulated, traced)) in jobs.enumerate() {
        let Some((from_us, until_us)) = span_us(traced) else { continue };
        // At the same instant ends come first, so that recorded seconds suffice.
        if traced.suspended().is_zero() {
            instants.extend([(from_us, true, job), (until_us, false, job)]);
        } else if u64::from(simulated.gpus.min) > gpus {
            instants.extend([(from_us, true, job), (from_us, false, job)]);
        }
    }
    instants.sort_unstable();
    let (mut used, mut peak, mut first) = (0_u64, 0, None);
    for (at_us, starts, job) in instants {
        let job = &scenario.jobs[job];
        if !starts {
            used = used.saturating_sub(u64::from(job.gpus.min));
            continue;
        }
        used += u64::from(job.gpus.min);
        peak = peak.max(used);
        if used > gpus && first.is_none() {
            let day = at_us.saturating_sub(start_us) as f64 / 8.64e10;
            first = Some((job.id.clone(), day, used));
        }
    }
    let Some((job, day, used)) = first else { return Ok(()) };
    let cluster = scenario.cluster.to_string();
    Err(ReplayError::TooManyGpus { job, day, used, peak, cluster, gpus })
}

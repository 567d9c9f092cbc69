//! Replay of the schedule that a trace records: every job runs from its recorded start to its
//! recorded end.
//!
//! The replay makes no decision. Jobs run at default caps and clocks without co-tenants, all nodes
//! are awake, and the world determines the power, as in a simulation. A job runs on the nodes that the
//! trace names, where they have enough free GPUs. Otherwise the replay chooses its GPUs by first fit:
//! on the first node with enough free GPUs of the requested type, or on the nodes with the most free
//! GPUs. The choice has no effect on the times, and a small one on energy: the number of nodes of a
//! job changes its power.
//!
//! A recorded schedule that uses more GPUs at one instant than the cluster has is an error, since the
//! cluster is then not the one on which the trace was recorded.

use std::collections::BTreeMap;

use wattle_common::{JobId, NodeId};
use wattle_placer::{GpuSet, NodeGpus, NodeKey};
use wattle_world::{Workload, World};

use crate::detail::{Detail, JobOutcome, NodeOutcome};
use crate::gpus::{Gpus, Shape};
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
         the first submission, and the cluster {cluster} has {gpus}; name a cluster with at least \
         {peak} GPUs in --cluster"
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

/// A start or an end. Ends come before starts at the same instant, so that recorded seconds suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Instant {
    at_us: u64,
    starts: bool,
    job: usize,
}

/// Replays the schedule that `trace` records. `scenario` holds its jobs in the trace's order; jobs
/// without a recorded start and end are left out.
///
/// # Errors
/// If the schedule uses more GPUs than the cluster has, or the world lacks an entry.
pub fn replay(world: &World, scenario: &Scenario, trace: &Trace) -> Result<Replay, ReplayError> {
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
    let mut hardware = Gpus::new(world, &scenario.cluster, workloads)?;
    let start_us = scenario.jobs.iter().map(|job| us(job.submit)).min().unwrap_or(0);
    let mut instants = Vec::with_capacity(2 * trace.jobs.len());
    for (job, traced) in trace.jobs.iter().enumerate() {
        let Some((from_us, until_us)) = span_us(traced) else { continue };
        instants.push(Instant { at_us: from_us, starts: true, job });
        instants.push(Instant { at_us: until_us, starts: false, job });
    }
    instants.sort_unstable();
    let mut site = Site {
        nodes: scenario.cluster.nodes().map(|(gpus, kind)| (ones(gpus), kind.to_owned())).collect(),
        on: vec![None; scenario.jobs.len()],
        size: scenario.cluster.nodes().map(|(gpus, _)| gpus).max().unwrap_or(0),
        index_of: node_indices(scenario, trace),
        other_type: 0,
        divided: 0,
    };
    check(scenario, &instants, start_us)?;

    let mut meter = Meter::starting(start_us, scenario);
    // Above-idle power of each running job, mW; it does not change while the job runs.
    let mut power_mw = vec![0.0; scenario.jobs.len()];
    let mut changed = Vec::new();
    for instant in &instants {
        meter.advance(instant.at_us.max(start_us), &hardware);
        let job = &scenario.jobs[instant.job];
        if instant.starts {
            let names = &trace.jobs[instant.job].node_names;
            let on = site.place_on(names, job.gpus.min);
            let on = on.unwrap_or_else(|| site.place(job.gpus.min, job.gpu_type.as_deref()));
            let shape: Shape = (indices[instant.job], on.gpu_count(), on.node_count());
            hardware.add(instant.job as u32, shape, &on, &mut changed);
            power_mw[instant.job] = hardware.above_idle_mw_of(&on);
            site.on[instant.job] = Some(on);
        } else if let Some(on) = site.release(instant.job) {
            hardware.remove(instant.job as u32, &on, &mut changed);
        }
        changed.clear();
    }
    let makespan_us = instants.last().map_or(0, |last| last.at_us.saturating_sub(start_us));
    let jobs = scenario.jobs.iter().zip(&trace.jobs).zip(&power_mw);
    let jobs = jobs.map(|((job, traced), power_mw)| {
        let span = span_us(traced);
        let s = |us: u64| seconds(us as f64);
        let on_us = span.map_or(0, |(from, until)| until - from);
        JobOutcome {
            id: job.id.clone(),
            gpus: job.gpus.min,
            // A job that was held may start at the second before it became eligible.
            submit_s: s(us(job.submit).min(span.map_or(u64::MAX, |(from, _)| from))),
            start_s: span.map(|(from, _)| s(from)),
            end_s: span.map(|(_, until)| s(until)),
            on_gpus_s: s(on_us),
            energy_kwh: power_mw * on_us as f64 / 3.6e15,
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
    let mut notes = Vec::new();
    if site.other_type > 0 {
        let jobs = pluralize(site.other_type, "job");
        notes.push(format!("{jobs} replayed on another GPU type, as theirs had no free GPU"));
    }
    if site.divided > 0 {
        let jobs = pluralize(site.divided, "job");
        notes.push(format!("{jobs} replayed on more nodes than needed, as no node had room"));
    }
    let left_out = trace.jobs.iter().filter(|job| span_us(job).is_none()).count();
    if left_out > 0 {
        let jobs = pluralize(left_out, "job");
        notes.push(format!("{jobs} without a recorded start and end, not replayed"));
    }
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

/// The node of the cluster for each host name of the trace: in the order of the names, the first node
/// of the GPU type of its jobs that has no name yet. A name beyond the cluster has no node.
fn node_indices(scenario: &Scenario, trace: &Trace) -> BTreeMap<String, usize> {
    let mut types: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (job, traced) in scenario.jobs.iter().zip(&trace.jobs) {
        for name in &traced.node_names {
            let known = types.entry(name).or_default();
            *known = known.or(job.gpu_type.as_deref());
        }
    }
    let mut free: Vec<(usize, &str)> =
        scenario.cluster.nodes().map(|(_, gpu_type)| gpu_type).enumerate().collect();
    let mut indices = BTreeMap::new();
    for (name, gpu_type) in types {
        let fits = |(_, own): &(usize, &str)| gpu_type.is_none_or(|gpu_type| gpu_type == *own);
        if let Some(at) = free.iter().position(fits) {
            indices.insert(name.to_owned(), free.remove(at).0);
        }
    }
    indices
}

/// Verifies that the schedule fits the cluster at every instant.
fn check(scenario: &Scenario, instants: &[Instant], start_us: u64) -> Result<(), ReplayError> {
    let gpus = scenario.cluster.gpu_count() as u64;
    let (mut used, mut peak, mut first) = (0_u64, 0, None);
    for instant in instants {
        let job = &scenario.jobs[instant.job];
        if !instant.starts {
            used -= u64::from(job.gpus.min);
            continue;
        }
        used += u64::from(job.gpus.min);
        peak = peak.max(used);
        if used > gpus && first.is_none() {
            let day = instant.at_us.saturating_sub(start_us) as f64 / 8.64e10;
            first = Some((job.id.clone(), day, used));
        }
    }
    let Some((job, day, used)) = first else { return Ok(()) };
    let cluster = scenario.cluster.to_string();
    Err(ReplayError::TooManyGpus { job, day, used, peak, cluster, gpus })
}

/// The free GPUs of each node, and the GPUs of each running job.
struct Site {
    /// Free GPUs as bits, and the GPU type.
    nodes: Vec<(u64, String)>,
    on: Vec<Option<GpuSet>>,
    /// GPUs of the largest node.
    size: u32,
    /// Node of the cluster by the trace's name for it.
    index_of: BTreeMap<String, usize>,
    /// Number of jobs on another GPU type than requested.
    other_type: usize,
    /// Number of jobs on more nodes than they need.
    divided: usize,
}

impl Site {
    /// Free GPUs on the named nodes, as evenly as possible; `None` where they have too few.
    fn place_on(&mut self, names: &[String], gpus: u32) -> Option<GpuSet> {
        let mut nodes: Vec<usize> =
            names.iter().map(|name| self.index_of.get(name).copied()).collect::<Option<_>>()?;
        nodes.sort_unstable();
        nodes.dedup();
        let count = u32::try_from(nodes.len()).ok().filter(|count| *count > 0)?;
        let share = |i: u32| gpus / count + u32::from(i < gpus % count);
        let room = |(i, node): (u32, &usize)| self.nodes[*node].0.count_ones() >= share(i);
        if gpus < count || !(0..).zip(&nodes).all(room) {
            return None;
        }
        let mut set = GpuSet::default();
        for (i, node) in (0..).zip(nodes) {
            let taken = lowest(self.nodes[node].0, share(i));
            self.nodes[node].0 &= !taken;
            set.by_node.push(NodeGpus { node: NodeKey::at(node), gpus: taken });
        }
        Some(set)
    }

    /// Free GPUs for a job; the schedule was verified to fit.
    fn place(&mut self, gpus: u32, gpu_type: Option<&str>) -> GpuSet {
        let free = |(bits, _): &(u64, String)| bits.count_ones();
        let is_type = |kind: &str| gpu_type.is_none_or(|requested| requested == kind);
        let of_type = |typed: bool| {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter(move |(_, node)| !typed || is_type(&node.1))
        };
        let typed = of_type(true).map(|(_, node)| free(node)).sum::<u32>() >= gpus;
        self.other_type += usize::from(!typed);
        let one = of_type(typed).find(|(_, node)| free(node) >= gpus).map(|(i, _)| i);
        let mut divided = false;
        let order: Vec<usize> = match one {
            Some(node) => vec![node],
            None => {
                let mut nodes: Vec<usize> = of_type(typed).map(|(i, _)| i).collect();
                nodes.sort_by_key(|&i| std::cmp::Reverse(free(&self.nodes[i])));
                divided = gpus <= self.size;
                nodes
            }
        };
        self.divided += usize::from(divided);
        let mut set = GpuSet::default();
        let mut missing = gpus;
        for i in order {
            let taken = lowest(self.nodes[i].0, missing);
            if taken == 0 {
                continue;
            }
            self.nodes[i].0 &= !taken;
            set.by_node.push(NodeGpus { node: NodeKey::at(i), gpus: taken });
            missing -= taken.count_ones();
            if missing == 0 {
                break;
            }
        }
        set
    }

    fn release(&mut self, job: usize) -> Option<GpuSet> {
        let on = self.on[job].take()?;
        for part in &on.by_node {
            self.nodes[part.node.index()].0 |= part.gpus;
        }
        Some(on)
    }
}

/// The lowest `count` of these bits; all where they are fewer.
fn lowest(bits: u64, count: u32) -> u64 {
    let (mut rest, mut taken) = (bits, 0);
    for _ in 0..count.min(bits.count_ones()) {
        let lowest = rest & rest.wrapping_neg();
        taken |= lowest;
        rest &= !lowest;
    }
    taken
}

/// The lowest `count` bits.
const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

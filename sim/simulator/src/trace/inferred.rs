//! The cluster of a trace, inferred from the nodes and GPUs of its jobs.
//!
//! 1. Nodes: those in the jobs' node lists (Slurm's `NodeList`). Without node lists, as many as hold
//!    the most GPUs in use at once.
//! 2. Groups: nodes with the same name before the first number (`gpu` of `gpu07`) and the same GPU
//!    type have the same number of GPUs.
//! 3. GPUs per node: the largest allocation on one node of the group, by one job or by all jobs at
//!    one time. A job of several nodes has its GPUs as evenly as possible. A suspended job does
//!    not count towards the GPUs in use at one time. Nodes that had fewer in use are named.
//! 4. GPU type of a node: that of most GPU time of its jobs with a type; else that of the other
//!    nodes with the same name before the number; else the one that a partition or the node name
//!    contains (`a100` in `gpu-a100`); else the only type of the trace.
//!
//! Every assumption is listed with the cluster. A node without a job in the trace is not counted, so
//! idle energy is a lower bound.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::datasheet;
use wattle_common::gpu_type::gpu_type_of;
use wattle_common::topology::{ClusterShape, GPUS_PER_NODE_MAX, NodeGroup, ShapeError};
use wattle_world::World;

use super::{Trace, TraceJob};
use crate::text::{pluralize, sanitize};

/// A cluster, and the assumptions it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct InferredCluster {
    /// The cluster.
    pub shape: ClusterShape,
    /// How it was inferred, one sentence each.
    pub assumptions: Vec<String>,
    /// GPU type of each node by its name; empty without node lists.
    pub gpu_types: BTreeMap<String, String>,
}

/// Why a cluster cannot be inferred.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    /// The trace has neither node lists nor recorded starts.
    #[error("{trace} does not name its nodes; give the cluster with --cluster, as in 28x8:v100")]
    NoNodes {
        /// The trace.
        trace: String,
    },
    /// The GPU type of some nodes is unknown.
    #[error(
        "{trace} does not name the GPU type of {nodes}; give the cluster with --cluster \
         {suggestion}, where TYPE is one of {known}"
    )]
    NoType {
        /// The trace.
        trace: String,
        /// The nodes.
        nodes: String,
        /// The cluster without the type.
        suggestion: String,
        /// The types of the catalog.
        known: String,
    },
    /// The catalog lacks a GPU type.
    #[error(
        "the catalog has no GPU type `{gpu_type}`; give a cluster of similar GPUs with --cluster \
         {suggestion}, where TYPE is one of {known}"
    )]
    UnknownType {
        /// The type in the trace.
        gpu_type: String,
        /// The cluster with `TYPE` in its place.
        suggestion: String,
        /// The types of the catalog.
        known: String,
    },
    /// More GPUs were in use at once than the named nodes had.
    #[error(
        "the nodes that {trace} names had {gpus} GPUs in use, and all its jobs {most} at once: some jobs lack their \
         nodes; give the cluster, of at least {most} GPUs, with --cluster"
    )]
    Contradicted {
        /// The trace.
        trace: String,
        /// GPUs of the named nodes.
        gpus: u64,
        /// GPUs in use at once.
        most: u64,
    },
    /// The counts are not those of a cluster.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

impl InferredCluster {
    /// Gives each job without a GPU type that of the nodes it ran on, if the cluster has several
    /// types. Returns the number of jobs.
    pub fn assign_types(&self, trace: &mut Trace) -> usize {
        let several = self.gpu_types.values().collect::<BTreeSet<_>>().len() > 1;
        let mut assigned = 0;
        for job in trace.jobs.iter_mut().filter(|job| several && job.gpu_type.is_none()) {
            job.gpu_type =
                job.node_names.first().and_then(|node| self.gpu_types.get(node)).cloned();
            assigned += usize::from(job.gpu_type.is_some());
        }
        assigned
    }
}

/// The cluster of `trace`.
///
/// # Errors
/// [`InferError`], each with the remedy.
pub fn infer(world: &World, trace: &Trace) -> Result<InferredCluster, InferError> {
    let named = trace.jobs.iter().any(|job| !job.node_names.is_empty());
    if named { by_nodes(world, trace) } else { by_use(world, trace) }
}

/// Nodes of equal name and GPU type.
#[derive(Default)]
struct Group {
    nodes: u32,
    gpus: u32,
    /// The largest allocation of one job on one node.
    largest: u32,
    /// Number of nodes by the most GPUs in use on each.
    by_most: BTreeMap<u32, u32>,
}

impl Group {
    /// What the number of GPUs of each node is inferred from, and what contradicts it.
    fn evidence(&self, gpu_type: &str) -> String {
        let mut text = format!(
            "{} each inferred, the most in use on one of them",
            pluralize(self.gpus, "GPU")
        );
        if self.largest < self.gpus {
            text += &format!(" by several jobs at once (one job had at most {})", self.largest);
        }
        if self.by_most.len() > 1 {
            /// More sizes are a question of use, not of nodes.
            const SIZES_MAX: usize = 3;
            let fewer: u32 = self.by_most.iter().rev().skip(1).map(|(_, nodes)| nodes).sum();
            let nodes = pluralize(fewer, "node");
            text += &format!("; {nodes} never had as many in use");
            if self.by_most.len() <= SIZES_MAX {
                let parts = self.by_most.iter().rev();
                let parts = parts.map(|(gpus, nodes)| format!("{nodes}x{gpus}:{gpu_type}"));
                text += &format!(", so that {} fits as well", parts.collect::<Vec<_>>().join(","));
            }
            text += ": give unequal sizes in --cluster";
        }
        text
    }
}

/// The type of the catalog for a name of the trace.
fn catalog_type(world: &World, name: &str) -> Option<String> {
    world.gpu_named(name).map(|gpu| gpu.gpu_type.clone())
}

fn known(world: &World) -> String {
    world.gpus().map(|gpu| gpu.gpu_type.as_str()).collect::<Vec<_>>().join(", ")
}

/// The GPUs of a job on each of its named nodes, as evenly as possible: the first nodes by name have one more
/// where the number is no multiple, as in a replay.
pub(super) fn shares(job: &TraceJob) -> impl Iterator<Item = (&str, u32)> {
    let mut names: Vec<&str> = job.node_names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX).max(1);
    let (each, more) = (job.gpus / count, job.gpus % count);
    (0..).zip(names).map(move |(i, name)| (name, each + u32::from(i < more)))
}

/// The largest allocation of one job on one node.
fn largest_each(job: &TraceJob, nodes: usize) -> u32 {
    job.gpus.div_ceil(u32::try_from(nodes.max(1)).unwrap_or(u32::MAX))
}

/// Recorded start and end, if the job was not suspended between them.
fn interval(job: &TraceJob) -> Option<(Duration, Duration)> {
    job.started.zip(job.ended).filter(|_| job.suspended().is_zero())
}

/// A job's start (`true`) or end on its GPUs.
pub(super) type Use = (Duration, bool, u32);

/// The most GPUs in use at one time.
pub(super) fn peak(uses: &mut [Use]) -> u64 {
    // At one instant ends come before starts.
    uses.sort_unstable();
    let (mut now, mut most) = (0u64, 0u64);
    for &(_, starts, gpus) in uses.iter() {
        let gpus = u64::from(gpus);
        now = if starts { now + gpus } else { now.saturating_sub(gpus) };
        most = most.max(now);
    }
    most
}

/// A node name up to its first number.
fn prefix(node: &str) -> &str {
    node.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default()
}

/// The only GPU type of the catalog among the words of some names.
fn hinted<'n>(world: &World, names: impl Iterator<Item = &'n str>) -> Option<String> {
    let mut types = BTreeSet::new();
    for name in names {
        let words = name.split(|c: char| !c.is_ascii_alphanumeric());
        let known = words.filter(|word| datasheet::is_known(&gpu_type_of(word)));
        types.extend(known.filter_map(|word| catalog_type(world, word)));
    }
    let only = types.len() == 1;
    types.pop_first().filter(|_| only)
}

/// The facts of one node.
#[derive(Default)]
struct Node<'t> {
    gpu_seconds: BTreeMap<&'t str, f64>,
    partitions: BTreeSet<&'t str>,
    largest: u32,
    uses: Vec<Use>,
}

fn by_nodes(world: &World, trace: &Trace) -> Result<InferredCluster, InferError> {
    let mut nodes: BTreeMap<&str, Node<'_>> = BTreeMap::new();
    for job in &trace.jobs {
        let count = job.node_names.len();
        for (name, gpus) in shares(job) {
            let node = nodes.entry(name).or_default();
            node.largest = node.largest.max(largest_each(job, count));
            if let Some(gpu_type) = &job.gpu_type {
                let gpu_s = f64::from(gpus.max(1)) * job.duration.as_secs_f64();
                *node.gpu_seconds.entry(gpu_type).or_default() += gpu_s;
            }
            node.partitions.extend(job.partition.as_deref());
            if let Some((start, end)) = interval(job) {
                node.uses.push((start, true, gpus));
                node.uses.push((end, false, gpus));
            }
        }
    }
    let types = node_types(&nodes);
    let mut groups: BTreeMap<(Option<String>, &str), Group> = BTreeMap::new();
    let mut hinted_nodes: BTreeMap<String, usize> = BTreeMap::new();
    let mut gpu_types = BTreeMap::new();
    for (name, node) in &mut nodes {
        let gpu_type = match &types[name] {
            Some(named) => Some(match catalog_type(world, named) {
                Some(gpu_type) => gpu_type,
                None => (*named).to_owned(),
            }),
            None => {
                let names = node.partitions.iter().copied().chain([*name]);
                let hint = hinted(world, names).or_else(|| only_type(world, trace));
                if let Some(gpu_type) = &hint {
                    *hinted_nodes.entry(gpu_type.clone()).or_default() += 1;
                }
                hint
            }
        };
        let group = groups.entry((gpu_type.clone(), prefix(name))).or_default();
        group.nodes += 1;
        let most = u32::try_from(peak(&mut node.uses)).unwrap_or(u32::MAX).max(node.largest);
        group.gpus = group.gpus.max(most);
        group.largest = group.largest.max(node.largest);
        *group.by_most.entry(most).or_default() += 1;
        if let Some(gpu_type) = gpu_type {
            gpu_types.insert((*name).to_owned(), gpu_type);
        }
    }
    let mut assumptions = vec![format!(
        "{} with a GPU job; nodes without one in the trace are not counted",
        pluralize(nodes.len(), "node")
    )];
    for ((gpu_type, prefix), group) in &groups {
        let gpu_type = gpu_type.as_deref().unwrap_or("TYPE");
        assumptions.push(format!(
            "{} of {gpu_type} named `{}...`: {}",
            pluralize(group.nodes, "node"),
            sanitize(prefix),
            group.evidence(gpu_type),
        ));
    }
    for (gpu_type, count) in hinted_nodes {
        assumptions.push(format!(
            "GPU type {gpu_type} of {}: from the partition or node name, or the only type in the \
             trace",
            pluralize(count, "node")
        ));
    }
    let gpus: u64 = groups.values().map(|g| u64::from(g.nodes) * u64::from(g.gpus)).sum();
    let spans = trace.jobs.iter().filter_map(|job| Some((interval(job)?, job.gpus)));
    let uses = spans.flat_map(|((start, end), n)| [(start, true, n), (end, false, n)]);
    let most = peak(&mut uses.collect::<Vec<Use>>());
    if most > gpus {
        return Err(InferError::Contradicted { trace: trace.name.clone(), gpus, most });
    }
    let shape = shape_of(world, trace, groups)?;
    Ok(InferredCluster { shape, assumptions, gpu_types })
}

/// The type of each node by its jobs, else by the nodes with the same name before the number.
fn node_types<'t>(nodes: &BTreeMap<&'t str, Node<'t>>) -> BTreeMap<&'t str, Option<&'t str>> {
    let most = |times: &BTreeMap<&'t str, f64>| {
        times.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(gpu_type, _)| *gpu_type)
    };
    let mut of_prefix: BTreeMap<&str, BTreeSet<&'t str>> = BTreeMap::new();
    for (name, node) in nodes {
        of_prefix.entry(prefix(name)).or_default().extend(most(&node.gpu_seconds));
    }
    let of = |name: &'t str, node: &Node<'t>| {
        let same = &of_prefix[prefix(name)];
        most(&node.gpu_seconds).or_else(|| same.first().copied().filter(|_| same.len() == 1))
    };
    nodes.iter().map(|(name, node)| (*name, of(name, node))).collect()
}

/// The only GPU type of the trace's jobs.
fn only_type(world: &World, trace: &Trace) -> Option<String> {
    let types = trace.jobs.iter().filter_map(|job| job.gpu_type.as_deref());
    let mut types: BTreeSet<&str> = types.collect();
    let only = types.len() == 1;
    types.pop_first().filter(|_| only).and_then(|name| catalog_type(world, name))
}

/// The cluster of a trace without node lists: enough nodes for the most GPUs in use at once.
fn by_use(world: &World, trace: &Trace) -> Result<InferredCluster, InferError> {
    if !trace.jobs.iter().any(|job| job.started.is_some()) {
        return Err(InferError::NoNodes { trace: trace.name.clone() });
    }
    let only = only_type(world, trace);
    let mut uses: BTreeMap<Option<String>, (u32, Vec<Use>)> = BTreeMap::new();
    let mut hinted_jobs: BTreeMap<String, usize> = BTreeMap::new();
    for job in &trace.jobs {
        let named = job.gpu_type.as_deref();
        let gpu_type = named
            .map(|name| catalog_type(world, name).unwrap_or_else(|| name.to_owned()))
            .or_else(|| hinted(world, job.partition.as_deref().into_iter()))
            .or_else(|| only.clone());
        if let Some(gpu_type) = gpu_type.as_ref().filter(|_| named.is_none()) {
            *hinted_jobs.entry(gpu_type.clone()).or_default() += 1;
        }
        let (largest, uses) = uses.entry(gpu_type).or_default();
        *largest = (*largest).max(largest_each(job, job.nodes.map_or(1, |n| n as usize)));
        if let Some((start, end)) = interval(job) {
            uses.extend([(start, true, job.gpus), (end, false, job.gpus)]);
        }
    }
    let mut groups = BTreeMap::new();
    let mut assumptions = Vec::new();
    for (gpu_type, (largest, mut uses)) in uses {
        let most = peak(&mut uses).max(u64::from(largest));
        let nodes = u32::try_from(most.div_ceil(u64::from(largest.max(1)))).unwrap_or(u32::MAX);
        assumptions.push(format!(
            "no NodeList: {} of {} {}: the largest allocation on one node, and the {most} GPUs in \
             use at once",
            pluralize(nodes, "node"),
            largest,
            gpu_type.as_deref().unwrap_or("GPUs"),
        ));
        groups.insert((gpu_type, ""), Group { nodes, gpus: largest, ..Group::default() });
    }
    for (gpu_type, count) in hinted_jobs {
        assumptions.push(format!(
            "GPU type {gpu_type} of {}: from the partition, or the only type in the trace",
            pluralize(count, "job")
        ));
    }
    let shape = shape_of(world, trace, groups)?;
    Ok(InferredCluster { shape, assumptions, gpu_types: BTreeMap::new() })
}

/// The shape of the groups; groups of one type and size are joined.
fn shape_of(
    world: &World,
    trace: &Trace,
    groups: BTreeMap<(Option<String>, &str), Group>,
) -> Result<ClusterShape, InferError> {
    let mut joined: BTreeMap<(Option<String>, u32), u32> = BTreeMap::new();
    for ((gpu_type, _), group) in groups {
        *joined.entry((gpu_type, group.gpus)).or_default() += group.nodes;
    }
    let is_known = |gpu_type: &String| world.gpu(gpu_type).is_some();
    let suggestion = || {
        let part = |((gpu_type, gpus), nodes): (&(Option<String>, u32), &u32)| {
            let gpu_type = gpu_type.as_deref().filter(|name| world.gpu(name).is_some());
            format!("{nodes}x{gpus}:{}", gpu_type.unwrap_or("TYPE"))
        };
        joined.iter().map(part).collect::<Vec<_>>().join(",")
    };
    let unnamed: u32 = joined.iter().filter(|(key, _)| key.0.is_none()).map(|(_, n)| n).sum();
    if unnamed > 0 {
        return Err(InferError::NoType {
            trace: trace.name.clone(),
            nodes: pluralize(unnamed, "node"),
            suggestion: suggestion(),
            known: known(world),
        });
    }
    let unknown = joined.keys().filter_map(|(gpu_type, _)| gpu_type.as_ref());
    if let Some(gpu_type) = unknown.clone().find(|gpu_type| !is_known(gpu_type)) {
        return Err(InferError::UnknownType {
            gpu_type: sanitize(gpu_type),
            suggestion: suggestion(),
            known: known(world),
        });
    }
    // Most nodes first.
    let mut joined: Vec<_> = joined.into_iter().collect();
    joined.sort_by_key(|(key, nodes)| (std::cmp::Reverse(*nodes), key.clone()));
    let group = |((gpu_type, gpus), nodes): ((Option<String>, u32), u32)| NodeGroup {
        nodes,
        gpus_per_node: gpus.min(GPUS_PER_NODE_MAX + 1),
        gpus_per_board: None,
        gpu_type: gpu_type.unwrap_or_default(),
        nodes_per_switch: None,
    };
    Ok(ClusterShape::of(joined.into_iter().map(group).collect())?)
}

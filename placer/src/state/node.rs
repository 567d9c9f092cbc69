//! One node: its GPUs, their jobs, its sleep state and its power.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::NodeNeeds;
use wattle_common::{NodeId, Power, Timestamp};

use crate::state::gpu_set::{JobKey, ones};

/// The facts of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its id.
    pub id: NodeId,
    /// The type of its GPUs.
    pub gpu_type: String,
    /// Number of GPUs, at most [`wattle_common::topology::GPUS_PER_NODE_MAX`].
    pub gpus: u32,
    /// Device memory of each GPU, MiB; absent: the GPUs do not report it.
    pub memory_mib: Option<u64>,
    /// The healthy GPUs: bit i is GPU i.
    pub healthy: u64,
    /// Its power without jobs, if known.
    pub watts: Option<NodeWatts>,
    /// The CPUs and memory that its jobs may hold, if the site's scheduler bounds them.
    pub host: Option<HostCapacity>,
    /// The partitions of the site's scheduler that it is in.
    pub partitions: Vec<String>,
}

/// CPUs and memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
}

impl HostCapacity {
    /// Takes what a job with this many GPUs on the node needs.
    pub(crate) fn take(&mut self, needs: &NodeNeeds, gpus: u32) {
        self.cpus = self.cpus.saturating_sub(needs.cpus_with(gpus));
        self.memory_mib = self.memory_mib.saturating_sub(needs.memory_mib_with(gpus));
    }
}

impl NodeFacts {
    /// Whether a job that needs this much device memory, MiB, may have a GPU for itself. Unknown memory
    /// keeps no job away: its request cannot be checked.
    #[must_use]
    pub fn may_hold(&self, needed_mib: u64) -> bool {
        self.memory_mib.is_none_or(|memory| needed_mib <= memory)
    }

    /// Whether jobs that need this much device memory together, MiB, are known to fit on one GPU.
    #[must_use]
    pub fn holds(&self, needed_mib: u64) -> bool {
        self.memory_mib.is_some_and(|memory| needed_mib <= memory)
    }

    /// Whether some of its GPUs are unhealthy.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.healthy & ones(self.gpus) != ones(self.gpus)
    }
}

/// The power of a node without jobs, and its wake time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeWatts {
    /// Power of one idle GPU.
    pub gpu_idle: Power,
    /// Power of the awake node without its GPUs.
    pub host: Power,
    /// Power of the complete node asleep.
    pub asleep: Power,
    /// Time from the wake order until it accepts jobs.
    pub wakes_in: Duration,
}

/// The power of a GPU type, and the caps it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPower {
    /// Power of an idle GPU.
    pub idle: Power,
    /// Highest power of a GPU: its default cap.
    pub most: Power,
    /// The lowest cap that it accepts; absent: caps are not supported.
    pub cap_min: Option<Power>,
    /// Power of its node without GPUs, for nodes that do not report it.
    pub host: Power,
}

/// GPUs with jobs of a node that does not confirm its caps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnconfirmedCaps {
    /// Number of the GPUs.
    pub gpus: u32,
    /// Sum of the highest caps that they may have.
    pub power: Power,
}

/// The caps that the GPUs of a node have whose power agent only advises and sets none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedCaps {
    /// The highest cap of one of its GPUs; absent: not known.
    pub highest: Option<Power>,
}

/// The sleep state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wakefulness {
    /// It accepts jobs.
    #[default]
    Awake,
    /// It accepts no jobs and draws its sleep power.
    Asleep,
    /// It was ordered to wake and does not accept jobs yet.
    Waking,
}

/// A node and its jobs.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its facts. Shared between copies of the state, like its tenants.
    pub facts: Arc<NodeFacts>,
    /// Its leaf switch, if known.
    pub switch: Option<u32>,
    /// Number of GPUs on each of its boards, if known: a power of two.
    pub gpus_per_board: Option<u32>,
    /// Its sleep state.
    pub wakefulness: Wakefulness,
    /// The caps that its GPUs with jobs may still have although lower ones are ordered; absent: the node has
    /// reported the ordered caps.
    pub unconfirmed: Option<UnconfirmedCaps>,
    /// The caps of its GPUs, if the node is advised only; absent: its power agent sets the ordered caps.
    pub fixed_caps: Option<FixedCaps>,
    /// When it last woke, released its last job, or was first known, whichever is latest.
    pub idle_since: Timestamp,
    /// GPUs with at least one job.
    pub(crate) occupied: u64,
    pub(crate) tenants: Arc<Vec<Vec<JobKey>>>,
}

impl Node {
    pub(crate) fn new(facts: NodeFacts, now: Timestamp) -> Self {
        let gpus = facts.gpus as usize;
        Self {
            facts: Arc::new(facts),
            switch: None,
            gpus_per_board: None,
            wakefulness: Wakefulness::Awake,
            unconfirmed: None,
            fixed_caps: None,
            idle_since: now,
            occupied: 0,
            tenants: Arc::new(vec![Vec::new(); gpus]),
        }
    }
    /// Whether it is awake.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.wakefulness == Wakefulness::Awake
    }
    /// The healthy GPUs without jobs of an awake node: bit i is GPU i.
    #[must_use]
    pub fn free(&self) -> u64 {
        if self.is_awake() { self.facts.healthy & !self.occupied } else { 0 }
    }
    /// The jobs on one of its GPUs, in order of placement.
    #[must_use]
    pub fn tenants(&self, gpu: u32) -> &[JobKey] {
        self.tenants.get(gpu as usize).map_or(&[], Vec::as_slice)
    }
    /// Whether it has no jobs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.occupied == 0
    }
}

//! What the placer knows of one node: its cards, who is on them, whether it is awake, what it draws.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::{NodeId, Power, Timestamp};

use crate::state::gpu_set::{JobKey, ones};

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its id.
    pub id: NodeId,
    /// Its GPUs' kind.
    pub gpu_type: String,
    /// How many it has, at most [`wattle_common::topology::GPUS_PER_NODE_MAX`].
    pub gpus: u32,
    /// Device memory of each, MiB.
    pub memory_mib: u64,
    /// Which of them answer: bit i is GPU i.
    pub healthy: u64,
    /// What it draws when nothing runs on it, where anybody says so.
    pub watts: Option<NodeWatts>,
}

/// What a node draws with no job on it, and what waking it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeWatts {
    /// One idle card.
    pub gpu_idle: Power,
    /// Everything beside its cards, awake.
    pub host: Power,
    /// The whole node, asleep.
    pub asleep: Power,
    /// From the order to wake until it takes jobs.
    pub wakes_in: Duration,
}

/// The power of a GPU type, and the caps it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPower {
    /// Of an idle GPU.
    pub idle: Power,
    /// Of a GPU at most: its default cap.
    pub most: Power,
    /// The lowest cap it accepts; absent: it accepts none.
    pub cap_min: Option<Power>,
    /// Of the rest of its node, where the node does not report it.
    pub host: Power,
}

/// Whether a node is awake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wakefulness {
    /// It takes jobs.
    #[default]
    Awake,
    /// It draws little and takes no job.
    Asleep,
    /// It was told to wake and does not take jobs yet.
    Waking,
}

/// A node and who is on it.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is known of it. Shared with copies of the input, as its tenants are.
    pub facts: Arc<NodeFacts>,
    /// The leaf switch it is below, where that is known.
    pub switch: Option<u32>,
    /// How many of its GPUs are on each of its boards, where that is known: a power of two.
    pub gpus_per_board: Option<u32>,
    /// Whether it takes jobs.
    pub wakefulness: Wakefulness,
    /// When it last woke, lost its last job, or was first known, whichever came last.
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
    /// The GPUs that answer and have no job, of a node that is awake: bit i is GPU i.
    #[must_use]
    pub fn free(&self) -> u64 {
        if self.is_awake() { self.facts.healthy & !self.occupied } else { 0 }
    }
    /// The GPUs that answer and have at least one job.
    #[must_use]
    pub fn shared_or_taken(&self) -> u64 {
        self.facts.healthy & self.occupied
    }
    /// The jobs on one of its GPUs, in the order they came.
    #[must_use]
    pub fn tenants(&self, gpu: u32) -> &[JobKey] {
        self.tenants.get(gpu as usize).map_or(&[], Vec::as_slice)
    }
    /// Whether it is awake, and all of its GPUs answer and have no job.
    #[must_use]
    pub fn is_wholly_free(&self) -> bool {
        self.free() == ones(self.facts.gpus)
    }
    /// Whether no job is on it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.occupied == 0
    }
}

//! State of one job: its declaration and its windows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::bounds::GPUS_MAX;
use wattle_common::id::{AdmissionId, NodeId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::observation::Observation;

use crate::history::Class;

/// State of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its submission; absent: not known, as in what an earlier version stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// Declared workload class.
    pub workload: Option<WorkloadId>,
    /// Requested number of GPUs.
    pub gpus: GpuRequest,
    /// Whether its declaration is known, and not only its windows.
    pub described: bool,
    /// GPU type.
    pub gpu_type: Option<String>,
    /// Time of the last update.
    pub updated_at_us: Timestamp,
    /// Windows, ordered by start and node.
    windows: Vec<Observation>,
}

impl Job {
    /// A job without windows.
    #[must_use]
    pub fn new(
        now: Timestamp,
        workload: Option<WorkloadId>,
        gpus: GpuRequest,
        gpu_type: Option<String>,
    ) -> Self {
        Self {
            admission: None,
            workload,
            gpus,
            described: false,
            gpu_type,
            updated_at_us: now,
            windows: Vec::new(),
        }
    }

    /// Windows, oldest first.
    #[must_use]
    pub fn windows(&self) -> &[Observation] {
        &self.windows
    }

    /// Whether `window` is stored already.
    #[must_use]
    pub fn has(&self, window: &Observation) -> bool {
        let key = |o: &Observation| (o.from_us, o.node.clone());
        self.windows.binary_search_by_key(&key(window), key).is_ok()
    }

    /// Discards all windows, after a change of the GPU type.
    pub fn start_over(&mut self) {
        self.windows.clear();
    }

    /// Stores a window; false where it is known already. Beyond `max` windows the oldest of the most
    /// frequent configuration is dropped, so that rare configurations are kept.
    pub fn add(&mut self, window: Observation, max: usize) -> bool {
        let key = |o: &Observation| -> (Timestamp, NodeId) { (o.from_us, o.node.clone()) };
        let at = match self.windows.binary_search_by_key(&key(&window), key) {
            Ok(_) => return false,
            Err(at) => at,
        };
        self.windows.insert(at, window);
        if self.windows.len() > max {
            let group = |o: &Observation| {
                let whole = |v: Option<f64>| v.map(|v| v as u64);
                (o.shape(), whole(o.cap_w), whole(o.clock_mhz_max), o.neighbours.clone())
            };
            let mut counts = BTreeMap::new();
            for window in &self.windows {
                *counts.entry(group(window)).or_insert(0usize) += 1;
            }
            let fullest = counts.values().copied().max().unwrap_or(0);
            if let Some(i) = self.windows.iter().position(|w| counts[&group(w)] == fullest) {
                self.windows.remove(i);
            }
        }
        true
    }

    /// The latest of its times: its last update, or the start of a window.
    #[must_use]
    pub fn newest(&self) -> Timestamp {
        let windows = self.windows.iter().map(|window| window.from_us);
        windows.fold(self.updated_at_us, Timestamp::max)
    }

    /// Whether values read from storage are valid.
    #[must_use]
    pub fn is_sane(&self, max: usize) -> bool {
        self.windows.len() <= max
            && self.windows.iter().all(Observation::is_sane)
            && self.gpus.min > 0
            && self.gpus.min <= self.gpus.max
            && self.gpus.max <= GPUS_MAX
    }

    /// Global batch sizes that this job or its class was seen with, other than the job's current one,
    /// in ascending order.
    #[must_use]
    pub fn other_batches(&self, class: Option<&Class>) -> Vec<u32> {
        let own = self.windows.iter().filter_map(|w| w.global_batch);
        let levels = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.levels);
        let mut batches: Vec<u32> =
            own.chain(levels.filter_map(|level| level.global_batch)).collect();
        let now = self.windows.iter().rev().find_map(|w| w.global_batch);
        batches.sort_unstable();
        batches.dedup();
        // Without a reported batch there is no other one.
        batches.retain(|batch| now.is_some_and(|now| now != *batch));
        batches
    }
}

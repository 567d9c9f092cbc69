//! What the registry knows of a job: its description, its observed configurations, and which
//! surface of it is in force.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::id::{AdmissionId, NodeId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::observation::Observation;

use crate::gpu_types::GpuType;
use crate::proposal::Known;
use crate::score::Horizon;

/// Configurations kept of one job; windows in further ones are not scored.
const CONFIGURATIONS_MAX: usize = 64;
/// Nodes of one job whose last window is kept.
const NODES_MAX: usize = 64;
/// Shapes of one job whose exclusive speed is kept.
const SHAPES_MAX: usize = 16;

/// A configuration that windows can share.
#[derive(Clone, Debug, PartialEq)]
struct Configuration {
    gpu_type: Option<String>,
    gpus: u32,
    nodes: u32,
    batch: Option<u32>,
    /// Watts, rounded.
    cap: Option<u32>,
    /// MHz, rounded.
    clock: Option<u32>,
    neighbours: Vec<WorkloadId>,
}

impl Configuration {
    fn of(gpu_type: Option<&str>, window: &Observation) -> Self {
        Self {
            gpu_type: gpu_type.map(str::to_owned),
            gpus: window.gpus,
            nodes: window.nodes,
            batch: window.global_batch,
            cap: window.cap_w.map(|w| w.round() as u32),
            clock: window.clock_mhz_max.map(|f| f.round() as u32),
            neighbours: window.neighbours.clone(),
        }
    }
}

/// The surface of a job that the placer reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CurrentSurface {
    /// Its predictor; `None` for a surface that predates this registry.
    pub(crate) by: Option<PredictorId>,
    /// When the predictor made it.
    pub(crate) at: Timestamp,
}

/// Number of GPUs and nodes, and whether the step rate is inferred.
type SpeedKey = (u32, u32, bool);

/// One job that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its submission; absent: not known.
    pub(crate) admission: Option<AdmissionId>,
    /// Declared workload.
    pub(crate) workload: Option<WorkloadId>,
    /// Number of GPUs requested, where the job's record was read.
    pub(crate) gpus: Option<GpuRequest>,
    /// The GPU type it requires.
    pub(crate) gpu_type_required: Option<String>,
    /// The GPU type of its last window.
    gpu_type: Option<String>,
    /// When it was first known.
    pub(crate) since: Timestamp,
    /// When an event last concerned it.
    pub(crate) updated: Timestamp,
    pub(crate) surface: Option<CurrentSurface>,
    /// Whether its windows are scored.
    pub(crate) scored: bool,
    /// Whether every window of it was observed: only then is a configuration known to be new.
    complete: bool,
    any: bool,
    configurations: Vec<Configuration>,
    /// End of the last window on each node.
    last: BTreeMap<NodeId, Timestamp>,
    /// Steps per second on exclusive GPUs at the default setting.
    exclusive: Vec<(SpeedKey, f64)>,
}

impl Job {
    pub(crate) fn new(now: Timestamp, complete: bool) -> Self {
        Self {
            admission: None,
            workload: None,
            gpus: None,
            gpu_type_required: None,
            gpu_type: None,
            since: now,
            updated: now,
            surface: None,
            scored: false,
            complete,
            any: false,
            configurations: Vec::new(),
            last: BTreeMap::new(),
            exclusive: Vec::new(),
        }
    }

    /// The GPU type it requires or last ran on.
    pub(crate) fn gpu_type(&self) -> Option<&str> {
        self.gpu_type_required.as_deref().or(self.gpu_type.as_deref())
    }

    /// Sets the GPU type of its windows. Reference speeds of another type are dropped.
    pub(crate) fn set_gpu_type(&mut self, gpu_type: &str) {
        if self.gpu_type.as_deref() != Some(gpu_type) {
            self.gpu_type = Some(gpu_type.to_owned());
            self.exclusive.clear();
        }
    }

    /// Records that a window was received. False where it starts before the end of the node's last
    /// window: it is then a duplicate or late.
    pub(crate) fn is_new(&mut self, window: &Observation, until: Timestamp) -> bool {
        if self.last.get(&window.node).is_some_and(|last| window.from_us < *last) {
            return false;
        }
        if self.last.len() >= NODES_MAX && !self.last.contains_key(&window.node) {
            let oldest = self.last.iter().min_by_key(|(_, until)| **until);
            let oldest = oldest.map(|(node, _)| node.clone());
            oldest.and_then(|node| self.last.remove(&node));
        }
        self.last.insert(window.node.clone(), until);
        true
    }

    /// What was observed of it so far.
    pub(crate) fn known(&self) -> Known {
        let any = self.any || !self.complete;
        Known { any, configurations: self.configurations.len() }
    }

    /// How new the window's configuration was when `known` had been observed; `None` where that
    /// cannot be determined.
    pub(crate) fn horizon(&self, window: &Observation, known: Known) -> Option<Horizon> {
        if !known.any {
            return Some(Horizon::NewJob);
        }
        let wanted = Configuration::of(self.gpu_type.as_deref(), window);
        match self.configurations.iter().position(|seen| *seen == wanted) {
            Some(index) if index < known.configurations => Some(Horizon::SameConfig),
            Some(_) => Some(Horizon::NewConfig),
            None if self.complete && self.configurations.len() < CONFIGURATIONS_MAX => {
                Some(Horizon::NewConfig)
            }
            None => None,
        }
    }

    /// Adds the window's configuration, and its speed where it is a reference. Called once for each
    /// window, after scoring.
    pub(crate) fn observe(&mut self, window: &Observation, gpu: &GpuType) {
        self.any = true;
        if self.scored {
            let seen = Configuration::of(self.gpu_type.as_deref(), window);
            let full = self.configurations.len() >= CONFIGURATIONS_MAX;
            if !full && !self.configurations.contains(&seen) {
                self.configurations.push(seen);
            }
        } else {
            // This configuration is not recorded.
            self.complete = false;
        }
        if let Some(rate) = window.rate
            && is_reference(window, gpu)
        {
            let key = speed_key(window);
            self.exclusive.retain(|(known, _)| *known != key);
            while self.exclusive.len() >= SHAPES_MAX {
                self.exclusive.remove(0);
            }
            self.exclusive.push((key, rate));
        }
    }

    /// Speed relative to exclusive GPUs at the default cap and clock; `None` without a reference,
    /// and for a window that is itself one.
    pub(crate) fn relative_speed(&self, window: &Observation, gpu: &GpuType) -> Option<f64> {
        if is_reference(window, gpu) {
            return None;
        }
        let key = speed_key(window);
        let (_, exclusive) = self.exclusive.iter().find(|(known, _)| *known == key)?;
        Some(window.rate? / exclusive)
    }
}

fn speed_key(window: &Observation) -> SpeedKey {
    (window.gpus, window.nodes, window.rate_inferred)
}

fn is_reference(window: &Observation, gpu: &GpuType) -> bool {
    window.is_exclusive() && gpu.is_default(window.setting())
}

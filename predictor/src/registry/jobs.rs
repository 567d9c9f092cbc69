//! What the registry knows of a job: what was asked, which configurations were seen of it, whose
//! surface stands.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::id::{NodeId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;

use super::proposal::Known;
use super::score::Horizon;
use crate::model::cap::{self, GpuSpec};
use crate::observation::Observation;

/// Configurations of one job told apart; windows in further ones are not scored.
const CONFIGURATIONS_MAX: usize = 64;
/// Nodes of one job whose last window is remembered.
const NODES_MAX: usize = 64;
/// Shapes of one job whose speed alone is remembered.
const SHAPES_MAX: usize = 16;

/// A configuration, as two windows share it.
#[derive(Clone, Debug, PartialEq)]
struct Configuration {
    kind: Option<String>,
    gpus: u32,
    nodes: u32,
    batch: Option<u32>,
    /// Watts and MHz, rounded.
    cap: Option<u32>,
    clock: Option<u32>,
    neighbours: Vec<WorkloadId>,
}

impl Configuration {
    fn of(kind: Option<&str>, seen: &Observation) -> Self {
        Self {
            kind: kind.map(str::to_owned),
            gpus: seen.gpus,
            nodes: seen.nodes,
            batch: seen.global_batch,
            cap: seen.cap_w.map(|w| w.round() as u32),
            clock: seen.clock_mhz_max.map(|f| f.round() as u32),
            neighbours: seen.neighbours.clone(),
        }
    }
}

/// The surface of a job that the placer reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    /// Whose it is; `None`: one from before this registry started.
    pub(super) by: Option<PredictorId>,
    /// When its predictor says it was made.
    pub(super) at: Timestamp,
}

/// One job that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// What its owner says of it.
    pub(super) workload: Option<WorkloadId>,
    pub(super) gpus: Option<GpuRequest>,
    /// The kind of GPU that it must have.
    pub(super) must_have: Option<String>,
    /// The kind of its cards, as last seen.
    gpu_type: Option<String>,
    /// Since when it is known, and when anything was last heard of it.
    pub(super) since: Timestamp,
    pub(super) heard: Timestamp,
    pub(super) standing: Option<Standing>,
    /// Whether its windows are scored.
    pub(super) scored: bool,
    /// Whether every window of it has come here: only then a configuration is known to be new.
    from_birth: bool,
    any: bool,
    configurations: Vec<Configuration>,
    last: BTreeMap<NodeId, Timestamp>,
    /// Steps a second alone at the default setting, by GPUs, nodes and whether it was inferred.
    alone: Vec<((u32, u32, bool), f64)>,
}

impl Job {
    pub(super) fn new(now: Timestamp, from_birth: bool) -> Self {
        Self {
            workload: None,
            gpus: None,
            must_have: None,
            gpu_type: None,
            since: now,
            heard: now,
            standing: None,
            scored: false,
            from_birth,
            any: false,
            configurations: Vec::new(),
            last: BTreeMap::new(),
            alone: Vec::new(),
        }
    }

    /// The kind of GPU that it has, or is to have, where that is known.
    pub(super) fn kind(&self) -> Option<&str> {
        self.must_have.as_deref().or(self.gpu_type.as_deref())
    }

    /// The job is on cards of this kind: what it does alone on another is no measure here.
    pub(super) fn is_on(&mut self, kind: &str) {
        if self.gpu_type.as_deref() != Some(kind) {
            self.gpu_type = Some(kind.to_owned());
            self.alone.clear();
        }
    }

    /// Whether this window has not come before; takes it down. On one node windows follow each
    /// other: one that is older than the last is a doubled one, or too late to be scored.
    pub(super) fn is_new(&mut self, window: &Observation, until: Timestamp) -> bool {
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

    /// What was seen of it so far.
    pub(super) fn known(&self) -> Known {
        let any = self.any || !self.from_birth;
        Known { any, configurations: self.configurations.len() }
    }

    /// How much was known of this window's configuration when there was `known`; `None` where
    /// nobody can tell.
    pub(super) fn horizon(&self, window: &Observation, known: Known) -> Option<Horizon> {
        if !known.any {
            return Some(Horizon::Prior);
        }
        let wanted = Configuration::of(self.gpu_type.as_deref(), window);
        match self.configurations.iter().position(|seen| *seen == wanted) {
            Some(place) if place < known.configurations => Some(Horizon::Again),
            Some(_) => Some(Horizon::Elsewhere),
            None if self.from_birth && self.configurations.len() < CONFIGURATIONS_MAX => {
                Some(Horizon::Elsewhere)
            }
            None => None,
        }
    }

    /// Takes down the configuration of a window, and its speed where it is the one that others are
    /// compared with. Once for each window, after it was scored.
    pub(super) fn see(&mut self, window: &Observation, card: &GpuSpec) {
        self.any = true;
        if self.scored {
            let seen = Configuration::of(self.gpu_type.as_deref(), window);
            let full = self.configurations.len() >= CONFIGURATIONS_MAX;
            if !full && !self.configurations.contains(&seen) {
                self.configurations.push(seen);
            }
        } else {
            // What it ran in meanwhile is not taken down.
            self.from_birth = false;
        }
        if let Some(rate) = window.rate
            && is_reference(window, card)
        {
            let shape = (window.gpus, window.nodes, window.rate_inferred);
            self.alone.retain(|(known, _)| *known != shape);
            while self.alone.len() >= SHAPES_MAX {
                self.alone.remove(0);
            }
            self.alone.push((shape, rate));
        }
    }

    /// The speed of a window beside the job alone on as many cards at default cap and clock, where
    /// that was seen; `None` too for a window that is just that.
    pub(super) fn relative_speed(&self, window: &Observation, card: &GpuSpec) -> Option<f64> {
        if is_reference(window, card) {
            return None;
        }
        let shape = (window.gpus, window.nodes, window.rate_inferred);
        let (_, alone) = self.alone.iter().find(|(known, _)| *known == shape)?;
        Some(window.rate? / alone)
    }
}

fn is_reference(window: &Observation, card: &GpuSpec) -> bool {
    window.alone() && cap::is_default(card, window.setting())
}

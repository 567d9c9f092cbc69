//! The profilers' readings below a power limit: passed to the controller, second by second.
//!
//! A reading ends with its arrival, because the clocks of nodes differ, and covers the time that its message states.
//! A GPU on which the profiler sees other jobs than the records name, as during a start, counts as not read.

use std::time::Duration;

use wattle_common::messages::{GpuSummary, NodeSummary};
use wattle_common::{JobId, Timestamp};

use crate::controller::measured_power::GpuReading;
use crate::live::Turn;
use crate::live::budget::Spending;
use crate::live::nodes::Nodes;
use crate::power::correction::ReadSpan;
use crate::state::gpu_set::NodeKey;

/// Least time between two looks at silent profilers and limits.
const SECOND: Duration = Duration::from_secs(1);

/// The longest time that a reading counts for: ten summaries in a second of wall time at the highest rate.
const COVERED_MAX: Duration = Duration::from_secs(1_000);

/// NVML's reason of a lower clock: the power cap.
const POWER_CAP: u64 = 0x4;

/// The readings of all nodes.
pub(super) struct NodeReadings {
    looked_at: Timestamp,
}

impl NodeReadings {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { looked_at: now }
    }

    /// A node's readings of a second arrived. Returns whether the limits were looked at.
    pub(super) fn summarized(
        &mut self,
        turn: &mut Turn<'_>,
        summary: &NodeSummary,
        nodes: &mut Nodes,
        spending: &mut Spending,
    ) -> bool {
        let Some(node) = turn.controller.state().node_key(&summary.node) else { return false };
        let readings = summary.gpus.iter().filter_map(|gpu| reading(turn, node, gpu));
        let readings: Vec<GpuReading> = readings.collect();
        let covers = Duration::from_millis(summary.span_ms).min(COVERED_MAX);
        // Jobs and settings change at some instant of a long reading, which is not known.
        let holds_from = turn.now - covers.min(SECOND);
        let span = ReadSpan { from: turn.now - covers, until: turn.now, holds_from };
        if turn.controller.power_measured(node, span, &readings) {
            corrected(turn, nodes, spending);
        }
        let is_due = turn.now.since(self.looked_at) >= SECOND;
        if is_due {
            self.look(turn, nodes, spending);
        }
        is_due
    }

    /// Looks for silent profilers and exceeded limits.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>, nodes: &mut Nodes, spending: &mut Spending) {
        self.looked_at = turn.now;
        if turn.controller.look_at_power(turn.now) {
            corrected(turn, nodes, spending);
        }
    }
}

/// The expected power of a job has changed: the next plan counts with it, and no cap rises before.
fn corrected(turn: &mut Turn<'_>, nodes: &mut Nodes, spending: &mut Spending) {
    nodes.outdate_plan();
    spending.margin_changed();
    turn.outbox.plan_soon();
}

/// The reading of a GPU whose jobs are those of the records.
fn reading(turn: &Turn<'_>, node: NodeKey, gpu: &GpuSummary) -> Option<GpuReading> {
    let state = turn.controller.state();
    let tenants = state.node(node).tenants(gpu.gpu);
    let is_tenant = |id: &JobId| state.job_key(id).is_some_and(|key| tenants.contains(&key));
    let is_known = gpu.jobs.len() == tenants.len() && gpu.jobs.iter().all(is_tenant);
    let cap = gpu.cap_mw.into_iter().chain(gpu.cap_mw_enforced).min();
    let power = gpu.power_mw_mean.filter(|_| is_known)?;
    let is_capped = gpu.throttle_reasons.is_some_and(|reasons| reasons & POWER_CAP != 0);
    Some(GpuReading { gpu: gpu.gpu, power, cap, is_capped })
}

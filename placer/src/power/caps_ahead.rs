//! Bounds of caps for the time in which no placer answers, under a power limit over time.
//!
//! While a placer runs, its plans follow the limit. Power agents follow these bounds without one: from each change of
//! the limit on, no cap exceeds the highest common power per GPU with which the present jobs fit the limit. Where even
//! the lowest caps exceed it, the lowest caps are all that an agent can do, because it stops no job.

use std::time::Duration;

use wattle_common::messages::CapBound;
use wattle_common::messages::desired::CAPS_AHEAD_MAX;
use wattle_common::{LimitOverTime, Power, Timestamp};

use crate::plan::input::PlanningInput;
use crate::power::model::{expected_by_node, reserved_power};

/// Bounds are named for a day; from its end on the lowest one holds.
const HORIZON: Duration = Duration::from_secs(86_400);

/// Least time between two changes that are not joined; it doubles until all fit.
const JOINED_LEAST: Duration = Duration::from_secs(30);

/// Most changes of the limit that are read.
const CHANGES_MAX: usize = 10_000;

/// The bounds of every cap from the next change of the limit on, ascending by time; empty without a limit that
/// changes.
pub(crate) fn caps_ahead(input: PlanningInput<'_>) -> Vec<CapBound> {
    let Some(limit) = input.limits.power_over_time.as_deref() else { return Vec::new() };
    let fitting = FittingCap::of(input);
    let mut found = Vec::new();
    let instants = instants(limit, input.now());
    let ends = instants.iter().skip(1).copied().chain([Timestamp::FOREVER]);
    for (&from_us, until) in instants.iter().zip(ends) {
        let cap_mw = limit.least(from_us, until).and_then(|least| fitting.below(least));
        let is_same = found.last().is_some_and(|last: &CapBound| last.cap_mw == cap_mw);
        if !is_same {
            found.push(CapBound { from_us, cap_mw });
        }
    }
    found
}

/// The changes of the limit within [`HORIZON`] and the one after, joined where they are more than an order can hold: then
/// the lowest limit until the next instant holds from the first of them on, as on the ramp of an event.
fn instants(limit: &LimitOverTime, now: Timestamp) -> Vec<Timestamp> {
    let end = now + HORIZON;
    let all: Vec<Timestamp> = limit.changes(now).take(CHANGES_MAX).collect();
    let within = all.iter().take_while(|at| **at <= end).count();
    let all = &all[..all.len().min(within + 1)];
    let mut least = Duration::ZERO;
    loop {
        let mut kept: Vec<Timestamp> = Vec::new();
        for &at in all {
            if kept.last().is_none_or(|last| at.since(*last) >= least) {
                kept.push(at);
            }
        }
        if kept.len() <= CAPS_AHEAD_MAX {
            return kept;
        }
        least = (2 * least).max(JOINED_LEAST);
    }
}

/// The highest common cap of all GPUs at which the present jobs fit a limit.
struct FittingCap {
    /// The expected power of all nodes; `None`: not known for some node.
    expected_w: Option<f64>,
    /// The power reserved for each GPU with jobs, and its lowest cap, watts.
    reserved_w: Vec<(f64, f64)>,
}

impl FittingCap {
    fn of(input: PlanningInput<'_>) -> Self {
        let expected = expected_by_node(input);
        let expected_w = expected.map(|nodes| nodes.into_iter().map(Power::as_w).sum());
        let mut reserved_w = Vec::new();
        for (key, node) in input.state.keyed_nodes().filter(|(_, node)| node.is_awake()) {
            let limits = input.state.gpu_power(&node.facts.gpu_type);
            let least = limits.and_then(|limits| limits.cap_min).unwrap_or(Power::ZERO);
            let busy = (0..node.facts.gpus).filter(|gpu| !node.tenants(*gpu).is_empty());
            let watts = busy.filter_map(|gpu| reserved_power(input, key, gpu));
            reserved_w.extend(watts.map(|watts| (watts, least.as_w())));
        }
        Self { expected_w, reserved_w }
    }

    /// `None`: the present caps fit. The lowest cap where none fits, or where the power is not known.
    fn below(&self, limit: Power) -> Option<Power> {
        let excess_w = self.expected_w.map_or(f64::INFINITY, |expected| expected - limit.as_w());
        if excess_w <= 0.0 {
            return None;
        }
        let saved_w = |cap_w: u64| -> f64 {
            let saved = self.reserved_w.iter();
            saved.map(|(watts, least)| (watts - least.max(cap_w as f64)).max(0.0)).sum()
        };
        let highest = self.reserved_w.iter().map(|(watts, _)| *watts).fold(0.0, f64::max) as u64;
        let (mut fits, mut above) = (0, highest + 1);
        while above - fits > 1 {
            let middle = u64::midpoint(fits, above);
            if saved_w(middle) >= excess_w { fits = middle } else { above = middle }
        }
        // Agents set the nearest cap that a GPU supports.
        Some(Power::from_w(fits))
    }
}

//! Nodes that sleep and wake, and when the policy is asked although nothing happened.

use std::cmp::Reverse;

use wattle_placer::{NodeDecision, NodeKey, NodeWatts, Plan, Wakefulness};
use wattle_world::{GpuModel, World};

use crate::engine::{Due, Engine};
use crate::outcome::us;

/// Looks in a row at a queue of which nothing runs, before it counts as stuck.
const IDLE_LOOKS_MAX: usize = 10_000;

/// What the world says of a node with so many cards.
pub(super) fn watts(world: &World, gpu: &GpuModel, gpus: u32) -> NodeWatts {
    NodeWatts {
        gpu_idle: gpu.idle,
        host: world.host_power_of(gpu, gpus),
        asleep: gpu.sleep.power,
        wakes_in: gpu.sleep.wake,
    }
}

impl Engine<'_> {
    /// Whether asking again can still change anything.
    pub(super) fn may_look_again(&self, more_to_come: bool) -> bool {
        let anyone_runs = self.controller.state().running().next().is_some();
        let anyone_waits = self.controller.state().queue_len() > 0;
        // Nodes may still go to sleep while jobs are to come.
        anyone_runs || more_to_come || (anyone_waits && self.idle_looks < IDLE_LOOKS_MAX)
    }

    /// Nodes go to sleep at once; one that wakes draws as if awake until it is.
    pub(super) fn order_nodes(&mut self, plan: &Plan) {
        for decision in &plan.nodes {
            let key = decision.node();
            let watts = self.controller.state().node(key).facts.watts;
            match decision {
                NodeDecision::Sleep { .. } => {
                    let asleep_mw = watts.map(|watts| watts.asleep.as_mw());
                    self.cards.sleep(key, asleep_mw);
                }
                NodeDecision::Wake { .. } => {
                    self.cards.sleep(key, None);
                    let after_us = watts.map_or(0, |watts| us(watts.wakes_in));
                    let node = key.index() as u32;
                    self.due.push(Reverse((self.now_us + after_us, Due::NodeWakes, node, 0)));
                }
            }
        }
    }

    pub(super) fn woken(&mut self, node: u32) {
        self.controller
            .events()
            .wakefulness_changed(NodeKey::at(node as usize), Wakefulness::Awake);
    }
}

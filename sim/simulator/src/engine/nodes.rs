//! Node sleep, and the end of planning without events.

use wattle_placer::{NodeDecision, NodeKey, NodeWatts, Plan, Wakefulness};
use wattle_world::{GpuModel, World};

use crate::engine::Engine;
use crate::engine::events::Event;
use crate::outcome::us;

/// Most consecutive plans without an effect while no job runs. Then the queue counts as blocked.
const IDLE_PLANS_MAX: usize = 10_000;

/// The power of a node with this number of GPUs.
pub(super) fn watts(world: &World, gpu: &GpuModel, gpus: u32) -> NodeWatts {
    NodeWatts {
        gpu_idle: gpu.idle,
        host: world.host_power_of(gpu, gpus),
        asleep: gpu.sleep.power,
        wakes_in: gpu.sleep.wake,
    }
}

impl Engine<'_> {
    /// Whether a further plan without an event may have an effect.
    pub(super) fn may_replan(&self, more_arrivals: bool) -> bool {
        let any_running = self.controller.state().running().next().is_some();
        let any_queued = self.controller.state().queue_len() > 0;
        // Between arrivals, idle nodes may go to sleep.
        any_running || more_arrivals || (any_queued && self.replan.idle_plans < IDLE_PLANS_MAX)
    }

    /// Applies sleep and wake decisions. Sleep is immediate; a waking node has the power of an
    /// awake one.
    pub(super) fn apply_node_decisions(&mut self, plan: &Plan) {
        for decision in &plan.nodes {
            let key = decision.node();
            let watts = self.controller.state().node(key).facts.watts;
            match decision {
                NodeDecision::Sleep { .. } => {
                    let asleep_mw = watts.map(|watts| watts.asleep.as_mw());
                    self.hardware.gpus.sleep(key, asleep_mw);
                    self.sleep_times.asleep(key, self.now_us);
                }
                NodeDecision::Wake { .. } => {
                    self.hardware.gpus.sleep(key, None);
                    self.sleep_times.awake(key, self.now_us);
                    let after_us = watts.map_or(0, |watts| us(watts.wakes_in));
                    let (at, node) = (self.now_us + after_us, key.index() as u32);
                    self.events.schedule_unversioned(at, Event::NodeAwake, node);
                }
            }
        }
    }

    /// A node has woken up.
    pub(super) fn node_awake(&mut self, node: u32) {
        self.controller
            .events()
            .wakefulness_changed(NodeKey::at(node as usize), Wakefulness::Awake);
    }
}

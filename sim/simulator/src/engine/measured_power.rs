//! Measured power below a power limit: the true power of every GPU, in place of the profilers' readings.

use wattle_common::Timestamp;
use wattle_placer::NodeKey;
use wattle_placer::controller::measured_power::GpuReading;
use wattle_placer::power::correction::ReadSpan;

use crate::engine::Engine;

/// Most rounds at one instant that follow a correction of predicted power by a new prediction.
pub(super) const CORRECTED_ROUNDS_MAX: usize = 4;

impl Engine<'_> {
    /// Passes the power since the last event, which was constant, to the controller. Returns whether a plan may
    /// differ after it.
    pub(super) fn measure_power(&mut self, until_us: u64) -> bool {
        if !self.controller.limits().is_power_limited() {
            return false;
        }
        let until = Timestamp::from_us(until_us);
        let span = ReadSpan::unchanged(Timestamp::from_us(self.now_us), until);
        let mut plan_again = false;
        for node in 0..self.controller.state().nodes().len() {
            let node = NodeKey::at(node);
            let readings: Vec<GpuReading> = self.hardware.gpus.readings(node).collect();
            plan_again |= self.controller.power_measured(node, span, &readings);
        }
        plan_again | self.controller.look_at_power(until)
    }

    /// When measured power corrects the next plan, if no event precedes it.
    pub(super) fn correction_at(&self) -> Option<u64> {
        self.controller.correction_at().map(Timestamp::as_us).filter(|at| *at > self.now_us)
    }
}

impl crate::gpus::Gpus<'_> {
    /// The power and the cap of each GPU of a node.
    fn readings(&self, node: NodeKey) -> impl Iterator<Item = GpuReading> + '_ {
        let default = self.model(node).cap_default;
        (0..).zip(self.gpu_states(node)).map(move |(gpu, state)| {
            let cap = self.setting(node, gpu).cap_mw.unwrap_or(default);
            let is_capped = state.power_capped;
            GpuReading { gpu, power: state.power, cap: Some(cap), is_capped }
        })
    }
}

//! Probes: the controller grants and ends them, the engine applies their settings.

use wattle_placer::JobKey;
use wattle_placer::controller::probes::GpuRanges;

use crate::engine::Engine;
use crate::engine::events::Event;

impl Engine<'_> {
    /// Requests the probe that the job's surface proposes, and begins it if it is granted.
    pub(super) fn consider_probe(&mut self, key: JobKey) {
        if !self.controller.probes_enabled() {
            return;
        }
        let job = self.jobs.of(key);
        let Some(on) = self.jobs[job].on.clone() else { return };
        let model = self.hardware.gpus.model(on.by_node[0].node);
        let lowest = model.clocks.iter().min().copied();
        let ranges = GpuRanges {
            caps: Some((model.cap_min, model.cap_default)),
            clocks: lowest.map(|lowest| (lowest, model.clock_max())),
        };
        let Some(reply) = self.controller.consider_probe(key, ranges) else { return };
        if let Ok(granted) = reply.verdict {
            self.set_gpus(on.gpus());
            let until = self.now() + granted.span;
            self.events.schedule_unversioned(until.as_us(), Event::ProbeEnded, job);
        }
    }

    /// Restores the GPU settings after ended probes. Returns whether a probe has ended.
    pub(super) fn end_probes(&mut self) -> bool {
        let ended = self.controller.end_probes(self.now());
        for (_, probe, _) in &ended {
            self.apply_gpu_settings(probe.on.gpus());
        }
        !ended.is_empty()
    }
}

//! Probes in a simulation: the controller grants and ends them, the world carries them out.

use std::cmp::Reverse;

use wattle_placer::JobKey;
use wattle_placer::controller::probes::GpuRanges;

use crate::engine::{Due, Engine};

impl Engine<'_> {
    /// Lets the controller judge the probe that the job's surface proposes, and begins it if granted.
    pub(super) fn consider_probe(&mut self, key: JobKey) {
        if !self.controller.probes_enabled() {
            return;
        }
        let job = self.by_key[key.index()];
        let Some(on) = self.jobs[job as usize].on.clone() else { return };
        let model = self.cards.model(on.by_node[0].node);
        let lowest = model.clocks.iter().min().copied();
        let ranges = GpuRanges {
            caps: Some((model.cap_min, model.cap_default)),
            clocks: lowest.map(|lowest| (lowest, model.clock_max())),
        };
        let Some(answer) = self.controller.consider_probe(key, ranges) else { return };
        if let Ok(granted) = answer.verdict {
            self.set_gpus(on.gpus());
            let until = self.now() + granted.span;
            self.due.push(Reverse((until.as_us(), Due::ProbeEnds, job, 0)));
        }
    }

    /// Restores the settings after the probes that have ended; whether any has.
    pub(super) fn end_probes(&mut self) -> bool {
        let ended = self.controller.end_probes(self.now());
        for (_, probe, _) in &ended {
            self.set_gpus_again(probe.on.gpus());
        }
        !ended.is_empty()
    }
}

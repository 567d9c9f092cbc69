//! Keeps what the placer was told of each stretch, and compares it with what came.
//!
//! Reads the placer's surfaces through the placer's own rules, and changes nothing.

use wattle_common::job::GpuSetting;
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_placer::state::job_forecast::expected;
use wattle_placer::{GpuSet, Job, State};

use crate::cards::Part;
use crate::engine::Engine;
use crate::engine::running::OnStretch;
use crate::oracle::Shaped;
use crate::prediction_error::Stretch;

impl Engine<'_> {
    /// A job has just been given `on`: on what that was decided, and, from the oracle, what is true
    /// of it there.
    pub(super) fn placed(&mut self, job: u32, on: &GpuSet) {
        let running = &self.jobs[job as usize];
        let Some(key) = running.key else { return };
        let surface = self.controller.state().job(key).and_then(|job| job.surface.as_ref());
        if let Some(tally) = &mut self.tally {
            tally.placed(surface.is_none_or(|surface| surface.windows == 0));
        }
        if let Some(oracle) = &mut self.oracle
            && !oracle.is_whole()
        {
            let workload = running.workload;
            let shape = Shaped { workload, gpus: on.gpu_count(), nodes: on.node_count() };
            let model = self.cards.model(on.by_node[0].node);
            let surface =
                oracle.surface(self.controller.state().now(), &running.spec.id, shape, model);
            self.controller.events().surface_known(key, surface);
        }
    }

    /// The job runs on from now; a stretch begins unless it is on the same one still.
    pub(super) fn begin_stretch(&mut self, job: u32) {
        let running = &self.jobs[job as usize];
        let Some(on) = &running.on else { return };
        let parts = self.cards.parts(job, on);
        let attempt = running.attempts;
        if running.stretch.as_ref().is_some_and(|s| s.attempt == attempt && s.parts == parts) {
            return;
        }
        let happens = Happens {
            steps_per_s: running.rate * running.steps_per_us * 1e6,
            relative_speed: running.rate / running.base,
        };
        let compared = running
            .key
            .and_then(|key| self.controller.state().job(key))
            .map(|told| self.compare(told, on, &parts, &happens))
            .unwrap_or_default();
        self.end_stretch(job);
        let since_us = self.now_us;
        self.jobs[job as usize].stretch = Some(OnStretch { since_us, attempt, parts, compared });
    }

    /// The stretch the job is on ends here; one that took no time never was.
    pub(super) fn end_stretch(&mut self, job: u32) {
        let Some(stretch) = self.jobs[job as usize].stretch.take() else { return };
        if let Some(tally) = &mut self.tally
            && stretch.since_us < self.now_us
        {
            tally.ended(&stretch.compared);
        }
    }

    /// What the job's surface says of this place beside what comes. What it does not say of every
    /// part of the place, it does not say of the whole.
    fn compare(&self, told: &Job, on: &GpuSet, parts: &[Part], happens: &Happens) -> Stretch {
        let (gpus, nodes) = (on.gpu_count(), on.node_count());
        let kind = &self.cards.model(on.by_node[0].node).gpu_type;
        if told.surface.as_ref().is_none_or(|surface| surface.gpu_type != *kind) {
            return Stretch::default();
        }
        let points: Option<Vec<_>> = parts
            .iter()
            .map(|part| {
                let other = |other: &u32| {
                    let key = self.jobs[*other as usize].key?;
                    self.controller.state().job(key)
                };
                let others: Option<Vec<&Job>> = part.others.iter().map(other).collect();
                said(told, gpus, nodes, &others?)
            })
            .collect();
        let Some(points) = points else { return Stretch::default() };
        let shared = parts.iter().any(|part| !part.others.is_empty());
        // Policies read steps a second for these very GPUs and nodes only.
        let rates: Option<Vec<Estimate>> = points
            .iter()
            .map(|p| p.steps_per_s.filter(|_| p.gpus == gpus && p.nodes == nodes))
            .collect();
        let speeds = points.iter().map(|p| p.relative_speed);
        let weight = |part: &Part| f64::from(part.cards) / f64::from(gpus);
        let mean = |of: fn(&Estimate) -> f64| -> f64 {
            points.iter().zip(parts).map(|(p, part)| weight(part) * of(&p.gpu_power_w)).sum()
        };
        let power =
            Estimate { mean: mean(|e| e.mean), low: mean(|e| e.low), high: mean(|e| e.high) };
        let power_w = parts.iter().map(|part| weight(part) * part.power_w).sum();
        Stretch {
            speed: rates.and_then(|r| slowest(r.into_iter())).map(|r| (r, happens.steps_per_s)),
            relative_speed: slowest(speeds).filter(|_| shared).map(|s| (s, happens.relative_speed)),
            power_w: Some((power, power_w)),
        }
    }
}

/// The point that speaks of the setting the job has. Beside others nothing is said but of cards as
/// the site sets them.
fn said<'a>(told: &'a Job, gpus: u32, nodes: u32, others: &[&Job]) -> Option<&'a SurfacePoint> {
    let setting = |job: &Job| match &job.state {
        State::Running { setting, .. } => *setting,
        State::Queued | State::Stopping { .. } => GpuSetting::DEFAULT,
    };
    let own = setting(told);
    if own.is_default() && others.iter().all(|other| setting(other).is_default()) {
        return expected(told, gpus, nodes, others);
    }
    if !others.is_empty() {
        return None;
    }
    let points = told.surface.as_ref()?.points.iter();
    points
        .filter(|p| p.cap_mw == own.cap_mw && p.clock_mhz_max == own.clock_mhz_max)
        .filter(|p| p.neighbours.is_empty() && p.global_batch.is_none())
        .min_by_key(|p| (p.nodes.abs_diff(nodes), p.gpus.abs_diff(gpus)))
}

/// What comes of a stretch.
struct Happens {
    steps_per_s: f64,
    relative_speed: f64,
}

fn slowest(estimates: impl Iterator<Item = Estimate>) -> Option<Estimate> {
    estimates.min_by(|a, b| a.mean.total_cmp(&b.mean))
}

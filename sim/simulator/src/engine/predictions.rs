//! Prediction errors: compares the surface at the start of each segment with the world's values.
//!
//! Surfaces are read by the placer's own function. The comparison does not influence the run.

use wattle_common::job::GpuSetting;
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_placer::state::job_forecast::expected;
use wattle_placer::{GpuSet, Job, State};

use crate::engine::Engine;
use crate::engine::job::OpenSegment;
use crate::gpus::Part;
use crate::oracle::Shaped;
use crate::prediction_error::Segment;

impl Engine<'_> {
    /// Records whether a started job has a window of its own. The oracle provides the true surface
    /// of the placement.
    pub(super) fn record_prediction(&mut self, job: u32, on: &GpuSet) {
        let running = &self.jobs[job];
        let Some(key) = running.key else { return };
        let surface = self.controller.state().job(key).and_then(|job| job.surface.as_ref());
        if let Some(errors) = &mut self.prediction.errors {
            errors.placed(surface.is_none_or(|surface| surface.windows == 0));
        }
        if let Some(oracle) = &mut self.prediction.oracle
            && !oracle.covers_all_points()
        {
            let workload = running.workload;
            let shape = Shaped { workload, gpus: on.gpu_count(), nodes: on.node_count() };
            let model = self.hardware.gpus.model(on.by_node[0].node);
            let surface =
                oracle.surface(self.controller.state().now(), &running.spec.id, shape, model);
            self.controller.events().surface_known(key, surface);
        }
    }

    /// Begins a segment, unless the GPUs and co-tenants are those of the current one.
    pub(super) fn begin_segment(&mut self, job: u32) {
        let running = &self.jobs[job];
        let Some(on) = &running.on else { return };
        let parts = self.hardware.gpus.parts(job, on);
        let attempt = running.attempts;
        if running.segment.as_ref().is_some_and(|s| s.attempt == attempt && s.parts == parts) {
            return;
        }
        let actual = Actual {
            steps_per_s: running.rate * running.steps_per_us * 1e6,
            relative_speed: running.rate / running.base,
        };
        let compared = running
            .key
            .and_then(|key| self.controller.state().job(key))
            .map(|job| self.compare(job, on, &parts, &actual))
            .unwrap_or_default();
        self.end_segment(job);
        let since_us = self.now_us;
        self.jobs[job].segment = Some(OpenSegment { since_us, attempt, parts, compared });
    }

    /// Ends the current segment. A segment of zero length does not count.
    pub(super) fn end_segment(&mut self, job: u32) {
        let Some(segment) = self.jobs[job].segment.take() else { return };
        if let Some(errors) = &mut self.prediction.errors
            && segment.since_us < self.now_us
        {
            errors.ended(&segment.compared);
        }
    }

    /// The predicted and actual values of this placement. A value without a prediction for every
    /// part of the placement is omitted.
    fn compare(&self, job: &Job, on: &GpuSet, parts: &[Part], actual: &Actual) -> Segment {
        let (gpus, nodes) = (on.gpu_count(), on.node_count());
        let gpu_type = &self.hardware.gpus.model(on.by_node[0].node).gpu_type;
        if job.surface.as_ref().is_none_or(|surface| surface.gpu_type != *gpu_type) {
            return Segment::default();
        }
        let points: Option<Vec<_>> = parts
            .iter()
            .map(|part| {
                let other = |other: &u32| {
                    let key = self.jobs[*other].key?;
                    self.controller.state().job(key)
                };
                let others: Option<Vec<&Job>> = part.others.iter().map(other).collect();
                predicted(job, gpus, nodes, &others?)
            })
            .collect();
        let Some(points) = points else { return Segment::default() };
        let shared = parts.iter().any(|part| !part.others.is_empty());
        // Policies read step rates only at the exact numbers of GPUs and nodes.
        let rates: Option<Vec<Estimate>> = points
            .iter()
            .map(|p| p.steps_per_s.filter(|_| p.gpus == gpus && p.nodes == nodes))
            .collect();
        let speeds = points.iter().map(|p| p.relative_speed);
        let weight = |part: &Part| f64::from(part.gpus) / f64::from(gpus);
        let mean = |of: fn(&Estimate) -> f64| -> f64 {
            points.iter().zip(parts).map(|(p, part)| weight(part) * of(&p.gpu_power_w)).sum()
        };
        let power =
            Estimate { mean: mean(|e| e.mean), low: mean(|e| e.low), high: mean(|e| e.high) };
        let power_w = parts.iter().map(|part| weight(part) * part.power_w).sum();
        Segment {
            speed: rates.and_then(|r| slowest(r.into_iter())).map(|r| (r, actual.steps_per_s)),
            relative_speed: slowest(speeds).filter(|_| shared).map(|s| (s, actual.relative_speed)),
            power_w: Some((power, power_w)),
        }
    }
}

/// The surface point at the job's current GPU setting. Co-located jobs have points at default
/// settings only.
fn predicted<'a>(job: &'a Job, gpus: u32, nodes: u32, others: &[&Job]) -> Option<&'a SurfacePoint> {
    let setting = |job: &Job| match &job.state {
        State::Running { setting, .. } => *setting,
        State::Queued | State::Stopping { .. } => GpuSetting::DEFAULT,
    };
    let own = setting(job);
    if own.is_default() && others.iter().all(|other| setting(other).is_default()) {
        return expected(job, gpus, nodes, others);
    }
    if !others.is_empty() {
        return None;
    }
    let points = job.surface.as_ref()?.points.iter();
    points
        .filter(|p| p.cap_mw == own.cap_mw && p.clock_mhz_max == own.clock_mhz_max)
        .filter(|p| p.neighbours.is_empty() && p.global_batch.is_none())
        .min_by_key(|p| (p.nodes.abs_diff(nodes), p.gpus.abs_diff(gpus)))
}

/// Actual values of a segment.
struct Actual {
    steps_per_s: f64,
    relative_speed: f64,
}

fn slowest(estimates: impl Iterator<Item = Estimate>) -> Option<Estimate> {
    estimates.min_by(|a, b| a.mean.total_cmp(&b.mean))
}

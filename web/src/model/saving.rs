//! Energy saved by caps and clocks: an estimate from predictions.
//!
//! The baseline runs the same jobs on the same GPUs at their default cap and clock. The prediction under
//! which a job was placed has the speed and power of both, so their energies per step have a predicted
//! ratio; the baseline's energy is the measured energy times this ratio. A job without such a
//! prediction, or on shared GPUs, is not compared and counts as no saving.

use wattle_common::Energy;
use wattle_common::messages::{Prediction, SurfacePoint};

/// The baseline of a job relative to its setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// Energy per step at the default setting over that at the job's setting.
    pub energy: f64,
    /// Time per step at the default setting over that at the job's setting.
    pub time: f64,
}

/// Bound of a plausible ratio.
const FACTOR_MAX: f64 = 10.0;

impl Factor {
    /// The factor of a prediction; `None` if it has no comparison.
    #[must_use]
    pub fn of(prediction: &Prediction) -> Option<Self> {
        let placed = prediction.placed.as_ref().filter(|point| point.neighbours.is_empty())?;
        let is_default = |point: &SurfacePoint| {
            point.cap_mw.is_none() && point.clock_mhz_max.is_none() && point.global_batch.is_none()
        };
        if is_default(placed) {
            return Some(Self { energy: 1.0, time: 1.0 });
        }
        let default = prediction.alternatives.iter().find(|point| {
            is_default(point)
                && (point.gpus, point.nodes) == (placed.gpus, placed.nodes)
                && point.neighbours.is_empty()
        })?;
        let time = placed.relative_speed.mean / default.relative_speed.mean;
        let energy = default.gpu_power_w.mean / placed.gpu_power_w.mean * time;
        let plausible = |ratio: f64| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&ratio);
        (plausible(energy) && plausible(time)).then_some(Self { energy, time })
    }
}

/// Sums of compared energy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saved {
    /// Energy of all jobs, millijoules.
    pub jobs_mj: f64,
    /// Energy of the compared ones.
    pub compared_mj: f64,
    /// What the baseline would have used for the compared ones.
    pub baseline_mj: f64,
    /// Time per step of the baseline relative to that of the setting, weighted by energy.
    time_weighted: f64,
}

impl Saved {
    /// Counts the energy of a job.
    pub fn count(&mut self, energy: Energy, factor: Option<Factor>) {
        let mj = energy.as_mj() as f64;
        self.jobs_mj += mj;
        let Some(factor) = factor else { return };
        self.compared_mj += mj;
        self.baseline_mj += mj * factor.energy;
        self.time_weighted += mj * factor.time;
    }

    /// Adds other sums.
    pub fn add(&mut self, other: &Self) {
        self.jobs_mj += other.jobs_mj;
        self.compared_mj += other.compared_mj;
        self.baseline_mj += other.baseline_mj;
        self.time_weighted += other.time_weighted;
    }

    /// Saved energy, millijoules; negative: more than the baseline.
    #[must_use]
    pub fn saved_mj(&self) -> f64 {
        self.baseline_mj - self.compared_mj
    }

    /// Saved share of the baseline; `None` without compared energy.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.baseline_mj > 0.0).then(|| self.saved_mj() / self.baseline_mj)
    }

    /// Share of the jobs' energy that is compared.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        (self.jobs_mj > 0.0).then(|| self.compared_mj / self.jobs_mj)
    }

    /// Mean increase of run time against the baseline, a share weighted by energy.
    #[must_use]
    pub fn slowdown(&self) -> Option<f64> {
        let time = self.time_weighted / self.compared_mj;
        (self.compared_mj > 0.0 && time > 0.0).then(|| 1.0 / time - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::{Power, Timestamp};
    use wattle_testkit as testkit;

    use super::*;

    fn prediction(cap: Option<u64>, alternatives: Vec<SurfacePoint>) -> Prediction {
        let mut placed = testkit::point(2, 9.0, 150.0);
        placed.cap_mw = cap.map(Power::from_w);
        placed.relative_speed = testkit::estimate(0.9, 0.01);
        Prediction {
            at_us: Timestamp::from_s(1),
            predictor: testkit::predictor("physical"),
            gpu_type: "v100".to_owned(),
            windows: 3,
            basis: None,
            placed: Some(placed),
            alternatives,
        }
    }

    #[test]
    fn factor_compares_energy_per_step() {
        let mut default = testkit::point(2, 10.0, 250.0);
        default.relative_speed = testkit::estimate(1.0, 0.01);
        let factor = Factor::of(&prediction(Some(150), vec![default.clone()])).unwrap();
        // 250 W for 1 s against 150 W for 1.11 s.
        assert!((factor.energy - 1.5).abs() < 1e-9 && (factor.time - 0.9).abs() < 1e-9);
        assert_eq!(Factor::of(&prediction(Some(150), Vec::new())), None, "no default setting");
        let at_default = Factor::of(&prediction(None, Vec::new())).unwrap();
        assert_eq!(at_default, Factor { energy: 1.0, time: 1.0 });
        let mut shared = prediction(Some(150), vec![default]);
        shared.placed.as_mut().unwrap().neighbours = vec![testkit::workload("x")];
        assert_eq!(Factor::of(&shared), None, "shared GPUs are not compared");
    }

    #[test]
    fn jobs_without_a_comparison_count_as_no_saving() {
        let mut saved = Saved::default();
        saved.count(Energy::from_j(100), Some(Factor { energy: 1.25, time: 0.8 }));
        saved.count(Energy::from_j(100), None);
        assert!((saved.saved_mj() - 25_000.0).abs() < 1e-6);
        assert_eq!(saved.coverage(), Some(0.5));
        assert!((saved.share().unwrap() - 0.2).abs() < 1e-9);
        assert!((saved.slowdown().unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(Saved::default().share(), None);
    }
}

//! A job's energy against that of the same steps at the default cap and clock: an estimate from predictions.
//!
//! The prediction under which a job is placed or set has its speed and power at that setting and at the
//! default one, so the energies per step have a predicted ratio. While the setting is in force, the measured
//! energy times this ratio is what the default setting would have used. The profiler compares each reading
//! under the setting that was in force then and stores the sums in the ledger, so they do not depend on
//! later settings or predictions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::messages::{Prediction, SurfacePoint};
use crate::units::Energy;

/// Bound of a plausible ratio.
pub const RATIO_MAX: f64 = 10.0;

/// The default cap and clock relative to a job's setting, on the same GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DefaultRatio {
    /// Energy per step at the default setting over that at the job's setting.
    pub energy: f64,
    /// Time per step at the default setting over that at the job's setting.
    pub time: f64,
}

impl DefaultRatio {
    /// The ratio while the default setting is in force.
    pub const ONE: Self = Self { energy: 1.0, time: 1.0 };

    /// The ratio of a prediction for another setting than the default. `None`: it is for the default, or for
    /// shared GPUs, or has no plausible comparison.
    #[must_use]
    pub fn of(prediction: &Prediction) -> Option<Self> {
        let is_default = |point: &SurfacePoint| {
            point.cap_mw.is_none() && point.clock_mhz_max.is_none() && point.global_batch.is_none()
        };
        let placed = prediction.placed.as_ref();
        let placed = placed.filter(|point| point.neighbours.is_empty() && !is_default(point))?;
        let default = prediction.alternatives.iter().find(|point| {
            is_default(point)
                && (point.gpus, point.nodes) == (placed.gpus, placed.nodes)
                && point.neighbours.is_empty()
        })?;
        let time = placed.relative_speed.mean / default.relative_speed.mean;
        let energy = default.gpu_power_w.mean / placed.gpu_power_w.mean * time;
        let is_plausible = |ratio: f64| (1.0 / RATIO_MAX..=RATIO_MAX).contains(&ratio);
        (is_plausible(energy) && is_plausible(time)).then_some(Self { energy, time })
    }
}

/// Measured energy and what the default setting would have used for the same steps, by prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComparedEnergy {
    /// The measured energy.
    pub energy_mj: Energy,
    /// The energy at the default cap and clock.
    pub energy_mj_default: Energy,
    /// GPU time of the measured energy, microseconds.
    pub gpu_time_us: u64,
    /// GPU time at the default cap and clock, microseconds.
    pub gpu_time_us_default: u64,
}

impl ComparedEnergy {
    /// Energy of one GPU over `span` at a setting with this ratio.
    #[must_use]
    pub fn new(energy: Energy, span: Duration, ratio: DefaultRatio) -> Self {
        let gpu_time_us = span.as_micros() as u64;
        Self {
            energy_mj: energy,
            energy_mj_default: Energy::from_mj(
                (energy.as_mj() as f64 * ratio.energy).round() as u64
            ),
            gpu_time_us,
            gpu_time_us_default: (gpu_time_us as f64 * ratio.time).round() as u64,
        }
    }

    /// Adds another sum.
    pub fn add(&mut self, other: Self) {
        self.energy_mj += other.energy_mj;
        self.energy_mj_default += other.energy_mj_default;
        self.gpu_time_us += other.gpu_time_us;
        self.gpu_time_us_default += other.gpu_time_us_default;
    }

    /// Saved energy, millijoules; negative: more than the default setting would have used.
    #[must_use]
    pub fn saved_mj(&self) -> f64 {
        self.energy_mj_default.as_mj() as f64 - self.energy_mj.as_mj() as f64
    }

    /// Saved share of the energy at the default setting; `None` without compared energy.
    #[must_use]
    pub fn saved_share(&self) -> Option<f64> {
        let default = self.energy_mj_default.as_mj() as f64;
        (default > 0.0).then(|| self.saved_mj() / default)
    }

    /// Increase of the run time against the default setting, a share; `None` without compared energy.
    #[must_use]
    pub fn slowdown(&self) -> Option<f64> {
        let default = self.gpu_time_us_default as f64;
        (default > 0.0).then(|| self.gpu_time_us as f64 / default - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PredictorId;
    use crate::messages::Estimate;
    use crate::time::Timestamp;
    use crate::units::Power;

    fn point(cap_w: Option<u64>, speed: f64, watts: f64) -> SurfacePoint {
        let exactly = |mean| Estimate { mean, low: mean, high: mean };
        SurfacePoint {
            gpus: 2,
            nodes: 1,
            cap_mw: cap_w.map(Power::from_w),
            clock_mhz_max: None,
            global_batch: None,
            neighbours: Vec::new(),
            steps_per_s: None,
            relative_speed: exactly(speed),
            gpu_power_w: exactly(watts),
        }
    }

    fn prediction(placed: SurfacePoint, alternatives: Vec<SurfacePoint>) -> Prediction {
        Prediction {
            at_us: Timestamp::EPOCH,
            predictor: PredictorId::new("physical").unwrap(),
            gpu_type: "v100".to_owned(),
            windows: 3,
            basis: None,
            placed: Some(placed),
            alternatives,
        }
    }

    #[test]
    fn ratio_compares_energy_per_step() {
        let (capped, default) = (point(Some(150), 0.9, 150.0), point(None, 1.0, 250.0));
        let ratio = DefaultRatio::of(&prediction(capped.clone(), vec![default.clone()])).unwrap();
        // 250 W for 1 s against 150 W for 1.11 s.
        assert!((ratio.energy - 1.5).abs() < 1e-9 && (ratio.time - 0.9).abs() < 1e-9);
        assert_eq!(DefaultRatio::of(&prediction(capped.clone(), Vec::new())), None);
        assert_eq!(DefaultRatio::of(&prediction(default.clone(), vec![default.clone()])), None);
        let mut shared = capped;
        shared.neighbours = vec![crate::WorkloadId::new("x").unwrap()];
        let shared = prediction(shared, vec![default]);
        assert_eq!(DefaultRatio::of(&shared), None, "shared GPUs are not compared");
    }

    #[test]
    fn sums_have_the_ratio_of_each_part() {
        let mut sum = ComparedEnergy::default();
        assert_eq!((sum.saved_share(), sum.slowdown()), (None, None));
        let span = Duration::from_secs(8);
        sum.add(ComparedEnergy::new(
            Energy::from_j(100),
            span,
            DefaultRatio { energy: 1.5, time: 0.5 },
        ));
        sum.add(ComparedEnergy::new(Energy::from_j(100), span, DefaultRatio::ONE));
        assert!((sum.saved_mj() - 50_000.0).abs() < 1e-9);
        assert_eq!(sum.saved_share(), Some(0.2));
        assert!((sum.slowdown().unwrap() - 16.0 / 12.0 + 1.0).abs() < 1e-9);
    }
}

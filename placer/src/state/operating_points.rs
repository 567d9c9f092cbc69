//! What a job's surface says of it alone, made short: how many GPUs, which setting, how fast, how
//! much power.
//!
//! Elastic policies weigh every choice of every job at every event. So the points they read (alone,
//! own batch, on as few nodes as any point of that size has) are taken out of the surface once, when
//! it comes. Nothing here is decided, and expected values are all that is kept, but for two things. What
//! is reserved_power ([`crate::power::budget`]) is reckoned with the most that a job's cards may draw. And of a job
//! that may change its size and of which nothing was measured yet, each size counts as the best
//! its prior thinks possible ([`OperatingPoints::hopeful`]). By expected values alone a size that nobody has tried
//! and that is expected to be a little worse than it is stays untried for good, and so do all jobs of
//! its class. Hope is taken back at the job's first measured window, and by then its class knows more
//! (optimism in the face of uncertainty: Lai and Robbins 1985).

use std::collections::BTreeMap;

use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Estimate, Surface};

/// Steps a second beyond these bounds are a predictor's fault: no training step takes a month, and
/// none a microsecond.
const RATES: std::ops::RangeInclusive<f64> = 4e-7..=1e6;
/// The same of one card's power, watts: ten times what the largest draws.
const POWERS_W: std::ops::RangeInclusive<f64> = 1e-3..=1e4;

/// One way to run a job alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingPoint {
    /// GPUs in all.
    pub gpus: u32,
    /// Nodes they are spread over.
    pub nodes: u32,
    /// What its cards are set to.
    pub setting: GpuSetting,
    /// Steps a second.
    pub steps_per_s: f64,
    /// Power of one of its cards, idle power and all, watts.
    pub gpu_power_w: f64,
    /// The most that is, where the surface is not sure of it, watts.
    pub gpu_power_w_most: f64,
}

/// All ways to run a job alone that its surface knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatingPoints {
    /// The GPUs' kind.
    pub gpu_type: String,
    /// By GPUs, then by setting; each once. Speeds and powers are such as there are.
    choices: Vec<OperatingPoint>,
}

impl OperatingPoints {
    /// The menu of a surface for a job that asks for `request`: sizes in powers of two between its
    /// limits, and both limits. Empty where the surface says nothing absolute.
    #[must_use]
    pub fn of(surface: &Surface, request: GpuRequest) -> Self {
        Self::read(surface, request, |rate| rate.mean)
    }

    /// The same for a job that can still change its size: until something was measured of it, each
    /// speed is the highest that its prior thinks possible.
    #[must_use]
    pub fn hopeful(surface: &Surface, request: GpuRequest) -> Self {
        if surface.windows > 0 {
            return Self::of(surface, request);
        }
        Self::read(surface, request, |rate| {
            if RATES.contains(&rate.high) { rate.mean.max(rate.high) } else { rate.mean }
        })
    }

    fn read(surface: &Surface, request: GpuRequest, speed: fn(&Estimate) -> f64) -> Self {
        let suits = |gpus: u32| {
            (request.min..=request.max).contains(&gpus)
                && (gpus.is_power_of_two() || gpus == request.min || gpus == request.max)
        };
        let mut best: BTreeMap<(u32, GpuSetting), OperatingPoint> = BTreeMap::new();
        for point in &surface.points {
            let Some(rate) = point.steps_per_s.as_ref().map(speed) else { continue };
            let power = point.gpu_power_w.mean;
            let sound = RATES.contains(&rate) && POWERS_W.contains(&power);
            if !sound
                || !suits(point.gpus)
                || !point.neighbours.is_empty()
                || point.global_batch.is_some()
            {
                continue;
            }
            let setting = GpuSetting { cap_mw: point.cap_mw, clock_mhz_max: point.clock_mhz_max };
            let choice = OperatingPoint {
                gpus: point.gpus,
                nodes: point.nodes,
                setting,
                steps_per_s: rate,
                gpu_power_w: power,
                gpu_power_w_most: power.max(point.gpu_power_w.high.min(*POWERS_W.end())),
            };
            best.entry((point.gpus, setting))
                .and_modify(|known| {
                    if choice.nodes < known.nodes {
                        *known = choice;
                    }
                })
                .or_insert(choice);
        }
        Self { gpu_type: surface.gpu_type.clone(), choices: best.into_values().collect() }
    }

    /// All choices, by GPUs, then by setting.
    #[must_use]
    pub fn choices(&self) -> &[OperatingPoint] {
        &self.choices
    }

    /// The choices with so many GPUs.
    #[must_use]
    pub fn with_gpus(&self, gpus: u32) -> &[OperatingPoint] {
        let from = self.choices.partition_point(|choice| choice.gpus < gpus);
        let until = self.choices.partition_point(|choice| choice.gpus <= gpus);
        &self.choices[from..until]
    }

    /// The numbers of GPUs there are choices for, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = u32> {
        self.choices.chunk_by(|a, b| a.gpus == b.gpus).map(|equal| equal[0].gpus)
    }

    /// Speed for each GPU on the fewest it may have, as the site sets them: steps a second. The unit
    /// in which the work of jobs of all workloads is compared; each kind of GPU has its own.
    #[must_use]
    pub fn unit_rate(&self) -> Option<f64> {
        let least = self.choices.first()?.gpus;
        let choice = self.choice(least, GpuSetting::DEFAULT).or(self.choices.first())?;
        Some(choice.steps_per_s / f64::from(choice.gpus))
    }

    /// The choice of so many GPUs and this setting.
    #[must_use]
    pub fn choice(&self, gpus: u32, setting: GpuSetting) -> Option<&OperatingPoint> {
        self.with_gpus(gpus).iter().find(|choice| choice.setting == setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::messages::SurfacePoint;
    use wattle_common::{Frequency, Timestamp};

    fn exactly(value: f64) -> Estimate {
        Estimate { mean: value, low: value, high: value }
    }

    fn point(gpus: u32, nodes: u32, clock: Option<u32>, rate: f64) -> SurfacePoint {
        SurfacePoint {
            gpus,
            nodes,
            cap_mw: None,
            clock_mhz_max: clock.map(Frequency::from_mhz),
            global_batch: None,
            neighbours: Vec::new(),
            steps_per_s: Some(exactly(rate)),
            relative_speed: exactly(1.0),
            gpu_power_w: exactly(200.0),
        }
    }

    fn surface(points: Vec<SurfacePoint>) -> Surface {
        Surface {
            job: "j".parse().unwrap(),
            predictor: "p".parse().unwrap(),
            at_us: Timestamp::EPOCH,
            gpu_type: "v100".to_owned(),
            windows: 1,
            basis: None,
            class: None,
            utilization_gpu_percent: None,
            utilization_memory_percent: None,
            memory_mib_max: None,
            points,
            other_gpu_types: Vec::new(),
            probe: None,
        }
    }

    #[test]
    fn a_size_that_nobody_tried_counts_as_the_best_it_may_be() {
        let mut surface = surface(vec![point(1, 1, None, 1.0), point(2, 1, None, 1.5)]);
        let unsure = |high: f64| Some(Estimate { mean: 1.5, low: 1.0, high });
        let speed_of_two = |surface: &Surface| {
            let menu = OperatingPoints::hopeful(surface, GpuRequest { min: 1, max: 2 });
            menu.with_gpus(2)[0].steps_per_s.to_bits()
        };
        surface.windows = 0;
        surface.points[1].steps_per_s = unsure(1.9);
        assert_eq!(speed_of_two(&surface), 1.9_f64.to_bits());
        // What no step can be says nothing, and the mean stands.
        for lie in [f64::INFINITY, f64::NAN, 1e300, 0.0, -1.0] {
            surface.points[1].steps_per_s = unsure(lie);
            assert_eq!(speed_of_two(&surface), 1.5_f64.to_bits(), "{lie}");
        }
        surface.points[1].steps_per_s = unsure(1.9);
        surface.windows = 1;
        assert_eq!(speed_of_two(&surface), 1.5_f64.to_bits());
    }

    #[test]
    fn it_keeps_what_the_job_may_have_on_the_fewest_nodes() {
        let surface = surface(vec![
            point(4, 2, None, 2.0),
            point(4, 1, None, 3.0),
            point(4, 1, Some(900), 2.5),
            point(3, 1, None, 2.8),
            point(1, 1, None, 1.0),
            point(6, 1, None, 4.0),
            point(6, 1, Some(900), f64::NAN),
            point(6, 1, Some(800), 1e12),
            point(6, 1, Some(700), 0.0),
        ]);
        let menu = OperatingPoints::of(&surface, GpuRequest { min: 1, max: 6 });
        assert_eq!(menu.sizes().collect::<Vec<_>>(), [1, 4, 6]);
        assert_eq!(menu.with_gpus(4).len(), 2);
        let four = menu.choice(4, GpuSetting::DEFAULT).unwrap();
        assert_eq!((four.nodes, four.steps_per_s), (1, 3.0));
        assert!(menu.with_gpus(2).is_empty());
        // What cannot be is not believed.
        assert_eq!(menu.with_gpus(6).len(), 1);
    }
}

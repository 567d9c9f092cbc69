//! The physical method: points of a surface from the models of the hardware that are fitted to a job
//! ([`crate::job`]) and to all jobs of its GPU type ([`crate::pooled`]).

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::id::WorkloadId;
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_common::observation::Setting;

use crate::configurations::Configuration;
use crate::history::{Class, SharedSet};
use crate::job::cap_clock_response::PreparedSetting;
use crate::job::{JobModel, Profiles};
use crate::model::cap::{self, GpuSpec};
use crate::model::interference::{SetObservation, SetReadings};
use crate::model::pairs::PairTraits;
use crate::pooled::Pooled;
use crate::prior;
use crate::statistics::interval::LogNormal;
use crate::statistics::regression::Gaussian;

/// Prepared settings kept while points are computed.
const SETTINGS_MAX: usize = 32;
/// Relative standard deviation of rate and power over windows of one configuration; intervals are of
/// the next window.
const WINDOW_SD: f64 = 0.02;
/// Largest predicted relative speed; beyond 1 is noise.
pub(crate) const SPEED_MAX: f64 = 1.05;
/// Smallest predicted relative speed.
pub(crate) const SPEED_MIN: f64 = 1e-3;

/// A job's models with their context, from which points are predicted.
#[derive(Clone, Debug)]
pub struct Physical<'a> {
    model: &'a JobModel,
    gpu: &'a GpuSpec,
    profiles: &'a Profiles,
    pooled: &'a Pooled,
    me: PairTraits,
    class: Option<&'a Class>,
    /// Readings of the job, or of its class, by the classes of its co-tenants.
    seen: BTreeMap<&'a [WorkloadId], Vec<&'a SharedSet>>,
}

/// The effect of a set of co-tenants, independent of GPUs and caps.
#[derive(Clone, Copy, Debug)]
struct Together {
    /// The logarithm of the job's slow-down, and its variance.
    slow: (f64, f64),
    /// The neighbours' own power above idle, watts, and its variance.
    others_w: (f64, f64),
    /// The logarithm of the GPU's power above idle over all tenants' added up, and its variance.
    ratio: (f64, f64),
}

impl<'a> Physical<'a> {
    /// Predictions for the job of `model`; `class` is the history of its class.
    #[must_use]
    pub fn new(
        model: &'a JobModel,
        gpu: &'a GpuSpec,
        class: Option<&'a Class>,
        profiles: &'a Profiles,
        pooled: &'a Pooled,
    ) -> Self {
        let mut seen: BTreeMap<&[WorkloadId], Vec<&SharedSet>> = BTreeMap::new();
        // The class contains the job's own summary.
        let own = model.shared.iter().filter(|_| class.is_none());
        let like = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.shared);
        for set in own.chain(like) {
            seen.entry(&set.neighbours).or_default().push(set);
        }
        Self { model, gpu, profiles, pooled, me: model.traits(), class, seen }
    }

    /// The prediction for each of `wanted`.
    #[must_use]
    pub fn points(&self, wanted: &[Configuration]) -> Vec<SurfacePoint> {
        let classes: BTreeSet<&WorkloadId> = wanted.iter().flat_map(|at| &at.neighbours).collect();
        let singles: Singles<'_> = classes.into_iter().map(|c| (c, self.single(c))).collect();
        // Configurations with equal neighbours are adjacent.
        let mut last: Option<(&[WorkloadId], Together)> = None;
        // Few distinct settings occur.
        let mut settings: Vec<(Setting, PreparedSetting)> = Vec::new();
        let mut out = Vec::with_capacity(wanted.len());
        for at in wanted {
            let neighbours = at.neighbours.as_slice();
            let together = match last {
                _ if neighbours.is_empty() => None,
                Some((set, together)) if set == neighbours => Some(together),
                _ => Some(self.together(neighbours, &singles)),
            };
            last = together.map(|together| (neighbours, together));
            let set = Setting::new(at.cap, at.clock_max);
            let known = settings.iter().position(|(s, _)| *s == set).unwrap_or_else(|| {
                settings.truncate(SETTINGS_MAX - 1);
                settings.push((set, self.model.response.prepare(set)));
                settings.len() - 1
            });
            out.push(self.point(at, together, &settings[known].1));
        }
        out
    }

    fn point(
        &self,
        at: &Configuration,
        together: Option<Together>,
        prepared: &PreparedSetting,
    ) -> SurfacePoint {
        let (mut ln_power, mut power_variance) = self.model.ln_power_exclusive(at.shape());
        let mut slow = (0.0, 0.0);
        if let Some(together) = together {
            slow = together.slow;
            (ln_power, power_variance) = self.shared_power(together, ln_power, power_variance);
        }
        // A GPU draws no more than its default cap.
        if self.gpu.cap_known {
            ln_power = ln_power.min(self.gpu.cap_default_w.ln());
        }
        let set = Setting::new(at.cap, at.clock_max);
        let (effect, drop) = self.model.response.answer(prepared, ln_power, power_variance);
        let colocated = LogNormal { mean: -slow.0, variance: slow.1, dof: 8.0 };
        let under =
            LogNormal { mean: -effect.mean, variance: effect.fitted + effect.form, dof: 8.0 };
        // The job's own scatter relative to that of windows in general.
        let (rate_noise, power_noise) = self.model.noise();
        let noise =
            |ratio: f64| LogNormal { mean: 0.0, variance: (WINDOW_SD * ratio).powi(2), dof: 1e6 };
        let reference = together.is_none() && cap::is_default(self.gpu, set);
        let relative_speed = if reference {
            // The reference configuration.
            Estimate { mean: 1.0, low: 1.0, high: 1.0 }
        } else {
            colocated.times(under).times(noise(rate_noise)).estimate(SPEED_MIN, SPEED_MAX)
        };
        let steps_per_s = self
            .model
            .ln_rate_set(at.shape(), prepared, effect)
            // An inferred iteration may be several steps or a part of one.
            .filter(|_| !self.model.inferred)
            .map(|exclusive| {
                exclusive.times(colocated).times(noise(rate_noise)).estimate(1e-9, 1e9)
            });
        let power =
            LogNormal { mean: ln_power + drop.mean, variance: drop.fitted + drop.form, dof: 8.0 };
        let most = if self.gpu.cap_known { 1.1 * self.gpu.cap_default_w } else { 5_000.0 };
        SurfacePoint {
            gpus: at.gpus,
            nodes: at.nodes,
            cap_mw: at.cap,
            clock_mhz_max: at.clock_max,
            global_batch: at.global_batch,
            neighbours: at.neighbours.clone(),
            steps_per_s,
            relative_speed,
            gpu_power_w: power.times(noise(power_noise)).estimate(0.3 * self.gpu.idle_w, most),
        }
    }

    /// Logarithm of the slowdown with one job of `class`, measured or from similar pairs.
    fn single(&self, class: &WorkloadId) -> (f64, f64) {
        let neighbour = std::slice::from_ref(class);
        let mut seen = self.seen_of(neighbour, |shared| shared.slow);
        let mix = self.model.mix(neighbour, self.profiles);
        if seen.is_empty() {
            // The co-location history reaches further back than the sets of jobs.
            let kept = self.class.and_then(|c| c.colocated.of(class));
            seen.extend(kept.map(|stored| SetObservation::new(&mix, stored)));
        }
        if seen.is_empty() {
            self.model.pair_slow(&self.me, class, self.profiles, self.pooled)
        } else {
            self.pooled.interference.slowdown(&mix, &seen)
        }
    }

    fn slow(&self, neighbours: &[WorkloadId], singles: &Singles<'_>) -> (f64, f64) {
        let mix = self.model.mix(neighbours, self.profiles);
        if let [one] = neighbours {
            return singles[one];
        }
        let seen = self.seen_of(neighbours, |shared| shared.slow);
        if !seen.is_empty() {
            return self.pooled.interference.slowdown(&mix, &seen);
        }
        let pair = |n| (self.model.mix(std::slice::from_ref(n), self.profiles), singles[n]);
        let pairs: Vec<_> = neighbours.iter().map(pair).collect();
        self.pooled.interference.slowdown_of_pairs(&mix, &pairs)
    }

    fn power_ratio(&self, neighbours: &[WorkloadId]) -> (f64, f64) {
        let mix = self.model.mix(neighbours, self.profiles);
        let of = |shared: &SharedSet| shared.power;
        let set = self.seen_of(neighbours, of);
        let exclusive = |n| self.seen_of(std::slice::from_ref(n), of).pop();
        let singles: Vec<SetObservation> = if set.is_empty() && neighbours.len() > 1 {
            neighbours.iter().filter_map(exclusive).collect()
        } else {
            Vec::new()
        };
        self.pooled.interference.power(&mix, SetReadings { set: &set, singles: &singles })
    }

    fn together(&self, neighbours: &[WorkloadId], singles: &Singles<'_>) -> Together {
        let (mut others, mut variance) = (0.0, 0.0);
        for class in neighbours {
            let exclusive = self.profiles.get(class).and_then(|p| p.ln_power);
            let exclusive = exclusive.unwrap_or_else(|| {
                let (share, _) = prior::power_share(Some(class.as_str()), self.gpu.power_carried);
                Gaussian { mean: share.mean + self.gpu.cap_default_w.ln(), sd: share.sd }
            });
            let watts = exclusive.mean.exp();
            others += (watts - self.gpu.idle_w).max(1.0);
            variance += (exclusive.sd * watts).powi(2);
        }
        Together {
            slow: self.slow(neighbours, singles),
            others_w: (others, variance),
            ratio: self.power_ratio(neighbours),
        }
    }

    /// Logarithm of a GPU's power with all tenants.
    fn shared_power(&self, together: Together, own: f64, variance: f64) -> (f64, f64) {
        let idle = self.gpu.idle_w;
        let sum = together.others_w.0 + (own.exp() - idle).max(1.0);
        let sum_variance = together.others_w.1 + variance * own.exp().powi(2);
        let above = sum * together.ratio.0.exp();
        let whole = idle + above;
        let relative = sum_variance / (sum * sum) + together.ratio.1;
        (whole.ln(), relative * (above / whole).powi(2))
    }

    /// Readings with exactly these co-tenants.
    fn seen_of(
        &self,
        neighbours: &[WorkloadId],
        of: fn(&SharedSet) -> Option<Gaussian>,
    ) -> Vec<SetObservation> {
        let Some(sets) = self.seen.get(neighbours) else { return Vec::new() };
        let mix = self.model.mix(neighbours, self.profiles);
        sets.iter()
            .filter_map(|set| of(set))
            .map(|stored| SetObservation::new(&mix, stored))
            .collect()
    }
}

/// By class, logarithm of the slowdown with one job of it, with its variance.
type Singles<'b> = BTreeMap<&'b WorkloadId, (f64, f64)>;

//! Prior of the statistical method: a crude formula for rate and power, and its uncertainty.
//!
//! The method predicts residuals of this formula; without readings it returns the formula with wide
//! intervals. All quantities are logarithms. With g GPUs on n nodes, a global batch B, the
//! tenants' total power P under a cap L, a clock locked at f below the top clock f0, N neighbours, and
//! the sum S of busy shares over all tenants:
//!
//! ```text
//! cap_excess = max(0, ln(P / 0.9 L)),  clock_cut = ln(f0 / f),  busy_excess = max(0, S - 0.9)
//! ln rate  = level + 0.7 (ln g - ln B) - 0.15 [n > 1] - 0.05 ln n
//!            - 0.4 cap_excess - 0.5 cap_excess^2 - 0.6 clock_cut - 0.02 N - 0.5 busy_excess
//! ln power = level + ln P - 0.03 ln g - 0.9 cap_excess - 1.5 clock_cut
//! P = idle + (sum of the tenants' power above idle) * e^(-0.05 N - 0.6 busy_excess)
//! ```
//!
//! The constants are rounded priors of [`crate::model`], whose files name the sources. Nothing is
//! fitted here.

use wattle_common::hash::fnv1a;
use wattle_common::id::WorkloadId;
use wattle_common::observation::{Observation, Setting};

use crate::configurations::Configuration;
use crate::job::Profiles;
use crate::model::cap::GpuSpec;
use crate::prior;

/// Assumed global batch of a job that states none; only differences within one job matter then.
const BATCH_UNKNOWN: f64 = 64.0;
/// Share of a cap from which a job's mean power is limited by it.
const CAP_SHARE: f64 = 0.9;
/// Sum of busy shares from which tenants slow each other down.
const BUSY_SUM_FREE: f64 = 0.9;
/// Standard deviation of ln rate between windows of one configuration: they scatter by 1-3 %.
const REPEAT_SD: f64 = 0.02;

/// Traits of a job, independent of its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// Busy share on exclusive GPUs, 0 to 1.
    pub busy: f64,
    /// Memory traffic share on exclusive GPUs, 0 to 1.
    pub memory_busy: f64,
    /// Power of one exclusive GPU at the default setting, watts.
    pub power_w: f64,
    /// Its global batch as last seen.
    pub global_batch: Option<u32>,
}

/// A configuration of a job, as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// ln of GPUs in all.
    pub ln_gpus: f64,
    /// ln of nodes.
    pub ln_nodes: f64,
    /// ln of the global batch.
    pub ln_batch: f64,
    /// ln of the cap as a share of the default, 0 or less.
    pub ln_cap: f64,
    /// ln of power over 0.9 of the cap, 0 or more.
    pub cap_excess: f64,
    /// ln of the top clock over the locked clock, 0 or more.
    pub clock_cut: f64,
    /// Number of neighbours.
    pub neighbours: f64,
    /// Sum of their busy shares.
    pub neighbours_busy: f64,
    /// Sum of all busy shares beyond 0.9.
    pub busy_excess: f64,
    /// ln of the watts that all tenants draw at the default setting.
    pub ln_power: f64,
    /// Hash of the set of neighbours.
    pub set: u64,
}

/// A quantity that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Steps/s.
    Rate,
    /// Power of one GPU.
    Power,
}

impl Place {
    /// The place of a job with `traits` on `gpu`.
    fn new(
        gpu: &GpuSpec,
        traits: &Traits,
        profiles: &Profiles,
        (gpus, nodes, batch): (u32, u32, Option<u32>),
        setting: Setting,
        neighbours: &[WorkloadId],
    ) -> Self {
        let ln = |count: u32| f64::from(count.max(1)).ln();
        let above = |watts: f64| (watts - gpu.idle_w).max(1.0);
        let (mut neighbours_busy, mut sum_w) = (0.0, above(traits.power_w));
        for class in neighbours {
            let known = profiles.get(class);
            neighbours_busy += known.and_then(|p| p.busy).unwrap_or(prior::UTILIZATION).mean;
            let ln_power = known.and_then(|p| p.ln_power).map(|p| p.mean);
            sum_w += above(ln_power.map_or(0.5 * gpu.cap_default_w, f64::exp));
        }
        let count = neighbours.len() as f64;
        let busy_excess = if count > 0.0 {
            (traits.busy + neighbours_busy - BUSY_SUM_FREE).max(0.0)
        } else {
            0.0
        };
        let shared_w = gpu.idle_w + sum_w * (-0.05 * count - 0.6 * busy_excess).exp();
        let most = if gpu.cap_known { gpu.cap_default_w } else { f64::INFINITY };
        let power_w = shared_w.clamp(1.0, most.max(1.0));
        let cap = setting.cap_w.filter(|cap| *cap < 0.99 * gpu.cap_default_w);
        let top = gpu.clock_mhz_top.unwrap_or(0.0);
        Self {
            ln_gpus: ln(gpus),
            ln_nodes: ln(nodes),
            ln_batch: batch.or(traits.global_batch).map_or(BATCH_UNKNOWN.ln(), ln),
            ln_cap: cap.map_or(0.0, |cap| (cap / gpu.cap_default_w).ln()),
            cap_excess: cap.map_or(0.0, |cap| (power_w / (CAP_SHARE * cap)).ln().max(0.0)),
            clock_cut: setting.clock_mhz_max.filter(|f| *f < top).map_or(0.0, |f| (top / f).ln()),
            neighbours: count,
            neighbours_busy,
            busy_excess,
            ln_power: power_w.ln(),
            set: fingerprint(neighbours),
        }
    }

    /// The configuration of a window.
    #[must_use]
    pub fn of_window(w: &Observation, gpu: &GpuSpec, traits: &Traits, profiles: &Profiles) -> Self {
        let shape = (w.gpus, w.nodes, w.global_batch);
        Self::new(gpu, traits, profiles, shape, w.setting(), &w.neighbours)
    }

    /// A requested configuration.
    #[must_use]
    pub fn of(at: &Configuration, gpu: &GpuSpec, traits: &Traits, profiles: &Profiles) -> Self {
        let set = Setting::new(at.cap, at.clock_max);
        let shape = (at.gpus, at.nodes, at.global_batch);
        Self::new(gpu, traits, profiles, shape, set, &at.neighbours)
    }

    /// The same GPUs without co-tenants at the default setting.
    #[must_use]
    pub fn reference(&self, traits: &Traits) -> Self {
        Self {
            ln_cap: 0.0,
            cap_excess: 0.0,
            clock_cut: 0.0,
            neighbours: 0.0,
            neighbours_busy: 0.0,
            busy_excess: 0.0,
            ln_power: traits.power_w.max(1.0).ln(),
            set: fingerprint(&[]),
            ..*self
        }
    }

    /// Whether it has no co-tenants and the default setting.
    #[must_use]
    pub fn is_reference(&self) -> bool {
        self.neighbours < 0.5 && self.ln_cap >= 0.0 && self.clock_cut <= 0.0
    }

    /// The formula without the job's level.
    #[must_use]
    pub fn crude(&self, what: Quantity) -> f64 {
        match what {
            Quantity::Rate => {
                let spread = if self.ln_nodes > 0.0 { 0.15 + 0.05 * self.ln_nodes } else { 0.0 };
                0.7 * (self.ln_gpus - self.ln_batch)
                    - spread
                    - 0.4 * self.cap_excess
                    - 0.5 * self.cap_excess * self.cap_excess
                    - 0.6 * self.clock_cut
                    - 0.02 * self.neighbours
                    - 0.5 * self.busy_excess
            }
            Quantity::Power => {
                self.ln_power - 0.03 * self.ln_gpus - 0.9 * self.cap_excess - 1.5 * self.clock_cut
            }
        }
    }

    /// Prior variance of the formula's error in the logarithm between two places, and a bit mask of
    /// what differs: 1 GPUs or batch, 2 cap or clock, 4 neighbours.
    ///
    /// Standard deviations of ln rate per unit of each feature, from the priors of [`crate::model`]:
    /// 0.15 per factor of e in GPUs (from almost no scaling to perfect) and in nodes, 0.2 in batch, 0.33
    /// of `cap_excess`, 0.3 of `clock_cut`, 0.05 for a set of neighbours and 0.3 of `busy_excess`.
    #[must_use]
    pub fn difference(&self, to: &Self, what: Quantity) -> (f64, usize) {
        let rate = what == Quantity::Rate;
        let square = |v: f64| v * v;
        let mut variance = REPEAT_SD * REPEAT_SD;
        let mut mask = 0;
        let (gpus, nodes) = (self.ln_gpus - to.ln_gpus, self.ln_nodes - to.ln_nodes);
        let batch = self.ln_batch - to.ln_batch;
        if gpus.abs() + nodes.abs() + batch.abs() > 1e-9 {
            mask |= 1;
            let (by_gpus, by_nodes, by_batch) =
                if rate { (0.15, 0.15, 0.2) } else { (0.06, 0.04, 0.06) };
            variance += square(by_gpus * gpus) + square(by_batch * batch);
            let crossing = if (self.ln_nodes > 0.0) == (to.ln_nodes > 0.0) { 0.0 } else { 0.1 };
            variance += square(by_nodes * nodes) + if rate { square(crossing) } else { 0.0 };
        }
        let (cap_excess, cap) = (self.cap_excess - to.cap_excess, self.ln_cap - to.ln_cap);
        let clock_cut = self.clock_cut - to.clock_cut;
        if cap.abs() + clock_cut.abs() > 1e-9 {
            mask |= 2;
            let (by_excess, by_clock) = if rate { (0.33, 0.3) } else { (0.2, 0.5) };
            variance +=
                square(by_excess * cap_excess) + square(by_clock * clock_cut) + square(0.04 * cap);
        }
        if self.set != to.set {
            mask |= 4;
            let (each, by_excess) = if rate { (0.05, 0.3) } else { (0.1, 0.2) };
            let count = (self.neighbours - to.neighbours).abs();
            variance += square(each) * (1.0 + count)
                + square(by_excess * (self.busy_excess - to.busy_excess));
        }
        (variance, mask)
    }
}

/// FNV-1a hash of the names.
fn fingerprint(neighbours: &[WorkloadId]) -> u64 {
    fnv1a(neighbours.iter().flat_map(|class| class.as_str().as_bytes().iter().chain(b"\0")))
}

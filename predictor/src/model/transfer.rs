//! Prior of a job's response to caps from the responses of other jobs on the same GPU type.
//!
//! With a job's power P0 (W) at the default cap L0, for each cap L that enough classes were seen under:
//!
//! ```text
//! z = max(0, ln(P0 / L)),  u = P0 / L0
//! ln(t / t0) = w0 + w1 z + w2 z^2 + w3 u + w4 max(0, 0.8 - u)                      by ridge regression
//! ln(p / p0) = the same ridge regression; for an unseen family, the mean of that, of a Gaussian
//!              kernel smoother over u, and of ln((P0^-k + (c L)^-k)^(-1/k) / P0) with pooled c and k
//! ```
//!
//! Between two such caps, the correction of the prior of [`super::cap`] is interpolated in ln L; it is
//! zero at the default, and without observations the prior of [`super::cap`] remains. The ridge penalty
//! minimises the error over left-out families ([`super::ridge`]); the kernel width is Silverman's
//! ("Density estimation for statistics and data analysis", 1986, eq. 3.31).
//!
//! The deviation of a job from that mean has three parts, all estimated:
//!
//! * Burstiness. A mean power P0 may be steady, or alternate between full power and idle. Under a cap a
//!   steady job draws min(P0, L); a bursty job draws less, and slows down even where its mean is below
//!   the cap ([`BurstBounds`]). The mean does not show which; a uniform distribution between the two has
//!   the gap over the root of 12 as its standard deviation.
//! * A factor of the job's own on its slowdown, and a random walk in ln L: both from the residuals of
//!   jobs, and of families, that the regression did not use ([`spread`]). A job of a seen family
//!   deviates as that family's jobs do, burstiness included.
//!
//! Batch size as a feature increases the error: its effect does not carry over between networks.

mod bin;
mod soft_minimum;
mod spread;

use wattle_common::observation::Setting;

use std::collections::BTreeSet;

use super::cap::{self, GpuSpec};
use super::cap_curve::Shares;
use super::cap_forms::FormChoice;
use super::constant::Constant;
use super::ridge;
use crate::statistics::regression::Gaussian;
use bin::Bin;
use soft_minimum::{fit_soft_minimum, soft};
use spread::{Group, Half, Spread};

/// Largest number of rows of the pooled fit.
pub const ROWS_MAX: usize = 4_096;

/// Largest number of caps with a regression of their own.
const BINS_MAX: usize = 24;
/// Smallest number of observations for a cap to have a regression.
const BIN_ROWS_MIN: usize = 4;
/// Caps within this ratio count as one.
const SAME: f64 = 1.01;
/// Families distinguished; with more, several share a number and are left out together.
const FAMILIES_MAX: u16 = 16;
/// Standard deviation of a uniform distribution as a share of its range: 1 / sqrt(12).
const UNIFORM: f64 = 0.288_675;

/// Standard deviation of ln time from the prior at a cap of 1 / e of the default, if no other family
/// was seen: GPU types differ in curvature (P100 linear, A40 quadratic).
pub const WANDER_PRIOR_TIME: Constant = Constant::new("transfer: WANDER_PRIOR_TIME", 0.05);
/// The same of power, whose form is unknown.
pub const WANDER_PRIOR_POWER: Constant = Constant::new("transfer: WANDER_PRIOR_POWER", 0.15);
/// Standard deviation of a job's factor there: it may be unaffected, or affected twice as much as most.
const SCALE_PRIOR: f64 = 2.0 * UNIFORM;

/// Observation of one class under one cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapObservation {
    /// Number of the class, from 0.
    pub class: u16,
    /// Number of its family, from 0.
    pub family: u16,
    /// Natural logarithm of its power at the default, W.
    pub ln_power: f64,
    /// Cap, W.
    pub cap_w: f64,
    /// Natural logarithm of the slowdown, with its standard deviation.
    pub slow: Option<(f64, f64)>,
    /// Natural logarithm of the power relative to the default, with its standard deviation.
    pub power: Option<(f64, f64)>,
}

/// Prior of one quantity under one setting, before the job was seen under it.
///
/// A job deviates from the mean by a coefficient times `own`, common to all caps, and by a random walk
/// with standard deviation `wander`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EffectPrior {
    /// Expected logarithm.
    pub mean: f64,
    /// Standard deviation of the part common to all caps of a job.
    pub own: f64,
    /// Standard deviation of the random walk.
    pub wander: f64,
}

/// Priors of slowdown and power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CapEffect {
    /// Natural logarithm of the slowdown, zero or more.
    pub slow: EffectPrior,
    /// Natural logarithm of the power relative to the default, zero or less.
    pub power: EffectPrior,
}

/// Gap between the steadiest and the burstiest job of one mean power under a cap, in logarithms:
///
/// ```text
/// d = (P0 - idle) / (L0 - idle)                        the bursty job's share of time at full power
/// power  ln( min(P0, L) / (idle + d (L - idle)) )
/// time   | ln(1 + d (e^F - 1)) - expected |            F: the slowdown of a job with P0 = L0
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstBounds {
    /// Default cap, W.
    pub cap_default_w: f64,
    /// Power without a job, W.
    pub idle_w: f64,
}

impl BurstBounds {
    fn duty(self, power_w: f64) -> f64 {
        ((power_w - self.idle_w) / (self.cap_default_w - self.idle_w).max(1.0)).clamp(0.0, 1.0)
    }

    /// Gap in ln time; `full` and `expected` are natural logarithms of slowdowns.
    fn time(self, power_w: f64, full: f64, expected: f64) -> f64 {
        ((self.duty(power_w) * full.clamp(0.0, 3.0).exp_m1()).ln_1p() - expected).abs()
    }

    /// Gap in ln power.
    fn power(self, power_w: f64, cap_w: f64) -> f64 {
        let steady = power_w.min(cap_w);
        let bursty = self.idle_w + self.duty(power_w) * (cap_w - self.idle_w);
        (steady / bursty.clamp(1.0, steady.max(1.0))).max(1.0).ln()
    }
}

/// Pooled response to caps on one GPU type.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    cap_default_w: f64,
    /// Ascending in cap.
    bins: Vec<Bin>,
    /// (c, k) of the soft minimum.
    soft: Option<(f64, f64)>,
    /// Spreads for jobs of seen families: slowdown, power.
    same_family: (Spread, Spread),
    /// The same for jobs of unseen families.
    new: (Spread, Spread),
    /// Families with two seen classes or more.
    families: BTreeSet<String>,
    /// Shares of the forms in a job's own time curve.
    forms: FormChoice,
}

/// Correction of the prior at one cap, with the weight of the regression in it, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
struct Correction {
    slow: f64,
    /// Correction of the slowdown for a job that draws the default cap.
    full: f64,
    power: f64,
    slow_weight: f64,
    power_weight: f64,
}

impl Transfer {
    /// The prior without observations.
    #[must_use]
    pub fn prior() -> Self {
        let (same_family, new) = (prior_spreads(), prior_spreads());
        Self {
            cap_default_w: 1.0,
            bins: Vec::new(),
            soft: None,
            same_family,
            new,
            families: BTreeSet::new(),
            forms: FormChoice::default(),
        }
    }

    /// Fits the observations on GPUs with these bounds.
    #[must_use]
    pub fn fit(seen: &[CapObservation], bounds: BurstBounds) -> Self {
        let cap_default_w = bounds.cap_default_w;
        let fine = |v: &Option<(f64, f64)>| v.is_none_or(|(y, sd)| y.abs() < 5.0 && sd > 0.0);
        let mut seen: Vec<CapObservation> = seen
            .iter()
            .copied()
            .filter(|s| s.cap_w > 1.0 && s.cap_w < 0.995 * cap_default_w)
            .filter(|s| s.ln_power.is_finite() && fine(&s.slow) && fine(&s.power))
            .map(|s| CapObservation { family: s.family % FAMILIES_MAX, ..s })
            .take(ROWS_MAX)
            .collect();
        // A stable sort: within a cap the rows keep their order.
        seen.sort_by(|a, b| a.cap_w.total_cmp(&b.cap_w));
        let mut groups: Vec<&[CapObservation]> = seen
            .chunk_by(|a, b| b.cap_w <= SAME * a.cap_w)
            .filter(|g| g.len() >= BIN_ROWS_MIN)
            .collect();
        if groups.len() > BINS_MAX {
            // The largest groups are kept.
            groups.sort_by_key(|g| std::cmp::Reverse(g.len()));
            groups.truncate(BINS_MAX);
            groups.sort_by(|a, b| a[0].cap_w.total_cmp(&b[0].cap_w));
        }
        let groups: Vec<Group<'_>> = groups.into_iter().map(Group::of).collect();
        let half = |of: fn(&CapObservation) -> Option<(f64, f64)>| -> Vec<Half> {
            groups.iter().map(|g| g.half(bounds, of)).collect()
        };
        let (slow, power) = (half(|s| s.slow), half(|s| s.power));
        let penalty = |halves: &[Half]| ridge::penalty(halves.iter().map(|h| &h.sums));
        let (slow_ridge, power_ridge) = (penalty(&slow), penalty(&power));
        let slow = spread::spreads(&groups, &slow, slow_ridge.0, bounds, true);
        let power = spread::spreads(&groups, &power, power_ridge.0, bounds, false);
        let prior = prior_spreads();
        let bins = groups.iter().map(|g| Bin::fit(g, cap_default_w, slow_ridge, power_ridge));
        Self {
            cap_default_w,
            bins: bins.collect(),
            soft: fit_soft_minimum(&seen),
            same_family: (slow.0.unwrap_or(prior.0), power.0.unwrap_or(prior.1)),
            new: (slow.1.unwrap_or(prior.0), power.1.unwrap_or(prior.1)),
            families: BTreeSet::new(),
            forms: FormChoice::default(),
        }
    }

    /// With these shares of the forms in a job's own time curve.
    #[must_use]
    pub fn with_forms(self, forms: FormChoice) -> Self {
        Self { forms, ..self }
    }

    /// With the families of the seen classes, one entry for each class.
    #[must_use]
    pub fn with_families(mut self, seen: &[&str]) -> Self {
        let more = |(i, name): &(usize, &&str)| seen[..*i].contains(name);
        self.families =
            seen.iter().enumerate().filter(more).map(|(_, n)| (*n).to_owned()).collect();
        self
    }

    /// Whether at least two classes of `family` were seen; one may be the job itself.
    #[must_use]
    pub fn knows(&self, family: &str) -> bool {
        self.families.contains(family)
    }

    /// Share of each form in a job's own time curve.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.forms.shares
    }

    /// Shares of the forms, with their source.
    #[must_use]
    pub fn forms(&self) -> &FormChoice {
        &self.forms
    }

    /// Number of caps with a regression.
    #[must_use]
    pub fn caps(&self) -> usize {
        self.bins.len()
    }

    /// Prior of a job with exclusive power e^`ln_power` (W) at the default; `same_family`: whether others of its
    /// family were seen under caps.
    #[must_use]
    pub fn effect(&self, gpu: &GpuSpec, ln_power: f64, cap_w: f64, same_family: bool) -> CapEffect {
        if cap_w >= gpu.cap_default_w {
            return CapEffect::default();
        }
        let power_w = ln_power.exp();
        let (slow, power, _) = prior(gpu, power_w, cap_w);
        let off = self.off(gpu, power_w, cap_w, same_family);
        let full = prior_slowdown(gpu, gpu.cap_default_w, cap_w) + off.full;
        let bounds = BurstBounds { cap_default_w: gpu.cap_default_w, idle_w: gpu.idle_w };
        let (slow, power) = ((slow + off.slow).max(0.0), (power + off.power).min(0.0));
        let down = (gpu.cap_default_w / cap_w).ln();
        let expected = |mean: f64, gap: f64, weight: f64, pooled: Spread, prior: Spread| {
            let spread = pooled.towards(prior, 1.0 - weight);
            let own = (UNIFORM * gap).hypot(spread.scale * mean);
            EffectPrior { mean, own, wander: spread.wander * down.sqrt() }
        };
        let prior = prior_spreads();
        let (pooled, gap) = if same_family { (self.same_family, 0.0) } else { (self.new, 1.0) };
        let time_gap = gap * bounds.time(power_w, full, slow);
        let power_gap = gap * bounds.power(power_w, cap_w);
        CapEffect {
            slow: expected(slow, time_gap, off.slow_weight, pooled.0, prior.0),
            power: expected(power, power_gap, off.power_weight, pooled.1, prior.1),
        }
    }

    /// Correction of the prior under `cap_w`.
    fn off(&self, gpu: &GpuSpec, power_w: f64, cap_w: f64, same_family: bool) -> Correction {
        let after = self.bins.partition_point(|b| b.cap_w < cap_w);
        let at = |bin: &Bin| self.off_at(bin, gpu, power_w, same_family);
        match (after.checked_sub(1).map(|i| &self.bins[i]), self.bins.get(after)) {
            (None, None) => Correction::default(),
            (None, Some(lowest)) => at(lowest),
            (Some(low), Some(high)) => {
                let share = (cap_w / low.cap_w).ln() / (high.cap_w / low.cap_w).ln();
                at(low).towards(at(high), share)
            }
            (Some(highest), None) => {
                let off = at(highest);
                let none = Correction { slow: 0.0, full: 0.0, power: 0.0, ..off };
                let whole = (gpu.cap_default_w / highest.cap_w).ln().max(1e-6);
                off.towards(none, (cap_w / highest.cap_w).ln() / whole)
            }
        }
    }

    fn off_at(&self, bin: &Bin, gpu: &GpuSpec, power_w: f64, same_family: bool) -> Correction {
        let x = bin::features(power_w, bin.cap_w, self.cap_default_w);
        let (slow_prior, power_prior, variance) = prior(gpu, power_w, bin.cap_w);
        let (slow, slow_variance) = bin.slow.at(&x);
        let (ridge, power_variance) = bin.power.at(&x);
        let smooth = || bin.smooth_at(power_w / self.cap_default_w);
        let power = match self.soft {
            _ if same_family => ridge,
            Some((c, k)) => {
                let soft = soft(power_w.ln(), (c * bin.cap_w).ln(), k) - power_w.ln();
                (ridge + smooth() + soft) / 3.0
            }
            None => (ridge + smooth()) / 2.0,
        };
        // Precision-weighted: with few classes the ridge regression is imprecise.
        let weight = |pooled: f64| variance / (variance + pooled);
        let (slow_weight, power_weight) = (weight(slow_variance), weight(power_variance));
        let full_prior = prior_slowdown(gpu, gpu.cap_default_w, bin.cap_w);
        Correction {
            slow: slow_weight * (slow - slow_prior),
            full: slow_weight * (bin.full - full_prior),
            power: power_weight * (power - power_prior),
            slow_weight,
            power_weight,
        }
    }
}

impl Correction {
    fn towards(self, other: Self, share: f64) -> Self {
        let mix = |a: f64, b: f64| a + share * (b - a);
        Self {
            slow: mix(self.slow, other.slow),
            full: mix(self.full, other.full),
            power: mix(self.power, other.power),
            slow_weight: mix(self.slow_weight, other.slow_weight),
            power_weight: mix(self.power_weight, other.power_weight),
        }
    }
}

/// Spreads of slowdown and power without observations.
fn prior_spreads() -> (Spread, Spread) {
    let (time, power) = (WANDER_PRIOR_TIME.get(), WANDER_PRIOR_POWER.get());
    (Spread { scale: SCALE_PRIOR, wander: time }, Spread { scale: 0.0, wander: power })
}

fn prior_slowdown(gpu: &GpuSpec, power_w: f64, cap_w: f64) -> f64 {
    let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
    let x = cap::features(gpu, power_w, setting);
    x.iter().zip(&cap::TIME).map(|(x, b)| x * b.mean).sum()
}

/// Prior natural logarithms of slowdown and relative power, and the variance of either.
fn prior(gpu: &GpuSpec, power_w: f64, cap_w: f64) -> (f64, f64, f64) {
    let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
    let x = cap::features(gpu, power_w, setting);
    let at = |priors: &[Gaussian; cap::WIDTH]| -> (f64, f64) {
        let mean = x.iter().zip(priors).map(|(x, b)| x * b.mean).sum();
        let variance =
            x.iter().zip(priors).map(|(x, b)| (x * b.sd * cap::PRIOR_WIDTH.get()).powi(2)).sum();
        (mean, variance)
    };
    let (slow, variance) = at(&cap::TIME);
    // A peak or two may be cut where the prior expects no effect.
    (slow, at(&cap::POWER).0, variance + 0.03 * 0.03)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    const GPU: GpuSpec = GpuSpec::V100;

    const BOUNDS: BurstBounds = BurstBounds { cap_default_w: 250.0, idle_w: 35.0 };

    /// A GPU with time linear in ln(P0 / L), unlike the prior.
    fn truth(power_w: f64, cap_w: f64) -> (f64, f64) {
        let z = (power_w / cap_w).ln().max(0.0);
        (0.7 * z, soft(power_w.ln(), (0.97 * cap_w).ln(), 14.0) - power_w.ln())
    }

    fn seen(classes: usize, noise: f64) -> Vec<CapObservation> {
        let mut rng = Stream::new(3, "classes");
        let mut seen = Vec::new();
        for i in 0..classes {
            let power_w = 60.0 + 180.0 * ((i as f64 * 0.618) % 1.0);
            for cap_w in [100.0, 125.0, 150.0, 175.0, 200.0, 225.0] {
                let (slow, power) = truth(power_w, cap_w);
                seen.push(CapObservation {
                    class: i as u16,
                    family: (i % 5) as u16,
                    ln_power: power_w.ln(),
                    cap_w,
                    slow: Some((slow + noise * rng.normal(), noise)),
                    power: Some((power + noise * rng.normal(), noise)),
                });
            }
        }
        seen
    }

    #[test]
    fn other_classes_teach_the_curve_of_a_gpu_type() {
        let (mut believed_off, mut pooled_off) = (0.0f64, 0.0f64);
        let pooled = Transfer::fit(&seen(40, 0.01), BOUNDS);
        assert_eq!(pooled.caps(), 6);
        for power_w in [120.0, 180.0, 225.0] {
            for cap_w in [100.0, 110.0, 137.0, 160.0, 215.0, 240.0] {
                let (slow, power) = truth(power_w, cap_w);
                let effect = pooled.effect(&GPU, f64::ln(power_w), cap_w, false);
                let before = Transfer::prior().effect(&GPU, f64::ln(power_w), cap_w, false);
                pooled_off = pooled_off.max((effect.slow.mean - slow).abs());
                believed_off = believed_off.max((before.slow.mean - slow).abs());
                assert!((effect.power.mean - power).abs() < 0.06, "{power_w} {cap_w} {effect:?}");
                assert!(effect.slow.wander < before.slow.wander, "{effect:?}");
            }
        }
        assert!(pooled_off < 0.07 && believed_off > 0.1, "{pooled_off} {believed_off}");
    }

    #[test]
    fn few_classes_leave_the_prior() {
        let none = Transfer::fit(&seen(3, 0.01), BOUNDS);
        assert_eq!(none.caps(), 0);
        let effect = |t: &Transfer| t.effect(&GPU, 5.3, 140.0, false).slow.mean;
        let (few, many) =
            (Transfer::fit(&seen(4, 0.01), BOUNDS), Transfer::fit(&seen(40, 0.01), BOUNDS));
        let (prior, few, many) = (effect(&Transfer::prior()), effect(&few), effect(&many));
        assert!((few - many).abs() < (prior - many).abs(), "{prior} {few} {many}");
    }

    #[test]
    fn predictions_stay_possible_for_any_input() {
        let odd = [f64::NAN, f64::INFINITY, -1e9, 0.0, 1e-300, 400.0];
        let mut seen = seen(10, 0.02);
        for (i, value) in odd.into_iter().enumerate() {
            seen.push(CapObservation {
                class: 100 + i as u16,
                family: i as u16,
                ln_power: if i % 2 == 0 { value } else { 5.0 },
                cap_w: if i % 3 == 0 { 150.0 } else { value },
                slow: Some((value, 0.01)),
                power: Some((0.0, value.abs())),
            });
        }
        let pooled = Transfer::fit(&seen, BOUNDS);
        for ln_power in [-3.0, 0.0, 3.0, 5.0, 5.5, 9.0] {
            for cap_w in [1.0, 50.0, 99.0, 150.0, 249.0, 250.0, 900.0] {
                let effect = pooled.effect(&GPU, ln_power, cap_w, false);
                assert!(effect.slow.mean.is_finite() && effect.slow.mean >= 0.0, "{effect:?}");
                assert!(effect.power.mean.is_finite() && effect.power.mean <= 0.0, "{effect:?}");
                assert!(effect.slow.wander >= 0.0 && effect.power.wander >= 0.0, "{effect:?}");
            }
        }
    }
}

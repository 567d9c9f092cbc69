//! Prior of a job's speed and power under a power cap or a locked clock.
//!
//! With the power P0 (W) of one GPU at the default cap L0, a cap L (W), and a locked maximum clock f
//! (MHz; f0 is the GPU's top clock):
//!
//! ```text
//! h(L) = 0.1 ln(1 + (P0 / 0.85 L)^10)                          a soft max(0, ln(P0 / 0.85 L))
//! z  = h(L) - h(L0)                                           how far the cap binds
//! c  = max(0, ln(f0 / f))                                     how far the clock is reduced
//! ln(t / t0) =  w1 z + w2 z^2 + w3 c
//! ln(p / p0) =  v1 z + v2 z^2 + v3 c
//! ```
//!
//! [`super::transfer`] learns how a GPU type differs from this prior, and a job's own readings correct
//! it further. The cap starts to bind at 1.18 P0 because a job's power varies around its mean. w3 is
//! the core-bound share: the power law f^w3 approximates `(1 - w3) + w3 f0 / f` within 2 % down to
//! 0.7 f0.
//!
//! Sources: w1, w2, v1, v2 were fitted with this form to the A40, RTX 6000 and P100 curves of the Zeus
//! traces (ml-energy/zeus, Apache-2.0). GPU types differ (P100 linear, A40 quadratic), hence the wide
//! priors. w3 and v3 are from the RTX 8000 core clock sweep of blackjack2015/NV-DVFS-Benchmark: 0.82
//! of the top clock gives 0.90 of the speed at 0.73 of the power.

use wattle_common::observation::Setting;

use super::constant::Constant;
use crate::statistics::regression::Gaussian;

/// Parameters for each quantity.
pub const WIDTH: usize = 3;

/// Share of a cap at which a job's mean power starts to be limited. Chosen on the P100 traces among
/// 0.85, 0.9 and 1, as was [`CORNER`].
pub const BITE: Constant = Constant::new("cap: BITE", 0.85);

/// Softness of the corner where a cap starts to bind: a job's peaks are cut first. Chosen among 0.06,
/// 0.1 and 0.15, which differ by 0.2 points of error.
pub const CORNER: Constant = Constant::new("cap: CORNER", 0.1);

/// Factor on the standard deviations of the priors below.
pub const PRIOR_WIDTH: Constant = Constant::new("cap: PRIOR_WIDTH", 1.0);

/// Priors of (w1, w2, w3).
pub const TIME: [Gaussian; WIDTH] = [
    Gaussian { mean: 0.0, sd: 0.3 },
    Gaussian { mean: 0.8, sd: 0.5 },
    Gaussian { mean: 0.6, sd: 0.3 },
];

/// Priors of (v1, v2, v3).
pub const POWER: [Gaussian; WIDTH] = [
    Gaussian { mean: -0.92, sd: 0.3 },
    Gaussian { mean: 0.0, sd: 0.5 },
    Gaussian { mean: -1.5, sd: 0.4 },
];

/// Properties of a GPU that the models use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpec {
    /// Default cap, W.
    pub cap_default_w: f64,
    /// Whether the default cap is known rather than guessed.
    pub cap_known: bool,
    /// Power without a job, W.
    pub idle_w: f64,
    /// Top clock, MHz, if one was seen.
    pub clock_mhz_top: Option<f64>,
    /// Whether power priors were measured on other GPU types than this one ([`crate::prior`]).
    pub power_carried: bool,
}

/// Features (z, z^2, c) of a setting for a job with exclusive power `power_w` at the default.
#[must_use]
pub fn features(gpu: &GpuSpec, power_w: f64, setting: Setting) -> [f64; WIDTH] {
    let bite = |cap: f64| {
        let over = (power_w / (BITE.get() * cap)).ln() / CORNER.get();
        // ln(1 + e^x) is x for large x.
        CORNER.get() * if over > 30.0 { over } else { over.exp().ln_1p() }
    };
    let z = match setting.cap_w {
        Some(cap) if cap < gpu.cap_default_w => bite(cap) - bite(gpu.cap_default_w),
        Some(_) | None => 0.0,
    };
    let c = match (setting.clock_mhz_max, gpu.clock_mhz_top) {
        (Some(clock), Some(top)) if clock < top => (top / clock).ln(),
        _ => 0.0,
    };
    [z, z * z, c]
}

/// Whether `setting` limits no more than the default does.
#[must_use]
pub fn is_default(gpu: &GpuSpec, setting: Setting) -> bool {
    let locked = setting.clock_mhz_max.is_some_and(|f| gpu.clock_mhz_top.is_none_or(|top| f < top));
    !locked && setting.cap_w.is_none_or(|cap| cap >= 0.99 * gpu.cap_default_w)
}

/// Whether a power reading under `setting` is close to the job's power at the default.
#[must_use]
pub fn is_free(gpu: &GpuSpec, power_w: f64, setting: Setting) -> bool {
    let unlocked = Setting { clock_mhz_max: setting.clock_mhz_max, cap_w: None };
    is_default(gpu, setting)
        || (is_default(gpu, unlocked) && setting.cap_w.is_some_and(|cap| power_w < 0.85 * cap))
}

#[cfg(test)]
impl GpuSpec {
    /// A V100 with a known cap range and no known clock range, for tests.
    pub(crate) const V100: Self = Self {
        cap_default_w: 250.0,
        cap_known: true,
        idle_w: 35.0,
        clock_mhz_top: None,
        power_carried: true,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuSpec = GpuSpec { clock_mhz_top: Some(1_380.0), ..GpuSpec::V100 };

    fn capped(watts: f64) -> Setting {
        Setting { cap_w: Some(watts), clock_mhz_max: None }
    }

    fn prior(x: [f64; WIDTH], priors: &[Gaussian; WIDTH]) -> f64 {
        x.iter().zip(priors).map(|(x, b)| x * b.mean).sum()
    }

    #[test]
    fn low_power_job_is_not_slowed_by_a_cap() {
        // An embedding model at 40 W under 100 W: measured at no loss on every GPU of the traces.
        let x = features(&GPU, 40.0, capped(100.0));
        assert!(prior(x, &TIME) < 0.001);
        assert!(is_free(&GPU, 40.0, capped(100.0)) && !is_free(&GPU, 99.0, capped(100.0)));
    }

    #[test]
    fn prior_is_close_to_other_gpu_types() {
        // RTX 6000 of 260 W at 150 W: 0.83 of the speed, 143 W (Zeus traces).
        let gpu = GpuSpec { cap_default_w: 260.0, ..GPU };
        let x = features(&gpu, 0.92 * 260.0, capped(150.0));
        let speed = (-prior(x, &TIME)).exp();
        assert!((0.70..0.92).contains(&speed), "{speed}");
        let power = 0.92 * 260.0 * prior(x, &POWER).exp();
        assert!((power / 143.0 - 1.0).abs() < 0.06, "{power}");
    }
}

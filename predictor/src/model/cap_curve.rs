//! Time and power over caps of one job, from three observed caps on.
//!
//! Time t relative to the default as a function of the cap L (W; L1 is the lowest observed), six forms:
//!
//! ```text
//! y = A + B (L / L1)^-h           y = t, ln t or 1 / t       h in 0.5 .. 12
//! y = A + B exp(-(L - L1) / w)    y = t, ln t or 1 / t       w in 3 .. 80 % of the default
//! ```
//!
//! The forms in t give the steepest slowdown below the knee and the forms in 1 / t, the speed, the
//! closest to linear. A and B are weighted least squares. With three readings for three unknowns a point
//! estimate of h or w would follow the noise, so each is averaged over a grid, weighted by likelihood
//! times a prior (h near 4, w near 14 % of the default). The curve is the mean of the forms, weighted by
//! the shares of the GPU type ([`super::cap_forms`]); their spread is the uncertainty of the form.
//!
//! A GPU at its lowest clock may draw more than its cap. L is then the power drawn ([`effective_cap`]),
//! and the time is constant below the lowest L1.
//!
//! Power between two observed caps is the mean of two forms: linear interpolation, and power equal to
//! the cap until it reaches the job's exclusive power.

use wattle_common::numerics::statistics::likelihood_weights;

use super::constant::{Constant, LEAST_SD};
use crate::statistics::regression::{Row, least_squares};

/// Grids of h, and of w as a share of the default cap.
const POWERS: [f64; 8] = [0.5, 0.8, 1.25, 2.0, 3.1, 4.9, 7.6, 12.0];
const REACHES: [f64; 8] = [0.03, 0.05, 0.08, 0.13, 0.2, 0.32, 0.5, 0.8];
/// Prior median of h.
pub const POWER_PRIOR: Constant = Constant::new("cap_curve: POWER_PRIOR", 4.0);
/// Prior median of w.
pub const REACH_PRIOR: Constant = Constant::new("cap_curve: REACH_PRIOR", 0.14);
/// Prior standard deviation of the logarithm of either.
pub const PRIOR_SD: Constant = Constant::new("cap_curve: PRIOR_SD", 0.5);
/// Below this share of the highest observed power a cap counts as binding.
const BINDS: f64 = 0.97;

/// Estimate at one cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Cap, W.
    pub cap_w: f64,
    /// Natural logarithm of the time, relative to any fixed time of the job.
    pub ln_time: f64,
    /// Standard deviation of the logarithm.
    pub sd: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Power(f64),
    Decay(f64),
}

/// Quantity that a form gives, relative to the default.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Time,
    LnTime,
    Speed,
}

/// Number of forms.
pub const FORMS: usize = 6;
/// Names of the forms, in the order of [`Shares`].
pub const NAMES: [&str; FORMS] = [
    "power, time",
    "exponential, time",
    "power, ln time",
    "exponential, ln time",
    "power, speed",
    "exponential, speed",
];
/// Weight of each form; they add up to 1.
pub type Shares = [f64; FORMS];
/// Equal weight of the forms in t and ln t. On the Zeus traces (NSDI'23) of V100 and P100 their mean is
/// as good as the best of each.
pub const EQUAL: Shares = [0.25, 0.25, 0.25, 0.25, 0.0, 0.0];

#[derive(Clone, Copy, Debug, PartialEq)]
struct Member {
    form: Form,
    scale: Scale,
    a: f64,
    b: f64,
    weight: f64,
}

/// Fitted ensemble of time curves.
#[derive(Clone, Debug, PartialEq)]
pub struct CapCurve {
    low_w: f64,
    members: Vec<Member>,
}

impl Form {
    fn at(self, cap_w: f64, low_w: f64) -> f64 {
        match self {
            Self::Power(h) => (cap_w / low_w).powf(-h),
            Self::Decay(reach_w) => (-(cap_w - low_w) / reach_w).exp(),
        }
    }
}

impl Scale {
    /// Natural logarithm of the time.
    fn ln_time(self, y: f64) -> f64 {
        match self {
            Self::Time => y.max(1e-3).ln(),
            Self::LnTime => y,
            Self::Speed => -y.max(1e-3).ln(),
        }
    }

    /// Value and standard deviation of an observation.
    fn of(self, ln_time: f64, sd: f64) -> (f64, f64) {
        let time = ln_time.clamp(-5.0, 5.0).exp();
        match self {
            Self::Time => (time, sd * time),
            Self::LnTime => (ln_time, sd),
            Self::Speed => (1.0 / time, sd / time),
        }
    }
}

impl CapCurve {
    /// Fits `known` for this default cap with each form's share; `None` for fewer than three points.
    #[must_use]
    pub fn fit(known: &[Known], cap_default_w: f64, shares: &Shares) -> Option<Self> {
        if known.len() < 3 {
            return None;
        }
        let low_w = known.iter().map(|k| k.cap_w).fold(f64::INFINITY, f64::min);
        let power = |h: &f64| (Form::Power(*h), (h / POWER_PRIOR.get()).ln());
        let reach = |w: &f64| (Form::Decay(w * cap_default_w), (w / REACH_PRIOR.get()).ln());
        let mut members = Vec::with_capacity(FORMS * POWERS.len());
        for (i, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let scale = [Scale::Time, Scale::LnTime, Scale::Speed][i / 2];
            if i % 2 == 0 {
                one_form(&mut members, POWERS.iter().map(power), known, low_w, (scale, *share));
            } else {
                one_form(&mut members, REACHES.iter().map(reach), known, low_w, (scale, *share));
            }
        }
        Some(Self { low_w, members })
    }

    /// Natural logarithm of the time at a cap between the lowest observed and the default, and the
    /// variance between the forms.
    #[must_use]
    pub fn at(&self, cap_w: f64) -> (f64, f64) {
        let value = |m: &Member| m.scale.ln_time(m.a + m.b * m.form.at(cap_w, self.low_w));
        let values: Vec<(f64, f64)> = self.members.iter().map(|m| (m.weight, value(m))).collect();
        let mean: f64 = values.iter().map(|(w, y)| w * y).sum();
        let spread = values.iter().map(|(w, y)| w * (y - mean) * (y - mean)).sum();
        (mean, spread)
    }
}

/// Cap (W) that has the effect of `cap_w`, for a job that draws `power_w` under it: a GPU at its lowest
/// clock may draw more than its cap, and then a cap of that power has the same effect. At most midway to
/// `above_w`, the next higher one.
#[must_use]
pub fn effective_cap(cap_w: f64, power_w: Option<f64>, above_w: f64) -> f64 {
    cap_w.max(power_w.unwrap_or(0.0).min(f64::midpoint(cap_w, above_w)))
}

/// Adds one form over its grid; its weights add up to `share`.
fn one_form(
    members: &mut Vec<Member>,
    grid: impl Iterator<Item = (Form, f64)>,
    known: &[Known],
    low_w: f64,
    (scale, share): (Scale, f64),
) {
    let from = members.len();
    let mut costs = Vec::new();
    for (form, off) in grid {
        let rows: Vec<Row> = known
            .iter()
            .map(|k| {
                let (y, sd) = scale.of(k.ln_time, k.sd.hypot(LEAST_SD.get()));
                Row { x: vec![1.0, form.at(k.cap_w, low_w)], y, sd }
            })
            .collect();
        let (found, squares) = least_squares(&rows, 2);
        costs.push(squares + (off / PRIOR_SD.get()).powi(2));
        members.push(Member { form, scale, a: found[0], b: found[1], weight: 0.0 });
    }
    for (member, weight) in members[from..].iter_mut().zip(likelihood_weights(&costs)) {
        member.weight = share * weight;
    }
}

/// Power under `cap_w` between two observed caps (all in W): `low` and `high` are (cap, power), `below`
/// the next observation under `low`, `top_w` the power at the default.
#[must_use]
pub fn power_between(
    cap_w: f64,
    below: Option<(f64, f64)>,
    low: (f64, f64),
    high: (f64, f64),
    top_w: f64,
) -> f64 {
    let share = (cap_w - low.0) / (high.0 - low.0);
    let line = low.1 + share * (high.1 - low.1);
    let corner = low.1 < BINDS * top_w && high.1 >= BINDS * top_w;
    if !corner {
        return line;
    }
    // Binding below and not above: power follows the cap up to a corner somewhere between.
    let before = below.map_or(0.0, |b| (low.1 - b.1) / (low.0 - b.0));
    let slope = (low.1 / low.0).max(before).min(1.0);
    let follows = (low.1 + slope * (cap_w - low.0)).min(high.1);
    (line + follows) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(points: &[(f64, f64)]) -> Vec<Known> {
        points.iter().map(|(cap_w, t)| Known { cap_w: *cap_w, ln_time: t.ln(), sd: 0.01 }).collect()
    }

    #[test]
    fn curve_of_neither_form_is_approximated_from_three_caps() {
        let truth = |cap: f64| 1.0 + 0.02 * ((230.0 / cap).powf(5.0) - 0.66).max(0.0);
        let points: Vec<(f64, f64)> = [100.0, 175.0, 250.0].map(|c| (c, truth(c))).to_vec();
        let shape = CapCurve::fit(&known(&points), 250.0, &EQUAL).unwrap();
        for cap in [110.0, 125.0, 150.0, 200.0, 225.0] {
            let (ln_time, spread) = shape.at(cap);
            assert!((ln_time - truth(cap).ln()).abs() < 0.03, "{cap}: {ln_time}");
            assert!((0.0..0.01).contains(&spread), "{cap}: {spread}");
        }
        assert!(CapCurve::fit(&known(&points[..2]), 250.0, &EQUAL).is_none());
    }

    /// ResNet-50 at batch 128 on a Quadro RTX 6000 (Zeus traces): speed relative to the default.
    #[test]
    fn forms_in_speed_follow_a_saturating_speed() {
        let speed = [(125.0, 0.703), (150.0, 0.831), (175.0, 0.903)];
        let points = known(&[(100.0, 1.0 / 0.430), (200.0, 1.0 / 0.946), (260.0, 1.0)]);
        let off = |shares: &Shares| {
            let shape = CapCurve::fit(&points, 260.0, shares).unwrap();
            speed.map(|(cap, speed)| (shape.at(cap).0 + f64::ln(speed)).abs()).iter().sum::<f64>()
        };
        let blend = off(&[0.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
        assert!(blend < 0.1 && off(&EQUAL) > 1.5 * blend, "{blend} {}", off(&EQUAL));
    }

    #[test]
    fn power_above_the_cap_takes_its_place() {
        assert!((effective_cap(100.0, Some(115.0), 150.0) - 115.0).abs() < 1e-9);
        assert!((effective_cap(100.0, Some(90.0), 150.0) - 100.0).abs() < 1e-9);
        assert!((effective_cap(100.0, None, 150.0) - 100.0).abs() < 1e-9);
        assert!((effective_cap(100.0, Some(190.0), 150.0) - 125.0).abs() < 1e-9);
    }

    #[test]
    fn flat_noisy_readings_give_a_flat_curve() {
        let shape =
            CapCurve::fit(&known(&[(100.0, 1.01), (175.0, 0.97), (250.0, 1.0)]), 250.0, &EQUAL)
                .unwrap();
        for cap in [110.0, 140.0, 200.0, 230.0] {
            assert!(shape.at(cap).0.abs() < 0.05, "{cap}");
        }
    }

    #[test]
    fn power_has_a_corner_between_binding_and_free_caps() {
        // 200 W job: binding at 150 W, free at 250 W; linear interpolation gives 174 W at 200 W.
        let bound = power_between(200.0, None, (150.0, 148.0), (250.0, 200.0), 200.0);
        assert!(bound > 180.0 && bound < 200.0, "{bound}");
        let line = power_between(125.0, None, (100.0, 98.0), (150.0, 148.0), 200.0);
        assert!((line - 123.0).abs() < 1e-9, "{line}");
    }
}

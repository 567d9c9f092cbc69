//! Time and power over caps of one job, from three observed caps on.
//!
//! Time relative to the default as a function of the cap L (W; L1 is the lowest observed), four forms:
//!
//! ```text
//! t = A + B (L / L1)^-h           ln t = A + B (L / L1)^-h            h in 0.5 .. 12
//! t = A + B exp(-(L - L1) / w)    ln t = A + B exp(-(L - L1) / w)     w in 3 .. 80 % of the default
//! ```
//!
//! A and B are weighted least squares. With three readings for three unknowns a point estimate of h or
//! w would follow the noise, so each is averaged over a grid, weighted by likelihood times a prior (h
//! near 4, w near 14 % of the default). The four forms have equal weight: on the Zeus traces
//! (NSDI'23) no single form is best on both GPU types, and their mean is as good as the best of each
//! (1.9 % on V100 and P100). Their spread is the uncertainty of the form.
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

#[derive(Clone, Copy, Debug, PartialEq)]
struct Member {
    form: Form,
    /// Whether the form gives the logarithm of the time.
    log: bool,
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

impl CapCurve {
    /// Fits `known` for this default cap; `None` for fewer than three points.
    #[must_use]
    pub fn fit(known: &[Known], cap_default_w: f64) -> Option<Self> {
        if known.len() < 3 {
            return None;
        }
        let low_w = known.iter().map(|k| k.cap_w).fold(f64::INFINITY, f64::min);
        let powers = || POWERS.iter().map(|h| (Form::Power(*h), (h / POWER_PRIOR.get()).ln()));
        let reach = |w: &f64| (Form::Decay(w * cap_default_w), (w / REACH_PRIOR.get()).ln());
        let mut members = Vec::with_capacity(32);
        for log in [false, true] {
            one_form(&mut members, powers(), known, low_w, log);
            one_form(&mut members, REACHES.iter().map(reach), known, low_w, log);
        }
        Some(Self { low_w, members })
    }

    /// Natural logarithm of the time at a cap between the lowest observed and the default, and the
    /// variance between the forms.
    #[must_use]
    pub fn at(&self, cap_w: f64) -> (f64, f64) {
        let value = |m: &Member| {
            let y = m.a + m.b * m.form.at(cap_w, self.low_w);
            if m.log { y } else { y.max(1e-3).ln() }
        };
        let values: Vec<(f64, f64)> = self.members.iter().map(|m| (m.weight, value(m))).collect();
        let mean: f64 = values.iter().map(|(w, y)| w * y).sum();
        let spread = values.iter().map(|(w, y)| w * (y - mean) * (y - mean)).sum();
        (mean, spread)
    }
}

/// Adds one form over its grid; its weights add up to a quarter.
fn one_form(
    members: &mut Vec<Member>,
    grid: impl Iterator<Item = (Form, f64)>,
    known: &[Known],
    low_w: f64,
    log: bool,
) {
    let from = members.len();
    let mut costs = Vec::new();
    for (form, off) in grid {
        let rows: Vec<Row> = known
            .iter()
            .map(|k| {
                let (sd, x) = (k.sd.hypot(LEAST_SD.get()), vec![1.0, form.at(k.cap_w, low_w)]);
                let time = k.ln_time.clamp(-5.0, 5.0).exp();
                let (y, sd) = if log { (k.ln_time, sd) } else { (time, sd * time) };
                Row { x, y, sd }
            })
            .collect();
        let (found, squares) = least_squares(&rows, 2);
        costs.push(squares + (off / PRIOR_SD.get()).powi(2));
        members.push(Member { form, log, a: found[0], b: found[1], weight: 0.0 });
    }
    for (member, weight) in members[from..].iter_mut().zip(likelihood_weights(&costs)) {
        member.weight = 0.25 * weight;
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
        let shape = CapCurve::fit(&known(&points), 250.0).unwrap();
        for cap in [110.0, 125.0, 150.0, 200.0, 225.0] {
            let (ln_time, spread) = shape.at(cap);
            assert!((ln_time - truth(cap).ln()).abs() < 0.03, "{cap}: {ln_time}");
            assert!((0.0..0.01).contains(&spread), "{cap}: {spread}");
        }
        assert!(CapCurve::fit(&known(&points[..2]), 250.0).is_none());
    }

    #[test]
    fn flat_noisy_readings_give_a_flat_curve() {
        let shape =
            CapCurve::fit(&known(&[(100.0, 1.01), (175.0, 0.97), (250.0, 1.0)]), 250.0).unwrap();
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

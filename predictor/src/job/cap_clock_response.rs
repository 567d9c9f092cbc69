//! Response of one job to power caps and locked clocks: a prior from other jobs, corrected by the
//! job's own readings.
//!
//! One linear model for the logarithm of the slowdown t / t0, and one of the same form for power:
//!
//! ```text
//! ln(t / t0) = T(L) + q S(L) + steps over L  +  w c(f) + steps over f
//! ```
//!
//! T is the expected effect of cap L (W) and S the deviation between jobs, both from
//! [`crate::model::transfer`]; q is this job's coefficient. c = ln(f0 / f) for a clock f (MHz) locked
//! below the top clock f0, and w its exponent. Between observed settings the job deviates by
//! independent steps (a random walk), so a reading mostly informs settings close to it. This module
//! provides features and priors; [`super::JobModel`] fits them together with the levels.
//!
//! From three caps or clocks on, the job's own curve ([`crate::model::cap_curve`],
//! [`crate::model::clock`]) replaces the linear model between them. As a cap falls, predicted
//! slowdown never decreases and predicted power never increases.

mod curves;
mod knots;

use wattle_common::observation::{Observation, Setting};

use std::sync::Arc;

use crate::history::AtSetting;
use crate::model::cap::{self, GpuSpec};
use crate::model::clock::ClockCurves;
use crate::model::constant::{Constant, LEAST_SD};
use crate::model::transfer::{CapEffect, EffectPrior, Transfer};
use crate::statistics::regression::{Gaussian, Posterior, Row};
use knots::{knots, place, rising, steps};

/// Variance of a job's deviation from the clock's power law, for each unit of ln(f0 / f): of time.
pub(crate) const CLOCK_WANDER_TIME: Constant =
    Constant::new("cap_clock_response: CLOCK_WANDER_TIME", 0.1);
/// The same of power.
pub(crate) const CLOCK_WANDER_POWER: Constant =
    Constant::new("cap_clock_response: CLOCK_WANDER_POWER", 0.5);
/// Standard deviation for a cap and a clock together, whose interaction was not measured.
const BOTH_SD: f64 = 0.05;
/// Standard deviation of a shift to another exclusive power, as a share of the shift.
pub(crate) const SHIFT_SHARE: Constant = Constant::new("cap_clock_response: SHIFT_SHARE", 0.3);

/// Predicted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// ln(t / t0), the slowdown.
    Slow,
    /// ln(p / p0), the relative power.
    Power,
}

/// Predicted logarithm with its two sources of variance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// Expected logarithm.
    pub mean: f64,
    /// Variance of the fitted parameters.
    pub fitted: f64,
    /// Variance of the curve's form and of the exclusive power.
    pub form: f64,
}

/// A setting, with everything that does not depend on the exclusive power.
#[derive(Clone, Debug)]
pub struct PreparedSetting {
    cap: Option<f64>,
    clock: Option<f64>,
    /// Features of the slowdown.
    columns: Vec<f64>,
    /// Prior at the job's current exclusive power.
    own: CapEffect,
    slow: Part,
    power: Part,
}

/// One quantity under a setting.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Variance of the fitted parameters.
    fitted: f64,
    /// Contribution of the clock to the logarithm.
    clock: f64,
    /// Contribution of the cap.
    cap: Value,
    /// Variance of the clock's form, or of a cap and a clock together.
    open: f64,
}

/// Value of a curve under one cap.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    mean: f64,
    form: f64,
    /// Derivative by the logarithm of the job's exclusive power.
    slope: f64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    ln_cap: f64,
    slow: Value,
    power: Value,
}

/// Response of one job to caps and clocks.
#[derive(Clone, Debug)]
pub struct CapClockResponse {
    gpu: GpuSpec,
    transfer: Arc<Transfer>,
    /// Whether other jobs of its family were seen under caps.
    same_family: bool,
    ln_power: f64,
    /// Caps and clocks with a step of their own, in descending order.
    caps: Vec<f64>,
    clocks: Vec<f64>,
    /// Prior at each of the caps.
    at_caps: Vec<CapEffect>,
    slow: Posterior,
    power: Posterior,
    /// In descending order of caps.
    table: Vec<Node>,
    own_clocks: Option<ClockCurves>,
}

fn wander(expected: EffectPrior) -> f64 {
    expected.wander * expected.wander
}

fn of(half: Output, effect: CapEffect) -> EffectPrior {
    match half {
        Output::Slow => effect.slow,
        Output::Power => effect.power,
    }
}

impl PreparedSetting {
    /// Features of the slowdown; empty for the default setting.
    #[must_use]
    pub fn columns(&self) -> &[f64] {
        &self.columns
    }
}

impl CapClockResponse {
    /// Prior before any reading, with steps for the settings that `windows` and the class were seen
    /// under. `same_family`: whether other jobs of the family were seen under caps; `ln_power`: natural
    /// logarithm of the job's exclusive power at the default setting (W).
    #[must_use]
    pub fn expected(
        gpu: &GpuSpec,
        (transfer, same_family): (&Arc<Transfer>, bool),
        ln_power: f64,
        windows: &[Observation],
        class: &[AtSetting],
    ) -> Self {
        let exclusive = || windows.iter().filter(|w| w.is_exclusive()).map(Observation::setting);
        let class = || class.iter().map(|at| at.setting);
        let caps_seen = exclusive().chain(class()).filter_map(|s| non_default_cap(gpu, s));
        let clocks_seen = exclusive().chain(class()).filter_map(|s| non_default_clock(gpu, s));
        let caps = knots(caps_seen);
        let at_caps =
            caps.iter().map(|cap| transfer.effect(gpu, ln_power, *cap, same_family)).collect();
        let mut response = Self {
            gpu: *gpu,
            transfer: Arc::clone(transfer),
            same_family,
            ln_power,
            caps,
            clocks: knots(clocks_seen),
            at_caps,
            slow: Posterior::from_priors(&[]),
            power: Posterior::from_priors(&[]),
            table: Vec::new(),
            own_clocks: None,
        };
        response.slow = Posterior::from_priors(&response.priors(Output::Slow));
        response.power = Posterior::from_priors(&response.priors(Output::Power));
        response
    }

    fn effect(&self, ln_power: f64, cap_w: f64) -> CapEffect {
        self.transfer.effect(&self.gpu, ln_power, cap_w, self.same_family)
    }

    /// Number of parameters for each quantity.
    #[must_use]
    pub fn width(&self) -> usize {
        2 + self.caps.len() + self.clocks.len()
    }

    /// Settings with a step of their own: caps, then clocks.
    #[must_use]
    pub fn knots(&self) -> Vec<Setting> {
        let cap = |cap: &f64| Setting { cap_w: Some(*cap), clock_mhz_max: None };
        let clock = |mhz: &f64| Setting { cap_w: None, clock_mhz_max: Some(*mhz) };
        self.caps.iter().map(cap).chain(self.clocks.iter().map(clock)).collect()
    }

    /// Natural logarithm of the exclusive power (W) that the prior was made for.
    #[must_use]
    pub fn ln_power(&self) -> f64 {
        self.ln_power
    }

    /// Difference of the prior under a setting between exclusive power `ln_power` and
    /// [`Self::ln_power`].
    #[must_use]
    pub fn shift(&self, half: Output, setting: Setting, ln_power: f64) -> f64 {
        let Some(cap) = non_default_cap(&self.gpu, setting) else { return 0.0 };
        of(half, self.effect(ln_power, cap)).mean - of(half, self.effect(self.ln_power, cap)).mean
    }

    /// Observed locked clocks, MHz, in descending order.
    #[must_use]
    pub fn clocks(&self) -> &[f64] {
        &self.clocks
    }

    /// Index of a setting in [`Self::knots`]; `Some(None)` for the default; `None` for a setting
    /// between knots, and for a cap together with a clock.
    #[must_use]
    pub fn knot(&self, setting: Setting) -> Option<Option<usize>> {
        let on = |knots: &[f64], at: f64| match place(knots, at) {
            (count, true) => Some(count - 1),
            _ => None,
        };
        match (non_default_cap(&self.gpu, setting), non_default_clock(&self.gpu, setting)) {
            (None, None) => Some(None),
            (Some(cap), None) => on(&self.caps, cap).map(Some),
            (None, Some(clock)) => on(&self.clocks, clock).map(|i| Some(self.caps.len() + i)),
            (Some(_), Some(_)) => None,
        }
    }

    /// Priors of the parameters: the job's coefficient q, the caps' steps, the clock's exponent, the
    /// clocks' steps.
    #[must_use]
    pub fn priors(&self, half: Output) -> Vec<Gaussian> {
        let steps = |variances: Vec<f64>, priors: &mut Vec<Gaussian>| {
            let mut last = 0.0;
            for variance in variances {
                priors.push(Gaussian { mean: 0.0, sd: (variance - last).sqrt() });
                last = variance;
            }
        };
        let mut priors = vec![Gaussian { mean: 0.0, sd: 1.0 }];
        steps(self.cap_variances(half), &mut priors);
        priors.push(match half {
            Output::Slow => cap::TIME[2],
            Output::Power => cap::POWER[2],
        });
        steps(self.clock_variances(half), &mut priors);
        priors
    }

    /// Features of a setting at exclusive power `ln_power`, the prior mean, and the variance that no
    /// parameter explains.
    #[must_use]
    pub fn columns(&self, half: Output, setting: Setting, ln_power: f64) -> (Vec<f64>, f64, f64) {
        let cap = non_default_cap(&self.gpu, setting);
        let effect = cap.map_or_else(CapEffect::default, |cap| self.effect(ln_power, cap));
        self.columns_of(half, setting, effect)
    }

    /// The same with the cap's prior given.
    fn columns_of(
        &self,
        half: Output,
        setting: Setting,
        effect: CapEffect,
    ) -> (Vec<f64>, f64, f64) {
        let mut row = Vec::with_capacity(self.width());
        let (cap, clock) =
            (non_default_cap(&self.gpu, setting), non_default_clock(&self.gpu, setting));
        let (mut mean, mut open) = (0.0, 0.0);
        if let Some(cap) = cap {
            let expected = of(half, effect);
            mean = expected.mean;
            row.push(expected.own);
            let (place, on) = place(&self.caps, cap);
            open += steps(place, on, wander(expected), &self.cap_variances(half), &mut row);
        } else {
            row.resize(1 + self.caps.len(), 0.0);
        }
        if let (Some(clock), Some(top)) = (clock, self.gpu.clock_mhz_top) {
            let down = (top / clock).ln();
            row.push(down);
            let (place, on) = place(&self.clocks, clock);
            let own = self.clock_variance(half, clock);
            open += steps(place, on, own, &self.clock_variances(half), &mut row);
        } else {
            row.resize(self.width(), 0.0);
        }
        if cap.is_some() && clock.is_some() {
            open += BOTH_SD * BOTH_SD;
        }
        (row, mean, open)
    }

    /// Observations of the class as rows of the fit; `levels` parameters precede these.
    #[must_use]
    pub fn class_rows(&self, half: Output, class: &[AtSetting], levels: usize) -> Vec<Row> {
        let row = |at: &AtSetting| {
            let seen = match half {
                Output::Slow => at.slow,
                Output::Power => at.power,
            }?;
            let demand = at.ln_power.unwrap_or(self.ln_power);
            let (columns, mean, open) = self.columns(half, at.setting, demand);
            let mut x = vec![0.0; levels];
            x.extend(columns);
            let sd = (seen.sd * seen.sd + LEAST_SD.get() * LEAST_SD.get() + open).sqrt();
            Some(Row { x, y: seen.mean - mean, sd })
        };
        class.iter().filter_map(row).collect()
    }

    /// Sets the fitted parameters and builds the curves. `default_seen`: whether the default was
    /// observed, for the slowdown and for power.
    pub fn learn(&mut self, slow: Posterior, power: Posterior, default_seen: (bool, bool)) {
        (self.slow, self.power) = (slow, power);
        self.draw_caps(default_seen);
        self.draw_clocks(default_seen);
    }

    /// Prepares a setting for repeated predictions.
    #[must_use]
    pub fn prepare(&self, setting: Setting) -> PreparedSetting {
        let cap = non_default_cap(&self.gpu, setting);
        let clock = non_default_clock(&self.gpu, setting);
        let own = cap.map_or_else(CapEffect::default, |cap| self.effect(self.ln_power, cap));
        let part = |half: Output| {
            if cap.is_none() && clock.is_none() {
                return (Vec::new(), Part::default());
            }
            let (row, _, open) = self.columns_of(half, setting, own);
            let part = Part {
                fitted: self.posterior(half).at(&row).1,
                clock: clock.map_or(0.0, |mhz| self.clock_mean(half, mhz)),
                cap: cap.map_or_else(Value::default, |cap| self.value(half, cap)),
                // A cap's form is in its value.
                open: match (cap, clock) {
                    (None, _) => open,
                    (Some(_), None) => 0.0,
                    (Some(_), Some(_)) => BOTH_SD * BOTH_SD,
                },
            };
            (row, part)
        };
        let ((columns, slow), (_, power)) = (part(Output::Slow), part(Output::Power));
        PreparedSetting { cap, clock, columns, own, slow, power }
    }

    /// Predicted slowdown and power under a setting, for an exclusive power with mean `ln_demand` and
    /// `variance`. The variance of power includes that of the exclusive power itself.
    #[must_use]
    pub fn answer(&self, at: &PreparedSetting, ln_demand: f64, variance: f64) -> (Answer, Answer) {
        // A lower clock reduces power, so a cap binds later.
        let demand = ln_demand + if at.clock.is_some() { at.power.clock } else { 0.0 };
        let moved = at.cap.filter(|_| (demand - self.ln_power).abs() > 1e-9);
        let there = moved.map_or(at.own, |cap| self.effect(demand, cap));
        let half = |half: Output| {
            let (part, sign, own) = match half {
                Output::Slow => (at.slow, 1.0, 0.0),
                Output::Power => (at.power, -1.0, 1.0),
            };
            let shift = of(half, there).mean - of(half, at.own).mean;
            // The bound holds after the shift as well.
            let under = sign * (sign * (part.cap.mean + shift)).max(0.0);
            let slope = own + part.cap.slope;
            let form = part.open + part.cap.form + (SHIFT_SHARE.get() * shift).powi(2);
            Answer {
                mean: part.clock + under,
                fitted: part.fitted,
                form: form + slope * slope * variance,
            }
        };
        (half(Output::Slow), half(Output::Power))
    }

    fn posterior(&self, half: Output) -> &Posterior {
        match half {
            Output::Slow => &self.slow,
            Output::Power => &self.power,
        }
    }

    fn cap_variances(&self, half: Output) -> Vec<f64> {
        rising(self.at_caps.iter().map(|effect| wander(of(half, *effect))))
    }

    fn clock_variance(&self, half: Output, mhz: f64) -> f64 {
        let each =
            if half == Output::Slow { CLOCK_WANDER_TIME.get() } else { CLOCK_WANDER_POWER.get() };
        self.gpu.clock_mhz_top.map_or(0.0, |top| each * (top / mhz).ln())
    }

    fn clock_variances(&self, half: Output) -> Vec<f64> {
        rising(self.clocks.iter().map(|mhz| self.clock_variance(half, *mhz)))
    }
}

/// Cap of a setting if it is below the default.
pub(super) fn non_default_cap(gpu: &GpuSpec, setting: Setting) -> Option<f64> {
    setting.cap_w.filter(|cap| *cap < 0.99 * gpu.cap_default_w)
}

/// Clock of a setting if it is locked below the top clock.
pub(super) fn non_default_clock(gpu: &GpuSpec, setting: Setting) -> Option<f64> {
    let top = gpu.clock_mhz_top?;
    setting.clock_mhz_max.filter(|clock| *clock < 0.999 * top)
}

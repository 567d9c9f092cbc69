//! How one job answers to caps and locked clocks: what is expected of it, moved by its own readings.
//!
//! One linear model for the logarithm of the slow-down, and one of the same shape for the power:
//!
//! ```text
//! ln(t / t0) = T(L) + q S(L) + the steps of L  +  w c(f) + the steps of f
//! ```
//!
//! T is what jobs like it did, and S how far jobs lie off that in a way of their own
//! ([`crate::model::transfer`]); q is this job's. Between the settings it was seen under it wanders
//! from that in independent steps, so a reading tells most about its neighbourhood. Columns and beliefs are made here; `job` fits them together with the
//! levels. From three caps (or clocks) on, the job's own curve stands between them
//! ([`crate::model::shape`], [`crate::model::clock`]), and what is expected only beyond.
//!
//! Slowing down never turns into speeding up as a cap falls, nor does power rise.

mod draw;
mod knots;

use std::sync::Arc;

use crate::fit::{Belief, Posterior, Row};
use crate::history::AtSetting;
use crate::model::cap::{self, Card};
use crate::model::clock::Clocks;
use crate::model::constant::{Constant, LEAST_SD};
use crate::model::transfer::{Expected, Guess, Transfer};
use knots::{knots, place, rising, steps};
use wattle_common::observation::{Observation, Setting};

/// How far a job wanders from the clock's power law, as a variance for each unit of ln(f0 / f).
pub(crate) const CLOCK_WANDER_TIME: Constant = Constant::new("held: CLOCK_WANDER_TIME", 0.1);
/// The same of power.
pub(crate) const CLOCK_WANDER_POWER: Constant = Constant::new("held: CLOCK_WANDER_POWER", 0.5);
/// How sure a cap and a clock together are: nothing was measured of how they act on each other.
const BOTH_SD: f64 = 0.05;
/// Deviation of a shift to another demand, as a share of it.
pub(crate) const SHIFT_SHARE: Constant = Constant::new("held: SHIFT_SHARE", 0.3);

/// The slow-down, or the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// ln(t / t0).
    Slow,
    /// ln(p / p0).
    Power,
}

/// An expectation with what it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// The expected logarithm.
    pub mean: f64,
    /// Variance from the fitted parameters.
    pub fitted: f64,
    /// Variance from the curve's form and from the demand.
    pub form: f64,
}

/// One setting, with all that does not depend on the card's demand.
#[derive(Clone, Debug)]
pub struct Prepared {
    cap: Option<f64>,
    clock: Option<f64>,
    /// The features of the slow-down.
    columns: Vec<f64>,
    /// What is expected of the job alone.
    own: Guess,
    slow: Part,
    power: Part,
}

/// A setting's half.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Variance from the fitted parameters.
    fitted: f64,
    /// The clock's part of the logarithm.
    clock: f64,
    /// The cap's.
    cap: Value,
    /// Variance of a clock's form, or of a cap and a clock at once.
    open: f64,
}

/// A curve's value under one cap.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    mean: f64,
    form: f64,
    /// How it changes with the logarithm of the job's power.
    slope: f64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    ln_cap: f64,
    slow: Value,
    power: Value,
}

/// How one job answers to caps and clocks.
#[derive(Clone, Debug)]
pub struct Held {
    card: Card,
    transfer: Arc<Transfer>,
    /// Whether others of its family were seen under caps.
    kin: bool,
    ln_power: f64,
    /// Caps and clocks with a step of their own, descending.
    caps: Vec<f64>,
    clocks: Vec<f64>,
    /// What is expected at each of the caps.
    at_caps: Vec<Guess>,
    slow: Posterior,
    power: Posterior,
    /// Descending in cap.
    table: Vec<Node>,
    own_clocks: Option<Clocks>,
}

fn wander(expected: Expected) -> f64 {
    expected.wander * expected.wander
}

fn of(half: Half, guess: Guess) -> Expected {
    match half {
        Half::Slow => guess.slow,
        Half::Power => guess.power,
    }
}

impl Prepared {
    /// The features of the slow-down; none for the default.
    #[must_use]
    pub fn columns(&self) -> &[f64] {
        &self.columns
    }
}

impl Held {
    /// What is expected before any reading, with steps for what `windows` and the class were seen
    /// under. `kin`: whether others of its family were; `ln_power` is the logarithm of the job's power alone at the default.
    #[must_use]
    pub fn expected(
        card: &Card,
        (transfer, kin): (&Arc<Transfer>, bool),
        ln_power: f64,
        windows: &[Observation],
        class: &[AtSetting],
    ) -> Self {
        let alone = || windows.iter().filter(|w| w.alone()).map(Observation::setting);
        let class = || class.iter().map(|at| at.setting);
        let held_caps = alone().chain(class()).filter_map(|s| held_cap(card, s));
        let held_clocks = alone().chain(class()).filter_map(|s| held_clock(card, s));
        let caps = knots(held_caps);
        let at_caps = caps.iter().map(|cap| transfer.guess(card, ln_power, *cap, kin)).collect();
        let mut held = Self {
            card: *card,
            transfer: Arc::clone(transfer),
            kin,
            ln_power,
            caps,
            clocks: knots(held_clocks),
            at_caps,
            slow: Posterior::of_beliefs(&[]),
            power: Posterior::of_beliefs(&[]),
            table: Vec::new(),
            own_clocks: None,
        };
        held.slow = Posterior::of_beliefs(&held.beliefs(Half::Slow));
        held.power = Posterior::of_beliefs(&held.beliefs(Half::Power));
        held
    }

    fn guess(&self, ln_power: f64, cap_w: f64) -> Guess {
        self.transfer.guess(&self.card, ln_power, cap_w, self.kin)
    }

    /// How many parameters each half has.
    #[must_use]
    pub fn width(&self) -> usize {
        2 + self.caps.len() + self.clocks.len()
    }

    /// The settings with a step of their own: the caps, then the clocks.
    #[must_use]
    pub fn knots(&self) -> Vec<Setting> {
        let cap = |cap: &f64| Setting { cap_w: Some(*cap), clock_mhz_max: None };
        let clock = |mhz: &f64| Setting { cap_w: None, clock_mhz_max: Some(*mhz) };
        self.caps.iter().map(cap).chain(self.clocks.iter().map(clock)).collect()
    }

    /// The logarithm of the power its card is taken to draw at the default where the job is now.
    #[must_use]
    pub fn ln_power(&self) -> f64 {
        self.ln_power
    }

    /// How much more is expected under a setting where the card draws `ln_power` at the default
    /// than where the job is now.
    #[must_use]
    pub fn shift(&self, half: Half, setting: Setting, ln_power: f64) -> f64 {
        let Some(cap) = held_cap(&self.card, setting) else { return 0.0 };
        of(half, self.guess(ln_power, cap)).mean - of(half, self.guess(self.ln_power, cap)).mean
    }

    /// The locked clocks that were seen, MHz, descending.
    #[must_use]
    pub fn clocks(&self) -> &[f64] {
        &self.clocks
    }

    /// Which of [`Held::knots`] a setting is, `Some(None)` for the default; `None` for one between
    /// them, or a cap and a clock at once.
    #[must_use]
    pub fn knot(&self, setting: Setting) -> Option<Option<usize>> {
        let on = |knots: &[f64], at: f64| match place(knots, at) {
            (count, true) => Some(count - 1),
            _ => None,
        };
        match (held_cap(&self.card, setting), held_clock(&self.card, setting)) {
            (None, None) => Some(None),
            (Some(cap), None) => on(&self.caps, cap).map(Some),
            (None, Some(clock)) => on(&self.clocks, clock).map(|i| Some(self.caps.len() + i)),
            (Some(_), Some(_)) => None,
        }
    }

    /// What is believed of the parameters: what is its own, the caps' steps, the clock's exponent,
    /// the clocks' steps.
    #[must_use]
    pub fn beliefs(&self, half: Half) -> Vec<Belief> {
        let steps = |variances: Vec<f64>, beliefs: &mut Vec<Belief>| {
            let mut last = 0.0;
            for variance in variances {
                beliefs.push(Belief { mean: 0.0, sd: (variance - last).sqrt() });
                last = variance;
            }
        };
        let mut beliefs = vec![Belief { mean: 0.0, sd: 1.0 }];
        steps(self.cap_variances(half), &mut beliefs);
        beliefs.push(match half {
            Half::Slow => cap::TIME[2],
            Half::Power => cap::POWER[2],
        });
        steps(self.clock_variances(half), &mut beliefs);
        beliefs
    }

    /// The features of a setting for a card that draws `ln_power` at the default, what is expected of
    /// it beside them, and the variance that no parameter holds.
    #[must_use]
    pub fn columns(&self, half: Half, setting: Setting, ln_power: f64) -> (Vec<f64>, f64, f64) {
        let cap = held_cap(&self.card, setting);
        let guess = cap.map_or_else(Guess::default, |cap| self.guess(ln_power, cap));
        self.columns_of(half, setting, guess)
    }

    /// The same where what is expected of its cap is known.
    fn columns_of(&self, half: Half, setting: Setting, guess: Guess) -> (Vec<f64>, f64, f64) {
        let mut row = Vec::with_capacity(self.width());
        let (cap, clock) = (held_cap(&self.card, setting), held_clock(&self.card, setting));
        let (mut mean, mut open) = (0.0, 0.0);
        if let Some(cap) = cap {
            let expected = of(half, guess);
            mean = expected.mean;
            row.push(expected.own);
            let (place, on) = place(&self.caps, cap);
            open += steps(place, on, wander(expected), &self.cap_variances(half), &mut row);
        } else {
            row.resize(1 + self.caps.len(), 0.0);
        }
        if let (Some(clock), Some(top)) = (clock, self.card.clock_mhz_top) {
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

    /// What the class showed, as rows of the fit; `levels` parameters come before these.
    #[must_use]
    pub fn class_rows(&self, half: Half, class: &[AtSetting], levels: usize) -> Vec<Row> {
        let row = |at: &AtSetting| {
            let seen = match half {
                Half::Slow => at.slow,
                Half::Power => at.power,
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

    /// Takes in the fitted parameters, and draws the curves. `default_seen` says of which half the
    /// job's default is known.
    pub fn learn(&mut self, slow: Posterior, power: Posterior, default_seen: (bool, bool)) {
        (self.slow, self.power) = (slow, power);
        self.draw_caps(default_seen);
        self.draw_clocks(default_seen);
    }

    /// All that a setting needs and that does not depend on the demand: worth keeping where many
    /// questions ask for the same one.
    #[must_use]
    pub fn prepare(&self, setting: Setting) -> Prepared {
        let cap = held_cap(&self.card, setting);
        let clock = held_clock(&self.card, setting);
        let own = cap.map_or_else(Guess::default, |cap| self.guess(self.ln_power, cap));
        let part = |half: Half| {
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
        let ((columns, slow), (_, power)) = (part(Half::Slow), part(Half::Power));
        Prepared { cap, clock, columns, own, slow, power }
    }

    /// The answers, slow-down and power, to a setting where the card's demand at the default is
    /// `ln_demand` with a variance. The variance of the demand itself is in the power's.
    #[must_use]
    pub fn answer(&self, at: &Prepared, ln_demand: f64, variance: f64) -> (Answer, Answer) {
        // A card clocked down draws less, and its cap bites later.
        let demand = ln_demand + if at.clock.is_some() { at.power.clock } else { 0.0 };
        let moved = at.cap.filter(|_| (demand - self.ln_power).abs() > 1e-9);
        let there = moved.map_or(at.own, |cap| self.guess(demand, cap));
        let half = |half: Half| {
            let (part, sign, own) = match half {
                Half::Slow => (at.slow, 1.0, 0.0),
                Half::Power => (at.power, -1.0, 1.0),
            };
            let shift = of(half, there).mean - of(half, at.own).mean;
            // Slower, and less power, whatever the shift.
            let under = sign * (sign * (part.cap.mean + shift)).max(0.0);
            let slope = own + part.cap.slope;
            let form = part.open + part.cap.form + (SHIFT_SHARE.get() * shift).powi(2);
            Answer {
                mean: part.clock + under,
                fitted: part.fitted,
                form: form + slope * slope * variance,
            }
        };
        (half(Half::Slow), half(Half::Power))
    }

    fn posterior(&self, half: Half) -> &Posterior {
        match half {
            Half::Slow => &self.slow,
            Half::Power => &self.power,
        }
    }

    fn cap_variances(&self, half: Half) -> Vec<f64> {
        rising(self.at_caps.iter().map(|guess| wander(of(half, *guess))))
    }

    fn clock_variance(&self, half: Half, mhz: f64) -> f64 {
        let each =
            if half == Half::Slow { CLOCK_WANDER_TIME.get() } else { CLOCK_WANDER_POWER.get() };
        self.card.clock_mhz_top.map_or(0.0, |top| each * (top / mhz).ln())
    }

    fn clock_variances(&self, half: Half) -> Vec<f64> {
        rising(self.clocks.iter().map(|mhz| self.clock_variance(half, *mhz)))
    }
}

/// The cap of a setting, where it is below the default.
fn held_cap(card: &Card, setting: Setting) -> Option<f64> {
    setting.cap_w.filter(|cap| *cap < 0.99 * card.cap_default_w)
}

/// The clock of a setting, where it is locked below the top.
fn held_clock(card: &Card, setting: Setting) -> Option<f64> {
    let top = card.clock_mhz_top?;
    setting.clock_mhz_max.filter(|clock| *clock < 0.999 * top)
}

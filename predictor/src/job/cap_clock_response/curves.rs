//! Curves of one job from its fitted parameters: a table over caps, and the job's own clock curve.

use wattle_common::observation::Setting;

use super::{CapClockResponse, Node, Output, Value, of};
use crate::job::own_curve::{OwnTimeCurve, own_power_at};
use crate::model::cap_curve::effective_cap;
use crate::model::clock::{self, ClockCurves};
use crate::model::transfer::CapEffect;

/// Table over caps: equal steps of the logarithm down to a quarter of the default.
const TABLE_STEPS: usize = 24;
const TABLE_LOW: f64 = 0.25;

impl CapClockResponse {
    /// Value of the linear model under a cap, and the variance that no parameter explains.
    pub(super) fn linear(&self, half: Output, cap_w: f64) -> (f64, f64) {
        self.linear_of(half, cap_w, self.effect(self.ln_power, cap_w))
    }

    /// The same with the cap's prior given.
    fn linear_of(&self, half: Output, cap_w: f64, effect: CapEffect) -> (f64, f64) {
        let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
        let (row, mean, open) = self.columns_of(half, setting, effect);
        (mean + self.posterior(half).at(&row).0, open)
    }

    pub(super) fn draw_caps(&mut self, (slow_seen, power_seen): (bool, bool)) {
        let default_w = self.gpu.cap_default_w;
        let mut caps: Vec<f64> = (1..=TABLE_STEPS)
            .map(|i| default_w * TABLE_LOW.powf(i as f64 / TABLE_STEPS as f64))
            .chain(self.caps.iter().copied())
            .collect();
        caps.sort_by(|a, b| b.total_cmp(a));
        let enough = self.caps.len() >= 2;
        let slow_curve = (enough && slow_seen)
            .then(|| {
                OwnTimeCurve::fit(&self.own_slow(power_seen), default_w, self.transfer.shares())
            })
            .flatten();
        let power_curve = (enough && power_seen).then(|| self.own_power());
        // With more observations under caps, the curve depends less on the exclusive power.
        let known = 1.0 / (1 + self.caps.len()) as f64;
        let lowest = self.caps.last().copied().unwrap_or(f64::INFINITY);
        let mut table =
            vec![Node { ln_cap: default_w.ln(), slow: Value::default(), power: Value::default() }];
        for cap in caps {
            let last = table[table.len() - 1];
            let effect = |ln_power| self.effect(ln_power, cap);
            let (here, above) = (effect(self.ln_power), effect(self.ln_power + 0.05));
            let value = |half: Output, mean: f64, form: f64| {
                let slope = known * (of(half, above).mean - of(half, here).mean) / 0.05;
                Value { mean, form, slope }
            };
            let (mut slow, mut slow_form) = self.linear_of(Output::Slow, cap, here);
            let (mut power, mut power_form) = self.linear_of(Output::Power, cap, here);
            if cap >= lowest {
                if let Some(curve) = &slow_curve {
                    (slow, slow_form) = curve.at(cap);
                }
                if let Some(curve) = &power_curve {
                    (power, power_form) = own_power_at(curve, cap, self.ln_power.exp());
                }
            }
            table.push(Node {
                ln_cap: cap.ln(),
                slow: value(Output::Slow, slow.max(last.slow.mean), slow_form),
                power: value(Output::Power, power.min(last.power.mean), power_form),
            });
        }
        self.table = table;
    }

    /// (effective cap, ln slowdown, its variance), in descending order of caps. `power_seen`: whether
    /// power at the default was observed.
    fn own_slow(&self, power_seen: bool) -> Vec<(f64, f64, f64)> {
        let mut above = self.gpu.cap_default_w;
        let one = |cap: &f64| {
            let setting = Setting { cap_w: Some(*cap), clock_mhz_max: None };
            let (row, mean, _) = self.columns(Output::Slow, setting, self.ln_power);
            let (off, variance) = self.slow.at(&row);
            let power =
                power_seen.then(|| (self.ln_power + self.linear(Output::Power, *cap).0).exp());
            above = effective_cap(*cap, power, above);
            (above, mean + off, variance)
        };
        self.caps.iter().map(one).collect()
    }

    /// (cap, ln relative power), in descending order of caps, the default first.
    fn own_power(&self) -> Vec<(f64, f64)> {
        let mut points = vec![(self.gpu.cap_default_w, 0.0)];
        points.extend(self.caps.iter().map(|cap| (*cap, self.linear(Output::Power, *cap).0)));
        points
    }

    pub(super) fn draw_clocks(&mut self, (slow_seen, power_seen): (bool, bool)) {
        let Some(top) = self.gpu.clock_mhz_top else { return };
        let mut known: Vec<clock::Known> = self
            .clocks
            .iter()
            .rev()
            .map(|mhz| clock::Known {
                mhz: *mhz,
                ln_time: self.clock_law(Output::Slow, *mhz),
                ln_power: power_seen.then(|| self.clock_law(Output::Power, *mhz)),
            })
            .collect();
        if slow_seen && !known.is_empty() {
            let ln_power = power_seen.then_some(0.0);
            known.push(clock::Known { mhz: top, ln_time: 0.0, ln_power });
        }
        self.own_clocks = ClockCurves::fit(&known);
    }

    /// Value of the linear model under a clock.
    fn clock_law(&self, half: Output, mhz: f64) -> f64 {
        let setting = Setting { cap_w: None, clock_mhz_max: Some(mhz) };
        self.posterior(half).at(&self.columns(half, setting, self.ln_power).0).0
    }

    pub(super) fn clock_mean(&self, half: Output, mhz: f64) -> f64 {
        let own = self.own_clocks.as_ref().filter(|c| c.contains(mhz));
        let own = own.and_then(|c| match half {
            Output::Slow => Some(c.ln_time(mhz)),
            Output::Power => c.ln_power(mhz),
        });
        let mean = own.unwrap_or_else(|| self.clock_law(half, mhz));
        if half == Output::Slow { mean.max(0.0) } else { mean.min(0.0) }
    }

    pub(super) fn value(&self, half: Output, cap_w: f64) -> Value {
        let of = |node: &Node| match half {
            Output::Slow => node.slow,
            Output::Power => node.power,
        };
        let at = cap_w.ln();
        let after = self.table.partition_point(|n| n.ln_cap >= at);
        match (after.checked_sub(1).map(|i| &self.table[i]), self.table.get(after)) {
            (Some(high), Some(low)) => {
                let share = (high.ln_cap - at) / (high.ln_cap - low.ln_cap).max(1e-12);
                let (a, b) = (of(high), of(low));
                let mix = |a: f64, b: f64| a + share * (b - a);
                Value {
                    mean: mix(a.mean, b.mean),
                    form: mix(a.form, b.form),
                    slope: mix(a.slope, b.slope),
                }
            }
            (Some(last), None) | (None, Some(last)) => of(last),
            (None, None) => Value::default(),
        }
    }
}

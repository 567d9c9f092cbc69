//! The curves of one job, drawn from what was fitted: over caps as a table, over clocks as its own.
//!
//! Slowing down never turns into speeding up as a cap falls, nor does power rise.

use super::{Half, Held, Node, Value, of};
use crate::job::curve::{OwnTime, own_power_at};
use crate::model::clock::{self, Clocks};
use crate::model::transfer::Guess;
use wattle_common::observation::Setting;

/// The table over caps: steps of the logarithm down to a quarter of the default.
const TABLE_STEPS: usize = 24;
const TABLE_LOW: f64 = 0.25;

impl Held {
    /// What the fitted parameters say of a cap alone, and the variance left open.
    pub(super) fn linear(&self, half: Half, cap_w: f64) -> (f64, f64) {
        self.linear_of(half, cap_w, self.guess(self.ln_power, cap_w))
    }

    /// The same where what is expected under the cap is known.
    fn linear_of(&self, half: Half, cap_w: f64, guess: Guess) -> (f64, f64) {
        let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
        let (row, mean, open) = self.columns_of(half, setting, guess);
        (mean + self.posterior(half).at(&row).0, open)
    }

    pub(super) fn draw_caps(&mut self, (slow_seen, power_seen): (bool, bool)) {
        let default_w = self.card.cap_default_w;
        let mut caps: Vec<f64> = (1..=TABLE_STEPS)
            .map(|i| default_w * TABLE_LOW.powf(i as f64 / TABLE_STEPS as f64))
            .chain(self.caps.iter().copied())
            .collect();
        caps.sort_by(|a, b| b.total_cmp(a));
        let enough = self.caps.len() >= 2;
        let slow_curve =
            (enough && slow_seen).then(|| OwnTime::fit(&self.own_slow(), default_w)).flatten();
        let power_curve = (enough && power_seen).then(|| self.own_power());
        // The more was seen of a job's own curve, the less it hangs on its power.
        let known = 1.0 / (1 + self.caps.len()) as f64;
        let lowest = self.caps.last().copied().unwrap_or(f64::INFINITY);
        let mut table =
            vec![Node { ln_cap: default_w.ln(), slow: Value::default(), power: Value::default() }];
        for cap in caps {
            let last = table[table.len() - 1];
            let guess = |ln_power| self.guess(ln_power, cap);
            let (here, above) = (guess(self.ln_power), guess(self.ln_power + 0.05));
            let value = |half: Half, mean: f64, form: f64| {
                let slope = known * (of(half, above).mean - of(half, here).mean) / 0.05;
                Value { mean, form, slope }
            };
            let (mut slow, mut slow_form) = self.linear_of(Half::Slow, cap, here);
            let (mut power, mut power_form) = self.linear_of(Half::Power, cap, here);
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
                slow: value(Half::Slow, slow.max(last.slow.mean), slow_form),
                power: value(Half::Power, power.min(last.power.mean), power_form),
            });
        }
        self.table = table;
    }

    /// (cap, ln of slow-down, its variance), descending.
    fn own_slow(&self) -> Vec<(f64, f64, f64)> {
        let one = |cap: &f64| {
            let setting = Setting { cap_w: Some(*cap), clock_mhz_max: None };
            let (row, mean, _) = self.columns(Half::Slow, setting, self.ln_power);
            let (off, variance) = self.slow.at(&row);
            (*cap, mean + off, variance)
        };
        self.caps.iter().map(one).collect()
    }

    /// (cap, ln of power relative to the default), descending, the default first.
    fn own_power(&self) -> Vec<(f64, f64)> {
        let mut points = vec![(self.card.cap_default_w, 0.0)];
        points.extend(self.caps.iter().map(|cap| (*cap, self.linear(Half::Power, *cap).0)));
        points
    }

    pub(super) fn draw_clocks(&mut self, (slow_seen, power_seen): (bool, bool)) {
        let Some(top) = self.card.clock_mhz_top else { return };
        let mut known: Vec<clock::Known> = self
            .clocks
            .iter()
            .rev()
            .map(|mhz| clock::Known {
                mhz: *mhz,
                ln_time: self.clock_law(Half::Slow, *mhz),
                ln_power: power_seen.then(|| self.clock_law(Half::Power, *mhz)),
            })
            .collect();
        if slow_seen && !known.is_empty() {
            let ln_power = power_seen.then_some(0.0);
            known.push(clock::Known { mhz: top, ln_time: 0.0, ln_power });
        }
        self.own_clocks = Clocks::fit(&known);
    }

    /// What the fitted parameters say of a clock.
    fn clock_law(&self, half: Half, mhz: f64) -> f64 {
        let setting = Setting { cap_w: None, clock_mhz_max: Some(mhz) };
        self.posterior(half).at(&self.columns(half, setting, self.ln_power).0).0
    }

    pub(super) fn clock_mean(&self, half: Half, mhz: f64) -> f64 {
        let own = self.own_clocks.as_ref().filter(|c| c.holds(mhz));
        let own = own.and_then(|c| match half {
            Half::Slow => Some(c.ln_time(mhz)),
            Half::Power => c.ln_power(mhz),
        });
        let mean = own.unwrap_or_else(|| self.clock_law(half, mhz));
        if half == Half::Slow { mean.max(0.0) } else { mean.min(0.0) }
    }

    pub(super) fn value(&self, half: Half, cap_w: f64) -> Value {
        let of = |node: &Node| match half {
            Half::Slow => node.slow,
            Half::Power => node.power,
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

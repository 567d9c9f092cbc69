//! A job's speed and power under locked clocks, from three observed clocks on.
//!
//! With a locked maximum clock f (MHz), time t and power p relative to the top clock, and energy
//! e = t p:
//!
//! ```text
//! t(f)  monotone cubic through the observed clocks
//! e(f)  mean of three: monotone cubic through e; piecewise linear through e; and t(f) P(f) with
//! P(f) = a + b f + c max(0, f - k)      k over a grid, weighted by likelihood
//! ```
//!
//! Power has a corner: below some clock the voltage no longer falls. Four clocks rarely locate the
//! corner, and the errors of the three forms differ, hence their mean. On the per-stage profiles of
//! Perseus (SOSP'24) the error is 0.4 % (A100) and 1.6 % (A40) in time, 1.2 and 1.5 % in energy;
//! a + b / f and A + B f^-h are off by 0.8 to 2.5 % in time. With fewer clocks the power law of
//! [`super::cap`] is used.

use wattle_common::numerics::statistics::likelihood_weights;
use wattle_common::numerics::{EndSlopes, MonotoneCubic};

use super::constant::Constant;
use crate::statistics::regression::{Row, least_squares};

/// ClockCurves from which on the job's own curve is used.
pub const CLOCKS_MIN: usize = 3;
/// Corner positions tried between the lowest and the highest clock.
const CORNERS: usize = 15;
/// Standard deviation of the piecewise linear power, as a share.
pub const CORNER_SD: Constant = Constant::new("clock: CORNER_SD", 0.01);

/// Estimate at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Clock, MHz.
    pub mhz: f64,
    /// Natural logarithm of the time relative to the top clock.
    pub ln_time: f64,
    /// Natural logarithm of the power relative to the top clock.
    pub ln_power: Option<f64>,
}

/// Clock curves of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockCurves {
    time: MonotoneCubic,
    power: Option<PowerCurve>,
    low_mhz: f64,
    high_mhz: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct PowerCurve {
    energy: MonotoneCubic,
    line: Vec<(f64, f64)>,
    corners: Vec<Corner>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Corner {
    at: f64,
    a: f64,
    b: f64,
    c: f64,
    weight: f64,
}

impl ClockCurves {
    /// Curves through `known`, in ascending order of clocks; `None` for fewer than [`CLOCKS_MIN`].
    #[must_use]
    pub fn fit(known: &[Known]) -> Option<Self> {
        if known.len() < CLOCKS_MIN {
            return None;
        }
        let times: Vec<(f64, f64)> = known.iter().map(|k| (k.mhz, k.ln_time.exp())).collect();
        let both: Vec<(f64, f64, f64)> = known
            .iter()
            .filter_map(|k| Some((k.mhz, k.ln_time.exp(), k.ln_power?.exp())))
            .collect();
        Some(Self {
            time: MonotoneCubic::new(&times, EndSlopes::ThreePoint)?,
            power: PowerCurve::fit(&both),
            low_mhz: known[0].mhz,
            high_mhz: known[known.len() - 1].mhz,
        })
    }

    /// Whether `mhz` lies within the observed clocks.
    #[must_use]
    pub fn contains(&self, mhz: f64) -> bool {
        (self.low_mhz..=self.high_mhz).contains(&mhz)
    }

    /// Natural logarithm of the time at `mhz` relative to the top clock.
    #[must_use]
    pub fn ln_time(&self, mhz: f64) -> f64 {
        self.time.at(mhz).max(1e-3).ln()
    }

    /// Natural logarithm of the power at `mhz` relative to the top clock.
    #[must_use]
    pub fn ln_power(&self, mhz: f64) -> Option<f64> {
        let curve = self.power.as_ref()?;
        let time = self.time.at(mhz).max(1e-3);
        let energy = curve.energy_at(mhz, time);
        Some((energy / time).max(1e-3).ln())
    }
}

impl PowerCurve {
    /// From (MHz, time, power), in ascending order of clocks.
    fn fit(known: &[(f64, f64, f64)]) -> Option<Self> {
        if known.len() < CLOCKS_MIN {
            return None;
        }
        let line: Vec<(f64, f64)> = known.iter().map(|(f, t, p)| (*f, t * p)).collect();
        let (low, high) = (known[0].0, known[known.len() - 1].0);
        let mut corners = Vec::with_capacity(CORNERS);
        let mut costs = Vec::with_capacity(CORNERS);
        for i in 1..=CORNERS {
            let at = low + (high - low) * i as f64 / (CORNERS + 1) as f64;
            let row = |(f, _, p): &(f64, f64, f64)| Row {
                x: features(*f, at).to_vec(),
                y: *p,
                sd: CORNER_SD.get() * p,
            };
            let (found, squares) = least_squares(&known.iter().map(row).collect::<Vec<_>>(), 3);
            corners.push(Corner { at, a: found[0], b: found[1], c: found[2], weight: 0.0 });
            costs.push(squares);
        }
        for (corner, weight) in corners.iter_mut().zip(likelihood_weights(&costs)) {
            corner.weight = weight;
        }
        Some(Self { energy: MonotoneCubic::new(&line, EndSlopes::ThreePoint)?, line, corners })
    }

    fn energy_at(&self, mhz: f64, time: f64) -> f64 {
        let last = self.line.len() - 1;
        let at = mhz.clamp(self.line[0].0, self.line[last].0);
        let i = self.line.partition_point(|(f, _)| *f <= at).clamp(1, last) - 1;
        let ((f0, e0), (f1, e1)) = (self.line[i], self.line[i + 1]);
        let straight = e0 + (e1 - e0) * (at - f0) / (f1 - f0);
        let cornered: f64 = self
            .corners
            .iter()
            .map(|c| {
                let x = features(at, c.at);
                c.weight * (c.a * x[0] + c.b * x[1] + c.c * x[2])
            })
            .sum();
        (self.energy.at(at) + straight + time * cornered.max(0.0)) / 3.0
    }
}

/// (1, f, max(0, f - k)), clocks in GHz.
fn features(mhz: f64, corner_mhz: f64) -> [f64; 3] {
    [1.0, mhz / 1_000.0, (mhz - corner_mhz).max(0.0) / 1_000.0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voltage_floor_is_approximated_between_clocks() {
        // Power is linear up to 1,100 MHz and three times as steep beyond; time partly core-bound.
        let time = |f: f64| 0.35 + 0.65 * 1_400.0 / f;
        let power = |f: f64| 0.25 + 0.35 * f / 1_400.0 + 0.0014 * (f - 1_100.0).max(0.0);
        let top = (time(1_400.0), power(1_400.0));
        let known: Vec<Known> = [800.0, 1_000.0, 1_200.0, 1_400.0]
            .map(|f| Known {
                mhz: f,
                ln_time: (time(f) / top.0).ln(),
                ln_power: Some((power(f) / top.1).ln()),
            })
            .to_vec();
        let clocks = ClockCurves::fit(&known).unwrap();
        for f in [850.0, 900.0, 1_050.0, 1_150.0, 1_300.0, 1_350.0] {
            assert!((clocks.ln_time(f) - (time(f) / top.0).ln()).abs() < 0.005, "{f}");
            let off = clocks.ln_power(f).unwrap() - (power(f) / top.1).ln();
            assert!(off.abs() < 0.04, "{f}: {off}");
        }
        assert!(clocks.contains(900.0) && !clocks.contains(700.0));
        assert!(ClockCurves::fit(&known[..2]).is_none());
    }

    #[test]
    fn power_is_unknown_without_power_readings() {
        let known: Vec<Known> = [800.0, 1_000.0, 1_200.0]
            .map(|mhz| Known { mhz, ln_time: 1_200.0f64.ln() - f64::ln(mhz), ln_power: None })
            .to_vec();
        assert_eq!(ClockCurves::fit(&known).unwrap().ln_power(900.0), None);
    }
}

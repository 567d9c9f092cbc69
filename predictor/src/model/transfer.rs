//! What caps do to a job that was seen under none of them, from jobs that were.
//!
//! One kind of card, pooled over all classes seen on it. With a job's power P0 at the default cap
//! L0, for each cap L that enough classes were seen under:
//!
//! ```text
//! z = max(0, ln(P0 / L)),  u = P0 / L0
//! ln(t / t0) = w0 + w1 z + w2 z^2 + w3 u + w4 max(0, 0.8 - u)                      a ridge
//! ln(p / p0) = the mean of the same ridge on it, of what jobs of like u did (Gaussian in u,
//!              width 0.06), and of ln((P0^-k + (c L)^-k)^(-1/k) / P0), c and k pooled over caps
//! ```
//!
//! Between two such caps their deviation from the belief of [`super::cap`] is interpolated in
//! ln L; at the default it is none, and where nothing was seen the belief stands alone. On the Zeus
//! traces with the job's network left out the time is 3.9 % (V100) and 3.0 % (P100) off, the power
//! 3.7 and 3.4 %; boosted trees are 4.8, 3.5, 3.9 and 4.2 %. Batch size as a feature makes it worse:
//! it does not carry from one network to another.

use super::cap::{self, Card, Setting};
use crate::fit::{Belief, Posterior, Row, fit};

/// Rows the pooled fit reads at most.
pub const ROWS_MAX: usize = 4_096;

/// Features of the ridge.
const WIDTH: usize = 5;
/// Caps with a regression of their own.
const BINS_MAX: usize = 24;
/// Classes that must have been seen under a cap.
const BIN_ROWS_MIN: usize = 4;
/// Caps this close are one.
const SAME: f64 = 1.01;
/// How far classes lie off the ridge, and the ridge's belief, ten times that: a penalty of 0.01.
const ROW_SD: f64 = 0.15;
const RIDGE: Belief = Belief { mean: 0.0, sd: 1.5 };
/// Width of the smoother in u, and the grid of u it is tabulated on.
const KERNEL_WIDTH: f64 = 0.06;
/// Beyond so many widths nothing counts.
const KERNEL_REACH: f64 = 4.0;
const GRID_STEP: f64 = 0.02;
const GRID: usize = 61;
/// How much the ridge counts beside the smoother's neighbours, in neighbours.
const KERNEL_RIDGE: f64 = 0.02;
/// Points the soft minimum is fitted on at most, and needs at least.
const SOFT_POINTS_MAX: usize = 128;
const SOFT_POINTS_MIN: usize = 8;
/// The ridge's own error where many classes were seen.
const POOLED_SD: f64 = 0.01;

/// What one class showed under one cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The logarithm of its power at the default, watts.
    pub ln_power: f64,
    /// The cap, watts.
    pub cap_w: f64,
    /// The logarithm of its slow-down, with its deviation.
    pub slow: Option<(f64, f64)>,
    /// The logarithm of its power relative to the default, with its deviation.
    pub power: Option<(f64, f64)>,
}

/// What is believed of one quantity under one setting before the job was seen under it.
///
/// A job lies off the mean by a factor of it (deviation `scale`), and wanders from that with a
/// deviation of `wander`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// The expected logarithm.
    pub mean: f64,
    /// Deviation of the job's own factor on it.
    pub scale: f64,
    /// Deviation of the rest.
    pub wander: f64,
}

/// Both halves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guess {
    /// The logarithm of the slow-down, zero or more.
    pub slow: Expected,
    /// The logarithm of the power relative to the default, zero or less.
    pub power: Expected,
}

/// How a job differs from what is expected: (floor, share of the mean, scale).
type Spread = [f64; 3];
/// Where other classes were seen under the cap. Residuals on the Zeus traces grow as 0.02 + 0.3 of
/// the mean; parts and factor were set on those traces as a whole, wide enough for a job's own
/// readings to win.
const SLOW_POOLED: Spread = [0.02, 0.08, 0.4];
const POWER_POOLED: Spread = [0.05, 0.3, 0.02];
/// Where only the belief stands: cards differ in curvature (P100 linear, A40 quadratic).
const SLOW_BELIEVED: Spread = [0.03, 0.3, 0.6];
const POWER_BELIEVED: Spread = [0.1, 0.5, 0.1];

#[derive(Clone, Debug, PartialEq)]
struct Bin {
    cap_w: f64,
    slow: Posterior,
    power: Posterior,
    /// The smoothed ln(p / p0) over u.
    smooth: Vec<f64>,
}

/// The pooled curves of one kind of card.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    cap_default_w: f64,
    /// Ascending in cap.
    bins: Vec<Bin>,
    /// (c, k) of the soft minimum.
    soft: Option<(f64, f64)>,
}

/// How far one cap's regression lies off the belief, and how much it counts, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
struct Off {
    slow: f64,
    power: f64,
    slow_weight: f64,
    power_weight: f64,
}

impl Transfer {
    /// What is believed before anything was seen.
    #[must_use]
    pub fn believed() -> Self {
        Self { cap_default_w: 1.0, bins: Vec::new(), soft: None }
    }

    /// Fits all that classes showed on cards with this default cap.
    #[must_use]
    pub fn fit(seen: &[Seen], cap_default_w: f64) -> Self {
        let fine = |v: &Option<(f64, f64)>| v.is_none_or(|(y, sd)| y.abs() < 5.0 && sd > 0.0);
        let mut seen: Vec<Seen> = seen
            .iter()
            .copied()
            .filter(|s| s.cap_w > 1.0 && s.cap_w < 0.995 * cap_default_w)
            .filter(|s| s.ln_power.is_finite() && fine(&s.slow) && fine(&s.power))
            .take(ROWS_MAX)
            .collect();
        // Stable: within a cap the rows keep the order they came in.
        seen.sort_by(|a, b| a.cap_w.total_cmp(&b.cap_w));
        let mut groups: Vec<&[Seen]> = seen
            .chunk_by(|a, b| b.cap_w <= SAME * a.cap_w)
            .filter(|g| g.len() >= BIN_ROWS_MIN)
            .collect();
        if groups.len() > BINS_MAX {
            // The fullest stay.
            groups.sort_by_key(|g| std::cmp::Reverse(g.len()));
            groups.truncate(BINS_MAX);
            groups.sort_by(|a, b| a[0].cap_w.total_cmp(&b[0].cap_w));
        }
        let bins = groups.into_iter().map(|g| Bin::fit(g, cap_default_w)).collect();
        Self { cap_default_w, bins, soft: soft_minimum(&seen) }
    }

    /// How many caps have a regression of their own.
    #[must_use]
    pub fn caps(&self) -> usize {
        self.bins.len()
    }

    /// What is expected of a job that draws `ln_power` (its logarithm, watts) at the default.
    #[must_use]
    pub fn guess(&self, card: &Card, ln_power: f64, cap_w: f64) -> Guess {
        if cap_w >= card.cap_default_w {
            return Guess::default();
        }
        let power_w = ln_power.exp();
        let (slow, power, _) = believed(card, power_w, cap_w);
        let off = self.off(card, power_w, cap_w);
        // A cap far above what a job draws cannot hold it back; its peaks reach further.
        let near = ((power_w / cap_w - 0.3) / 0.5).clamp(0.25, 1.0);
        let expected = |mean: f64, weight: f64, pooled: Spread, believed: Spread| {
            let at = |i: usize| weight * pooled[i] + (1.0 - weight) * believed[i];
            Expected { mean, scale: at(2), wander: at(0) * near + at(1) * mean.abs() }
        };
        Guess {
            slow: expected((slow + off.slow).max(0.0), off.slow_weight, SLOW_POOLED, SLOW_BELIEVED),
            power: expected(
                (power + off.power).min(0.0),
                off.power_weight,
                POWER_POOLED,
                POWER_BELIEVED,
            ),
        }
    }

    /// How far what was seen lies off the belief under `cap_w`.
    fn off(&self, card: &Card, power_w: f64, cap_w: f64) -> Off {
        let after = self.bins.partition_point(|b| b.cap_w < cap_w);
        let at = |bin: &Bin| self.off_at(bin, card, power_w);
        match (after.checked_sub(1).map(|i| &self.bins[i]), self.bins.get(after)) {
            (None, None) => Off::default(),
            (None, Some(lowest)) => at(lowest),
            (Some(low), Some(high)) => {
                let share = (cap_w / low.cap_w).ln() / (high.cap_w / low.cap_w).ln();
                at(low).towards(at(high), share)
            }
            (Some(highest), None) => {
                let off = at(highest);
                let none = Off { slow: 0.0, power: 0.0, ..off };
                let whole = (card.cap_default_w / highest.cap_w).ln().max(1e-6);
                off.towards(none, (cap_w / highest.cap_w).ln() / whole)
            }
        }
    }

    fn off_at(&self, bin: &Bin, card: &Card, power_w: f64) -> Off {
        let x = features(power_w, bin.cap_w, self.cap_default_w);
        let (slow_believed, power_believed, variance) = believed(card, power_w, bin.cap_w);
        let (slow, slow_variance) = bin.slow.at(&x);
        let (ridge, power_variance) = bin.power.at(&x);
        let smooth = bin.smooth_at(power_w / self.cap_default_w);
        let power = match self.soft {
            Some((c, k)) => {
                (ridge + smooth + soft(power_w.ln(), (c * bin.cap_w).ln(), k) - power_w.ln()) / 3.0
            }
            None => (ridge + smooth) / 2.0,
        };
        // The surer of ridge and belief counts more: with few classes the ridge is open.
        let weight = |pooled: f64| variance / (variance + pooled + POOLED_SD * POOLED_SD);
        let (slow_weight, power_weight) = (weight(slow_variance), weight(power_variance));
        Off {
            slow: slow_weight * (slow - slow_believed),
            power: power_weight * (power - power_believed),
            slow_weight,
            power_weight,
        }
    }
}

impl Off {
    fn towards(self, other: Self, share: f64) -> Self {
        let mix = |a: f64, b: f64| a + share * (b - a);
        Self {
            slow: mix(self.slow, other.slow),
            power: mix(self.power, other.power),
            slow_weight: mix(self.slow_weight, other.slow_weight),
            power_weight: mix(self.power_weight, other.power_weight),
        }
    }
}

impl Bin {
    fn fit(seen: &[Seen], cap_default_w: f64) -> Self {
        let cap_w = seen.iter().map(|s| s.cap_w).sum::<f64>() / seen.len() as f64;
        let half = |of: fn(&Seen) -> Option<(f64, f64)>| {
            let rows: Vec<Row> = seen
                .iter()
                .filter_map(|s| {
                    let (y, sd) = of(s)?;
                    let x = features(s.ln_power.exp(), cap_w, cap_default_w).to_vec();
                    Some(Row { x, y, sd: sd.hypot(ROW_SD) })
                })
                .collect();
            fit(&rows, &[RIDGE; WIDTH])
        };
        let mut bin =
            Self { cap_w, slow: half(|s| s.slow), power: half(|s| s.power), smooth: Vec::new() };
        let points: Vec<(f64, f64)> = seen
            .iter()
            .filter_map(|s| Some((s.ln_power.exp() / cap_default_w, s.power?.0)))
            .collect();
        bin.smooth = (0..GRID)
            .map(|i| {
                let u = GRID_STEP * i as f64;
                let ridge = bin.power.at(&features(u * cap_default_w, cap_w, cap_default_w)).0;
                let (mut weights, mut sum) = (KERNEL_RIDGE, KERNEL_RIDGE * ridge);
                for (at, y) in &points {
                    let far = (u - at) / KERNEL_WIDTH;
                    if far.abs() > KERNEL_REACH {
                        continue;
                    }
                    let weight = (-0.5 * far * far).exp();
                    weights += weight;
                    sum += weight * y;
                }
                sum / weights
            })
            .collect();
        bin
    }

    fn smooth_at(&self, u: f64) -> f64 {
        let at = (u / GRID_STEP).clamp(0.0, (GRID - 1) as f64);
        let i = (at as usize).min(GRID - 2);
        let share = at - i as f64;
        self.smooth[i] + share * (self.smooth[i + 1] - self.smooth[i])
    }
}

fn features(power_w: f64, cap_w: f64, cap_default_w: f64) -> [f64; WIDTH] {
    let z = (power_w / cap_w).ln().max(0.0);
    let u = power_w / cap_default_w;
    [1.0, z, z * z, u, (0.8 - u).max(0.0)]
}

/// The belief: logarithms of slow-down and relative power, and the variance of either.
fn believed(card: &Card, power_w: f64, cap_w: f64) -> (f64, f64, f64) {
    let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
    let x = cap::features(card, power_w, setting);
    let at = |beliefs: &[Belief; cap::WIDTH]| -> (f64, f64) {
        let mean = x.iter().zip(beliefs).map(|(x, b)| x * b.mean).sum();
        let variance = x.iter().zip(beliefs).map(|(x, b)| (x * b.sd).powi(2)).sum();
        (mean, variance)
    };
    let (slow, variance) = at(&cap::TIME);
    // Where the belief says that nothing happens it may be wrong by a peak or two.
    (slow, at(&cap::POWER).0, variance + 0.03 * 0.03)
}

/// ln of the soft minimum of two powers given as logarithms.
fn soft(a: f64, b: f64, k: f64) -> f64 {
    a.min(b) - (-k * (a - b).abs()).exp().ln_1p() / k
}

/// The (c, k) that fit all caps best, by search: neither is linear.
fn soft_minimum(seen: &[Seen]) -> Option<(f64, f64)> {
    let points: Vec<(f64, f64, f64)> = seen
        .iter()
        .filter_map(|s| Some((s.ln_power, s.cap_w.ln(), s.ln_power + s.power?.0)))
        .collect();
    if points.len() < SOFT_POINTS_MIN {
        return None;
    }
    let points: Vec<_> = points.iter().step_by(points.len().div_ceil(SOFT_POINTS_MAX)).collect();
    let cost = |c: f64, k: f64| -> f64 {
        points.iter().map(|(own, cap, y)| (soft(*own, cap + c.ln(), k) - y).powi(2)).sum()
    };
    // A coarse grid, then a finer one around its best.
    let mut best = (f64::INFINITY, 0.95, 12.0);
    for (steps, wide_c, wide_k) in [(3, 0.15, 4.5f64), (2, 0.04, 1.5)] {
        let (_, c0, k0) = best;
        for i in -steps..=steps {
            for j in -steps..=steps {
                let part = |i: i32| f64::from(i) / f64::from(steps);
                let (c, k) = (c0 + wide_c * part(i), k0 * wide_k.powf(part(j)));
                let cost = cost(c, k);
                if cost < best.0 {
                    best = (cost, c, k);
                }
            }
        }
    }
    Some((best.1, best.2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    const CARD: Card = Card {
        cap_default_w: 250.0,
        cap_known: true,
        idle_w: 35.0,
        clock_mhz_top: None,
        power_carried: true,
    };

    /// A card on which time is linear in ln(P0 / L), other than believed.
    fn truth(power_w: f64, cap_w: f64) -> (f64, f64) {
        let z = (power_w / cap_w).ln().max(0.0);
        (0.7 * z, soft(power_w.ln(), (0.97 * cap_w).ln(), 14.0) - power_w.ln())
    }

    fn seen(classes: usize, noise: f64) -> Vec<Seen> {
        let mut rng = Stream::new(3, "classes");
        let mut seen = Vec::new();
        for i in 0..classes {
            let power_w = 60.0 + 180.0 * ((i as f64 * 0.618) % 1.0);
            for cap_w in [100.0, 125.0, 150.0, 175.0, 200.0, 225.0] {
                let (slow, power) = truth(power_w, cap_w);
                seen.push(Seen {
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
    fn other_classes_teach_a_card_s_curve() {
        let (mut believed_off, mut pooled_off) = (0.0f64, 0.0f64);
        let pooled = Transfer::fit(&seen(40, 0.01), 250.0);
        assert_eq!(pooled.caps(), 6);
        for power_w in [120.0, 180.0, 225.0] {
            for cap_w in [100.0, 110.0, 137.0, 160.0, 215.0, 240.0] {
                let (slow, power) = truth(power_w, cap_w);
                let guess = pooled.guess(&CARD, f64::ln(power_w), cap_w);
                let before = Transfer::believed().guess(&CARD, f64::ln(power_w), cap_w);
                pooled_off = pooled_off.max((guess.slow.mean - slow).abs());
                believed_off = believed_off.max((before.slow.mean - slow).abs());
                assert!((guess.power.mean - power).abs() < 0.06, "{power_w} {cap_w} {guess:?}");
                assert!(guess.slow.wander <= before.slow.wander + 0.05 * slow, "{guess:?}");
            }
        }
        assert!(pooled_off < 0.07 && believed_off > 0.1, "{pooled_off} {believed_off}");
    }

    #[test]
    fn few_classes_leave_the_belief_standing() {
        let none = Transfer::fit(&seen(3, 0.01), 250.0);
        assert_eq!(none.caps(), 0);
        let guess = |t: &Transfer| t.guess(&CARD, 5.3, 140.0).slow.mean;
        let (few, many) =
            (Transfer::fit(&seen(4, 0.01), 250.0), Transfer::fit(&seen(40, 0.01), 250.0));
        let (believed, few, many) = (guess(&Transfer::believed()), guess(&few), guess(&many));
        assert!((few - many).abs() < (believed - many).abs(), "{believed} {few} {many}");
    }

    #[test]
    fn nothing_makes_it_say_what_cannot_be() {
        let odd = [f64::NAN, f64::INFINITY, -1e9, 0.0, 1e-300, 400.0];
        let mut seen = seen(10, 0.02);
        for (i, value) in odd.into_iter().enumerate() {
            seen.push(Seen {
                ln_power: if i % 2 == 0 { value } else { 5.0 },
                cap_w: if i % 3 == 0 { 150.0 } else { value },
                slow: Some((value, 0.01)),
                power: Some((0.0, value.abs())),
            });
        }
        let pooled = Transfer::fit(&seen, 250.0);
        for ln_power in [-3.0, 0.0, 3.0, 5.0, 5.5, 9.0] {
            for cap_w in [1.0, 50.0, 99.0, 150.0, 249.0, 250.0, 900.0] {
                let guess = pooled.guess(&CARD, ln_power, cap_w);
                assert!(guess.slow.mean.is_finite() && guess.slow.mean >= 0.0, "{guess:?}");
                assert!(guess.power.mean.is_finite() && guess.power.mean <= 0.0, "{guess:?}");
                assert!(guess.slow.wander >= 0.0 && guess.power.wander >= 0.0, "{guess:?}");
            }
        }
    }
}

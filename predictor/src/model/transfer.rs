//! What caps do to a job that was seen under none of them, from jobs that were.
//!
//! One kind of card, pooled over all classes seen on it. With a job's power P0 at the default cap
//! L0, for each cap L that enough classes were seen under:
//!
//! ```text
//! z = max(0, ln(P0 / L)),  u = P0 / L0
//! ln(t / t0) = w0 + w1 z + w2 z^2 + w3 u + w4 max(0, 0.8 - u)                      a ridge
//! ln(p / p0) = the same ridge on it; of a family never seen, the mean of that, of what jobs of like
//!              u did (Gaussian in u), and of ln((P0^-k + (c L)^-k)^(-1/k) / P0), c and k pooled
//! ```
//!
//! Between two such caps their deviation from the belief of [`super::cap`] is interpolated in
//! ln L; at the default it is none, and where nothing was seen the belief stands alone. The ridge's
//! penalty is the one that serves families left out best ([`super::ridge`]); the Gaussian's width is
//! Silverman's ("Density estimation for statistics and data analysis", 1986, eq. 3.31).
//!
//! How far a job lies off that has three parts, none of them a constant:
//!
//! * How bursty it is. A mean of P0 may be steady, or now at the card's full power and now idle.
//!   Under a cap the steady job draws min(P0, L) and the bursty one less, and slows though its mean
//!   lies below the cap ([`Bounds`]). One reading of the mean does not tell which; in between all is
//!   as likely, which has the gap over the root of 12 as its deviation.
//! * Its own factor on the slow-down, and how it wanders beside all that, as a random walk in ln L:
//!   both from what was left of jobs, and of whole families, that the regression did not know
//!   ([`spread`]). A job whose family was seen is as the family's jobs are, bursts and all.
//!
//! Batch size as a feature makes it worse: it does not carry from one network to another.

mod bin;
mod soft;
mod spread;

use std::collections::BTreeSet;

use super::cap::{self, Card};
use super::constant::Constant;
use super::ridge;
use crate::fit::Belief;
use bin::Bin;
use soft::{soft, soft_minimum};
use spread::{Group, Half, Spread};
use wattle_common::observation::Setting;

/// Rows the pooled fit reads at most.
pub const ROWS_MAX: usize = 4_096;

/// Caps with a regression of their own.
const BINS_MAX: usize = 24;
/// Classes that must have been seen under a cap.
const BIN_ROWS_MIN: usize = 4;
/// Caps this close are one.
const SAME: f64 = 1.01;
/// Families told apart; more are left out several at a time.
const FAMILIES_MAX: u16 = 16;
/// Deviation of what lies anywhere between two ends, as a share of the gap: 1 / sqrt(12).
const UNIFORM: f64 = 0.288_675;

/// How far a job wanders from the belief by the time its cap is 1 / e of the default, where no other
/// family was seen: cards differ in curvature (P100 linear, A40 quadratic).
pub const WANDER_BELIEVED_TIME: Constant = Constant::new("transfer: WANDER_BELIEVED_TIME", 0.05);
/// The same of power, of which no form is known.
pub const WANDER_BELIEVED_POWER: Constant = Constant::new("transfer: WANDER_BELIEVED_POWER", 0.15);
/// Its own factor there: a job may feel nothing of a slower card, or twice what most do.
const SCALE_BELIEVED: f64 = 2.0 * UNIFORM;

/// What one class showed under one cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Which class it is, counted from 0.
    pub class: u16,
    /// Which family it is of.
    pub family: u16,
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
/// A job lies off the mean by something of its own that grows with the caps in proportion (deviation
/// `own`), and wanders from that with a deviation of `wander`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// The expected logarithm.
    pub mean: f64,
    /// Deviation of the job's own.
    pub own: f64,
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

/// Between what jobs of one mean power may differ under a cap: the gap between the steadiest and the
/// burstiest, in logarithms.
///
/// ```text
/// d = (P0 - idle) / (L0 - idle)                        the bursty job's share of time at full power
/// power  ln( min(P0, L) / (idle + d (L - idle)) )
/// time   | ln(1 + d (e^F - 1)) - expected |            F: the slow-down of a job of P0 = L0
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Default cap, watts.
    pub cap_default_w: f64,
    /// Power with no job, watts.
    pub idle_w: f64,
}

impl Bounds {
    fn duty(self, power_w: f64) -> f64 {
        ((power_w - self.idle_w) / (self.cap_default_w - self.idle_w).max(1.0)).clamp(0.0, 1.0)
    }

    /// The gap in time, where `full` and `expected` are logarithms of slow-downs.
    fn time(self, power_w: f64, full: f64, expected: f64) -> f64 {
        ((self.duty(power_w) * full.clamp(0.0, 3.0).exp_m1()).ln_1p() - expected).abs()
    }

    /// The gap in power.
    fn power(self, power_w: f64, cap_w: f64) -> f64 {
        let steady = power_w.min(cap_w);
        let bursty = self.idle_w + self.duty(power_w) * (cap_w - self.idle_w);
        (steady / bursty.clamp(1.0, steady.max(1.0))).max(1.0).ln()
    }
}

/// The pooled curves of one kind of card.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    cap_default_w: f64,
    /// Ascending in cap.
    bins: Vec<Bin>,
    /// (c, k) of the soft minimum.
    soft: Option<(f64, f64)>,
    /// Of jobs of families seen: slow-down, power.
    kin: (Spread, Spread),
    /// Of others.
    new: (Spread, Spread),
    /// Families of which two classes or more were seen.
    families: BTreeSet<String>,
}

/// How far one cap's regression lies off the belief, and how much it counts, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
struct Off {
    slow: f64,
    /// The slow-down's of a job that draws the whole default cap.
    full: f64,
    power: f64,
    slow_weight: f64,
    power_weight: f64,
}

impl Transfer {
    /// What is believed before anything was seen.
    #[must_use]
    pub fn believed() -> Self {
        let (kin, new) = (believed_spreads(), believed_spreads());
        Self {
            cap_default_w: 1.0,
            bins: Vec::new(),
            soft: None,
            kin,
            new,
            families: BTreeSet::new(),
        }
    }

    /// Fits all that classes showed on cards with these bounds.
    #[must_use]
    pub fn fit(seen: &[Seen], bounds: Bounds) -> Self {
        let cap_default_w = bounds.cap_default_w;
        let fine = |v: &Option<(f64, f64)>| v.is_none_or(|(y, sd)| y.abs() < 5.0 && sd > 0.0);
        let mut seen: Vec<Seen> = seen
            .iter()
            .copied()
            .filter(|s| s.cap_w > 1.0 && s.cap_w < 0.995 * cap_default_w)
            .filter(|s| s.ln_power.is_finite() && fine(&s.slow) && fine(&s.power))
            .map(|s| Seen { family: s.family % FAMILIES_MAX, ..s })
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
        let groups: Vec<Group<'_>> = groups.into_iter().map(Group::of).collect();
        let half = |of: fn(&Seen) -> Option<(f64, f64)>| -> Vec<Half> {
            groups.iter().map(|g| g.half(bounds, of)).collect()
        };
        let (slow, power) = (half(|s| s.slow), half(|s| s.power));
        let penalty = |halves: &[Half]| ridge::penalty(halves.iter().map(|h| &h.sums));
        let (slow_ridge, power_ridge) = (penalty(&slow), penalty(&power));
        let slow = spread::spreads(&groups, &slow, slow_ridge.0, bounds, true);
        let power = spread::spreads(&groups, &power, power_ridge.0, bounds, false);
        let believed = believed_spreads();
        let bins = groups.iter().map(|g| Bin::fit(g, cap_default_w, slow_ridge, power_ridge));
        Self {
            cap_default_w,
            bins: bins.collect(),
            soft: soft_minimum(&seen),
            kin: (slow.0.unwrap_or(believed.0), power.0.unwrap_or(believed.1)),
            new: (slow.1.unwrap_or(believed.0), power.1.unwrap_or(believed.1)),
            families: BTreeSet::new(),
        }
    }

    /// With the families that were seen, each as often as it has classes.
    #[must_use]
    pub fn with_families(mut self, seen: &[&str]) -> Self {
        let more = |(i, name): &(usize, &&str)| seen[..*i].contains(name);
        self.families =
            seen.iter().enumerate().filter(more).map(|(_, n)| (*n).to_owned()).collect();
        self
    }

    /// Whether others of `family` were seen under caps. One alone may be the very job asked about.
    #[must_use]
    pub fn knows(&self, family: &str) -> bool {
        self.families.contains(family)
    }

    /// How many caps have a regression of their own.
    #[must_use]
    pub fn caps(&self) -> usize {
        self.bins.len()
    }

    /// What is expected of a job that draws `ln_power` (its logarithm, watts) at the default; `kin`:
    /// whether others of its family were seen under caps.
    #[must_use]
    pub fn guess(&self, card: &Card, ln_power: f64, cap_w: f64, kin: bool) -> Guess {
        if cap_w >= card.cap_default_w {
            return Guess::default();
        }
        let power_w = ln_power.exp();
        let (slow, power, _) = believed(card, power_w, cap_w);
        let off = self.off(card, power_w, cap_w, kin);
        let full = believed_slow(card, card.cap_default_w, cap_w) + off.full;
        let bounds = Bounds { cap_default_w: card.cap_default_w, idle_w: card.idle_w };
        let (slow, power) = ((slow + off.slow).max(0.0), (power + off.power).min(0.0));
        let down = (card.cap_default_w / cap_w).ln();
        let expected = |mean: f64, gap: f64, weight: f64, pooled: Spread, believed: Spread| {
            let spread = pooled.towards(believed, 1.0 - weight);
            let own = (UNIFORM * gap).hypot(spread.scale * mean);
            Expected { mean, own, wander: spread.wander * down.sqrt() }
        };
        let believed = believed_spreads();
        let (pooled, gap) = if kin { (self.kin, 0.0) } else { (self.new, 1.0) };
        let time_gap = gap * bounds.time(power_w, full, slow);
        let power_gap = gap * bounds.power(power_w, cap_w);
        Guess {
            slow: expected(slow, time_gap, off.slow_weight, pooled.0, believed.0),
            power: expected(power, power_gap, off.power_weight, pooled.1, believed.1),
        }
    }

    /// How far what was seen lies off the belief under `cap_w`.
    fn off(&self, card: &Card, power_w: f64, cap_w: f64, kin: bool) -> Off {
        let after = self.bins.partition_point(|b| b.cap_w < cap_w);
        let at = |bin: &Bin| self.off_at(bin, card, power_w, kin);
        match (after.checked_sub(1).map(|i| &self.bins[i]), self.bins.get(after)) {
            (None, None) => Off::default(),
            (None, Some(lowest)) => at(lowest),
            (Some(low), Some(high)) => {
                let share = (cap_w / low.cap_w).ln() / (high.cap_w / low.cap_w).ln();
                at(low).towards(at(high), share)
            }
            (Some(highest), None) => {
                let off = at(highest);
                let none = Off { slow: 0.0, full: 0.0, power: 0.0, ..off };
                let whole = (card.cap_default_w / highest.cap_w).ln().max(1e-6);
                off.towards(none, (cap_w / highest.cap_w).ln() / whole)
            }
        }
    }

    fn off_at(&self, bin: &Bin, card: &Card, power_w: f64, kin: bool) -> Off {
        let x = bin::features(power_w, bin.cap_w, self.cap_default_w);
        let (slow_believed, power_believed, variance) = believed(card, power_w, bin.cap_w);
        let (slow, slow_variance) = bin.slow.at(&x);
        let (ridge, power_variance) = bin.power.at(&x);
        let smooth = || bin.smooth_at(power_w / self.cap_default_w);
        let power = match self.soft {
            _ if kin => ridge,
            Some((c, k)) => {
                let soft = soft(power_w.ln(), (c * bin.cap_w).ln(), k) - power_w.ln();
                (ridge + smooth() + soft) / 3.0
            }
            None => (ridge + smooth()) / 2.0,
        };
        // The surer of ridge and belief counts more: with few classes the ridge is open.
        let weight = |pooled: f64| variance / (variance + pooled);
        let (slow_weight, power_weight) = (weight(slow_variance), weight(power_variance));
        let full_believed = believed_slow(card, card.cap_default_w, bin.cap_w);
        Off {
            slow: slow_weight * (slow - slow_believed),
            full: slow_weight * (bin.full - full_believed),
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
            full: mix(self.full, other.full),
            power: mix(self.power, other.power),
            slow_weight: mix(self.slow_weight, other.slow_weight),
            power_weight: mix(self.power_weight, other.power_weight),
        }
    }
}

/// Of slow-down and power.
fn believed_spreads() -> (Spread, Spread) {
    let (time, power) = (WANDER_BELIEVED_TIME.get(), WANDER_BELIEVED_POWER.get());
    (Spread { scale: SCALE_BELIEVED, wander: time }, Spread { scale: 0.0, wander: power })
}

fn believed_slow(card: &Card, power_w: f64, cap_w: f64) -> f64 {
    let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
    let x = cap::features(card, power_w, setting);
    x.iter().zip(&cap::TIME).map(|(x, b)| x * b.mean).sum()
}

/// The belief: logarithms of slow-down and relative power, and the variance of either.
fn believed(card: &Card, power_w: f64, cap_w: f64) -> (f64, f64, f64) {
    let setting = Setting { cap_w: Some(cap_w), clock_mhz_max: None };
    let x = cap::features(card, power_w, setting);
    let at = |beliefs: &[Belief; cap::WIDTH]| -> (f64, f64) {
        let mean = x.iter().zip(beliefs).map(|(x, b)| x * b.mean).sum();
        let variance =
            x.iter().zip(beliefs).map(|(x, b)| (x * b.sd * cap::BELIEF_WIDTH.get()).powi(2)).sum();
        (mean, variance)
    };
    let (slow, variance) = at(&cap::TIME);
    // Where the belief says that nothing happens it may be wrong by a peak or two.
    (slow, at(&cap::POWER).0, variance + 0.03 * 0.03)
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

    const BOUNDS: Bounds = Bounds { cap_default_w: 250.0, idle_w: 35.0 };

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
    fn other_classes_teach_a_card_s_curve() {
        let (mut believed_off, mut pooled_off) = (0.0f64, 0.0f64);
        let pooled = Transfer::fit(&seen(40, 0.01), BOUNDS);
        assert_eq!(pooled.caps(), 6);
        for power_w in [120.0, 180.0, 225.0] {
            for cap_w in [100.0, 110.0, 137.0, 160.0, 215.0, 240.0] {
                let (slow, power) = truth(power_w, cap_w);
                let guess = pooled.guess(&CARD, f64::ln(power_w), cap_w, false);
                let before = Transfer::believed().guess(&CARD, f64::ln(power_w), cap_w, false);
                pooled_off = pooled_off.max((guess.slow.mean - slow).abs());
                believed_off = believed_off.max((before.slow.mean - slow).abs());
                assert!((guess.power.mean - power).abs() < 0.06, "{power_w} {cap_w} {guess:?}");
                assert!(guess.slow.wander < before.slow.wander, "{guess:?}");
            }
        }
        assert!(pooled_off < 0.07 && believed_off > 0.1, "{pooled_off} {believed_off}");
    }

    #[test]
    fn few_classes_leave_the_belief_standing() {
        let none = Transfer::fit(&seen(3, 0.01), BOUNDS);
        assert_eq!(none.caps(), 0);
        let guess = |t: &Transfer| t.guess(&CARD, 5.3, 140.0, false).slow.mean;
        let (few, many) =
            (Transfer::fit(&seen(4, 0.01), BOUNDS), Transfer::fit(&seen(40, 0.01), BOUNDS));
        let (believed, few, many) = (guess(&Transfer::believed()), guess(&few), guess(&many));
        assert!((few - many).abs() < (believed - many).abs(), "{believed} {few} {many}");
    }

    #[test]
    fn nothing_makes_it_say_what_cannot_be() {
        let odd = [f64::NAN, f64::INFINITY, -1e9, 0.0, 1e-300, 400.0];
        let mut seen = seen(10, 0.02);
        for (i, value) in odd.into_iter().enumerate() {
            seen.push(Seen {
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
                let guess = pooled.guess(&CARD, ln_power, cap_w, false);
                assert!(guess.slow.mean.is_finite() && guess.slow.mean >= 0.0, "{guess:?}");
                assert!(guess.power.mean.is_finite() && guess.power.mean <= 0.0, "{guess:?}");
                assert!(guess.slow.wander >= 0.0 && guess.power.wander >= 0.0, "{guess:?}");
            }
        }
    }
}

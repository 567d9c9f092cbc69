//! Deviation of jobs from the pooled curves: for jobs of seen families, and of unseen ones.
//!
//! The first from each class's residuals without itself, the second from each family's residuals without
//! that family. With the residual r of a row, its expectation m, the reading's standard deviation s and
//! x = ln(L0 / L), means over the rows of each class (family) and sums over classes (families):
//!
//! ```text
//! scale^2  = sum mean(r m)^2 / sum mean(m^2)^2                              a job's own factor
//! wander^2 = sum mean(r^2 - s^2 - scale^2 m^2) / sum mean(x)
//! ```
//!
//! A method of moments. Power has no such factor: its job-specific part is the gap of
//! [`super::BurstBounds`], a bound for unseen families, and so it is not subtracted here.

use super::super::constant::LEAST_SD;
use super::super::ridge::{Families, Point, dot};
use super::{BurstBounds, CapObservation, bin};

/// Smallest number of classes, or families, for the moments.
const GROUPS_MIN: usize = 3;

/// Deviation of a job from its expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// Standard deviation of its own factor on the mean.
    pub(super) scale: f64,
    /// Standard deviation of the rest at ln(L0 / L) = 1; its square is proportional to ln(L0 / L).
    pub(super) wander: f64,
}

impl Spread {
    pub(super) fn towards(self, other: Self, share: f64) -> Self {
        let mix = |a: f64, b: f64| a + share * (b - a);
        Self { scale: mix(self.scale, other.scale), wander: mix(self.wander, other.wander) }
    }
}

/// Observations under one cap.
pub(super) struct Group<'a> {
    pub(super) seen: &'a [CapObservation],
    pub(super) cap_w: f64,
}

/// One quantity of a group.
pub(super) struct Half {
    pub(super) sums: Families,
    /// Index of the observation in the group, its point, its standard deviation.
    rows: Vec<(usize, Point, f64)>,
}

impl<'a> Group<'a> {
    pub(super) fn of(seen: &'a [CapObservation]) -> Self {
        let cap_w = seen.iter().map(|s| s.cap_w).sum::<f64>() / seen.len().max(1) as f64;
        Self { seen, cap_w }
    }

    pub(super) fn half(
        &self,
        bounds: BurstBounds,
        of: fn(&CapObservation) -> Option<(f64, f64)>,
    ) -> Half {
        let mut half = Half { sums: Families::default(), rows: Vec::new() };
        for (i, seen) in self.seen.iter().enumerate() {
            let Some((y, sd)) = of(seen) else { continue };
            let x = bin::features(seen.ln_power.exp(), self.cap_w, bounds.cap_default_w);
            half.sums.add(seen.family.into(), &(x, y));
            half.rows.push((i, (x, y), sd));
        }
        half
    }
}

/// Sums over the rows of one class or family.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    n: f64,
    rr: f64,
    rm: f64,
    mm: f64,
    noise: f64,
    down: f64,
}

/// Spreads for jobs of seen and of unseen families; `None` with too few groups. `scaled`: whether a job
/// has a factor of its own.
pub(super) fn spreads(
    groups: &[Group<'_>],
    halves: &[Half],
    penalty: f64,
    bounds: BurstBounds,
    scaled: bool,
) -> (Option<Spread>, Option<Spread>) {
    let (mut classes, mut families) = (Vec::new(), Vec::new());
    for (group, half) in groups.iter().zip(halves) {
        let down = (bounds.cap_default_w / group.cap_w).ln();
        let points: Vec<Point> = half.rows.iter().map(|(_, point, _)| *point).collect();
        let left_out = half.sums.without_itself(penalty, &points);
        let without = half.sums.without_each(penalty);
        for ((i, (x, y), sd), mean) in half.rows.iter().zip(left_out) {
            let seen = &group.seen[*i];
            add(&mut classes, seen.class.into(), (mean, *y, *sd, down));
            let family = usize::from(seen.family);
            if let Some(Some(w)) = without.get(family) {
                add(&mut families, family, (dot(x, w), *y, *sd, down));
            }
        }
    }
    (spread(&classes, scaled), spread(&families, scaled))
}

fn add(found: &mut Vec<Moments>, at: usize, (mean, y, sd, down): (f64, f64, f64, f64)) {
    if at >= found.len() {
        found.resize(at + 1, Moments::default());
    }
    let m = &mut found[at];
    m.n += 1.0;
    m.rr += (y - mean) * (y - mean);
    m.rm += (y - mean) * mean;
    m.mm += mean * mean;
    m.noise += sd * sd;
    m.down += down;
}

fn spread(moments: &[Moments], scaled: bool) -> Option<Spread> {
    let seen = || moments.iter().filter(|m| m.n > 0.0);
    let sum = |of: &dyn Fn(&Moments) -> f64| seen().map(|m| of(m) / m.n).sum::<f64>();
    let squares = |of: fn(&Moments) -> f64| seen().map(|m| (of(m) / m.n).powi(2)).sum::<f64>();
    let all = squares(|m| m.mm);
    let scale = if scaled && all > 0.0 { squares(|m| m.rm) / all } else { 0.0 };
    let open = sum(&|m| m.rr - m.noise - scale * m.mm);
    let least = LEAST_SD.get() * LEAST_SD.get();
    let wander = (open / sum(&|m| m.down)).max(least).sqrt();
    let enough = seen().count() >= GROUPS_MIN && wander.is_finite();
    enough.then(|| Spread { scale: scale.sqrt(), wander })
}

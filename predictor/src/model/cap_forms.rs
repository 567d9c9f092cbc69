//! Shares of the forms of [`super::cap_curve`] on one GPU type, by leaving networks out.
//!
//! GPU types differ in the response of speed to a cap: on some it falls steeply below a knee, on others it
//! saturates slowly. Each class that was seen under three caps below the default or more is predicted
//! under its other caps from the default, its middle and its lowest cap, by each form alone. With the
//! residuals r of ln t (one for each form), K families (networks) and equal shares e:
//!
//! ```text
//! G_k = mean over the rows of family k of r r'
//! w   = argmin  1/K sum_k w' G_k w  +  v/K |w - e|^2      w >= 0, sum w = 1
//! v   = mean squared difference of a form from the equal blend
//! ```
//!
//! This is stacking (Wolpert, "Stacked generalization", 1992; Breiman, "Stacked regressions", 1996); the
//! second term counts as one more family without a preference. The blend is used if it generalises: each
//! family is predicted with the shares of the other families, and the mean squared error must be lower
//! than that of equal shares by [`GAIN_MIN`]. With fewer than [`FAMILIES_MIN`] families the shares are
//! those of other GPU types, weighted by their families, or else equal.
//!
//! The minimum is exact: the sets of forms with a share above zero are enumerated.

use std::collections::BTreeMap;

use wattle_common::numerics::gauss_jordan;

use super::cap_curve::{EQUAL, FORMS, Shares, effective_cap};
use super::transfer::CapObservation;
use crate::job::own_curve::OwnTimeCurve;

/// Smallest number of families for shares of a GPU type's own.
pub const FAMILIES_MIN: usize = 3;
/// Smallest reduction of the mean squared error over left-out families: a twentieth. Smaller ones are
/// within the differences between two sets of networks.
pub const GAIN_MIN: f64 = 0.05;
/// Smallest number of caps of a class below the default: one besides the known two.
const CAPS_MIN: usize = 3;
/// Classes of one family that are evaluated.
const CLASSES_MAX: usize = 16;
/// Growth of the rows from which on shares are chosen again.
const NEWS: f64 = 0.2;

/// Source of a GPU type's shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Basis {
    /// Equal shares: too few families on any GPU type.
    Default,
    /// Too few families on this GPU type: the mean of this number of other types.
    OtherTypes(usize),
    /// Enough families; equal shares were not improved upon.
    Equal,
    /// Shares of this GPU type's own.
    Blend,
}

/// Shares of the forms on one GPU type.
#[derive(Clone, Debug, PartialEq)]
pub struct FormChoice {
    /// Share of each form.
    pub shares: Shares,
    /// Source of the shares.
    pub basis: Basis,
    /// Families with a class under enough caps.
    pub families: usize,
    /// Root mean square error of ln t over left-out families: of equal shares, and of shares from the
    /// other families. `None` with too few families.
    pub errors: Option<(f64, f64)>,
    /// Number of rows of the choice.
    rows: usize,
}

/// Mean products of the forms' residuals over a family's rows.
type Gram = [[f64; FORMS]; FORMS];

impl Default for FormChoice {
    fn default() -> Self {
        Self { shares: EQUAL, basis: Basis::Default, families: 0, errors: None, rows: 0 }
    }
}

impl FormChoice {
    /// Shares from `seen` on GPUs with this default cap. `before` is kept where little is new; `others`
    /// are the choices of other GPU types.
    #[must_use]
    pub fn choose<'a>(
        seen: &[CapObservation],
        cap_default_w: f64,
        before: Option<&Self>,
        others: impl Iterator<Item = &'a Self>,
    ) -> Self {
        let families = by_family(seen, cap_default_w);
        if families.len() < FAMILIES_MIN {
            return Self { families: families.len(), ..Self::of_other_types(others) };
        }
        let rows = families.values().flatten().map(Vec::len).sum();
        let little = |b: &&Self| {
            b.errors.is_some() && (rows as f64 - b.rows as f64).abs() < NEWS * b.rows as f64
        };
        if let Some(kept) = before.filter(little) {
            return Self { families: families.len(), ..kept.clone() };
        }
        let grams: Vec<Gram> =
            families.values().filter_map(|classes| gram(classes, cap_default_w)).collect();
        Self { rows, ..Self::stack(&grams) }
    }

    fn of_other_types<'a>(others: impl Iterator<Item = &'a Self>) -> Self {
        let (mut shares, mut weight, mut types) = ([0.0; FORMS], 0.0, 0);
        for other in others.filter(|o| o.errors.is_some()) {
            let families = other.families as f64;
            shares.iter_mut().zip(other.shares).for_each(|(sum, share)| *sum += families * share);
            (weight, types) = (weight + families, types + 1);
        }
        if types == 0 {
            return Self::default();
        }
        shares.iter_mut().for_each(|share| *share /= weight);
        Self { shares, basis: Basis::OtherTypes(types), ..Self::default() }
    }

    fn stack(grams: &[Gram]) -> Self {
        let families = grams.len();
        if families < FAMILIES_MIN {
            return Self { families, ..Self::default() };
        }
        let mut squares = (0.0, 0.0);
        for (i, own) in grams.iter().enumerate() {
            let others = grams.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, g)| g);
            let shares = best(others);
            squares = (squares.0 + quadratic(own, &EQUAL), squares.1 + quadratic(own, &shares));
        }
        let root = |sum: f64| (sum / families as f64).max(0.0).sqrt();
        let errors = Some((root(squares.0), root(squares.1)));
        let gain = squares.1 < (1.0 - GAIN_MIN) * squares.0;
        let (shares, basis) =
            if gain { (best(grams.iter()), Basis::Blend) } else { (EQUAL, Basis::Equal) };
        Self { shares, basis, families, errors, rows: 0 }
    }
}

/// Observed slowdowns of the classes with enough caps, by family; caps in descending order.
fn by_family(
    seen: &[CapObservation],
    cap_default_w: f64,
) -> BTreeMap<u16, Vec<Vec<CapObservation>>> {
    let mut classes: BTreeMap<(u16, u16), Vec<CapObservation>> = BTreeMap::new();
    let fine = |s: &&CapObservation| {
        s.cap_w > 1.0
            && s.cap_w < 0.995 * cap_default_w
            && s.ln_power.is_finite()
            && s.slow.is_some_and(|(y, sd)| y.abs() < 5.0 && sd > 0.0)
    };
    for one in seen.iter().filter(fine) {
        classes.entry((one.family, one.class)).or_default().push(*one);
    }
    let mut families: BTreeMap<u16, Vec<Vec<CapObservation>>> = BTreeMap::new();
    for ((family, _), mut caps) in classes {
        if caps.len() >= CAPS_MIN {
            caps.sort_by(|a, b| b.cap_w.total_cmp(&a.cap_w));
            let kept = families.entry(family).or_default();
            if kept.len() < CLASSES_MAX {
                kept.push(caps);
            }
        }
    }
    families
}

/// Mean products of the residuals of a family's classes.
fn gram(classes: &[Vec<CapObservation>], cap_default_w: f64) -> Option<Gram> {
    let (mut gram, mut n) = ([[0.0; FORMS]; FORMS], 0.0);
    for caps in classes {
        for residuals in residuals(caps, cap_default_w).unwrap_or_default() {
            for (line, a) in gram.iter_mut().zip(residuals) {
                line.iter_mut().zip(residuals).for_each(|(cell, b)| *cell += a * b);
            }
            n += 1.0;
        }
    }
    gram.iter_mut().flatten().for_each(|cell| *cell /= n);
    (n > 0.0).then_some(gram)
}

/// Each form's residuals of ln t under the caps of a class other than the known ones.
fn residuals(caps: &[CapObservation], cap_default_w: f64) -> Option<Vec<[f64; FORMS]>> {
    let (lowest, middle) = (caps.len() - 1, (caps.len() - 1) / 2);
    let slow = |s: &CapObservation| s.slow.unwrap_or((0.0, 1.0));
    let effective = |s: &CapObservation, above: f64| {
        effective_cap(s.cap_w, s.power.map(|(y, _)| (s.ln_power + y).exp()), above)
    };
    let (high, low) = (slow(&caps[middle]), slow(&caps[lowest]));
    let high_w = effective(&caps[middle], cap_default_w);
    let low_w = effective(&caps[lowest], high_w);
    // Readings that rise with the cap are noise.
    let at_high = high.0.max(0.0);
    let known = [(high_w, at_high, high.1 * high.1), (low_w, low.0.max(at_high), low.1 * low.1)];
    let mut curves = Vec::with_capacity(FORMS);
    for form in 0..FORMS {
        let mut one = [0.0; FORMS];
        one[form] = 1.0;
        curves.push(OwnTimeCurve::fit(&known, cap_default_w, &one)?);
    }
    let other = |(i, s): (usize, &CapObservation)| {
        let residual = |form: usize| curves[form].at(s.cap_w).0 - slow(s).0;
        (i != lowest && i != middle).then(|| std::array::from_fn(residual))
    };
    Some(caps.iter().enumerate().filter_map(other).collect())
}

fn quadratic(gram: &Gram, w: &Shares) -> f64 {
    gram.iter()
        .zip(w)
        .map(|(line, a)| a * line.iter().zip(w).map(|(g, b)| g * b).sum::<f64>())
        .sum()
}

/// The shares with the least penalised error over `grams`.
fn best<'a>(grams: impl Iterator<Item = &'a Gram>) -> Shares {
    let (mut mean, mut n) = ([[0.0; FORMS]; FORMS], 0.0);
    for gram in grams {
        for (line, more) in mean.iter_mut().zip(gram) {
            line.iter_mut().zip(more).for_each(|(cell, more)| *cell += more);
        }
        n += 1.0;
    }
    mean.iter_mut().flatten().for_each(|cell| *cell /= n);
    // Differences from the equal blend: adding a constant to all residuals of a row changes no share.
    let along: Shares =
        std::array::from_fn(|f| mean[f].iter().zip(EQUAL).map(|(g, e)| g * e).sum());
    let common = quadratic(&mean, &EQUAL);
    let apart = |f: usize| mean[f][f] - 2.0 * along[f] + common;
    let penalty = (0..FORMS).map(apart).sum::<f64>() / FORMS as f64 / n;
    if penalty.is_nan() || penalty <= 1e-12 {
        return EQUAL;
    }
    let cost = |w: &Shares| {
        let moved: f64 = w.iter().zip(EQUAL).map(|(w, e)| (w - e) * (w - e)).sum();
        quadratic(&mean, w) + penalty * moved
    };
    let mut best = (cost(&EQUAL), EQUAL);
    for set in 1_u32..1 << FORMS {
        let used: Vec<usize> = (0..FORMS).filter(|f| set & (1 << f) != 0).collect();
        let Some(shares) = minimum(&mean, penalty, &used) else { continue };
        let cost = cost(&shares);
        if cost < best.0 {
            best = (cost, shares);
        }
    }
    best.1
}

/// Minimum with shares of the `used` forms only, which add up to 1; `None` where one is negative.
fn minimum(gram: &Gram, penalty: f64, used: &[usize]) -> Option<Shares> {
    // With A = G + v I and Lagrange's multiplier l: w = A^-1 (v e) + l A^-1 1.
    let n = used.len();
    let row = |(i, a): (usize, &usize)| {
        let mut row: Vec<f64> = used.iter().map(|b| gram[*a][*b]).collect();
        row[i] += penalty;
        row.extend([penalty * EQUAL[*a], 1.0]);
        row
    };
    let mut system: Vec<Vec<f64>> = used.iter().enumerate().map(row).collect();
    gauss_jordan::solve(&mut system)?;
    let sum = |column: usize| system.iter().map(|line| line[column]).sum::<f64>();
    let multiplier = (1.0 - sum(n)) / sum(n + 1);
    let mut shares = [0.0; FORMS];
    for (line, form) in system.iter().zip(used) {
        shares[*form] = line[n] + multiplier * line[n + 1];
    }
    shares.iter().all(|w| w.is_finite() && *w >= 0.0).then_some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    const CAP_W: f64 = 250.0;

    /// Classes of `families` families whose time relative to the default is `time` of the cap, with an
    /// amplitude of each family's own.
    fn seen(families: u16, noise: f64, time: fn(f64) -> f64) -> Vec<CapObservation> {
        let mut rng = Stream::new(4, "forms");
        let mut out = Vec::new();
        for class in 0..3 * families {
            let scale = 0.7 + 0.2 * f64::from(class % families);
            for cap_w in [100.0, 125.0, 150.0, 175.0, 200.0, 225.0] {
                let ln_time = scale * time(cap_w).ln() + noise * rng.normal();
                out.push(CapObservation {
                    class,
                    family: class % families,
                    ln_power: 230.0_f64.ln(),
                    cap_w,
                    slow: Some((ln_time, 0.015)),
                    power: None,
                });
            }
        }
        out
    }

    /// A time that rises steeply below 140 W, and a speed that saturates.
    fn steep(cap_w: f64) -> f64 {
        1.0 + 2.0 * (-(cap_w - 100.0) / 20.0).exp()
    }

    fn saturating(cap_w: f64) -> f64 {
        let speed = |cap: f64| 1.0 - 0.6 * (-(cap - 100.0) / 30.0).exp();
        speed(CAP_W) / speed(cap_w)
    }

    fn choose(seen: &[CapObservation]) -> FormChoice {
        FormChoice::choose(seen, CAP_W, None, std::iter::empty())
    }

    #[test]
    fn gpu_types_of_different_response_have_different_shares() {
        let (steep, saturating) =
            (choose(&seen(4, 0.005, steep)), choose(&seen(4, 0.005, saturating)));
        for choice in [&steep, &saturating] {
            assert!((choice.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{choice:?}");
            let (equal, blend) = choice.errors.unwrap();
            assert!(choice.basis == Basis::Blend && blend < 0.9 * equal, "{choice:?}");
        }
        let exponential_time = |c: &FormChoice| c.shares[1] + c.shares[3];
        let speed = |c: &FormChoice| c.shares[4] + c.shares[5];
        assert!(
            exponential_time(&steep) > 0.5 && speed(&steep) < 0.1 && speed(&saturating) > 0.3,
            "{steep:?} {saturating:?}"
        );
    }

    #[test]
    fn equal_shares_remain_where_readings_are_noise() {
        let flat = choose(&seen(5, 0.02, |_| 1.0));
        assert_eq!((flat.basis, flat.shares), (Basis::Equal, EQUAL));
    }

    #[test]
    fn too_few_networks_use_other_gpu_types() {
        let few = seen(2, 0.005, steep);
        assert_eq!(choose(&few), FormChoice { families: 2, ..FormChoice::default() });
        let (a, b) = (choose(&seen(4, 0.005, steep)), choose(&seen(8, 0.005, saturating)));
        let pooled = FormChoice::choose(&few, CAP_W, None, [&a, &b, &choose(&few)].into_iter());
        assert_eq!(pooled.basis, Basis::OtherTypes(2));
        for (form, share) in pooled.shares.iter().enumerate() {
            let expected = (4.0 * a.shares[form] + 8.0 * b.shares[form]) / 12.0;
            assert!((share - expected).abs() < 1e-12, "{form}");
        }
    }

    #[test]
    fn choice_is_kept_until_a_fifth_of_the_rows_is_new() {
        let mut rows = seen(4, 0.005, steep);
        let first = choose(&rows);
        let marked = FormChoice { shares: EQUAL, ..first.clone() };
        let again = |rows: &[CapObservation]| {
            FormChoice::choose(rows, CAP_W, Some(&marked), std::iter::empty())
        };
        assert_eq!(again(&rows), marked);
        let more: Vec<CapObservation> =
            rows[..18].iter().map(|s| CapObservation { class: s.class + 50, ..*s }).collect();
        rows.extend(more);
        assert_ne!(again(&rows), marked);
    }

    #[test]
    fn shares_stay_valid_for_any_input() {
        let odd = [f64::NAN, f64::INFINITY, -1e9, 0.0, 4.9, -4.9];
        let mut rows = seen(4, 0.01, steep);
        for (i, value) in odd.into_iter().enumerate() {
            for (k, cap_w) in [100.0, 100.0, 150.0, value].into_iter().enumerate() {
                let i = (4 * i + k) as u16;
                let slow = Some((value, if i.is_multiple_of(2) { 0.01 } else { value }));
                let power = Some((value, 0.01));
                rows.push(CapObservation {
                    class: 90 + i / 4,
                    family: i % 3,
                    ln_power: 5.0,
                    cap_w,
                    slow,
                    power,
                });
            }
        }
        let choice = choose(&rows);
        assert!(choice.shares.iter().all(|w| (0.0..=1.0).contains(w)), "{choice:?}");
        assert!((choice.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{choice:?}");
    }
}

//! Quantile of the scores of an unseen family, from the scores of other families.
//!
//! Families differ in the scale of their errors, and few were seen, so both the scale of the next family
//! and the position of a score within it are random. With a family's scores s, their root mean square r,
//! and z = s / r:
//!
//! ```text
//! ln r  normal over families, mean and variance unknown
//! ln s  of a new family  =  mean(ln r) + sd(ln r) (1 + 1/K)^(1/2) T  +  ln z,   T: Student's, K - 1 dof
//! ```
//!
//! z has the pooled empirical distribution, each family with the same weight. The result is the 90 %
//! quantile of s: the predictive distribution of one more group in a one-way random-effects layout
//! (Searle, Casella, McCulloch, "Variance Components", 1992), with the empirical distribution of scores
//! in place of a normal one. Scores are limited to three times their family's 90 % quantile, so that one
//! faulty window does not set a scale.
//!
//! The models' own claim is added as one more family, with the scores of correct 90 % intervals: with few
//! families it keeps intervals from shrinking, and among many it has little weight. [`Claim::Ignored`] leaves
//! it out.

use wattle_common::numerics::statistics::quantile_weibull;
use wattle_common::numerics::student::{NORMAL_95, cumulative};

/// Smallest number of families.
pub(super) const FAMILIES_MIN: usize = 2;
/// Absolute values of a standard normal variable at the middles of sixteen equal probabilities.
const NORMAL: [f64; 16] = [
    0.039, 0.118, 0.197, 0.278, 0.360, 0.445, 0.533, 0.626, 0.725, 0.831, 0.947, 1.078, 1.230,
    1.418, 1.676, 2.154,
];
/// Limit of a score, as a multiple of its family's 90 % quantile.
const WILD: f64 = 3.0;
/// Smallest root mean square: scores are rounded to a thousandth.
const LEAST: f64 = 1e-3;
/// Number of points that represent the distribution of z.
const PLACES: usize = 32;
/// Bracket of the bisection for ln s, and its number of steps.
const LOOKED_FOR: (f64, f64) = (-7.0, 7.0);
const HALVINGS: usize = 40;

/// Whether the models' claim is one more family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Counted,
    Ignored,
}

/// Quantile `covered` of the scores of an unseen family, from the scores of `families`, none of them
/// empty; `None` for too few families.
pub(super) fn of_new_family(families: &[Vec<f32>], covered: f64, claim: Claim) -> Option<f64> {
    // The claim counts as a family.
    let least = FAMILIES_MIN + usize::from(claim == Claim::Ignored);
    if families.len() < least {
        return None;
    }
    let tame = |scores: &Vec<f32>| -> Vec<f64> {
        // In ascending order, so that sums do not depend on the order of arrival.
        let mut sorted: Vec<f64> = scores.iter().map(|s| f64::from(*s)).collect();
        sorted.sort_by(f64::total_cmp);
        let most = WILD * quantile_weibull(&mut sorted.clone(), 0.9).unwrap_or(0.0);
        sorted.into_iter().map(|s| s.min(most).max(LEAST)).collect()
    };
    let claim = (claim == Claim::Counted).then(|| NORMAL.map(|z| z / NORMAL_95).to_vec());
    let groups: Vec<Vec<f64>> = families.iter().map(tame).chain(claim).collect();
    let scale = |scores: &Vec<f64>| {
        let squares: f64 = scores.iter().map(|s| s * s).sum();
        0.5 * (squares / scores.len().max(1) as f64).ln()
    };
    let scales: Vec<f64> = groups.iter().map(scale).collect();
    let count = scales.len() as f64;
    let mean = scales.iter().sum::<f64>() / count;
    let variance = scales.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let sd = (variance * (1.0 + 1.0 / count)).max(1e-9).sqrt();
    let places = places(&groups, &scales);
    let (mut low, mut high) = LOOKED_FOR;
    for _ in 0..HALVINGS {
        let at = f64::midpoint(low, high);
        let below = |z: &f64| cumulative((at - mean - z) / sd, scales.len() - 1);
        let share = places.iter().map(below).sum::<f64>() / places.len() as f64;
        if share < covered { low = at } else { high = at }
    }
    Some(high.exp())
}

/// Natural logarithms of z at evenly spaced probabilities; each family has the same weight.
fn places(groups: &[Vec<f64>], scales: &[f64]) -> Vec<f64> {
    let one = |(scores, scale): (&Vec<f64>, &f64)| -> Vec<(f64, f64)> {
        let weight = 1.0 / (scores.len().max(1) * groups.len()) as f64;
        scores.iter().map(|s| (s.ln() - scale, weight)).collect()
    };
    let mut all: Vec<(f64, f64)> = groups.iter().zip(scales).flat_map(one).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut out, mut below) = (Vec::with_capacity(PLACES), 0.0);
    for (z, weight) in all {
        below += weight;
        while out.len() < PLACES && below + 1e-12 >= (out.len() as f64 + 0.5) / PLACES as f64 {
            out.push(z);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    /// Scores of a family with a random scale and an error common to its predictions; one in a hundred
    /// is faulty.
    fn family(rng: &mut Stream, claimed: f64, apart: f64) -> Vec<f32> {
        let scale = claimed * (apart * rng.normal() - 0.5 * apart * apart).exp() / NORMAL_95;
        let common = 0.6 * rng.normal();
        let n = 3 + rng.below(58);
        (0..n)
            .map(|_| {
                let wild = if rng.below(100) == 0 { 30.0 } else { 1.0 };
                (wild * scale * (common + 0.8 * rng.normal())).abs() as f32
            })
            .collect()
    }

    /// Mean coverage of a new family after `seen` families.
    fn coverage(seen: usize, claimed: f64, apart: f64) -> f64 {
        let mut rng = Stream::new(11, "families");
        let rounds = 300;
        let one = |rng: &mut Stream| {
            let families: Vec<Vec<f32>> = (0..seen).map(|_| family(rng, claimed, apart)).collect();
            let most = of_new_family(&families, 0.9, Claim::Counted).unwrap();
            let new = family(rng, claimed, apart);
            new.iter().filter(|s| f64::from(**s) <= most).count() as f64 / new.len() as f64
        };
        (0..rounds).map(|_| one(&mut rng)).sum::<f64>() / f64::from(rounds)
    }

    /// Coverage is 90 % where the claim is right on average or half of it, however families differ; with
    /// a claim twice too wide it is higher until families are many.
    #[test]
    fn nine_tenths_of_a_new_family_are_covered() {
        for seen in [3, 4, 8] {
            for apart in [0.0, 0.5, 1.0] {
                for claimed in [1.0, 2.0] {
                    let coverage = coverage(seen, claimed, apart);
                    assert!(
                        (0.85..=0.95).contains(&coverage),
                        "{seen} {apart} {claimed}: {coverage}"
                    );
                }
                let wide = coverage(seen, 0.5, apart);
                assert!((0.87..=0.995).contains(&wide), "{seen} {apart}: {wide}");
            }
        }
        let many = coverage(40, 0.5, 0.5);
        assert!((0.86..=0.95).contains(&many), "{many}");
    }

    #[test]
    fn few_families_do_not_shrink_intervals() {
        assert_eq!(of_new_family(&[vec![0.1; 9]], 0.9, Claim::Counted), None);
        let calm = |n: usize| vec![vec![0.05, 0.1, 0.15, 0.2, 0.25]; n];
        let (few, many) = [3, 60].map(|n| of_new_family(&calm(n), 0.9, Claim::Counted)).into();
        assert!(few.unwrap() > 0.5 && many.unwrap() < 0.35, "{few:?} {many:?}");
        assert!(
            of_new_family(&[vec![0.0; 5], vec![1e3; 5]], 0.9, Claim::Counted).unwrap().is_finite()
        );
    }
}

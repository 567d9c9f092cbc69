//! What intervals of a family never seen need, by how far off those of other families were.
//!
//! Families differ in how far off predictions of them are, and few were seen, so two things are
//! unknown of the next one: its own scale, and where a score lies within it. Both come from the
//! families seen. With s a family's scores, r their root mean square, and z = s / r:
//!
//! ```text
//! ln r  normal over families, its mean and variance unknown
//! ln s  of a family to come  =  mean(ln r) + sd(ln r) (1 + 1/K)^(1/2) T  +  ln z,   T: Student's, K - 1
//! ```
//!
//! z is that of any family, each counting the same whatever the number of its scores. The answer is
//! the score that nine in ten of those to come stay below: the predictive law of one more group of a
//! one-way layout (Searle, Casella, McCulloch, "Variance Components", 1992), with the scores' own
//! law in place of a normal one. Scores beyond three times their family's 90 % quantile count as
//! that far, so that one window with a mistake in it makes no scale.
//!
//! What the models claim stands among the families as one more of them, whose scores lie as those of
//! true 90 % intervals do: with few families it keeps an interval from being drawn together on
//! their word alone, and among many it is one of many.

use wattle_common::numerics::statistics::quantile_weibull;
use wattle_common::numerics::student::{NORMAL_95, cumulative};

/// Fewer say nothing of what families differ by.
pub(super) const FAMILIES_MIN: usize = 2;
/// Sizes of sixteen draws from the standard normal law, at the middles of sixteen equal parts.
const NORMAL: [f64; 16] = [
    0.039, 0.118, 0.197, 0.278, 0.360, 0.445, 0.533, 0.626, 0.725, 0.831, 0.947, 1.078, 1.230,
    1.418, 1.676, 2.154,
];
/// A score beyond so many times what nine in ten of its family stay below counts as that far.
const WILD: f64 = 3.0;
/// The least root mean square: a score is rounded to a thousandth.
const LEAST: f64 = 1e-3;
/// Places that the law of z is kept at.
const PLACES: usize = 32;
/// The logarithms between which the answer is looked for, and how often that is halved.
const LOOKED_FOR: (f64, f64) = (-7.0, 7.0);
const HALVINGS: usize = 40;

/// The score that a share `covered` of a family to come stays below, by the scores of `families`,
/// none of them empty; `None` for too few families.
pub(super) fn of_new_family(families: &[Vec<f32>], covered: f64) -> Option<f64> {
    if families.len() < FAMILIES_MIN {
        return None;
    }
    let tame = |scores: &Vec<f32>| -> Vec<f64> {
        // In ascending order, so that sums do not depend on the order of arrival.
        let mut sorted: Vec<f64> = scores.iter().map(|s| f64::from(*s)).collect();
        sorted.sort_by(f64::total_cmp);
        let most = WILD * quantile_weibull(&mut sorted.clone(), 0.9).unwrap_or(0.0);
        sorted.into_iter().map(|s| s.min(most).max(LEAST)).collect()
    };
    let claim = NORMAL.map(|z| z / NORMAL_95).to_vec();
    let groups: Vec<Vec<f64>> = families.iter().map(tame).chain([claim]).collect();
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

/// The logarithm of z at evenly spread places of its law; each family counts the same.
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

    /// Scores of a family whose scale is drawn with the others', and whose predictions have an
    /// error in common; one in a hundred is a mistake of the window.
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

    /// How much of a family to come is held after `seen` families, in the mean.
    fn held(seen: usize, claimed: f64, apart: f64) -> f64 {
        let mut rng = Stream::new(11, "families");
        let rounds = 300;
        let one = |rng: &mut Stream| {
            let families: Vec<Vec<f32>> = (0..seen).map(|_| family(rng, claimed, apart)).collect();
            let most = of_new_family(&families, 0.9).unwrap();
            let new = family(rng, claimed, apart);
            new.iter().filter(|s| f64::from(**s) <= most).count() as f64 / new.len() as f64
        };
        (0..rounds).map(|_| one(&mut rng)).sum::<f64>() / f64::from(rounds)
    }

    /// Where the claims are right in the mean, or half of what they should be, nine in ten are held
    /// whatever the families differ by; where they are twice as wide, more, until families are many.
    #[test]
    fn nine_in_ten_of_a_family_to_come_are_held() {
        for seen in [3, 4, 8] {
            for apart in [0.0, 0.5, 1.0] {
                for claimed in [1.0, 2.0] {
                    let held = held(seen, claimed, apart);
                    assert!((0.85..=0.95).contains(&held), "{seen} {apart} {claimed}: {held}");
                }
                let wide = held(seen, 0.5, apart);
                assert!((0.87..=0.995).contains(&wide), "{seen} {apart}: {wide}");
            }
        }
        let many = held(40, 0.5, 0.5);
        assert!((0.86..=0.95).contains(&many), "{many}");
    }

    #[test]
    fn few_families_cannot_say_that_the_next_needs_less() {
        assert_eq!(of_new_family(&[vec![0.1; 9]], 0.9), None);
        let calm = |n: usize| vec![vec![0.05, 0.1, 0.15, 0.2, 0.25]; n];
        let (few, many) = (of_new_family(&calm(3), 0.9), of_new_family(&calm(60), 0.9));
        assert!(few.unwrap() > 0.5 && many.unwrap() < 0.35, "{few:?} {many:?}");
        assert!(of_new_family(&[vec![0.0; 5], vec![1e3; 5]], 0.9).unwrap().is_finite());
    }
}

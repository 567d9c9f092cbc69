//! Seeded random streams, one for each named component.
//!
//! A run has one seed; each component has its own stream, selected by name, so draws in one component
//! do not affect another. The generator is fixed (ChaCha8), so a seed gives the same numbers in every
//! release.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::hash::fnv1a;

/// A stream of random numbers determined by (seed, name).
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of component `name` in the run with `seed`.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The name selects one of ChaCha's 2^64 independent streams.
        rng.set_stream(fnv1a(name.as_bytes()));
        Self(rng)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift (Lemire); its bias is at most bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1), of 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A draw from the normal distribution with mean 0 and deviation 1 (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// One of `items`, uniformly; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These numbers must never change: recorded results name their seed.
    #[test]
    fn numbers_of_a_seed_never_change() {
        let mut stream = Stream::new(7, "workloads");
        let drawn: Vec<u64> = (0..4).map(|_| stream.below(1_000)).collect();
        expect_test::expect![[r#"
            [
                612,
                493,
                13,
                352,
            ]
        "#]]
        .assert_debug_eq(&drawn);
    }

    #[test]
    fn streams_are_independent() {
        let (mut a, mut b) = (Stream::new(1, "a"), Stream::new(1, "b"));
        assert_ne!(a.next_u64(), b.next_u64());
        let mut again = Stream::new(1, "b");
        again.next_u64();
        assert_eq!(b.next_u64(), again.next_u64());
    }

    #[test]
    fn draws_stay_in_range() {
        let mut stream = Stream::new(3, "range");
        assert!((0..1_000).all(|_| stream.below(10) < 10 && stream.unit() < 1.0));
        let mean = (0..10_000).map(|_| stream.normal()).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05, "mean of 10,000 normal draws: {mean}");
        assert_eq!(stream.pick::<u8>(&[]), None);
    }
}

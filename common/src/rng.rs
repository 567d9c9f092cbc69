//! Seeded random streams, one per named component.
//!
//! A run has one seed; each component draws from a child stream found by name, so that more draws
//! in one component never disturb another. The generator is named (ChaCha8), because "the standard
//! one" may change between releases and a seed must mean the same for ever.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A stream of random numbers that (seed, name) determines wholly.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of the component called `name` in the run with `seed`.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        // The name picks one of ChaCha's 2^64 independent streams (FNV-1a, 64 bit).
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(hash);
        Self(rng)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift (Lemire); the bias of bound / 2^64 does not matter to any use here.
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

    /// One of `items`, each as likely; `None` where there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These numbers must never change: a seed in somebody's notes means them.
    #[test]
    fn a_seed_means_the_same_for_ever() {
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
    fn streams_do_not_disturb_each_other() {
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

//! Instants of the system's time, and its mapping to wall time.
//!
//! All services use the system's time. On real hardware it is the wall clock; with simulated
//! hardware it may run faster, at a rate stored in the simulated node's shared state, and it is held while a
//! process of the cluster still works ([`grant`]). The mapping is pure; only `runtime`'s `now()` and the
//! simulated driver apply it.

pub mod grant;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant: microseconds since the Unix epoch, in the system's time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch; where a simulation starts.
    pub const EPOCH: Self = Self(0);
    /// Later than every instant that occurs.
    pub const FOREVER: Self = Self(u64::MAX);

    /// This instant, or a microsecond after `last` if it is not later: the times of a reporter's messages increase
    /// even where its clock stands or has coarse steps.
    #[must_use]
    pub fn advanced_past(self, last: Option<Self>) -> Self {
        last.map_or(self, |last| self.max(Self(last.0.saturating_add(1))))
    }

    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_us(microseconds: u64) -> Self {
        Self(microseconds)
    }
    /// From whole seconds since the Unix epoch.
    #[must_use]
    pub const fn from_s(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }
    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_us(self) -> u64 {
        self.0
    }
    /// Seconds since the Unix epoch, for models and display.
    #[must_use]
    pub fn as_s(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Longest duration of [`span_s`], seconds: 300,000 years. Sums of thousands of them do not overflow.
const SPAN_S_MAX: f64 = 1e13;

/// A duration of a model's seconds: zero for a negative value or NaN, at most 300,000 years.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "within the range")]
pub fn span_s(seconds: f64) -> Duration {
    // `max` replaces NaN, which `clamp` would keep.
    Duration::from_secs_f64(f64::min(seconds.max(0.0), SPAN_S_MAX))
}

/// `span` times a model's factor: zero for a negative value or NaN, at most 300,000 years.
#[must_use]
pub fn scaled(span: Duration, factor: f64) -> Duration {
    span_s(span.as_secs_f64() * factor)
}

/// Mapping of wall time to the system's time: from `epoch_us` on, `rate` times as fast.
///
/// With rate 1 they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// The instant at which both are equal, microseconds since the Unix epoch.
    pub epoch_us: u64,
    /// Seconds of the system's time in one second of wall time; at least 1.
    pub rate: u32,
}

/// Why bytes are not a [`TimeScale`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TimeScaleError {
    /// Too few bytes, or other bytes than a simulated node writes.
    #[error("not the state file of a simulated node")]
    NotAState,
    /// A rate of zero would stop time.
    #[error("the clock's rate is 0; it must be at least 1")]
    ZeroRate,
}

impl TimeScale {
    /// The wall clock itself.
    pub const WALL: Self = Self { epoch_us: 0, rate: 1 };
    /// The first bytes of every simulated node's shared state.
    pub const MAGIC: [u8; 8] = *b"WATTLSIM";
    /// Length of the header in bytes: the magic, the epoch (u64, little-endian), the rate (u32,
    /// little-endian), four bytes of zero.
    pub const HEADER_LEN: usize = 24;

    /// The system's time at wall time `wall_us`, microseconds.
    #[must_use]
    pub const fn system(&self, wall_us: u64) -> Timestamp {
        if wall_us <= self.epoch_us {
            return Timestamp(wall_us);
        }
        let ahead = (wall_us - self.epoch_us).saturating_mul(self.rate as u64);
        Timestamp(self.epoch_us.saturating_add(ahead))
    }

    /// The wall time, in microseconds, at the system's time `at`; rounded up, so that waiting until
    /// then is never too short.
    #[must_use]
    pub const fn wall(&self, at: Timestamp) -> u64 {
        if at.0 <= self.epoch_us {
            return at.0;
        }
        self.epoch_us + (at.0 - self.epoch_us).div_ceil(self.rate as u64)
    }

    /// The wall time of `span` of the system's time, rounded up.
    #[must_use]
    pub fn wall_span(&self, span: Duration) -> Duration {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(micros.div_ceil(u64::from(self.rate)))
    }

    /// The header of a simulated node's shared state.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::HEADER_LEN] {
        let mut bytes = [0; Self::HEADER_LEN];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.epoch_us.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rate.to_le_bytes());
        bytes
    }

    /// Parses the header of a simulated node's shared state.
    ///
    /// # Errors
    /// If the bytes are not such a header, or the rate is zero.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TimeScaleError> {
        let head = bytes.get(..Self::HEADER_LEN).ok_or(TimeScaleError::NotAState)?;
        if head[..8] != Self::MAGIC {
            return Err(TimeScaleError::NotAState);
        }
        let word = |at: usize| -> [u8; 4] { [head[at], head[at + 1], head[at + 2], head[at + 3]] };
        let low = u64::from(u32::from_le_bytes(word(8)));
        let high = u64::from(u32::from_le_bytes(word(12)));
        let rate = u32::from_le_bytes(word(16));
        if rate == 0 {
            return Err(TimeScaleError::ZeroRate);
        }
        Ok(Self { epoch_us: high << 32 | low, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rate_scales_wall_time() {
        let scale = TimeScale { epoch_us: 1_000_000, rate: 60 };
        assert_eq!(scale.system(1_000_000), Timestamp::from_s(1));
        assert_eq!(scale.system(2_000_000), Timestamp::from_s(61));
        assert_eq!(scale.wall(Timestamp::from_s(61)), 2_000_000);
        assert_eq!(scale.wall_span(Duration::from_secs(60)), Duration::from_secs(1));
    }

    #[test]
    fn times_beyond_the_range_saturate() {
        let scale = TimeScale { epoch_us: 5, rate: u32::MAX };
        assert_eq!(scale.system(u64::MAX), Timestamp::FOREVER);
        let longest = span_s(f64::INFINITY);
        assert_eq!(scaled(longest, 1e300), longest);
        assert!(longest + longest > longest, "sums do not overflow");
        for none in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!((span_s(none), scaled(longest, none)), (Duration::ZERO, Duration::ZERO));
        }
        assert_eq!(scaled(Duration::from_secs(3), 1.5), Duration::from_millis(4_500));
    }

    #[test]
    fn foreign_bytes_are_an_error() {
        assert_eq!(TimeScale::from_bytes(b"short"), Err(TimeScaleError::NotAState));
        assert_eq!(TimeScale::from_bytes(&[7; 64]), Err(TimeScaleError::NotAState));
        let mut zero = TimeScale::WALL.to_bytes();
        zero[16..20].fill(0);
        assert_eq!(TimeScale::from_bytes(&zero), Err(TimeScaleError::ZeroRate));
    }

    proptest! {
        #[test]
        fn header_round_trips(epoch_us in any::<u64>(), rate in 1u32..) {
            let scale = TimeScale { epoch_us, rate };
            prop_assert_eq!(TimeScale::from_bytes(&scale.to_bytes()), Ok(scale));
        }

        /// Waiting until the wall time of an instant is never too short, and at most one tick too long.
        #[test]
        fn wall_inverts_system(epoch_us in 0u64..1 << 50, ahead in 0u64..1 << 40, rate in 1u32..10_000) {
            let scale = TimeScale { epoch_us, rate };
            let at = Timestamp::from_us(epoch_us + ahead);
            let reached = scale.system(scale.wall(at));
            prop_assert!(reached >= at && reached.since(at) < Duration::from_micros(u64::from(rate)));
        }
    }
}

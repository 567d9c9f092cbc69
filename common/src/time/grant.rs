//! Granted time: the clock of simulated hardware stands still while a process of the cluster still works.
//!
//! A simulated clock runs up to thousands of times faster than the machine. If it never waited, a delay of
//! the machine would be a delay of the cluster, times the rate: a service that the kernel schedules 50 ms late
//! would be 3 s late at rate 60. Therefore a process grants the time ([`Granter`]): after each look at the
//! cluster that finds all of its processes asleep, the clock may run for another [`grain`]; without such a look
//! it is held. So simulated time is ahead of the services by at most [`SPAN_MAX`] of simulated time, and by what
//! their timers are late on a quiet machine (1 to 3 ms of wall time, times the rate), however slow or busy the
//! machine is. The rate is an upper bound.
//!
//! The grant concerns the wall time below the [`super::TimeScale`]: the time that the clock was held is
//! subtracted from it. Real hardware has no grant, and its clock is never held.

use std::time::Duration;

/// Most simulated time that one grant permits.
pub const SPAN_MAX: Duration = Duration::from_millis(500);
/// Most wall time that one grant permits; it is the lower one at small rates.
const WALL_MAX: Duration = Duration::from_millis(20);

/// Wall time that one grant permits at a rate.
#[must_use]
pub fn grain(rate: u32) -> Duration {
    (SPAN_MAX / rate.max(1)).clamp(Duration::from_micros(1), WALL_MAX)
}

/// How far a simulated clock may run, and how long it was held.
///
/// Instants are readings of the machine's boot-time clock, which all processes of a machine share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Reading of the boot-time clock beyond which the time is held, microseconds; 0: never.
    limit_us: u64,
    /// Time for which the clock was held before this grant, microseconds.
    held_us: u64,
}

impl Grant {
    /// No limit: the clock runs freely.
    pub const FREE: Self = Self { limit_us: 0, held_us: 0 };
    /// Offset in a simulated node's shared state, bytes.
    pub const OFFSET: usize = 192;
    /// Number of words there, each u64, little-endian: a sequence number, then two copies of limit and held
    /// time. The lowest bit of the sequence number selects the valid copy, so a writer that is killed at any
    /// instant leaves a valid grant.
    pub const WORDS: usize = 5;
    /// Their length in bytes.
    pub const LEN: usize = Self::WORDS * 8;

    /// Time for which the clock was held until the boot-time clock reads `boot`.
    #[must_use]
    pub const fn held(&self, boot: Duration) -> Duration {
        let over = if self.limit_us == 0 { 0 } else { micros(boot).saturating_sub(self.limit_us) };
        Duration::from_micros(self.held_us.saturating_add(over))
    }

    /// Whether the clock runs without a limit.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.limit_us == 0
    }

    /// Whether the clock is held when the boot-time clock reads `boot`.
    #[must_use]
    pub const fn is_held(&self, boot: Duration) -> bool {
        self.limit_us != 0 && micros(boot) >= self.limit_us
    }

    /// The clock runs freely from the reading `boot` on.
    #[must_use]
    pub const fn released(&self, boot: Duration) -> Self {
        Self { limit_us: 0, held_us: micros(self.held(boot)) }
    }

    /// The two words of a copy.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        [self.limit_us, self.held_us]
    }

    /// Index of the copy that is valid under a sequence number, among the words of the shared state.
    #[must_use]
    pub const fn copy_of(sequence: u64) -> usize {
        1 + 2 * (sequence % 2) as usize
    }

    /// The valid copy of the words of the shared state.
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        let copy = Self::copy_of(words[0]);
        Self { limit_us: words[copy], held_us: words[copy + 1] }
    }

    /// As [`Self::from_words`], from bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        Self::from_words(std::array::from_fn(word))
    }
}

/// Grants the time of a simulated cluster. It knows the rate and the grant; its caller looks at the cluster.
#[derive(Debug)]
pub struct Granter {
    grain: Duration,
    grant: Grant,
}

impl Granter {
    /// Continues after `grant`, the last one of an earlier process. The time since its limit counts as held.
    #[must_use]
    pub fn resume(rate: u32, grant: Grant) -> Self {
        Self { grain: grain(rate), grant }
    }

    /// The grant in force.
    #[must_use]
    pub const fn grant(&self) -> Grant {
        self.grant
    }

    /// Holds the clock at `boot`, if it is not held already.
    pub fn hold(&mut self, boot: Duration) {
        self.grant.held_us = micros(self.grant.held(boot));
        self.grant.limit_us = micros(boot).max(1);
    }

    /// Grants time after a look at `boot` that found all processes asleep.
    pub fn all_asleep(&mut self, boot: Duration) {
        self.grant.held_us = micros(self.grant.held(boot));
        self.grant.limit_us = micros(boot + self.grain);
    }
}

const fn micros(span: Duration) -> u64 {
    let micros = span.as_micros();
    if micros > u64::MAX as u128 { u64::MAX } else { micros as u64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_clock_is_held_from_the_end_of_a_grant_until_the_next_quiet_look() {
        let mut granter = Granter::resume(100, Grant::FREE);
        granter.hold(ms(9_000));
        assert!(granter.grant().is_held(ms(9_000)) && granter.grant().held(ms(9_400)) == ms(400));
        let mut granter = Granter::resume(100, Grant::FREE);
        assert!(!granter.grant().is_held(ms(9_999)) && granter.grant().held(ms(9_999)).is_zero());
        granter.all_asleep(ms(10_000));
        let grant = granter.grant();
        assert!(
            !grant.is_held(ms(10_004)) && grant.is_held(ms(10_005)),
            "5 ms of 500 ms at rate 100"
        );
        assert_eq!((grant.held(ms(10_004)), grant.held(ms(10_105))), (ms(0), ms(100)));
        granter.all_asleep(ms(10_105));
        assert_eq!(granter.grant().held(ms(10_106)), ms(100), "held time stays held");
        assert_eq!(granter.grant().held(ms(10_210)), ms(200));
        let free = granter.grant().released(ms(10_210));
        assert!(
            !free.is_held(ms(99_999)) && free.held(ms(99_999)) == ms(200),
            "no time is lost or made up"
        );
    }

    #[test]
    fn a_grant_permits_at_most_half_a_simulated_second() {
        for rate in [1, 7, 60, 600, 10_000] {
            assert!(grain(rate) * rate <= SPAN_MAX, "{rate}");
        }
        assert_eq!(grain(1), ms(20));
    }

    proptest! {
        /// The granted time never goes back, never runs faster than the machine's, and after a look with
        /// processes at work it runs for at most one grain.
        #[test]
        fn granted_time_is_steady(rate in 1u32..2_000, looks in prop::collection::vec((1u64..50_000, any::<bool>()), 1..200)) {
            let mut granter = Granter::resume(rate, Grant::FREE);
            let start = 1_000_000_u64;
            granter.all_asleep(Duration::from_micros(start));
            let granted = |grant: Grant, boot: u64| boot - grant.held(Duration::from_micros(boot)).as_micros() as u64;
            let (mut boot, mut last, mut quiet) = (start, granted(granter.grant(), start), granted(granter.grant(), start));
            for (pause, asleep) in looks {
                boot += pause;
                let before = granted(granter.grant(), boot);
                prop_assert!(before >= last && before - last <= pause);
                prop_assert!(before - quiet <= grain(rate).as_micros() as u64);
                if asleep {
                    granter.all_asleep(Duration::from_micros(boot));
                    quiet = granted(granter.grant(), boot);
                    prop_assert_eq!(quiet, before, "a grant is no jump");
                }
                last = before;
            }
        }

        #[test]
        fn the_valid_copy_is_read(sequence in any::<u64>(), valid in any::<[u64; 2]>(), other in any::<[u64; 2]>()) {
            let mut words = [sequence, 0, 0, 0, 0];
            for (copy, grant) in [(sequence, valid), (sequence ^ 1, other)] {
                words[Grant::copy_of(copy)..][..2].copy_from_slice(&grant);
            }
            let grant = Grant::from_words(words);
            prop_assert_eq!(grant.to_words(), valid);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert_eq!(Grant::from_bytes(&bytes.try_into().unwrap()), grant);
        }
    }

    #[test]
    fn a_new_state_is_free() {
        assert_eq!(Grant::from_bytes(&[0; Grant::LEN]), Grant::FREE);
    }
}

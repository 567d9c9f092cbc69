//! The interface between decision logic and its driver.
//!
//! The decision logic of a service is a library. Its driver passes in events with the current time,
//! and carries out the actions it returns. The library never blocks, never fails, reads no clock and
//! does no I/O, so any driver (a service's binary, a test) gives the same results.

use crate::Timestamp;

/// The decision logic of a service.
pub trait Machine {
    /// Something that happened, in the past tense: `WindowClosed`, `JobSubmitted`.
    type Event;
    /// Something to do, in the imperative: `SetCap`, `PublishSurface`.
    type Action;

    /// Advances to `now`, applies `event`, and appends the resulting actions to `out`.
    fn handle(&mut self, now: Timestamp, event: Self::Event, out: &mut Vec<Self::Action>);

    /// Called at or after the instant of [`Machine::next_wake`].
    fn wake(&mut self, now: Timestamp, out: &mut Vec<Self::Action>);

    /// When to call [`Machine::wake`] if no event arrives, and why (for logs).
    fn next_wake(&self) -> Option<(Timestamp, &'static str)>;
}

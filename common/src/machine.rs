//! The one seam between deciding and doing.
//!
//! Each service is a library of decisions with a thin shell. The library is told the time and what
//! happened, and answers what to do and when to wake it. It never blocks, never fails, reads no
//! clock and does no I/O, so the simulator and the service's own binary drive the very same code.

use crate::Timestamp;

/// A service's decision logic, driven from outside.
pub trait Machine {
    /// What happened, in the past tense: `WindowClosed`, `JobSubmitted`.
    type Event;
    /// What must be done, in the imperative: `SetCap`, `PublishSurface`.
    type Action;

    /// Advances to `now`, applies `event`, and appends what must be done to `out`.
    fn handle(&mut self, now: Timestamp, event: Self::Event, out: &mut Vec<Self::Action>);

    /// Called when the instant of [`Machine::next_wake`] has come.
    fn wake(&mut self, now: Timestamp, out: &mut Vec<Self::Action>);

    /// When to wake it if nothing happens, and why (for logs).
    fn next_wake(&self) -> Option<(Timestamp, &'static str)>;
}

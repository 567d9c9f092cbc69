//! Generations: which version of a stored value a view reflects.
//!
//! The only writer of a value counts its changes in the field `generation`, from 1. The reply to a request has
//! the generation with which the request is stored. A view of that value, such as a status or a report, has in
//! `observed_generation` the newest generation that it reflects, which never decreases. A reader of the view
//! thus waits until the view reflects a request, whatever it has shown before.
//!
//! 0, or an absent field, is a generation that is not known: the writer is of an earlier version, or there is no
//! value yet. Generations of different keys are not comparable.

/// Whether a generation is not known.
#[must_use]
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub const fn is_unknown(generation: &u64) -> bool {
    *generation == 0
}

/// The generation after `last`.
///
/// ```
/// assert_eq!(wattle_common::generation::next(0), 1);
/// ```
#[must_use]
pub const fn next(last: u64) -> u64 {
    last.saturating_add(1)
}

//! Applies caps and clocks under a lease, and gives the card back safe.
//!
//! The placer writes what a node's cards shall be set to; this service makes it so and reports what
//! is. It touches real hardware, so it promises four things, and its property tests hold it to
//! them: a cap or clock outside the card's own constraints is never set; an older order is never
//! obeyed; when an order's lease has run out every card is at its safe cap with its clocks free;
//! and the same on start and on stop.
//!
//! The library decides ([`PowerMachine`]); the shell (feature `service`) reads the cards, sets them
//! and talks to the bus. The library must not do I/O and must not read a clock.

pub mod card;
pub mod config;
pub mod machine;
pub mod note;
#[cfg(feature = "service")]
pub mod shell;

pub use card::{CardFacts, CardRead, Refusal};
pub use config::{Config, Settings};
pub use machine::{Action, Event, PowerMachine};
pub use note::Note;

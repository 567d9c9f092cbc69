//! The shell of every service: all between its machine and the bus, the clock and the process.
//!
//! A service is its [`Machine`](wattle_common::Machine) and a short wiring file. The wiring states which
//! sources deliver inputs and how each action is carried out. The rest is here, once for all services.
//!
//! ```text
//! sources --next--> input --handle--> machine --actions--> act --> bus, disk, devices
//!                                     ^ wake, at the instant that the machine has requested
//! ```
//!
//! | part | where |
//! |---|---|
//! | command line, logs, configuration, signals, exit code | [`Program`] |
//! | name on the bus, registration with statistics, metrics endpoint, connection | [`Shell`] |
//! | which of several processes is active | [`LeaseMode`] |
//! | inputs to the machine, its wake-ups, its actions in their order | [`crate::driver`] |
//! | a machine that exists only while its process is active | [`Service`], [`Shell::run`] |
//! | a machine of a node that always runs, with a bus side that may be absent | [`Link`], [`Shell::follow`] |
//!
//! # One turn
//!
//! 1. All actions of the turn before are carried out, in their order.
//! 2. The shell waits for the first of: shutdown, the loss of the lease, the machine's wake-up, an input.
//! 3. In [`Shell::run`], a lease that has ended by this process's clock is confirmed first. The process or
//!    the server was away, so another process may have decided meanwhile.
//! 4. The machine receives the input, or is woken.
//!
//! # Restart and stop
//!
//! * A connection, a bucket and a lease are waited for without a limit. A refusal ends a [`Service`] with an
//!   error; a [`Link`] opens everything again after a second, because its machine runs without the bus.
//! * A process that loses its lease drops what it knows of the store and returns to standby. As the active
//!   one it starts like after a restart, from the store.
//! * At shutdown the sources are dropped, pending work is completed within its limit, the lease is released,
//!   and the client's queue is written. The next process is then active at once.

mod active;
mod link;
mod mode;
mod program;
mod shell;

pub use active::{Actions, End, Phase, Service, Step};
pub use link::Link;
pub use mode::LeaseMode;
pub use program::{Program, Threads};
pub use shell::{Identity, Shell};

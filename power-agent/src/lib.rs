//! Applies power caps and clocks to GPUs under a lease, and returns GPUs to a safe state.
//!
//! The placer writes the caps and clocks that a node's GPUs are to have; this service applies them
//! and reports the actual ones. Its property tests hold these promises:
//! * a cap or clock outside the GPU's limits is never set;
//! * an older desired state is never obeyed;
//! * without a current lease every GPU is at its safe cap with its clock unlocked;
//! * the same holds after start and after shutdown;
//! * the sum of the caps is within the node's limit, and a cap rises only when others have fallen enough;
//! * an agent that only advises sets nothing.
//! * nothing is set on a GPU in MIG mode.
//!
//! [`PowerMachine`] decides, without I/O and without a clock of its own; the shell (feature
//! `service`) reads and sets the GPUs and uses the bus.

mod conditions;
pub mod config;
pub mod gpu_state;
pub mod machine;
mod node_limit;
pub mod note;
mod order_age;
pub mod persisted;
#[cfg(feature = "service")]
pub mod shell;

pub use config::{Config, Control, Settings};
pub use gpu_state::{GpuFacts, GpuStatus, SetError};
pub use machine::{Action, Event, PowerMachine};
pub use note::Note;
pub use persisted::PersistedCaps;

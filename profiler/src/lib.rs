//! Samples GPUs, detects step rates, attributes energy to jobs and closes windows.
//!
//! The profiler turns GPU readings and the jobs' progress into telemetry and summaries of the
//! node, windows (how jobs run under which conditions, for the predictor) and the energy ledger. A
//! missing reading stays missing and never becomes zero.
//!
//! [`ProfilerMachine`] decides, without I/O and without a clock of its own. The shell (feature
//! `service`) reads the GPUs, receives the jobs' progress and uses the bus. The profiler cannot
//! change a GPU.

pub mod attribution;
pub mod config;
pub mod energy;
pub mod gap;
pub mod gpu_tracker;
mod jobs;
pub mod ledger;
pub mod machine;
pub mod note;
pub mod period_detection;
pub mod process_tree;
pub mod resume;
pub mod sender;
#[cfg(feature = "service")]
pub mod shell;
pub mod steps;
mod window;
mod windowing;

pub use config::{Config, Settings};
pub use gpu_tracker::{GpuIdentity, SampledGpu};
pub use machine::{Action, Event, ProfilerMachine};
pub use note::Note;
pub use process_tree::{ProcessOrigin, SlurmId};
pub use resume::{Boot, State};
pub use sender::Sender;

//! Environment variables of Wattle's processes and jobs.
//!
//! A job's variables are a public interface: a training script reads them without any package.

/// Path of the Unix datagram socket to which a job reports its steps (see [`crate::progress`]).
pub const PROGRESS: &str = "WATTLE_PROGRESS";
/// The job's id.
pub const JOB: &str = "WATTLE_JOB";
/// Number of this start of the job, from 1.
pub const ATTEMPT: &str = "WATTLE_ATTEMPT";
/// The job's own folder for checkpoints; it persists over restarts.
pub const CHECKPOINT_DIR: &str = "WATTLE_CHECKPOINT_DIR";
/// Path of a simulated node's shared state, which defines the GPUs of the simulated driver.
pub const SIM_NODE: &str = "WATTLE_SIM_NODE";
/// Path of a file that begins with a [`crate::time::TimeScale`]; absent: the wall clock.
pub const CLOCK: &str = "WATTLE_CLOCK";
/// Address of the NATS server; overrides the configuration.
pub const NATS_URL: &str = "WATTLE_NATS_URL";
/// Path of the file with the nkey seed; overrides the configuration.
pub const CREDENTIALS: &str = "WATTLE_CREDENTIALS";
/// Path of the file with the certificates trusted for the NATS server; overrides the configuration.
pub const CA: &str = "WATTLE_CA";
/// Log filter, in tracing's syntax.
pub const LOG: &str = "WATTLE_LOG";

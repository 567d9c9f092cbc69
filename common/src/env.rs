//! The environment variables that processes of one node hand each other.
//!
//! What a job finds in its environment is a public contract: a training script reads these with no
//! package to install.

/// Path of the Unix datagram socket a job reports its steps to (see [`crate::progress`]).
pub const PROGRESS: &str = "WATTLE_PROGRESS";
/// The job's id.
pub const JOB: &str = "WATTLE_JOB";
/// Which start of the job this is, from 1.
pub const ATTEMPT: &str = "WATTLE_ATTEMPT";
/// A folder of the job's own that outlives a stop; checkpoints belong there.
pub const CHECKPOINT_DIR: &str = "WATTLE_CHECKPOINT_DIR";
/// Path of a simulated node's shared state: which cards the simulated driver shows.
pub const SIM_NODE: &str = "WATTLE_SIM_NODE";
/// Path of a file whose head holds the clock's scale; absent: the wall clock.
pub const CLOCK: &str = "WATTLE_CLOCK";
/// Address of the NATS server, where it is not in the configuration.
pub const NATS_URL: &str = "WATTLE_NATS_URL";
/// What is logged, in tracing's filter syntax.
pub const LOG: &str = "WATTLE_LOG";

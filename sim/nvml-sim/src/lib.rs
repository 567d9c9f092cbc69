//! A simulated GPU node behind NVML's C interface, and a simulated training job.
//!
//! One file holds the state of one node; all processes that map it share the same GPUs. The C
//! library (`libnvml_sim.so`) implements NVML for these GPUs, `wattle-simjob` is the job that runs
//! on them, `wattle-simnode` creates and inspects nodes. Speed and power come from `wattle-world`.
//!
//! docs/simulated-node.md lists what is not simulated.
#![allow(
    unsafe_code,
    reason = "this crate maps shared memory, exports NVML's C symbols, and makes three system \
              calls without a safe wrapper in std"
)]

mod activity;
pub mod clock;
pub mod driver;
pub mod fault;
pub mod health;
pub mod job;
mod layout;
pub mod liveness;
pub mod node;
pub mod nvml;
mod shared;
pub mod state;
mod tenant;

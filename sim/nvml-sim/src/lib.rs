//! A simulated GPU node behind NVML's own C interface, and a job that trains in numbers.
//!
//! One file holds the state of one node; every process that maps it sees the same cards. The C
//! library (`libnvml_sim.so`) answers for those cards as NVIDIA's driver would, `wattle-simjob` is
//! what runs on them, `wattle-simnode` makes and inspects them. What the hardware would do comes
//! from `wattle-world`; nothing here knows a workload's speed or power by itself.
//!
//! What is not simulated: the sensor's averaging and lag (power reads as it is at this instant;
//! a real Ampere card reports a mean over about a second), the ramp of clocks and caps (they act at
//! once), thermal inertia (temperature is a straight line over power), ECC, MIG, MPS, NVLink, the
//! memory a driver reserves for itself, and the video engines.
#![allow(
    unsafe_code,
    reason = "this crate is the one place that speaks C: it maps shared memory, exports NVML's \
              symbols, and makes three system calls that have no safe wrapper in std"
)]

pub mod alive;
pub mod fault;
pub mod job;
mod layout;
pub mod node;
pub mod nvml;
mod shared;
pub mod state;
mod tenant;

//! The vocabulary every part of Wattle speaks.
//!
//! Units, time, ids, seeded randomness, the shape of a cluster, jobs, and the messages with their
//! subjects and codec; and the numerical methods that several crates need. Everything here is pure:
//! no I/O, no clock, no task. A thing belongs here only if two services must agree on it; how a
//! service decides is its own business.

pub mod budget;
pub mod codec;
pub mod config;
pub mod env;
pub mod id;
pub mod job;
pub mod machine;
pub mod messages;
pub mod numerics;
pub mod progress;
pub mod rng;
pub mod subject;
pub mod time;
pub mod topology;
pub mod units;

pub use budget::Budget;
pub use id::{ClusterId, GpuIndex, JobId, NodeId, WorkloadId};
pub use machine::Machine;
pub use time::Timestamp;
pub use units::{Carbon, CarbonIntensity, Energy, Frequency, Power};

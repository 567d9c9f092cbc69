//! Types and numerical methods that several parts of Wattle share.
//!
//! Units, time, ids, seeded random streams, cluster shapes, jobs, and the messages with their
//! subjects and codec. The crate is pure: no I/O, no clock, no task. A type belongs here only if two
//! services must agree on it.

pub mod admission;
pub mod aim;
pub mod bounds;
pub mod budget;
pub mod codec;
pub mod comparison;
pub mod config;
pub mod datasheet;
pub mod duration;
pub mod ended_jobs;
pub mod env;
pub mod event;
pub mod feeders;
pub mod generation;
pub mod gpu_type;
pub mod hash;
pub mod id;
pub mod job;
pub mod lease;
pub mod limit_over_time;
pub mod machine;
pub mod messages;
pub mod numerics;
pub mod observation;
pub mod power_series;
pub mod progress;
pub mod raised_alarms;
pub mod rng;
pub mod subject;
pub mod text;
pub mod time;
pub mod topology;
pub mod total;
pub mod units;
pub mod verdict;

pub use aim::Aim;
pub use budget::Budget;
pub use ended_jobs::EndedJobs;
pub use id::{AdmissionId, ClusterId, EventId, FeederId, GpuIndex, JobId, NodeId, WorkloadId};
pub use limit_over_time::LimitOverTime;
pub use machine::Machine;
pub use power_series::PowerSeries;
pub use raised_alarms::RaisedAlarms;
pub use time::Timestamp;
pub use units::{Carbon, CarbonIntensity, Energy, Frequency, Power};

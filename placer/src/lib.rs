//! Places jobs on GPUs: a [`Policy`] maps a [`PlanningInput`] to a [`Plan`].
//!
//! The caller (the live placer or the simulator) updates a [`ClusterState`] by its event methods,
//! plans, and applies the plan. [`check`] verifies plans independently of the policies. Apart from the
//! service, this library reads no clock, does no I/O and uses no random numbers but fixed ones: equal
//! inputs give equal plans.

pub mod accounts;
pub mod allocation;
pub mod config;
pub mod controller;
pub mod expected;
pub mod live;
mod pipeline;
pub mod plan;
pub mod policies;
pub mod power;
pub mod prediction;
#[cfg(feature = "service")]
pub mod service;
pub mod state;
pub mod twin;

pub use allocation::transition::{Target, plan_transition};
pub use config::Config;
pub use live::{Action, Event, PersistedState, Placer};
pub use pipeline::{Round, Stage, StageReports, solve};
pub use plan::check::{Violation, check};
pub use plan::input::{GridForecast, PlanningInput, PlanningLimits, PolicyCache};
pub use plan::reason::Reason;
pub use plan::{AwaitedStart, Blocked, Decision, NodeDecision, Plan, SettingChange};
pub use policies::{Capabilities, Policy, Reads, UnknownPolicy, policy};
pub use state::cluster::ClusterState;
pub use state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey};
pub use state::job::{Job, JobFacts, KnownSurface, Progress, State};
pub use state::node::{FixedCaps, GpuPower, Node, NodeFacts, NodeWatts, Wakefulness};
pub use state::operating_points::{OperatingPoint, OperatingPoints};

//! Decides who runs where: from a [`PlanningInput`], a value, to a [`Plan`], a value.
//!
//! A caller (the placer's live machine, or the simulator) holds a [`ClusterState`], feeds it
//! through its event methods, asks a [`Policy`] to solve it, and applies the plan.
//! [`check`] is written apart from the policies and says what a plan breaks. This library reads no
//! clock, does no I/O and draws no random number: the same problem always gives the same plan.

pub mod allocation;
pub mod config;
pub mod controller;
pub mod live;
mod pipeline;
pub mod plan;
pub mod policies;
pub mod power;
pub mod probing;
#[cfg(feature = "service")]
pub mod service;
pub mod state;

pub use allocation::transition::{Target, plan_transition};
pub use config::Config;
pub use live::{Action, Event, PersistedState, Placer};
pub use pipeline::solve;
pub use plan::check::{Violation, check};
pub use plan::input::{GridForecast, PlanningInput, PlanningLimits, PolicyCache};
pub use plan::reason::Reason;
pub use plan::{Blocked, Decision, NodeDecision, Plan};
pub use policies::{Capabilities, Policy, Reads, UnknownPolicy, policy};
pub use state::cluster::ClusterState;
pub use state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey};
pub use state::job::{Job, JobFacts, KnownSurface, Progress, State};
pub use state::node::{GpuPower, Node, NodeFacts, NodeWatts, Wakefulness};
pub use state::operating_points::{OperatingPoint, OperatingPoints};

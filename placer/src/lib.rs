//! Decides who runs where: from a [`Problem`], a value, to a [`Plan`], a value.
//!
//! A caller (the placer's live machine, or the simulator) holds a [`Problem`], tells it what
//! happened through its own update methods, asks a [`Policy`] to solve it, and applies the plan.
//! [`check`] is written apart from the policies and says what a plan breaks. This library reads no
//! clock, does no I/O and draws no random number: the same problem always gives the same plan.

pub mod arrange;
pub mod buddy;
pub mod budget;
pub mod charge;
pub mod check;
pub mod config;
pub mod cost;
pub mod defer;
pub mod draw;
pub mod fit;
pub mod job;
mod limit;
pub mod machine;
pub mod menu;
pub mod node;
pub mod outlook;
pub mod plan;
pub mod policy;
pub mod probe;
pub mod problem;
pub mod reason;
pub mod set;
#[cfg(feature = "service")]
pub mod shell;
pub mod sizes;
pub mod sleep;
mod solve;
pub mod standing;

pub use arrange::{Target, arrange};
pub use check::{Violation, check};
pub use config::Config;
pub use draw::CardDraw;
pub use job::{Job, JobFacts, Progress, State, Told};
pub use machine::{Action, Event, Memory, Placer};
pub use menu::{Choice, Menu};
pub use node::{Node, NodeFacts, NodeWatts, Wakefulness};
pub use plan::{Blocked, Decision, NodeDecision, Plan};
pub use policy::{Policy, Reads, UnknownPolicy, policy};
pub use problem::Problem;
pub use reason::Because;
pub use set::{GpuSet, JobKey, NodeKey, Spot};
pub use solve::solve;
pub use standing::Standing;

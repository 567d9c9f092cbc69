//! Scheduling policies, one file each: the rule, its source and our own choices.
//!
//! A policy is selected as `NAME[:NUMBER][@MHZ]`: its name, its tuning number, and one clock for all jobs
//! ([`policy`]). [`POLICIES`] is the table of the policies that the placer runs. A new one is a file with an
//! `ENTRY`, its `mod` line and its line in that table.
//!
//! A policy in another crate implements [`Policy`] with the same parts ([`elastic`], [`greedy`],
//! [`gpu_type_assignment`], [`crate::allocation`]) and is selected from a [`PolicySet`] of that crate.

mod backfill;
pub mod colocation_trial;
mod eaco;
pub mod elastic;
mod fifo;
mod fifo_packed;
pub mod gpu_type_assignment;
pub mod greedy;
mod greenflow;
mod policy_set;
mod powerflow;
mod selected;
pub(crate) mod settings;
mod wattle;

pub use backfill::Backfill;
pub use eaco::{Eaco, EacoConfig};
pub use fifo::Fifo;
pub use fifo_packed::{FifoPacked, PACK_ABOVE};
pub use greenflow::GreenFlow;
pub use policy_set::{Addition, Build, PolicyEntry, PolicySet, UnknownPolicy, names, policy};
pub use powerflow::PowerFlow;
pub use wattle::Wattle;

pub use crate::plan::capabilities::{Capabilities, Reads, Service};

use wattle_common::job::GpuSetting;

use crate::plan::Plan;
use crate::plan::capabilities::PriceRange;
use crate::plan::input::PlanningInput;
use crate::state::job::Job;

/// The policies that the placer runs.
pub const POLICIES: PolicySet = PolicySet {
    entries: &[
        Fifo::ENTRY,
        Backfill::ENTRY,
        FifoPacked::ENTRY,
        Eaco::ENTRY,
        PowerFlow::ENTRY,
        GreenFlow::ENTRY,
        Wattle::ENTRY,
    ],
    additions: &[],
};

/// Their names, as [`policy`] accepts them.
pub const NAMES: [&str; POLICIES.entries.len()] = names(POLICIES.entries);

/// The prices of a policy that compares relative time saved with relative energy spent: from nearly
/// every step taken to hardly any.
pub const RELATIVE_PRICES: PriceRange = PriceRange { least: 0.05, most: 8.0 };

/// A scheduling policy: a function from an input to a plan, one stage of a planning round
/// ([`solve`](crate::solve)).
///
/// A plan that was applied leaves nothing to do: solving again gives an empty plan.
pub trait Policy: Send {
    /// Its name.
    fn name(&self) -> &str;
    /// Its inputs and decisions.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    /// The plan for this input.
    fn solve(&self, input: PlanningInput<'_>) -> Plan;
    /// The cap and clock of a job on this number of GPUs of a type, in place of those in the plan, for a policy
    /// with [`fixes_settings`](Capabilities::fixes_settings). `None`: a running job keeps its own, another one
    /// starts at the default.
    fn fixed_setting(&self, _job: &Job, _gpu_type: &str, _gpus: u32) -> Option<GpuSetting> {
        None
    }
}

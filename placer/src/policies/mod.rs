//! Scheduling policies, one file each: the rule, its source and our own choices.
//!
//! A policy is selected as `NAME[@MHZ]`: its name, and one clock for all jobs ([`policy`]). [`POLICIES`] is
//! the table of the policies that the placer runs. A new one is a file with an `ENTRY`, its `mod` line and its
//! line in that table.
//!
//! A policy in another crate implements [`Policy`] with the same parts ([`elastic`], [`greedy`],
//! [`gpu_type_assignment`], [`crate::allocation`]) and is selected from a [`PolicySet`] of that crate.

pub mod colocation_trial;
mod eaco;
pub mod elastic;
mod fifo;
mod fifo_packed;
pub mod gpu_type_assignment;
pub mod greedy;
mod greenflow;
pub(crate) mod node_sleep;
mod policy_set;
mod powerflow;
pub mod settings;
mod staged;
mod wattle;

pub use eaco::{Eaco, EacoConfig};
pub use fifo::Fifo;
pub use fifo_packed::{FifoPacked, PACK_ABOVE};
pub use greenflow::GreenFlow;
pub(crate) use node_sleep::put_to_sleep;
pub use policy_set::{Addition, Build, PolicyEntry, PolicySet, UnknownPolicy, names, policy};
pub use powerflow::PowerFlow;
pub use wattle::Wattle;

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::power::budget::PriceRange;

/// The policies that the placer runs.
pub const POLICIES: PolicySet = PolicySet {
    entries: &[
        Fifo::ENTRY,
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

/// The jobs whose surfaces and progress a policy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Neither.
    #[default]
    Nothing,
    /// Both, of running jobs and of the queue up to the first job that waits.
    Heads,
    /// Both, of every job, for every size and setting it may have.
    All,
}

/// The inputs and decisions of a policy. The default is a policy that reads neither surfaces nor prices
/// and gives each job its least size, exclusively, at default settings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// The surfaces and progress it reads. Callers need not provide others.
    pub reads: Reads,
    /// Whether it needs the exact duration of each job from its arrival on: an oracle.
    pub needs_exact_durations: bool,
    /// Whether it changes the number of GPUs of a job. Other policies give a job its minimum.
    pub is_elastic: bool,
    /// Whether it ever places two jobs on one GPU.
    pub shares_gpus: bool,
    /// Whether new co-tenants are observed and undone by the co-location trial of the pipeline. EaCO has
    /// an observation of its own.
    pub has_trials: bool,
    /// Whether it chooses caps or clocks. For other policies a budget may choose them.
    pub sets_gpus: bool,
    /// The energy prices between which its plans change; `None`: it reads no price.
    pub prices: Option<PriceRange>,
    /// Whether its plans follow the grid's carbon intensity.
    pub follows_grid: bool,
}

impl Capabilities {
    /// Those of the policy under a rule that sets all caps and clocks, which then depend neither on the energy
    /// price nor on the grid.
    #[must_use]
    pub const fn with_fixed_settings(self) -> Self {
        Self { sets_gpus: true, prices: None, follows_grid: false, ..self }
    }
}

/// A scheduling policy: a function from an input to a plan.
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
}

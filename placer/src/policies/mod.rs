//! Scheduling policies, one file each: the rule, its source and our own choices.
//!
//! A policy is selected as `NAME[:NUMBER][@MHZ][+zeus]`: its name, a tuning number where it has one,
//! one clock for all jobs, or Zeus's cap for each job ([`policy`]). [`POLICIES`] is the table of all
//! of them. A new policy is a file with an `ENTRY`, its `mod` line and its line in that table.

mod afs;
pub(crate) mod colocation_trial;
mod eaco;
mod elastic;
mod fifo;
mod fifo_packed;
mod gandiva;
mod gpu_type_assignment;
mod greedy;
mod greenflow;
pub(crate) mod node_sleep;
mod powerflow;
mod preemptive;

pub(crate) mod setting_rule;
mod srtf;
mod table;
mod tiresias;
mod wattle;
mod zeus;

pub use afs::Afs;
pub use eaco::{Eaco, EacoConfig};
pub use fifo::Fifo;
pub use fifo_packed::{FifoPacked, PACK_ABOVE};
pub use gandiva::{DISSOLVE_BELOW, Gandiva};
pub use greenflow::GreenFlow;
pub(crate) use node_sleep::put_to_sleep;
pub use powerflow::PowerFlow;
pub use srtf::Srtf;
pub use table::{Build, PolicyEntry, UnknownPolicy, policy, policy_entry};
pub use tiresias::{THRESHOLDS_S, Tiresias};
pub use wattle::Wattle;

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::power::budget::PriceRange;

/// All policies, in the order of help texts.
pub const POLICIES: &[PolicyEntry] = &[
    fifo::ENTRY,
    fifo_packed::ENTRY,
    srtf::ENTRY,
    tiresias::ENTRY,
    gandiva::ENTRY,
    afs::ENTRY,
    eaco::ENTRY,
    powerflow::ENTRY,
    greenflow::ENTRY,
    wattle::ENTRY,
];

/// The names of all policies, as [`policy`] accepts them.
pub const NAMES: [&str; POLICIES.len()] = table::names(POLICIES);

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

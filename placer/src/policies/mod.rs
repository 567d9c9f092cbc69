//! Policies, one file each: the rule, its source, and what was our own choice.
//!
//! A policy is named `NAME[:NUMBER][@MHZ][+zeus]`: its own name, the number that some of them are
//! tuned by, one clock for everybody, or Zeus's choice of cap for each job. See [`policy`].

mod afs;
mod clocked;
mod colocation_trial;
mod eaco;
mod elastic;
mod fifo;
mod fifo_packed;
mod gandiva;
mod gpu_type_assignment;
mod greenflow;
mod node_sleep;
mod policy_spec;
mod powerflow;
mod preemptive;
mod remaining_capacity;
mod srtf;
mod tiresias;
mod wattle;
mod zeus;

pub use afs::Afs;
pub use clocked::Clocked;
pub use eaco::{Eaco, EacoConfig};
pub use fifo::Fifo;
pub use fifo_packed::{FifoPacked, PACK_ABOVE};
pub use gandiva::{DISSOLVE_BELOW, Gandiva};
pub use greenflow::GreenFlow;
pub use node_sleep::Sleeping;
pub(crate) use node_sleep::put_to_sleep;
pub use policy_spec::{UnknownPolicy, policy};
pub use powerflow::PowerFlow;
pub use srtf::Srtf;
pub use tiresias::{THRESHOLDS_S, Tiresias};
pub use wattle::Wattle;
pub use zeus::{ETA, Zeus};

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::power::budget::PriceRange;
use colocation_trial::Watched;
use policy_spec::Made::{Plain, Tuned};

/// All policies: a new one is one line here.
const KNOWN: [policy_spec::Known; 10] = [
    ("fifo", Plain(|| Box::new(Fifo))),
    ("fifo-packed", Plain(|| Box::new(Watched::new(FifoPacked::default())))),
    ("srtf", Plain(|| Box::new(Srtf))),
    (
        "tiresias",
        Tuned(|gpu_s| Box::new(gpu_s.map_or_else(Tiresias::default, Tiresias::parted_at))),
    ),
    ("gandiva", Plain(|| Box::new(Watched::new(Gandiva::default())))),
    ("afs", Tuned(|floor| Box::new(Afs { floor: floor.unwrap_or(0.0) }))),
    ("eaco", Plain(|| Box::new(Eaco::default()))),
    ("powerflow", Plain(|| Box::new(PowerFlow))),
    ("greenflow", Plain(|| Box::new(GreenFlow))),
    ("wattle", Plain(|| Box::new(Watched::new(Wattle)))),
];

/// Names of all policies, as [`policy`] takes them.
pub const NAMES: [&str; KNOWN.len()] = policy_spec::names(KNOWN);

/// Prices of a policy whose unit is time won per energy spent, both relative: from where nearly
/// every step is taken to where hardly any is.
pub const RELATIVE_PRICES: PriceRange = PriceRange { least: 0.05, most: 8.0 };

/// What a policy reads of surfaces and progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Neither.
    Nothing,
    /// Both, of the jobs that run and of those it has come to in the queue.
    Heads,
    /// Both, of every job, for every size and setting it may have.
    All,
}

/// A rule that turns a input into a plan.
///
/// Solving, applying the plan and solving again gives an empty plan.
pub trait Policy: Send {
    /// Its name.
    fn name(&self) -> &str;
    /// The policy that this one adds something to. What it does not say itself is as that one says.
    fn inner(&self) -> Option<&dyn Policy> {
        None
    }
    /// What it reads of surfaces and progress. Who need not provide them saves the work.
    fn reads(&self) -> Reads;
    /// Whether it must be told from a job's arrival on how long it takes alone: an oracle.
    fn needs_exact_durations(&self) -> bool {
        self.inner().is_some_and(Policy::needs_exact_durations)
    }
    /// Whether it changes how many GPUs jobs have. Others give a job the least it asks for.
    fn is_elastic(&self) -> bool {
        self.inner().map_or_else(|| self.reads() == Reads::All, Policy::is_elastic)
    }
    /// Whether it chooses what cards are set to. Of others a budget may choose it.
    fn sets_cards(&self) -> bool {
        self.inner().is_some_and(Policy::sets_cards)
    }
    /// Between which prices of energy its answer changes; absent: it reads no price.
    fn prices(&self) -> Option<PriceRange> {
        self.inner().and_then(Policy::prices)
    }
    /// Whether its answer follows the grid's intensity.
    fn follows_grid(&self) -> bool {
        self.inner().is_some_and(Policy::follows_grid)
    }
    /// What is to be done now.
    fn solve(&self, input: PlanningInput<'_>) -> Plan;
}

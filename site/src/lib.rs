//! The part of a connection with a site's scheduler that names no scheduler.
//!
//! A site's scheduler, such as Slurm, starts and ends the jobs of all nodes by itself. One service per cluster
//! connects it with Wattle in place of a launcher on each node: it obeys the desired states of all nodes and
//! reports their actual states. Each such service has
//! * a [`Level`], which limits what Wattle decides, and the form of a [`check::Report`] of what a site lacks for it,
//! * the owners' [`Terms`] of their jobs,
//! * the [`orders`] of all nodes, one for each job, and the digests of the placer's [`record`]s,
//! * the [`Reports`] of all nodes, with their heartbeats,
//! * a [`PersistedState`], which the state folder stores,
//! * submissions and cancellations in the name of a job's owner (`shell::requests`).
//!
//! `wattle-slurm` is the example. `docs/extending/site.md` states what a service for another scheduler adds.

pub mod check;
mod level;
pub mod orders;
pub mod record;
pub mod report;
#[cfg(feature = "service")]
pub mod shell;
mod state;
pub mod terms;

pub use level::{Level, LevelError};
pub use orders::{JobOrder, Orders};
pub use record::Known;
pub use report::{NodeState, Reports, Status};
pub use state::{PersistedState, Released};
pub use terms::{Terms, TermsError};

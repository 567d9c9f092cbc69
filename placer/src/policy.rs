//! Policies, one file each: the rule, its source, and what was our own choice.

mod eaco;
mod elastic;
mod fifo;
mod fifo_packed;
mod greenflow;
mod powerflow;

pub use eaco::{Eaco, EacoConfig};
pub use fifo::Fifo;
pub use fifo_packed::{FifoPacked, PACK_ABOVE};
pub use greenflow::GreenFlow;
pub use powerflow::PowerFlow;

use crate::plan::Plan;
use crate::problem::Problem;

/// Names of all policies, as [`policy`] takes them.
pub const NAMES: [&str; 5] = ["fifo", "fifo-packed", "eaco", "powerflow", "greenflow"];

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

/// A rule that turns a problem into a plan.
///
/// Solving, applying the plan and solving again gives an empty plan.
pub trait Policy: Send {
    /// Its name.
    fn name(&self) -> &str;
    /// What it reads of surfaces and progress. Who need not provide them saves the work.
    fn reads(&self) -> Reads;
    /// What is to be done now.
    fn solve(&self, problem: &Problem) -> Plan;
}

/// There is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called `{name}`; use one of {}", NAMES.join(", "))]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
}

/// The policy called `name`, with its own defaults.
///
/// # Errors
/// Where there is none.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    match name {
        "fifo" => Ok(Box::new(Fifo)),
        "fifo-packed" => Ok(Box::new(FifoPacked::default())),
        "eaco" => Ok(Box::new(Eaco::default())),
        "powerflow" => Ok(Box::new(PowerFlow)),
        "greenflow" => Ok(Box::new(GreenFlow)),
        _ => Err(UnknownPolicy { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy() {
        for name in NAMES {
            assert_eq!(policy(name).unwrap().name(), name);
        }
        let error = policy("magic").err().unwrap().to_string();
        assert_eq!(error, format!("no policy is called `magic`; use one of {}", NAMES.join(", ")));
    }
}

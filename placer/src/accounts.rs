//! Accounts: quotas and fair shares of users and projects. The same for every policy.
//!
//! A job belongs to the account of its user and, if it names one, to that of its project. An account may have
//! a quota: the most GPUs that its running jobs hold, and the most jobs, queued or running. With a fair share,
//! contended GPUs are divided among the users or among the projects by weight.
//!
//! * [`rules`]: the rules as configured, and the admission of a job.
//! * [`shares`]: the GPUs that each account is entitled to.
//! * [`stage`]: the jobs that a round holds back and the sizes that it permits.

pub mod rules;
pub(crate) mod shares;
pub(crate) mod stage;

use std::fmt;
use std::sync::Arc;

/// A user or a project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    /// A user; `None`: all jobs without a user.
    User(Option<Arc<str>>),
    /// A project; `None`: all jobs without a project.
    Project(Option<Arc<str>>),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(Some(name)) => write!(f, "user `{name}`"),
            Self::User(None) => f.write_str("jobs without a user"),
            Self::Project(Some(name)) => write!(f, "project `{name}`"),
            Self::Project(None) => f.write_str("jobs without a project"),
        }
    }
}

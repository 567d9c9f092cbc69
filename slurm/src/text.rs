//! Texts of Slurm's programs: host lists, generic resources, jobs, nodes and the accounting database.
//!
//! A user controls the names, comments and paths of jobs and may put any character into them, line breaks
//! included. Jobs are therefore read by `squeue` with a separator that no user can predict
//! ([`fields`]), and `scontrol show job` is read only for what `squeue` does not have ([`held`]).

pub mod fields;
pub mod gres;
pub mod held;
pub mod hostlist;
pub mod jobs;
pub mod nodes;
pub mod past;
pub mod state;
pub mod values;

/// Text that has not the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is `{text}`")]
pub struct TextError {
    /// What was read, and what was expected.
    pub what: &'static str,
    /// Its beginning.
    pub text: String,
}

impl TextError {
    /// An error about `text`.
    #[must_use]
    pub fn new(what: &'static str, text: &str) -> Self {
        Self { what, text: text.chars().take(80).collect() }
    }
}

//! The commands, one file each.

pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod budget;
pub(crate) mod cancel;
pub(crate) mod capacity;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod energy;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod predictors;
pub(crate) mod restore;
pub(crate) mod saving;
pub(crate) mod services;
pub mod simulate;
pub(crate) mod slurm;
pub(crate) mod submit;
pub(crate) mod tap;
pub(crate) mod top;
pub(crate) mod up;

//! Connects the decisions with Slurm's programs.

pub mod client;
pub mod programs;

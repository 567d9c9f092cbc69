//! Tests of this crate with programs outside the process.

mod real_slurm;

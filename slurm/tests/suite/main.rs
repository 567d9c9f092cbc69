//! Tests of the machine against a model of Slurm and of the placer.

mod model;
mod placer;
mod properties;
mod world;

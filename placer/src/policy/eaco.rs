//! EaCO, skeleton.
use crate::plan::Plan;
use crate::policy::{Fifo, Policy};
use crate::problem::Problem;
/// Thresholds.
#[derive(Clone, Copy, Debug, Default)]
pub struct EacoConfig;
/// EaCO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eaco;
impl Policy for Eaco {
    fn name(&self) -> &'static str {
        "eaco"
    }
    fn reads_profiles(&self) -> bool {
        true
    }
    fn solve(&self, problem: &Problem) -> Plan {
        Fifo.solve(problem)
    }
}

//! FIFO-packed, skeleton.
use crate::plan::Plan;
use crate::policy::{Fifo, Policy};
use crate::problem::Problem;
/// x
pub const PACK_ABOVE: f64 = 1.5;
/// FIFO that packs pairs once the cluster is full.
#[derive(Clone, Copy, Debug, Default)]
pub struct FifoPacked;
impl Policy for FifoPacked {
    fn name(&self) -> &'static str {
        "fifo-packed"
    }
    fn reads_profiles(&self) -> bool {
        true
    }
    fn solve(&self, problem: &Problem) -> Plan {
        Fifo.solve(problem)
    }
}

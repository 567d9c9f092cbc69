//! Steps to a faster operating point, rated by time saved per energy spent.
//!
//! This is PowerFlow's rating (arXiv 2304.06381): for a step from point `a` to a faster point `b`
//!
//! ```text
//! ratio = (1 - speed(a) / speed(b)) / (energy(b) / energy(a) - 1)
//! ```
//!
//! with the energy of one training step. Both parts are relative, so the work that a job has left does
//! not matter. A step that spends no more energy has an infinite ratio.

use crate::power::energy_cost::Charge;
use crate::state::operating_points::OperatingPoint;

/// A step to a faster operating point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) to: &'a OperatingPoint,
    /// Relative time saved per relative energy spent.
    pub(crate) ratio: f64,
    /// Relative time saved.
    pub(crate) saved: f64,
}

/// The step with the greatest ratio among `candidates` that are faster than `at`; of equal ratios the
/// one that saves more time.
pub(crate) fn best_step<'a>(
    charge: &Charge,
    at: &OperatingPoint,
    candidates: impl Iterator<Item = &'a OperatingPoint>,
) -> Option<Step<'a>> {
    let (time, energy) = (1.0 / at.steps_per_s, charge.joules_per_step(at));
    candidates
        .filter(|to| to.steps_per_s > at.steps_per_s)
        .map(|to| {
            let saved = 1.0 - (1.0 / to.steps_per_s) / time;
            let spent = charge.joules_per_step(to) / energy - 1.0;
            let ratio = if spent > 0.0 { saved / spent } else { f64::INFINITY };
            Step { to, ratio, saved }
        })
        .max_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.saved.total_cmp(&b.saved)))
}

/// The operating point with the least energy of a training step.
pub(crate) fn least_energy<'a>(
    charge: &Charge,
    candidates: &'a [OperatingPoint],
) -> Option<&'a OperatingPoint> {
    let joules = |point: &OperatingPoint| charge.joules_per_step(point);
    candidates.iter().min_by(|a, b| joules(a).total_cmp(&joules(b)))
}

//! What the jobs that are present would use, and when they would complete, if energy had other prices.
//!
//! * **Publisher:** the active placer.
//! * **Listeners:** the web page, `wattle budget show`.
//! * **How often:** every five minutes while at most 2,000 jobs are present.
//! * **Delivery:** key-value bucket `budget`, key `what-if`; the last value is current.
//! * **Lost or doubled:** the value is complete; the next one replaces it.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;
use crate::units::Energy;

/// The trade of energy for completion time among the jobs that are present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// When this was computed.
    pub at_us: Timestamp,
    /// Number of jobs that count.
    pub jobs: u32,
    /// Number of the others: their power, length or start is not predicted.
    pub not_counted: u32,
    /// Mean time from submission to the expected end with every job at the default setting, s.
    pub completion_s: f64,
    /// Expected energy of their GPUs from now on with every job at the default setting.
    pub energy_mj: Energy,
    /// By the settings of the present plan.
    pub planned: TradeOff,
    /// At rising prices of energy; the first is the default setting, 0 later and 0 less.
    pub points: Vec<TradeOff>,
}

/// Completion time and energy relative to the default setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TradeOff {
    /// By how much the jobs complete later on average, a share of their completion time.
    pub later: f64,
    /// By how much less energy their GPUs use, a share.
    pub saved: f64,
}

impl WhatIf {
    /// The energy that is saved, a share, where jobs complete later by this share: between two points in proportion.
    /// `None` beyond the last one, where no setting uses less energy.
    #[must_use]
    pub fn saved_at(&self, later: f64) -> Option<f64> {
        let after = self.points.iter().position(|point| point.later >= later)?;
        let to = self.points[after];
        let Some(from) = after.checked_sub(1).map(|before| self.points[before]) else {
            return Some(to.saved);
        };
        let share = (later - from.later) / (to.later - from.later).max(1e-12);
        Some(from.saved + share.clamp(0.0, 1.0) * (to.saved - from.saved))
    }

    /// The most energy that any setting saves, with how much later jobs complete then.
    #[must_use]
    pub fn most(&self) -> TradeOff {
        self.points.last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_points_the_saving_is_in_proportion() {
        let point = |later, saved| TradeOff { later, saved };
        let curve = WhatIf {
            at_us: Timestamp::EPOCH,
            jobs: 3,
            not_counted: 0,
            completion_s: 100.0,
            energy_mj: Energy::from_j(1),
            planned: TradeOff::default(),
            points: vec![point(0.0, 0.0), point(0.02, 0.1), point(0.1, 0.2)],
        };
        let near = |later: f64, saved: f64| (curve.saved_at(later).unwrap() - saved).abs() < 1e-12;
        assert!(near(0.0, 0.0) && near(0.01, 0.05) && near(0.02, 0.1) && near(0.06, 0.15));
        assert_eq!((curve.saved_at(0.11), curve.most()), (None, point(0.1, 0.2)));
        let none = WhatIf { points: Vec::new(), ..curve };
        assert_eq!((none.saved_at(0.0), none.most()), (None, TradeOff::default()));
    }
}

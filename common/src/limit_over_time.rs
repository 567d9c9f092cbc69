//! A power limit over time: of a site the lower one of the budget's and of the targets of grid events, of a feeder the
//! targets of its events.
//!
//! A budget's series is periodic, the targets of events are not: each keeps its own form, and every question is answered
//! from both.

use std::time::Duration;

use crate::budget::Budget;
use crate::event::TargetSteps;
use crate::power_series::PowerSeries;
use crate::time::Timestamp;
use crate::units::Power;

/// A power limit that changes over time. At some instants there may be none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOverTime {
    /// The limit of the budget at every instant.
    most: Option<Power>,
    /// The limit of the budget over time.
    series: Option<PowerSeries>,
    /// The targets of events.
    targets: TargetSteps,
}

impl From<PowerSeries> for LimitOverTime {
    fn from(series: PowerSeries) -> Self {
        Self { most: None, series: Some(series), targets: TargetSteps::default() }
    }
}

impl From<TargetSteps> for LimitOverTime {
    fn from(targets: TargetSteps) -> Self {
        Self { most: None, series: None, targets }
    }
}

impl LimitOverTime {
    /// The limit of a budget and of events; `None` where it never changes.
    #[must_use]
    pub fn new(budget: Option<&Budget>, targets: TargetSteps) -> Option<Self> {
        let most = budget.and_then(|budget| budget.power_mw);
        let series = budget.and_then(|budget| budget.power_series.clone());
        let changes = series.is_some() || !targets.is_empty();
        changes.then_some(Self { most, series, targets })
    }

    /// The same without a rise before the end of the ramp up of an event, as nodes follow it without a placer.
    #[must_use]
    pub fn held(&self) -> Self {
        Self { targets: self.targets.held(), ..self.clone() }
    }

    /// The targets of events.
    #[must_use]
    pub const fn targets(&self) -> &TargetSteps {
        &self.targets
    }

    /// The limit at an instant.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<Power> {
        self.least(at, at)
    }

    /// The next change after `at`; of equal limits or not.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Option<Timestamp> {
        let series = self.series.as_ref().map(|series| series.changes_after(at));
        series.into_iter().chain(self.targets.changes_after(at)).min()
    }

    /// The changes after `at`, without an end where the limit is periodic.
    pub fn changes(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.changes_after(at), |at| self.changes_after(*at))
    }

    /// The lowest limit from `from` until before `until`; for an empty interval, that at `from`. `None`: there is no
    /// limit in all of it.
    #[must_use]
    pub fn least(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let series = self.series.as_ref().map(|series| series.least(from, until));
        let targets = self.targets.least(from, until);
        self.most.into_iter().chain(series).chain(targets).min()
    }

    /// From this instant on, seen from `from`, no limit occurs that does not occur before.
    #[must_use]
    pub fn repeats_from(&self, from: Timestamp) -> Timestamp {
        let period = self.series.as_ref().map(|series| Duration::from_secs(series.period_s));
        let last = self.targets.last_change().unwrap_or(from).max(from);
        last + period.unwrap_or_default() + Duration::from_micros(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_alone_is_the_series() {
        let at = |hours: u64| Timestamp::from_s(hours * 3_600);
        let series =
            PowerSeries::parse("time,kw\n00:00,40\n16:00,20\n19:00,40\n", at(250)).unwrap();
        let limit = LimitOverTime::from(series.clone());
        for hour in 240..300 {
            assert_eq!(limit.at(at(hour)), Some(series.at(at(hour))));
            assert_eq!(limit.changes_after(at(hour)), Some(series.changes_after(at(hour))));
            assert_eq!(
                limit.least(at(hour), at(hour + 5)),
                Some(series.least(at(hour), at(hour + 5)))
            );
        }
        assert_eq!(LimitOverTime::new(Some(&Budget::default()), TargetSteps::default()), None);
    }
}

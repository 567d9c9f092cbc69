//! The target over time of a set of events: at each instant the lowest.
//!
//! A ramp is a straight line between the power drawn before and the target. Its limit is a step function below that line:
//! each step has the line's lower end, so that no step exceeds the ramp. A step lasts [`RAMP_STEP`], longer on a ramp that
//! would have more than [`RAMP_STEPS_MAX`] of them, of which each is then one per cent of the ramp.
//!
//! Where the power drawn before was not measured a ramp has no height: the target holds from the start until the end, and
//! nothing bounds the return.

use std::time::Duration;

use super::{EventRecord, SETTLING};
use crate::time::Timestamp;
use crate::units::Power;

/// Length of a step of a ramp.
pub const RAMP_STEP: Duration = Duration::from_secs(10);
/// Most steps of a ramp.
pub const RAMP_STEPS_MAX: u64 = 100;

/// A limit over time that begins and ends: from each instant on a power, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSteps(Vec<(Timestamp, Option<Power>)>);

impl TargetSteps {
    /// The lowest target of these events at each instant.
    #[must_use]
    pub fn of<'a>(records: impl IntoIterator<Item = &'a EventRecord>) -> Self {
        let each = records.into_iter().filter(|record| record.has_target()).map(Self::of_one);
        each.fold(Self::default(), |all, one| all.lower(&one))
    }

    /// The limit of one event that has a target.
    fn of_one(record: &EventRecord) -> Self {
        let (start, end, target) = (record.event.start_us, record.end_us, record.limit());
        let Some(before) = record.drawn_before() else {
            return Self(vec![(start, Some(target)), (end, None)]);
        };
        let mut steps = Vec::new();
        let reached = record.reached();
        steps.extend(ramp(start, reached, before, target).into_iter().filter(|step| step.0 < end));
        if reached < end {
            steps.push((reached, target));
        }
        // An event that was cancelled on its ramp down returns from where it was.
        let lowest = steps.last().map_or(before, |step| step.1);
        steps.extend(ramp(end, record.returned(), lowest, before));
        steps.push((record.returned(), before));
        let settled = record.returned() + SETTLING;
        let bounded = steps.into_iter().map(|(at, limit)| (at, Some(limit)));
        Self(bounded.chain([(settled, None)]).collect())
    }

    /// The lower one of two limits at each instant.
    #[must_use]
    fn lower(&self, other: &Self) -> Self {
        let mut instants: Vec<Timestamp> =
            self.0.iter().chain(&other.0).map(|(at, _)| *at).collect();
        instants.sort_unstable();
        instants.dedup();
        let mut steps: Vec<(Timestamp, Option<Power>)> = Vec::new();
        for at in instants {
            let limit = lower(self.at(at), other.at(at));
            if steps.last().is_none_or(|last| last.1 != limit) {
                steps.push((at, limit));
            }
        }
        Self(steps)
    }

    /// Whether it never limits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The limit at an instant.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<Power> {
        let begun = self.0.partition_point(|(from, _)| *from <= at);
        begun.checked_sub(1).and_then(|step| self.0[step].1)
    }

    /// The next change after `at`.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Option<Timestamp> {
        let begun = self.0.partition_point(|(from, _)| *from <= at);
        self.0.get(begun).map(|step| step.0)
    }

    /// The last change.
    #[must_use]
    pub fn last_change(&self) -> Option<Timestamp> {
        self.0.last().map(|step| step.0)
    }

    /// The lowest limit from `from` until before `until`; for an empty interval, that at `from`.
    #[must_use]
    pub fn least(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let begun = self.0.partition_point(|(at, _)| *at <= from);
        let within = self.0[begun..].iter().take_while(|(at, _)| *at < until);
        within.filter_map(|step| step.1).chain(self.at(from)).min()
    }

    /// The mean limit from `from` until `until`; `None`: at some instant there is none.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let begun = self.0.partition_point(|(at, _)| *at <= from);
        let changes = self.0[begun..].iter().take_while(|(at, _)| *at < until);
        let over = |power: Power, span: Duration| u128::from(power.as_mw()) * span.as_micros();
        let (mut sum, mut since, mut power) = (0, from, self.at(from)?);
        for (at, limit) in changes {
            sum += over(power, at.since(since));
            (since, power) = (*at, (*limit)?);
        }
        sum += over(power, until.since(since));
        let mean = sum / until.since(from).as_micros().max(1);
        Some(Power::from_mw(u64::try_from(mean).unwrap_or(u64::MAX)))
    }

    /// The highest limit from `from` until `until`; `None`: at some instant there is none.
    #[must_use]
    pub fn most(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let begun = self.0.partition_point(|(at, _)| *at <= from);
        let within = self.0[begun..].iter().take_while(|(at, _)| *at <= until);
        within.map(|step| step.1).try_fold(self.at(from)?, |most, limit| Some(most.max(limit?)))
    }
}

/// The lower one of two limits, of which each may be absent.
pub(crate) fn lower(one: Option<Power>, other: Option<Power>) -> Option<Power> {
    one.into_iter().chain(other).min()
}

/// The steps below a straight line from one power to another.
fn ramp(from: Timestamp, until: Timestamp, first: Power, last: Power) -> Vec<(Timestamp, Power)> {
    let span = until.since(from);
    if span.is_zero() {
        return Vec::new();
    }
    let count = span.as_secs().div_ceil(RAMP_STEP.as_secs()).clamp(1, RAMP_STEPS_MAX);
    let on_line = |step: u64| {
        let share = step as f64 / count as f64;
        let (first, last) = (first.as_mw() as f64, last.as_mw() as f64);
        Power::from_mw((first + (last - first) * share).floor() as u64)
    };
    let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let begin = |step: u64| from + Duration::from_micros(us.saturating_mul(step) / count);
    (0..count).map(|step| (begin(step), on_line(step).min(on_line(step + 1)))).collect()
}

//! The target over time of a set of events: at each instant the lowest. Events of the site and of each feeder have targets
//! of their own.
//!
//! A ramp is a straight line between the power drawn before and the target. Its limit is a step function below that line:
//! each step has the line's lower end, so that no step exceeds the ramp. A step lasts [`RAMP_STEP`], longer on a ramp that
//! would have more than [`RAMP_STEPS_MAX`] of them, of which each is then one per cent of the ramp.
//!
//! Where the power drawn before was not measured a ramp has no height: the target holds from the start until the end, and
//! nothing bounds the return.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{EventRecord, SETTLING};
use crate::id::FeederId;
use crate::time::Timestamp;
use crate::units::Power;

/// Length of a step of a ramp.
pub const RAMP_STEP: Duration = Duration::from_secs(10);
/// Most steps of a ramp.
pub const RAMP_STEPS_MAX: u64 = 100;

/// A limit over time that begins and ends: from each instant on a power, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSteps {
    steps: Steps,
    /// The steps without a rise before the end of a ramp up.
    held: Steps,
    /// Start and end of the ramp up of each event.
    spans: Vec<(Timestamp, Timestamp)>,
}

/// The targets over time of a set of events: of the site, and of each feeder that one of them names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventTargets {
    /// Of the whole site.
    pub site: TargetSteps,
    /// Of feeders.
    pub feeders: BTreeMap<FeederId, TargetSteps>,
}

impl EventTargets {
    /// The lowest target of these events at each instant, of the site and of each feeder.
    #[must_use]
    pub fn of<'a>(records: impl IntoIterator<Item = &'a EventRecord>) -> Self {
        let mut by_feeder: BTreeMap<Option<&FeederId>, Vec<&EventRecord>> = BTreeMap::new();
        for record in records.into_iter().filter(|record| record.has_target()) {
            by_feeder.entry(record.event.feeder.as_ref()).or_default().push(record);
        }
        let mut all = Self::default();
        for (feeder, records) in by_feeder {
            let steps = TargetSteps::of(records);
            match feeder {
                None => all.site = steps,
                Some(feeder) => _ = all.feeders.insert(feeder.clone(), steps),
            }
        }
        all
    }

    /// Whether nothing is ever limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.site.is_empty() && self.feeders.is_empty()
    }

    /// The target over time of the site or of a feeder; `None`: no event names the feeder.
    #[must_use]
    pub fn on(&self, feeder: Option<&FeederId>) -> Option<&TargetSteps> {
        match feeder {
            None => Some(&self.site),
            Some(feeder) => self.feeders.get(feeder),
        }
    }

    /// The target of the site and of each feeder over time; of the site also where there is none.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&FeederId>, &TargetSteps)> {
        let feeders = self.feeders.iter().map(|(feeder, steps)| (Some(feeder), steps));
        std::iter::once((None, &self.site)).chain(feeders)
    }
}

/// From each instant on a power, or none.
type Steps = Vec<(Timestamp, Option<Power>)>;

impl TargetSteps {
    /// The lowest target of these events at each instant.
    #[must_use]
    pub fn of<'a>(records: impl IntoIterator<Item = &'a EventRecord>) -> Self {
        let mut all = Self::default();
        for record in records.into_iter().filter(|record| record.has_target()) {
            let (steps, held, returned) = of_one(record);
            all.steps = lower_steps(&all.steps, &steps);
            all.held = lower_steps(&all.held, &held);
            all.spans.push((record.event.start_us, returned));
        }
        all
    }

    /// The same without a rise before the end of a ramp up, as nodes follow it without a placer.
    #[must_use]
    pub fn held(&self) -> Self {
        Self { steps: self.held.clone(), held: self.held.clone(), spans: self.spans.clone() }
    }

    /// The end of the last ramp up of the events that begin until `until` and have not returned at `now`.
    #[must_use]
    pub fn returned(&self, now: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let spans = self.spans.iter().filter(|(start, end)| *start <= until && now < *end);
        spans.map(|(_, end)| *end).max()
    }

    /// Whether it never limits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The limit at an instant.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<Power> {
        at_of(&self.steps, at)
    }

    /// The next change after `at`.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Option<Timestamp> {
        let begun = self.steps.partition_point(|(from, _)| *from <= at);
        self.steps.get(begun).map(|step| step.0)
    }

    /// The last change.
    #[must_use]
    pub fn last_change(&self) -> Option<Timestamp> {
        self.steps.last().map(|step| step.0)
    }

    /// The lowest limit from `from` until before `until`; for an empty interval, that at `from`.
    #[must_use]
    pub fn least(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let begun = self.steps.partition_point(|(at, _)| *at <= from);
        let within = self.steps[begun..].iter().take_while(|(at, _)| *at < until);
        within.filter_map(|step| step.1).chain(self.at(from)).min()
    }

    /// The mean limit from `from` until `until`; `None`: at some instant there is none.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let begun = self.steps.partition_point(|(at, _)| *at <= from);
        let changes = self.steps[begun..].iter().take_while(|(at, _)| *at < until);
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
        let begun = self.steps.partition_point(|(at, _)| *at <= from);
        let within = self.steps[begun..].iter().take_while(|(at, _)| *at <= until);
        within.map(|step| step.1).try_fold(self.at(from)?, |most, limit| Some(most.max(limit?)))
    }
}

/// The steps of one event, those without a rise before the end of its ramp up, and that end.
fn of_one(record: &EventRecord) -> (Steps, Steps, Timestamp) {
    let (start, end, target) = (record.event.start_us, record.end_us, record.limit());
    let Some(before) = record.drawn_before() else {
        let steps = vec![(start, Some(target)), (end, None)];
        return (steps.clone(), steps, end);
    };
    let reached = record.reached();
    let mut steps = Vec::new();
    steps.extend(ramp(start, reached, before, target).into_iter().filter(|step| step.0 < end));
    if reached < end {
        steps.push((reached, target));
    }
    // An event that was cancelled on its ramp down returns from where it was.
    let lowest = steps.last().map_or(before, |step| step.1);
    let returned = record.returned();
    let bounded = |steps: Vec<(Timestamp, Power)>| -> Steps {
        let after = [(returned, Some(before)), (returned + SETTLING, None)];
        steps.into_iter().map(|(at, limit)| (at, Some(limit))).chain(after).collect()
    };
    let held = bounded(steps.clone());
    steps.extend(ramp(end, returned, lowest, before));
    (bounded(steps), held, returned)
}

/// The limit of steps at an instant.
fn at_of(steps: &Steps, at: Timestamp) -> Option<Power> {
    let begun = steps.partition_point(|(from, _)| *from <= at);
    begun.checked_sub(1).and_then(|step| steps[step].1)
}

/// The lower one of two limits at each instant.
fn lower_steps(one: &Steps, other: &Steps) -> Steps {
    let mut instants: Vec<Timestamp> = one.iter().chain(other).map(|(at, _)| *at).collect();
    instants.sort_unstable();
    instants.dedup();
    let mut steps = Steps::new();
    for at in instants {
        let limit = lower(at_of(one, at), at_of(other, at));
        if steps.last().is_none_or(|last| last.1 != limit) {
            steps.push((at, limit));
        }
    }
    steps
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

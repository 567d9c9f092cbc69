//! The fallback chain of one signal: values of the last read, of an earlier read, and a constant.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::{Accounting, InUse, Origin, SignalStatus};

use crate::series::{Interval, SignalSeries, VALID_MAX, overlaid};

/// Time for which past values are kept: the longest period of the reports.
const KEPT: Duration = Duration::from_secs(31 * 86_400);
/// Most kept values: a month of five minutes, which fits in one message of the bus.
const KNOWN_MAX: usize = 9_300;

/// A value from an instant on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Start.
    pub from: Timestamp,
    /// The value.
    pub value: f64,
    /// How it was obtained.
    pub origin: Origin,
}

/// The known values of a signal, and which of them is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    provider: String,
    accounting: Option<Accounting>,
    fallback: f64,
    /// Whether the constant is the configured source and no fallback.
    is_constant: bool,
    alarm_after: Duration,
    /// Since when the constant applies where nothing is known: always, if it is the only source.
    began: Timestamp,
    known: Vec<Interval>,
    read_at: Option<Timestamp>,
    error: Option<String>,
    in_use: InUse,
    since: Timestamp,
    origin: Origin,
    /// Since when no value of a successful last read has been in use, and whether it was alarmed.
    fallback_since: Option<(Timestamp, bool)>,
}

/// The configuration of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainConfig {
    /// The provider with its zone or file.
    pub provider: String,
    /// What the intensity accounts for.
    pub accounting: Option<Accounting>,
    /// The constant.
    pub fallback: f64,
    /// Whether the constant is the only source.
    pub is_constant: bool,
    /// Time of a fallback after which an alarm is raised.
    pub alarm_after: Duration,
}

impl Chain {
    /// A chain that continues with the values of an earlier process, read at `read_at`.
    #[must_use]
    pub fn new(
        config: ChainConfig,
        known: Vec<Interval>,
        read_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        let ChainConfig { provider, accounting, fallback, is_constant, alarm_after } = config;
        let first = known.first().map_or(now, |interval| interval.from.min(now));
        let mut chain = Self {
            began: if is_constant { Timestamp::EPOCH } else { first },
            provider,
            accounting,
            fallback,
            is_constant,
            alarm_after,
            known,
            read_at,
            error: None,
            in_use: InUse::Static,
            since: now,
            origin: Origin::Static,
            fallback_since: None,
        };
        chain.look(now);
        chain
    }

    /// A read has ended.
    pub fn read(&mut self, now: Timestamp, result: Result<SignalSeries, String>) {
        match result {
            Ok(mut series) => {
                self.error = None;
                self.read_at = Some(now);
                let is_ahead =
                    |known: &&Interval| known.origin == Origin::Forecast && known.from > now;
                if let Some(last) = series.intervals.last_mut().filter(|_| series.is_end_assumed)
                    && let Some(ahead) = self.known.iter().find(is_ahead)
                {
                    last.until = last.until.min(ahead.from);
                }
                self.known = overlaid(&self.known, &series.intervals);
            }
            Err(error) => self.error = Some(error),
        }
        let (oldest, newest) = (now - KEPT, now + VALID_MAX);
        self.known.retain(|interval| interval.until > oldest && interval.from < newest);
        let surplus = self.known.len().saturating_sub(KNOWN_MAX);
        self.known.drain(..surplus);
        self.look(now);
    }

    /// The end of the values that count.
    fn valid_until(&self) -> Option<Timestamp> {
        let end = self.known.last()?.until;
        Some(end.min(self.read_at? + VALID_MAX))
    }

    fn known_at(&self, now: Timestamp) -> Option<&Interval> {
        let after = self.known.partition_point(|interval| interval.from <= now);
        let interval = self.known.get(after.checked_sub(1)?)?;
        (now < interval.until && Some(now) < self.valid_until()).then_some(interval)
    }

    /// Determines the source in use. Returns whether it or its value's origin has changed.
    pub fn look(&mut self, now: Timestamp) -> bool {
        let before = (self.in_use, self.origin);
        let known = self.known_at(now).map(|interval| interval.origin);
        (self.in_use, self.origin) = match known {
            _ if self.is_constant => (InUse::Live, Origin::Static),
            Some(origin) if self.error.is_none() && self.read_at.is_some() => (InUse::Live, origin),
            Some(origin) => (InUse::LastKnown, origin),
            None => (InUse::Static, Origin::Static),
        };
        if before.0 != self.in_use {
            self.since = now;
        }
        if self.in_use == InUse::Live {
            self.fallback_since = None;
        } else {
            self.fallback_since.get_or_insert((now, false));
        }
        before != (self.in_use, self.origin)
    }

    /// The alarm of a fallback that lasts, once.
    pub fn alarm(&mut self, now: Timestamp) -> Option<String> {
        let (since, alarmed) = self.fallback_since.as_mut()?;
        if *alarmed || now.since(*since) < self.alarm_after {
            return None;
        }
        *alarmed = true;
        let minutes = now.since(*since).as_secs() / 60;
        let what = match self.in_use {
            InUse::Static => format!("the static value {} is in use", self.fallback),
            InUse::Live | InUse::LastKnown => "the last known values are in use".to_owned(),
        };
        let cause = self.error.as_deref().unwrap_or("no value is current");
        Some(format!("{}: {what} for {minutes} min: {cause}", self.provider))
    }

    /// When [`Self::look`] or [`Self::alarm`] may have another result without a read.
    #[must_use]
    pub fn changes_after(&self, now: Timestamp) -> Timestamp {
        let after = self.known.partition_point(|interval| interval.from <= now);
        let here = after.checked_sub(1).and_then(|i| self.known.get(i)).map(|i| i.until);
        let next = self.known.get(after).map(|interval| interval.from);
        let alarm = self.fallback_since.filter(|(_, alarmed)| !alarmed);
        let alarm = alarm.map(|(since, _)| since + self.alarm_after);
        let all = [here, next, self.valid_until(), alarm];
        all.into_iter().flatten().filter(|at| *at > now).min().unwrap_or(Timestamp::FOREVER)
    }

    /// The state for people.
    #[must_use]
    pub fn status(&self) -> SignalStatus {
        SignalStatus {
            provider: self.provider.clone(),
            accounting: self.accounting,
            in_use: self.in_use,
            since_us: self.since,
            origin: self.origin,
            read_at_us: self.read_at,
            valid_until_us: self.valid_until(),
            error: self.error.clone(),
        }
    }

    /// The value in use.
    #[must_use]
    pub fn value(&self, now: Timestamp) -> f64 {
        let known = self.known_at(now).filter(|_| !self.is_constant);
        known.map_or(self.fallback, |interval| interval.value)
    }

    /// The complete signal as steps: known values, and the constant where there is none and at the end. Values
    /// ahead count as far as they are valid. The first step is at or before the chain's begin.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut add = |from: Timestamp, value: f64, origin: Origin| match steps.last_mut() {
            // Values may differ within one second, the resolution of the series.
            Some(last) if last.from == from => (last.value, last.origin) = (value, origin),
            Some(last) if last.value.total_cmp(&value).is_eq() && last.origin == origin => {}
            _ => steps.push(Step { from, value, origin }),
        };
        let second = |at: Timestamp| Timestamp::from_us(at.as_us() / 1_000_000 * 1_000_000);
        let valid_until = self.valid_until().unwrap_or(Timestamp::EPOCH);
        let mut end = None;
        let known = if self.is_constant { &[][..] } else { &self.known[..] };
        for interval in known.iter().filter(|interval| interval.from < valid_until) {
            if end.is_none() && interval.from > self.began {
                add(second(self.began), self.fallback, Origin::Static);
            }
            if let Some(end) = end.filter(|end| *end < interval.from) {
                add(second(end), self.fallback, Origin::Static);
            }
            add(second(interval.from), interval.value, interval.origin);
            end = Some(interval.until.min(valid_until));
        }
        add(second(end.unwrap_or(self.began)), self.fallback, Origin::Static);
        steps
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;

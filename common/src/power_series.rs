//! A power limit over time: a periodic step function, and the table of a file that states one.
//!
//! A table has one of two headers. With `time,kw` each row is a time of day in UTC, `HH:MM`, and the series repeats
//! every day. With `at_s,kw` each row is seconds after the instant from which the series applies; the last value
//! holds as long as the one before it, and then the series repeats. Each value holds until the next row.
//!
//! ```text
//! time,kw
//! 00:00,40
//! 16:00,20
//! 19:00,40
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;
use crate::units::Power;

/// Most steps of a series: a quarter of an hour for 20 days.
pub const STEPS_MAX: usize = 2_000;

/// Longest period, seconds: a year.
pub const PERIOD_MAX_S: u64 = 366 * DAY_S;

/// Largest limit, kilowatts. In milliwatts it fits in 64 bits.
const KW_MAX: f64 = 1e10;

const DAY_S: u64 = 86_400;
const SECOND_US: u64 = 1_000_000;

/// A power limit over time: a periodic step function. Before its start the first limit holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerSeries {
    /// Start of the first step.
    pub starts_at_us: Timestamp,
    /// Seconds since the start, ascending from 0, and the limit from then on.
    pub steps: Vec<(u64, Power)>,
    /// Period after which the series repeats, seconds.
    pub period_s: u64,
}

/// Why a series or its table is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PowerSeriesError {
    /// The header is none of the two.
    #[error("unknown header `{0}`; use time,kw or at_s,kw")]
    Header(String),
    /// A row of the table is invalid.
    #[error("line {line}: {problem}")]
    Row {
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what is accepted.
        problem: String,
    },
    /// No rows.
    #[error("no power limit: give at least one row")]
    Empty,
    /// Too many steps.
    #[error("{0} steps; the limit is {STEPS_MAX}")]
    TooMany(usize),
    /// Steps or period out of range.
    #[error(
        "invalid steps: expected ascending seconds from 0 to before the end of the period, which is at most a \
         year, and limits above 0"
    )]
    Steps,
}

impl PowerSeries {
    /// Reads a table that applies from `now`.
    ///
    /// # Errors
    /// [`PowerSeriesError`] names the line and what is accepted.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, PowerSeriesError> {
        let mut lines = (1u64..).zip(text.lines());
        let header = lines.next().map_or("", |(_, line)| line).trim_start_matches('\u{feff}');
        let cells: Vec<&str> = header.split(',').map(str::trim).collect();
        let is_daily = match cells[..] {
            ["time", "kw"] => true,
            ["at_s", "kw"] => false,
            _ => return Err(PowerSeriesError::Header(header.chars().take(80).collect())),
        };
        let mut steps: Vec<(u64, Power)> = Vec::new();
        for (line, row) in lines.filter(|(_, row)| !row.trim().is_empty()) {
            let wrong = |problem: String| PowerSeriesError::Row { line, problem };
            let (at, kw) = row
                .split_once(',')
                .map(|(at, kw)| (at.trim(), kw.trim()))
                .ok_or_else(|| wrong("a row needs a time and a power".to_owned()))?;
            let (parsed, form) = if is_daily {
                (time_of_day(at), "a time of day, as in 16:00")
            } else {
                (at.parse().ok(), "a number of whole seconds")
            };
            let at_s = parsed.ok_or_else(|| wrong(format!("`{at}` is not {form}")))?;
            match steps.last() {
                None if at_s != 0 => {
                    let first = if is_daily { "00:00" } else { "0" };
                    return Err(wrong(format!("the first row must be at {first}")));
                }
                Some((last, _)) if *last >= at_s => {
                    return Err(wrong("the row is out of order; sort the rows by time".to_owned()));
                }
                _ => {}
            }
            let limit = kw.parse::<f64>().ok().filter(|kw| *kw > 0.0 && *kw <= KW_MAX);
            let limit = limit.ok_or_else(|| {
                wrong(format!("`{kw}` is not a power; give kilowatts greater than 0"))
            })?;
            steps.push((at_s, Power::from_mw(((limit * 1e6).round() as u64).max(1))));
        }
        let last_s = steps.last().ok_or(PowerSeriesError::Empty)?.0;
        // The last value holds as long as the one before it; a single value, for an hour.
        let before_s =
            steps.len().checked_sub(2).map_or(last_s.saturating_sub(3_600), |at| steps[at].0);
        let period_s = if is_daily { DAY_S } else { last_s + last_s.abs_diff(before_s).max(1) };
        let day_us = DAY_S * SECOND_US;
        let starts_at_us =
            if is_daily { Timestamp::from_us(now.as_us() / day_us * day_us) } else { now };
        let series = Self { starts_at_us, steps, period_s };
        series.check()?;
        Ok(series)
    }

    /// Checks the steps and the period.
    ///
    /// # Errors
    /// [`PowerSeriesError`] names what is out of range.
    pub fn check(&self) -> Result<(), PowerSeriesError> {
        let (Some(first), Some(last)) = (self.steps.first(), self.steps.last()) else {
            return Err(PowerSeriesError::Empty);
        };
        if self.steps.len() > STEPS_MAX {
            return Err(PowerSeriesError::TooMany(self.steps.len()));
        }
        let ascends = self.steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_positive = self.steps.iter().all(|(_, limit)| *limit > Power::ZERO);
        let is_valid = first.0 == 0
            && ascends
            && last.0 < self.period_s
            && self.period_s <= PERIOD_MAX_S
            && is_positive;
        is_valid.then_some(()).ok_or(PowerSeriesError::Steps)
    }

    /// The same limits with the time counted from `origin`, as in a simulation that begins then.
    #[must_use]
    pub fn counted_from(&self, origin: Timestamp) -> Self {
        let offset_s = origin.since(self.starts_at_us).as_secs() % self.period_s;
        let (now, _) = self.step(origin);
        let later = self.steps[now + 1..].iter().map(|(at, limit)| (at - offset_s, *limit));
        let before = self.steps[..=now].iter().filter(|(at, _)| *at < offset_s);
        let again = before.map(|(at, limit)| (at + self.period_s - offset_s, *limit));
        let steps = std::iter::once((0, self.steps[now].1)).chain(later).chain(again).collect();
        Self { starts_at_us: Timestamp::EPOCH, steps, period_s: self.period_s }
    }

    /// The lowest and the highest limit.
    #[must_use]
    pub fn range(&self) -> (Power, Power) {
        let limits = || self.steps.iter().map(|(_, limit)| *limit);
        (limits().min().unwrap_or_default(), limits().max().unwrap_or_default())
    }

    /// The limit at an instant.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Power {
        let (step, _) = self.step(at);
        self.steps[step].1
    }

    /// The start of the first step after `at`, with an equal limit or not.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Timestamp {
        let (step, period) = self.step(at);
        let next_s = self.steps.get(step + 1).map_or(self.period_s, |next| next.0);
        self.starts_at_us + Duration::from_secs(period.saturating_mul(self.period_s) + next_s)
    }

    /// The lowest limit from `from` until before `until`; for an empty interval, that at `from`.
    #[must_use]
    pub fn least(&self, from: Timestamp, until: Timestamp) -> Power {
        // All steps occur within a period.
        let until = until.min(from + Duration::from_secs(self.period_s));
        let (mut least, mut at) = (self.at(from), self.changes_after(from));
        while at < until {
            least = least.min(self.at(at));
            at = self.changes_after(at);
        }
        least
    }

    /// The step in force at an instant, and the number of the period.
    fn step(&self, at: Timestamp) -> (usize, u64) {
        let offset_s = at.since(self.starts_at_us).as_secs();
        let (period, within) = (offset_s / self.period_s, offset_s % self.period_s);
        let after = self.steps.partition_point(|(from, _)| *from <= within);
        (after.saturating_sub(1), period)
    }
}

/// Seconds since midnight.
fn time_of_day(text: &str) -> Option<u64> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, below: u64| -> Option<u64> {
        let is_short = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|number| is_short && *number < below)
    };
    Some(number(hour, 24)? * 3_600 + number(minute, 60)? * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAILY: &str = "time,kw\n00:00,40\n16:00,20\n19:00,40\n";

    fn hours(hours: u64) -> Timestamp {
        Timestamp::from_s(hours * 3_600)
    }

    #[test]
    fn a_daily_limit_holds_at_each_time_of_day() {
        let series = PowerSeries::parse(DAILY, hours(240 + 17)).unwrap();
        assert_eq!(series.starts_at_us, hours(240), "midnight");
        let w = |limit: Power| limit.as_mw() / 1_000;
        let at = [250, 256, 258, 259, 263, 280].map(|at| w(series.at(hours(at))));
        assert_eq!(at, [40_000, 20_000, 20_000, 40_000, 40_000, 20_000]);
        assert_eq!(series.changes_after(hours(250)), hours(256));
        assert_eq!(series.changes_after(hours(256)), hours(259));
        assert_eq!(series.changes_after(hours(260)), hours(264));
        let least = |from, until| w(series.least(hours(from), hours(until)));
        assert_eq!(least(250, 256), 40_000, "before the step");
        assert_eq!(least(250, 257), 20_000);
        assert_eq!(least(259, 259), 40_000);
        assert_eq!(least(259, 10_000), 20_000);
    }

    #[test]
    fn a_relative_limit_starts_now_and_repeats() {
        let series = PowerSeries::parse("at_s,kw\n0,10\n60,5.5\n90,10\n", hours(3)).unwrap();
        assert_eq!((series.starts_at_us, series.period_s), (hours(3), 120));
        assert_eq!(series.at(hours(3) + Duration::from_secs(70)), Power::from_w(5_500));
        assert_eq!(series.at(hours(3) + Duration::from_secs(130)), Power::from_w(10_000));
        assert_eq!(series.at(hours(1)), Power::from_w(10_000), "before its start");
        let one = PowerSeries::parse("at_s,kw\n0,10\n", hours(0)).unwrap();
        assert_eq!(one.least(hours(0), hours(50)), Power::from_w(10_000));
    }

    #[test]
    fn a_limit_counted_from_an_instant_is_the_same_limit() {
        let relative = "at_s,kw\n0,10\n60,5.5\n90,10\n";
        for (text, step_s) in [(DAILY, 1_800), (relative, 10)] {
            let series = PowerSeries::parse(text, hours(27)).unwrap();
            for origin in (0..60).map(|at| hours(27) + Duration::from_secs(at * step_s)) {
                let counted = series.counted_from(origin);
                counted.check().unwrap();
                for at in (0..120).map(|at| Duration::from_secs(at * step_s)) {
                    assert_eq!(counted.at(Timestamp::EPOCH + at), series.at(origin + at));
                }
            }
        }
    }

    #[test]
    fn errors_name_the_line_and_what_is_accepted() {
        let refused = |text: &str| PowerSeries::parse(text, hours(0)).unwrap_err().to_string();
        expect_test::expect![[r#"
            unknown header `hour,kw`; use time,kw or at_s,kw
            no power limit: give at least one row
            line 2: the first row must be at 00:00
            line 3: `24:00` is not a time of day, as in 16:00
            line 3: the row is out of order; sort the rows by time
            line 2: `0` is not a power; give kilowatts greater than 0
            line 2: `NaN` is not a power; give kilowatts greater than 0
            line 2: a row needs a time and a power
            line 3: `1.5` is not a number of whole seconds
            invalid steps: expected ascending seconds from 0 to before the end of the period, which is at most a year, and limits above 0
        "#]]
        .assert_eq(
            &[
                "hour,kw\n",
                "time,kw\n\n",
                "time,kw\n01:00,5",
                "time,kw\n00:00,5\n24:00,5",
                "at_s,kw\n0,5\n0,6",
                "at_s,kw\n0,0",
                "at_s,kw\n0,NaN",
                "at_s,kw\n0",
                "at_s,kw\n0,1\n1.5,2",
                "at_s,kw\n0,1\n99999999,2",
            ]
            .map(|text| refused(text) + "\n")
            .concat(),
        );
        let many = (0..=STEPS_MAX).map(|at| format!("{at},1\n")).collect::<String>();
        assert_eq!(refused(&format!("at_s,kw\n{many}")), "2001 steps; the limit is 2000");
    }
}

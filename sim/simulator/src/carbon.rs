//! Carbon intensity over time, read from a CSV of instants and gCO2eq/kWh.
//!
//! The table of the placer's `[grid.carbon]` is read (`at,g_per_kwh`, by [`wattle_grid::table`], which also reads
//! prices), US EIA's hourly series (`timestamp_utc,gco2_per_kwh`), WattTime's five-minute sample
//! (`oootime,Caiso_North`), and one without dates (`at_s,g_per_kwh`). The first row is at the start of the trace, and each value holds until the next. A series shorter than the run
//! repeats. An empty cell keeps the previous value.

use std::path::{Path, PathBuf};
use std::time::Duration;

use wattle_common::messages::IntensitySeries;
use wattle_common::{Carbon, CarbonIntensity, Energy, Timestamp};
use wattle_grid::{ParseError, table};
use wattle_placer::power::budget::Series;

use crate::input_file::{self, InputError, SERIES_BYTES_MAX};
use crate::repeating::{Steps, integral};
use crate::text::sanitize;

const HEADERS: [[&str; 2]; 3] =
    [["timestamp_utc", "gco2_per_kwh"], ["oootime", "Caiso_North"], ["at_s", "g_per_kwh"]];

/// Carbon intensity over time.
#[derive(Clone, Debug, PartialEq)]
pub struct CarbonSeries {
    /// The file's name.
    pub name: String,
    /// Start of each intensity, microseconds from the first row.
    steps: Vec<(u64, CarbonIntensity)>,
    /// Period of the series, microseconds.
    period_us: u64,
    /// Empty cells, which keep the previous value.
    pub cells_filled: usize,
}

/// Why a carbon series cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CarbonError {
    /// It cannot be read.
    #[error("cannot read the carbon series {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: InputError,
    },
    /// The header is unknown.
    #[error(
        "{name}: unknown header `{header}`; use at,g_per_kwh or {}",
        HEADERS.map(|h| h.join(",")).join(" or ")
    )]
    Header {
        /// The file.
        name: String,
        /// Its header.
        header: String,
    },
    /// The table of dates and intensities is invalid.
    #[error("{name} is not a table of carbon intensities")]
    Table {
        /// The file.
        name: String,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
    /// A row is invalid.
    #[error("{name}, line {line}: {problem}")]
    Row {
        /// The file.
        name: String,
        /// The line, from 1.
        line: u64,
        /// The problem.
        problem: String,
    },
    /// It has no value.
    #[error("{name} has no carbon intensity")]
    Empty {
        /// The file.
        name: String,
    },
}

impl CarbonSeries {
    /// Reads the series in the file at `path`.
    ///
    /// # Errors
    /// [`CarbonError`] describes the problem.
    pub fn read(path: &Path) -> Result<Self, CarbonError> {
        let unreadable = |source| CarbonError::Unreadable { path: path.to_owned(), source };
        let text = input_file::read(path, SERIES_BYTES_MAX).map_err(unreadable)?;
        Self::parse(&input_file::name_of(path), &String::from_utf8_lossy(&text))
    }

    /// Reads a series from the text of a file called `name`.
    ///
    /// # Errors
    /// [`CarbonError`] describes the problem.
    pub fn parse(name: &str, text: &str) -> Result<Self, CarbonError> {
        let name = name.to_owned();
        let mut lines = (1u64..).zip(text.lines());
        let header = lines.next().map_or("", |(_, line)| line).trim_start_matches('\u{feff}');
        let cells: Vec<&str> = header.split(',').map(str::trim).collect();
        if cells[0] == "at" {
            return Self::of_table(name, text);
        }
        if !HEADERS.iter().any(|known| known[..] == cells[..]) {
            return Err(CarbonError::Header { name, header: sanitize(header) });
        }
        let in_seconds = cells[0] == "at_s";
        let mut steps: Vec<(i64, CarbonIntensity)> = Vec::new();
        let mut cells_filled = 0;
        let mut missing_at_start = None;
        for (line, row) in lines.filter(|(_, row)| !row.trim().is_empty()) {
            let wrong = |problem: String| CarbonError::Row { name: name.clone(), line, problem };
            let (at, value) = row
                .split_once(',')
                .ok_or_else(|| wrong("a row needs a time and an intensity".to_owned()))?;
            let at = instant_us(at.trim(), in_seconds)
                .ok_or_else(|| wrong(format!("`{}` is not a time", at.trim())))?;
            if steps.last().is_some_and(|(last, _)| *last >= at) {
                return Err(wrong("the row is out of order; sort the rows by time".to_owned()));
            }
            let value = value.trim();
            let intensity = match value.parse::<f64>() {
                Ok(grams) if grams.is_finite() && grams >= 0.0 => {
                    CarbonIntensity::from_g_per_kwh(grams)
                }
                Ok(_) => return Err(wrong(format!("`{value}` is not a carbon intensity"))),
                Err(_) if !value.is_empty() => {
                    return Err(wrong(format!("`{value}` is not a number")));
                }
                Err(_) => {
                    cells_filled += 1;
                    match steps.last() {
                        Some(&(_, before)) => before,
                        // The first value also holds before its row.
                        None => {
                            missing_at_start.get_or_insert(at);
                            continue;
                        }
                    }
                }
            };
            steps.push((at, intensity));
        }
        let Some(&(first, intensity)) = steps.first() else {
            return Err(CarbonError::Empty { name });
        };
        let start = missing_at_start.unwrap_or(first);
        if start < first {
            steps.insert(0, (start, intensity));
        }
        let last = steps.last().map_or(start, |(at, _)| *at);
        // The last value holds as long as the previous one; a single value, for an hour.
        let spacing = match &steps[..] {
            [.., (before, _), (last, _)] => last - before,
            _ => 3_600_000_000,
        };
        let steps = steps.into_iter().map(|(at, g)| (at.abs_diff(start), g)).collect();
        Ok(Self { name, steps, period_us: (last + spacing).abs_diff(start), cells_filled })
    }

    /// Reads the table of dates and intensities.
    fn of_table(name: String, text: &str) -> Result<Self, CarbonError> {
        let reading = match table::intensities(text.as_bytes()) {
            Ok(reading) => reading,
            Err(source) => return Err(CarbonError::Table { name, source }),
        };
        let Some(Steps { steps, period_us, gaps }) = Steps::of(&reading) else {
            return Err(CarbonError::Empty { name });
        };
        let grams = |(at, value)| (at, CarbonIntensity::from_g_per_kwh(value));
        Ok(Self {
            name,
            steps: steps.into_iter().map(grams).collect(),
            period_us,
            cells_filled: gaps,
        })
    }

    /// The period after which the series repeats.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_micros(self.period_us)
    }

    /// The series from this time on; the part before it moves to the end.
    #[must_use]
    pub fn starting(&self, after: Duration) -> Self {
        let us = |at: Duration| u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let cut = us(after) % self.period_us;
        let from = self.steps.partition_point(|(at, _)| *at <= cut) - 1;
        // The step at the cut is split into the first and the last step.
        let mut steps = vec![(0, self.steps[from].1)];
        steps.extend(self.steps[from + 1..].iter().map(|(at, g)| (at - cut, *g)));
        let before = self.steps[..=from].iter().filter(|(at, _)| *at < cut);
        steps.extend(before.map(|(at, g)| (at + self.period_us - cut, *g)));
        Self { name: self.name.clone(), steps, ..*self }
    }

    /// The series for the placer's budgets, with the first row at `starts_at`.
    ///
    /// # Panics
    /// Never: the steps ascend from 0, and intensities are limited.
    #[must_use]
    pub fn to_series(&self, starts_at: Timestamp) -> Series {
        let most = |intensity: &CarbonIntensity| intensity.as_g_per_kwh().min(1e5);
        let steps = self.steps.iter().map(|(at, intensity)| (*at, most(intensity))).collect();
        Series::new(starts_at, steps, self.period_us).expect("steps ascend from 0")
    }

    /// The series as a message to the placer, with the first row at `starts_at_us`.
    #[must_use]
    pub fn to_message(&self, starts_at_us: Timestamp) -> IntensitySeries {
        let mut steps: Vec<(u64, CarbonIntensity)> = Vec::with_capacity(self.steps.len());
        for (at, intensity) in &self.steps {
            let s = at / 1_000_000;
            match steps.last_mut() {
                // Two in one second: the later holds.
                Some(last) if last.0 == s => last.1 = *intensity,
                // Unchanged values are omitted.
                Some(last) if last.1 == *intensity => {}
                _ => steps.push((s, *intensity)),
            }
        }
        let last = steps.last().map_or(0, |(at, _)| *at);
        let period_s = self.period_us.div_ceil(1_000_000).max(last + 1);
        IntensitySeries {
            name: self.name.clone(),
            starts_at_us,
            steps,
            period_s,
            origins: Vec::new(),
        }
    }

    /// Emissions of `energy` drawn evenly between two times from the first row.
    #[must_use]
    pub fn emitted(&self, energy: Energy, from: Duration, until: Duration) -> Carbon {
        let us = |at: Duration| u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let (from, until) = (us(from), us(until));
        // An empty interval has the intensity of its step.
        let until = until.max(from + 1);
        let mean = self.integral(from, until) as f64 / (until - from) as f64;
        energy.carbon(CarbonIntensity::from_g_per_kwh(mean / 1_000.0))
    }

    /// The mean intensity of a period, g/kWh.
    pub fn mean_g_per_kwh(&self) -> f64 {
        self.integral(0, self.period_us) as f64 / self.period_us as f64 / 1_000.0
    }

    /// The least intensity between two times from the first row, g/kWh.
    pub fn least_g_per_kwh(&self, from: Duration, until: Duration) -> f64 {
        let us = |at: Duration| u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let (from, until) = (us(from), us(until).max(us(from).saturating_add(1)));
        let long = until - from >= self.period_us;
        let start = if long { 0 } else { from % self.period_us };
        let end = start + (until - from).min(self.period_us);
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([self.period_us]);
        // An interval beyond the end continues at the start.
        let there = |begins: u64, ends: u64| {
            (begins < end && ends > start) || begins + self.period_us < end
        };
        let within = self.steps.iter().zip(ends).filter(|((at, _), ends)| there(*at, *ends));
        within.map(|((_, grams), _)| grams.as_g_per_kwh()).fold(f64::INFINITY, f64::min)
    }

    /// Integral of the intensity over time, mg/kWh x microseconds.
    #[must_use]
    pub(crate) fn integral(&self, from_us: u64, until_us: u64) -> u128 {
        let mg = |grams: &CarbonIntensity| (grams.as_g_per_kwh() * 1_000.0).round() as i128;
        // Intensities are not negative.
        integral(&self.steps, self.period_us, mg, from_us, until_us).unsigned_abs()
    }
}

/// A time in microseconds, since the Unix epoch or, in seconds, as given.
fn instant_us(text: &str, in_seconds: bool) -> Option<i64> {
    if in_seconds {
        let seconds: f64 = text.parse().ok()?;
        return (0.0..3.2e10).contains(&seconds).then(|| (seconds * 1e6).round() as i64);
    }
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.as_microsecond());
    }
    // WattTime's sample is in UTC without an offset.
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn values_hold_until_the_next_and_the_series_repeats() {
        let series = CarbonSeries::parse(
            "a.csv",
            "timestamp_utc,gco2_per_kwh\n2022-01-01 00:00:00+00:00,\n2022-01-01 01:00:00+00:00,100\n\
             2022-01-01 02:00:00+00:00,\n2022-01-01 03:00:00+00:00,300\n",
        )
        .unwrap();
        assert_eq!((series.period(), series.cells_filled), (Duration::from_secs(4 * 3_600), 2));
        let mean = |from: u64, until: u64| series.integral(from, until) / u128::from(until - from);
        assert_eq!(mean(0, 3 * HOUR), 100_000, "two empty cells, filled from adjacent cells");
        assert_eq!(mean(2 * HOUR, 4 * HOUR), 200_000);
        assert_eq!(mean(0, 4 * HOUR), 150_000);
        assert_eq!(mean(4 * HOUR, 8 * HOUR), 150_000, "the second period");
        assert_eq!(mean(HOUR, HOUR + 4_000_000 * HOUR), 150_000, "a million periods at once");
        let hours = |n: u64| Duration::from_secs(n * 3_600);
        let emitted = series.emitted(Energy::from_j(3_600_000), hours(2), hours(4));
        assert_eq!(emitted.to_string(), "200.0 g", "1 kWh at a mean of 200 g/kWh");
        assert_eq!(
            series.integral(HOUR, 7 * HOUR),
            series.integral(HOUR, 5 * HOUR) + series.integral(5 * HOUR, 7 * HOUR)
        );
    }

    #[test]
    fn least_intensity_of_an_interval() {
        let text = "at_s,g_per_kwh\n0,100\n3600,200\n10800,50\n";
        let series = CarbonSeries::parse("a.csv", text).unwrap();
        let s = Duration::from_secs;
        // The last step is as long as the previous one: the period is five hours.
        assert_eq!(series.period(), s(5 * 3_600));
        let least = |from, until| series.least_g_per_kwh(s(from), s(until));
        assert_eq!(
            (least(0, 3_600), least(3_600, 10_800), least(10_800, 18_000)),
            (100.0, 200.0, 50.0)
        );
        assert_eq!((least(3_000, 4_000), least(10_000, 10_801)), (100.0, 50.0));
        assert_eq!(
            (least(18_000, 18_001), least(5 * 3_600 + 4_000, 5 * 3_600 + 5_000)),
            (100.0, 200.0)
        );
        assert_eq!((least(17_000, 19_000), least(4_000, 40_000)), (50.0, 50.0), "around the end");
        let ever = series.least_g_per_kwh(s(4_000), Duration::MAX);
        assert!((ever - 50.0).abs() < 1e-9, "{ever}");
        assert!((series.mean_g_per_kwh() - 120.0).abs() < 1e-9, "{}", series.mean_g_per_kwh());
    }

    #[test]
    fn a_shifted_series_has_the_same_values() {
        let text = "at_s,g_per_kwh\n0,100\n3600,200\n10800,50\n";
        let series = CarbonSeries::parse("a.csv", text).unwrap();
        for minutes in [0, 30, 60, 61, 150, 180, 299, 300, 1_000] {
            let later = series.starting(Duration::from_secs(minutes * 60));
            assert_eq!(later.period(), series.period());
            for (from, until) in [(0, 10), (0, 3_600), (1_800, 9_000), (7, 100_000)] {
                let us = |s: u64| s * 1_000_000;
                let there = us(minutes * 60);
                assert_eq!(
                    later.integral(us(from), us(until)),
                    series.integral(there + us(from), there + us(until)),
                    "{minutes} min: {from} to {until} s"
                );
            }
        }
    }

    #[test]
    fn other_formats_and_errors() {
        let five = "oootime,Caiso_North\n2023-06-08 00:00:00,425.5\n2023-06-08 00:05:00,430\n";
        assert_eq!(CarbonSeries::parse("w", five).unwrap().period(), Duration::from_secs(600));
        let plain = "at_s,g_per_kwh\n0,250\n";
        assert_eq!(CarbonSeries::parse("p", plain).unwrap().integral(7, 17), 2_500_000);
        let error = |text| CarbonSeries::parse("x.csv", text).unwrap_err().to_string();
        expect_test::expect![[r#"
            x.csv: unknown header `a,b`; use at,g_per_kwh or timestamp_utc,gco2_per_kwh or oootime,Caiso_North or at_s,g_per_kwh
            x.csv, line 3: the row is out of order; sort the rows by time
            x.csv, line 2: `much` is not a number
            x.csv, line 2: `noon` is not a time
            x.csv has no carbon intensity
        "#]]
        .assert_eq(
            &[
                "a,b\n",
                "at_s,g_per_kwh\n5,1\n5,1\n",
                "at_s,g_per_kwh\n5,much\n",
                "at_s,g_per_kwh\nnoon,1\n",
                "at_s,g_per_kwh\n5,\n",
            ]
            .map(|text| error(text) + "\n")
            .concat(),
        );
    }

    #[test]
    fn the_table_of_the_placer_is_read() {
        let text = "at,g_per_kwh\n2024-01-01T00:00Z,250\n2024-01-01T01:00Z,\n\
                    2024-01-01T02:00Z,200\n2024-01-01T03:00Z,200\n";
        let series = CarbonSeries::parse("t.csv", text).unwrap();
        assert_eq!((series.period(), series.cells_filled), (Duration::from_secs(4 * 3_600), 1));
        assert_eq!(series.integral(0, 2 * HOUR), 2 * 250_000 * u128::from(HOUR));
        assert_eq!(series.integral(2 * HOUR, 3 * HOUR), 200_000 * u128::from(HOUR));
        let price = "at,eur_per_mwh\n2024-01-01T00:00Z,50\n";
        let error = CarbonSeries::parse("p.csv", price).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("the unit is `a price`"), "{cause}");
    }
}

//! Electricity prices over time, from the files that `[grid.price]` of `placer.toml` reads.
//!
//! The first price is at the start of the trace, and each price holds until the next, also where the file has
//! a gap. A series shorter than the run repeats. Carbon series are used in the same way
//! ([`crate::CarbonSeries`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use wattle_grid::{ParseError, table};

use crate::input_file::{self, InputError, SERIES_BYTES_MAX};
use crate::repeating::{Steps, integral};

/// Electricity prices over time.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceSeries {
    /// The file's name.
    pub name: String,
    /// The currency, as `EUR`.
    pub currency: String,
    /// Start of each price, microseconds from the first, and the price in millionths per kWh.
    steps: Vec<(u64, i64)>,
    /// Period of the series, microseconds.
    period_us: u64,
    /// Gaps, in which the previous price holds.
    pub gaps: usize,
}

/// Why a price series cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It cannot be read.
    #[error("cannot read the prices {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: InputError,
    },
    /// It is not in a known format.
    #[error("{name} is not a file of prices")]
    Invalid {
        /// The file.
        name: String,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
}

impl PriceSeries {
    /// Reads the file at `path`: ENTSO-E's XML or a table.
    ///
    /// # Errors
    /// [`PriceError`] describes the problem.
    pub fn read(path: &Path) -> Result<Self, PriceError> {
        let unreadable = |source| PriceError::Unreadable { path: path.to_owned(), source };
        let text = input_file::read(path, SERIES_BYTES_MAX).map_err(unreadable)?;
        Self::parse(&input_file::name_of(path), &text)
    }

    /// Reads the prices in the bytes of a file called `name`.
    ///
    /// # Errors
    /// [`PriceError::Invalid`] with the problem.
    ///
    /// # Panics
    /// Never: a reading has an interval, and prices have a currency.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, PriceError> {
        let invalid = |source| PriceError::Invalid { name: name.to_owned(), source };
        let reading = table::prices(bytes).map_err(invalid)?;
        let Steps { steps, period_us, gaps } =
            Steps::of(&reading).expect("a reading has an interval");
        let millionths = |price: f64| (price * 1e6).round() as i64;
        Ok(Self {
            name: name.to_owned(),
            steps: steps.into_iter().map(|(at, price)| (at, millionths(price))).collect(),
            period_us,
            gaps,
            currency: reading.currency.expect("prices have a currency"),
        })
    }

    /// The period after which the series repeats.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_micros(self.period_us)
    }

    /// Cost of `kwh` drawn evenly between two times from the first price, in the currency.
    #[must_use]
    pub fn cost(&self, kwh: f64, from: Duration, until: Duration) -> f64 {
        let us = |at: Duration| u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let (from, until) = (us(from), us(until));
        // An empty interval has the price of its step.
        let until = until.max(from + 1);
        let mean = self.integral(from, until) as f64 / (until - from) as f64;
        kwh * mean / 1e6
    }

    /// Integral of the price over time, millionths per kWh x microseconds.
    #[must_use]
    pub(crate) fn integral(&self, from_us: u64, until_us: u64) -> i128 {
        integral(&self.steps, self.period_us, |price| i128::from(*price), from_us, until_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = "at,eur_per_mwh\n2026-10-25T01:00Z,100\n2026-10-25T02:00Z,-50\n\
                       2026-10-25T03:00Z,20\n2026-10-25T05:00Z,300\n";

    fn hours(n: u64) -> Duration {
        Duration::from_secs(n * 3_600)
    }

    fn close(own: f64, other: f64) {
        assert!((own - other).abs() < 1e-9, "{own} against {other}");
    }

    #[test]
    fn each_hour_has_its_price_and_the_series_repeats() {
        let series = PriceSeries::parse("day.csv", DAY.as_bytes()).unwrap();
        assert_eq!((series.currency.as_str(), series.gaps), ("EUR", 1));
        assert_eq!(series.period(), hours(5), "the last price holds for an hour");
        close(series.cost(2.0, hours(0), hours(1)), 0.2);
        close(series.cost(2.0, hours(1), hours(2)), -0.1);
        close(series.cost(1.0, hours(2), hours(4)), 0.02);
        close(series.cost(3.0, hours(0), hours(3)), 0.07);
        close(series.cost(2.0, hours(5), hours(6)), 0.2);
        close(series.cost(5.0, hours(0), hours(5)), series.cost(5.0, hours(100), hours(105)));
        close(series.cost(2.0, hours(1), hours(1)), -0.1);
    }

    #[test]
    fn a_wrong_file_is_named_with_the_problem() {
        let chain = |text: &str| {
            let error = PriceSeries::parse("x.csv", text.as_bytes()).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            format!("{error}: {source}")
        };
        let text = chain("at,g_per_kwh\n2026-01-01T00:00Z,380\n");
        assert!(text.contains("x.csv is not a file of prices: the unit is `g_per_kwh`"), "{text}");
        let text = chain("hour,price\n");
        assert!(text.contains("the header is `hour,price`"), "{text}");
        let path = Path::new("/nonexistent/prices.xml");
        let error = PriceSeries::read(path).unwrap_err().to_string();
        assert_eq!(error, "cannot read the prices /nonexistent/prices.xml");
    }
}

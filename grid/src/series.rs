//! What one read of a provider returned: values with the intervals in which they hold.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::Origin;

use crate::parse_error::ParseError;

/// Longest time after a read for which its values count: a day, the horizon of carbon deferral.
pub const VALID_MAX: Duration = Duration::from_secs(86_400);

/// Most intervals of a series: a year of quarter hours.
pub const INTERVALS_MAX: usize = 36_000;

/// Longest interval of one value: more than a day of 25 hours at one price.
const INTERVAL_MAX: Duration = Duration::from_secs(2 * 86_400);

/// One value in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Start.
    pub from: Timestamp,
    /// End; a value holds until here.
    pub until: Timestamp,
    /// Intensity, g/kWh, or price, currency per kWh.
    pub value: f64,
    /// How it was obtained.
    pub origin: Origin,
}

/// The values of one read, ascending and without overlap. There may be gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignalSeries {
    /// The intervals.
    pub intervals: Vec<Interval>,
    /// The currency of prices; absent: intensities.
    pub currency: Option<String>,
    /// Whether the end of the last interval is an assumption, because the read has no value after it. Forecast values
    /// of an earlier read then count where they begin.
    pub is_end_assumed: bool,
}

/// The kind of a signal, with the range of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Carbon intensity, g/kWh.
    Carbon,
    /// Electricity price, currency per kWh.
    Price,
}

impl Signal {
    /// Checks a value.
    ///
    /// # Errors
    /// [`ParseError::Value`] if it is out of range. Intensities are from 0 to 100,000 g/kWh; a marginal
    /// intensity may be negative at its provider and is refused, because emissions would be negative.
    pub fn check(self, value: f64) -> Result<f64, ParseError> {
        let (range, expected) = match self {
            Self::Carbon => (0.0..=1e5, "an intensity is from 0 to 100,000 g/kWh"),
            Self::Price => (-1e3..=1e3, "a price is from -1,000 to 1,000 per kWh"),
        };
        if range.contains(&value) {
            return Ok(value);
        }
        Err(ParseError::Value { given: value.to_string(), expected })
    }
}

impl SignalSeries {
    /// A series of values that each hold for the shortest distance of two points, or a single one for `alone`. A
    /// missing point, or one without a value, leaves a gap.
    ///
    /// # Errors
    /// [`ParseError`] if there is no value, too many, a value out of range, or two for one time.
    pub fn from_points(
        signal: Signal,
        mut points: Vec<(Timestamp, Option<f64>, Origin)>,
        alone: Duration,
    ) -> Result<Self, ParseError> {
        points.sort_by_key(|(at, ..)| *at);
        let distances = points.windows(2).map(|pair| pair[1].0.since(pair[0].0));
        let spacing = distances.filter(|distance| !distance.is_zero()).min();
        let spacing = spacing.unwrap_or(alone);
        let mut intervals = Vec::with_capacity(points.len().min(INTERVALS_MAX));
        for (from, value, origin) in points {
            let Some(value) = value else { continue };
            intervals.push(Interval { from, until: from + spacing, value, origin });
        }
        Self::new(signal, intervals)
    }

    /// A series of these intervals in any order.
    ///
    /// # Errors
    /// [`ParseError`] if there is none, too many, a value out of range, or two for one time.
    pub fn new(signal: Signal, mut intervals: Vec<Interval>) -> Result<Self, ParseError> {
        if intervals.is_empty() {
            return Err(ParseError::Empty);
        }
        if intervals.len() > INTERVALS_MAX {
            return Err(ParseError::TooMany(INTERVALS_MAX));
        }
        intervals.sort_by_key(|interval| interval.from);
        for interval in &mut intervals {
            interval.value = signal.check(interval.value)?;
            interval.until = interval.until.min(interval.from + INTERVAL_MAX);
            if interval.until <= interval.from {
                return Err(ParseError::Overlap(crate::instant::shown(interval.from)));
            }
        }
        if let Some(pair) = intervals.windows(2).find(|pair| pair[1].from < pair[0].until) {
            return Err(ParseError::Overlap(crate::instant::shown(pair[1].from)));
        }
        Ok(Self { intervals, ..Self::default() })
    }

    /// Adds another series of the same signal; its values count where both have one.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.intervals = overlaid(&self.intervals, &other.intervals);
        self
    }

    /// The interval of an instant.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<&Interval> {
        let after = self.intervals.partition_point(|interval| interval.from <= at);
        self.intervals.get(after.checked_sub(1)?).filter(|interval| at < interval.until)
    }

    /// End of the last interval.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.intervals.last().map_or(Timestamp::EPOCH, |interval| interval.until)
    }
}

/// The intervals of `under` where `over` has none, and those of `over`.
#[must_use]
pub fn overlaid(under: &[Interval], over: &[Interval]) -> Vec<Interval> {
    let mut all = Vec::with_capacity(under.len() + over.len());
    for interval in under {
        // The parts of an older interval between the newer ones.
        let mut from = interval.from;
        let first = over.partition_point(|newer| newer.until <= interval.from);
        for newer in over[first..].iter().take_while(|newer| newer.from < interval.until) {
            if from < newer.from {
                all.push(Interval { from, until: newer.from, ..*interval });
            }
            from = from.max(newer.until);
        }
        if from < interval.until {
            all.push(Interval { from, ..*interval });
        }
    }
    all.extend_from_slice(over);
    all.sort_by_key(|interval| interval.from);
    all
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(hours: u64) -> Timestamp {
        Timestamp::from_s(hours * 3_600)
    }

    fn interval(from: u64, until: u64, value: f64) -> Interval {
        Interval { from: at(from), until: at(until), value, origin: Origin::Forecast }
    }

    #[test]
    fn a_missing_point_leaves_a_gap() {
        let made = |points: &[(u64, Option<f64>)]| {
            let points = points.iter().map(|(hour, value)| (at(*hour), *value, Origin::Measured));
            SignalSeries::from_points(Signal::Carbon, points.collect(), HOUR)
        };
        let series = made(&[(1, Some(10.0)), (2, Some(20.0)), (4, Some(40.0))]).unwrap();
        let value = |hour| series.at(at(hour)).map(|interval| interval.value);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(value),
            [None, Some(10.0), Some(20.0), None, Some(40.0), None]
        );
        assert_eq!(series.until(), at(5));
        // A point without a value ends the one before it.
        let series = made(&[(1, Some(10.0)), (2, None), (3, Some(30.0))]).unwrap();
        let value = |hour| series.at(at(hour)).map(|interval| interval.value);
        assert_eq!([1, 2, 3, 4].map(value), [Some(10.0), None, Some(30.0), None]);
        assert_eq!(made(&[(1, None)]).unwrap_err(), ParseError::Empty);
        let two = made(&[(1, Some(10.0)), (1, Some(20.0)), (2, Some(20.0))]);
        assert!(matches!(two, Err(ParseError::Overlap(_))), "{two:?}");
    }

    #[test]
    fn invalid_values_are_refused() {
        let new = |intervals: &[Interval]| SignalSeries::new(Signal::Carbon, intervals.to_vec());
        assert_eq!(new(&[]).unwrap_err(), ParseError::Empty);
        for value in [f64::NAN, f64::INFINITY, -0.1, 1e9] {
            assert!(
                matches!(new(&[interval(0, 1, value)]), Err(ParseError::Value { .. })),
                "{value}"
            );
        }
        assert!(matches!(
            new(&[interval(0, 2, 1.0), interval(1, 3, 1.0)]),
            Err(ParseError::Overlap(_))
        ));
        assert!(matches!(new(&[interval(2, 2, 1.0)]), Err(ParseError::Overlap(_))));
        assert!(
            SignalSeries::new(Signal::Price, vec![interval(0, 1, -0.5)]).is_ok(),
            "negative prices exist"
        );
    }

    #[test]
    fn newer_values_replace_older_ones() {
        let under = [interval(0, 4, 1.0), interval(4, 8, 2.0)];
        let over = [interval(1, 2, 9.0), interval(3, 5, 8.0)];
        let expected = [
            interval(0, 1, 1.0),
            interval(1, 2, 9.0),
            interval(2, 3, 1.0),
            interval(3, 5, 8.0),
            interval(5, 8, 2.0),
        ];
        assert_eq!(overlaid(&under, &over), expected);
    }

    proptest! {
        /// The result of an overlay is ascending without overlap, and has the newer value wherever there is one.
        #[test]
        fn overlay_is_disjoint(
            under in prop::collection::btree_map(0u64..60, 1u64..20, 0..12),
            over in prop::collection::btree_map(0u64..60, 1u64..20, 0..12),
        ) {
            let disjoint = |map: &std::collections::BTreeMap<u64, u64>, value| {
                let starts: Vec<u64> = map.keys().copied().collect();
                let next = |i: usize| starts.get(i + 1).copied().unwrap_or(u64::MAX);
                map.iter().enumerate().map(|(i, (from, len))| interval(*from, (from + len).min(next(i)), value))
                    .collect::<Vec<_>>()
            };
            let (under, over) = (disjoint(&under, 1.0), disjoint(&over, 2.0));
            let all = overlaid(&under, &over);
            prop_assert!(all.windows(2).all(|pair| pair[0].until <= pair[1].from));
            for hour in 0..90 {
                let find = |all: &[Interval]| {
                    all.iter().find(|i| i.from <= at(hour) && at(hour) < i.until).map(|i| i.value)
                };
                prop_assert_eq!(find(&all), find(&over).or(find(&under)), "hour {}", hour);
            }
        }
    }
}

//! The errors of earlier forecasts, and the intervals that follow from them.
//!
//! The error of a forecast is the ratio of the actual to the expected time ahead, each plus [`OFFSET_S`], so that short
//! times do not give extreme ratios:
//!
//! ```text
//! r = (actual - made + 60 s) / (expected - made + 60 s)
//! ```
//!
//! Ratios are counted by kind of forecast and by class of the time ahead, in bins of an eighth of a doubling. The
//! interval of a forecast goes from the 5th to the 95th percentile of the ratios of its class, the expected instant is
//! at their median. A class with fewer than [`COUNT_MIN`] forecasts uses all classes of its kind; a kind with fewer
//! uses [`prior`]. Ranks are those of split conformal prediction (Lei et al., JASA 113(523), 2018): of `n` ratios those
//! of rank `0.05 (n + 1)` and `0.95 (n + 1)`, so that the interval holds the next of exchangeable ratios with a
//! probability of 90 %.
//!
//! Forecasts that are made soon after one another share most of their future: in one busy week all starts are later than
//! expected. So of the forecasts of a class that are made within its longest time ahead only the first counts
//! ([`ForecastErrors::counts`]); for the last class that is a day.
//!
//! Once [`COUNT_MAX`] forecasts of a class are counted, all its counts are halved, so that newer ones weigh more.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::{
    ExpectedErrors, ExpectedInstant, ExpectedKind, ExpectedRatios, ExpectedStatus,
};
use wattle_common::time::span_s;

/// Added to both times ahead, s: our own choice, the time from which a user distinguishes starts.
const OFFSET_S: f64 = 60.0;
/// Bins of a doubling of the ratio.
const BINS: f64 = 8.0;
/// Largest bin: a factor of 2^12.
const BIN_MAX: f64 = 96.0;
/// Bins of a doubling of the absolute error.
const ERROR_BINS: f64 = 4.0;
/// Least number of forecasts from which both percentiles have a rank.
const COUNT_MIN: u32 = 20;
/// Most forecasts of a class: our own choice.
const COUNT_MAX: u32 = 2_000;
/// Upper bounds of the classes of the time ahead, s.
const CLASSES_S: [f64; 5] = [300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0];
/// The kinds, in the order of their numbers.
pub const KINDS: [ExpectedKind; 4] = [
    ExpectedKind::Start,
    ExpectedKind::EndQueued,
    ExpectedKind::EndRunning,
    ExpectedKind::EndEstimated,
];
/// Longest time ahead, s: a hundred years.
const AHEAD_MAX_S: f64 = 100.0 * 365.25 * 86_400.0;

/// The ratios at the 5th and the 95th percentile before enough forecasts of a site have ended.
///
/// Source: `docs/measurements/expected-starts.md`. They cover at least nine tenths of the forecasts of the simulated
/// policies and loads.
const fn prior(kind: ExpectedKind) -> (f64, f64) {
    match kind {
        ExpectedKind::Start => (0.005, 10.0),
        ExpectedKind::EndQueued => (0.02, 6.0),
        ExpectedKind::EndRunning => (0.5, 2.0),
        ExpectedKind::EndEstimated => (0.02, 12.0),
    }
}

/// The class of a time ahead.
fn class_of(ahead: Duration) -> u8 {
    let ahead_s = ahead.as_secs_f64();
    CLASSES_S.iter().filter(|bound| ahead_s >= **bound).count() as u8
}

/// Numbers of ratios by bin.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ratios {
    counts: BTreeMap<i16, u32>,
}

impl Ratios {
    fn total(&self) -> u32 {
        self.counts.values().sum()
    }

    fn add(&mut self, bin: i16) {
        *self.counts.entry(bin).or_default() += 1;
        if self.total() >= COUNT_MAX {
            self.counts.values_mut().for_each(|count| *count /= 2);
            self.counts.retain(|_, count| *count > 0);
        }
    }

    fn add_all(&mut self, other: &Self) {
        for (bin, count) in &other.counts {
            *self.counts.entry(*bin).or_default() += count;
        }
    }

    /// The bin of a rank, from 1.
    fn bin_of(&self, rank: f64) -> f64 {
        let mut below = 0.0;
        for (bin, count) in &self.counts {
            below += f64::from(*count);
            if below >= rank {
                return f64::from(*bin);
            }
        }
        self.counts.last_key_value().map_or(0.0, |(bin, _)| f64::from(*bin))
    }

    /// The edges of the outer bins, and the centre of the median's.
    fn quantiles(&self) -> Quantiles {
        let forecasts = self.total();
        let ranks = f64::from(forecasts) + 1.0;
        let ratio = |bin: f64| (bin / BINS).exp2();
        Quantiles {
            forecasts,
            low: ratio(self.bin_of((0.05 * ranks).floor().max(1.0)) - 0.5),
            median: ratio(self.bin_of((0.5 * ranks).floor())),
            high: ratio(self.bin_of((0.95 * ranks).ceil()) + 0.5),
        }
    }
}

/// The ratios of the bounds and of the median of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quantiles {
    /// Number of forecasts from which they follow; 0: the prior.
    forecasts: u32,
    low: f64,
    median: f64,
    high: f64,
}

/// The intervals of forecasts, by kind and class.
#[derive(Clone, Debug)]
pub(super) struct Intervals {
    by_kind: [Vec<Quantiles>; KINDS.len()],
}

impl Intervals {
    /// A forecast made at `now`, with its interval.
    pub(super) fn forecast(
        &self,
        now: Timestamp,
        kind: ExpectedKind,
        scheduled: Timestamp,
    ) -> Forecast {
        let ahead = scheduled.since(now);
        let Quantiles { forecasts, low, median, high } =
            self.by_kind[kind as usize][usize::from(class_of(ahead))];
        let at = |ratio: f64| {
            let ahead_s = (ahead.as_secs_f64() + OFFSET_S) * ratio - OFFSET_S;
            now + span_s(ahead_s.clamp(0.0, AHEAD_MAX_S))
        };
        let at_us = at(median);
        let shown = ExpectedInstant {
            at_us,
            from_us: at(low).min(at_us),
            until_us: at(high).max(at_us),
            forecasts: u64::from(forecasts),
        };
        Forecast { kind, scheduled, shown }
    }
}

/// Absolute errors of the forecasts of starts or of ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    within: u64,
    counts: BTreeMap<i16, u64>,
}

impl Errors {
    /// Number of forecasts.
    #[must_use]
    pub fn forecasts(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The share of them whose interval held the actual instant; `None` without any.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        let forecasts = self.forecasts();
        (forecasts > 0).then(|| self.within as f64 / forecasts as f64)
    }

    /// The absolute error that this share of them does not exceed, s; `None` without any.
    #[must_use]
    pub fn error_s(&self, share: f64) -> Option<f64> {
        let rank = (share * self.forecasts() as f64).ceil().max(1.0);
        let mut below = 0.0;
        for (bin, count) in &self.counts {
            below += *count as f64;
            if below >= rank {
                return Some((f64::from(*bin) / ERROR_BINS).exp2() - 1.0);
            }
        }
        None
    }

    fn add(&mut self, error: Duration, is_within: bool) {
        let bin = ((error.as_secs_f64() + 1.0).log2() * ERROR_BINS).round() as i16;
        *self.counts.entry(bin).or_default() += 1;
        self.within += u64::from(is_within);
    }
}

/// A forecast of an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    pub(super) kind: ExpectedKind,
    /// The instant by the forward schedule, before the correction by the median of earlier ratios.
    pub(super) scheduled: Timestamp,
    pub(super) shown: ExpectedInstant,
}

impl Forecast {
    /// A forecast made at `now` of an instant that is not after `at`.
    pub(super) fn no_later_than(now: Timestamp, kind: ExpectedKind, at: Timestamp) -> Self {
        let shown = ExpectedInstant { at_us: at, from_us: now, until_us: at, forecasts: 0 };
        Self { kind, scheduled: at, shown }
    }
}

/// The errors of the forecasts of a site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForecastErrors {
    ratios: BTreeMap<(ExpectedKind, u8), Ratios>,
    /// By whether they are of ends, and of first forecasts.
    errors: BTreeMap<(bool, bool), Errors>,
    /// When the last forecast that counts was made.
    last: BTreeMap<(ExpectedKind, u8), Timestamp>,
}

impl ForecastErrors {
    /// The errors of the forecasts of starts or ends, of the first forecasts of their jobs or of later ones.
    #[must_use]
    pub fn of(&self, of_end: bool, first: bool) -> Errors {
        self.errors.get(&(of_end, first)).cloned().unwrap_or_default()
    }

    /// The errors of all forecasts of starts or ends.
    #[must_use]
    pub fn of_all(&self, of_end: bool) -> Errors {
        let (mut all, later) = (self.of(of_end, true), self.of(of_end, false));
        all.within += later.within;
        for (bin, count) in later.counts {
            *all.counts.entry(bin).or_default() += count;
        }
        all
    }

    /// Number of forecasts of a kind, and the ratios of actual to expected times ahead at their 5th percentile, median
    /// and 95th percentile.
    #[must_use]
    pub fn ratios_of_kind(&self, kind: ExpectedKind) -> (u32, [f64; 3]) {
        let Quantiles { forecasts, low, median, high } = self.all_of(kind).quantiles();
        (forecasts, [low, median, high])
    }

    fn all_of(&self, kind: ExpectedKind) -> Ratios {
        let mut all = Ratios::default();
        let of_kind = self.ratios.range((kind, 0)..=(kind, u8::MAX));
        of_kind.for_each(|(_, ratios)| all.add_all(ratios));
        all
    }

    /// The intervals that follow from the errors.
    pub(super) fn intervals(&self) -> Intervals {
        let classes = 0..=CLASSES_S.len() as u8;
        let of = |kind| classes.clone().map(|class| self.ratios_of(kind, class)).collect();
        Intervals { by_kind: KINDS.map(of) }
    }

    /// The ratios of a kind and class; of the prior where too few are known.
    fn ratios_of(&self, kind: ExpectedKind, class: u8) -> Quantiles {
        let own = self.ratios.get(&(kind, class));
        if let Some(ratios) = own.filter(|ratios| ratios.total() >= COUNT_MIN) {
            return ratios.quantiles();
        }
        let all = self.all_of(kind);
        if all.total() >= COUNT_MIN {
            return all.quantiles();
        }
        let (low, high) = prior(kind);
        Quantiles { forecasts: 0, low, median: 1.0, high }
    }

    /// Whether the ratio of a forecast made now will count: none of its class was made within the class's time.
    pub(super) fn counts(&mut self, made: Timestamp, forecast: &Forecast) -> bool {
        let class = class_of(forecast.scheduled.since(made));
        let apart_s = CLASSES_S.get(usize::from(class)).unwrap_or(&CLASSES_S[4]);
        let last = self.last.get(&(forecast.kind, class));
        let counts = last.is_none_or(|last| made.since(*last) >= span_s(*apart_s));
        if counts {
            self.last.insert((forecast.kind, class), made);
        }
        counts
    }

    /// The instant of a forecast made at `made` is known: `actual`. `first`: it was the first of its job. `counts`: its
    /// ratio counts.
    pub(super) fn add(
        &mut self,
        made: Timestamp,
        forecast: &Forecast,
        first: bool,
        counts: bool,
        actual: Timestamp,
    ) {
        let Forecast { kind, scheduled, shown } = *forecast;
        let ahead = scheduled.since(made);
        let time = |ahead: Duration| ahead.as_secs_f64() + OFFSET_S;
        if counts {
            let bins = (time(actual.since(made)) / time(ahead)).log2() * BINS;
            let bin = bins.round().clamp(-BIN_MAX, BIN_MAX) as i16;
            self.ratios.entry((kind, class_of(ahead))).or_default().add(bin);
        }
        let error = actual.since(shown.at_us).max(shown.at_us.since(actual));
        let is_within = (shown.from_us..=shown.until_us).contains(&actual);
        let of_end = kind != ExpectedKind::Start;
        self.errors.entry((of_end, first)).or_default().add(error, is_within);
    }

    /// The value to store.
    pub(super) fn status(&self, at_us: Timestamp, since_us: Timestamp) -> ExpectedStatus {
        let ratios = self.ratios.iter().map(|((kind, class), ratios)| ExpectedRatios {
            kind: *kind,
            class: *class,
            counts: ratios.counts.clone(),
        });
        let errors = self.errors.iter().map(|((of_end, first), errors)| ExpectedErrors {
            of_end: *of_end,
            first: *first,
            within: errors.within,
            counts: errors.counts.clone(),
        });
        ExpectedStatus { at_us, since_us, ratios: ratios.collect(), errors: errors.collect() }
    }

    /// Continues from a stored value.
    pub(super) fn restored(status: &ExpectedStatus) -> Self {
        let mut restored = Self::default();
        for of in &status.ratios {
            let class = of.class.min(CLASSES_S.len() as u8);
            let ratios = restored.ratios.entry((of.kind, class)).or_default();
            ratios.add_all(&Ratios { counts: of.counts.clone() });
        }
        for of in &status.errors {
            let errors = Errors { within: of.within, counts: of.counts.clone() };
            restored.errors.insert((of.of_end, of.first), errors);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: ExpectedKind = ExpectedKind::Start;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    /// Errors of `n` forecasts an hour ahead whose ratios are spread evenly over a doubling either way.
    fn spread(n: u32) -> ForecastErrors {
        let mut errors = ForecastErrors::default();
        for i in 0..n {
            let ratio = (2.0 * f64::from(i) / f64::from(n - 1) - 1.0).exp2();
            let forecast = errors.intervals().forecast(at(0), START, at(3_600));
            let actual = at((3_660.0 * ratio - 60.0) as u64);
            errors.add(at(0), &forecast, i == 0, true, actual);
        }
        errors
    }

    #[test]
    fn a_site_without_forecasts_has_the_prior() {
        let shown = ForecastErrors::default().intervals().forecast(at(100), START, at(1_000)).shown;
        let (low, high) = prior(START);
        // Not before the forecast.
        let bound = |ratio: f64| 100.0 + (960.0 * ratio - 60.0).max(0.0);
        assert_eq!((shown.at_us, shown.forecasts), (at(1_000), 0));
        assert!((shown.from_us.as_s() - bound(low)).abs() < 1e-3, "{shown:?}");
        assert!((shown.until_us.as_s() - bound(high)).abs() < 1e-3, "{shown:?}");
        let shown = spread(19).intervals().forecast(at(100), START, at(1_000)).shown;
        assert_eq!(shown.forecasts, 0, "19 ratios have no 95th percentile");
    }

    #[test]
    fn the_interval_has_the_percentiles_of_the_class() {
        let errors = spread(401);
        let shown = errors.intervals().forecast(at(0), START, at(3_600)).shown;
        assert_eq!(shown.forecasts, 401);
        assert_eq!(shown.at_us, at(3_600), "the median ratio is 1");
        let ratio = |at: Timestamp| (at.as_s() + 60.0) / 3_660.0;
        let (low, high) = (ratio(shown.from_us).log2(), ratio(shown.until_us).log2());
        assert!((-1.0..-0.8).contains(&low) && (0.8..1.0).contains(&high), "{low} {high}");
        // Another class of the same kind uses all of the kind, another kind the prior.
        let far = errors.intervals().forecast(at(0), START, at(200_000)).shown;
        assert_eq!(far.forecasts, 401);
        let end = errors.intervals().forecast(at(0), ExpectedKind::EndQueued, at(3_600)).shown;
        assert_eq!(end.forecasts, 0);
    }

    #[test]
    fn the_interval_holds_nine_tenths_of_later_forecasts() {
        let mut errors = ForecastErrors::default();
        let mut draws = wattle_common::rng::Stream::new(5, "expected");
        for _ in 0..3_000 {
            let forecast = errors.intervals().forecast(at(0), START, at(3_600));
            let actual = at((3_600.0 * (1.5 * draws.normal()).exp2()) as u64);
            errors.add(at(0), &forecast, false, true, actual);
        }
        let of = errors.of(false, false);
        assert_eq!(of.forecasts(), 3_000);
        let coverage = of.coverage().unwrap();
        assert!((0.88..0.94).contains(&coverage), "{coverage}");
    }

    #[test]
    fn a_constant_error_is_corrected() {
        let mut errors = ForecastErrors::default();
        for _ in 0..50 {
            let forecast = errors.intervals().forecast(at(0), START, at(3_600));
            errors.add(at(0), &forecast, true, true, at(7_260));
        }
        let shown = errors.intervals().forecast(at(0), START, at(3_600)).shown;
        assert_eq!(shown.at_us, at(7_260), "twice the time ahead, with the offset");
        let of = errors.of(false, true);
        assert_eq!(of.error_s(0.1), Some(0.0));
        let uncorrected = of.error_s(0.9).unwrap();
        assert!((3_400.0..4_000.0).contains(&uncorrected), "{uncorrected} s");
    }

    #[test]
    fn of_forecasts_made_soon_after_one_another_one_counts() {
        let mut errors = ForecastErrors::default();
        let mut counts = |made: u64, ahead: u64| {
            let forecast = errors.intervals().forecast(at(made), START, at(made + ahead));
            errors.counts(at(made), &forecast)
        };
        assert!(counts(0, 3_600) && !counts(10, 3_600) && counts(10, 60), "by class");
        assert!(!counts(7_199, 3_600) && counts(7_200, 3_600), "two hours");
        assert!(counts(7_200, 1_000_000) && !counts(90_000, 1_000_000), "a day");
    }

    #[test]
    fn stored_errors_are_restored() {
        let errors = spread(50);
        let status = errors.status(at(9), at(1));
        assert_eq!((status.at_us, status.since_us), (at(9), at(1)));
        assert_eq!(ForecastErrors::restored(&status), errors);
    }

    #[test]
    fn counts_are_bounded_and_newer_ones_weigh_more() {
        let mut ratios = Ratios::default();
        (0..COUNT_MAX - 1).for_each(|_| ratios.add(0));
        assert_eq!(ratios.total(), COUNT_MAX - 1);
        ratios.add(8);
        assert_eq!(ratios.total(), (COUNT_MAX - 1) / 2);
        (0..COUNT_MAX / 2).for_each(|_| ratios.add(8));
        assert!(ratios.total() < COUNT_MAX);
        let high = (8.5_f64 / 8.0).exp2();
        assert!((ratios.quantiles().high - high).abs() < 1e-12);
    }
}

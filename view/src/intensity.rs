//! Mean carbon intensity of an interval, from the grid's series.

use wattle_common::messages::IntensitySeries;
use wattle_common::{CarbonIntensity, Timestamp};

/// The intensity of a periodic series `seconds` after its start, and the seconds for which it holds from
/// then on.
fn step(series: &IntensitySeries, seconds: u64) -> Option<(CarbonIntensity, u64)> {
    let within = seconds % series.period_s.max(1);
    let after = series.steps.partition_point(|(from, _)| *from <= within);
    let (_, intensity) = series.steps.get(after.checked_sub(1)?)?;
    let until = series.steps.get(after).map_or(series.period_s.max(1), |(from, _)| *from);
    Some((*intensity, until.saturating_sub(within).max(1)))
}

/// The intensity at `at`; `None` before the start of the series.
#[must_use]
pub fn intensity_at(series: &IntensitySeries, at: Timestamp) -> Option<CarbonIntensity> {
    if at < series.starts_at_us {
        return None;
    }
    step(series, at.since(series.starts_at_us).as_secs()).map(|(intensity, _)| intensity)
}

/// The mean intensity from `from` until `until` without the part before the start of the series; `None` if
/// the whole interval precedes it.
#[must_use]
pub fn mean_intensity(
    series: &IntensitySeries,
    from: Timestamp,
    until: Timestamp,
) -> Option<CarbonIntensity> {
    let from = from.max(series.starts_at_us);
    if until <= from {
        return None;
    }
    let mut at = from.since(series.starts_at_us).as_secs();
    let end = until.since(series.starts_at_us).as_secs().max(at + 1);
    let (mut sum, begin) = (0.0, at);
    while at < end {
        let (intensity, holds) = step(series, at)?;
        let span = holds.min(end - at);
        sum += intensity.as_g_per_kwh() * span as f64;
        at += span;
    }
    Some(CarbonIntensity::from_g_per_kwh(sum / (end - begin) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_is_weighted_by_time_and_periodic() {
        let grams = CarbonIntensity::from_g_per_kwh;
        let series = IntensitySeries {
            name: "x".to_owned(),
            starts_at_us: Timestamp::from_s(1_000),
            steps: vec![(0, grams(100.0)), (600, grams(400.0))],
            period_s: 900,
            origins: Vec::new(),
        };
        let mean = |from, until| {
            let (from, until) = (Timestamp::from_s(from), Timestamp::from_s(until));
            mean_intensity(&series, from, until).map(|mean| mean.as_g_per_kwh().round())
        };
        assert_eq!(mean(1_000, 1_900), Some(200.0));
        assert_eq!(mean(0, 1_600), Some(100.0), "before its start nothing is known");
        assert_eq!(mean(1_600, 2_200), Some(250.0), "300 s of 400 and 300 s of 100");
        assert_eq!(mean(0, 1_000), None);
        assert_eq!(intensity_at(&series, Timestamp::from_s(1_700)), Some(grams(400.0)));
        assert_eq!(intensity_at(&series, Timestamp::from_s(999)), None);
    }
}

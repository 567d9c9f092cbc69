//! Step functions that repeat, carbon intensity and electricity price over time: their steps and integrals.

use std::time::Duration;

use wattle_grid::SignalSeries;

/// A series of a provider or a table as a step function.
pub(crate) struct Steps {
    /// Start of each value, microseconds from the first, and the value in the series' unit.
    pub(crate) steps: Vec<(u64, f64)>,
    /// Period, microseconds.
    pub(crate) period_us: u64,
    /// Gaps, in which the value before holds.
    pub(crate) gaps: usize,
}

impl Steps {
    /// The steps of a reading, which has an interval.
    pub(crate) fn of(reading: &SignalSeries) -> Option<Self> {
        let first = reading.intervals.first()?.from;
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let steps = reading.intervals.iter().map(|step| (us(step.from.since(first)), step.value));
        let pairs = reading.intervals.windows(2);
        Some(Self {
            steps: steps.collect(),
            period_us: us(reading.until().since(first)),
            gaps: pairs.filter(|pair| pair[0].until < pair[1].from).count(),
        })
    }
}

/// Integral over time, in the unit of `value` times microseconds. `steps` has the start of each step in
/// microseconds, ascending from 0; the function repeats after `period_us`.
pub(crate) fn integral<T>(
    steps: &[(u64, T)],
    period_us: u64,
    value: impl Fn(&T) -> i128,
    from_us: u64,
    until_us: u64,
) -> i128 {
    let of_steps = |from_us: u64, until_us: u64| {
        let mut sum = 0i128;
        let mut at = from_us;
        while at < until_us {
            let in_period = at % period_us;
            let i = steps.partition_point(|(from, _)| *from <= in_period) - 1;
            let step_end = steps.get(i + 1).map_or(period_us, |(from, _)| *from);
            let end = until_us.min(at - in_period + step_end);
            sum += value(&steps[i].1) * i128::from(end - at);
            at = end;
        }
        sum
    };
    // Full periods are multiplied, so that a long run over a short series stays cheap.
    let whole = until_us.saturating_sub(from_us) / period_us;
    let mut sum = 0i128;
    if whole > 0 {
        sum = i128::from(whole) * of_steps(0, period_us);
    }
    sum + of_steps(from_us + whole * period_us, until_us)
}

//! The autocorrelation of a series with uneven sampling instants.
//!
//! Pairs of samples are grouped into slots by the time between them, without a grid and without
//! interpolation (slotted autocorrelation: Edelson and Krolik 1988, Astrophysical Journal 333,
//! 646). With jittered sampling, pairs exist at every distance, so a variation faster than the
//! sampling appears at its own period instead of an alias. A series is examined in bands of
//! periods, each high-pass filtered, so that an evaluation pause or a drift does not hide a short
//! period.

/// Ratio of a band's longest to its shortest period.
const BAND: f64 = 3.0;
/// Number of multiples of the period at which a peak is confirmed.
const MULTIPLES: usize = 3;
/// Number of slots within the shortest period of a band.
const SLOTS: f64 = 10.0;
/// Longest lag, as a share of the span; longer ones have too few pairs.
const LAG_SHARE: f64 = 0.8;
/// Share of values clipped at either end, against outliers.
const CLIPPED: f64 = 0.02;

/// The readings of one sensor over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    /// Seconds, ascending.
    pub(super) times: Vec<f64>,
    /// Any unit, one value for each time.
    pub(super) values: Vec<f64>,
}

impl Channel {
    pub(super) fn span(&self) -> f64 {
        match (self.times.first(), self.times.last()) {
            (Some(first), Some(last)) => last - first,
            _ => 0.0,
        }
    }

    /// The channel without variations slower than periods of `longest`, clipped, with mean 0 and
    /// deviation 1; `None` if it is constant.
    fn high_passed(&self, longest: f64) -> Option<Self> {
        let (times, half) = (&self.times, 1.5 * longest);
        let (mut from, mut until, mut sum) = (0, 0, 0.0);
        let mut values = Vec::with_capacity(times.len());
        for (i, at) in times.iter().enumerate() {
            while until < times.len() && times[until] <= at + half {
                sum += self.values[until];
                until += 1;
            }
            while times[from] < at - half {
                sum -= self.values[from];
                from += 1;
            }
            values.push(self.values[i] - sum / (until - from) as f64);
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let cut = (CLIPPED * sorted.len() as f64) as usize;
        let (low, high) = (*sorted.get(cut)?, *sorted.get(sorted.len() - 1 - cut)?);
        let n = values.len() as f64;
        values.iter_mut().for_each(|v| *v = v.clamp(low, high));
        let mean = values.iter().sum::<f64>() / n;
        let sd = (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt();
        // Rounding errors of a constant are not a signal.
        let scale = self.values.iter().fold(0.0_f64, |all, v| all.max(v.abs()));
        if sd.is_nan() || sd <= 1e-6 * scale {
            return None;
        }
        values.iter_mut().for_each(|v| *v = (*v - mean) / sd);
        Some(Self { times: times.clone(), values })
    }
}

/// A band of periods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    shortest: f64,
    longest: f64,
    slot: f64,
}

impl Band {
    /// The bands from `shortest` to `longest`, for samples `interval` apart, in seconds.
    pub(super) fn all(shortest: f64, longest: f64, interval: f64) -> impl Iterator<Item = Self> {
        let band = move |shortest: f64| Self {
            shortest,
            longest: (shortest * BAND).min(longest),
            slot: (shortest / SLOTS).max(interval / 4.0),
        };
        std::iter::successors(Some(shortest), |from| Some(from * BAND))
            .take_while(move |from| *from < longest)
            .map(band)
    }
}

/// Autocorrelation by lag within one band.
#[derive(Clone, Debug)]
pub(super) struct Correlation {
    band: Band,
    /// By slot, smoothed over its neighbours: correlation, and its deviation without a period.
    slots: Vec<(f64, f64)>,
}

/// A peak of the autocorrelation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peak {
    /// Seconds.
    pub(super) period: f64,
    /// Mean correlation at the period and its multiples.
    pub(super) height: f64,
    /// Half the width of the period's 90 % interval, seconds.
    pub(super) error: f64,
    /// Height in deviations without a period.
    pub(super) significance: f64,
    /// The band it was found in.
    pub(super) band: Band,
}

impl Correlation {
    /// Autocorrelation of `channel` within `band`, from the pairs whose midpoint `part` selects.
    pub(super) fn of(channel: &Channel, band: Band, part: impl Fn(f64) -> bool) -> Option<Self> {
        let filtered = channel.high_passed(band.longest)?;
        let saved: Vec<(f64, f64)> =
            filtered.times.iter().copied().zip(filtered.values.iter().copied()).collect();
        let lag_max = (band.longest * (MULTIPLES as f64 + 0.5)).min(LAG_SHARE * filtered.span());
        let count = (lag_max / band.slot) as usize + 1;
        let mut sums = vec![(0.0, 0.0); count + 1];
        for (i, (at, value)) in saved.iter().enumerate() {
            for (later, other) in &saved[i + 1..] {
                let slot = ((later - at) / band.slot).round() as usize;
                if slot > count {
                    break;
                }
                if part((at + later) / 2.0) {
                    sums[slot].0 += value * other;
                    sums[slot].1 += 1.0;
                }
            }
        }
        let smooth = |slot: usize| {
            let near = [(slot.wrapping_sub(1), 1.0), (slot, 2.0), (slot + 1, 1.0)];
            let near = near.iter().filter_map(|(s, w)| Some((sums.get(*s)?, *w)));
            let (mut sum, mut pairs, mut squares) = (0.0, 0.0, 0.0);
            for ((products, n), weight) in near {
                sum += weight * products;
                pairs += weight * n;
                squares += weight * weight * n;
            }
            if pairs <= 0.0 {
                return (0.0, f64::INFINITY);
            }
            (sum / pairs, squares.sqrt() / pairs)
        };
        Some(Self { band, slots: (0..count).map(smooth).collect() })
    }

    fn at(&self, slot: usize) -> f64 {
        self.slots.get(slot).map_or(f64::NEG_INFINITY, |(r, _)| *r)
    }

    /// The highest slot within `reach` of `lag`: lag, correlation, deviation; `None` at the edge
    /// of the examined lags.
    fn top(&self, lag: f64, reach: f64) -> Option<(f64, f64, f64)> {
        let slot = |lag: f64| (lag / self.band.slot).round().max(1.0) as usize;
        let best = (slot(lag - reach)..=slot(lag + reach))
            .max_by(|a, b| self.at(*a).total_cmp(&self.at(*b)))?;
        let (before, here, after) = (self.at(best - 1), self.at(best), self.at(best + 1));
        let is_top = here >= before && here >= after;
        if !(is_top && (before + after).is_finite()) {
            return None;
        }
        // The vertex of a parabola through the three slots.
        let bend = before - 2.0 * here + after;
        let shift = if bend < 0.0 { 0.5 * (before - after) / bend } else { 0.0 };
        let (_, sd) = *self.slots.get(best)?;
        Some(((best as f64 + shift.clamp(-0.5, 0.5)) * self.band.slot, here, sd))
    }

    fn lowest(&self, from: f64, until: f64) -> f64 {
        let slot = |lag: f64| (lag / self.band.slot).round() as usize;
        (slot(from)..=slot(until))
            .filter_map(|s| self.slots.get(s))
            .fold(f64::INFINITY, |low, (r, _)| low.min(*r))
    }

    /// The peak near `period`, confirmed at its multiples as far as there are pairs.
    pub(super) fn near(&self, period: f64, reach: f64) -> Option<Peak> {
        let (first, r, sd) = self.top(period, reach)?;
        let longest = self.slots.len().saturating_sub(2) as f64 * self.band.slot;
        let (mut lags, mut weights, mut best) = (r * first, r, first);
        let (mut heights, mut variance, mut lowest, mut count) = (r, sd * sd, r, 1.0);
        let mut places = vec![first];
        for multiple in 2..=MULTIPLES {
            let m = multiple as f64;
            if best * m * 1.1 > longest {
                break;
            }
            let (lag, r, sd) = self.top(best * m, (0.12 * best).max(self.band.slot))?;
            let weight = r.max(0.0) * m * m;
            (lags, weights) = (lags + weight * lag / m, weights + weight);
            best = lags / weights;
            (heights, variance, count) = (heights + r, variance + sd * sd, count + 1.0);
            lowest = lowest.min(r);
            places.push(lag / m);
        }
        // The correlation must persist at each multiple and fall between them.
        let trough = self.lowest(0.2 * best, 0.8 * best);
        if lowest < 0.35 * r || r - trough < 0.8 * r || r <= 0.0 || count < 2.0 {
            return None;
        }
        let furthest = places.len() as f64;
        let spread = places.iter().map(|p| (p - best) * (p - best)).sum::<f64>() / furthest;
        let slot = self.band.slot * sd.max(0.1) / r / furthest;
        Some(Peak {
            period: best,
            height: heights / count,
            error: 1.645 * (spread / furthest).sqrt().hypot(slot),
            significance: heights / variance.sqrt(),
            band: self.band,
        })
    }

    /// The mean correlation at `period` and its multiples, the mean in deviations without a
    /// period, and its contrast to the minimum between the multiples.
    pub(super) fn comb(&self, period: f64) -> (f64, f64, f64) {
        let (mut sum, mut variance, mut count) = (0.0, 0.0, 0.0);
        let mut lag = period;
        while let Some((r, sd)) = self.slots.get((lag / self.band.slot).round() as usize) {
            (sum, variance, count) = (sum + r, variance + sd * sd, count + 1.0);
            lag += period;
        }
        let mean = sum / f64::max(count, 1.0);
        (mean, sum / variance.sqrt(), mean - self.lowest(0.2 * period, 0.8 * period))
    }

    /// The mean correlation at the multiples of `period / parts` that are not multiples of
    /// `period`: as high as at the period itself if the loop is that much shorter.
    pub(super) fn between(&self, period: f64, parts: u32) -> Option<f64> {
        let part = period / f64::from(parts);
        let at = |j: u32| self.slots.get((part * f64::from(j) / self.band.slot).round() as usize);
        let off = (1..4 * parts).filter(|j| j % parts != 0);
        let found: Vec<f64> = off.map_while(|j| Some(at(j)?.0)).collect();
        let count = found.len() as f64;
        (count > 0.0).then(|| found.iter().sum::<f64>() / count)
    }

    /// Whether the band contains this period.
    pub(super) fn holds(&self, period: f64) -> bool {
        period >= self.band.shortest && period < self.band.shortest * BAND
    }

    /// Lag and height of the peak at `period`.
    pub(super) fn first(&self, period: f64, reach: f64) -> Option<(f64, f64)> {
        self.top(period, reach).map(|(lag, r, _)| (lag, r))
    }

    /// Every peak of the band, shortest first.
    pub(super) fn peaks(&self) -> Vec<Peak> {
        let slot = |lag: f64| (lag / self.band.slot).round().max(1.0) as usize;
        let mut peaks: Vec<Peak> = Vec::new();
        for at in slot(0.95 * self.band.shortest)..=slot(1.1 * self.band.longest) {
            let top = self.at(at) > self.at(at - 1) && self.at(at) >= self.at(at + 1);
            if top && let Some(peak) = self.near(at as f64 * self.band.slot, 0.0) {
                peaks.push(peak);
            }
        }
        peaks
    }
}

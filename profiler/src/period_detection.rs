//! Detects the period of a training loop from the power and utilisation of its GPUs.
//!
//! Each iteration of a job loads, computes and communicates, and power and utilisation vary with
//! it. So the iterations of a job that reports no steps can be detected. A wrong period would
//! corrupt the predictor's data, so every doubtful case is rejected:
//!
//! * A period must repeat over its multiples and in both halves of the window.
//! * Power and utilisation come from different sensors and must show the same period. A sensor that
//!   takes instants itself aliases a step that is too short for it to a slow one, and a sensor with
//!   another rate aliases it differently.
//! * The sampling instants must be uneven, as the service's sampler makes them. Otherwise an alias
//!   cannot be distinguished from the true period.
//! * Of a period and its multiples the shortest counts, if it is nearly as clear as the clearest. If
//!   noise may hide a fraction of it, the result is ambiguous.
//! * Two periods that are not multiples of each other belong to two loops, which cannot be
//!   assigned.
//!
//! Detectable periods range from two sampling intervals to a quarter of the window; a longer one
//! is too often chance. NVML's power is a mean over one second on Ampere, except GA100 (A100, A30),
//! and later; utilisation is a mean over a sixth of a second to a second. Both attenuate short steps.
//! Results for synthetic loops at 10 Hz (four waveforms, iterations uneven by 2 %, noise of 5, 20
//! and 50 % of the amplitude), printed by
//! `cargo test -p wattle-profiler --test suite period_detection -- --nocapture`:
//!
//! | period, s | found in a minute | in 15 s | wrong |
//! |---|---|---|---|
//! | below 0.3 | 0 % | 0 % | at most 1 %, twice the period |
//! | 0.33 to 0.47 | 97, 93, 58 % | 72, 71, 36 % | none |
//! | 0.55 to 0.95 | 97, 98, 89 % | 83, 80, 55 % | none |
//! | 1.3 to 2.9 | 100, 100, 94 % | 96, 93, 71 % | none |
//! | 4.5 to 11 | 99, 92, 66 % | 0 % | none |
//!
//! "Wrong" is off by more than 5 %; 92 % of the detected periods lie within their own 90 % error.
//! Of 2,160 series without a period (white and drifting noise, irregular work) no period was
//! detected.
//! A job with a constant utilisation of 100 % varies in one sensor only and is rejected. The
//! period is that of a typical iteration: occasional stalls are not part of it.
//!
//! An iteration may be several steps (or micro-batches) or a part of one: an inferred rate is
//! comparable only with other inferred rates of the same job.
//!
//! Pure: no clock, no I/O, bounded by [`SAMPLES_MAX`].

mod correlation;

use correlation::{Band, Channel, Correlation, Peak};

/// Most samples kept of a window; later ones are dropped.
pub const SAMPLES_MAX: usize = 1_024;
/// Fewest samples.
const SAMPLES_MIN: usize = 60;
/// Fewest periods in a window.
const PERIODS_MIN: f64 = 4.0;
/// Fewest sampling intervals in a period (Nyquist).
const INTERVALS_MIN: f64 = 2.0;
/// Shortest period that is searched, in sampling intervals, to recognise periods that are too
/// short.
const INTERVALS_SEEN: f64 = 0.8;
/// Largest length of the mean of exp(2 pi i spacing / interval); above it sampling is too even.
/// With a jitter of a quarter of the interval either way it is 0.41.
const EVEN_MAX: f64 = 0.8;
/// Least share of samples with a reading of a sensor.
const MOST: f64 = 0.7;
/// Least standard deviation: of power as a share of its mean, of percentages in points.
const SWING_SHARE: f64 = 0.015;
const SWING_PERCENT: f64 = 1.0;
/// Least correlation at a period's multiples, and its increase by the period's share of the
/// window: few repetitions correlate easily by chance.
const HEIGHT_MIN: f64 = 0.25;
const HEIGHT_MIN_SLOPE: f64 = 1.2;
/// Least correlation in standard deviations of noise.
const SIGNIFICANCE_MIN: f64 = 7.0;
/// Relative correlation from which a shorter period is the period, and from which it makes the
/// result ambiguous.
const SHORTER_FROM: f64 = 0.85;
const SHORTER_OPEN_FROM: f64 = 0.70;
/// Largest divisor of a period that is examined, and the largest relative correlation there.
const PARTS_MAX: u32 = 6;
const BETWEEN_MAX: f64 = 0.3;
/// Largest relative correlation at a fraction shorter than three sampling intervals, which sensors blur.
const BETWEEN_MAX_FINE: f64 = 0.1;
/// Relative correlation from which another period, not a multiple, belongs to another loop.
const OTHER_FROM: f64 = 0.6;
/// Largest relative difference of two estimates of one period.
const AGREE: f64 = 0.05;
/// Least relative correlation in another sensor, or in half of the window.
const HALF_FROM: f64 = 0.5;
const CONFIRM_HEIGHT_MIN: f64 = 0.15;
const CONFIRM_SIGNIFICANCE_MIN: f64 = 4.0;
/// Least relative error of a rate.
const ERROR_MIN: f64 = 0.01;

/// One sampling instant, over all the job's GPUs on the node. A missing reading is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Seconds from an arbitrary origin.
    pub at_s: f64,
    /// Sum of the power readings, W.
    pub power_w: Option<f32>,
    /// Sum of the mean powers since the instant before, by the energy counters, W.
    pub spent_w: Option<f32>,
    /// Utilisation, mean over the GPUs, percent: the GPUs' own, or the job's part if it shares
    /// them.
    pub busy_percent: Option<f32>,
    /// Memory utilisation, percent; `None` if the job shares its GPUs.
    pub memory_percent: Option<f32>,
}

/// The samples of a job in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSeries {
    series: Vec<Sample>,
}

/// A sensor whose readings form a channel.
#[derive(Clone, Copy, Debug)]
enum Sensor {
    EnergySpent,
    Power,
    Busy,
    Memory,
}

/// A detected period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Period {
    /// Seconds from one iteration to the next.
    pub period_s: f64,
    /// Half the width of its 90 % interval, as a share of it.
    pub error: f64,
    /// Autocorrelation at the period, 0 to 1.
    pub height: f64,
}

/// Why no period was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoPeriod {
    /// Too few samples.
    #[error("fewer than {SAMPLES_MIN} samples")]
    TooFew,
    /// Aliases cannot be distinguished.
    #[error("the samples are too evenly spaced to recognise an alias")]
    TooEven,
    /// Power is constant.
    #[error("power is constant")]
    Constant,
    /// Power varies without a period.
    #[error("no period")]
    None,
    /// The period is too short for the sampling.
    #[error("the period is shorter than two sampling intervals")]
    TooFast,
    /// Several periods are similarly likely.
    #[error("several periods are similarly likely")]
    Ambiguous,
    /// Utilisation does not have the period of power.
    #[error("power and utilisation do not agree")]
    Unconfirmed,
    /// The halves of the window do not agree.
    #[error("the halves of the window do not agree")]
    Unsteady,
}

impl SampleSeries {
    /// Adds a sample. Samples beyond [`SAMPLES_MAX`], or not later than the last, are dropped.
    pub fn push(&mut self, sample: Sample) {
        let later = self.series.last().is_none_or(|last| sample.at_s > last.at_s);
        if self.series.len() < SAMPLES_MAX && later && sample.at_s.is_finite() {
            self.series.push(sample);
        }
    }

    /// The samples, in order.
    #[must_use]
    pub fn series(&self) -> &[Sample] {
        &self.series
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The period of the job's loop. If the GPUs are `shared`, power contains the co-tenants'
    /// loops, and the job's own utilisation determines the period.
    ///
    /// # Errors
    /// [`NoPeriod`] if none can be determined.
    pub fn detect_period(&self, shared: bool) -> Result<Period, NoPeriod> {
        if self.series.len() < SAMPLES_MIN {
            return Err(NoPeriod::TooFew);
        }
        let interval = self.interval();
        let channels =
            |of: [Sensor; 2]| of.into_iter().filter_map(|of| self.channel(of)).collect::<Vec<_>>();
        let power = channels([Sensor::EnergySpent, Sensor::Power]);
        let used = channels([Sensor::Busy, Sensor::Memory]);
        if power.is_empty() {
            return Err(NoPeriod::Constant);
        }
        if used.is_empty() {
            return Err(NoPeriod::Unconfirmed);
        }
        if self.evenness(interval) > EVEN_MAX {
            return Err(NoPeriod::TooEven);
        }
        let (first, second) = if shared { (&used, &power) } else { (&power, &used) };
        // The first sensor with a period determines it, unless an earlier sensor is ambiguous.
        for channel in first {
            let peak = match find(channel, interval) {
                Ok(peak) => peak,
                Err(NoPeriod::None) => continue,
                Err(refusal) => return Err(refusal),
            };
            steady(channel, &peak)?;
            confirmed(&peak, second, interval)?;
            return Ok(Period {
                period_s: peak.period,
                error: (peak.error / peak.period).max(ERROR_MIN),
                height: peak.height,
            });
        }
        Err(NoPeriod::None)
    }

    /// Median time between samples.
    fn interval(&self) -> f64 {
        let mut spacings: Vec<f64> =
            self.series.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect();
        spacings.sort_by(f64::total_cmp);
        spacings.get(spacings.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    /// Evenness of the sampling: 1 if each spacing is a multiple of the interval.
    fn evenness(&self, interval: f64) -> f64 {
        let turn = |pair: &[Sample]| {
            let angle = std::f64::consts::TAU * (pair[1].at_s - pair[0].at_s) / interval;
            (angle.cos(), angle.sin())
        };
        let n = (self.series.len() - 1) as f64;
        let sum = self.series.windows(2).map(turn).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        f64::hypot(sum.0, sum.1) / n
    }

    /// The readings of one sensor; `None` if too many are missing or they are constant.
    fn channel(&self, sensor: Sensor) -> Option<Channel> {
        let mut channel = Channel::default();
        let mut before = None;
        for sample in &self.series {
            let (value, at) = match sensor {
                // A mean over the time since the instant before belongs to the middle of that time.
                Sensor::EnergySpent => {
                    (sample.spent_w, f64::midpoint(before.unwrap_or(sample.at_s), sample.at_s))
                }
                Sensor::Power => (sample.power_w, sample.at_s),
                Sensor::Busy => (sample.busy_percent, sample.at_s),
                Sensor::Memory => (sample.memory_percent, sample.at_s),
            };
            before = Some(sample.at_s);
            if let Some(value) = value.filter(|value| value.is_finite()) {
                channel.times.push(at);
                channel.values.push(value.into());
            }
        }
        let n = channel.values.len() as f64;
        if channel.values.len() < SAMPLES_MIN || n < MOST * self.series.len() as f64 {
            return None;
        }
        let mean = channel.values.iter().sum::<f64>() / n;
        let variance = channel.values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let swing = match sensor {
            Sensor::EnergySpent | Sensor::Power => SWING_SHARE * mean.abs(),
            Sensor::Busy | Sensor::Memory => SWING_PERCENT,
        };
        (variance.sqrt() > swing).then_some(channel)
    }
}

/// The period of one channel.
fn find(channel: &Channel, interval: f64) -> Result<Peak, NoPeriod> {
    let longest = channel.span() / PERIODS_MIN;
    let bands = Band::all(INTERVALS_SEEN * interval, longest, interval);
    let correlations: Vec<Correlation> =
        bands.filter_map(|band| Correlation::of(channel, band, |_| true)).collect();
    let clear = |p: &Peak| {
        p.height >= HEIGHT_MIN + HEIGHT_MIN_SLOPE * p.period / channel.span()
            && p.significance >= SIGNIFICANCE_MIN
    };
    let peaks: Vec<Peak> = correlations.iter().flat_map(Correlation::peaks).filter(clear).collect();
    let best = peaks.iter().map(|peak| peak.height).fold(0.0, f64::max);
    let Some(shortest) = peaks.iter().find(|peak| peak.height >= SHORTER_FROM * best).copied()
    else {
        return Err(NoPeriod::None);
    };
    if shortest.period < INTERVALS_MIN * interval {
        return Err(NoPeriod::TooFast);
    }
    for other in &peaks {
        let (long, short) = (shortest.period.max(other.period), shortest.period.min(other.period));
        let ratio = long / short;
        let off = (ratio - ratio.round()).abs() / ratio;
        let multiple = off <= AGREE;
        let open = other.period < shortest.period && other.height >= SHORTER_OPEN_FROM * best;
        if (multiple && open && ratio > 1.5) || (!multiple && other.height >= OTHER_FROM * best) {
            return Err(NoPeriod::Ambiguous);
        }
    }
    // A fraction of the period whose own peak is hidden by noise.
    for parts in 2..=PARTS_MAX {
        let part = shortest.period / f64::from(parts);
        let between = correlations.iter().find(|c| c.holds(part));
        let between = between.and_then(|c| c.between(shortest.period, parts));
        let max = if part < 3.0 * interval { BETWEEN_MAX_FINE } else { BETWEEN_MAX };
        if between.is_some_and(|likeness| likeness >= max * shortest.height) {
            return Err(NoPeriod::Ambiguous);
        }
    }
    Ok(shortest)
}

/// Checks that both halves of the window have the period.
fn steady(channel: &Channel, peak: &Peak) -> Result<(), NoPeriod> {
    let middle = channel.times.first().copied().unwrap_or(0.0) + channel.span() / 2.0;
    let has = |part: &dyn Fn(f64) -> bool| {
        let half = Correlation::of(channel, peak.band, part)?;
        let (lag, height) = half.first(peak.period, 2.0 * AGREE * peak.period)?;
        let same = (lag - peak.period).abs() <= AGREE * peak.period;
        (same && height >= HALF_FROM * peak.height).then_some(())
    };
    match (has(&|at| at < middle), has(&|at| at >= middle)) {
        (Some(()), Some(())) => Ok(()),
        _ => Err(NoPeriod::Unsteady),
    }
}

/// Checks that a sensor of the other kind has the period, and that none has another one.
fn confirmed(peak: &Peak, others: &[Channel], interval: f64) -> Result<(), NoPeriod> {
    let mut agreed = false;
    for channel in others {
        let same = Correlation::of(channel, peak.band, |_| true).is_some_and(|correlation| {
            let (height, significance, contrast) = correlation.comb(peak.period);
            height >= CONFIRM_HEIGHT_MIN
                && contrast >= CONFIRM_HEIGHT_MIN
                && significance >= CONFIRM_SIGNIFICANCE_MIN
        });
        agreed |= same;
        if !same && let Ok(other) = find(channel, interval) {
            let ratio = peak.period.max(other.period) / peak.period.min(other.period);
            if (ratio - ratio.round()).abs() > AGREE * ratio {
                return Err(NoPeriod::Ambiguous);
            }
        }
    }
    if agreed { Ok(()) } else { Err(NoPeriod::Unconfirmed) }
}

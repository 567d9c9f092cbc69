//! The period of a training loop, from what its GPUs draw and how busy they are.
//!
//! A job that reports no steps still shows them: each iteration loads, computes and communicates,
//! and power and utilisation swing with it. This module finds the period of that swing, or says why
//! it cannot. A wrong period would teach the predictor nonsense, so whatever is doubtful is refused:
//!
//! * a rhythm must repeat over its multiples and in both halves of the window;
//! * power and utilisation, which different sensors take, must show the same one. A sensor that
//!   takes instants itself turns a step that is too short for it into a slow one; another with
//!   another pace turns it into another;
//! * the sampling instants must be uneven, as the service's sampler makes them, or an alias cannot
//!   be told from the truth;
//! * of a period and its multiples the shortest counts, where it is nearly as clear as any, and parts
//!   of it that noise may hide leave it open;
//! * two rhythms that are no multiples of each other are two loops: whose is which is not known.
//!
//! What can be seen: periods from two sampling intervals to a quarter of the window; beyond, a rhythm
//! is too often chance. NVML's power is a mean over a second on most GPUs since Ampere, and
//! utilisation over a sixth of a second to a second, so short steps show only faintly there.
//! Of made-up loops at 10 Hz (four waves, iterations uneven by 2 %, noise of 5, 20 and 50 % of the
//! swing; `cargo test -p wattle-profiler --test suite rhythm -- --nocapture`):
//!
//! | period, s | found in a minute | in 15 s | wrong |
//! |---|---|---|---|
//! | below 0.3 | 0 % | 0 % | at most 1 %, twice the period |
//! | 0.33 to 0.47 | 97, 93, 58 % | 72, 71, 36 % | none |
//! | 0.55 to 0.95 | 97, 98, 89 % | 83, 80, 55 % | none |
//! | 1.3 to 2.9 | 100, 100, 94 % | 96, 93, 71 % | none |
//! | 4.5 to 11 | 99, 92, 66 % | 0 % | none |
//!
//! "Wrong" is off by more than 5 %; 92 % of those found lie within their own 90 % error. Of 2,160
//! series without a rhythm (white and wandering noise, irregular work) none was given one.
//! A job whose utilisation stands at 100 % throughout shows one sensor's swing only, and is refused.
//! The period is that of a usual iteration: a stall now and then is not in it.
//!
//! An iteration may be several steps (or micro-batches) or a part of one: the rate compares with
//! other inferred rates of the same job only.
//!
//! Pure: no clock, no I/O, bounded by [`SAMPLES_MAX`].

mod correlation;

use correlation::{Band, Channel, Correlation, Peak};

/// Samples kept of a window; what comes later in it is not looked at.
pub const SAMPLES_MAX: usize = 1_024;
/// Fewer samples say nothing.
const SAMPLES_MIN: usize = 60;
/// A window holds at least so many periods.
const PERIODS_MIN: f64 = 4.0;
/// A period holds at least so many sampling intervals (Nyquist).
const INTERVALS_MIN: f64 = 2.0;
/// Periods are looked for from so many sampling intervals, to know those that are too short.
const INTERVALS_SEEN: f64 = 0.8;
/// Sampling is too even where the mean of exp(2 pi i spacing / interval) is longer than this: with
/// a jitter of a quarter of the interval either way it is 0.41.
const EVEN_MAX: f64 = 0.8;
/// A sensor counts that was read in this share of the samples.
const MOST: f64 = 0.7;
/// Power must swing by this share of its mean, and percentages by so many points, as deviations.
const SWING_SHARE: f64 = 0.015;
const SWING_PERCENT: f64 = 1.0;
/// Least likeness of a rhythm's multiples, and what is added to it by the share of the window that
/// a period takes: what comes only a few times is easily like itself by chance.
const HEIGHT_MIN: f64 = 0.25;
const HEIGHT_MIN_SLOPE: f64 = 1.2;
/// Least height in deviations of what noise gives.
const SIGNIFICANCE_MIN: f64 = 7.0;
/// A shorter period at least this close to the clearest is the period; one that is less, but closer
/// than the second figure, leaves it open.
const SHORTER_FROM: f64 = 0.85;
const SHORTER_OPEN_FROM: f64 = 0.70;
/// Parts of a period that are looked at, and what they may have of its height.
const PARTS_MAX: u32 = 6;
const BETWEEN_MAX: f64 = 0.3;
/// The same for parts shorter than three sampling intervals, which sensors blur.
const BETWEEN_MAX_FINE: f64 = 0.1;
/// Another rhythm this close to the clearest, and no multiple of it, is another loop's.
const OTHER_FROM: f64 = 0.6;
/// Two estimates of one period agree within this share.
const AGREE: f64 = 0.05;
/// What another sensor, or half of the window, must show of the height.
const HALF_FROM: f64 = 0.5;
const CONFIRM_HEIGHT_MIN: f64 = 0.15;
const CONFIRM_SIGNIFICANCE_MIN: f64 = 4.0;
/// No rate is known better, as a share.
const ERROR_MIN: f64 = 0.01;

/// One sampling instant, over all the job's GPUs on the node. What was not read is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Seconds since some beginning.
    pub at_s: f64,
    /// Power readings, summed, watts.
    pub power_w: Option<f32>,
    /// Energy since the instant before by the time since then, summed, watts.
    pub spent_w: Option<f32>,
    /// Busy share, mean over the GPUs, per cent: the GPUs' own, or the job's part where it is not
    /// alone.
    pub busy_percent: Option<f32>,
    /// Memory traffic share, per cent; `None` where the job is not alone.
    pub memory_percent: Option<f32>,
}

/// What was seen of a job in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSeries {
    series: Vec<Sample>,
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
enum Sensor {
    EnergySpent,
    Power,
    Busy,
    Memory,
}

/// A rhythm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Period {
    /// Seconds from one iteration to the next.
    pub period_s: f64,
    /// Half the width of its 90 % interval, as a share of it.
    pub error: f64,
    /// How alike the series is to itself a period later, 0 to 1.
    pub height: f64,
}

/// Why no period is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoPeriod {
    /// Too few samples.
    #[error("fewer than {SAMPLES_MIN} samples")]
    TooFew,
    /// Aliases cannot be told from the truth.
    #[error("the samples are too evenly spaced to publish_core an alias")]
    TooEven,
    /// Nothing swings.
    #[error("power does not swing")]
    Constant,
    /// Something swings, but not regularly.
    #[error("no period")]
    None,
    /// A rhythm, but too fast for the sampling.
    #[error("the period is faster than two samples")]
    TooFast,
    /// Several periods are about as likely.
    #[error("several periods are about as likely")]
    Ambiguous,
    /// Power has one that utilisation does not have.
    #[error("power and utilisation do not agree")]
    Unconfirmed,
    /// The halves of the window do not agree.
    #[error("the halves of the window do not agree")]
    Unsteady,
}

impl SampleSeries {
    /// Takes a sampling instant; those beyond [`SAMPLES_MAX`], and such as do not come after the
    /// last, are not kept.
    pub fn push(&mut self, sample: Sample) {
        let later = self.series.last().is_none_or(|last| sample.at_s > last.at_s);
        if self.series.len() < SAMPLES_MAX && later && sample.at_s.is_finite() {
            self.series.push(sample);
        }
    }

    /// What is kept, in order.
    #[must_use]
    pub fn series(&self) -> &[Sample] {
        &self.series
    }

    /// How many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The period of the job's loop. `shared`: somebody else is on its GPUs, so power shows both,
    /// and only the job's own share of the time can say which rhythm is its own.
    ///
    /// # Errors
    /// [`Refusal`] says why there is none, or why it cannot be told.
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
        // The first sensor that has a rhythm speaks for its kind, unless one before it has several.
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

    /// The middle one of the times between samples.
    fn interval(&self) -> f64 {
        let mut spacings: Vec<f64> =
            self.series.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect();
        spacings.sort_by(f64::total_cmp);
        spacings.get(spacings.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    /// How evenly the samples are spaced: 1 where each spacing is the interval or a multiple.
    fn evenness(&self, interval: f64) -> f64 {
        let turn = |pair: &[Sample]| {
            let angle = std::f64::consts::TAU * (pair[1].at_s - pair[0].at_s) / interval;
            (angle.cos(), angle.sin())
        };
        let n = (self.series.len() - 1) as f64;
        let sum = self.series.windows(2).map(turn).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        f64::hypot(sum.0, sum.1) / n
    }

    /// One reading over time, if most samples have it and it swings at all.
    fn channel(&self, sensor: Sensor) -> Option<Channel> {
        let mut channel = Channel::default();
        let mut before = None;
        for sample in &self.series {
            let (value, at) = match sensor {
                // A mean over the time since the instant before: it belongs into the middle.
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

/// The rhythm of one channel.
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
    // A part of the period that noise kept from standing out by itself.
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

/// Whether both halves of the window have the rhythm.
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

/// Whether a sensor of another kind has the rhythm, and none has another.
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

//! Synthetic training loops, and the readings of a GPU's sensors.

use wattle_common::rng::Stream;
use wattle_profiler::period_detection::{Sample, SampleSeries};

/// Resolution of the synthetic loops, seconds.
pub(crate) const FINE_S: f64 = 0.005;

/// Utilisation over an iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wave {
    /// Busy for this share of the iteration, else waiting.
    Pulse(f64),
    /// Two pulses of unequal height: forward and backward.
    Two,
    /// Smooth.
    Sine,
}

impl Wave {
    fn at(self, phase: f64) -> f64 {
        match self {
            Self::Pulse(share) => f64::from(u8::from(phase < share)),
            Self::Two if phase < 0.3 => 0.6,
            Self::Two if (0.4..0.9).contains(&phase) => 1.0,
            Self::Two => 0.0,
            Self::Sine => 0.5 - 0.5 * (std::f64::consts::TAU * phase).cos(),
        }
    }
}

/// A loop and its sampling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    /// Seconds of one iteration.
    pub(crate) period_s: f64,
    /// Waveform of one iteration.
    pub(crate) wave: Wave,
    /// Difference in power between waiting and computing, W.
    pub(crate) swing_w: f64,
    /// Deviation of the power reading, watts; a percentage's is a fiftieth of it.
    pub(crate) noise_w: f64,
    /// Deviation of one iteration's length, as a share.
    pub(crate) uneven: f64,
    /// Seconds over which the power reading is a mean.
    pub(crate) averaged_s: f64,
    /// Jitter of a sample either way, as a share of the interval.
    pub(crate) jitter: f64,
    /// Share of samples that are missing.
    pub(crate) missing: f64,
    /// An evaluation: start and duration in seconds.
    pub(crate) pause: Option<(f64, f64)>,
    /// Interval of the power sensor, in seconds, if it takes instants.
    pub(crate) instants_s: Option<f64>,
    /// Length of the window, seconds.
    pub(crate) window_s: f64,
}

/// Iterations of one second, low noise, for a minute.
pub(crate) const PLAIN: Loop = Loop {
    period_s: 1.0,
    wave: Wave::Pulse(0.7),
    swing_w: 80.0,
    noise_w: 5.0,
    uneven: 0.02,
    averaged_s: 0.0,
    jitter: 0.25,
    missing: 0.01,
    pause: None,
    instants_s: None,
    window_s: 60.0,
};

/// Utilisation over time, in steps of [`FINE_S`].
pub(crate) fn activity(of: &Loop, rng: &mut Stream) -> Vec<f64> {
    let count = ((of.window_s + 3.0) / FINE_S) as usize;
    let (mut from, mut length) = (-rng.unit() * of.period_s, of.period_s);
    let mut busy = Vec::with_capacity(count);
    for i in 0..count {
        let at = i as f64 * FINE_S;
        while at >= from + length {
            from += length;
            length = of.period_s * (1.0 + of.uneven * rng.normal()).max(0.2);
        }
        let paused = of.pause.is_some_and(|(after, long)| at >= after && at < after + long);
        busy.push(if paused { 0.3 } else { of.wave.at((at - from) / length) });
    }
    busy
}

/// Cumulative sums, from which means are computed.
fn sums(values: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for value in values {
        sums.push(sums[sums.len() - 1] + value);
    }
    sums
}

fn mean(sums: &[f64], from: f64, until: f64) -> f64 {
    let place = |at: f64| ((at / FINE_S) as usize).min(sums.len() - 2);
    let (from, until) = (place(from.max(0.0)), place(until) + 1);
    (sums[until] - sums[from]) / (until - from) as f64
}

/// The readings of a GPU's sensors for `busy`.
pub(crate) fn sampled(of: &Loop, busy: &[f64], rng: &mut Stream) -> SampleSeries {
    let sums = sums(busy);
    let mut series = SampleSeries::default();
    let mut last = 1.0;
    for i in 0..(of.window_s * 10.0) as u32 {
        let at = 1.0 + 0.1 * (f64::from(i) + of.jitter * (2.0 * rng.unit() - 1.0));
        if rng.unit() < of.missing || at <= last {
            continue;
        }
        let noise = of.noise_w * rng.normal();
        let watts = |share: f64| (120.0 + of.swing_w * share) as f32;
        // Utilisation: a mean over a sixth of a second, updated as often.
        let made = (at * 6.0).floor() / 6.0;
        let used = mean(&sums, made - 1.0 / 6.0, made);
        let percent =
            |of_all: f64, noise: f64| (of_all * used + noise).round().clamp(0.0, 100.0) as f32;
        let seen = |from: f64, until: f64| match of.instants_s {
            None => mean(&sums, from, until),
            Some(apart) => {
                let instant = |at: f64| (at / apart).floor() * apart;
                let (first, last) = (instant(from), instant(until));
                let count = ((last - first) / apart).round().max(0.0) as u32;
                let one =
                    |i: u32| mean(&sums, last - f64::from(i) * apart, last - f64::from(i) * apart);
                (0..=count).map(one).sum::<f64>() / f64::from(count + 1)
            }
        };
        series.push(Sample {
            at_s: at,
            power_w: Some(watts(seen(at - of.averaged_s, at)) + noise as f32),
            spent_w: Some(watts(seen(last, at)) + 0.5 * noise as f32),
            busy_percent: Some(percent(100.0, of.noise_w / 5.0 * rng.normal())),
            memory_percent: Some(percent(40.0, of.noise_w / 10.0 * rng.normal())),
        });
        last = at;
    }
    series
}

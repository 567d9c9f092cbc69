//! Selects the next probe of a job: the setting whose measurement gains most for its cost.
//!
//! Each candidate is evaluated hypothetically: a reading at its predicted value is added to the job's
//! windows, the models are fitted again, and the mean interval width over the axis is compared with
//! the current one. A reading at the predicted value moves no mean, so only the uncertainty changes.
//! The gain is divided by the cost: work lost while the job is slower, and extra energy per step.
//!
//! Caps and locked clocks come first, because they need no restart. Each is evaluated on its own
//! axis, since a reading under a cap is not informative of clocks. GPU counts follow, for elastic
//! jobs. The placer decides whether a probe is made.

use wattle_common::messages::{Estimate, Probe, SurfacePoint};
use wattle_common::observation::Observation;
use wattle_common::{Frequency, Power};

use crate::config::PredictorConfig;
use crate::job::Job;
use crate::model::cap::GpuSpec;
use crate::surface::{CAP_SHARES, Configuration, GPUS_PER_NODE, clock_axis};

/// Exclusive windows in the usual setting that precede a probe: they fix the level to which readings
/// under a cap are compared.
const WINDOWS_MIN: usize = 2;

/// Least expected reduction of the mean interval width, as a share: ordinary windows reduce it by
/// about a tenth.
const GAIN_MIN: f64 = 0.1;

/// Fixed cost of a probe, as a share of its duration.
const COST_MIN: f64 = 0.05;

/// Caps, or clocks, that differ by less than this share are equal.
const SAME: f64 = 0.03;

/// The GPU count to probe, from the scaling curves of ElasticFlow's models (ASPLOS'23): with one
/// reading at 16 GPUs their mean error falls from 8 to 6.5 %.
const GPUS_PROBED: u32 = 16;

/// A candidate with its expected gain and cost.
struct ScoredProbe {
    at: Configuration,
    gain: f64,
    cost_time: f64,
    score: f64,
}

/// The next probe of `job`, if one is worth its cost and within the energy budget. `predict` fits a
/// job and returns its predictions for some configurations.
#[must_use]
pub fn propose(
    config: &PredictorConfig,
    job: &Job,
    gpu: &GpuSpec,
    predict: impl Fn(&Job, &[Configuration]) -> Vec<SurfacePoint>,
) -> Option<Probe> {
    if !config.probe {
        return None;
    }
    let last = job.windows().last().filter(|window| window.is_exclusive())?;
    let in_shape =
        |w: &&Observation| w.is_exclusive() && (w.gpus, w.nodes) == (last.gpus, last.nodes);
    let windows: Vec<&Observation> = job.windows().iter().filter(in_shape).collect();
    let usual = usual(&windows, gpu)?;
    let is_usual = |w: &&&Observation| usual.is(EffectiveSetting::of(w, gpu));
    let level = *windows.iter().rev().find(is_usual)?;
    if windows.iter().filter(is_usual).count() < WINDOWS_MIN {
        return None;
    }
    let seconds = config.probe_ms as f64 / 1e3;
    let kwh = |cap_w: f64, gpus: u32| cap_w * f64::from(gpus) * seconds / 3.6e6;
    let past_probes = past_probes(job, gpu, usual);
    let probed_kwh: f64 = past_probes.iter().map(|(setting, gpus)| kwh(setting.cap_w, *gpus)).sum();
    let affordable = |at: &&&Configuration| {
        let most = at.cap.map_or(gpu.cap_default_w, Power::as_w);
        probed_kwh + kwh(most, last.gpus) <= config.probe_energy_wh_max as f64 / 1e3
    };
    let seen = |at: &Configuration| {
        let at = EffectiveSetting { cap_w: at.cap.map_or(usual.cap_w, Power::as_w), mhz: mhz(at) };
        windows.iter().any(|w| at.is(EffectiveSetting::of(w, gpu)))
    };
    let axes = [caps(level, usual, gpu), clocks(level, usual, gpu)];
    let sizes = sizes(job, level);
    let other_sizes: Vec<&Configuration> = sizes.iter().skip(1).collect();
    let opens: Vec<Vec<&Configuration>> = axes
        .iter()
        .map(|axis| {
            // Descending, below the usual setting.
            let open: Vec<&Configuration> = axis.lower.iter().filter(|at| !seen(at)).collect();
            // The lowest determines the curve's end, the middle one its bend.
            let ends = [open.last(), open.get(open.len() / 2)];
            let mut candidates: Vec<&Configuration> =
                ends.into_iter().flatten().filter(affordable).copied().collect();
            candidates.dedup();
            candidates
        })
        .collect();
    if other_sizes.is_empty() && opens.iter().all(Vec::is_empty) {
        return None;
    }
    // Predictions for all axes and the usual setting at once, since each fit is costly.
    let along = axes.iter().flat_map(|axis| &axis.all);
    let wanted: Vec<Configuration> = along.chain(&sizes).cloned().chain([at(level)]).collect();
    let mut now = predict(job, &wanted);
    let expected = now.pop()?;
    let baseline = Baseline { job, level, usual: &expected };
    let mut rest = now.as_slice();
    let mut probes = Vec::new();
    for (axis, candidates) in axes.iter().zip(&opens) {
        let (of_axis, others) = rest.split_at(axis.all.len().min(rest.len()));
        rest = others;
        probes.extend(baseline.best_of(&axis.all, of_axis, candidates, &predict));
    }
    let best = probes.into_iter().max_by(|a, b| a.score.total_cmp(&b.score));
    let best = best.or_else(|| baseline.best_of(&sizes, rest, &other_sizes, &predict))?;
    let other_size = best.at.gpus != last.gpus;
    let clock_mhz_max = best.at.clock_max.filter(|_| !other_size && usual.mhz > mhz(&best.at));
    // Only one setting changes.
    let cap_mw = best.at.cap.filter(|_| !other_size && clock_mhz_max.is_none());
    let what = match (cap_mw, clock_mhz_max) {
        (_, Some(clock)) => format!("{clock}"),
        (Some(cap), None) => format!("{} W", cap.as_w().round()),
        (None, None) => format!("{} GPUs", best.at.gpus),
    };
    Some(Probe {
        gpus: best.at.gpus,
        nodes: best.at.nodes,
        cap_mw,
        clock_mhz_max,
        duration_ms: config.probe_ms,
        gain: best.gain,
        cost_time: best.cost_time,
        reason: Some(format!(
            "a probe at {what} reduces interval widths by {:.0} % and costs {:.0} % of its time",
            100.0 * best.gain,
            100.0 * best.cost_time
        )),
    })
}

/// Cap and clock of a GPU as numbers: the default cap and an infinite clock where none is set.
#[derive(Clone, Copy, Debug)]
struct EffectiveSetting {
    cap_w: f64,
    mhz: f64,
}

impl EffectiveSetting {
    fn of(window: &Observation, gpu: &GpuSpec) -> Self {
        Self {
            cap_w: window.cap_w.unwrap_or(gpu.cap_default_w),
            mhz: window.clock_mhz_max.unwrap_or(f64::INFINITY),
        }
    }

    /// Whether both are the same setting.
    fn is(self, other: Self) -> bool {
        same(self.cap_w, other.cap_w) && same(self.mhz, other.mhz)
    }
}

/// One setting that varies while the other is constant.
struct Axis {
    /// The configurations over which the gain is computed.
    all: Vec<Configuration>,
    /// Those below the usual setting, descending.
    lower: Vec<Configuration>,
}

/// The caps of the axis, where the default cap is known.
fn caps(level: &Observation, usual: EffectiveSetting, gpu: &GpuSpec) -> Axis {
    if !gpu.cap_known {
        return Axis { all: Vec::new(), lower: Vec::new() };
    }
    let under =
        |watts: f64| Configuration { cap: Some(Power::from_w(watts.round() as u64)), ..at(level) };
    let shares = CAP_SHARES.iter().map(|share| under(share * gpu.cap_default_w));
    let all: Vec<_> = std::iter::once(under(gpu.cap_default_w)).chain(shares).collect();
    let below =
        |at: &&Configuration| at.cap.is_some_and(|cap| cap.as_w() < usual.cap_w * (1.0 - SAME));
    let lower = all.iter().filter(below).cloned().collect();
    Axis { all, lower }
}

/// The clocks of the axis, where the GPU's top clock is known. A clock that the job does not reach
/// (because of its cap or temperature) has no effect.
fn clocks(level: &Observation, usual: EffectiveSetting, gpu: &GpuSpec) -> Axis {
    let under = |clock_max: Option<Frequency>| Configuration { clock_max, ..at(level) };
    let all: Vec<_> = std::iter::once(None).chain(clock_axis(gpu)).map(under).collect();
    let reached = level.clock_mhz_mean.unwrap_or(f64::INFINITY).min(usual.mhz);
    let below = |at: &&Configuration| at.clock_max.is_some() && mhz(at) < reached * (1.0 - SAME);
    let lower = all.iter().filter(below).cloned().collect();
    Axis { all, lower }
}

/// The state with which candidates are compared.
struct Baseline<'a> {
    job: &'a Job,
    /// The newest window in the usual setting, and the prediction there.
    level: &'a Observation,
    usual: &'a SurfacePoint,
}

impl Baseline<'_> {
    /// The candidate with the largest gain for its cost, where one gains enough; `now` contains the
    /// predictions on the `axis`.
    fn best_of(
        &self,
        axis: &[Configuration],
        now: &[SurfacePoint],
        candidates: &[&Configuration],
        predict: &impl Fn(&Job, &[Configuration]) -> Vec<SurfacePoint>,
    ) -> Option<ScoredProbe> {
        let (level, usual) = (self.level, self.usual);
        let width_now = mean_width(now)?;
        let score = |candidate: &&Configuration| {
            let i = axis.iter().position(|at| at == *candidate)?;
            let expected = now.get(i)?;
            let mut known = self.job.clone();
            known.add(hypothetical(level, candidate, expected), usize::MAX);
            let width = mean_width(&predict(&known, axis))?;
            let gain = 1.0 - width / width_now;
            let speed = match (expected.steps_per_s, usual.steps_per_s) {
                (Some(there), Some(here)) if here.mean > 0.0 => there.mean / here.mean,
                _ => expected.relative_speed.mean / usual.relative_speed.mean.max(1e-6),
            };
            let cost_time = 1.0 - speed;
            let size = f64::from(candidate.gpus) / f64::from(level.gpus);
            let watts = size * expected.gpu_power_w.mean / usual.gpu_power_w.mean.max(1.0);
            let cost_energy = watts / speed.max(1e-6) - 1.0;
            let cost = cost_time.max(0.0) + cost_energy.max(0.0) + COST_MIN;
            let at = (**candidate).clone();
            (gain >= GAIN_MIN).then_some(ScoredProbe { at, gain, cost_time, score: gain / cost })
        };
        candidates.iter().filter_map(score).max_by(|a, b| a.score.total_cmp(&b.score))
    }
}

/// A reading of `expected` at `at`, with the noise of `level`.
fn hypothetical(level: &Observation, at: &Configuration, expected: &SurfacePoint) -> Observation {
    Observation {
        from_us: level.from_us + std::time::Duration::from_micros(1),
        gpus: at.gpus,
        nodes: at.nodes,
        cap_w: at.cap.map(Power::as_w),
        clock_mhz_max: at.clock_max.map(|clock| f64::from(clock.as_mhz())),
        clock_mhz_mean: None,
        rate: level.rate.and(expected.steps_per_s).map(|rate| rate.mean),
        gpu_power_w: Some(expected.gpu_power_w.mean),
        ..level.clone()
    }
}

/// The setting of a window, as a configuration.
fn at(window: &Observation) -> Configuration {
    Configuration {
        gpus: window.gpus,
        nodes: window.nodes,
        cap: window.cap_w.map(|w| Power::from_w(w.round() as u64)),
        clock_max: window.clock_mhz_max.map(|mhz| Frequency::from_mhz(mhz.round() as u32)),
        global_batch: None,
        neighbours: Vec::new(),
    }
}

/// The sizes to compare: the current one, and for an elastic job that ran on no other size one more.
fn sizes(job: &Job, level: &Observation) -> Vec<Configuration> {
    let mut out = vec![at(level)];
    let elastic = job.described && job.gpus.max > job.gpus.min;
    let ran_on_other_size = job.windows().iter().any(|w| w.gpus != level.gpus);
    if !elastic || ran_on_other_size {
        return out;
    }
    let size = job.gpus.max.min(GPUS_PROBED).max(job.gpus.min);
    if size != level.gpus {
        let nodes = size.div_ceil(GPUS_PER_NODE).max(1);
        out.push(Configuration { gpus: size, nodes, ..at(level) });
    }
    out
}

/// Mean width of the intervals of speed and power, as shares of their means; `None` without points.
fn mean_width(points: &[SurfacePoint]) -> Option<f64> {
    let share = |e: &Estimate| (e.high - e.low) / e.mean.max(1e-9);
    let of = |p: &SurfacePoint| {
        share(p.steps_per_s.as_ref().unwrap_or(&p.relative_speed)) + share(&p.gpu_power_w)
    };
    let sum: f64 = points.iter().map(of).sum();
    let width = sum / (2.0 * points.len() as f64);
    (width.is_finite() && width > 0.0).then_some(width)
}

/// The most frequent setting of `windows`; of two equally frequent ones the higher.
fn usual(windows: &[&Observation], gpu: &GpuSpec) -> Option<EffectiveSetting> {
    let settings: Vec<EffectiveSetting> =
        windows.iter().map(|w| EffectiveSetting::of(w, gpu)).collect();
    let count = |at: EffectiveSetting| settings.iter().filter(|other| at.is(**other)).count();
    let key = |at: &EffectiveSetting| (count(*at), at.cap_w, at.mhz);
    settings
        .iter()
        .copied()
        .max_by(|a, b| key(a).partial_cmp(&key(b)).expect("watts and clocks are numbers"))
}

/// Past probes: each distinct cap or clock below the usual one, with the number of GPUs.
fn past_probes(job: &Job, gpu: &GpuSpec, usual: EffectiveSetting) -> Vec<(EffectiveSetting, u32)> {
    let mut probes: Vec<(EffectiveSetting, u32)> = Vec::new();
    for window in job.windows().iter().filter(|w| w.is_exclusive()) {
        let setting = EffectiveSetting::of(window, gpu);
        let lower =
            setting.cap_w < usual.cap_w * (1.0 - SAME) || setting.mhz < usual.mhz * (1.0 - SAME);
        if lower && !probes.iter().any(|(other, _)| setting.is(*other)) {
            probes.push((setting, window.gpus));
        }
    }
    probes
}

/// The locked clock of a configuration, MHz; infinite without one.
fn mhz(at: &Configuration) -> f64 {
    at.clock_max.map_or(f64::INFINITY, |clock| f64::from(clock.as_mhz()))
}

fn same(a: f64, b: f64) -> bool {
    // Infinite clocks are equal.
    a.total_cmp(&b).is_eq() || (a / b - 1.0).abs() < SAME
}

#[cfg(test)]
mod tests;

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
mod tests {
    use super::*;
    use crate::Predictor;
    use wattle_common::id::{JobId, WorkloadId};
    use wattle_common::job::GpuRequest;
    use wattle_common::messages::{JobWindow, Surface};
    use wattle_common::{Frequency, Timestamp};
    use wattle_testkit as testkit;

    const NOW: Timestamp = Timestamp::from_s(10_000);

    fn job() -> JobId {
        JobId::new("a").unwrap()
    }

    /// A window of half a minute of a job that draws 240 W and is slowed as the cap bites.
    fn window(number: u64, cap_w: u64, colocated: bool) -> JobWindow {
        let (from, until) = (Timestamp::from_s(100 * number), Timestamp::from_s(100 * number + 30));
        let share = (cap_w as f64 / 240.0).min(1.0);
        JobWindow {
            workload: Some(testkit::workload("some-net")),
            cap_mw: Some(Power::from_w(cap_w)),
            clock_mhz_mean: Some(Frequency::from_mhz(1_300)),
            neighbours: if colocated { vec![testkit::neighbour("b", None)] } else { vec![] },
            steps: Some(300),
            steps_per_s: Some(10.0 * share.powf(0.4)),
            steps_per_s_error: Some(0.02),
            step: Some(300 * number),
            power_mw_gpus: Some(Power::from_w_f64(240.0 * share)),
            utilization_gpu_percent: Some(95.0),
            utilization_gpu_percent_job: Some(95.0),
            utilization_memory_percent: Some(40.0),
            memory_mib_max_job: Some(4_000),
            samples: 300,
            ..testkit::job_window(job().as_str(), from, until)
        }
    }

    /// As [`window`], under a lock: 0.8 of the clock takes 0.87 of the speed and 0.7 of the power.
    fn locked(number: u64, mhz: u32) -> JobWindow {
        let (share, clock) = (f64::from(mhz) / 1_300.0, Some(Frequency::from_mhz(mhz)));
        JobWindow {
            clock_mhz_max: clock,
            clock_mhz_mean: clock,
            steps_per_s: Some(10.0 * share.powf(0.6)),
            power_mw_gpus: Some(Power::from_w_f64(240.0 * share.powf(1.6))),
            ..window(number, 250, false)
        }
    }

    /// The window measured during `probe`.
    fn followed(number: u64, probe: &Probe) -> JobWindow {
        match (probe.cap_mw, probe.clock_mhz_max) {
            (Some(cap), None) => window(number, cap.as_mw() / 1_000, false),
            (None, Some(clock)) => locked(number, clock.as_mhz()),
            _ => panic!("{probe:?} changes more than one setting"),
        }
    }

    fn predictor(config: PredictorConfig) -> Predictor {
        let mut predictor = Predictor::new(config);
        let gpus = GpuRequest::exactly(1);
        let workload = WorkloadId::new("some-net").ok();
        predictor.describe(NOW, job(), workload, gpus, Some("v100"));
        predictor
    }

    fn after(predictor: &mut Predictor, windows: impl IntoIterator<Item = JobWindow>) -> Surface {
        for window in windows {
            predictor.learn(NOW, &window);
        }
        predictor.surface(NOW, &job()).unwrap()
    }

    /// Mean width over the axis of caps, and over that of clocks.
    fn widths(surface: &Surface) -> [f64; 2] {
        let exclusive = |p: &&SurfacePoint| p.neighbours.is_empty() && p.gpus == 1;
        [false, true].map(|clocks| {
            let on = |p: &&SurfacePoint| {
                if clocks { p.clock_mhz_max.is_some() } else { p.clock_mhz_max.is_none() }
            };
            let points = surface.points.iter().filter(exclusive).filter(on);
            mean_width(&points.cloned().collect::<Vec<_>>()).unwrap()
        })
    }

    #[test]
    fn probes_are_proposed_until_nothing_is_gained() {
        let mut predictor = predictor(PredictorConfig::shipped());
        let first = after(&mut predictor, [window(1, 250, false)]);
        assert_eq!(first.probe, None, "its level is not known yet");
        let mut surface = after(&mut predictor, [window(2, 250, false), window(3, 250, false)]);
        let wide = widths(&surface);
        let mut looks: [Vec<u64>; 2] = [vec![], vec![]];
        let mut number = 3;
        while let Some(probe) = surface.probe.clone() {
            assert!((probe.gpus, probe.nodes, probe.duration_ms) == (1, 1, 30_000), "{probe:?}");
            assert!((GAIN_MIN..1.0).contains(&probe.gain), "{probe:?}");
            assert!((0.0..1.0).contains(&probe.cost_time), "{probe:?}");
            number += 1;
            let window = followed(number, &probe);
            let (axis, at) = match probe.clock_mhz_max {
                None => (0, probe.cap_mw.unwrap().as_mw() / 1_000),
                Some(clock) => (1, u64::from(clock.as_mhz())),
            };
            assert!(at < [250, 1_300][axis] && !looks[axis].contains(&at), "{looks:?} and {at}");
            looks[axis].push(at);
            let before = widths(&surface)[axis];
            surface = after(&mut predictor, [window]);
            let fell = 1.0 - widths(&surface)[axis] / before;
            assert!(fell > 0.0, "expected gain {}, measured {fell}", probe.gain);
            assert!(looks.iter().all(|looks| looks.len() < 6), "probing does not end: {looks:?}");
        }
        assert!(looks.iter().all(|looks| !looks.is_empty()), "an axis was not probed: {looks:?}");
        let narrow = widths(&surface);
        for (narrow, wide) in narrow.iter().zip(wide) {
            assert!(*narrow < 0.8 * wide, "{narrow} from {wide}");
        }
    }

    /// The top clock is unknown, or not reached under the cap.
    #[test]
    fn clock_without_effect_is_not_probed() {
        let at = |clock: Option<u32>, window: JobWindow| JobWindow {
            clock_mhz_mean: clock.map(Frequency::from_mhz),
            ..window
        };
        // The job runs at `clock`, except during a probe.
        let looks = |predictor: &mut Predictor, clock: Option<u32>| {
            let known = (1..4).map(|number| at(clock, window(number, 250, false)));
            let mut surface = after(predictor, known);
            let mut looks = Vec::new();
            for number in 10.. {
                let Some(probe) = surface.probe.clone() else { break };
                assert!(number < 25, "probing does not end: {looks:?}");
                let locked = probe.clock_mhz_max.map(Frequency::as_mhz);
                looks.extend(locked);
                surface = after(predictor, [at(locked.or(clock), followed(number, &probe))]);
            }
            looks
        };
        let nothing = looks(&mut predictor(PredictorConfig::shipped()), None);
        assert_eq!(nothing, [0; 0], "no clock was ever read");
        let mut other = predictor(PredictorConfig::shipped());
        let fast = JobWindow { job: JobId::new("fast").unwrap(), ..window(1, 250, false) };
        after(&mut other, [fast]);
        let slow = looks(&mut other, Some(1_000));
        assert!(!slow.is_empty() && slow.iter().all(|mhz| *mhz < 970), "{slow:?}");
    }

    /// A clock locked by the site is no probe: proposed clocks lie below it.
    #[test]
    fn probes_lie_below_the_sites_clock() {
        let mut predictor = predictor(PredictorConfig::shipped());
        after(&mut predictor, [window(1, 250, false)]);
        let mut surface = after(&mut predictor, (2..6).map(|number| locked(number, 1_100)));
        for number in 10.. {
            let Some(probe) = surface.probe.clone() else { break };
            assert!(probe.clock_mhz_max.is_none_or(|c| c.as_mhz() < 1_070), "{probe:?}");
            assert_eq!(probe.clock_mhz_max.is_some(), probe.cap_mw.is_none(), "{probe:?}");
            let mut window = followed(number, &probe);
            window.clock_mhz_max = probe.clock_mhz_max.or(Some(Frequency::from_mhz(1_100)));
            surface = after(&mut predictor, [window]);
            assert!(number < 20, "probing does not end");
        }
    }

    #[test]
    fn no_probe_when_colocated_over_budget_or_disabled() {
        let known = || (1..4).map(|number| window(number, 250, false));
        let shipped = PredictorConfig::shipped;
        assert!(after(&mut predictor(shipped()), known()).probe.is_some());
        let colocated = known().chain([window(4, 250, true)]);
        assert_eq!(after(&mut predictor(shipped()), colocated).probe, None);
        let off = PredictorConfig { probe: false, ..shipped() };
        assert_eq!(after(&mut predictor(off), known()).probe, None);
        let poor = PredictorConfig { probe_energy_wh_max: 0, ..shipped() };
        assert_eq!(after(&mut predictor(poor), known()).probe, None);
    }

    /// A cap set by the site is no probe: proposed caps lie below it.
    #[test]
    fn probes_lie_below_the_sites_cap() {
        let mut predictor = predictor(PredictorConfig::shipped());
        after(&mut predictor, [window(1, 250, false)]);
        let surface = after(&mut predictor, (2..6).map(|number| window(number, 150, false)));
        let lower = |p: Probe| p.cap_mw.is_none_or(|cap| cap < Power::from_w(146));
        assert!(surface.probe.is_none_or(lower), "a probe above the cap of the site");
    }

    /// Once caps and clocks are known, an elastic job is probed on more GPUs.
    #[test]
    fn elastic_job_is_probed_on_more_gpus_last() {
        let mut predictor = Predictor::new(PredictorConfig::shipped());
        let gpus = GpuRequest { min: 1, max: 16 };
        let workload = WorkloadId::new("some-net").ok();
        predictor.describe(NOW, job(), workload, gpus, Some("v100"));
        let all = [250, 250, 250, 225, 200, 175, 150, 125, 100];
        let windows = (1..).zip(all).map(|(number, cap)| window(number, cap, false));
        let clocks = (10..).zip([1_170, 1_035, 900, 780]).map(|(number, mhz)| locked(number, mhz));
        let back = (20..24).map(|number| window(number, 250, false));
        let surface = after(&mut predictor, windows.chain(clocks).chain(back));
        let probe = surface.probe.expect("its scaling is unknown");
        assert_eq!((probe.gpus, probe.nodes), (16, 2), "{probe:?}");
        assert!(probe.cost_time < 0.0, "it runs faster there: {probe:?}");
    }
}

//! Which setting a job should be looked at in next, because it would teach the most for its cost.
//!
//! Each candidate is tried in thought: a reading at the value expected there is added to the job's
//! windows, the models are fitted again, and the mean width of the intervals over the axis is
//! compared with what it is now. A reading at the expected value moves no mean, so what changes is
//! only how sure the models are. The gain is set against what the look costs: the work lost while
//! the job runs slower, and the energy each step takes more.
//!
//! Caps come first: they cost a job no restart. GPU counts follow, for jobs that may change theirs.
//! Whether a proposal is followed is the placer's to say, who knows how long the job is and who
//! else needs the cards; nothing here orders anything.

use wattle_common::Power;
use wattle_common::messages::{Estimate, Probe, SurfacePoint};

use crate::config::PredictorConfig;
use crate::job::Job;
use crate::model::cap::Card;
use crate::observation::Observation;
use crate::surface::{CAP_SHARES, Configuration, GPUS_PER_NODE};

/// Windows alone in the usual setting before anything else is looked at: without a level, a reading
/// under a cap says little.
const WINDOWS_MIN: usize = 2;

/// A proposal must promise that the mean interval shrinks by this share: a tenth of an interval is
/// within what the next ordinary windows bring by themselves.
const GAIN_MIN: f64 = 0.1;

/// Cost of a look that loses no work at all, as a share of its duration: orders, and a surface that
/// is being learned while the job runs on.
const COST_MIN: f64 = 0.05;

/// Two caps that differ by less are one reading, as a share.
const SAME_CAP: f64 = 0.03;

/// The size to look at beside what was seen, from the scaling curves of ElasticFlow's models
/// (ASPLOS'23): with one reading at 16 GPUs their mean error falls from 8 to 6.5 %.
const SIZE: u32 = 16;

/// A candidate, with what it would teach and cost.
struct Thought {
    at: Configuration,
    gain: f64,
    cost_time: f64,
    score: f64,
}

/// What to look at next of `job`, if anything is worth its cost and the budget is not spent.
/// `believe` fits a job and says what it expects in each of some configurations.
#[must_use]
pub fn propose(
    config: &PredictorConfig,
    job: &Job,
    card: &Card,
    believe: impl Fn(&Job, &[Configuration]) -> Vec<SurfacePoint>,
) -> Option<Probe> {
    if !config.probe || !card.cap_known {
        return None;
    }
    let last = job.windows().last().filter(|window| window.alone())?;
    let usual_w = usual_cap(job, last, card)?;
    let in_shape = |w: &&Observation| w.alone() && (w.gpus, w.nodes) == (last.gpus, last.nodes);
    let is_usual = |w: &&Observation| same(cap_of(w, card), usual_w);
    let level = job.windows().iter().rev().filter(in_shape).find(is_usual)?;
    if job.windows().iter().filter(in_shape).filter(is_usual).count() < WINDOWS_MIN {
        return None;
    }
    let under = |cap: f64| Configuration {
        gpus: last.gpus,
        nodes: last.nodes,
        cap: Some(Power::from_w(cap.round() as u64)),
        clock_max: None,
        global_batch: None,
        neighbours: Vec::new(),
    };
    let mut axis = vec![under(card.cap_default_w)];
    axis.extend(CAP_SHARES.iter().map(|share| under(share * card.cap_default_w)));
    let seen: Vec<f64> = job.windows().iter().filter(in_shape).map(|w| cap_of(w, card)).collect();
    // From the highest to the lowest, all below the cap that stands.
    let open: Vec<&Configuration> = axis
        .iter()
        .filter(|at| watts(at) < usual_w * (1.0 - SAME_CAP))
        .filter(|at| !seen.iter().any(|cap| same(*cap, watts(at))))
        .collect();
    let seconds = config.probe_ms as f64 / 1e3;
    let probed_kwh = looked_at(job, card, usual_w, seconds);
    let affordable = |at: &&&Configuration| {
        let kwh = watts(at) * f64::from(last.gpus) * seconds / 3.6e6;
        probed_kwh + kwh <= config.probe_energy_wh_max as f64 / 1e3
    };
    // The lowest pins the curve's far end, the middle its bend.
    let ends = [open.last(), open.get(open.len() / 2)];
    let mut candidates: Vec<&Configuration> =
        ends.into_iter().flatten().filter(affordable).copied().collect();
    candidates.dedup();
    let sizes = sizes(job, level);
    let other_sizes: Vec<&Configuration> = sizes.iter().skip(1).collect();
    if candidates.is_empty() && other_sizes.is_empty() {
        return None;
    }
    // What is believed now, of both axes and the usual setting at once: each fit is dear.
    let wanted: Vec<Configuration> =
        axis.iter().chain(&sizes).cloned().chain([at(level)]).collect();
    let mut now = believe(job, &wanted);
    let usual = now.pop()?;
    let of_sizes = now.split_off(axis.len().min(now.len()));
    let look = Look { job, level, usual: &usual };
    let best = look.best_of(&axis, &now, &candidates, &believe);
    let best = best.or_else(|| look.best_of(&sizes, &of_sizes, &other_sizes, &believe))?;
    let what = match best.at.cap {
        Some(cap) if best.at.gpus == last.gpus => format!("{} W", cap.as_w().round()),
        _ => format!("{} GPUs", best.at.gpus),
    };
    Some(Probe {
        gpus: best.at.gpus,
        nodes: best.at.nodes,
        cap_mw: best.at.cap,
        clock_mhz_max: None,
        duration_ms: config.probe_ms,
        gain: best.gain,
        cost_time: best.cost_time,
        reason: Some(format!(
            "a look at {what} would narrow what is expected by {:.0} % for {:.0} % of its time",
            100.0 * best.gain,
            100.0 * best.cost_time
        )),
    })
}

/// What every candidate is compared with.
struct Look<'a> {
    job: &'a Job,
    /// The newest window in the usual setting, and what is expected there.
    level: &'a Observation,
    usual: &'a SurfacePoint,
}

impl Look<'_> {
    /// The candidate that teaches most for its cost, where one teaches enough; `now` is what is
    /// expected on the `axis`.
    fn best_of(
        &self,
        axis: &[Configuration],
        now: &[SurfacePoint],
        candidates: &[&Configuration],
        believe: &impl Fn(&Job, &[Configuration]) -> Vec<SurfacePoint>,
    ) -> Option<Thought> {
        let (level, usual) = (self.level, self.usual);
        let width_now = mean_width(now)?;
        let thought = |candidate: &&Configuration| {
            let i = axis.iter().position(|at| at == *candidate)?;
            let expected = now.get(i)?;
            let mut known = self.job.clone();
            known.add(in_thought(level, candidate, expected), usize::MAX);
            let width = mean_width(&believe(&known, axis))?;
            let gain = 1.0 - width / width_now;
            let speed = match (expected.steps_per_s, usual.steps_per_s) {
                (Some(there), Some(here)) if here.mean > 0.0 => there.mean / here.mean,
                _ => expected.relative_speed.mean / usual.relative_speed.mean.max(1e-6),
            };
            let cost_time = 1.0 - speed;
            let cards = f64::from(candidate.gpus) / f64::from(level.gpus);
            let watts = cards * expected.card_power_w.mean / usual.card_power_w.mean.max(1.0);
            let cost_energy = watts / speed.max(1e-6) - 1.0;
            let cost = cost_time.max(0.0) + cost_energy.max(0.0) + COST_MIN;
            let at = (**candidate).clone();
            (gain >= GAIN_MIN).then_some(Thought { at, gain, cost_time, score: gain / cost })
        };
        candidates.iter().filter_map(thought).max_by(|a, b| a.score.total_cmp(&b.score))
    }
}

/// A reading of `expected` at `at`, as noisy as `level` was.
fn in_thought(level: &Observation, at: &Configuration, expected: &SurfacePoint) -> Observation {
    Observation {
        from_us: level.from_us + std::time::Duration::from_micros(1),
        gpus: at.gpus,
        nodes: at.nodes,
        cap_w: at.cap.map(Power::as_w),
        clock_mhz_mean: None,
        rate: level.rate.and(expected.steps_per_s).map(|rate| rate.mean),
        card_power_w: Some(expected.card_power_w.mean),
        ..level.clone()
    }
}

/// The setting of a window, as a configuration.
fn at(window: &Observation) -> Configuration {
    Configuration {
        gpus: window.gpus,
        nodes: window.nodes,
        cap: window.cap_w.map(|w| Power::from_w(w.round() as u64)),
        clock_max: None,
        global_batch: None,
        neighbours: Vec::new(),
    }
}

/// The sizes an elastic job could be looked at in, what it runs on first; one more than that only
/// where it was seen on no other.
fn sizes(job: &Job, level: &Observation) -> Vec<Configuration> {
    let mut out = vec![at(level)];
    let elastic = job.described && job.gpus.max > job.gpus.min;
    let seen_elsewhere = job.windows().iter().any(|w| w.gpus != level.gpus);
    if !elastic || seen_elsewhere {
        return out;
    }
    let size = job.gpus.max.min(SIZE).max(job.gpus.min);
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
        share(p.steps_per_s.as_ref().unwrap_or(&p.relative_speed)) + share(&p.card_power_w)
    };
    let sum: f64 = points.iter().map(of).sum();
    let width = sum / (2.0 * points.len() as f64);
    (width.is_finite() && width > 0.0).then_some(width)
}

/// The cap under which the job usually runs in this shape: that of most of its windows, the higher
/// one of two.
fn usual_cap(job: &Job, last: &Observation, card: &Card) -> Option<f64> {
    let in_shape = |w: &&Observation| (w.gpus, w.nodes) == (last.gpus, last.nodes) && w.alone();
    let caps: Vec<f64> = job.windows().iter().filter(in_shape).map(|w| cap_of(w, card)).collect();
    let count = |cap: f64| caps.iter().filter(|other| same(**other, cap)).count();
    caps.iter()
        .copied()
        .max_by(|a, b| (count(*a), *a).partial_cmp(&(count(*b), *b)).expect("watts are finite"))
}

/// Energy of the looks there were: each cap below the usual one, once. kWh.
fn looked_at(job: &Job, card: &Card, usual_w: f64, seconds: f64) -> f64 {
    let mut caps: Vec<(f64, u32)> = Vec::new();
    for window in job.windows().iter().filter(|w| w.alone()) {
        let cap = cap_of(window, card);
        if cap < usual_w * (1.0 - SAME_CAP) && !caps.iter().any(|(other, _)| same(*other, cap)) {
            caps.push((cap, window.gpus));
        }
    }
    caps.iter().map(|(cap, gpus)| cap * f64::from(*gpus) * seconds / 3.6e6).sum()
}

fn cap_of(window: &Observation, card: &Card) -> f64 {
    window.cap_w.unwrap_or(card.cap_default_w)
}

fn watts(at: &Configuration) -> f64 {
    at.cap.map_or(f64::INFINITY, Power::as_w)
}

fn same(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < SAME_CAP
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Predictor;
    use wattle_common::id::{JobId, NodeId, WorkloadId};
    use wattle_common::job::GpuRequest;
    use wattle_common::messages::window::Neighbour;
    use wattle_common::messages::{JobWindow, Surface};
    use wattle_common::{Frequency, Timestamp};

    const NOW: Timestamp = Timestamp::from_s(10_000);

    fn job() -> JobId {
        JobId::new("a").unwrap()
    }

    /// A window of half a minute of a job that draws 240 W and is slowed as the cap bites.
    fn window(number: u64, cap_w: u64, beside: bool) -> JobWindow {
        let (from, until) = (Timestamp::from_s(100 * number), Timestamp::from_s(100 * number + 30));
        let share = (cap_w as f64 / 240.0).min(1.0);
        let neighbours = Neighbour { job: JobId::new("b").unwrap(), workload: None };
        JobWindow {
            job: job(),
            workload: Some(WorkloadId::new("some-net").unwrap()),
            node: NodeId::new("n0").unwrap(),
            gpu_kind: "v100".to_owned(),
            attempt: 1,
            from_us: from,
            until_us: until,
            gpus: vec![0],
            gpus_total: 1,
            nodes_total: 1,
            global_batch: None,
            cap_mw: Some(Power::from_w(cap_w)),
            clock_mhz_mean: Some(Frequency::from_mhz(1_300)),
            clock_mhz_max: None,
            neighbours: if beside { vec![neighbours] } else { vec![] },
            steps: Some(300),
            steps_per_s: Some(10.0 * share.powf(0.4)),
            steps_per_s_error: Some(0.02),
            steps_inferred: false,
            step: Some(300 * number),
            epoch: None,
            early: true,
            power_mw_cards: Some(Power::from_w_f64(240.0 * share)),
            power_mw_job: None,
            energy_mj_cards: None,
            utilization_gpu_percent: Some(95.0),
            utilization_gpu_percent_job: Some(95.0),
            utilization_memory_percent: Some(40.0),
            memory_mib_max_job: Some(4_000),
            samples: 300,
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

    fn under_caps(surface: &Surface) -> f64 {
        let points = surface.points.iter().filter(|p| p.neighbours.is_empty() && p.gpus == 1);
        mean_width(&points.cloned().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn looks_are_proposed_until_there_is_nothing_to_learn() {
        let mut predictor = predictor(PredictorConfig::shipped());
        let first = after(&mut predictor, [window(1, 250, false)]);
        assert_eq!(first.probe, None, "its level is not known yet");
        let mut surface = after(&mut predictor, [window(2, 250, false), window(3, 250, false)]);
        let wide = under_caps(&surface);
        let mut caps = Vec::new();
        let mut number = 3;
        while let Some(probe) = surface.probe.clone() {
            let cap = probe.cap_mw.unwrap();
            assert!((probe.gpus, probe.nodes, probe.duration_ms) == (1, 1, 30_000), "{probe:?}");
            assert!(cap < Power::from_w(250) && !caps.contains(&cap), "{caps:?} and {cap}");
            assert!((GAIN_MIN..1.0).contains(&probe.gain), "{probe:?}");
            assert!((0.0..1.0).contains(&probe.cost_time), "{probe:?}");
            caps.push(cap);
            number += 1;
            let watts = cap.as_mw() / 1_000;
            let before = under_caps(&surface);
            surface = after(&mut predictor, [window(number, watts, false)]);
            let fell = 1.0 - under_caps(&surface) / before;
            assert!(fell > 0.0, "it promised {} and taught {fell}", probe.gain);
            assert!(caps.len() < 6, "it never has enough: {caps:?}");
        }
        assert!(!caps.is_empty(), "a curve that nobody saw is worth a look");
        assert!(under_caps(&surface) < 0.8 * wide, "{} from {wide}", under_caps(&surface));
    }

    #[test]
    fn nothing_is_proposed_beside_others_or_beyond_the_budget_or_when_off() {
        let known = || (1..4).map(|number| window(number, 250, false));
        let shipped = PredictorConfig::shipped;
        assert!(after(&mut predictor(shipped()), known()).probe.is_some());
        let beside = known().chain([window(4, 250, true)]);
        assert_eq!(after(&mut predictor(shipped()), beside).probe, None);
        let off = PredictorConfig { probe: false, ..shipped() };
        assert_eq!(after(&mut predictor(off), known()).probe, None);
        let poor = PredictorConfig { probe_energy_wh_max: 0, ..shipped() };
        assert_eq!(after(&mut predictor(poor), known()).probe, None);
    }

    /// A site's own cap is no look, and nothing above it is proposed.
    #[test]
    fn below_a_sites_cap_there_is_still_something_to_look_at() {
        let mut predictor = predictor(PredictorConfig::shipped());
        after(&mut predictor, [window(1, 250, false)]);
        let surface = after(&mut predictor, (2..6).map(|number| window(number, 150, false)));
        let lower = surface.probe.is_none_or(|p| p.cap_mw.unwrap() < Power::from_w(146));
        assert!(lower, "what was ordered for all stands above a look");
    }

    /// A job that could have more GPUs is worth a look on more, once its caps are known.
    #[test]
    fn an_elastic_job_is_looked_at_on_more_gpus_at_last() {
        let mut predictor = Predictor::new(PredictorConfig::shipped());
        let gpus = GpuRequest { min: 1, max: 16 };
        let workload = WorkloadId::new("some-net").ok();
        predictor.describe(NOW, job(), workload, gpus, Some("v100"));
        let all = [250, 250, 250, 225, 200, 175, 150, 125, 100];
        let windows = (1..).zip(all).map(|(number, cap)| window(number, cap, false));
        let back = (20..24).map(|number| window(number, 250, false));
        let surface = after(&mut predictor, windows.chain(back));
        let probe = surface.probe.expect("nobody knows how it scales");
        assert_eq!((probe.gpus, probe.nodes), (16, 2), "{probe:?}");
        assert!(probe.cost_time < 0.0, "it runs faster there: {probe:?}");
    }
}

//! Probes of a simulated job whose curves are known.

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

//! GPUs that lack a reading: what is not measured is absent everywhere, and never zero.

use std::time::Duration;

use wattle_common::messages::{JobSummary, LedgerEntry, Meter, UnknownCause};
use wattle_common::{AdmissionId, Energy, Power};
use wattle_profiler::Note;

use super::node::{Node, id};

/// The GPU supports neither power nor energy readings from now on.
fn lose_meter(node: &mut Node, gpu: usize) {
    let reading = &mut node.driver.gpus[gpu].reading;
    (reading.power, reading.energy_total, reading.has_no_meter) = (None, None, true);
}

fn of<'a>(node: &'a Node, job: &str) -> &'a JobSummary {
    let jobs = &node.summaries.last().unwrap().jobs;
    jobs.iter().find(|summary| summary.job == id(job)).unwrap()
}

/// The complete entries after the first.
fn later(node: &Node) -> impl Iterator<Item = &LedgerEntry> {
    node.ledger.values().skip(1)
}

#[test]
fn a_gpu_without_a_meter_has_no_energy_and_names_its_jobs() {
    let mut node = Node::new(2);
    lose_meter(&mut node, 0);
    node.place("a", 100, &[0]);
    node.place("b", 200, &[1]);
    node.place("c", 300, &[0, 1]);
    node.draws[1] = Power::from_w(200);
    node.run(170, &[("a", 5)]);
    assert!(later(&node).count() > 0);
    for entry in later(&node) {
        assert_eq!(entry.energy_mj_gpus[0], None, "no reading is no zero");
        assert!(entry.energy_mj_gpus[1].is_some());
        let attributed: Vec<&str> = entry.jobs.iter().map(|part| part.job.as_str()).collect();
        assert_eq!(attributed, ["b", "c"]);
        let [unknown] = entry.unknown.as_slice() else { panic!("{:?}", entry.unknown) };
        assert_eq!(
            (unknown.gpu, unknown.cause, unknown.unmeasured),
            (0, UnknownCause::NoMeter, true)
        );
        assert_eq!(unknown.jobs, [id("a"), id("c")]);
        let length = entry.until_us.since(entry.from_us).as_millis() as u64;
        let unmetered = entry.unmetered_ms();
        let times = unmetered.iter().map(|((job, _), ms)| (job.as_str(), *ms)).collect::<Vec<_>>();
        assert_eq!(times, [("a", length), ("c", length)]);
    }
    let last = node.summaries.last().unwrap();
    assert_eq!((last.gpus[0].meter, last.gpus[0].energy_mj_total), (Some(Meter::None), None));
    assert_eq!(last.gpus[1].meter, Some(Meter::Counter));
    let [a, b, c] = ["a", "b", "c"].map(|job| of(&node, job));
    assert_eq!((a.energy_mj_open, a.power_mw_mean), (None, None));
    assert!(a.unmetered_ms_open > 0 && c.unmetered_ms_open > 0);
    assert_eq!(b.unmetered_ms_open, 0);
    assert!(b.power_mw_mean.is_some() && c.energy_mj_open.is_some());
    assert_eq!(c.power_mw_mean, None, "the power of one of two GPUs is not the job's");
    let windows: Vec<_> = node.of("a").collect();
    assert!(!windows.is_empty());
    assert!(windows.iter().all(|window| window.power_mw_job.is_none()));
    assert_eq!(node.notes, [Note::NoMeter(0)], "one line");
}

#[test]
fn what_is_measured_and_what_is_not_names_the_submission() {
    let mut node = Node::new(2);
    lose_meter(&mut node, 0);
    let mut submissions = Vec::new();
    for pid in [100, 101] {
        node.place("a", pid, &[0, 1]);
        submissions.push(node.admissions[&id("a")].clone());
        node.run(90, &[]);
        node.remove("a");
        // Entries end at 12, 72, 132 and 192 s.
        node.run(10, &[]);
    }
    let seen = |of: &AdmissionId| {
        let times = node.ledger.values().flat_map(LedgerEntry::unmetered_ms);
        let times: u64 = times.filter(|((_, own), _)| *own == Some(of)).map(|(_, ms)| ms).sum();
        let energy = node.ledger.values().flat_map(|entry| &entry.jobs);
        let energy: Energy = energy
            .filter(|part| part.admission.as_ref() == Some(of))
            .map(|part| part.energy_mj)
            .sum();
        let windows = node.windows.iter().filter(|window| window.admission.as_ref() == Some(of));
        (times, energy > Energy::ZERO, windows.count() > 0)
    };
    for of in &submissions {
        let (times, has_energy, has_windows) = seen(of);
        assert!(
            (60_000..=90_000).contains(&times),
            "{of}: {times} ms of its 90 s, some of them open"
        );
        assert!(has_energy && has_windows, "{of}");
    }
    let open: Vec<_> =
        node.summaries.last().unwrap().jobs.iter().map(|job| &job.admission).collect();
    assert!(open.iter().all(|of| **of == submissions.last().cloned()), "{open:?}");
}

#[test]
fn readings_that_end_while_the_profiler_runs_are_not_late() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    node.run(20, &[]);
    // First the power, then the counter.
    node.driver.gpus[0].reading.power = None;
    node.run(20, &[]);
    lose_meter(&mut node, 0);
    node.run(180, &[]);
    let causes: Vec<UnknownCause> =
        later(&node).flat_map(|entry| &entry.unknown).map(|unknown| unknown.cause).collect();
    assert!(!causes.is_empty());
    assert!(causes.iter().all(|cause| *cause == UnknownCause::NoMeter), "{causes:?}");
    let measured = of(&node, "a").energy_mj_open;
    assert_eq!(measured, None, "nothing in the open interval");
    // A newer driver supports the readings again.
    let reading = &mut node.driver.gpus[0].reading;
    (reading.energy_total, reading.has_no_meter) = (Some(Energy::from_j(7)), false);
    node.run(130, &[]);
    let newest = node.ledger.values().last().unwrap();
    assert!(newest.energy_mj_gpus[0].is_some() && newest.unknown.is_empty(), "{newest:?}");
}

#[test]
fn the_counter_of_a_module_is_not_the_energy_of_its_gpu() {
    let mut node = Node::new(1);
    // The GPU draws 300 W of the module's 500 W.
    node.draws[0] = Power::from_w(300);
    let reading = &mut node.driver.gpus[0].reading;
    (reading.energy_total, reading.energy_module) = (None, Some(Energy::from_j(1_000)));
    node.place("a", 100, &[0]);
    for _ in 0..1_300 {
        if let Some(total) = &mut node.driver.gpus[0].reading.energy_module {
            *total += Power::from_w(500).over(Duration::from_millis(100));
        }
        node.tick();
    }
    let entry = later(&node).next().unwrap();
    let span = entry.until_us.since(entry.from_us);
    assert_eq!(entry.energy_mj_gpus[0], Some(Power::from_w(300).over(span)));
    assert_eq!(node.summaries.last().unwrap().gpus[0].meter, Some(Meter::Power));
    assert_eq!(node.notes, [Note::MeteredByPower(0)], "the source is stated");
}

#[test]
fn a_step_shorter_than_the_mean_of_power_is_seen_at_instants() {
    let rate = |instants: bool| {
        let mut node = Node::new(1);
        node.driver.gpus[0].reading.energy_total = None;
        node.draws[0] = Power::from_w(200);
        node.place("a", 100, &[0]);
        let mut rng = wattle_common::rng::Stream::new(3, "instants");
        for _ in 0..3_000 {
            // Iterations of 0.7 s, computing for 0.4 s of it; the mean over a second is constant.
            let span = Duration::from_millis(75 + (rng.unit() * 50.0) as u64);
            let at = (node.now + span).as_us() as f64 / 1e6;
            let computes = at % 0.7 < 0.4;
            let watts = if computes { 260 } else { 120 };
            node.driver.gpus[0].reading.power_instant = instants.then(|| Power::from_w(watts));
            node.processes.insert(0, vec![(100, if computes { 95 } else { 5 })]);
            node.sampled(span);
        }
        let inferred = node.of("a").filter(|window| window.steps_inferred);
        inferred.filter_map(|window| window.steps_per_s).collect::<Vec<_>>()
    };
    assert_eq!(rate(false), [0.0; 0]);
    let rates = rate(true);
    assert!(!rates.is_empty());
    assert!(rates.iter().all(|rate| (rate - 1.0 / 0.7).abs() < 0.05), "{rates:?}");
}

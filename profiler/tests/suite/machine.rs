//! The profiler's machine on a node in memory: windows, ledger, progress and faults.

mod compared;
mod histories;
mod lacking;
mod node;

use std::time::Duration;

use node::{Node, id};
use wattle_common::messages::{JobWindow, LedgerEntry};
use wattle_common::units::Energy;
use wattle_common::{Machine, Power, Timestamp};
use wattle_gpu::fake::FaultMode;
use wattle_profiler::Event;

#[test]
fn an_exclusive_job_is_measured() {
    let mut node = Node::new(2);
    node.run(5, &[]);
    node.draws[0] = Power::from_w(250);
    node.place("a", 100, &[0]);
    node.run(120, &[("a", 20)]);
    let windows: Vec<&JobWindow> = node.of("a").collect();
    assert!(windows.len() >= 4, "{}", windows.len());
    let window = windows[1];
    assert_eq!(window.gpu_type, "v100");
    assert_eq!(window.until_us.since(window.from_us), Duration::from_secs(15));
    assert_eq!(window.power_mw_gpus, Some(Power::from_w(250)));
    assert_eq!(window.power_mw_job, Some(Power::from_w(250)), "an exclusive job gets all energy");
    assert_eq!(window.energy_mj_gpus, Some(Energy::from_j(250 * 15)));
    assert!((window.steps_per_s.unwrap() - 20.0).abs() < 0.01, "{:?}", window.steps_per_s);
    assert!(window.steps_per_s_error.unwrap() < 0.02);
    assert_eq!(window.utilization_gpu_percent_job, Some(50.0));
    assert_eq!(window.workload.as_ref().unwrap().as_str(), "resnet50");
    assert_eq!((window.gpus_total, window.nodes_total), (1, 1));
    assert!(window.early);
    // The energy of an idle GPU belongs to no job.
    let entry = node.ledger.values().next().unwrap();
    assert_eq!(entry.jobs.len(), 1);
    assert!(entry.energy_mj_gpus[1].is_some());
}

#[test]
fn the_energy_of_two_tenants_is_split() {
    let mut node = Node::new(1);
    node.run(3, &[]);
    node.draws[0] = Power::from_w(240);
    node.place("a", 100, &[0]);
    node.place("b", 200, &[0]);
    node.processes.insert(0, vec![(100, 60), (200, 20)]);
    node.run(40, &[("a", 10), ("b", 5)]);
    let (a, b) = (node.of("a").next().unwrap(), node.of("b").next().unwrap());
    // 240 W, 40 of them idle: 200 by 60 to 20, and 20 each.
    assert_eq!(a.power_mw_job, Some(Power::from_w(170)));
    assert_eq!(b.power_mw_job, Some(Power::from_w(70)));
    assert_eq!(a.power_mw_gpus, Some(Power::from_w(240)));
    assert_eq!(a.neighbours[0].job, id("b"));
    assert_eq!(b.neighbours[0].job, id("a"));
    assert_eq!(a.utilization_gpu_percent_job, Some(60.0));
    let last = node.summaries.last().unwrap();
    assert_eq!(last.gpus[0].jobs, [id("a"), id("b")]);
    assert_eq!(last.observed_generation, node.launches, "the report that names both");
    let powers: Vec<_> =
        last.jobs.iter().map(|job| (job.job.clone(), job.power_mw_mean.unwrap())).collect();
    assert_eq!(powers, [(id("a"), Power::from_w(170)), (id("b"), Power::from_w(70))]);
    // The open interval of the ledger, from its start to the summary.
    let open = last.at_us.since(last.ledger_from_us.unwrap()).as_secs_f64();
    let a = last.jobs[0].energy_mj_open.unwrap().as_j();
    assert!(a > 0.0 && a <= 170.0 * open, "{a} J in {open} s");
}

#[test]
fn the_power_of_a_job_does_not_depend_on_when_a_summary_falls_between_late_readings() {
    let mut node = Node::new(1);
    node.draws[0] = Power::from_w(240);
    node.place("a", 100, &[0]);
    // Readings are late by up to two seconds, summaries are on time.
    for span_ms in [100, 900, 300, 1_900, 150, 600, 1_400, 50].repeat(4) {
        let read_at = node.now + Duration::from_millis(span_ms);
        while let Some((due, _)) = node.machine.next_wake().filter(|(due, _)| *due < read_at) {
            let mut out = Vec::new();
            node.machine.wake(due, &mut out);
            node.take(out);
        }
        node.sampled(Duration::from_millis(span_ms));
    }
    let powers = node.summaries.iter().flat_map(|summary| &summary.jobs);
    let powers: Vec<_> = powers.filter_map(|job| job.power_mw_mean).collect();
    assert!(powers.len() > 10, "{powers:?}");
    assert!(powers.iter().all(|power| *power == Power::from_w(240)), "{powers:?}");
}

#[test]
fn the_end_of_an_early_epoch_closes_a_window() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    // Epochs of 1000 steps at 100 steps per second: one in 10 s, shorter than an early window.
    node.run(11, &[]);
    node.now = Timestamp::from_s(2_000);
    let first = node.windows.len();
    for second in 0..40u64 {
        for _ in 0..10 {
            node.tick();
        }
        node.line(&format!("job=a step={} steps_per_epoch=1000", (second + 1) * 100));
    }
    let lengths: Vec<u64> =
        node.windows[first..].iter().map(|w| w.until_us.since(w.from_us).as_secs()).collect();
    assert!(lengths.contains(&10), "{lengths:?}");
    // Each epoch is published at once.
    let epochs: Vec<Option<u32>> = node.progress.iter().map(|p| p.epoch).collect();
    for epoch in 1..=4 {
        assert!(epochs.contains(&Some(epoch)), "{epochs:?}");
    }
    let late = node.progress.last().unwrap();
    assert!((late.steps_per_s.unwrap() - 100.0).abs() < 1.0);
}

#[test]
fn progress_of_other_processes_is_ignored() {
    let mut node = Node::new(2);
    // Before the launcher's report, a process of another job claims progress.
    node.line_from(200, "job=a step=1000000");
    node.place("a", 100, &[0]);
    node.place("b", 200, &[1]);
    node.line_from(200, "job=a step=2000000");
    assert_eq!(node.progress, [], "{:?}", node.progress);
    node.line_from(100, "job=a step=7");
    node.line_from(200, "job=b step=8");
    let steps: Vec<(&str, u64)> = node.progress.iter().map(|p| (p.job.as_str(), p.step)).collect();
    assert_eq!(steps, [("a", 7), ("b", 8)]);
}

/// A job that Slurm places knows its number only.
#[test]
fn a_job_may_shorten_its_own_id() {
    let mut node = Node::new(2);
    node.line_from(300, "job=slurm-42 step=1000");
    node.line_from(100, "job=slurm-42 step=3");
    node.place("slurm-42-67a0", 100, &[0]);
    node.place("slurm-4-67a1", 200, &[1]);
    node.line_from(100, "job=slurm-42 step=7");
    node.line_from(200, "job=slurm-42 step=2000");
    node.line_from(200, "job=slurm step=2000");
    let steps: Vec<(&str, u64)> = node.progress.iter().map(|p| (p.job.as_str(), p.step)).collect();
    assert_eq!(steps, [("slurm-42-67a0", 7)]);
    // The line before the launcher's report counts too.
    let mut node = Node::new(1);
    node.line_from(100, "job=slurm-42 step=30 steps_total=90");
    node.place("slurm-42-67a0", 100, &[0]);
    node.line_from(100, "job=slurm-42 step=31");
    let progress = node.progress.last().unwrap();
    assert_eq!((progress.step, progress.steps_total), (31, Some(90)));
}

#[test]
fn the_rate_of_a_job_without_reports_is_detected() {
    let mut node = Node::new(2);
    node.place("silent", 100, &[0]);
    node.place("speaks", 200, &[1]);
    let mut rng = wattle_common::rng::Stream::new(3, "instants");
    // Sampled with the jitter of the service. Both work 0.7 of each 0.9 s.
    let begin = node.now;
    for tick in 1..=1_200_u64 {
        let at = begin + Duration::from_micros(100_000 * tick + rng.below(50_000));
        let works = (at.since(begin).as_secs_f64() / 0.9).fract() < 0.75;
        node.draws = vec![Power::from_w(if works { 240 } else { 90 }); 2];
        let busy = if works { 95 } else { 5 };
        node.processes.insert(0, vec![(100, busy)]);
        node.processes.insert(1, vec![(200, busy)]);
        node.sampled(at.since(node.now));
        if tick % 10 == 0 {
            node.line(&format!("job=speaks step={} global_batch=256", tick / 3));
        }
    }
    let silent: Vec<&JobWindow> = node.of("silent").collect();
    assert!(silent.len() >= 4, "{}", silent.len());
    for window in silent {
        assert!(window.steps_inferred);
        let rate = window.steps_per_s.unwrap();
        assert!((rate * 0.9 - 1.0).abs() < 0.02, "{rate}");
        assert!((0.005..0.1).contains(&window.steps_per_s_error.unwrap()));
        assert_eq!((window.steps, window.step, window.global_batch), (None, None, None));
    }
    // From its first report on, the reported rate counts.
    let spoken = node.of("speaks").last().unwrap();
    assert!(!spoken.steps_inferred);
    assert!((spoken.steps_per_s.unwrap() - 3.33).abs() < 0.1);
    assert_eq!(spoken.global_batch, Some(256));
}

#[test]
fn a_settled_job_has_long_windows() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    node.run(400, &[("a", 50)]);
    let last = node.of("a").last().unwrap();
    assert!(!last.early);
    assert_eq!(last.until_us.since(last.from_us), Duration::from_secs(60));
}

#[test]
fn missing_readings_stay_missing() {
    let mut node = Node::new(1);
    let reading = &mut node.driver.gpus[0].reading;
    (reading.energy_total, reading.clock, reading.cap) = (None, None, None);
    node.place("a", 100, &[0]);
    node.run(61, &[]);
    let window = node.of("a").next().unwrap();
    assert_eq!((window.clock_mhz_mean, window.cap_mw, window.steps_per_s), (None, None, None));
    assert_eq!(window.utilization_memory_percent, None);
    // No counter, but power: integrated, exactly.
    let span = window.until_us.since(window.from_us);
    assert_eq!(window.energy_mj_gpus, Some(Power::from_w(40).over(span)));
    let sample = &node.batches[0].samples[0];
    assert_eq!((sample.energy_mj, sample.clock_mhz, sample.cap_mw), (None, None, None));
}

#[test]
fn one_lost_gpu_does_not_affect_the_others() {
    let mut node = Node::new(2);
    node.place("a", 100, &[0]);
    node.place("b", 200, &[1]);
    node.run(20, &[]);
    node.driver.gpus[0].fault = FaultMode::Lost;
    let (a, b) = (node.of("a").count(), node.of("b").count());
    node.run(40, &[]);
    let summary = node.summaries.last().unwrap();
    assert!(summary.gpus[0].error.as_ref().unwrap().contains("lost"));
    assert_eq!(summary.gpus[0].power_mw_mean, None);
    assert_eq!(summary.gpus[1].error, None);
    assert_eq!(summary.readings_failed, 10);
    // Its window was closed at the loss, and no other was opened.
    assert_eq!(node.of("a").count(), a + usize::from(node.of("a").count() > a));
    assert!(node.of("b").count() > b);
    node.driver.gpus[0].fault = FaultMode::None;
    let until = node.now;
    node.run(40, &[]);
    assert!(node.of("a").any(|window| window.from_us > until));
    assert_eq!(node.summaries.last().unwrap().gpus[0].error, None);
}

#[test]
fn a_missing_driver_is_logged_and_survived() {
    let mut node = Node::new(2);
    node.run(2, &[]);
    node.event(Event::DriverFailed("no NVIDIA driver".into()));
    node.now = node.now + Duration::from_secs(2);
    let mut out = Vec::new();
    node.machine.wake(node.now, &mut out);
    node.take(out);
    let summary = node.summaries.last().unwrap();
    assert!(summary.gpus.iter().all(|gpu| gpu.error.is_some()), "{summary:?}");
    node.run(2, &[]);
    assert!(node.summaries.last().unwrap().gpus.iter().all(|gpu| gpu.error.is_none()));
}

#[test]
fn an_absent_bus_causes_one_long_entry() {
    let mut node = Node::new(1);
    node.draws[0] = Power::from_w(100);
    node.bus = false;
    node.run(600, &[]);
    assert!(node.ledger.is_empty());
    node.bus = true;
    node.run(130, &[]);
    let entries: Vec<&LedgerEntry> = node.ledger.values().collect();
    assert!(entries.windows(2).all(|pair| pair[0].until_us == pair[1].from_us), "no gap");
    assert!(entries.len() <= 4, "{}", entries.len());
    let total: Energy = entries.iter().map(|e| e.energy_mj_gpus[0].unwrap()).sum();
    let span = entries.last().unwrap().until_us.since(entries[0].from_us);
    assert_eq!(total, Power::from_w(100).over(span));
    let host: Energy = entries.iter().map(|e| e.energy_mj_host).sum();
    assert_eq!(host, Power::from_w(200).over(span));
}

#[test]
fn invented_jobs_fill_nothing() {
    let mut node = Node::new(1);
    for i in 0..10_000 {
        node.line(&format!("job=x{i} step={i}"));
    }
    node.line("job=a step=5");
    node.place("a", 100, &[0]);
    node.run(2, &[]);
    assert!(node.progress.is_empty(), "nothing is published of jobs that do not run here");
}

//! The twin: the baseline's schedule of the same jobs, with their measured work.
#![allow(clippy::float_cmp, reason = "exact figures are meant")]

use std::sync::Arc;
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::job::GpuSetting;
use wattle_common::messages::{SurfacePoint, TwinOpen, TwinStatus, TwinSums};
use wattle_common::{Frequency, Timestamp};
use wattle_placer::twin::{Departure, RecordedJob, Records, Twin};
use wattle_placer::{GpuSet, JobFacts, JobKey, NodeKey, Wakefulness};
use wattle_testkit::{exactly, point, surface};

use crate::policies::helpers::{arrive, cluster, facts, node, report};
use crate::support::Site;

/// A lower clock, at which the speed is 0.85 and a GPU draws 130 W in place of 200 W.
const SLOW: GpuSetting =
    GpuSetting { cap_mw: None, clock_mhz_max: Some(Frequency::from_mhz(1_080)) };

/// A cluster of one node with its twin, which follows every minute.
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) twin: Twin,
}

impl World {
    pub(crate) fn new(gpus: u32) -> Self {
        Self::of(&[gpus])
    }

    fn of(sizes: &[u32]) -> Self {
        let mut site = cluster(sizes);
        site.pass(Duration::from_secs(86_400));
        let mut twin = Twin::new(Baseline::Fifo, Arc::default(), site.now());
        twin.advance(&site.state);
        Self { site, twin }
    }

    fn submit(&mut self, name: &str) -> JobKey {
        self.submit_of(name, 1, Some(0))
    }

    pub(crate) fn submit_of(&mut self, name: &str, gpus: u32, class: Option<usize>) -> JobKey {
        let facts = JobFacts { user: Some("ada".into()), ..facts(name, gpus) };
        self.submit_job(facts, class)
    }

    pub(crate) fn submit_job(&mut self, facts: JobFacts, class: Option<usize>) -> JobKey {
        let now = self.site.now();
        let facts = JobFacts { submitted_at: now, ..facts };
        self.twin.submitted(&facts, now);
        arrive(&mut self.site, facts, class)
    }

    pub(crate) fn start(&mut self, key: JobKey, gpu: u32, setting: GpuSetting) {
        self.site.job_placed(key, GpuSet::on(NodeKey::at(0), 1 << gpu), setting, false);
    }

    pub(crate) fn pass(&mut self, minutes: u64) {
        for _ in 0..minutes {
            self.site.pass(Duration::from_secs(60));
            self.twin.advance(&self.site.state);
        }
    }

    /// A job leaves after this many steps, which its ledger entries say took this energy.
    pub(crate) fn leave(&mut self, key: JobKey, steps: u64, energy_j: f64, departure: Departure) {
        report(&mut self.site, key, steps, steps);
        let id = self.site.job(key).unwrap().facts.id.clone();
        self.twin.metered(&id, energy_j, 0.0, false);
        self.twin.departed(&self.site.state, &id, departure);
        self.site.job_ended(key);
    }

    fn total(&self) -> TwinSums {
        self.twin.sums().total()
    }
}

#[test]
fn a_run_time_that_becomes_known_late_corrects_the_queue() {
    let mut world = World::new(1);
    let first = world.submit("first");
    let second = world.submit("second");
    world.start(first, 0, SLOW);
    // 600 s at the default setting, of unknown length: 706 s at the lower clock.
    world.pass(12);
    world.leave(first, 600, 720.0 * 130.0, Departure::Completed);
    world.start(second, 0, GpuSetting::DEFAULT);
    world.pass(5);
    world.leave(second, 300, 300.0 * 200.0, Departure::Completed);
    world.pass(10);
    let sums = world.total();
    assert_eq!((sums.jobs, sums.compared), (2, 2));
    assert_eq!((sums.completion_s, sums.wait_s), (720.0 + 1_020.0, 720.0));
    // In the twin the second job starts at 600 s, which has passed when that becomes known.
    assert_eq!((sums.completion_s_twin, sums.wait_s_twin), (600.0 + 900.0, 600.0));
    assert!((sums.later().unwrap() - 240.0 / 1_500.0).abs() < 1e-9);
    // Above the 40 W of an idle GPU.
    let saved_j = 900.0 * 160.0 - (720.0 * 90.0 + 300.0 * 160.0);
    assert!((sums.jobs_saved_j() - saved_j).abs() < 1.0, "{sums:?}");
}

#[test]
fn a_job_whose_estimate_was_too_short_returns_to_the_schedule() {
    let mut world = World::new(1);
    let first = world.submit("first");
    let second = world.submit("second");
    // Without any known length the twin ends the first job after an hour; here it waits longer.
    world.pass(70);
    assert_eq!(world.twin.presence(), (0, 1), "the second job runs");
    world.start(first, 0, GpuSetting::DEFAULT);
    let length_s = 60 * 3_600;
    report(&mut world.site, first, 1, length_s);
    world.pass(10);
    assert_eq!(world.twin.presence(), (1, 1), "the second job waits");
    world.pass(60 * 60 - 10);
    world.leave(first, length_s, 0.0, Departure::Completed);
    world.start(second, 0, GpuSetting::DEFAULT);
    world.pass(5);
    world.leave(second, 300, 0.0, Departure::Completed);
    let sums = world.twin.completed().total();
    let length_s = length_s as f64;
    assert_eq!((sums.jobs, sums.wait_s_twin), (2, length_s));
    assert_eq!(sums.completion_s_twin, length_s + length_s + 300.0);
}

#[test]
fn a_failed_job_fails_after_the_same_work_and_a_cancelled_one_at_the_same_instant() {
    for (departure, second_starts_s) in [(Departure::Failed, 300.0), (Departure::Cancelled, 600.0)]
    {
        let mut world = World::new(1);
        let first = world.submit("first");
        let second = world.submit("second");
        world.start(first, 0, SLOW);
        world.pass(10);
        world.leave(first, 300, 0.0, departure);
        world.start(second, 0, GpuSetting::DEFAULT);
        world.pass(5);
        world.leave(second, 300, 0.0, Departure::Completed);
        world.pass(10);
        let sums = world.total();
        assert_eq!((sums.jobs, sums.wait_s), (1, 600.0), "{departure:?}");
        assert_eq!(sums.wait_s_twin, second_starts_s, "{departure:?}");
    }
}

/// Its end in the twin is beyond the reach of corrections when it ends here; its last ledger entry follows.
#[test]
fn a_job_that_ends_days_after_its_end_in_the_twin_counts() {
    let mut world = World::new(1);
    let key = world.submit("late");
    world.pass(4 * 24 * 60);
    world.start(key, 0, GpuSetting::DEFAULT);
    world.pass(10);
    world.leave(key, 600, 600.0 * 200.0, Departure::Completed);
    world.pass(3);
    let sums = world.total();
    assert_eq!((sums.jobs, sums.compared), (1, 1), "{sums:?}");
}

#[test]
fn a_job_of_a_lost_node_keeps_its_work() {
    let mut world = World::new(1);
    let key = world.submit("job");
    world.start(key, 0, GpuSetting::DEFAULT);
    world.pass(5);
    let lost = wattle_placer::NodeFacts { healthy: 0, ..node(0, 1) };
    world.site.node_known(lost);
    world.site.job_stopping(key);
    world.site.job_stopped(key);
    world.pass(10);
    world.site.node_known(node(0, 1));
    world.start(key, 0, GpuSetting::DEFAULT);
    world.pass(5);
    world.leave(key, 600, 0.0, Departure::Completed);
    world.pass(10);
    let sums = world.total();
    // 20 minutes in both: 10 of work and 10 without the node; the twin sees the node up to a minute later.
    assert_eq!(sums.completion_s, 1_200.0);
    assert!((1_200.0..=1_260.0).contains(&sums.completion_s_twin), "{sums:?}");
}

/// A surface has each number of nodes, also those that are too small here.
#[test]
fn requested_gpus_are_on_the_fewest_nodes_that_hold_them() {
    let mut world = World::of(&[4, 4]);
    let key = world.submit_of("wide", 8, None);
    let points = [(1, 2.0), (2, 1.0), (4, 0.5)].map(|(nodes, rate)| SurfacePoint {
        nodes,
        steps_per_s: Some(exactly(rate)),
        ..point(8, 1.0, 200.0)
    });
    world.site.surface_known(key, Arc::new(surface("wide", "v100", points)));
    world.site.job_placed(key, GpuSet::on(NodeKey::at(0), 0b1111), GpuSetting::DEFAULT, false);
    world.pass(12);
    world.leave(key, 600, 0.0, Departure::Completed);
    world.pass(10);
    let sums = world.total();
    assert!((sums.completion_s_twin - 600.0).abs() < 1.0, "{sums:?}");
}

#[test]
fn nodes_count_without_jobs_and_asleep() {
    let mut world = World::new(2);
    world.pass(10);
    let awake = world.total();
    assert_eq!((awake.rest_j, awake.slept_j), (600.0 * (300.0 + 2.0 * 40.0), 0.0));
    world.site.wakefulness_changed(NodeKey::at(0), Wakefulness::Asleep);
    world.pass(11);
    // The state at the beginning of a minute counts for it.
    assert_eq!(world.total().slept_j, 600.0 * (380.0 - 30.0));
    assert_eq!((world.total().node_s, world.total().node_s_asleep), (1_260.0, 600.0));
}

/// A job of 600 steps at one step per second on one GPU of 200 W, 40 W of which are idle power.
fn completed_on(world: &mut World, jobs: &[(&str, u64)], minutes: u64) -> TwinSums {
    for (job, gpus) in jobs {
        let key = world.submit(job);
        let on = GpuSet::on(NodeKey::at(0), *gpus);
        world.site.job_placed(key, on, GpuSetting::DEFAULT, false);
    }
    world.pass(minutes);
    for (job, _) in jobs {
        let key = world.site.job_key(&job.parse().unwrap()).unwrap();
        world.leave(key, 600, 60_000.0, Departure::Completed);
    }
    world.pass(40);
    world.total()
}

/// What caps and clocks do not explain is of sharing or sizes, by the time of the job on its GPUs.
#[test]
fn the_saving_beside_caps_and_clocks_is_of_sharing_sizes_or_the_rest() {
    let alone = completed_on(&mut World::new(4), &[("a", 0b1)], 10);
    let saved_j = 600.0 * 160.0 - (60_000.0 - 600.0 * 40.0);
    assert!((alone.jobs_saved_j() - saved_j).abs() < 200.0, "{alone:?}");
    assert_eq!((alone.sharing_j, alone.sizes_j), (0.0, 0.0));
    assert_eq!(alone.rest_of_jobs_saved_j(), alone.jobs_saved_j());
    let shared = completed_on(&mut World::new(4), &[("a", 0b1), ("b", 0b1)], 20);
    assert!((shared.sharing_j - shared.jobs_saved_j()).abs() < 1.0, "{shared:?}");
    assert!(shared.sharing_j > 0.0 && shared.sizes_j == 0.0, "{shared:?}");
    let resized = completed_on(&mut World::new(4), &[("a", 0b11)], 5);
    assert!((resized.sizes_j - resized.jobs_saved_j()).abs() < 1.0, "{resized:?}");
    assert!(resized.sizes_j > 0.0 && resized.sharing_j == 0.0, "{resized:?}");
}

#[test]
fn a_restarted_twin_continues() {
    let mut world = World::new(1);
    let (first, second, third) =
        (world.submit("first"), world.submit("second"), world.submit("third"));
    world.start(first, 0, SLOW);
    world.pass(12);
    world.leave(first, 600, 1_000.0, Departure::Completed);
    world.start(second, 0, SLOW);
    world.pass(6);
    let (status, open) = (world.twin.status(), world.twin.open());
    assert_eq!(status.rows.iter().map(|row| row.sums.jobs).sum::<u64>(), 1);
    assert_eq!(open.jobs.len(), 1, "the third job waits in both: {open:?}");
    let at = world.site.now();
    // The placer is away for an hour, in which the second job completes.
    world.site.pass(Duration::from_secs(3_600));
    report(&mut world.site, second, 600, 600);
    let record = |key: JobKey, left: Option<(Timestamp, Departure)>| RecordedJob {
        facts: world.site.job(key).unwrap().facts.clone(),
        waits_at_site: false,
        left,
        ran: Duration::from_secs(720),
        work: None,
    };
    let records = [
        record(second, Some((at + Duration::from_secs(360), Departure::Completed))),
        record(third, None),
    ];
    world.site.job_ended(second);
    world.twin = Twin::restored(
        Baseline::Fifo,
        Arc::default(),
        Some((&status, &open)),
        Records { jobs: &records, complete_from: at },
        &world.site.state,
    );
    assert_eq!(world.twin.status().absences.len(), 1);
    world.start(third, 0, GpuSetting::DEFAULT);
    world.pass(5);
    world.leave(third, 300, 0.0, Departure::Completed);
    world.pass(10);
    let sums = world.total();
    assert_eq!(sums.jobs, 3, "{sums:?}");
    // 600 s, then the estimate of the second job's work when the placer went away, then the third.
    let second_s = open.jobs[0].work.run_time_s.unwrap();
    let waits_s = 600.0 + 600.0 + second_s;
    assert!((sums.wait_s_twin - waits_s).abs() < 2.0, "{sums:?} {second_s}");
}

/// A job that left without completing just before a restart does not run on in the twin for its estimated time.
#[test]
fn a_job_that_failed_or_was_cancelled_before_a_restart_frees_its_gpu_in_the_twin() {
    for departure in [Departure::Cancelled, Departure::Failed] {
        let mut world = World::new(1);
        let (first, second) = (world.submit("first"), world.submit("second"));
        world.start(first, 0, SLOW);
        world.pass(12);
        assert_eq!(world.twin.presence(), (1, 1));
        let (status, open) = (world.twin.status(), world.twin.open());
        assert!(open.jobs[0].work.run_time_s > Some(2_000.0), "{open:?}");
        let left = world.site.now() + Duration::from_secs(60);
        world.site.pass(Duration::from_secs(120));
        let record = |key: JobKey, left| RecordedJob {
            facts: world.site.job(key).unwrap().facts.clone(),
            waits_at_site: false,
            left,
            ran: Duration::from_secs(780),
            work: None,
        };
        let records = [record(first, Some((left, departure))), record(second, None)];
        world.site.job_ended(first);
        world.twin = Twin::restored(
            Baseline::Fifo,
            Arc::default(),
            Some((&status, &open)),
            Records { jobs: &records, complete_from: left },
            &world.site.state,
        );
        world.pass(1);
        assert_eq!(world.twin.presence(), (0, 1), "{departure:?}: the second job runs");
    }
}

/// A job that waits in the twin keeps what it has run here.
#[test]
fn what_a_job_has_run_here_is_stored_while_it_waits_in_the_twin() {
    let mut world = World::new(1);
    let jobs = ["first", "second"].map(|name| world.submit(name));
    for job in jobs {
        world.start(job, 0, GpuSetting::DEFAULT);
    }
    world.pass(6);
    assert_eq!(world.twin.presence(), (1, 1));
    let open = world.twin.open();
    let waits = open.jobs.iter().find(|job| job.start_us.is_none()).expect("it is stored");
    assert!(waits.work.gpu_s > 0.0, "{waits:?}");
}

/// The stored values are of a backup an hour older than the records: jobs that came and completed since count once.
#[test]
fn a_twin_of_an_older_backup_has_what_completed_since() {
    let mut world = World::new(1);
    let first = world.submit("first");
    world.start(first, 0, GpuSetting::DEFAULT);
    world.pass(10);
    world.leave(first, 600, 1_000.0, Departure::Completed);
    world.pass(5);
    let (status, open) = (world.twin.status(), world.twin.open());
    let old = JobFacts { user: Some("ada".into()), ..facts("first", 1) };
    let old = JobFacts { submitted_at: world.site.now() - Duration::from_mins(15), ..old };
    let backup_at = world.site.now();
    world.site.pass(Duration::from_secs(3_600));
    let submitted_at = backup_at + Duration::from_secs(600);
    let second = JobFacts { submitted_at, user: Some("ada".into()), ..facts("second", 1) };
    let record = |facts, ended: Timestamp| RecordedJob {
        facts,
        waits_at_site: false,
        left: Some((ended, Departure::Completed)),
        ran: Duration::from_secs(600),
        work: None,
    };
    let ended = submitted_at + Duration::from_secs(900);
    let records = [record(old, backup_at - Duration::from_mins(5)), record(second, ended)];
    let restored = |stored| {
        let state = &world.site.state;
        let records = Records { jobs: &records, complete_from: state.now() };
        Twin::restored(Baseline::Fifo, Arc::default(), stored, records, state)
    };
    let twin = restored(Some((&status, &open)));
    let absence = twin.status().absences[0];
    assert_eq!((absence.from_us, absence.until_us), (backup_at, world.site.now()));
    let sums = twin.completed().total();
    assert_eq!((sums.jobs, sums.completion_s), (2, 600.0 + 900.0), "{sums:?}");
    assert_eq!(sums.completion_s_twin, 600.0 + 600.0, "it waited 300 s here and not in the twin");
    // Without both stored values of one instant the twin begins once the records have the work of all jobs: now.
    let later = TwinOpen { at_us: world.site.now(), ..open.clone() };
    for stored in [None, Some((&status, &later))] {
        let twin = restored(stored);
        assert_eq!((twin.completed().total().jobs, twin.status().since_us), (0, world.site.now()));
    }
}

/// The records of two jobs that completed one after the other, the first at a lower clock, and of a cancelled one
/// between them.
fn recorded(world: &mut World) -> (Vec<RecordedJob>, TwinSums) {
    let names = ["first", "cancelled", "second"];
    let keys = names.map(|name| world.submit(name));
    let facts = keys.map(|key| world.site.job(key).unwrap().facts.clone());
    let how = |ran| if ran > 0 { Departure::Completed } else { Departure::Cancelled };
    let record = |world: &World, at: usize, ran: u64| RecordedJob {
        facts: facts[at].clone(),
        waits_at_site: false,
        left: Some((world.site.now(), how(ran))),
        ran: Duration::from_secs(ran),
        work: world.twin.work_of_left(&facts[at].id),
    };
    world.start(keys[0], 0, SLOW);
    world.pass(5);
    world.twin.departed(&world.site.state, &facts[1].id, Departure::Cancelled);
    world.site.job_ended(keys[1]);
    let cancelled = record(world, 1, 0);
    world.pass(7);
    world.leave(keys[0], 600, 720.0 * 130.0, Departure::Completed);
    let first = record(world, 0, 720);
    world.start(keys[2], 0, GpuSetting::DEFAULT);
    world.pass(5);
    world.leave(keys[2], 300, 300.0 * 200.0, Departure::Completed);
    let records = vec![first, cancelled, record(world, 2, 300)];
    world.pass(30);
    (records, world.total())
}

/// Restored, with the energy of the records, and once it has followed for some minutes.
fn replayed(
    world: &mut World,
    baseline: Baseline,
    stored: Option<(&TwinStatus, &TwinOpen)>,
    records: &[RecordedJob],
) -> (TwinSums, Option<Timestamp>) {
    let known = Records { jobs: records, complete_from: Timestamp::EPOCH };
    world.twin = Twin::restored(baseline, Arc::default(), stored, known, &world.site.state);
    for (name, energy_j) in [("first", 720.0 * 130.0), ("second", 300.0 * 200.0)] {
        world.twin.metered(&name.parse().unwrap(), energy_j, 0.0, false);
    }
    world.pass(3);
    (world.total(), world.twin.status().replayed_at_us)
}

#[test]
fn without_stored_values_the_twin_is_computed_again_from_the_records() {
    let mut world = World::new(1);
    let (records, before) = recorded(&mut world);
    assert_eq!((before.jobs, before.compared), (2, 2));
    let now = world.site.now();
    let (after, replayed_at) = replayed(&mut world, Baseline::Fifo, None, &records);
    assert_eq!(replayed_at, Some(now));
    let (before, _) = before.by_jobs_and_nodes();
    let (jobs, nodes) = after.by_jobs_and_nodes();
    assert_eq!(jobs, before);
    // The node is taken as awake since the first submission; three minutes follow.
    let span_s = now.since(records[0].facts.submitted_at).as_secs_f64() + 180.0;
    assert!((nodes.node_s - span_s).abs() < 1e-6 && nodes.node_s_asleep == 0.0, "{nodes:?}");
    assert_eq!(nodes.rest_j, span_s * 340.0);
    // It continues from what it stores then.
    let (status, open) = (world.twin.status(), world.twin.open());
    let (again, still) = replayed(&mut world, Baseline::Fifo, Some((&status, &open)), &records);
    assert_eq!((again.jobs, still), (2, Some(now)), "the jobs count once");
}

#[test]
fn the_twin_of_another_baseline_is_computed_again_and_keeps_the_nodes() {
    let mut world = World::new(1);
    let (records, before) = recorded(&mut world);
    let (status, open) = (world.twin.status(), world.twin.open());
    let stored = Some((&status, &open));
    let (after, replayed_at) = replayed(&mut world, Baseline::Backfill, stored, &records);
    assert!(replayed_at.is_some());
    assert_eq!((after.jobs, after.compared), (2, 2));
    // On one GPU, without time limits, both schedulers serve the jobs in order.
    assert_eq!(after.completion_s_twin, before.completion_s_twin);
    let own_s = 180.0;
    assert!((after.node_s - before.node_s - own_s).abs() < 1e-6, "{after:?} {before:?}");
}

#[test]
fn a_job_that_runs_through_a_restart_counts_its_time_once() {
    let mut world = World::new(1);
    let key = world.submit("job");
    world.start(key, 0, SLOW);
    world.pass(6);
    let (status, open) = (world.twin.status(), world.twin.open());
    let facts = world.site.job(key).unwrap().facts.clone();
    let ran = Duration::ZERO;
    let records = [RecordedJob { facts, waits_at_site: false, left: None, ran, work: None }];
    let known = Records { jobs: &records, complete_from: Timestamp::EPOCH };
    let stored = Some((&status, &open));
    world.twin = Twin::restored(Baseline::Fifo, Arc::default(), stored, known, &world.site.state);
    world.pass(6);
    let work = world.twin.open().jobs[0].work;
    assert!((work.gpu_s - 720.0).abs() < 1.0, "{work:?}");
    assert!((work.done_s - 720.0 * 0.85).abs() < 1.0, "{work:?}");
}

#[test]
fn jobs_that_still_run_in_the_twin_are_ahead_once_the_cluster_is_empty() {
    let mut world = World::new(1);
    let jobs = [world.submit("first"), world.submit("second")];
    // Both share a GPU and complete after 10 minutes; the twin runs one after the other.
    jobs.into_iter().for_each(|job| world.start(job, 0, GpuSetting::DEFAULT));
    world.pass(10);
    jobs.into_iter().for_each(|job| world.leave(job, 600, 600.0 * 100.0, Departure::Completed));
    world.pass(1);
    assert!(!world.twin.has_all(), "their last ledger entries have not arrived");
    assert_eq!((world.total().jobs, world.twin.ahead().total().jobs), (0, 0));
    world.pass(2);
    let ahead = world.twin.ahead().total();
    assert!(world.twin.has_all());
    assert_eq!((world.total().jobs, ahead.jobs, ahead.compared), (1, 1, 1));
    assert!((ahead.completion_s_twin - 1_200.0).abs() < 1.0, "{ahead:?}");
    assert_eq!((ahead.completion_s, ahead.rest_j), (600.0, 0.0));
    let status = world.twin.status();
    assert_eq!((status.jobs_ahead(), status.all_rows().map(|row| row.sums.jobs).sum()), (1, 2));
    // Its work is not known: it may delay the second job in the twin.
    let third = world.submit("third");
    world.pass(1);
    assert!(!world.twin.has_all() && world.twin.ahead().total().jobs == 0);
    let id = world.site.job(third).unwrap().facts.id.clone();
    world.twin.departed(&world.site.state, &id, Departure::Cancelled);
    world.site.job_ended(third);
    world.pass(8);
    assert_eq!((world.total().jobs, world.twin.ahead().total().jobs), (2, 0));
}

#[test]
fn a_job_that_arrives_before_the_nodes_are_known_runs_in_the_twin() {
    let mut world = World::new(1);
    world.twin = Twin::new(Baseline::Fifo, Arc::default(), world.site.now());
    let key = world.submit("first");
    world.start(key, 0, GpuSetting::DEFAULT);
    world.pass(10);
    world.leave(key, 600, 0.0, Departure::Completed);
    world.pass(5);
    let sums = world.total();
    // The twin learns of the nodes a minute later.
    assert_eq!((sums.jobs, sums.wait_s_twin, sums.completion_s_twin), (1, 60.0, 660.0));
}

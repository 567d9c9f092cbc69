//! Tests of the forward schedule.

use proptest::prelude::*;

use super::*;

fn at(s: u64) -> Timestamp {
    Timestamp::from_s(s)
}

fn span(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Nodes of these sizes, of which as many GPUs are free.
fn nodes(sizes: &[(u32, u32)]) -> FreeGpus {
    let mut free = FreeGpus::default();
    let mut shapes = BTreeMap::new();
    for (size, free_here) in sizes {
        let shape = *shapes.entry(*size).or_insert_with(|| free.add_shape(*size));
        free.add_node(shape, *free_here);
    }
    free
}

fn job(gpus: u32, run_s: u64) -> Waiting {
    let run_times = vec![span(run_s)];
    Waiting { gpus, shapes: vec![0], not_before: at(0), run_times, limit: None }
}

fn held(node: u32, gpus: u32, until: u64) -> Held {
    Held { part: Part { node, gpus }, until: at(until), limit_at: at(until) }
}

fn starts(
    discipline: QueueDiscipline,
    free: FreeGpus,
    held: Vec<Held>,
    jobs: &[Waiting],
) -> Vec<Option<u64>> {
    let runs = forward(at(0), discipline, free, held, jobs);
    runs.into_iter().map(|run| run.map(|run| run.start.as_us() / 1_000_000)).collect()
}

#[test]
fn a_strict_order_waits_for_its_head() {
    let jobs = [job(4, 100), job(1, 10)];
    let of = |order| starts(order, nodes(&[(4, 2)]), vec![held(0, 2, 50)], &jobs);
    assert_eq!(of(QueueDiscipline::Strict), [Some(50), Some(150)]);
    assert_eq!(
        of(QueueDiscipline::Backfilled),
        [Some(50), Some(0)],
        "it ends before the head starts"
    );
}

#[test]
fn a_later_job_does_not_delay_the_head() {
    let free = || nodes(&[(4, 2)]);
    let of =
        |jobs: &[Waiting]| starts(QueueDiscipline::Backfilled, free(), vec![held(0, 2, 50)], jobs);
    assert_eq!(of(&[job(4, 100), job(1, 60)]), [Some(50), Some(150)], "it would end after it");
    assert_eq!(of(&[job(3, 100), job(1, 60)]), [Some(50), Some(0)], "the head spares the GPU");
    let limited = |limit| Waiting { limit: Some(span(limit)), ..job(1, 10) };
    assert_eq!(of(&[job(4, 100), limited(60)])[1], Some(150), "its limit counts");
    assert_eq!(of(&[job(4, 100), limited(40)])[1], Some(0));
}

#[test]
fn a_job_larger_than_a_node_gets_entire_nodes() {
    let free = nodes(&[(4, 0), (4, 4), (4, 4)]);
    let jobs = [job(12, 100), job(4, 10), job(4, 100)];
    let of = starts(QueueDiscipline::Backfilled, free, vec![held(0, 4, 50)], &jobs);
    assert_eq!(of, [Some(50), Some(0), Some(150)]);
}

#[test]
fn a_job_that_never_fits_has_no_start() {
    let jobs = [job(5, 10), job(1, 10)];
    let of = |order| starts(order, nodes(&[(4, 4)]), Vec::new(), &jobs);
    assert_eq!(of(QueueDiscipline::Strict), [None, None]);
    assert_eq!(of(QueueDiscipline::Backfilled), [None, Some(0)]);
}

#[test]
fn a_job_that_may_not_start_yet_holds_no_place() {
    let later = Waiting { not_before: at(30), ..job(4, 10) };
    let of = starts(
        QueueDiscipline::Strict,
        nodes(&[(4, 4)]),
        Vec::new(),
        &[later, job(4, 20), job(4, 5)],
    );
    assert_eq!(of, [Some(30), Some(0), Some(20)]);
}

#[test]
fn run_times_depend_on_the_shape() {
    let mut free = nodes(&[(4, 4), (8, 8)]);
    free.take(Part { node: 0, gpus: 4 });
    let waiting = Waiting { shapes: vec![0, 1], run_times: vec![span(10), span(70)], ..job(2, 0) };
    let runs = forward(at(0), QueueDiscipline::Strict, free, Vec::new(), &[waiting]);
    assert_eq!(runs[0].as_ref().map(|run| (run.start, run.end)), Some((at(0), at(70))));
}

/// Sizes of nodes, jobs and held GPUs.
fn clusters() -> impl Strategy<Value = (Vec<(u32, u32)>, Vec<Held>, Vec<Waiting>)> {
    let nodes = prop::collection::vec((0_u32..=4, 1_u64..500), 1..6);
    let jobs = prop::collection::vec((1_u32..=12, 0_u64..400, 0_u64..300, any::<bool>()), 0..40);
    (nodes, jobs).prop_map(|(nodes, jobs)| {
        let sizes = nodes.iter().map(|(used, _)| (4, 4 - used)).collect();
        let held_by = nodes.iter().enumerate().filter(|(_, (used, _))| *used > 0);
        let held = held_by.map(|(node, (used, until))| held(node as u32, *used, *until)).collect();
        let jobs = jobs.into_iter().map(|(gpus, run_s, not_before, limited)| Waiting {
            not_before: at(not_before.saturating_sub(150)),
            limit: limited.then(|| span(run_s * 2 + 1)),
            ..job(gpus, run_s)
        });
        (sizes, held, jobs.collect())
    })
}

/// GPUs of a node that are used over time: starts and ends in order, with the sum after each.
fn most_used(node: u32, held: &[Held], runs: &[Option<Run>]) -> u32 {
    let mut changes: Vec<(Timestamp, i64)> = Vec::new();
    for held in held.iter().filter(|held| held.part.node == node) {
        changes.push((at(0), i64::from(held.part.gpus)));
        changes.push((held.until, -i64::from(held.part.gpus)));
    }
    for run in runs.iter().flatten() {
        for part in run.on.iter().filter(|part| part.node == node && run.start < run.end) {
            changes.push((run.start, i64::from(part.gpus)));
            changes.push((run.end, -i64::from(part.gpus)));
        }
    }
    // Ends before starts of the same instant.
    changes.sort();
    let mut used = 0;
    changes.into_iter().fold(0, |most, (_, change)| {
        used += change;
        most.max(used)
    }) as u32
}

proptest! {
    #[test]
    fn no_gpu_is_used_twice_and_no_job_starts_too_early((sizes, held, jobs) in clusters()) {
        for order in [QueueDiscipline::Strict, QueueDiscipline::Backfilled] {
            let runs = forward(at(0), order, nodes(&sizes), held.clone(), &jobs);
            for (node, (size, _)) in sizes.iter().enumerate() {
                prop_assert!(most_used(node as u32, &held, &runs) <= *size);
            }
            for (run, job) in runs.iter().zip(&jobs) {
                let Some(run) = run else { continue };
                prop_assert!(run.start >= job.not_before);
                prop_assert_eq!(run.end, run.start + job.run_times[0]);
                prop_assert_eq!(run.on.iter().map(|part| part.gpus).sum::<u32>(), job.gpus);
            }
        }
    }

    #[test]
    fn every_job_that_fits_the_cluster_starts((sizes, held, jobs) in clusters()) {
        let gpus = 4 * sizes.len() as u32;
        let runs = forward(at(0), QueueDiscipline::Backfilled, nodes(&sizes), held, &jobs);
        for (run, job) in runs.iter().zip(&jobs) {
            prop_assert_eq!(run.is_some(), job.gpus <= gpus);
        }
    }

    #[test]
    fn a_strict_order_is_kept((sizes, held, jobs) in clusters()) {
        let jobs: Vec<Waiting> = jobs.into_iter().map(|job| Waiting { not_before: at(0), ..job }).collect();
        let runs = forward(at(0), QueueDiscipline::Strict, nodes(&sizes), held, &jobs);
        let starts: Vec<Timestamp> = runs.iter().map_while(|run| Some(run.as_ref()?.start)).collect();
        prop_assert!(starts.is_sorted());
    }

    /// With limits that are the run times, the first job that waits starts no later than without later jobs.
    #[test]
    fn backfilling_does_not_delay_the_head((sizes, held, jobs) in clusters()) {
        let jobs: Vec<Waiting> =
            jobs.into_iter().map(|job| Waiting { not_before: at(0), limit: None, ..job }).collect();
        let run = |jobs: &[Waiting]| forward(at(0), QueueDiscipline::Backfilled, nodes(&sizes), held.clone(), jobs);
        let all = run(&jobs);
        let Some(head) = all.iter().position(|run| run.as_ref().is_none_or(|run| run.start > at(0))) else {
            return Ok(());
        };
        let alone = run(&jobs[..=head]);
        let start = |runs: &[Option<Run>]| runs[head].as_ref().map(|run| run.start);
        prop_assert_eq!(start(&all), start(&alone));
    }
}

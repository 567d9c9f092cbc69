//! Jobs that Slurm 22.05.8 printed.

use super::*;
use crate::text::fields::Mark;
use wattle_common::Timestamp;

const PRINTED: &str = include_str!("../../../tests/slurm-22.05/squeue.txt");

fn printed() -> Vec<QueuedJob> {
    let mark = Mark::new("0123456789abcdef").unwrap();
    let now = Timestamp::from_s(1_795_581_495);
    let records = LAYOUT.records(PRINTED, &mark).unwrap();
    records.into_iter().map(|record| job(&record.unwrap(), now).unwrap()).collect()
}

fn find(id: u32) -> QueuedJob {
    printed().into_iter().find(|queued| queued.job.id == id).unwrap()
}

#[test]
fn every_job_is_read() {
    let mut ids: Vec<u32> = printed().iter().map(|queued| queued.job.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
}

#[test]
fn a_running_job() {
    let queued = find(1);
    let job = &queued.job;
    assert_eq!((job.state, job.held, job.is_batch), (SlurmState::Running, false, true));
    assert_eq!((job.name.as_str(), job.user.as_str()), ("na me", "games"));
    assert_eq!(job.time_limit, Some(Duration::from_secs(93_600)));
    assert_eq!(job.needs, NodeNeeds { cpus: 4, memory_mib: 2048, ..NodeNeeds::default() });
    assert_eq!((job.gpus_per_node, job.nodes), (2, 1));
    assert_eq!(job.gres, "gpu:2");
    assert_eq!(job.output, "/tmp/log-1-na me.1_4294967294.games");
    assert_eq!((job.ended_at, job.exit), (None, None));
    assert_eq!(queued.held_nodes, ["tx1"]);
    assert_eq!(queued.held_gres.to_string(), "gpu:g0:1,gpu:g1:1");
}

#[test]
fn a_name_with_line_breaks_is_a_name() {
    let job = find(2).job;
    assert!(job.name.starts_with("evil name\n\nJobId=1 JobName=x\n"), "{}", job.name);
    assert!(job.comment.ends_with("AdminComment=forged tab\there \"q\" = é"), "{}", job.comment);
    assert_eq!(job.admin_comment, "");
    assert_eq!((job.user.as_str(), job.reason.as_str()), ("news", ""));
}

#[test]
fn an_array_has_tasks_with_and_without_an_id() {
    let array = find(3).job;
    assert_eq!(array.array.as_deref(), Some("3_[3,5,7,9%2]"));
    assert_eq!(array.unsplit_tasks, [3, 5, 7, 9]);
    let task = find(12).job;
    assert_eq!((task.array.as_deref(), task.unsplit_tasks.len()), (Some("3_1"), 0));
    assert_eq!(unsplit_tasks("3_[1-9:2%2]"), Ok(vec![1, 3, 5, 7, 9]));
    assert_eq!(unsplit_tasks("3_[1-2,7,...]"), Ok(vec![1, 2, 7]));
    assert!(unsplit_tasks("3_[1-4294967295]").unwrap().len() == TASKS_MAX);
    assert!(unsplit_tasks("3_[x]").is_err());
}

#[test]
fn tasks_with_the_id_of_their_array_are_one_job() {
    let mut queue = Queue::default();
    let task = find(12);
    for (id, shown_as) in [(12, "3_1"), (3, "3_9"), (3, "3_4"), (3, "3_3"), (3, "3_5"), (7, "7")] {
        let job = SlurmJob { id, array: Some(shown_as.to_owned()), ..task.job.clone() };
        queue.add(QueuedJob { job, shown_as: shown_as.to_owned(), ..task.clone() });
    }
    let jobs = queue.into_jobs();
    let names: Vec<(u32, &str)> =
        jobs.iter().map(|queued| (queued.job.id, queued.shown_as.as_str())).collect();
    assert_eq!(names, [(3, "3_[3-5,9]"), (7, "7"), (12, "3_1")]);
    assert_eq!(jobs[0].job.unsplit_tasks, [3, 4, 5, 9]);
    assert_eq!(jobs[0].job.array.as_deref(), Some("3_[3-5,9]"));
    assert_eq!(jobs[2].job.unsplit_tasks, [0; 0]);
}

#[test]
fn requests_for_each_gpu_are_separate() {
    let job = find(4).job;
    let needs = NodeNeeds { cpus: 1, cpus_per_gpu: 2, memory_mib: 0, memory_mib_per_gpu: 1000 };
    assert_eq!(job.needs, needs);
    assert_eq!((job.nodes, job.gpus_per_node), (2, 1));
}

#[test]
fn ended_jobs_have_an_exit_code_or_a_signal() {
    assert_eq!(find(5).job.exit, Some((0, 11)));
    assert_eq!(find(6).job.exit, Some((3, 0)));
    assert_eq!(exit("3:0"), Some((3, 0)));
    assert!(find(5).job.ended_at.is_some());
}

#[test]
fn a_job_waits_for_its_begin_time_or_dependency_but_not_after_a_requeue() {
    let job = find(7).job;
    assert!(job.waits && job.held && job.whole_nodes && !job.requeue);
    assert_eq!((job.nodes, job.gpus_per_node), (2, 2));
    assert_eq!(job.needs, NodeNeeds { cpus: 6, memory_mib: 600, ..NodeNeeds::default() });
    assert_eq!(job.features, "v100");
    let requeued = find(11).job;
    assert_eq!((requeued.restarts, requeued.waits), (1, false));
}

#[test]
fn a_placed_job_has_its_nodes_and_resources() {
    let job = find(11).job;
    assert_eq!(job.gres, "gpu:g1:1,gpu:g3:1");
    let names: Vec<&str> = job.required_nodes.iter().map(NodeId::as_str).collect();
    assert_eq!(names, ["tx1", "tx2"]);
    assert_eq!(job.nodes, 2);
    assert!(job.started_at.is_none() && job.held);
}

#[test]
fn gpus_of_tasks_are_counted_and_components_are_special() {
    assert_eq!(find(8).job.gpus_per_node, 2);
    assert!(find(9).job.is_special && find(10).job.is_special && !find(8).job.is_special);
    assert_eq!(find(10).shown_as, "9+1");
}

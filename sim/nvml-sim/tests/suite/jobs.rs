//! `wattle-simjob`: progress, checkpoints, signals, errors and jobs on several nodes.

use std::path::Path;

use crate::support::{HEAVY, Job, SimCluster, next_line, rate_when, until};
use nvml_sim::node::{Node, wall_us};
use wattle_common::Power;

fn args<'a>(steps: &'a str, per_epoch: &'a str) -> [&'a str; 6] {
    ["--workload", HEAVY, "--steps", steps, "--steps-per-epoch", per_epoch]
}

fn checkpoint_steps(dir: &Path) -> Option<u64> {
    let bytes = std::fs::read(dir.join("simjob.json")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    json["steps"].as_u64()
}

#[test]
fn job_trains_reports_and_completes() {
    let cluster = SimCluster::new(600);
    let node = Node::open(&cluster.node("n0", 2)).unwrap();
    let (socket, path) = cluster.socket("progress");
    // The speed of one that does not end by itself.
    let endless = Job::start(node.path(), "1", "endless", &args("100000000", "1000"), &[]);
    let rate = rate_when(&node, "endless", |snapshot| {
        snapshot.state.gpus[0].shares.is_empty() && snapshot.state.gpus[1].shares.len() == 1
    });
    drop(endless);
    until("the GPU is free", || {
        node.observe().unwrap().state.gpus[1].shares.is_empty().then_some(())
    });
    let began = node.now().as_us();
    let job =
        Job::start(node.path(), "1", "job-1", &args("3000", "1000"), &[("WATTLE_PROGRESS", &path)]);
    let mut last = 0;
    let mut epochs = std::collections::BTreeSet::new();
    loop {
        let line = next_line(&socket);
        assert_eq!(line.job.as_str(), "job-1");
        assert_eq!((line.steps_total, line.steps_per_epoch), (Some(3_000), Some(1_000)));
        assert_eq!(line.epoch.map(u64::from), Some(line.step / 1_000));
        assert!(line.step >= last, "steps decreased");
        last = line.step;
        epochs.insert(line.epoch);
        // No drift: steps follow from elapsed time and rate, at 600 system seconds per second.
        let possible = (node.now().as_us() - began) as f64 / 1e6 * rate;
        let actual = line.step as f64;
        assert!(actual <= possible + 1.0, "{actual} steps, at most {possible} possible");
        if line.step == 3_000 {
            break;
        }
    }
    assert_eq!(epochs.len(), 4, "every epoch was reported: {epochs:?}");
    let (status, out, err) = job.output();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
    assert!(out.starts_with("job-1: ") && out.ends_with("done: 3000 steps\n"), "{out}");
    assert_eq!(out.matches("epoch ").count(), 2, "{out}");
    until("the GPU is free", || {
        node.observe().unwrap().state.gpus[1].shares.is_empty().then_some(())
    });
}

#[test]
fn rate_matches_the_world_at_every_clock_rate() {
    for rate in [60, 600] {
        let cluster = SimCluster::new(rate);
        let node = Node::open(&cluster.node("n0", 1)).unwrap();
        let mut job = Job::start(node.path(), "0", "j", &args("1000000", "1000000"), &[]);
        let speed = rate_when(&node, "j", |_| true);
        let look = || {
            let snapshot = node.observe().unwrap();
            let claim = snapshot.state.claims[0].clone().unwrap();
            (snapshot.state.steps(&claim, snapshot.at), snapshot.at)
        };
        let (from, start) = look();
        let (to, end) = until("two hundred steps", || {
            let now = look();
            (now.0 >= from + 200).then_some(now)
        });
        let expected = end.since(start).as_secs_f64() * speed;
        assert!(((to - from) as f64 - expected).abs() <= 1.0, "{} and {expected}", to - from);
        job.child.kill().unwrap();
    }
}

#[test]
fn signal_stops_the_job_with_a_checkpoint() {
    for signal in ["USR1", "TERM"] {
        let cluster = SimCluster::new(600);
        let node = Node::open(&cluster.node("n0", 1)).unwrap();
        let keep = cluster.dir().join("keep");
        let more: [(&str, &Path); 1] = [("WATTLE_CHECKPOINT_DIR", &keep)];
        // The epoch outlasts the test, so only the signal causes a checkpoint.
        let job = Job::start(node.path(), "0", "j", &args("200000000", "100000000"), &more);
        let rate = rate_when(&node, "j", |snapshot| {
            let claim = snapshot.state.claims[0].as_ref();
            claim.is_some_and(|claim| snapshot.state.steps(claim, snapshot.at) > 50)
        });
        assert_eq!(checkpoint_steps(&keep), None);
        job.signal(signal);
        let (status, out, _) = job.output();
        assert_eq!(status.code(), Some(0), "{out}");
        let steps = checkpoint_steps(&keep).expect("a checkpoint");
        assert!(steps > 50 && out.contains(&format!("checkpoint at step {steps}")), "{out}");

        let (socket, path) = cluster.socket("progress");
        let more: [(&str, &Path); 2] = [more[0], ("WATTLE_PROGRESS", &path)];
        let began = node.now();
        let job = Job::start(node.path(), "0", "j", &args("200000000", "100000000"), &more);
        let line = next_line(&socket);
        let most = steps + (node.now().since(began).as_secs_f64() * rate) as u64 + 1;
        assert!((steps..=most).contains(&line.step), "{} after {steps}", line.step);
        drop(job);
    }
}

#[test]
fn resumed_attempt_loads_its_gpus_before_the_first_step() {
    const RESTART_S: u64 = 300;
    let cluster = SimCluster::new(600);
    let node = Node::open(&cluster.node("n0", 1)).unwrap();
    let keep = cluster.dir().join("keep");
    let restart = RESTART_S.to_string();
    let args: Vec<&str> =
        args("200000000", "100000000").into_iter().chain(["--restart-s", &restart]).collect();
    let more: [(&str, &Path); 1] = [("WATTLE_CHECKPOINT_DIR", &keep)];
    // A first attempt has no start-up.
    let job = Job::start(node.path(), "0", "j", &args, &more);
    let rate = rate_when(&node, "j", |snapshot| {
        let claim = snapshot.state.claims[0].as_ref();
        claim.is_some_and(|claim| snapshot.state.steps(claim, snapshot.at) > 50)
    });
    job.signal("USR1");
    job.output();
    let steps = checkpoint_steps(&keep).unwrap();
    assert!(steps > 50);
    // Stopped during the start-up, it keeps its steps.
    let job = Job::start(node.path(), "0", "j", &args, &more);
    rate_when(&node, "j", |_| true);
    job.signal("USR1");
    job.output();
    assert_eq!(checkpoint_steps(&keep), Some(steps));

    let (socket, path) = cluster.socket("progress");
    let from_us = node.now().as_us();
    let more: [(&str, &Path); 2] = [more[0], ("WATTLE_PROGRESS", &path)];
    let job = Job::start(node.path(), "0", "j", &args, &more);
    rate_when(&node, "j", |snapshot| snapshot.state.gpus[0].shares.len() == 1);
    let line = next_line(&socket);
    let passed_s = (node.now().as_us() - from_us) as f64 / 1e6;
    assert!(passed_s >= RESTART_S as f64, "{passed_s}");
    let possible = (passed_s - RESTART_S as f64) * rate;
    assert!(((line.step - steps) as f64) <= possible + 1.0, "{} of {possible}", line.step - steps);
    drop(job);
}

#[test]
fn signal_without_checkpoint_directory_fails_the_job() {
    let cluster = SimCluster::new(600);
    let node = Node::open(&cluster.node("n0", 1)).unwrap();
    let job = Job::start(node.path(), "0", "j", &args("200000000", "100000000"), &[]);
    rate_when(&node, "j", |_| true);
    job.signal("USR1");
    let (status, _, err) = job.output();
    assert!(status.code() == Some(1) && err.contains("WATTLE_CHECKPOINT_DIR"), "{err}");
}

#[test]
fn killed_job_resumes_from_its_last_epoch() {
    let cluster = SimCluster::new(600);
    let node = Node::open(&cluster.node("n0", 1)).unwrap();
    let keep = cluster.dir().join("keep");
    let more: [(&str, &Path); 1] = [("WATTLE_CHECKPOINT_DIR", &keep)];
    // It does not end before it is killed, however late that is.
    let mut job = Job::start(node.path(), "0", "j", &args("1000000000", "250"), &more);
    until("two epochs are saved", || checkpoint_steps(&keep).filter(|steps| *steps >= 500));
    job.child.kill().unwrap();
    job.wait();
    let steps = checkpoint_steps(&keep).unwrap();
    let total = (steps + 750).to_string();
    let (status, out, _) = Job::start(node.path(), "0", "j", &args(&total, "250"), &more).output();
    assert_eq!(status.code(), Some(0));
    assert!(
        out.contains(&format!("step {steps} of {total}"))
            && out.contains(&format!("done: {total}")),
        "{out}"
    );
    assert_eq!(checkpoint_steps(&keep), Some(steps + 750));
    // Restarted after completion, it completes at once.
    let (status, out, _) = Job::start(node.path(), "0", "j", &args(&total, "250"), &more).output();
    assert!(status.success() && out.contains(&format!("done: {total}")), "{out}");
}

#[test]
fn missing_and_full_progress_sockets_do_not_delay_the_job() {
    let cluster = SimCluster::new(600);
    let node = Node::open(&cluster.node("n0", 1)).unwrap();
    let absent = cluster.dir().join("absent");
    let more: [(&str, &Path); 1] = [("WATTLE_PROGRESS", &absent)];
    let (status, out, _) = Job::start(node.path(), "0", "j", &args("500", "5"), &more).output();
    assert!(status.success() && out.contains("done: 500"), "{out}");

    let (socket, path) = cluster.socket("full");
    let filler = std::os::unix::net::UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    let mut fillers = 0;
    while filler.send_to(b"job=filler step=1", &path).is_ok() {
        fillers += 1;
    }
    let more: [(&str, &Path); 1] = [("WATTLE_PROGRESS", &path)];
    let job = Job::start(node.path(), "0", "j", &args("500", "5"), &more);
    until("its steps are completed", || {
        let snapshot = node.observe().unwrap();
        let claim = snapshot.state.claims.iter().flatten().next()?;
        (snapshot.state.steps(claim, snapshot.at) >= 500).then_some(())
    });
    // Once the socket is read, the last report arrives.
    for _ in 0..fillers {
        assert_eq!(next_line(&socket).job.as_str(), "filler");
    }
    assert_eq!(next_line(&socket).step, 500);
    assert!(job.output().0.success());
}

#[test]
fn usage_errors_state_the_remedy() {
    let cluster = SimCluster::new(1);
    let state = cluster.node("n0", 2);
    let fails = |gpus: &str, args: &[&str], state: &Path| {
        let (status, out, err) = Job::start(state, gpus, "j", args, &[]).output();
        assert_eq!(out, "");
        (status.code(), err)
    };
    let (code, stderr) = fails("0", &["--workload", "teapot"], &state);
    assert!(code == Some(2) && stderr.contains(HEAVY), "{stderr}");
    let (code, stderr) = fails("7", &args("1", "1"), &state);
    assert!(code == Some(2) && stderr.contains("unknown GPU `7`: the node has 2 GPUs"), "{stderr}");
    let (code, stderr) = fails("", &args("1", "1"), &state);
    assert!(code == Some(2) && stderr.contains("at least one"), "{stderr}");
    let (code, stderr) = fails("0", &args("0", "1"), &state);
    assert!(code == Some(2) && stderr.contains("--steps"), "{stderr}");
    let (code, stderr) = fails("0", &args("1", "1"), &cluster.dir().join("none"));
    assert!(code == Some(1) && stderr.contains("wattle-simnode create"), "{stderr}");
    // Insufficient device memory fails the job.
    let heavy = ["--workload", "resnet50-imagenet-b256", "--steps", "100000000"];
    let _first = Job::start(&state, "0", "a", &heavy, &[]);
    rate_when(&Node::open(&state).unwrap(), "a", |_| true);
    let (code, stderr) = fails("0", &heavy, &state);
    assert!(code == Some(1) && stderr.contains("out of memory"), "{stderr}");
}

/// Starts one rank of a job on two nodes.
fn rank(cluster: &SimCluster, node: &Node, rank: &str, steps: &str, more: &[(&str, &Path)]) -> Job {
    let keep = cluster.dir().join("keep");
    let mut all: Vec<(&str, &Path)> = vec![
        ("PET_NNODES", Path::new("2")),
        ("PET_NODE_RANK", Path::new(rank)),
        ("WATTLE_CHECKPOINT_DIR", &keep),
    ];
    all.extend_from_slice(more);
    Job::start(node.path(), "0,1", "wide", &args(steps, "100000"), &all)
}

fn rate_of_both(node: &Node) -> Option<f64> {
    let snapshot = node.observe().unwrap();
    let claim = snapshot.state.claims.iter().flatten().next()?;
    (claim.gpus_total == 4 && claim.rate() > 0).then(|| claim.rate() as f64 / 1e9)
}

#[test]
fn job_on_two_nodes_runs_at_the_slower_rate() {
    let cluster = SimCluster::new(600);
    let nodes = ["n0", "n1"].map(|name| Node::open(&cluster.node(name, 2)).unwrap());
    let (socket, path) = cluster.socket("progress");
    let leader = rank(&cluster, &nodes[0], "0", "100000000", &[("WATTLE_PROGRESS", &path)]);
    // A single rank waits: it holds memory, draws idle power and makes no progress.
    until("rank 0 waits", || {
        let snapshot = nodes[0].observe().unwrap();
        let claimed = snapshot.state.gpus[0].shares.len() == 1;
        (claimed && snapshot.state.gpus[0].power == nodes[0].model().idle).then_some(())
    });
    assert_eq!(next_line(&socket).step, 0);
    let follower = rank(&cluster, &nodes[1], "1", "100000000", &[]);
    let free = until("both run", || {
        rate_of_both(&nodes[0]).filter(|a| Some(*a) == rate_of_both(&nodes[1]))
    });

    // A cap on one GPU of the other node slows the job.
    let cap = Power::from_w(100);
    nodes[1].update(|state, hardware, at| state.set_cap(hardware, at, 1, cap)).unwrap();
    let slow =
        until("the rate falls", || rate_of_both(&nodes[0]).filter(|rate| *rate < 0.9 * free));
    let snapshot = nodes[1].observe().unwrap();
    let here = snapshot.state.claims.iter().flatten().next().unwrap().local_rate as f64 / 1e9;
    assert!((slow - here).abs() < 1e-9, "{slow} and {here}");
    drop((leader, follower));
}

#[test]
fn job_on_two_nodes_completes() {
    let cluster = SimCluster::new(600);
    let nodes = ["n0", "n1"].map(|name| Node::open(&cluster.node(name, 2)).unwrap());
    let (socket, path) = cluster.socket("progress");
    let leader = rank(&cluster, &nodes[0], "0", "3000", &[("WATTLE_PROGRESS", &path)]);
    let follower = rank(&cluster, &nodes[1], "1", "3000", &[]);
    let last = until("the last report", || Some(next_line(&socket)).filter(|l| l.step == 3_000));
    assert_eq!(last.job.as_str(), "wide");
    for (job, word) in [(leader, "done: 3000"), (follower, "rank 0 has ended")] {
        let (status, out, err) = job.output();
        assert!(status.success() && out.contains(word), "{out}{err}");
    }
}

#[test]
fn stopping_one_rank_stops_all_ranks_with_a_checkpoint() {
    for stopped in [0, 1] {
        let cluster = SimCluster::new(600);
        let nodes = ["n0", "n1"].map(|name| Node::open(&cluster.node(name, 2)).unwrap());
        let jobs = [
            rank(&cluster, &nodes[0], "0", "10000000", &[]),
            rank(&cluster, &nodes[1], "1", "10000000", &[]),
        ];
        until("both run", || rate_of_both(&nodes[0]).and(rate_of_both(&nodes[1])));
        jobs[stopped].signal("USR1");
        for job in jobs {
            let (status, out, err) = job.output();
            assert!(status.success(), "rank {stopped} was stopped: {out}{err}");
        }
        assert!(checkpoint_steps(&cluster.dir().join("keep")).is_some());
    }
}

#[test]
fn death_of_one_rank_fails_the_job() {
    let cluster = SimCluster::new(60);
    let nodes = ["n0", "n1"].map(|name| Node::open(&cluster.node(name, 2)).unwrap());
    let leader = rank(&cluster, &nodes[0], "0", "10000000", &[]);
    let mut follower = rank(&cluster, &nodes[1], "1", "10000000", &[]);
    until("both run", || rate_of_both(&nodes[0]).and(rate_of_both(&nodes[1])));
    follower.child.kill().unwrap();
    // The peer waits, idle, until its timeout.
    until("rank 0 waits", || {
        (nodes[0].observe().unwrap().state.gpus[0].power == nodes[0].model().idle).then_some(())
    });
    let from = wall_us();
    let (status, _, err) = leader.output();
    assert!(status.code() == Some(1) && err.contains("rank 1 of this job has died"), "{err}");
    assert!(wall_us() - from > 1_000_000, "a short absence is tolerated");
}

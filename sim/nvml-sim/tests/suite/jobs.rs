//! `wattle-simjob` as a launcher, a profiler and a reader of its log meet it.

use std::path::Path;

use crate::support::{HEAVY, Job, Place, next_line, rate_when, until};
use nvml_sim::node::{Node, wall_us};
use wattle_common::Power;

fn args<'a>(steps: &'a str, per_epoch: &'a str) -> [&'a str; 6] {
    ["--workload", HEAVY, "--steps", steps, "--steps-per-epoch", per_epoch]
}

fn kept(dir: &Path) -> Option<u64> {
    let bytes = std::fs::read(dir.join("simjob.json")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    json["steps"].as_u64()
}

#[test]
fn a_job_trains_reports_and_ends() {
    let place = Place::new(600);
    let node = Node::open(&place.node("n0", 2)).unwrap();
    let (socket, path) = place.socket("progress");
    let job =
        Job::start(node.path(), "1", "job-1", &args("3000", "1000"), &[("WATTLE_PROGRESS", &path)]);
    let rate = rate_when(&node, "job-1", |view| {
        view.state.cards[0].shares.is_empty() && view.state.cards[1].shares.len() == 1
    });
    let mut last = 0;
    let mut epochs = std::collections::BTreeSet::new();
    let mut first: Option<(u64, u64)> = None;
    loop {
        let line = next_line(&socket);
        assert_eq!(line.job.as_str(), "job-1");
        assert_eq!((line.steps_total, line.steps_per_epoch), (Some(3_000), Some(1_000)));
        assert_eq!(line.epoch.map(u64::from), Some(line.step / 1_000));
        assert!(line.step >= last, "steps went back");
        last = line.step;
        epochs.insert(line.epoch);
        // No drift: steps follow from elapsed time and speed, at 600 system seconds a second.
        let now = node.now().as_us();
        if let Some((step, at)) = first.filter(|_| line.step < 3_000) {
            let could = (now - at) as f64 / 1e6 * rate;
            let did = (line.step - step) as f64;
            assert!(
                did <= could + 1.0 + rate * 600.0 * 0.05,
                "{did} steps where {could} were possible"
            );
        }
        first.get_or_insert((line.step, now));
        if line.step == 3_000 {
            break;
        }
    }
    assert_eq!(epochs.len(), 4, "each epoch's end was reported: {epochs:?}");
    let (status, out, err) = job.said();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
    assert!(out.starts_with("job-1: ") && out.ends_with("done: 3000 steps\n"), "{out}");
    assert_eq!(out.matches("epoch ").count(), 2, "{out}");
    until("the card is free", || {
        node.look().unwrap().state.cards[1].shares.is_empty().then_some(())
    });
}

#[test]
fn its_speed_is_the_worlds_at_every_rate() {
    for rate in [60, 600] {
        let place = Place::new(rate);
        let node = Node::open(&place.node("n0", 1)).unwrap();
        let mut job = Job::start(node.path(), "0", "j", &args("1000000", "1000000"), &[]);
        let speed = rate_when(&node, "j", |_| true);
        let look = || {
            let view = node.look().unwrap();
            let claim = view.state.claims[0].clone().unwrap();
            (view.state.steps(&claim, view.at), view.at)
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
fn a_signal_makes_it_keep_its_steps_and_go() {
    for signal in ["USR1", "TERM"] {
        let place = Place::new(600);
        let node = Node::open(&place.node("n0", 1)).unwrap();
        let keep = place.dir().join("keep");
        let more: [(&str, &Path); 1] = [("WATTLE_CHECKPOINT_DIR", &keep)];
        // One epoch longer than the test: only the signal makes it keep anything.
        let job = Job::start(node.path(), "0", "j", &args("200000", "100000"), &more);
        rate_when(&node, "j", |view| {
            let claim = view.state.claims[0].as_ref();
            claim.is_some_and(|claim| view.state.steps(claim, view.at) > 50)
        });
        assert_eq!(kept(&keep), None);
        job.signal(signal);
        let (status, out, _) = job.said();
        assert_eq!(status.code(), Some(0), "{out}");
        let steps = kept(&keep).expect("a checkpoint");
        assert!(steps > 50 && out.contains(&format!("checkpoint at step {steps}")), "{out}");

        let (socket, path) = place.socket("progress");
        let more: [(&str, &Path); 2] = [more[0], ("WATTLE_PROGRESS", &path)];
        let job = Job::start(node.path(), "0", "j", &args("200000", "100000"), &more);
        let line = next_line(&socket);
        assert!(line.step >= steps && line.step < steps + 5_000, "{} after {steps}", line.step);
        drop(job);
    }
}

#[test]
fn told_to_stop_with_nowhere_to_keep_its_steps_it_fails() {
    let place = Place::new(600);
    let node = Node::open(&place.node("n0", 1)).unwrap();
    let job = Job::start(node.path(), "0", "j", &args("200000", "100000"), &[]);
    rate_when(&node, "j", |_| true);
    job.signal("USR1");
    let (status, _, err) = job.said();
    assert!(status.code() == Some(1) && err.contains("WATTLE_CHECKPOINT_DIR"), "{err}");
}

#[test]
fn a_killed_job_goes_on_from_its_last_epoch() {
    let place = Place::new(600);
    let node = Node::open(&place.node("n0", 1)).unwrap();
    let keep = place.dir().join("keep");
    let more: [(&str, &Path); 1] = [("WATTLE_CHECKPOINT_DIR", &keep)];
    let mut job = Job::start(node.path(), "0", "j", &args("2000", "250"), &more);
    until("two epochs are kept", || kept(&keep).filter(|steps| *steps >= 500));
    job.child.kill().unwrap();
    job.wait();
    let steps = kept(&keep).unwrap();
    assert!(steps < 2_000);
    let (status, out, _) = Job::start(node.path(), "0", "j", &args("2000", "250"), &more).said();
    assert_eq!(status.code(), Some(0));
    assert!(out.contains(&format!("step {steps} of 2000")) && out.contains("done: 2000"), "{out}");
    assert_eq!(kept(&keep), Some(2_000));
    // Started once more, it has nothing left to do.
    let (status, out, _) = Job::start(node.path(), "0", "j", &args("2000", "250"), &more).said();
    assert!(status.success() && out.contains("done: 2000"), "{out}");
}

#[test]
fn nobody_listening_and_a_full_socket_do_not_hurt_it() {
    let place = Place::new(600);
    let node = Node::open(&place.node("n0", 1)).unwrap();
    let absent = place.dir().join("nobody");
    let more: [(&str, &Path); 1] = [("WATTLE_PROGRESS", &absent)];
    let (status, out, _) = Job::start(node.path(), "0", "j", &args("500", "5"), &more).said();
    assert!(status.success() && out.contains("done: 500"), "{out}");

    let (socket, path) = place.socket("full");
    let filler = std::os::unix::net::UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    let mut stuffed = 0;
    while filler.send_to(b"job=filler step=1", &path).is_ok() {
        stuffed += 1;
    }
    let more: [(&str, &Path); 1] = [("WATTLE_PROGRESS", &path)];
    let job = Job::start(node.path(), "0", "j", &args("500", "5"), &more);
    until("it has done its steps", || {
        let view = node.look().unwrap();
        let claim = view.state.claims.iter().flatten().next()?;
        (view.state.steps(claim, view.at) >= 500).then_some(())
    });
    // Somebody reads at last: the final line comes through.
    for _ in 0..stuffed {
        assert_eq!(next_line(&socket).job.as_str(), "filler");
    }
    assert_eq!(next_line(&socket).step, 500);
    assert!(job.said().0.success());
}

#[test]
fn wrong_usage_says_what_to_do() {
    let place = Place::new(1);
    let state = place.node("n0", 2);
    let fails = |gpus: &str, args: &[&str], state: &Path| {
        let (status, out, err) = Job::start(state, gpus, "j", args, &[]).said();
        assert_eq!(out, "");
        (status.code(), err)
    };
    let (code, said) = fails("0", &["--workload", "teapot"], &state);
    assert!(code == Some(2) && said.contains(HEAVY), "{said}");
    let (code, said) = fails("7", &args("1", "1"), &state);
    assert!(code == Some(2) && said.contains("none of the 2 cards"), "{said}");
    let (code, said) = fails("", &args("1", "1"), &state);
    assert!(code == Some(2) && said.contains("at least one"), "{said}");
    let (code, said) = fails("0", &args("0", "1"), &state);
    assert!(code == Some(2) && said.contains("--steps"), "{said}");
    let (code, said) = fails("0", &args("1", "1"), &place.dir().join("none"));
    assert!(code == Some(1) && said.contains("wattle-simnode create"), "{said}");
    // Too much memory for one card is what it would be on a real one: the job fails.
    let heavy = ["--workload", "resnet50-imagenet-b256", "--steps", "100000000"];
    let _first = Job::start(&state, "0", "a", &heavy, &[]);
    rate_when(&Node::open(&state).unwrap(), "a", |_| true);
    let (code, said) = fails("0", &heavy, &state);
    assert!(code == Some(1) && said.contains("out of memory"), "{said}");
}

/// Starts one rank of a job over two nodes.
fn rank(place: &Place, node: &Node, rank: &str, steps: &str, more: &[(&str, &Path)]) -> Job {
    let keep = place.dir().join("keep");
    let mut all: Vec<(&str, &Path)> = vec![
        ("PET_NNODES", Path::new("2")),
        ("PET_NODE_RANK", Path::new(rank)),
        ("WATTLE_CHECKPOINT_DIR", &keep),
    ];
    all.extend_from_slice(more);
    Job::start(node.path(), "0,1", "wide", &args(steps, "100000"), &all)
}

fn pace(node: &Node) -> Option<f64> {
    let view = node.look().unwrap();
    let claim = view.state.claims.iter().flatten().next()?;
    (claim.gpus_total == 4 && claim.rate() > 0).then(|| claim.rate() as f64 / 1e9)
}

#[test]
fn a_job_on_two_nodes_goes_at_the_slower_ones_pace() {
    let place = Place::new(600);
    let nodes = ["n0", "n1"].map(|name| Node::open(&place.node(name, 2)).unwrap());
    let (socket, path) = place.socket("progress");
    let leader = rank(&place, &nodes[0], "0", "3000", &[("WATTLE_PROGRESS", &path)]);
    // Alone it waits: it holds memory, draws nothing and makes no step.
    until("rank 0 waits", || {
        let view = nodes[0].look().unwrap();
        let there = view.state.cards[0].shares.len() == 1;
        (there && view.state.cards[0].power == nodes[0].gpu().idle).then_some(())
    });
    assert_eq!(next_line(&socket).step, 0);
    let follower = rank(&place, &nodes[1], "1", "3000", &[]);
    let free = until("both run", || pace(&nodes[0]).filter(|a| Some(*a) == pace(&nodes[1])));

    // One card of the other node is slowed: the whole job is.
    let cap = Power::from_w(100);
    nodes[1].update(|state, physics, at| state.set_cap(physics, at, 1, cap)).unwrap();
    let slow = until("the pace falls", || pace(&nodes[0]).filter(|pace| *pace < 0.9 * free));
    let view = nodes[1].look().unwrap();
    let here = view.state.claims.iter().flatten().next().unwrap().rate_here as f64 / 1e9;
    assert!((slow - here).abs() < 1e-9, "{slow} and {here}");

    let last = until("the last line", || Some(next_line(&socket)).filter(|l| l.step == 3_000));
    assert_eq!(last.job.as_str(), "wide");
    for (job, word) in [(leader, "done: 3000"), (follower, "rank 0 has ended")] {
        let (status, out, err) = job.said();
        assert!(status.success() && out.contains(word), "{out}{err}");
    }
}

#[test]
fn stopping_one_rank_stops_all_with_a_checkpoint() {
    for told in [0, 1] {
        let place = Place::new(600);
        let nodes = ["n0", "n1"].map(|name| Node::open(&place.node(name, 2)).unwrap());
        let jobs = [
            rank(&place, &nodes[0], "0", "10000000", &[]),
            rank(&place, &nodes[1], "1", "10000000", &[]),
        ];
        until("both run", || pace(&nodes[0]).and(pace(&nodes[1])));
        jobs[told].signal("USR1");
        for job in jobs {
            let (status, out, err) = job.said();
            assert!(status.success(), "rank {told} was told; {out}{err}");
        }
        assert!(kept(&place.dir().join("keep")).is_some());
    }
}

#[test]
fn a_dead_rank_fails_the_others() {
    let place = Place::new(60);
    let nodes = ["n0", "n1"].map(|name| Node::open(&place.node(name, 2)).unwrap());
    let leader = rank(&place, &nodes[0], "0", "10000000", &[]);
    let mut follower = rank(&place, &nodes[1], "1", "10000000", &[]);
    until("both run", || pace(&nodes[0]).and(pace(&nodes[1])));
    follower.child.kill().unwrap();
    // It waits, idle, as in a collective that never ends; then it gives up.
    until("rank 0 waits", || {
        (nodes[0].look().unwrap().state.cards[0].power == nodes[0].gpu().idle).then_some(())
    });
    let from = wall_us();
    let (status, _, err) = leader.said();
    assert!(status.code() == Some(1) && err.contains("rank 1 of this job is gone"), "{err}");
    assert!(wall_us() - from > 1_000_000, "a moment's absence is no death");
}

//! The live road: from submit to finish, sharing, caps, undo, on the whole system.

use std::collections::BTreeSet;

use serde_json::Value;
use wattle_common::codec;
use wattle_common::job::JobPhase;
use wattle_common::messages::{GpuSummary, JobWindow, NodeSummary, RecordedReason};
use wattle_common::subject::{NodeTopic, Subject, Topic};
use wattle_common::{NodeId, Power};
use wattle_tests::{System, reflects, until};

/// The next summary of `n0` for whose GPU 0 `wanted` holds.
async fn until_gpu0(
    system: &System,
    what: &str,
    wanted: impl Fn(&GpuSummary) -> bool,
) -> GpuSummary {
    let node = NodeId::new("n0").unwrap();
    let subject = Subject::of_node(system.bus.cluster().clone(), NodeTopic::NodeSummarized, node);
    let mut summaries = system.bus.subscribe(&subject.to_string()).await.unwrap();
    until(what, async || {
        let delivery = summaries.next().await?;
        let summary: NodeSummary = codec::decode_json(&delivery.payload).unwrap();
        summary.gpus.into_iter().find(|gpu| gpu.gpu == 0).filter(|gpu| wanted(gpu))
    })
    .await
}

#[tokio::test]
async fn a_job_goes_from_submit_to_finish() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "120", "--policy", "fifo"]).await;
    let job = system.submit(
        "first",
        &["--gpus", "2", "--workload", "eaco-resnet50"],
        &["--workload", "eaco-resnet50", "--steps", "600", "--steps-per-epoch", "200"],
    );
    let record = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(record.phase, JobPhase::Finished, "{}", system.logs());
    assert_eq!((record.exit_code, record.attempt), (Some(0), 1));
    assert!(record.started_at_us.unwrap() >= record.spec.submitted_at_us);
    assert!(record.ended_at_us.unwrap() > record.started_at_us.unwrap());
    assert_eq!(record.steps_total, Some(600), "it reported its steps");

    // What a person sees of it.
    let jobs = system.json(&["jobs", "--all", "--json"]);
    assert_eq!(jobs[0]["spec"]["job"], "first");
    let explained = system.wattle(&["explain", "first"]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("fifo:") && explained.contains("n0:0,1"), "{explained}");
    let output = std::fs::read_to_string(&record.log_paths[0]).unwrap();
    assert!(output.contains("epoch"), "the job's own output: {output}");

    // The GPU is free again, and its idle draw shows.
    let idle = until_gpu0(&system, "GPU 0 is idle again", |gpu| gpu.jobs.is_empty()).await;
    assert!(idle.power_mw_mean.is_some() && idle.error.is_none());
    assert!(system.end().await.success());
}

#[tokio::test]
async fn two_jobs_share_a_gpu_and_both_reports_show_it() {
    let mut system = System::up(&["--simulated", "1x1:v100", "--rate", "120"]).await;
    let mut windows =
        system.bus.subscribe(&Topic::WindowClosed.pattern(system.bus.cluster())).await.unwrap();
    // The first of its kind runs alone; what was learned of it lets the next two share.
    let of_kind = ["--workload", "eaco-alexnet"];
    let steps =
        |steps| ["--workload", "eaco-alexnet", "--steps", steps, "--steps-per-epoch", "500"];
    let first = system.submit("first", &of_kind, &steps("1000"));
    system.until_job(&first, "it is finished", |r| r.phase == JobPhase::Finished).await;
    let a = system.submit("a", &of_kind, &steps("100000000"));
    let b = system.submit("b", &of_kind, &steps("100000000"));
    system.until_job(&a, "it runs", |r| r.phase == JobPhase::Running).await;
    system.until_job(&b, "it runs beside the other", |r| r.phase == JobPhase::Running).await;

    let shared = until_gpu0(&system, "both jobs are on GPU 0", |gpu| gpu.jobs.len() == 2).await;
    assert_eq!(shared.jobs.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&a, &b]));
    let mut explained = BTreeSet::new();
    let window = until("a window of each names the other", async || {
        let delivery = windows.next().await?;
        let window: JobWindow = codec::decode_json(&delivery.payload).unwrap();
        let other = if window.job == a { &b } else { &a };
        if window.neighbours.iter().any(|n| n.job == *other) {
            explained.insert(window.job.clone());
        }
        (explained.len() == 2).then_some(window)
    })
    .await;
    // The GPU's power is divided between the two, and neither has all of it.
    let (gpu, part) = (window.power_mw_gpus.unwrap(), window.power_mw_job.unwrap());
    assert!(part > Power::ZERO && part < gpu, "{part} of {gpu}");
    assert!(system.end().await.success());
}

/// That the job draws more without the cap, `node::a_cap_ordered_is_a_cap_applied_and_shows_in_power` asserts.
#[tokio::test]
async fn a_configured_cap_is_ordered_shown_and_removed_at_the_end() {
    const CAP_W: u64 = 120;
    let args = ["--simulated", "1x1:v100", "--rate", "120", "--policy", "fifo"];
    let training = [
        "--workload",
        "resnet50-imagenet-b128",
        "--steps",
        "100000000",
        "--steps-per-epoch",
        "10000",
    ];
    // A summary in which the job trains from beginning to end: the mean of one in which it was
    // idle for a part is low without any cap.
    let busy = |gpu: &GpuSummary| gpu.utilization_gpu_percent_mean.is_some_and(|u| u > 90);
    let watts = CAP_W.to_string();
    let mut capped = System::up(&[&args[..], &["--gpu-cap-w", &watts]].concat()).await;
    capped.submit("hot", &[], &training);
    let shown = until_gpu0(&capped, "the cap stands and the job runs under it", |gpu| {
        busy(gpu) && gpu.cap_mw == Some(Power::from_w(CAP_W)) && !gpu.jobs.is_empty()
    })
    .await;
    assert!(shown.power_mw_mean.unwrap() <= Power::from_w(CAP_W), "{shown:?}");
    // The hardware has the cap before the power agent reports it.
    reflects::orders(&capped.bus, "n0").await;
    let nodes = capped.json(&["nodes", "--json"]);
    assert_eq!(nodes[0]["power"]["gpus"][0]["cap_mw"], Value::from(CAP_W * 1_000));

    // The system ends: the GPU has its default again.
    let state = capped.node_state("n0");
    let show = || {
        let simnode = wattle_tests::program("wattle-simnode");
        let output = std::process::Command::new(simnode)
            .args(["show", "--json", "--state"])
            .arg(&state)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(show().contains("120000"), "{}", show());
    assert!(capped.end().await.success());
    assert!(!show().contains("120000"), "{}", show());
}

/// A job that claims to be of a light kind and is not: the prediction lets it in, the observation
/// finds it out, and the job with the deadline is saved.
#[tokio::test]
async fn eaco_undoes_a_placement_that_breaks_a_deadline() {
    let system = System::up(&["--simulated", "1x1:v100", "--rate", "60", "--policy", "eaco"]).await;
    // A real one of the light kind, so that the predictor knows it: three minutes alone.
    let light = system.submit(
        "light",
        &["--workload", "eaco-alexnet"],
        &["--workload", "eaco-alexnet", "--steps", "600", "--steps-per-epoch", "100"],
    );
    system.until_job(&light, "it is finished", |r| r.phase == JobPhase::Finished).await;
    // Alone it takes 28 minutes. Beside the impostor it runs at 0.7 of that, and would end after
    // about 40; beside a light one it would keep its deadline easily. An epoch is long enough for a
    // measured speed on a busy machine. Both are submitted at one instant: the impostor must not begin late.
    let held = system.hold();
    let tight = system.submit(
        "tight",
        &["--workload", "eaco-resnet18", "--deadline", "34m", "--estimate", "29m"],
        &["--workload", "eaco-resnet18", "--steps", "4000", "--steps-per-epoch", "100"],
    );
    let impostor = system.submit(
        "impostor",
        &["--workload", "eaco-alexnet"],
        &["--workload", "resnet50-imagenet-b128", "--steps", "1500", "--steps-per-epoch", "100"],
    );
    drop(held);
    // Its record keeps that it was observed beside the other, and taken off.
    let undone = system
        .until_job(&impostor, "it is undone", |r| {
            let is_undo = |reason: &RecordedReason| {
                reason.decision == "taken off n0:0" && reason.reason.contains("deadline")
            };
            r.reasons.iter().any(is_undo)
        })
        .await;
    assert!(undone.step.is_some_and(|step| step > 0), "it had run: {undone:#?}");
    let tight = system.until_job(&tight, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!((tight.phase, tight.attempt), (JobPhase::Finished, 1), "{}", system.logs());
    assert!(tight.ended_at_us <= tight.spec.deadline_at_us, "the deadline was kept: {tight:#?}");
    // The misdeclared job continues exclusively from its checkpoint.
    let end = system.until_job(&impostor, "it is finished too", |r| r.phase.is_final()).await;
    assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 2), "{end:#?}\n{}", system.logs());
    let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
    let resumed = output.lines().skip_while(|line| !line.contains("attempt 2")).nth(1).unwrap();
    assert!(!resumed.contains("step 0 of"), "it restarted from step 0: {output}");
}

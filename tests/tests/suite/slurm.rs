//! Wattle beside a real Slurm: jobs by plain `sbatch`, placed, shared, resized, cancelled and killed. The states of
//! Slurm, its accounting, the records and the ledger must agree.
//!
//! Where Slurm's packages cannot be had the test prints that it did not run.

use tokio::sync::{Semaphore, SemaphorePermit};
use wattle_common::Frequency;
use wattle_common::job::JobPhase;
use wattle_common::messages::{AppliedGpu, JobRecord};
use wattle_runtime::testing::skipped;
use wattle_tests::slurm_site::{ENDLESS, Setup, SlurmSite};
use wattle_tests::until;

pub(crate) const SETUP: Setup = Setup {
    prefix: "wt",
    port: 17_400,
    nodes: 3,
    gpus: 4,
    level: "exact",
    policy: "wattle",
    conf: "",
};

/// Two sites at a time: each has slurmctld, slurmdbd and MariaDB beside the services.
static SITES: Semaphore = Semaphore::const_new(2);

/// The site, or a note that the test did not run.
pub(crate) async fn site(setup: Setup) -> Option<(SemaphorePermit<'static>, SlurmSite)> {
    let turn = SITES.acquire().await.ok()?;
    match SlurmSite::start(setup).await {
        Ok(site) => Some((turn, site)),
        Err(reason) => {
            skipped(&reason);
            None
        }
    }
}

/// The fields of a job that has ended, when the accounting has its end: slurmctld reports it to slurmdbd later.
async fn accounted_end(site: &SlurmSite, id: u32) -> Vec<String> {
    until("the end is in Slurm's accounting", async || {
        let fields = accounted(site, id);
        let open = ["", "PENDING", "RUNNING", "COMPLETING"].contains(&fields[0].as_str());
        (!open).then_some(fields)
    })
    .await
}

/// The fields of the last run of a job in the accounting database. A job that completes while Wattle requeues it
/// is back in the queue afterwards, where Wattle cancels it: this row has no nodes and is no run.
fn accounted(site: &SlurmSite, id: u32) -> Vec<String> {
    let job = id.to_string();
    let format = "--format=state,nodelist,alloctres,admincomment";
    let output = site.as_user("root", &["sacct", "-X", "-D", "-P", "-n", "-j", &job, format]);
    let rows = output.lines().map(|row| row.split('|').map(str::to_owned).collect::<Vec<_>>());
    let rows: Vec<_> = rows.collect();
    let run = rows.iter().rfind(|row| row.get(1).is_some_and(|nodes| nodes != "None assigned"));
    run.or(rows.last()).cloned().unwrap_or_else(|| vec![String::new()])
}

#[tokio::test]
async fn plain_batch_jobs_are_placed_followed_and_accounted() {
    let Some((_turn, mut site)) = site(SETUP).await else { return };
    let users = ["games", "news"];
    // As users write them: each spelling of a GPU request.
    let requests: [&[&str]; 6] = [
        &["--gres=gpu:1"],
        &["--gpus=2"],
        &["--gpus-per-node=1"],
        &["--gpus-per-task=1", "-n1"],
        &["--gres=gpu:v100:2"],
        &["-N2", "--gpus-per-node=1"],
    ];
    let limited = site.wattle(&["budget", "set", "--power-kw", "1.6"]);
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    // The first six run together, until a cap has been seen.
    let steps = |at: usize| if at < requests.len() { ENDLESS } else { 6 };
    let submit = |at: usize| site.sbatch(users[at % 2], requests[at % requests.len()], steps(at));
    let ids: Vec<u32> = (0..12).map(submit).collect();
    let array = site.sbatch("games", &["--gres=gpu:1", "--array=0-3"], 6);
    let dependency = format!("--dependency=afterok:{array}");
    let dependent = site.sbatch("games", &["--gres=gpu:1", &dependency], 6);
    until("a cap is below its default", async || {
        let mut lowered = false;
        for node in &site.nodes {
            let report = site.power_report(node).await?;
            lowered |= report.gpus.iter().any(|gpu| gpu.cap_mw < gpu.cap_mw_default);
        }
        lowered.then_some(())
    })
    .await;
    let mut endless = ids[..requests.len()].to_vec();
    until("they have run", async || {
        for id in std::mem::take(&mut endless) {
            let records = site.records_of(id).await;
            if records.iter().any(|record| record.phase == JobPhase::Running) {
                site.complete(id).await;
            } else {
                endless.push(id);
            }
        }
        endless.is_empty().then_some(())
    })
    .await;
    for &id in &ids {
        let end = site.until_job(id, "it has finished", |record| record.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
        let fields = accounted_end(&site, id).await;
        assert_eq!(fields[0], "COMPLETED", "{fields:?}");
        // A slow Slurm may not start it where it was placed first.
        let mut reasons = end.reasons.iter().rev();
        let decided = reasons.find(|reason| reason.decision.starts_with("placed on"));
        let at = decided.map(|reason| reason.decision.trim_start_matches("placed on ").to_owned());
        let at = at.unwrap_or_else(|| panic!("{end:#?}"));
        // `wt1:0,1 wt2:0,1`: the same GPUs in Slurm's accounting.
        for share in at.split(' ') {
            let (_, gpus) = share.split_once(':').unwrap();
            for gpu in gpus.split(',') {
                let named = format!("gres/gpu:g{gpu}=");
                assert!(fields[2].contains(&named), "{at} is {} in the accounting", fields[2]);
            }
        }
    }
    let end = site.until_job(dependent, "it has finished", |record| record.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
    let command = ["sacct", "-X", "-P", "-n", "-o", "state", "-j", &array.to_string()];
    until("all tasks of the array are completed in the accounting", async || {
        (site.as_user("root", &command) == ["COMPLETED"; 4].join("\n")).then_some(())
    })
    .await;
    assert!(site.wattle(&["budget", "clear"]).status.success());
    // An owner consents to a requeue and to other numbers of GPUs.
    let terms = "--comment=wattle: gpus=1..4 signal=TERM workload=eaco-alexnet";
    let elastic = site.sbatch("games", &["--gres=gpu:1", "--requeue", terms], 60);
    // The service is killed while a job runs, and slurmctld is killed and started.
    let options = ["--gres=gpu:2", "--comment=wattle: workload=eaco-alexnet"];
    let long = site.sbatch("games", &options, ENDLESS);
    let running = site.until_job(long, "it runs", |record| record.phase == JobPhase::Running).await;
    let attempt = running.attempt;
    site.until_saved().await;
    site.kill_9("slurm", "control");
    let killed = site.cluster("kill-ctld", &[]);
    assert!(killed.status.success());
    assert!(site.cluster("start-ctld", &[]).status.success());
    site.run("slurm", "control");
    // A job is cancelled by its owner while it is held, another while it runs.
    let held = site.sbatch("news", &["--gres=gpu:4", "-N3"], ENDLESS);
    site.until_job(held, "it is queued", |record| record.phase == JobPhase::Queued).await;
    site.as_user("news", &["scancel", &held.to_string()]);
    site.until_job(held, "it is cancelled", |record| record.phase == JobPhase::Cancelled).await;
    let running = site.sbatch("news", &["--gres=gpu:1"], ENDLESS);
    let record = site.until_job(running, "it runs", |r| r.phase == JobPhase::Running).await;
    let cancelled = site.wattle(&["cancel", record.spec.job.as_str()]);
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    site.until_job(running, "it is cancelled", |r| r.phase == JobPhase::Cancelled).await;
    until("Slurm has cancelled it", async || {
        accounted(&site, running)[0].starts_with("CANCELLED").then_some(())
    })
    .await;
    let end = site.until_job(elastic, "it has finished", |record| record.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
    assert_eq!(accounted_end(&site, elastic).await[0], "COMPLETED");
    site.complete(long).await;
    let end = site.until_job(long, "it has finished", |record| record.phase.is_final()).await;
    let ran_on = (end.phase, end.attempt) == (JobPhase::Finished, attempt);
    assert!(ran_on, "started again: {end:#?}\n{}", site.logs());
    assert_eq!(accounted_end(&site, long).await[0], "COMPLETED");
    // The energy is in the ledger, in the record and in Slurm's accounting.
    let job = end.spec.job.clone();
    let comment = until("the energy is in Slurm's accounting", async || {
        let comment = accounted(&site, long).pop()?;
        comment.contains("energy_j=").then_some(comment)
    })
    .await;
    let text = comment.split_whitespace().find_map(|word| word.strip_prefix("energy_j="));
    let accounted_j: f64 = text.unwrap().parse().unwrap();
    let ledger_j = site.ledger_j(&job).await.unwrap();
    assert!(
        accounted_j > 0.0 && (accounted_j - ledger_j).abs() <= 0.01 * ledger_j + 1.0,
        "{accounted_j} J in the accounting, {ledger_j} J in the ledger"
    );
    // Slurm is ready for the level, and gets its jobs back by one command.
    let check = site.wattle(&["slurm", "check", "--user", "daemon", "--level", "exact"]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && text.contains("level exact: ready"), "{text}");
    let later = site.sbatch("games", &["--gres=gpu:1", "--begin=now+1hour"], 1);
    // The intake holds it as its owner would, and the service then as an administrator.
    site.until_reason(later, "JobHeldAdmin").await;
    let refused = site.wattle(&["slurm", "release-all", "--user", "daemon"]);
    assert_eq!(refused.status.code(), Some(2), "the service runs");
    site.kill_9("slurm", "control");
    let released = until("the heartbeat is old", async || {
        let released = site.wattle(&["slurm", "release-all", "--user", "daemon"]);
        released.status.success().then_some(released)
    })
    .await;
    let text = String::from_utf8_lossy(&released.stdout).into_owned();
    assert!(text.lines().any(|line| line == format!("{later} released")), "{text}");
    site.until_reason(later, "BeginTime").await;
}

/// The steps of jobs that Slurm places reach the profiler.
const TASK_PROLOG: &str = "TaskProlog={folder}/etc/task_prolog.sh\n";

/// At the level `caps` nothing but the prolog is changed in Slurm, and its jobs get caps.
#[tokio::test]
async fn jobs_that_slurm_places_are_followed_and_get_caps() {
    let (level, conf) = ("caps", TASK_PROLOG);
    let setup = Setup { prefix: "wc", port: 17_500, nodes: 1, gpus: 2, level, conf, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let limited = site.wattle(&["budget", "set", "--power-kw", "0.45"]);
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    let first = site.sbatch("games", &["--gres=gpu:1"], ENDLESS);
    let second = site.sbatch("news", &["--gres=gpu:1"], ENDLESS);
    for (id, gpu) in [(first, 0), (second, 1)] {
        let record = site.until_job(id, "it runs", |r| r.phase == JobPhase::Running).await;
        assert!(record.spec.site.as_ref().is_some_and(|site| site.placed_by_site), "{record:#?}");
        let placement = record.placement.as_ref().map(ToString::to_string);
        assert_eq!(placement, Some(format!("wc1:{gpu}")), "Slurm takes the lowest free GPU");
    }
    let caps = until("both caps are below their default", async || {
        let report = site.power_report("wc1").await?;
        let lowered = report.gpus.iter().all(|gpu| gpu.cap_mw < gpu.cap_mw_default);
        let caps = report.gpus.iter().filter_map(|gpu| gpu.cap_mw);
        lowered.then(|| caps.map(wattle_common::Power::as_w).sum::<f64>())
    })
    .await;
    assert!(caps <= 450.0, "the sum of the caps is {caps} W");
    for id in [first, second] {
        let reports = |record: &JobRecord| record.step.is_some_and(|step| step > 0);
        site.until_job(id, "it reports steps", reports).await;
        site.complete(id).await;
        let end = site.until_job(id, "it has finished", |record| record.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
        assert_eq!(accounted_end(&site, id).await[0], "COMPLETED");
    }
    let failing =
        site.as_user("games", &["sbatch", "--parsable", "--gres=gpu:1", "--wrap=sleep 3; exit 7"]);
    let failing: u32 = failing.parse().unwrap();
    let end = site.until_job(failing, "it has ended", |record| record.phase.is_final()).await;
    assert_eq!((end.phase, end.exit_code), (JobPhase::Failed, Some(7)), "{end:#?}");
}

/// At the level `advise` Slurm gets no command and GPUs keep their caps; decisions and energy are shown.
#[tokio::test]
async fn advice_changes_nothing() {
    let (level, policy) = ("advise", "fifo@1095");
    let setup = Setup { prefix: "wa", port: 17_200, nodes: 1, gpus: 2, level, policy, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let terms = "--comment=wattle: workload=eaco-alexnet";
    let jobs = ["games", "news"].map(|user| site.sbatch(user, &["--gres=gpu:1", terms], ENDLESS));
    for id in jobs {
        site.until_job(id, "it runs", |record| record.phase == JobPhase::Running).await;
    }
    let report = until("other settings are advised for both GPUs", async || {
        let report = site.power_report("wa1").await?;
        let clock = Frequency::from_mhz(1_095);
        let is_lower = |gpu: &AppliedGpu| gpu.clock_mhz_max_advised == Some(clock);
        report.gpus.iter().all(is_lower).then_some(report)
    })
    .await;
    assert!(report.advise_only, "{report:#?}");
    assert!(report.gpus.iter().all(|gpu| gpu.clock_mhz_max.is_none()), "{report:#?}");
    let nodes = site.wattle(&["nodes", "--wide"]);
    let text = String::from_utf8_lossy(&nodes.stdout).into_owned();
    assert!(text.contains("2 with jobs") && text.contains("1095"), "{text}");
    for id in jobs {
        let runs = site.until_job(id, "it is known", |_| true).await;
        until("its energy is in the ledger", async || {
            site.ledger_j(&runs.spec.job).await.ok().filter(|energy_j| *energy_j > 0.0)
        })
        .await;
        site.complete(id).await;
        let end = site.until_job(id, "it has finished", |record| record.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
        let comment = accounted_end(&site, id).await.pop().unwrap_or_default();
        assert_eq!(comment, "", "nothing is written to Slurm");
    }
    let log = site.log("slurm", "control");
    assert!(log.contains("\"submitting\"") && !log.contains("\"command\""), "{log}");
    // The saving of each job, from the accounting of this hour.
    let arguments = ["saving", "--sacct", "1h", "--cluster", "1x2:v100", "--per", "job"];
    let saving = site.wattle(&arguments);
    let text = String::from_utf8_lossy(&saving.stdout).into_owned();
    assert!(saving.status.success(), "{}", String::from_utf8_lossy(&saving.stderr));
    for id in jobs {
        let row = format!("{id} ");
        assert!(text.lines().any(|line| line.starts_with(&row) && line.contains("Wh")), "{text}");
    }
}

/// At the level `start` Wattle chooses nodes and numbers of GPUs, and Slurm their indices.
#[tokio::test]
#[ignore = "minutes: tests/full slurm"]
async fn slurm_chooses_the_gpus_of_jobs_that_wattle_starts() {
    let setup = Setup { prefix: "wb", port: 17_900, nodes: 2, gpus: 2, level: "start", ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let limited = site.wattle(&["budget", "set", "--power-kw", "0.9"]);
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    let terms = "--comment=wattle: gpus=1..2 signal=TERM workload=eaco-alexnet";
    let requests: [&[&str]; 4] = [
        &["-N2", "--gpus-per-node=1"],
        &["--gres=gpu:v100:1"],
        &["--gpus=2"],
        &["--gres=gpu:1", "--requeue", terms],
    ];
    let users = ["games", "news"];
    let steps = |at: usize| if at == 0 { ENDLESS } else { 12 };
    let submit = |at: usize| site.sbatch(users[at % 2], requests[at % requests.len()], steps(at));
    let jobs: Vec<u32> = (0..8).map(submit).collect();
    let wide = site.until_job(jobs[0], "it runs", |r| r.phase == JobPhase::Running).await;
    let placed = wide.placement.as_ref().expect("it runs");
    assert_eq!(placed.shares.len(), 2, "{placed}");
    let shown = site.as_user("root", &["scontrol", "show", "job", "-d", &jobs[0].to_string()]);
    for share in &placed.shares {
        let index = format!("Nodes={} ", share.node);
        let line = shown.lines().find(|line| line.contains(&index)).unwrap_or(&shown);
        assert!(line.contains(&format!("gpu:v100:1(IDX:{})", share.gpus[0])), "{placed} is {line}");
    }
    site.complete(jobs[0]).await;
    for id in jobs {
        let end = site.until_job(id, "it has finished", |record| record.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
        assert_eq!(accounted_end(&site, id).await[0], "COMPLETED");
        let decided = end.reasons.iter().any(|reason| reason.decision.starts_with("placed on"));
        assert!(decided, "Wattle has started it: {end:#?}");
    }
}

/// At the level `share` Slurm runs two jobs on one GPU, if both owners consent.
#[tokio::test]
async fn jobs_share_a_gpu_with_the_consent_of_both_owners() {
    let (level, policy) = ("share", "eaco");
    let setup = Setup { prefix: "wg", port: 17_300, nodes: 1, gpus: 1, level, policy, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let consents = "--comment=wattle: share signal=TERM workload=eaco-alexnet";
    let refuses = "--comment=wattle: workload=eaco-alexnet";
    let options = |comment| ["--gres=gpu:1", "-c2", "--mem=2G", "--requeue", comment];
    // A job of the same workload is measured alone before.
    let known = site.sbatch("games", &options(consents), 60);
    site.until_job(known, "it has finished", |record| record.phase == JobPhase::Finished).await;
    let first = site.sbatch("games", &options(consents), ENDLESS);
    let begun = |record: &JobRecord| record.step.is_some_and(|step| step > 0);
    site.until_job(first, "it reports steps", begun).await;
    let guest = site.sbatch("news", &options(consents), ENDLESS);
    let record = site.until_job(guest, "it runs", |record| record.phase == JobPhase::Running).await;
    let placement = record.placement.as_ref().map(ToString::to_string);
    assert_eq!(placement.as_deref(), Some("wg1:0"), "{record:#?}");
    let queue = site.as_user("root", &["squeue", "-h", "-t", "R", "-O", "jobid:10,tres-alloc:200"]);
    assert_eq!(queue.lines().count(), 2, "{queue}\n{record:#?}");
    assert!(queue.contains("gres/gpu:g0=1") && queue.contains("gres/guest:g0=1"), "{queue}");
    let alone = site.sbatch("news", &options(refuses), ENDLESS);
    site.until_job(alone, "it is queued", |record| record.phase == JobPhase::Queued).await;
    for id in [guest, first] {
        site.complete(id).await;
    }
    let record = site.until_job(alone, "it runs", |record| record.phase == JobPhase::Running).await;
    let queue = site.as_user("root", &["squeue", "-h", "-t", "R", "-O", "jobid"]);
    assert_eq!(queue, alone.to_string(), "{record:#?}");
    site.complete(alone).await;
    for id in [guest, alone, first] {
        let end = site.until_job(id, "it has finished", |record| record.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
        assert_eq!(accounted_end(&site, id).await[0], "COMPLETED");
    }
}

/// A partition beside that of the GPUs whose jobs share cores, for many running jobs.
const TWO_PARTITIONS: &str = "PartitionName=gpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP\n\
     PartitionName=cpu Nodes={nodes} MaxTime=INFINITE State=UP OverSubscribe=FORCE:100\n";
const RUNNING: usize = 1_000;

/// The time from a decision to the running job, and what following a long queue costs slurmctld.
#[tokio::test]
#[ignore = "a measurement of minutes"]
async fn measure_latency_and_load() {
    let setup = Setup { prefix: "wm", port: 17_600, conf: TWO_PARTITIONS, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let mut latencies = Vec::new();
    for _ in 0..20 {
        let id = site.sbatch("games", &["--gres=gpu:1"], 9);
        let record = site.until_job(id, "it runs", |record| record.started_at_us.is_some()).await;
        let decided = record.reasons.iter().find(|reason| reason.decision.starts_with("placed on"));
        let decided = decided.expect("a placement").at_us;
        latencies.push(record.started_at_us.expect("it runs").since(decided).as_millis());
        site.until_job(id, "it has ended", |record| record.phase.is_final()).await;
    }
    latencies.sort_unstable();
    result(&format!("decision to running, ms: {latencies:?}"));
    let interval = std::time::Duration::from_secs(60);
    let idle = cpu_over(&site, interval).await;
    result(&format!("slurmctld without jobs: {:.2} % of a core", 100.0 * idle));
    for queued in [2_000, 10_000] {
        let missing = queued - queue_length(&site, "PD");
        let submit = format!(
            "for i in $(seq {missing}); do sbatch -Q --gres=gpu:1 --begin=now+1day --wrap=true; done"
        );
        site.as_user("news", &["bash", "-c", &submit]);
        let load = cpu_over(&site, interval).await;
        result(&format!(
            "slurmctld with {} held jobs: {:.2} % of a core",
            queue_length(&site, "PD"),
            100.0 * load
        ));
    }
    let tasks = format!("--array=1-{RUNNING}");
    let sleeps = ["-p", "cpu", "--mem=1", "-o", "/dev/null", "--wrap=sleep 3600"];
    site.as_user("news", &[&["sbatch", "-Q", &tasks], &sleeps[..]].concat());
    until("they run", async || (queue_length(&site, "R") >= RUNNING).then_some(())).await;
    let load = cpu_over(&site, interval).await;
    result(&format!(
        "slurmctld with {} held and {} running jobs: {:.2} % of a core",
        queue_length(&site, "PD"),
        queue_length(&site, "R"),
        100.0 * load
    ));
}

fn queue_length(site: &SlurmSite, state: &str) -> usize {
    site.as_user("root", &["squeue", "-h", "-r", "-t", state, "-o", "%A"]).lines().count()
}

/// The share of a core that slurmctld takes over an interval.
async fn cpu_over(site: &SlurmSite, interval: std::time::Duration) -> f64 {
    let before = site.controller_cpu();
    tokio::time::sleep(interval).await;
    (site.controller_cpu() - before).as_secs_f64() / interval.as_secs_f64()
}

#[expect(clippy::print_stdout, reason = "results of a measurement")]
fn result(line: &str) {
    println!("{line}");
}

//! Long outages of `wattle-slurm`, slurmctld and slurmdbd, while jobs run, end, wait, are submitted and cancelled.
//!
//! `WATTLE_SLURM_OUTAGE_S` sets the length of an outage, 90 s without it. The tests of the three outages may run
//! at the same time.

use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_tests::slurm_site::{Setup, SlurmSite};
use wattle_tests::until;

use crate::slurm::{SETUP, site};

/// Steps of a simulated job in 10 s on one GPU.
const STEPS_IN_10_S: u32 = 27;

fn outage_s() -> u32 {
    let set = std::env::var("WATTLE_SLURM_OUTAGE_S").ok();
    set.map_or(90, |text| text.parse().expect("WATTLE_SLURM_OUTAGE_S is a number of seconds"))
}

/// Jobs of a site, by what they do in the outage.
struct Jobs {
    /// Run through it.
    through: u32,
    /// End in it.
    ends: u32,
    /// Waits in it.
    waits: u32,
    /// Cancelled by its owner: in it, or after it if Slurm does not answer.
    cancelled: u32,
    /// Submitted in it, or after it.
    submitted: Vec<u32>,
    /// Submitted in it, started and ended by Slurm alone: Wattle has never seen it run.
    by_slurm: Option<u32>,
}

async fn start(site: &SlurmSite) -> Jobs {
    let steps = STEPS_IN_10_S * (outage_s() + 60) / 10;
    let through = site.sbatch("games", &["--gres=gpu:1"], steps);
    let ends = site.sbatch("news", &["--gres=gpu:1"], 90);
    let cancelled = site.sbatch("games", &["--gres=gpu:1"], 10 * steps);
    for id in [through, ends, cancelled] {
        site.until_job(id, "it runs", |record| record.phase == JobPhase::Running).await;
    }
    let waits = site.sbatch("news", &["-N2", "--gres=gpu:2"], 9);
    site.until_job(waits, "it is queued", |record| record.phase == JobPhase::Queued).await;
    Jobs { through, ends, waits, cancelled, submitted: Vec::new(), by_slurm: None }
}

async fn pass(percent: u32) {
    tokio::time::sleep(Duration::from_secs(u64::from(outage_s())) * percent / 100).await;
}

async fn check(site: &SlurmSite, jobs: &Jobs) {
    let end = site.until_job(jobs.cancelled, "it has ended", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Cancelled, "{end:#?}\n{}", site.logs());
    if let Some(id) = jobs.by_slurm {
        let command = ["sacct", "-D", "-X", "-n", "-j", &id.to_string(), "-ostate"];
        until("the job has run once in the accounting", async || {
            (site.as_user("root", &command).split_whitespace().eq(["COMPLETED"])).then_some(())
        })
        .await;
    }
    let finish = [jobs.through, jobs.ends, jobs.waits].into_iter().chain(jobs.submitted.clone());
    for id in finish {
        let end = site.until_job(id, "it has ended", |record| record.phase.is_final()).await;
        assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}\n{}", site.logs());
        let runs = until("all runs are in the accounting", async || {
            let id = id.to_string();
            let command =
                ["sacct", "-D", "-X", "-P", "-n", "-j", &id, "--format=state,admincomment"];
            let runs = site.as_user("root", &command);
            runs.contains("energy_j=").then_some(runs)
        })
        .await;
        let states: Vec<&str> = runs.lines().filter_map(|line| line.split('|').next()).collect();
        assert_eq!(states, ["COMPLETED"], "job {id} has run once: {runs}");
        let output = site.output_of(&end);
        assert_eq!(output.lines().filter(|line| line.starts_with("done:")).count(), 1, "{output}");
    }
}

#[tokio::test]
#[ignore = "minutes, or hours"]
async fn nothing_is_lost_while_wattle_slurm_is_away() {
    let setup = Setup { prefix: "wo", port: 18_000, nodes: 2, gpus: 2, ..SETUP };
    let Some((_turn, mut site)) = site(setup).await else { return };
    let mut jobs = start(&site).await;
    site.kill_9("slurm", "control");
    jobs.submitted.push(site.sbatch("news", &["--gres=gpu:1"], 9));
    pass(80).await;
    // The heartbeat is older than its patience of 60 s: Slurm schedules this job itself.
    jobs.by_slurm = Some(site.sbatch("games", &["--gres=gpu:1"], 9));
    site.as_user("games", &["scancel", &jobs.cancelled.to_string()]);
    pass(20).await;
    site.run("slurm", "control");
    check(&site, &jobs).await;
}

#[tokio::test]
#[ignore = "minutes, or hours"]
async fn nothing_is_lost_while_slurmctld_is_away() {
    let setup = Setup { prefix: "wp", port: 18_100, nodes: 2, gpus: 2, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let mut jobs = start(&site).await;
    site.until_saved().await;
    assert!(site.cluster("kill-ctld", &[]).status.success());
    pass(100).await;
    assert!(site.cluster("start-ctld", &[]).status.success());
    // Before its nodes have registered, slurmctld 22.05 starts jobs without GPUs, and does not give back those of
    // cancelled jobs.
    site.until_followed().await;
    jobs.submitted.push(site.sbatch("news", &["--gres=gpu:1"], 9));
    site.as_user("games", &["scancel", &jobs.cancelled.to_string()]);
    check(&site, &jobs).await;
}

#[tokio::test]
#[ignore = "minutes, or hours"]
async fn nothing_is_lost_while_slurmdbd_is_away() {
    let setup = Setup { prefix: "wq", port: 18_200, nodes: 2, gpus: 2, ..SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let mut jobs = start(&site).await;
    assert!(site.cluster("stop-dbd", &[]).status.success());
    jobs.submitted.push(site.sbatch("news", &["--gres=gpu:1"], 9));
    site.as_user("games", &["scancel", &jobs.cancelled.to_string()]);
    pass(100).await;
    assert!(site.cluster("start-dbd", &[]).status.success());
    check(&site, &jobs).await;
}

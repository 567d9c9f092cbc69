//! A real Slurm under faults that are drawn from a seed: slurmctld, slurmdbd, nodes and Wattle's services are
//! killed, nodes are drained, and the owners act against Wattle. No job may be lost, complete twice, or hold a
//! GPU that another job has.
//!
//! `WATTLE_SLURM_SEED` sets the seed, `WATTLE_SLURM_SECONDS` how long faults are drawn.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::rng::Stream;
use wattle_runtime::clock;
use wattle_tests::slurm_site::{Setup, SlurmSite};

use crate::slurm::site;

const NODES: u64 = 3;
/// Jobs in the queue while faults are drawn.
const JOBS: usize = 10;
const TERMS: &str = "--comment=wattle: gpus=1..2 signal=TERM workload=eaco-alexnet";

/// What is done to the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// `wattle-slurm` is killed and started.
    Service,
    /// `wattle-slurm` is away for 15 s.
    ServiceAway,
    /// The placer is killed and started.
    Placer,
    /// slurmctld is killed: it may lose its last 5 s.
    Controller,
    /// slurmctld is away for 15 s.
    ControllerAway,
    /// slurmdbd is away for 15 s.
    Accounting,
    /// A node fails with its jobs, and boots.
    Node,
    /// A node is drained for 15 s.
    Drain,
    /// An administrator requeues a running job.
    Requeue,
    /// An administrator holds or releases a job.
    Hold,
    /// An owner cancels a job.
    Cancel,
}

const FAULTS: [Fault; 11] = [
    Fault::Service,
    Fault::ServiceAway,
    Fault::Placer,
    Fault::Controller,
    Fault::ControllerAway,
    Fault::Accounting,
    Fault::Node,
    Fault::Drain,
    Fault::Requeue,
    Fault::Hold,
    Fault::Cancel,
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A run in the accounting database.
#[derive(Clone, Debug)]
struct Run {
    id: u32,
    start: u64,
    end: u64,
    nodes: String,
    gpus: Vec<String>,
}

/// All runs of all jobs, with their GPUs by the types `g0`, `g1`, ...
fn runs(site: &SlurmSite) -> Vec<Run> {
    let format = "--format=jobidraw,state,start,end,nodelist,alloctres";
    let command = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-D", "-X", "-a", "-P", "-n", format];
    let output = site.as_user("root", &[&command[..], &["-S", "now-1hour"]].concat());
    let run = |line: &str| {
        let fields: Vec<&str> = line.split('|').collect();
        let [id, _, start, end, nodes, tres] = fields.as_slice() else { return None };
        let gpu = |part: &str| Some(part.strip_prefix("gres/gpu:g")?.split('=').next()?.to_owned());
        Some(Run {
            id: id.parse().ok()?,
            start: start.parse().ok()?,
            end: end.parse().unwrap_or(u64::MAX),
            nodes: (*nodes).to_owned(),
            gpus: tres.split(',').filter_map(gpu).collect(),
        })
    };
    output.lines().filter_map(run).collect()
}

struct Faults {
    site: SlurmSite,
    draws: Stream,
    jobs: Vec<u32>,
    cancelled: Vec<u32>,
    counts: BTreeMap<Fault, u32>,
}

impl Faults {
    fn node(&mut self) -> String {
        self.site.nodes[self.draws.below(NODES) as usize].clone()
    }

    /// A job with this state in Slurm.
    fn job(&mut self, state: &str) -> Option<String> {
        let command = ["squeue", "-h", "-r", "-t", state, "-o", "%A"];
        let output = self.site.cluster("as", &[&["root"], &command[..]].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ids: Vec<&str> = text.lines().collect();
        self.draws.pick(&ids).map(|id| (*id).to_owned())
    }

    /// Slurm's programs may refuse.
    fn try_as(&self, user: &str, command: &[&str]) {
        let _ = self.site.cluster("as", &[&[user], command].concat());
    }

    async fn away(&self) {
        tokio::time::sleep(Duration::from_secs(15)).await;
    }

    async fn cause(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
        match fault {
            Fault::Service | Fault::ServiceAway => {
                self.site.kill_9("slurm", "control");
                if fault == Fault::ServiceAway {
                    self.away().await;
                }
                self.site.run("slurm", "control");
            }
            Fault::Placer => {
                self.site.kill_9("placer", "control");
                self.site.run("placer", "control");
            }
            Fault::Controller | Fault::ControllerAway => {
                self.site.cluster("kill-ctld", &[]);
                if fault == Fault::ControllerAway {
                    self.away().await;
                }
                self.site.cluster("start-ctld", &[]);
            }
            Fault::Accounting => {
                self.site.cluster("stop-dbd", &[]);
                self.away().await;
                self.site.cluster("start-dbd", &[]);
            }
            Fault::Node => {
                let node = self.node();
                self.site.cluster("kill-node", &[&node]);
                self.site.cluster("start-node", &[&node]);
            }
            Fault::Drain => {
                let node = format!("NodeName={}", self.node());
                self.try_as("root", &["scontrol", "update", &node, "State=DRAIN", "Reason=test"]);
                self.away().await;
                self.try_as("root", &["scontrol", "update", &node, "State=RESUME"]);
            }
            Fault::Requeue => {
                if let Some(id) = self.job("R") {
                    self.try_as("root", &["scontrol", "requeue", &id]);
                }
            }
            Fault::Hold => {
                if let Some(id) = self.job("PD") {
                    let verb = if self.draws.below(2) == 0 { "hold" } else { "release" };
                    self.try_as("root", &["scontrol", verb, &id]);
                }
            }
            Fault::Cancel => {
                if let Some(id) = self.job("PD,R").and_then(|id| id.parse().ok()) {
                    self.cancelled.push(id);
                    self.try_as("root", &["scancel", &id.to_string()]);
                }
            }
        }
    }

    fn submit(&mut self) {
        let user = ["games", "news"][self.draws.below(2) as usize];
        let steps = 20 + self.draws.below(60) as u32;
        let options: &[&str] = match self.draws.below(3) {
            0 => &["--gres=gpu:1"],
            1 => &["--gres=gpu:1", "--requeue", TERMS],
            _ => &["--gres=gpu:2", "--requeue", TERMS],
        };
        // slurmctld may be away, or lose a job that it accepted in the seconds before it was killed.
        self.jobs.extend(self.site.try_sbatch(user, options, steps));
    }

    /// Two runs of different jobs on one GPU at the same time, for more than the second of Slurm's times.
    fn overlaps(&self) -> String {
        let runs = runs(&self.site);
        let mut text = String::new();
        for (at, one) in runs.iter().enumerate() {
            for other in &runs[at + 1..] {
                let shares = one.id != other.id
                    && one.nodes == other.nodes
                    && one.gpus.iter().any(|gpu| other.gpus.contains(gpu))
                    && one.start + 1 < other.end
                    && other.start + 1 < one.end;
                if shares {
                    let _ = writeln!(text, "{one:?}\n  {other:?}");
                }
            }
        }
        text
    }
}

/// Minutes: run it with `--ignored`.
#[tokio::test]
#[ignore = "minutes of faults"]
async fn faults_lose_no_job_and_complete_none_twice() {
    let setup =
        Setup { prefix: "wf", port: 17_700, nodes: NODES as usize, gpus: 2, ..crate::slurm::SETUP };
    let Some((_turn, site)) = site(setup).await else { return };
    let seed = setting("WATTLE_SLURM_SEED", 1);
    let draws = Stream::new(seed, "slurm faults");
    let mut faults =
        Faults { site, draws, jobs: Vec::new(), cancelled: Vec::new(), counts: BTreeMap::new() };
    let end = clock::monotonic() + Duration::from_secs(setting("WATTLE_SLURM_SECONDS", 180));
    while clock::monotonic() < end {
        while faults.jobs.len() < JOBS || faults.draws.below(3) == 0 {
            let before = faults.jobs.len();
            faults.submit();
            if faults.jobs.len() == before {
                break;
            }
        }
        // What slurmctld has not saved it may lose with the next kill, without Wattle's doing.
        let pause = 2 + faults.draws.below(6);
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let fault = FAULTS[faults.draws.below(FAULTS.len() as u64) as usize];
        if matches!(fault, Fault::Controller | Fault::ControllerAway) {
            faults.site.until_saved().await;
        }
        println!("{fault:?}");
        faults.cause(fault).await;
    }
    // Everything that was held by hand is released; Wattle holds its own jobs again.
    for id in faults.jobs.clone() {
        faults.try_as("root", &["scontrol", "release", &id.to_string()]);
    }
    let commands = faults.site.log("slurm", "control");
    let (mut completed, mut cancelled, mut failed, mut again) = (0, 0, 0, 0);
    for id in faults.jobs.clone() {
        let record = faults.site.until_job(id, "it has ended", |r| r.phase.is_final()).await;
        match record.phase {
            JobPhase::Finished => completed += 1,
            JobPhase::Cancelled if faults.cancelled.contains(&id) => cancelled += 1,
            // A job without consent to a requeue ends with its node, as it does without Wattle.
            JobPhase::Failed if record.spec.checkpoint_signal.is_none() => failed += 1,
            _ => panic!("{record:#?}\n{}", faults.site.logs()),
        }
        let output = faults.site.output_of(&record);
        let done = output.lines().filter(|line| line.starts_with("done:")).count();
        // A node that fails before it has reported an end to slurmctld: Slurm shows the job as running until the
        // node registers again, and then runs it again.
        let is_slurms = done > 1 && !commands.contains(&format!("RequeueHold({id})"));
        again += usize::from(is_slurms);
        let expected = usize::from(record.phase == JobPhase::Finished);
        assert!(done == expected || is_slurms, "{record:#?}\n{output}\n{commands}");
    }
    let overlaps = faults.overlaps();
    assert!(overlaps.is_empty(), "a GPU has two jobs:\n{overlaps}");
    println!(
        "seed {seed}: {} faults {:?}, {} jobs: {completed} completed, {again} of them twice because Slurm lost \
         their end, {cancelled} cancelled, {failed} ended with their node",
        faults.counts.values().sum::<u32>(),
        faults.counts,
        faults.jobs.len()
    );
}

//! The client with a running Slurm.
//!
//! `SLURM_TESTS=FOLDER` is a cluster of `tests/slurm/cluster`, made for this test: it needs two nodes with
//! four GPUs and root. Without it the test prints a note and passes.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use wattle_common::{NodeId, Timestamp};
use wattle_runtime::testing::until;
use wattle_slurm::shell::client::CommandLine;
use wattle_slurm::shell::programs::Programs;
use wattle_slurm::{
    Client, Command, PastState, Place, SlurmError, SlurmJob, SlurmState, SlurmView,
};

/// A name that pretends to be another job.
const NAME: &str = "n\n\nJobId=1 JobName=x\n   UserId=root(0)\n     Nodes=n1 CPU_IDs=0 Mem=1 \
                    GRES=gpu:g0:1(IDX:0)\n   MinCPUsNode=1\u{1f}0\u{1f}";

/// Longest wait for a job's state.
const WITHIN: Duration = wattle_runtime::testing::HANG;

struct Cluster {
    folder: PathBuf,
    client: CommandLine,
}

impl Cluster {
    /// Submits a held job with these options as an ordinary user.
    fn submit(&self, options: &[&str]) -> u32 {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/slurm/cluster");
        let mut process = Process::new(script);
        process.arg("as").arg(&self.folder).args(["games", "sbatch", "--parsable", "--hold"]);
        let printed = process.args(options).output().unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&printed.stderr)))
    }

    async fn view(&mut self) -> SlurmView {
        self.client.view(Timestamp::from_s(1_000_000_000)).await.unwrap()
    }

    /// Reads until the job fulfils the condition.
    async fn until(
        &mut self,
        id: u32,
        what: &str,
        is_fulfilled: impl Fn(&SlurmJob) -> bool,
    ) -> SlurmJob {
        let mut last = None;
        let found = until(WITHIN, async || {
            last = self.view().await.jobs.remove(&id);
            last.clone().filter(|job| is_fulfilled(job))
        });
        found.await.unwrap_or_else(|| panic!("job {id} is not {what}: {last:?}"))
    }
}

fn names(view: &SlurmView) -> Vec<NodeId> {
    view.nodes
        .iter()
        .filter(|(_, node)| node.unavailable.is_none())
        .map(|(name, _)| name.clone())
        .collect()
}

#[tokio::test]
async fn a_job_is_held_placed_moved_and_cancelled() {
    let Some(folder) = std::env::var_os("SLURM_TESTS") else {
        println!("SLURM_TESTS is not set: the client is not tested with a real Slurm");
        return;
    };
    let folder = PathBuf::from(folder);
    // Slurm's programs read their configuration file's path from the environment, as those of a service do.
    let conf = folder.join("etc/slurm.conf");
    assert_eq!(std::env::var_os("SLURM_CONF").as_deref(), Some(conf.as_os_str()), "set SLURM_CONF");
    let mut cluster = Cluster { folder, client: CommandLine::new(Programs::default()) };

    let view = cluster.view().await;
    let nodes = names(&view);
    assert!(nodes.len() >= 2, "two available nodes are required: {view:?}");
    assert_eq!(view.nodes[&nodes[0]].gpus, [0, 1, 2, 3]);

    let id =
        cluster.submit(&["--gres=gpu:2", "-J", NAME, "--comment=a\u{1f}b", "--wrap=sleep 1000"]);
    cluster.client.execute(&Command::Hold(vec![id])).await.unwrap();
    let job = cluster.until(id, "held", |job| job.held && job.reason == "JobHeldAdmin").await;
    assert_eq!((job.name.as_str(), job.comment.as_str()), (NAME, "a\u{1f}b"));
    assert_eq!((job.gres.as_str(), job.gpus_per_node), ("gpu:2", 2));

    // Another tag is another job.
    let place = Place {
        id,
        gres: "gpu:g1:1,gpu:g3:1".to_owned(),
        nodes: vec![nodes[1].clone()],
        ..Place::default()
    };
    let other = Place { admin_comment: "wattle: tag=1".to_owned(), ..place.clone() };
    let refused = cluster.client.execute(&Command::Place(other)).await.unwrap_err();
    assert!(matches!(refused, SlurmError::NotApplied { .. }), "{refused}");
    cluster.until(id, "unchanged", |job| job.held && job.gres == "gpu:2").await;

    cluster.client.execute(&Command::Place(place.clone())).await.unwrap();
    let job = cluster.until(id, "running", |job| job.state == SlurmState::Running).await;
    assert_eq!(job.on.len(), 1);
    assert_eq!((&job.on[0].node, job.on[0].gpus.as_slice()), (&nodes[1], [1, 3].as_slice()));
    // Repeated without harm.
    cluster.client.execute(&Command::Place(place)).await.unwrap();

    cluster.client.execute(&Command::RequeueHold(id)).await.unwrap();
    let job =
        cluster.until(id, "requeued", |job| job.held && job.state == SlurmState::Pending).await;
    assert_eq!((job.restarts, job.waits, job.on.len()), (1, false, 0));

    let both =
        Place { id, gres: "gpu:g0:1".to_owned(), nodes: nodes[..2].to_vec(), ..Place::default() };
    cluster.client.execute(&Command::Place(both)).await.unwrap();
    let job = cluster.until(id, "running again", |job| job.state == SlurmState::Running).await;
    let gpus: Vec<_> =
        job.on.iter().map(|share| (share.node.clone(), share.gpus.clone())).collect();
    assert_eq!(gpus, [(nodes[0].clone(), vec![0]), (nodes[1].clone(), vec![0])]);

    cluster.client.execute(&Command::Cancel(id)).await.unwrap();
    let job = cluster.until(id, "cancelled", |job| job.state == SlurmState::Cancelled).await;
    assert!(job.ended_at.is_some());
    for ended in [
        Command::Cancel(id),
        Command::Hold(vec![id]),
        Command::Checkpoint { id, signal: "USR1".to_owned() },
    ] {
        cluster.client.execute(&ended).await.unwrap();
    }
    past_runs(&mut cluster, id).await;
    arrays_are_split(&mut cluster).await;
}

/// The database has both runs, and takes a comment.
async fn past_runs(cluster: &mut Cluster, id: u32) {
    let is_complete = |states: &[PastState]| {
        states == [PastState::Requeued, PastState::Job(SlurmState::Cancelled)]
    };
    let mut states = Vec::new();
    let complete = until(WITHIN, async || {
        let runs = cluster.client.past(&[id], Timestamp::from_s(1_000_000_000)).await.unwrap();
        states = runs.iter().map(|run| run.state).collect();
        is_complete(&states).then_some(())
    });
    assert!(complete.await.is_some(), "{states:?}");
    let text = "wattle: tag=1 energy_j=5 co2_g=0.5".to_owned();
    cluster.client.execute(&Command::SetAdminComment { id, text: text.clone() }).await.unwrap();
    let runs = cluster.client.past(&[id], Timestamp::from_s(1_000_000_000)).await.unwrap();
    assert_eq!(runs.last().map(|run| run.admin_comment.as_str()), Some(text.as_str()));
}

/// Each task of an array becomes a job with an id of its own.
async fn arrays_are_split(cluster: &mut Cluster) {
    let id = cluster.submit(&["--gres=gpu:1", "--array=1-3", "--wrap=sleep 1000"]);
    let job = cluster.until(id, "an array", |job| job.unsplit_tasks == [1, 2, 3]).await;
    let split = Command::SplitArray { id, tasks: job.unsplit_tasks };
    cluster.client.execute(&split).await.unwrap();
    let view = cluster.view().await;
    let prefix = format!("{id}_");
    let tasks = || {
        view.jobs.values().filter(|job| job.array.as_ref().is_some_and(|a| a.starts_with(&prefix)))
    };
    assert_eq!(tasks().count(), 3);
    assert!(tasks().all(|job| job.held && job.unsplit_tasks.is_empty()));
    for id in tasks().map(|job| job.id) {
        cluster.client.execute(&Command::Cancel(id)).await.unwrap();
    }
}

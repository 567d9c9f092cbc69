//! A nats-server, placers as processes, and simulated reports of one node.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::job::JobSpec;
use wattle_common::messages::{
    JobRecord, LaunchReport, LaunchState, LaunchedJob, NodeDesired, Reply, SubmitJob,
};
use wattle_common::subject::{Bucket, Reporter, RequestTopic};
use wattle_common::{ClusterId, JobId, NodeId};
use wattle_runtime::bus::{Bus, BusConfig, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::testing::{NatsServer, until};
use wattle_testkit::{applied_gpu, job_spec, power_report};

/// A wait that takes longer hangs.
pub(crate) const DEADLINE: Duration = wattle_runtime::testing::HANG;

/// The lease of the leading placer.
const SERVICE_LEASE: Duration = Duration::from_secs(2);

pub(crate) struct Site {
    pub(crate) server: NatsServer,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) placer: Option<Child>,
    pub(crate) bus: Bus,
    pub(crate) jobs: KvBucket,
    pub(crate) desired: KvBucket,
    pub(crate) actual: KvBucket,
}

pub(crate) fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}

pub(crate) fn cluster() -> ClusterId {
    ClusterId::new("place").unwrap()
}

pub(crate) fn spec(job: &str, gpus: u32) -> JobSpec {
    JobSpec {
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        consents_to_sharing: true,
        ..job_spec(job, gpus)
    }
}

impl Site {
    pub(crate) async fn new() -> Self {
        let server = NatsServer::start().await;
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster(), "test").await.unwrap();
        let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
        let desired = bus.bucket(Bucket::Desired).await.unwrap();
        let actual = bus.bucket(Bucket::Actual).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut site = Self { server, folder, placer: None, bus, jobs, desired, actual };
        site.start_placer();
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn start_placer(&mut self) {
        self.placer = Some(self.spawn_placer());
    }

    pub(crate) fn spawn_placer(&self) -> Child {
        self.spawn_placer_as("placer")
    }

    /// Starts a placer with its own configuration file and log.
    pub(crate) fn spawn_placer_as(&self, name: &str) -> Child {
        // Node timeouts beyond the test's duration: the simulated nodes report only on demand.
        let config = format!(
            "cluster = \"place\"\npolicy = \"fifo\"\nlease_ms = 3000\ntick_ms = 200\n\
             round_delay_ms = 10\nnode_stale_after_ms = 600000\nnode_lost_after_ms = 600000\n\
             nodes_expected = 1\ngpu_cap_w = 200\nservice_lease_wall_ms = {}\n[nats]\nurl = \"{}\"\n",
            SERVICE_LEASE.as_millis(),
            self.server.url()
        );
        let file = self.path(&format!("{name}.toml"));
        fs::write(&file, config).unwrap();
        let mut log = fs::OpenOptions::new();
        log.create(true).append(true);
        let log = log.open(self.path(&format!("{name}.log")));
        Command::new(env!("CARGO_BIN_EXE_wattle-placer"))
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    /// Kills the placer with SIGKILL.
    pub(crate) fn kill_placer(&mut self) {
        let mut placer = self.placer.take().unwrap();
        placer.kill().unwrap();
        placer.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("placer.log")).unwrap_or_default()
    }

    /// Sends a request until there is a reply.
    pub(crate) async fn request<T: serde::Serialize>(
        &self,
        topic: RequestTopic,
        message: &T,
    ) -> Reply {
        let subject = self.bus.request_subject(topic);
        self.until("a reply", async || self.bus.request::<T, Reply>(&subject, message).await.ok())
            .await
    }

    pub(crate) async fn submit(&self, spec: JobSpec) -> Reply {
        self.request(
            RequestTopic::JobSubmitted,
            &SubmitJob { spec, submission: None, user_proven: false },
        )
        .await
    }

    pub(crate) async fn until<T>(&self, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
        match until(DEADLINE, look).await {
            Some(found) => found,
            None => panic!("{what}: timed out\nplacer:\n{}", self.log()),
        }
    }

    pub(crate) async fn record(&self, job: &str, wanted: impl Fn(&JobRecord) -> bool) -> JobRecord {
        self.until(job, async || {
            let (record, _) = self.jobs.get::<JobRecord>(job).await.ok()??;
            wanted(&record).then_some(record)
        })
        .await
    }

    pub(crate) async fn order(
        &self,
        what: &str,
        wanted: impl Fn(&NodeDesired) -> bool,
    ) -> NodeDesired {
        self.until(what, async || {
            let (desired, _) = self.desired.get::<NodeDesired>("n0").await.ok()??;
            wanted(&desired).then_some(desired)
        })
        .await
    }

    pub(crate) async fn power(&self, gpus: u32) {
        let report =
            power_report("n0", clock::now(), (0..gpus).map(|gpu| applied_gpu(gpu, "v100")));
        self.actual.put(&Reporter::Power.key(&node()), &report).await.unwrap();
    }

    pub(crate) async fn launch(&self, seen: u64, jobs: &[(&str, u32, LaunchState)]) {
        let report = LaunchReport {
            instance: String::new(),
            node: node(),
            at_us: clock::now(),
            observed_generation: seen,
            has_ended: false,
            fault: None,
            site: None,
            jobs: jobs
                .iter()
                .map(|(job, attempt, state)| LaunchedJob {
                    job: JobId::new(job).unwrap(),
                    admission: None,
                    attempt: *attempt,
                    gpus: vec![0],
                    state: state.clone(),
                    processes: None,
                    since_us: clock::now(),
                    log_path: format!("/log/{job}"),
                })
                .collect(),
        };
        self.actual.put(&Reporter::Launcher.key(&node()), &report).await.unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut placer) = self.placer.take() {
            let _ = placer.kill();
            let _ = placer.wait();
        }
    }
}

pub(crate) fn accepted(job: &str) -> Reply {
    Reply::Accepted { job: JobId::new(job).unwrap(), generation: 1 }
}

/// The reply to the cancellation of an accepted job.
pub(crate) fn cancelled(job: &str) -> Reply {
    Reply::Accepted { job: JobId::new(job).unwrap(), generation: 2 }
}

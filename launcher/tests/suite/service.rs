//! The service with real processes, a real disk and a real nats-server.
//!
//! Every wait is for a condition, with a deadline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::job::NodeShare;
use wattle_common::messages::{
    DesiredJob, JobProcesses, JobRecord, LaunchReport, LaunchState, LaunchedJob, NodeDesired,
};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{ClusterId, JobId, Timestamp};
use wattle_launcher::engine::local::process;
use wattle_launcher::engine::local::run_folder::Claim;
use wattle_runtime::bus::{Bus, BusConfig, KvBucket};
use wattle_runtime::testing::{NatsServer, until};

use crate::support::{node, stopping};

/// Longer than the slowest test on a loaded machine.
const DEADLINE: Duration = wattle_runtime::testing::HANG;

pub(crate) struct Site {
    server: NatsServer,
    folder: tempfile::TempDir,
    launcher: Option<Child>,
    desired: KvBucket,
    actual: KvBucket,
    generation: u64,
    stop_jobs_at_exit: bool,
    /// Longer than a busy machine takes to run the job's handler; short where the job ignores the signal.
    checkpoint_grace: Duration,
    /// The launcher's state folder.
    state: &'static str,
    /// Further tables of the configuration.
    tables: String,
}

impl Site {
    async fn new() -> Self {
        Self::with("").await
    }

    /// A site with further tables in the launcher's configuration.
    pub(crate) async fn with(tables: &str) -> Self {
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("launch").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let desired = bus.bucket(Bucket::Desired).await.unwrap();
        let actual = bus.bucket(Bucket::Actual).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut site = Self {
            server,
            folder,
            launcher: None,
            desired,
            actual,
            generation: 0,
            stop_jobs_at_exit: false,
            checkpoint_grace: DEADLINE,
            state: "state",
            tables: tables.to_owned(),
        };
        site.start_launcher();
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn start_launcher(&mut self) {
        let dir = self.folder.path().display();
        let config = format!(
            "cluster = \"launch\"\nnode = \"n0\"\nstate_dir = \"{dir}/{}\"\nlog_dir = \"{dir}/log\"\n\
             checkpoint_dir = \"{dir}/checkpoints\"\nprogress_socket = \"{dir}/progress.sock\"\n\
             checkpoint_grace_ms = {}\nterminate_grace_ms = 300\nheartbeat_ms = 300\n\
             stop_jobs_at_exit = {}\n[nats]\nurl = \"{}\"\n[job_environment]\nSITE = \"here\"\n{}",
            self.state,
            self.checkpoint_grace.as_millis(),
            self.stop_jobs_at_exit,
            self.server.url(),
            self.tables
        );
        let file = self.path("launcher.toml");
        fs::write(&file, config).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("launcher.log"));
        let launcher = Command::new(env!("CARGO_BIN_EXE_wattle-launcher"))
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        self.launcher = Some(launcher);
    }

    /// As a crash or `kill -9` would.
    pub(crate) fn kill_launcher(&mut self) {
        let mut launcher = self.launcher.take().unwrap();
        launcher.kill().unwrap();
        launcher.wait().unwrap();
    }

    /// As systemd would; waits until it has ended.
    fn terminate_launcher(&mut self) -> std::process::ExitStatus {
        let mut launcher = self.launcher.take().unwrap();
        let process = process::identity(launcher.id()).unwrap();
        process::signal(&process, process::Signal::TERM);
        launcher.wait().unwrap()
    }

    async fn until_log(&self, text: &str) {
        self.until_file(&self.path("launcher.log"), |log| log.contains(text)).await;
    }

    pub(crate) async fn desire(&mut self, jobs: Vec<DesiredJob>) {
        self.generation += 1;
        let now = wattle_runtime::clock::now();
        let desired = NodeDesired {
            node: node(),
            generation: self.generation,
            issued_at_us: now,
            expires_at_us: now,
            gpus: vec![],
            jobs,
            power_limited: false,
            caps_ahead: Vec::new(),
            event_until_us: None,
            sleep: None,
        };
        self.desired.put("n0", &desired).await.unwrap();
    }

    async fn report(&self) -> Option<LaunchReport> {
        let read = self.actual.get::<LaunchReport>(&Reporter::Launcher.key(&node())).await;
        read.ok().flatten().map(|(report, _)| report)
    }

    /// The first report that satisfies `accepts`.
    async fn until(&self, name: &str, accepts: impl Fn(&LaunchReport) -> bool) -> LaunchReport {
        let mut last = None;
        let found = until(DEADLINE, async || {
            last = self.report().await.or(last.take());
            last.clone().filter(&accepts)
        });
        if let Some(report) = found.await {
            return report;
        }
        let log = fs::read_to_string(self.path("launcher.log")).unwrap_or_default();
        panic!("{name}: no such report; last {last:?}\nlauncher:\n{log}");
    }

    pub(crate) async fn until_state(
        &self,
        job: &str,
        wanted: impl Fn(&LaunchState) -> bool,
    ) -> LaunchedJob {
        let is = |found: &LaunchedJob| found.job.as_str() == job && wanted(&found.state);
        let report = self.until(job, |report| report.jobs.iter().any(&is)).await;
        report.jobs.into_iter().find(is).unwrap()
    }

    pub(crate) async fn until_file(&self, path: &Path, wanted: impl Fn(&str) -> bool) -> String {
        let look = async || fs::read_to_string(path).ok().filter(|text| wanted(text));
        let Some(text) = until(DEADLINE, look).await else {
            panic!("{}: no such content; {:?}", path.display(), fs::read_to_string(path))
        };
        text
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
        // Kills the jobs of a failed test, by the claims in the state folder.
        let claims = glob(&self.path("state/jobs"), "claim.json");
        for claim in claims.iter().filter_map(|path| fs::read(path).ok()) {
            if let Ok(claim) = serde_json::from_slice::<Claim>(&claim) {
                let pid = claim.supervisor.pid;
                if process::is_alive(&claim.supervisor) {
                    for descendant in process::descendants(pid) {
                        process::signal(&descendant, process::Signal::KILL);
                    }
                }
            }
        }
    }
}

fn glob(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(glob(&path, name));
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
    found
}

pub(crate) fn job(id: &str, attempt: u32, script: &str) -> DesiredJob {
    DesiredJob {
        job: JobId::new(id).unwrap(),
        admission: None,
        user: None,
        attempt,
        gpus: vec![1, 3],
        rank: 0,
        shares: vec![NodeShare { node: node(), gpus: vec![1, 3] }],
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        environment: vec![("MINE".to_owned(), "yes".to_owned())],
        working_dir: None,
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        stop: false,
    }
}

/// The answer to the request of `nats micro ls`, in the bare protocol.
async fn ping_services(port: u16, name: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answers 1\r\nPUB $SRV.PING.{name} answers 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    tokio::time::timeout(DEADLINE, async {
        while !text.contains("io.nats.micro.v1.ping_response") {
            let count = stream.read(&mut piece).await.unwrap();
            assert!(count > 0, "nats-server hung up: {text}");
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        text
    })
    .await
    .expect("a service of that name answers")
}

/// A job that records its starts and writes a checkpoint when it is signalled.
const TRAIN: &str = "trap 'echo saved > $WATTLE_CHECKPOINT_DIR/state; exit 0' USR1; \
     echo started $WATTLE_ATTEMPT >> $WATTLE_CHECKPOINT_DIR/starts; \
     while true; do sleep 0.05; done";

pub(crate) fn session(job: &LaunchedJob) -> u32 {
    match job.processes {
        Some(JobProcesses::Session(session)) => session,
        _ => panic!("no session: {job:?}"),
    }
}

fn alive(pid: u32) -> bool {
    process::identity(pid).is_some_and(|process| process::is_alive(&process))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_to_its_end_and_its_output_is_kept() {
    let mut site = Site::new().await;
    let script = "echo gpus=$CUDA_VISIBLE_DEVICES $SITE $MINE $PET_NPROC_PER_NODE clock=$WATTLE_NATS_URL; exit 3";
    site.desire(vec![job("a", 1, script)]).await;
    let ended = site.until_state("a", |state| *state == LaunchState::exited(3)).await;
    assert_eq!((ended.attempt, ended.processes), (1, None));
    let log = fs::read_to_string(&ended.log_path).unwrap();
    let (header, output) = log.split_once('\n').unwrap();
    let at = header.strip_prefix("--- a attempt 1 on n0 GPU 1,3 at ").unwrap();
    assert!(at.strip_suffix("Z ---").is_some_and(|at| at.len() == "2026-05-03T09:15:00".len()));
    assert_eq!(output, "gpus=1,3 here yes 2 clock=\n");
    // A second attempt appends, and a program that is missing is refused with the remedy.
    let mut second = job("a", 2, "");
    second.command = vec!["/no/such/program".to_owned()];
    site.desire(vec![second]).await;
    let refused = site.until_state("a", |state| matches!(state, LaunchState::Refused { .. })).await;
    assert_eq!(
        refused.state,
        LaunchState::refused(
            "the program `/no/such/program` is not on this node: give its full path, or install it \
             there"
                .to_owned()
        )
    );
    assert!(fs::read_to_string(&ended.log_path).unwrap().contains("attempt 2"));
    let answer = ping_services(site.server.port(), "wattle-launcher").await;
    assert!(answer.contains("\"node\":\"n0\""), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_writes_a_checkpoint() {
    let mut site = Site::new().await;
    site.desire(vec![job("a", 1, TRAIN)]).await;
    let running = site.until_state("a", |state| *state == LaunchState::Running).await;
    assert!(alive(session(&running)));
    let starts = site.path("checkpoints/a/starts");
    site.until_file(&starts, |text| text == "started 1\n").await;
    site.desire(vec![stopping(job("a", 1, TRAIN))]).await;
    site.until_state("a", |state| *state == LaunchState::STOPPED).await;
    assert_eq!(fs::read_to_string(site.path("checkpoints/a/state")).unwrap(), "saved\n");
    // The next attempt starts once too.
    site.desire(vec![job("a", 2, TRAIN)]).await;
    site.until_file(&starts, |text| text == "started 1\nstarted 2\n").await;
    site.desire(vec![]).await;
    site.until("nothing left", |report| report.jobs.is_empty() && report.observed_generation == 4)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ignores_signals_is_killed_with_its_descendants() {
    let mut site = Site::new().await;
    site.kill_launcher();
    site.checkpoint_grace = Duration::from_millis(500);
    site.start_launcher();
    // Ignores SIGUSR1 and SIGTERM, with a child in a session of its own, as torchrun starts them.
    let script = "trap '' USR1 TERM; setsid sh -c \"trap '' TERM; echo \\$\\$ > $WATTLE_CHECKPOINT_DIR/child; \
         while true; do sleep 0.05; done\" & echo $$ > $WATTLE_CHECKPOINT_DIR/own; while true; do sleep 0.05; done";
    site.desire(vec![job("deaf", 1, script)]).await;
    let complete = |text: &str| text.ends_with('\n');
    let child = site.until_file(&site.path("checkpoints/deaf/child"), complete).await;
    let own = site.until_file(&site.path("checkpoints/deaf/own"), complete).await;
    let pids: Vec<u32> = [child, own].iter().map(|text| text.trim().parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| alive(*pid)));
    site.desire(vec![]).await;
    site.until("ended", |report| report.observed_generation == 2 && report.jobs.is_empty()).await;
    assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?} are alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_lost_or_doubled_by_a_restart() {
    let mut site = Site::new().await;
    let short = "while [ ! -e $WATTLE_CHECKPOINT_DIR/go ]; do sleep 0.02; done; exit 7";
    let jobs = vec![job("long", 1, TRAIN), job("short", 1, short)];
    site.desire(jobs.clone()).await;
    let long = site.until_state("long", |state| *state == LaunchState::Running).await;
    site.until_state("short", |state| *state == LaunchState::Running).await;
    let starts = site.path("checkpoints/long/starts");
    site.until_file(&starts, |text| text == "started 1\n").await;

    site.kill_launcher();
    // One job ends while no launcher runs.
    fs::write(site.path("checkpoints/short/go"), "").unwrap();
    site.until_file(&site.path("state/jobs/short/1/end.json"), |text| !text.is_empty()).await;
    assert!(alive(session(&long)), "a job outlives its launcher");
    let before = site.report().await.unwrap().at_us;
    site.start_launcher();
    let after = |report: &LaunchReport| report.at_us > before && report.jobs.len() == 2;
    let report = site.until("a report of the new launcher", after).await;
    let states: Vec<_> = report.jobs.iter().map(|job| (job.job.as_str(), &job.state)).collect();
    assert_eq!(states, [("long", &LaunchState::Running), ("short", &LaunchState::exited(7))]);
    assert_eq!(report.jobs[0].processes, long.processes, "the same processes");

    // Killed while it stops a job: the next launcher knows that a stop was requested.
    site.desire(vec![stopping(jobs[0].clone()), jobs[1].clone()]).await;
    site.until_file(&site.path("state/jobs/long/1/stop.json"), |text| !text.is_empty()).await;
    site.kill_launcher();
    site.start_launcher();
    site.until_state("long", |state| *state == LaunchState::STOPPED).await;
    assert_eq!(fs::read_to_string(&starts).unwrap(), "started 1\n", "started once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_interrupted_at_any_point_happens_once() {
    let mut site = Site::new().await;
    // Kills at a different moment each round: before, during or after a start.
    let mut jobs: Vec<DesiredJob> = Vec::new();
    for round in 0..8u64 {
        jobs.push(job(&format!("j{round}"), 1, TRAIN));
        site.desire(jobs.clone()).await;
        let before = site.report().await.map_or(Timestamp::EPOCH, |report| report.at_us);
        let _ =
            tokio::time::timeout(Duration::from_millis(round * 5), site.until("", |_| false)).await;
        site.kill_launcher();
        site.start_launcher();
        site.until("back", |report| report.at_us > before).await;
    }
    let all = |report: &LaunchReport| {
        report.jobs.len() == 8 && report.jobs.iter().all(|job| job.state == LaunchState::Running)
    };
    site.until("all run", all).await;
    for round in 0..8 {
        let starts = site.path(&format!("checkpoints/j{round}/starts"));
        site.until_file(&starts, |text| !text.is_empty()).await;
        assert_eq!(fs::read_to_string(&starts).unwrap(), "started 1\n", "j{round}");
    }
    site.desire(vec![]).await;
    site.until("nothing left", |report| report.jobs.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_survive_an_absent_bus_and_invalid_desired_states() {
    let mut site = Site::new().await;
    let jobs = vec![job("a", 1, TRAIN)];
    site.desire(jobs.clone()).await;
    let running = site.until_state("a", |state| *state == LaunchState::Running).await;
    let pid = session(&running);
    // An invalid desired state is logged with its key and ignored.
    site.desired.put("n0", &"not a desired state").await.unwrap();
    let log = site.until_file(&site.path("launcher.log"), |text| text.contains("ignored")).await;
    assert!(log.contains("\"key\":\"n0\"") && alive(pid), "{log}");
    site.server.kill();
    assert!(alive(pid));
    let before = wattle_runtime::clock::now();
    site.server.restart().await;
    site.until("a report once the bus is back", |report| report.at_us > before).await;
    site.desire(jobs).await;
    let seen = |report: &LaunchReport| report.observed_generation == 2 && report.jobs.len() == 1;
    assert_eq!(
        site.until("desired states arrive again", seen).await.jobs[0].processes,
        running.processes
    );
    site.desire(vec![]).await;
    site.until("nothing left", |report| report.jobs.is_empty()).await;
}

#[tokio::test]
async fn the_launcher_waits_for_a_usable_server() {
    let mut site = Site::new().await;
    site.kill_launcher();
    site.server.restart_with_jetstream(false).await;
    site.start_launcher();
    site.until_log("no bus").await;
    site.server.restart_with_jetstream(true).await;
    site.until("reports", |_| true).await;
    site.desire(vec![job("late", 1, "exit 0")]).await;
    site.until_state("late", |state| *state == LaunchState::exited(0)).await;
}

/// Otherwise it would report jobs that the first one is stopping as failed.
#[tokio::test]
async fn a_second_launcher_waits_for_the_first() {
    let mut site = Site::new().await;
    site.kill_launcher();
    site.checkpoint_grace = Duration::from_millis(500);
    site.start_launcher();
    site.desire(vec![job("a", 1, "trap '' USR1; while true; do sleep 0.05; done")]).await;
    site.until_state("a", |state| *state == LaunchState::Running).await;
    let mut first = site.launcher.take().unwrap();
    site.start_launcher();
    site.until_log("another launcher uses this state folder").await;
    first.kill().unwrap();
    first.wait().unwrap();
    site.until_log("found running").await;
    site.desire(vec![]).await;
    site.until("stopped", |report| report.jobs.is_empty()).await;
}

/// With a state folder of its own, as on another machine.
#[tokio::test]
async fn a_second_launcher_of_one_node_stands_aside() {
    let mut site = Site::new().await;
    let runs = site.path("runs");
    let script = format!("echo run >> {}; while true; do sleep 0.05; done", runs.display());
    site.desire(vec![job("a", 1, &script)]).await;
    site.until_state("a", |state| *state == LaunchState::Running).await;
    let mut first = site.launcher.take().unwrap();
    let first_state = std::mem::replace(&mut site.state, "other");
    site.start_launcher();
    site.until_log("another launcher has this node's name").await;
    // Neither while the first one reports, nor while its last report lists the job: the test of the claim has the
    // times.
    first.kill().unwrap();
    first.wait().unwrap();
    // The first one continues at once after a restart; the second one then gets the free name.
    let mut second = site.launcher.take().unwrap();
    site.state = first_state;
    site.start_launcher();
    site.desire(vec![]).await;
    site.until("stopped", |report| report.jobs.is_empty()).await;
    site.kill_launcher();
    site.desire(vec![job("b", 1, "exit 0")]).await;
    site.until_state("b", |state| *state == LaunchState::exited(0)).await;
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!(fs::read_to_string(&runs).unwrap(), "run\n", "the job ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_supervisor_is_killed_is_lost() {
    let mut site = Site::new().await;
    // Neither its session nor its environment shows whose the sleeping process is.
    let hidden = "setsid env -i sleep 1000 & echo $! > $WATTLE_CHECKPOINT_DIR/hidden; ";
    site.desire(vec![job("a", 1, &format!("{hidden}{TRAIN}"))]).await;
    let running = site.until_state("a", |state| *state == LaunchState::Running).await;
    let hidden = site.path("checkpoints/a/hidden");
    let hidden = site.until_file(&hidden, |text| text.ends_with('\n')).await;
    let hidden = process::identity(hidden.trim().parse().unwrap()).unwrap();
    let supervisor = process::identity(session(&running)).unwrap();
    let tree = process::descendants(supervisor.pid);
    assert!(!tree.is_empty());
    process::signal(&supervisor, process::Signal::KILL);
    let lost = site.until_state("a", |state| matches!(state, LaunchState::Lost { .. })).await;
    assert!(matches!(&lost.state, LaunchState::Lost { error } if error.contains("was killed")));
    assert!(tree.contains(&hidden), "{tree:?}");
    let gone = async || (!tree.iter().any(process::is_alive)).then_some(());
    until(DEADLINE, gone).await.expect("its processes are killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_leaves_or_stops_jobs_as_configured() {
    let mut site = Site::new().await;
    site.desire(vec![job("a", 1, TRAIN)]).await;
    let running = site.until_state("a", |state| *state == LaunchState::Running).await;
    site.until_file(&site.path("checkpoints/a/starts"), |text| text == "started 1\n").await;
    assert!(site.terminate_launcher().success());
    assert!(alive(session(&running)), "it continues by default");
    site.stop_jobs_at_exit = true;
    site.start_launcher();
    site.until("found again", |report| report.at_us > running.since_us && report.jobs.len() == 1)
        .await;
    site.until_log("found running").await;
    assert!(site.terminate_launcher().success());
    assert!(!alive(session(&running)));
    assert_eq!(fs::read_to_string(site.path("checkpoints/a/state")).unwrap(), "saved\n");
    let last = site.report().await.unwrap();
    assert_eq!(last.jobs[0].state, LaunchState::STOPPED, "the last report is stored");
}

#[test]
fn wrong_usage_and_configuration_exit_with_code_2() {
    let launcher = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_wattle-launcher")).args(arguments).output();
        let ran = ran.unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    assert_eq!(launcher(&[]).0, Some(2));
    assert_eq!(launcher(&["--nonsense"]).0, Some(2));
    let (code, text) = launcher(&["--config", "/nowhere/launcher.toml"]);
    assert_eq!(code, Some(2), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launcher.toml");
    let good = include_str!("../../../deploy/launcher.toml");
    for (right, wrong, names) in [
        ("heartbeat_ms", "heartbeat_s", "heartbeat_s"),
        ("\"/var/lib/wattle-launcher/state\"", "\"state\"", "state_dir"),
        ("master_port_min = 29_500", "master_port_min = 40_000", "master_port_max"),
    ] {
        assert!(good.contains(right), "the example has no {right}");
        fs::write(&file, good.replacen(right, wrong, 1)).unwrap();
        let (code, text) = launcher(&["--config", file.to_str().unwrap()]);
        assert!(code == Some(2) && text.contains(names), "{names}: {text}");
    }
}

#[test]
fn the_example_configuration_is_valid() {
    let text = include_str!("../../../deploy/launcher.toml");
    let config: wattle_launcher::Config =
        wattle_runtime::config::parse(text, Path::new("launcher.toml")).unwrap();
    config.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn command_left_to_the_record_is_read_from_it() {
    let mut site = Site::new().await;
    let (config, cluster) = (BusConfig::at(&site.server.url()), ClusterId::new("launch").unwrap());
    let bus = Bus::connect(&config, cluster, "records").await.unwrap();
    let records = bus.bucket(Bucket::Jobs).await.unwrap();
    let inline = job("long", 1, "echo from the record; echo $MINE");
    let mut spec = wattle_testkit::job_spec("long", 2);
    spec.command.clone_from(&inline.command);
    spec.environment.clone_from(&inline.environment);
    records.put("long", &JobRecord::queued(spec, Timestamp::from_s(1))).await.unwrap();
    let referring = DesiredJob { command: vec![], environment: vec![], ..inline };
    let unknown = DesiredJob { job: JobId::new("unknown").unwrap(), ..referring.clone() };
    site.desire(vec![referring, unknown]).await;
    let ended = site.until_state("long", |state| *state == LaunchState::exited(0)).await;
    let output = fs::read_to_string(ended.log_path).unwrap();
    assert!(output.contains("from the record\nyes"), "{output}");
    let refused = |state: &LaunchState| matches!(state, LaunchState::Refused { .. });
    site.until_state("unknown", refused).await;
}

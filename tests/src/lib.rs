//! Shared code of the system tests: the real binaries on a real nats-server, with simulated GPUs.
//!
//! A test has a turn on the machine ([`wattle_runtime::testing::turn`]), which its system takes if the test does not.
//! It starts `wattle up`, uses the command line and the bus, and waits for conditions. Each
//! condition has a deadline after which the test fails and prints the logs.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

pub mod browser;
pub mod chaos;
pub mod examples;
pub mod gpu_suite;
pub mod http;
pub mod load;
pub mod prometheus;
pub mod records;
pub mod reflects;
pub mod services;
pub mod simulated_clock;
pub mod slurm_site;
pub mod vtn;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tempfile::TempDir;
use wattle_common::messages::JobRecord;
use wattle_common::{ClusterId, JobId, env};
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::testing::{Turn, Weight, turn};
use wattle_runtime::{clock, testing};

use crate::simulated_clock::Held;

/// Deadline of a condition, far above the expected time.
pub const PATIENCE: Duration = wattle_runtime::testing::HANG;

/// The environment variable with the folder of the programs under test; by default that of the test.
pub const PROGRAMS_ENV: &str = "WATTLE_PROGRAMS";

/// The path of a program built by `cargo build --workspace`, or of one in [`PROGRAMS_ENV`].
#[must_use]
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os(PROGRAMS_ENV).filter(|folder| !folder.is_empty()) {
        return Path::new(&folder).join(name);
    }
    let me = std::env::current_exe().expect("a test knows its own path");
    // A program is in target/PROFILE, a test in target/PROFILE/deps.
    let own = me.parent().expect("a file has a folder");
    let folder = if own.ends_with("deps") { own.parent().unwrap_or(own) } else { own };
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "{} is missing; run `cargo build --workspace --bins --lib` first (tests/run does)",
        path.display()
    );
    path
}

/// A file of the repository.
#[must_use]
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Waits until `condition` returns a value.
///
/// # Panics
/// After [`PATIENCE`], with `what` in the message.
pub async fn until<T, F>(what: &str, condition: F) -> T
where
    F: AsyncFnMut() -> Option<T>,
{
    match testing::until(PATIENCE, condition).await {
        Some(found) => found,
        None => panic!("waited {PATIENCE:?} for: {what}"),
    }
}

/// Tries of a command that the server does not answer.
const TRIES: usize = 5;
/// What such a command prints: `cli/src/connection.rs`.
pub const UNANSWERED: &str = "does not answer within 5 s";

/// The output of a command of `wattle` that has reached its server. A person does not wait for a server as long as one
/// may take on a busy machine; a command that gives up has sent nothing, and is repeated.
pub fn answered(mut run: impl FnMut() -> Output) -> Output {
    let mut output = run();
    for _ in 1..TRIES {
        if !String::from_utf8_lossy(&output.stderr).contains(UNANSWERED) {
            break;
        }
        output = run();
    }
    output
}

/// The key of the `wattle up` with this state folder.
fn key_of(folder: &Path) -> PathBuf {
    folder.join("keys/bus.nk")
}

/// Starts `wattle up` and waits until it is ready.
async fn start(
    folder: &Path,
    cluster: &ClusterId,
    args: &[&str],
    environment: &[(&str, &OsStr)],
) -> (Child, Bus) {
    let log = folder.join("up.err");
    let mut up = Command::new(program("wattle"))
        .args(["up", "--share", "any", "--cluster", cluster.as_str(), "--dir"])
        .arg(folder)
        .args(args)
        // The systems of other tests must not be found.
        .env("XDG_STATE_HOME", folder)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).expect("a log file"))
        .spawn()
        .expect("wattle starts");
    let out = up.stdout.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("wattle prints text");
    let url = line.trim().to_owned();
    let error = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(url.starts_with("nats://"), "first line `{url}`; {}", error());
    let given = environment.iter().find(|(name, _)| *name == env::CREDENTIALS);
    let key = given.map_or_else(|| key_of(folder), |(_, key)| PathBuf::from(key));
    let config = BusConfig { credentials_file: Some(key), ..BusConfig::at(&url) };
    let bus = Bus::connect_within(&config, cluster.clone(), "test", PATIENCE)
        .await
        .expect("the bus answers");
    until_up(&mut up, &log).await;
    (up, bus)
}

/// Waits until a `wattle up` with this log of its standard error is ready.
///
/// # Panics
/// If it ends before.
pub async fn until_up(up: &mut Child, log: &Path) {
    let text = || std::fs::read_to_string(log).unwrap_or_default();
    until("wattle up is ready", async || {
        let ended = up.try_wait().expect("it is our child");
        assert!(ended.is_none(), "wattle up has ended: {}", text());
        text().contains(" is up: ").then_some(())
    })
    .await;
}

/// A running `wattle up`.
pub struct System {
    up: Child,
    folder: TempDir,
    cluster: ClusterId,
    /// The key of the server, where that is the server of another system.
    key: Option<PathBuf>,
    /// The bus, as any client sees it.
    pub bus: Bus,
    _turn: Turn,
}

impl System {
    /// Starts `wattle up` with these arguments, `--dir` and `--cluster test`.
    pub async fn up(args: &[&str]) -> Self {
        Self::up_as("test", args).await
    }

    /// As [`Self::up`], with these environment variables.
    pub async fn up_with(args: &[&str], environment: &[(&str, &OsStr)]) -> Self {
        Self::start("test", args, environment).await
    }

    /// As [`Self::up`], with a cluster name.
    pub async fn up_as(cluster: &str, args: &[&str]) -> Self {
        Self::start(cluster, args, &[]).await
    }

    async fn start(cluster: &str, args: &[&str], environment: &[(&str, &OsStr)]) -> Self {
        let turn = turn(Weight::Light);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cluster = ClusterId::new(cluster).expect("an id");
        let (up, bus) = start(folder.path(), &cluster, args, environment).await;
        Self { up, folder, cluster, key: None, bus, _turn: turn }
    }

    /// As [`Self::up_as`], on the server of another system.
    pub async fn up_beside(other: &Self, cluster: &str, args: &[&str]) -> Self {
        let (url, key) = (other.url().to_owned(), other.key());
        let args = [args, &["--nats", &url]].concat();
        let mut system = Self::start(cluster, &args, &[(env::CREDENTIALS, key.as_os_str())]).await;
        system.key = Some(key);
        system
    }

    /// Kills `wattle up` with SIGKILL, waits until its services have ended, and restarts it in the same
    /// folder.
    pub async fn kill_9_up_and_start_again(&mut self, args: &[&str]) {
        self.up.kill().expect("it is our child");
        self.up.wait().expect("it is our child");
        until("all processes of wattle up have ended", async || {
            let ours = ["nats-server", "wattle-placer", "wattle-launcher", "wattle-profiler"];
            ours.iter().all(|program| self.anywhere(program).is_empty()).then_some(())
        })
        .await;
        (self.up, self.bus) = start(self.folder.path(), &self.cluster, args, &[]).await;
    }

    /// Ends `wattle up`, which requests a checkpoint of every job, and restarts it in the same folder.
    pub async fn end_and_start_again(&mut self, args: &[&str]) {
        assert!(self.end().await.success(), "{}", self.logs());
        (self.up, self.bus) = start(self.folder.path(), &self.cluster, args, &[]).await;
    }

    /// The bus's address.
    #[must_use]
    pub fn url(&self) -> &str {
        self.bus.url()
    }

    /// The file with its key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        key_of(self.folder())
    }

    /// The environment in which the commands of its user find it and its key.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &OsStr); 3] {
        [
            ("WATTLE_NATS_URL", self.url().as_ref()),
            ("WATTLE_CLUSTER", self.cluster.as_str().as_ref()),
            ("XDG_STATE_HOME", self.folder().as_os_str()),
        ]
    }

    /// The state folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The state file of a simulated node.
    #[must_use]
    pub fn node_state(&self, node: &str) -> PathBuf {
        self.folder.path().join("state").join(format!("{node}.state"))
    }

    /// Runs a command of `wattle` against this system.
    pub fn wattle<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let mut command = Command::new(program("wattle"));
        command.args(args).envs(self.environment()).envs(self.clock_environment());
        command.envs(self.key.as_ref().map(|key| (env::CREDENTIALS, key)));
        answered(|| command.output().expect("wattle runs"))
    }

    /// The environment of a process for which the simulated clock waits.
    fn clock_environment(&self) -> Option<(&'static str, PathBuf)> {
        let state = self.node_state("n0");
        state.exists().then(|| simulated_clock::environment(&state))
    }

    /// Runs a command that must succeed, and parses its output as JSON.
    pub fn json<S: AsRef<OsStr>>(&self, args: &[S]) -> Value {
        loop {
            let output = self.wattle(args);
            let error = String::from_utf8_lossy(&output.stderr);
            if output.status.success() {
                return serde_json::from_slice(&output.stdout).expect("--json prints JSON");
            }
            // What a busy server does not answer in time, a later command reads.
            assert!(error.contains("if the server is busy, repeat the command"), "{error}");
            pause();
        }
    }

    /// Submits a simulated job with options of `wattle submit` and arguments of simjob.
    pub fn submit(&self, job: &str, options: &[&str], training: &[&str]) -> JobId {
        let simjob = program("wattle-simjob");
        let mut args = vec!["submit", "--job", job, "--checkpoint-signal", "SIGUSR1"];
        args.extend(options);
        let simjob = simjob.to_str().expect("a path of text");
        args.extend(["--", simjob]);
        args.extend(training);
        let output = self.wattle(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}\n{}", self.logs());
        JobId::new(String::from_utf8_lossy(&output.stdout).trim()).expect("an id is printed")
    }

    /// A job's record.
    pub async fn record(&self, job: &JobId) -> Option<JobRecord> {
        records::record(&self.bus, job).await
    }

    /// Waits until a job's record satisfies `wanted`.
    pub async fn until_job(
        &self,
        job: &JobId,
        what: &str,
        wanted: impl Fn(&JobRecord) -> bool,
    ) -> JobRecord {
        let what = format!("{job}: {what}");
        let read = async || self.record(job).await.into_iter().collect();
        records::until(PATIENCE, &what, read, wanted, || self.logs()).await
    }

    /// Waits until a job has been started for the first time. Unlike its phase, which ends with its last step, its
    /// record keeps that.
    pub async fn until_started(&self, job: &JobId) -> JobRecord {
        self.until_job(job, "it has been started", |r| r.started_at_us.is_some()).await
    }

    /// The processes of this system that run `program`, as `wattle-placer`. Supervisors of jobs are
    /// not counted as launchers.
    #[must_use]
    pub fn processes(&self, program: &str) -> Vec<u32> {
        let mut found = descendants(self.up.id(), program);
        found.retain(|(_, command)| command.as_deref() != Some("supervise"));
        found.into_iter().map(|(pid, _)| pid).collect()
    }

    /// All processes that run `program` for this system, also those that are not its children: a job
    /// outlives its launcher.
    #[must_use]
    pub fn anywhere(&self, program: &str) -> Vec<u32> {
        let ours = self.folder.path().to_string_lossy().into_owned();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
                let first = command.split('\0').next().unwrap_or_default();
                first.rsplit('/').next() == Some(program)
                    && String::from_utf8_lossy(&read("environ")).contains(&ours)
            })
            .collect()
    }

    /// Kills every process of this system that runs `program` with SIGKILL.
    pub fn kill_9(&self, program: &str) {
        let found = self.processes(program);
        assert!(!found.is_empty(), "no {program} runs");
        for pid in found {
            kill(pid, "KILL");
        }
    }

    /// The last log lines of `wattle up` and of each service.
    #[must_use]
    pub fn logs(&self) -> String {
        let folder = self.folder.path();
        let logs = std::fs::read_dir(folder.join("logs")).into_iter().flatten().flatten();
        let jobs = std::fs::read_dir(folder.join("jobs")).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = logs.chain(jobs).map(|entry| entry.path()).collect();
        files.push(folder.join("up.err"));
        files.sort();
        let mut text = String::new();
        for file in files {
            let all = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<&str> = all.lines().collect();
            let tail = lines[lines.len().saturating_sub(25)..].join("\n");
            text.push_str(&format!("--- {}\n{tail}\n", file.display()));
        }
        text
    }

    /// The current system time.
    #[must_use]
    pub fn now(&self) -> wattle_common::Timestamp {
        let clock = clock::FileClock::open(&self.node_state("n0"));
        clock.expect("a node's state begins with its clock").now()
    }

    /// Holds the simulated time.
    pub fn hold(&self) -> Held {
        Held::of_up(self.up.id())
    }

    /// Sends `wattle up` itself a signal.
    pub fn signal(&self, signal: &str) {
        kill(self.up.id(), signal);
    }

    /// The stderr of `wattle up`.
    #[must_use]
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("up.err")).unwrap_or_default()
    }

    /// Terminates the system, waits for its end and returns the exit status.
    pub async fn end(&mut self) -> std::process::ExitStatus {
        kill(self.up.id(), "TERM");
        until("wattle up ends", async || self.up.try_wait().expect("it is our child")).await
    }
}

impl Drop for System {
    #[expect(clippy::print_stdout, reason = "logs of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        if self.up.try_wait().is_ok_and(|status| status.is_none()) {
            // A clean end leaves no process of a failed test.
            kill(self.up.id(), "TERM");
            let ended = (0..1_000).any(|_| {
                let ended = self.up.try_wait().is_ok_and(|status| status.is_some());
                if !ended {
                    pause();
                }
                ended
            });
            if !ended {
                let _ = self.up.kill();
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "polling for a process to end, in a destructor")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Sends a process a signal.
///
/// # Panics
/// If the process does not run.
pub fn kill(pid: u32, signal: &str) {
    assert!(kill_if_running(pid, signal), "kill -{signal} {pid}");
}

/// Sends a process a signal. Returns whether the process runs.
pub fn kill_if_running(pid: u32, signal: &str) -> bool {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    status.is_ok_and(|status| status.success())
}

/// The processes that `root` and its descendants have started and that run `program`, each with the first word of its
/// command line.
#[must_use]
pub fn descendants(root: u32, program: &str) -> Vec<(u32, Option<String>)> {
    let mut found = Vec::new();
    let mut todo = vec![root];
    while let Some(parent) = todo.pop() {
        let path = format!("/proc/{parent}/task/{parent}/children");
        for child in std::fs::read_to_string(path).unwrap_or_default().split_whitespace() {
            let child: u32 = child.parse().expect("the kernel lists numbers");
            let command = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            if words.next().unwrap_or_default().rsplit('/').next() == Some(program) {
                found.push((child, words.next().map(std::borrow::Cow::into_owned)));
            }
            todo.push(child);
        }
    }
    found
}

/// A minimal NATS client for payloads that the project itself would not send.
pub struct Raw(tokio::sync::Mutex<tokio::net::TcpStream>);

impl Raw {
    /// Connects to the server at `url`, with the seed in `key` where there is one.
    pub async fn connect(url: &str, key: Option<&Path>) -> Self {
        use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
        let address = url.trim_start_matches("nats://");
        let stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
        let mut stream = tokio::io::BufReader::new(stream);
        let mut greeting = String::new();
        stream.read_line(&mut greeting).await.expect("the server greets");
        let mut hello = serde_json::json!({ "verbose": false });
        if let Some(key) = key {
            let greeting = greeting.strip_prefix("INFO ").expect("the greeting of a server");
            let greeting: Value = serde_json::from_str(greeting).expect("it is JSON");
            let seed = std::fs::read_to_string(key).expect("the key is readable");
            let pair = nkeys::KeyPair::from_seed(&seed).expect("a seed");
            let nonce = greeting["nonce"].as_str().expect("a server with keys sends a nonce");
            let signed = pair.sign(nonce.as_bytes()).expect("it has a seed");
            hello["nkey"] = pair.public_key().into();
            hello["sig"] = URL_SAFE_NO_PAD.encode(signed).into();
        }
        let mut stream = stream.into_inner();
        let hello = format!("CONNECT {hello}\r\n");
        stream.write_all(hello.as_bytes()).await.expect("the server reads");
        Self(tokio::sync::Mutex::new(stream))
    }

    /// Publishes these bytes; `subject` may be followed by a space and a subject for replies.
    pub async fn publish(&self, subject: &str, payload: &[u8]) {
        use tokio::io::AsyncWriteExt as _;
        let mut frame = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
        frame.extend(payload);
        frame.extend(b"\r\n");
        self.0.lock().await.write_all(&frame).await.expect("the server reads");
    }
}

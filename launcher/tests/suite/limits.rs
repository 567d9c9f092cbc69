//! Limits of jobs, with the kernel's cgroups. Needs root; version 1 or 2, whichever the machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::messages::{LaunchState, ReachedLimit};
use wattle_launcher::config::JobLimits;
use wattle_launcher::engine::local::{LocalEngine, process};
use wattle_launcher::engine::{Engine as _, StatusSender};
use wattle_launcher::{Config, Event, Fault, Outcome, Run, RunSpec, Status, StopStage};
use wattle_runtime::testing::{skipped, until};

use crate::service::{Site, job};
use crate::support::{config, desired_job, node};

const DEADLINE: Duration = wattle_runtime::testing::HANG;
const ROOT: &str = "/sys/fs/cgroup";
const NEEDS: &str = "limits of jobs: needs root and the cgroup controllers memory, cpu and pids";
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// A cgroup of the test for the cgroups of jobs, as a site delegates it.
struct Delegated {
    name: String,
    is_v2: bool,
    /// A process in it, as in that of `wattle-jobs.service`.
    process: Option<Child>,
}

impl Delegated {
    /// `None` where this machine permits none.
    fn new(test: &str) -> Option<Self> {
        let name = format!("wattle-test-{}-{test}", std::process::id());
        let enabled = fs::read_to_string(Path::new(ROOT).join("cgroup.subtree_control"));
        let is_v2 = enabled.is_ok();
        let mut delegated = Self { name, is_v2, process: None };
        let has = |controller: &str| match &enabled {
            Ok(enabled) => enabled.split_whitespace().any(|known| known == controller),
            Err(_) => Path::new(ROOT).join(controller).is_dir(),
        };
        let created = || delegated.folders().iter().all(|folder| fs::create_dir(folder).is_ok());
        if CONTROLLERS.into_iter().all(has) && created() {
            let process = Command::new("sleep").arg("600").spawn().unwrap();
            for folder in delegated.folders() {
                fs::write(folder.join("cgroup.procs"), process.id().to_string()).unwrap();
            }
            delegated.process = Some(process);
            return Some(delegated);
        }
        None
    }

    fn folders(&self) -> Vec<PathBuf> {
        let of = |controller| Path::new(ROOT).join(controller).join(&self.name);
        if self.is_v2 { vec![of("")] } else { CONTROLLERS.map(of).to_vec() }
    }

    /// The folder of the cgroup `name` below this one.
    fn folder(&self, controller: &str, name: &str) -> PathBuf {
        let controller = if self.is_v2 { "" } else { controller };
        Path::new(ROOT).join(controller).join(&self.name).join(name)
    }

    fn read(&self, controller: &str, name: &str, file: &str) -> String {
        let path = self.folder(controller, name).join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn limits(&self) -> JobLimits {
        JobLimits { cgroup: Some(format!("/{}", self.name)), ..JobLimits::default() }
    }

    /// Creates an empty one, as an earlier launcher may leave it.
    fn leave(&self, name: &str) {
        for folder in self.folders() {
            fs::create_dir(folder.join(name)).unwrap();
        }
    }

    async fn until_removed(&self, name: &str) {
        let is_gone = || CONTROLLERS.iter().all(|each| !self.folder(each, name).exists());
        let gone = until(DEADLINE, async || is_gone().then_some(()));
        gone.await.unwrap_or_else(|| panic!("{name} is left: {:?}", self.folders()));
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        for folder in self.folders() {
            let below = fs::read_dir(&folder).into_iter().flatten().flatten();
            for each in below.map(|entry| entry.path()).filter(|path| path.is_dir()) {
                // Only a failed test leaves processes.
                let pids = fs::read_to_string(each.join("cgroup.procs")).unwrap_or_default();
                for process in pids.lines().filter_map(|pid| process::identity(pid.parse().ok()?)) {
                    process::signal(&process, process::Signal::KILL);
                }
                let _ = fs::remove_dir(each);
            }
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Runs jobs on one node.
pub(crate) struct Node {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: Config,
    pub(crate) engine: LocalEngine,
    changes: mpsc::Receiver<Event>,
}

impl Node {
    pub(crate) fn new(limits: JobLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { job_limits: limits, ..config(folder.path()) };
        Self::with(folder, config, env!("CARGO_BIN_EXE_wattle-launcher"))
    }

    /// A node whose supervisors run `program`.
    pub(crate) fn with(folder: tempfile::TempDir, config: Config, program: &str) -> Self {
        let (sender, changes) = mpsc::channel(16);
        let (state_dir, program) = (config.state_dir.clone(), PathBuf::from(program));
        let engine = LocalEngine::new(state_dir, program, StatusSender::new(sender));
        let engine = engine.testing(&config);
        Self { folder, config, engine, changes }
    }

    /// As a restart of the launcher: another engine takes over.
    pub(crate) async fn restart(self) -> Self {
        let mut node = Self::with(self.folder, self.config, env!("CARGO_BIN_EXE_wattle-launcher"));
        node.engine.resume().await.unwrap();
        node
    }

    /// The result of a test of the node.
    pub(crate) async fn tested(&mut self) -> Result<(), Fault> {
        self.engine.test();
        loop {
            let change = tokio::time::timeout(DEADLINE, self.changes.recv()).await;
            if let Some(Event::Tested(result)) = change.expect("it is tested in time") {
                return result;
            }
        }
    }

    /// Starts a shell script as a job of `gpus` GPUs.
    pub(crate) fn start(&mut self, name: &str, gpus: u32, script: &str) -> RunSpec {
        let mut desired = desired_job(name, 1);
        desired.gpus = (0..gpus).collect();
        desired.command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spec = RunSpec::new(&desired, &node(), &self.config).unwrap();
        self.engine.start(&spec);
        spec
    }

    pub(crate) async fn end(&mut self, run: &Run) -> Outcome {
        loop {
            let change = tokio::time::timeout(DEADLINE, self.changes.recv()).await;
            match change.expect("it ends in time") {
                Some(Event::StatusChanged(of, Status::Ended(outcome))) if of == *run => {
                    return outcome;
                }
                Some(_) => {}
                None => panic!("the engine reports the end"),
            }
        }
    }

    /// Waits until the run's first process is stored.
    pub(crate) async fn running(&mut self, run: &Run) {
        loop {
            let change = tokio::time::timeout(DEADLINE, self.changes.recv()).await;
            match change.expect("it runs in time") {
                Some(Event::StatusChanged(of, Status::Running(_))) if of == *run => return,
                Some(Event::StatusChanged(of, status)) if of == *run => panic!("{status:?}"),
                Some(_) => {}
                None => panic!("the engine reports the start"),
            }
        }
    }

    /// The pid that a job writes to a file of its folder.
    pub(crate) async fn pid(&self, job: &str, file: &str) -> u32 {
        let path = self.folder.path().join("c").join(job).join(file);
        let read = async || fs::read_to_string(&path).ok()?.strip_suffix('\n')?.parse().ok();
        until(DEADLINE, read).await.unwrap_or_else(|| panic!("{}", path.display()))
    }
}

fn alive(pid: u32) -> bool {
    process::identity(pid).is_some_and(|process| process::is_alive(&process))
}

/// A job with a process that needs 2 GiB, and which waits if only this process is killed.
const GROWS: &str = "dd if=/dev/zero of=/dev/null bs=2G count=1; sleep 600";
/// A job that runs until it is stopped.
const RUNS: &str = "echo $$ > $WATTLE_CHECKPOINT_DIR/pid; while true; do sleep 0.05; done";

#[tokio::test]
async fn a_job_beyond_its_memory_limit_is_ended_and_others_continue() {
    let Some(delegated) = Delegated::new("memory") else {
        skipped(NEEDS);
        return;
    };
    let mut node = Node::new(JobLimits { memory_gib_per_gpu: Some(1), ..delegated.limits() });
    let other = node.start("other", 2, RUNS);
    let pid = node.pid("other", "pid").await;
    let big = node.start("big", 1, GROWS);
    let limit = ReachedLimit::MemoryMib(1_024);
    assert_eq!(node.end(&big.run()).await, Outcome::Limited { code: 137, limit });
    let log = fs::read_to_string(&big.log_path).unwrap();
    assert!(log.ends_with("--- exceeded its memory limit of 1 GiB ---\n"), "{log}");
    delegated.until_removed("n0.big.1").await;

    assert!(alive(pid), "{:?}", fs::read_to_string(&other.log_path));
    let file = if delegated.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
    let own = delegated.read("memory", "n0.other.1", file);
    assert_eq!(own.trim(), (2u64 << 30).to_string(), "two GPUs");
    node.engine.stop(&other.run(), StopStage::Kill);
    assert_eq!(node.end(&other.run()).await, Outcome::Killed(9), "it reached no limit");
    delegated.until_removed("n0.other.1").await;
}

#[tokio::test]
async fn number_of_processes_is_limited() {
    let Some(delegated) = Delegated::new("processes") else {
        skipped(NEEDS);
        return;
    };
    let mut node = Node::new(JobLimits { processes_max: Some(40), ..delegated.limits() });
    let started = "n=0; while [ $n -lt 300 ]; do sleep 600 & n=$((n+1)); \
         echo $n > $WATTLE_CHECKPOINT_DIR/started; done; exit 9";
    let many = node.start("many", 1, started);
    let Outcome::Limited { limit: ReachedLimit::Processes(40), code } = node.end(&many.run()).await
    else {
        panic!("{}", fs::read_to_string(&many.log_path).unwrap())
    };
    assert_ne!(code, 9);
    assert!(node.pid("many", "started").await < 40);
    let log = fs::read_to_string(&many.log_path).unwrap();
    assert!(log.ends_with("--- reached its limit of 40 processes and threads ---\n"), "{log}");
    delegated.until_removed("n0.many.1").await;

    // An orphan that has ended does not count, because it does not remain as a zombie.
    let orphans =
        "(true & echo $! > orphan); while kill -0 $(cat orphan); do sleep 0.02; done; exit 3";
    let short = node.start("short", 1, orphans);
    let text = || fs::read_to_string(&short.log_path);
    assert_eq!(node.end(&short.run()).await, Outcome::Code(3), "{:?}", text());
}

#[tokio::test]
async fn cpu_time_is_limited() {
    let Some(delegated) = Delegated::new("cpu") else {
        skipped(NEEDS);
        return;
    };
    let mut node = Node::new(JobLimits { cpus_per_gpu: Some(0.1), ..delegated.limits() });
    let spins = "echo $$ > $WATTLE_CHECKPOINT_DIR/pid; while :; do :; done";
    let spin = node.start("spin", 2, spins);
    let pid = node.pid("spin", "pid").await;
    if delegated.is_v2 {
        assert_eq!(delegated.read("cpu", "n0.spin.1", "cpu.max"), "20000 100000\n");
    } else {
        assert_eq!(delegated.read("cpu", "n0.spin.1", "cpu.cfs_quota_us"), "20000\n");
        assert_eq!(delegated.read("cpu", "n0.spin.1", "cpu.cfs_period_us"), "100000\n");
    }
    // User and system time in ticks of 10 ms.
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let (began, before) = (wattle_runtime::clock::now(), used());
    until(DEADLINE, async || (used() >= before + 40).then_some(())).await.expect("it spins");
    let share = 0.4 / wattle_runtime::clock::now().since(began).as_secs_f64();
    eprintln!("used {share:.3} CPUs of 0.2, cgroups of version {}", 1 + u32::from(delegated.is_v2));
    assert!(share < 0.3, "{share} CPUs");
    node.engine.stop(&spin.run(), StopStage::Kill);
    assert_eq!(node.end(&spin.run()).await, Outcome::Killed(9));
    delegated.until_removed("n0.spin.1").await;
}

/// A child in a session of its own, whose parent has ended.
const DETACHED: &str = "(setsid sh -c 'echo $$ > $WATTLE_CHECKPOINT_DIR/child; \
     while true; do sleep 0.05; done' &)";

#[tokio::test]
async fn no_process_outlives_its_job() {
    let Some(delegated) = Delegated::new("end") else {
        skipped(NEEDS);
        return;
    };
    let mut node = Node::new(delegated.limits());
    let detached = format!("{DETACHED}; while [ ! -s child ]; do sleep 0.02; done; exit 5");
    let job = node.start("detached", 1, &detached);
    assert_eq!(node.end(&job.run()).await, Outcome::Code(5));
    assert!(!alive(node.pid("detached", "child").await));
    delegated.until_removed("n0.detached.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cgroups_outlive_the_launcher_and_left_ones_are_removed() {
    let Some(delegated) = Delegated::new("restart") else {
        skipped(NEEDS);
        return;
    };
    let mut site = Site::with(&format!(
        "[job_limits]\nmemory_gib_per_gpu = 1\nprocesses_max = 200\ncgroup = \"/{}\"\n",
        delegated.name
    ))
    .await;
    let dir = "$WATTLE_CHECKPOINT_DIR";
    let grows = format!("while [ ! -e {dir}/go ]; do sleep 0.02; done; {GROWS}");
    let mut grows = job("grows", 1, &grows);
    grows.gpus = vec![1];
    grows.shares[0].gpus = vec![1];
    let dead = format!("{DETACHED}; while true; do sleep 0.05; done");
    site.desire(vec![grows, job("dead", 1, &dead)]).await;
    let child = site.path("checkpoints/dead/child");
    let child: u32 =
        site.until_file(&child, |text| text.ends_with('\n')).await.trim().parse().unwrap();
    let grows = site.until_state("grows", |state| *state == LaunchState::Running).await;
    let dead = site.until_state("dead", |state| *state == LaunchState::Running).await;
    let members = delegated.read("pids", "n0.grows.1", "cgroup.procs");
    assert!(members.lines().count() >= 1);

    site.kill_launcher();
    let supervisor = process::identity(crate::service::session(&dead)).unwrap();
    process::signal(&supervisor, process::Signal::KILL);
    until(DEADLINE, async || (!process::is_alive(&supervisor)).then_some(())).await.unwrap();
    assert!(alive(child), "its process is left");
    delegated.leave("n0.earlier.3");
    delegated.leave("n1.of-another-node.1");
    site.start_launcher();

    site.until_state("dead", |state| matches!(state, LaunchState::Lost { .. })).await;
    delegated.until_removed("n0.dead.1").await;
    delegated.until_removed("n0.earlier.3").await;
    assert!(!alive(child));
    assert!(delegated.folder("pids", "n1.of-another-node.1").exists());
    let still = site.until_state("grows", |state| *state == LaunchState::Running).await;
    assert_eq!(still.processes, grows.processes);

    fs::write(site.path("checkpoints/grows/go"), "").unwrap();
    let ended =
        site.until_state("grows", |state| matches!(state, LaunchState::Exited { .. })).await;
    let limit = Some(ReachedLimit::MemoryMib(1_024));
    assert_eq!(ended.state, LaunchState::Exited { code: 137, limit });
    delegated.until_removed("n0.grows.1").await;
}

#[test]
fn limit_that_cannot_be_enforced_ends_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launcher.toml");
    let good = include_str!("../../../deploy/launcher.toml")
        .replace("job_user = \"owner\"", "job_user = \"service\"")
        .replace("/var/lib/wattle", folder.path().to_str().unwrap());
    let header = "\n[job_limits]\n";
    assert!(good.contains(header));
    let launcher = |limits: &str| {
        fs::write(&file, good.replace(header, &format!("{header}{limits}\n"))).unwrap();
        let launcher = Command::new(env!("CARGO_BIN_EXE_wattle-launcher"))
            .args(["--config", file.to_str().unwrap()])
            .output()
            .unwrap();
        (launcher.status.code(), String::from_utf8_lossy(&launcher.stderr).into_owned())
    };
    let (code, text) = launcher("cgroup = \"/no/such/cgroup\"\nprocesses_max = 100");
    assert_eq!(code, Some(1), "{text}");
    let is_remedy =
        |text: &str| text.contains("start wattle-jobs.service") || text.contains("mount");
    assert!(text.contains("[job_limits]") && is_remedy(&text), "{text}");
    for (wrong, key) in [
        ("memory_gib = 3", "memory_gib"),
        ("memory_gib_per_gpu = 0", "job_limits.memory_gib_per_gpu"),
        ("cpus_per_gpu = -1.0", "job_limits.cpus_per_gpu"),
        ("cgroup = \"relative\"", "job_limits.cgroup"),
    ] {
        let (code, text) = launcher(wrong);
        assert!(code == Some(2) && text.contains(key), "{key}: {text}");
    }
}

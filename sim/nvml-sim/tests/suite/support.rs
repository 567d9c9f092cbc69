//! Shared test support: simulated nodes in temporary directories, jobs that are killed when a test
//! ends, waiting for conditions, and tests that need a process (and so an NVML state) of their own.
#![allow(dead_code, reason = "each test file uses a part")]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nvml_sim::node::{Node, NodeSpec, Snapshot, wall_us};
use nvml_wrapper::Nvml;
use tempfile::TempDir;
use wattle_common::NodeId;
use wattle_common::progress::Progress;
use wattle_common::time::TimeScale;

/// A workload that saturates a V100 and fits into its memory twice.
pub(crate) const HEAVY: &str = "resnet50-imagenet-b64";

/// Path of the C library built for these tests.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    // Cargo builds it next to the test, in `deps`; a plain build copies it to the parent directory.
    let deps = exe.parent().unwrap();
    let candidates = [deps, deps.parent().unwrap()].map(|dir| dir.join("libnvml_sim.so"));
    if !candidates.iter().any(|path| path.exists()) {
        let built = Command::new(env!("CARGO"))
            .args(["build", "-p", "wattle-nvml-sim", "--lib"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "building the library failed");
    }
    candidates.into_iter().find(|path| path.exists()).expect("cargo has built it")
}

/// Deadline of a condition, which only finds a hang.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until `condition` returns a value.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = wall_us() + PATIENCE.as_micros() as u64;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(wall_us() < end, "waited {PATIENCE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(3));
    }
}

/// A directory of simulated nodes with one clock.
pub(crate) struct SimCluster {
    dir: TempDir,
    rate: u32,
    epoch_us: u64,
}

impl SimCluster {
    pub(crate) fn new(rate: u32) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), rate, epoch_us: wall_us() }
    }
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
    /// Creates a node of V100s and returns its file.
    pub(crate) fn node(&self, name: &str, gpus: u32) -> PathBuf {
        self.node_of(name, gpus, "v100")
    }
    pub(crate) fn node_of(&self, name: &str, gpus: u32, gpu_type: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{name}.node"));
        let clock = TimeScale { epoch_us: self.epoch_us, rate: self.rate };
        let (node, gpu_type) = (NodeId::new(name).unwrap(), gpu_type.to_owned());
        Node::create(&path, &NodeSpec { node, gpus, gpu_type, clock }).unwrap();
        path
    }
    /// A progress socket.
    pub(crate) fn socket(&self, name: &str) -> (UnixDatagram, PathBuf) {
        let path = self.dir.path().join(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (socket, path)
    }
}

/// The next report on a progress socket.
pub(crate) fn next_line(socket: &UnixDatagram) -> Progress {
    let mut line = [0; 512];
    let len = socket.recv(&mut line).expect("a progress report");
    Progress::parse(&line[..len]).unwrap()
}

/// A running simjob; dropping it kills it.
pub(crate) struct Job {
    pub(crate) child: Child,
}

impl Job {
    /// Starts a job on GPUs of a node, with additional environment variables.
    pub(crate) fn start(
        state: &Path,
        gpus: &str,
        id: &str,
        args: &[&str],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattle-simjob"));
        command
            .args(args)
            .env("WATTLE_SIM_NODE", state)
            .env("CUDA_VISIBLE_DEVICES", gpus)
            .env("WATTLE_JOB", id)
            .env_remove("WATTLE_PROGRESS")
            .env_remove("WATTLE_CHECKPOINT_DIR")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in environment {
            command.env(name, value);
        }
        Self { child: command.spawn().unwrap() }
    }
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success());
    }
    /// Waits until it ends.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the job ends", || self.child.try_wait().unwrap())
    }
    /// Waits until it ends; its status, stdout and stderr.
    pub(crate) fn output(mut self) -> (ExitStatus, String, String) {
        use std::io::Read as _;
        let status = self.wait();
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status, out, err)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a job runs and `holds` is true; its rate in steps per second.
pub(crate) fn rate_when(node: &Node, job: &str, holds: impl Fn(&Snapshot) -> bool) -> f64 {
    until(&format!("{job} runs as expected"), || {
        let snapshot = node.observe().unwrap();
        let claim =
            snapshot.state.claims.iter().flatten().find(|c| c.request.job.as_str() == job)?;
        (claim.rate() > 0 && holds(&snapshot)).then(|| claim.rate() as f64 / 1e9)
    })
}

const CHILD: &str = "WATTLE_TEST_CHILD";

/// Runs a test's body in a child process with a new node of two V100s, because NVML has one state
/// per process.
pub(crate) fn with_nvml(test: &str, rate: u32, body: impl FnOnce(Nvml, &Node)) {
    with_nvml_of(test, rate, "v100", body);
}

/// [`with_nvml`] with two GPUs of this type.
pub(crate) fn with_nvml_of(test: &str, rate: u32, gpu_type: &str, body: impl FnOnce(Nvml, &Node)) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        let state = PathBuf::from(std::env::var("WATTLE_SIM_NODE").unwrap());
        let library = library();
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        return body(nvml, &Node::open(&state).unwrap());
    }
    let cluster = SimCluster::new(rate);
    let state = cluster.node_of("n0", 2, gpu_type);
    let out = child_of(test).env("WATTLE_SIM_NODE", &state).output().unwrap();
    let output = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{output}");
    assert!(output.contains("1 passed"), "the test `{test}` is unknown: {output}");
}

/// This test program as a child process that runs one test, the one on the current thread.
pub(crate) fn child_of(test: &str) -> Command {
    let path = std::thread::current().name().unwrap_or(test).to_owned();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path, "--nocapture", "--include-ignored"]).env(CHILD, test);
    command
}

/// Whether this process was started by [`child_of`].
pub(crate) fn is_child() -> bool {
    std::env::var(CHILD).is_ok()
}

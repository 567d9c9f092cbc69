//! What the tests share: nodes in folders of their own, jobs that are killed when a test ends,
//! waiting for a condition, and tests that need a process (and so an NVML) of their own.
#![allow(dead_code, reason = "each test file uses a part")]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nvml_sim::node::{Node, NodeSpec, View, wall_us};
use nvml_wrapper::Nvml;
use tempfile::TempDir;
use wattle_common::NodeId;
use wattle_common::progress::Progress;
use wattle_common::time::TimeScale;

/// A job that fills a V100 and fits on it twice.
pub(crate) const HEAVY: &str = "resnet50-imagenet-b64";

/// The C library, as cargo has just built it for these tests.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    // Cargo puts it beside the test, in `deps`; a plain build copies it one folder up.
    let deps = exe.parent().unwrap();
    let places = [deps, deps.parent().unwrap()].map(|dir| dir.join("libnvml_sim.so"));
    if !places.iter().any(|place| place.exists()) {
        let built = Command::new(env!("CARGO"))
            .args(["build", "-p", "wattle-nvml-sim", "--lib"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "the library cannot be built");
    }
    places.into_iter().find(|place| place.exists()).expect("cargo has built it")
}

/// Waits until `condition` gives something; fails after ten seconds.
pub(crate) fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_for(10, what, condition)
}

/// Waits until `condition` gives something; fails after `seconds`.
pub(crate) fn until_for<T>(
    seconds: u64,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let end = wall_us() + seconds * 1_000_000;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(wall_us() < end, "{seconds} s are over and still not: {what}");
        std::thread::park_timeout(Duration::from_millis(3));
    }
}

/// A folder with simulated nodes in it.
pub(crate) struct Place {
    dir: TempDir,
    rate: u32,
    epoch_us: u64,
}

impl Place {
    pub(crate) fn new(rate: u32) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), rate, epoch_us: wall_us() }
    }
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
    /// Makes a node of V100s and gives its file.
    pub(crate) fn node(&self, name: &str, gpus: u32) -> PathBuf {
        self.node_of(name, gpus, "v100")
    }
    pub(crate) fn node_of(&self, name: &str, gpus: u32, kind: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{name}.node"));
        let clock = TimeScale { epoch_us: self.epoch_us, rate: self.rate };
        let (node, kind) = (NodeId::new(name).unwrap(), kind.to_owned());
        Node::create(&path, &NodeSpec { node, gpus, kind, clock }).unwrap();
        path
    }
    /// A socket for progress.
    pub(crate) fn socket(&self, name: &str) -> (UnixDatagram, PathBuf) {
        let path = self.dir.path().join(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (socket, path)
    }
}

/// The next line on a progress socket.
pub(crate) fn next_line(socket: &UnixDatagram) -> Progress {
    let mut line = [0; 512];
    let len = socket.recv(&mut line).expect("a progress line");
    Progress::parse(&line[..len]).unwrap()
}

/// A running simjob; dropping it kills it.
pub(crate) struct Job {
    pub(crate) child: Child,
}

impl Job {
    /// Starts a job on some cards of a node. `more` is further environment.
    pub(crate) fn start(
        state: &Path,
        gpus: &str,
        id: &str,
        args: &[&str],
        more: &[(&str, &Path)],
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
        for (name, value) in more {
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
    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until_for(30, "the job ends", || self.child.try_wait().unwrap())
    }
    /// Waits for its end; what it said on stdout and stderr.
    pub(crate) fn said(mut self) -> (ExitStatus, String, String) {
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

/// Waits until a job's claim on a node holds what is asked, and gives the rate in steps a second.
pub(crate) fn rate_when(node: &Node, job: &str, holds: impl Fn(&View) -> bool) -> f64 {
    until(&format!("{job} runs as asked"), || {
        let view = node.look().unwrap();
        let claim = view.state.claims.iter().flatten().find(|c| c.request.job.as_str() == job)?;
        (claim.rate() > 0 && holds(&view)).then(|| claim.rate() as f64 / 1e9)
    })
}

const CHILD: &str = "WATTLE_TEST_CHILD";

/// Runs a test's body in a process of its own, where `WATTLE_SIM_NODE` names a new node of two
/// V100s: NVML is one to a process.
pub(crate) fn with_nvml(test: &str, rate: u32, body: impl FnOnce(Nvml, &Node)) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        let state = PathBuf::from(std::env::var("WATTLE_SIM_NODE").unwrap());
        let library = library();
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        return body(nvml, &Node::open(&state).unwrap());
    }
    let place = Place::new(rate);
    let state = place.node("n0", 2);
    let out = again(test).env("WATTLE_SIM_NODE", &state).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("1 passed"), "the test `{test}` has another name: {said}");
}

/// This test program as a child process that runs one test, the one on the current thread.
pub(crate) fn again(test: &str) -> Command {
    let path = std::thread::current().name().unwrap_or(test).to_owned();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path, "--nocapture", "--include-ignored"]).env(CHILD, test);
    command
}

/// Whether this process was started by [`again`].
pub(crate) fn is_child() -> bool {
    std::env::var(CHILD).is_ok()
}

//! Cost of the profiler on its node: CPU time and memory at 10 Hz on 8 simulated GPUs with a job on
//! each, with a real nats-server to talk to.
//!
//! `cargo bench -p wattle-tests --bench profiler`. It fails where the profiler takes 1 % of a core or
//! 30 MB, the limits it is built to.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![allow(clippy::print_stdout, reason = "its figures are its output")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::env;
use wattle_runtime::clock;
use wattle_runtime::testing::NatsServer;

const GPUS: u32 = 8;
const WARM_UP: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(30);
const CPU_PERCENT_MAX: f64 = 1.0;
const RESIDENT_KB_MAX: u64 = 30_000;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().unwrap().parent().unwrap().to_owned();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--release", "--quiet", "-p", "wattle-nvml-sim", "-p", "wattle-profiler"]);
    // Build scripts that look at these would run again, for nothing.
    for (key, _) in std::env::vars_os() {
        let text = key.to_string_lossy();
        if text.starts_with("CARGO_PKG") || text.starts_with("CARGO_MANIFEST") {
            build.env_remove(key);
        }
    }
    assert!(build.status().unwrap().success());
    folder
}

/// CPU time of all threads, in nanoseconds.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            text.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.to_owned())
}

fn command(program: &Path, state: &Path) -> Command {
    let mut command = Command::new(program);
    command.env(env::CLOCK, state).env(env::SIM_NODE, state).env_remove(env::NATS_URL);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let programs = programs();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("node");
    let mut create = command(&programs.join("wattle-simnode"), &state);
    create.arg("create").arg("--state").arg(&state).args(["--node", "n0", "--gpu-type", "v100"]);
    assert!(create.args(["--gpus", &GPUS.to_string()]).status().unwrap().success());

    let server = NatsServer::start().await;
    let config = folder.path().join("profiler.toml");
    let socket = folder.path().join("progress.sock");
    let text = format!(
        "cluster = \"bench\"\nnode = \"n0\"\nnvml_library = {:?}\nprogress_socket = {socket:?}\n\
         state_dir = {:?}\n[nats]\nurl = {:?}\n",
        programs.join("libnvml_sim.so"),
        folder.path(),
        server.url()
    );
    std::fs::write(&config, text).unwrap();
    let mut profiler = command(&programs.join("wattle-profiler"), &state);
    let profiler = Running(profiler.arg("--config").arg(&config).spawn().unwrap());
    let pid = profiler.0.id();
    let jobs: Vec<Running> = (0..GPUS)
        .map(|gpu| {
            let mut job = command(&programs.join("wattle-simjob"), &state);
            job.args(["--workload", "bert-squad-b32", "--steps", "100000000"]);
            job.env("CUDA_VISIBLE_DEVICES", gpu.to_string()).env(env::JOB, format!("job-{gpu}"));
            job.env(env::PROGRESS, &socket).env(env::CHECKPOINT_DIR, folder.path().join("ck"));
            Running(job.spawn().unwrap())
        })
        .collect();

    clock::sleep(WARM_UP).await;
    let (began, before) = (clock::now(), cpu_ns(pid));
    clock::sleep(MEASURED).await;
    let (span, spent) = (clock::now().since(began), cpu_ns(pid) - before);
    let percent = spent as f64 / span.as_nanos() as f64 * 100.0;
    let resident = resident_kb(pid);
    println!(
        "profiler, {GPUS} simulated GPUs with {} jobs at 10 Hz, over {:.0} s on {}: \
         {percent:.2} % of one core (at most {CPU_PERCENT_MAX} %), {:.1} MB resident at its peak \
         (at most {} MB)",
        jobs.len(),
        span.as_secs_f64(),
        machine(),
        resident as f64 / 1_000.0,
        RESIDENT_KB_MAX / 1_000
    );
    assert!(percent < CPU_PERCENT_MAX && resident < RESIDENT_KB_MAX, "over its limits");
}

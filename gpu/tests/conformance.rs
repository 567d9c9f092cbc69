//! One body of claims about a driver, and two arms: the simulated NVML library, and real cards.
//!
//! * The simulated arm runs where `libnvml_sim.so` has been built (`cargo build -p wattle-nvml-sim`;
//!   or `WATTLE_NVML_LIBRARY` names it). It makes a node of its own and also gives orders and faults.
//! * The real arm runs where `GPU_TESTS=1`, on the system's NVML. It only reads.
//!
//! An arm that does not run says so.
#![cfg(feature = "nvml")]
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::{Frequency, GpuIndex, Power, env, units::Energy};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver, EnergyCounter, GpuError, LIBRARY_ENV, Step, kind_of};

const CHILD_STATE: &str = "WATTLE_TEST_STATE";

/// Polls of 10 ms before a condition counts as never coming: 30 s.
const POLLS_MAX: u32 = 3_000;

/// Reads until `enough` gives something.
fn awaited<T>(what: &str, mut enough: impl FnMut() -> Option<T>) -> T {
    for _ in 0..POLLS_MAX {
        if let Some(found) = enough() {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what}: not within 30 s")
}

/// What holds of every card, and is only read.
fn reads_as_it_should(driver: &mut dyn Driver) {
    let count = driver.count().unwrap();
    assert!(count > 0, "a node without cards");
    for gpu in 0..count {
        let info = driver.info(gpu).unwrap();
        assert!(info.uuid.starts_with("GPU-"), "{}", info.uuid);
        assert_eq!(info.kind, kind_of(&info.name));
        assert!(info.memory_mib > 1_000, "{} MiB", info.memory_mib);
        assert!(info.clocks.is_sorted(), "{:?}", info.clocks);
        let (Some(default), Some(min), Some(max)) = (info.cap_default, info.cap_min, info.cap_max)
        else {
            panic!("gpu {gpu} tells no caps: {info:?}")
        };
        assert!(min <= default && default <= max, "{min} {default} {max}");

        let reading = driver.read(gpu).unwrap();
        let power = reading.power.expect("every card of a data centre tells its power");
        assert!(power > Power::from_w(5) && power < max.scale(1.5), "{power}");
        assert!(reading.utilization_gpu_percent.is_some_and(|percent| percent <= 100));
        assert!(reading.memory_used_mib.is_some_and(|used| used <= info.memory_mib));
        assert!(reading.temperature_c.is_some_and(|celsius| (5..120).contains(&celsius)));
        let clock = reading.clock.expect("every card tells its clock");
        assert!(info.clocks.last().is_none_or(|highest| clock <= *highest), "{clock}");
        assert_eq!(reading.cap, Some(driver.cap(gpu).unwrap()));
        assert!(reading.processes.is_some());

        energy_follows_power(driver, gpu);
    }
    let beyond = driver.read(count).unwrap_err();
    assert!(matches!(beyond, GpuError::Refused { .. }), "{beyond:?}");
    assert!(beyond.to_string().contains("GPUs"), "{beyond}");
}

/// The energy counter grows and never falls.
fn energy_follows_power(driver: &mut dyn Driver, gpu: GpuIndex) {
    let mut counter = EnergyCounter::default();
    let mut spent = Energy::ZERO;
    awaited("the energy counter grows", || {
        let total = driver.read(gpu).unwrap().energy_total.expect("Volta and later count energy");
        match counter.step(total) {
            Step::First => {}
            Step::Spent(more) => spent += more,
            Step::Restarted(total) => panic!("the counter went back to {total:?}"),
        }
        (spent > Energy::from_mj(100)).then_some(())
    });
}

/// What holds of cards that may be given orders.
fn obeys(driver: &mut dyn Driver) {
    let info = driver.info(1).unwrap();
    let (min, default) = (info.cap_min.unwrap(), info.cap_default.unwrap());
    let cap = min + (default - min).scale(0.5);
    driver.set_cap(1, cap).unwrap();
    assert_eq!(driver.cap(1), Ok(cap));
    assert_eq!(driver.read(1).unwrap().cap, Some(cap));
    assert_eq!(driver.cap(0), Ok(driver.info(0).unwrap().cap_default.unwrap()));
    let outside = driver.set_cap(1, min.scale(0.5)).unwrap_err();
    assert!(matches!(outside, GpuError::Refused { .. }), "{outside:?}");
    assert!(outside.to_string().contains(&min.to_string()), "{outside}");
    assert_eq!(driver.cap(1), Ok(cap), "a refused order changes nothing");
    driver.set_cap(1, default).unwrap();

    let clocks = info.clocks;
    assert!(clocks.len() > 2, "{clocks:?}");
    let lower = clocks[clocks.len() / 2];
    driver.set_clock_max(1, Some(lower)).unwrap();
    awaited("the clock comes down", || {
        let clock = driver.read(1).unwrap().clock?;
        (clock <= lower).then_some(())
    });
    driver.set_clock_max(1, None).unwrap();
    let nothing = driver.set_clock_max(9, Some(Frequency::from_mhz(1))).unwrap_err();
    assert!(matches!(nothing, GpuError::Refused { .. }), "{nothing:?}");
}

/// A process that does not outlive its test.
struct Job(Child);

impl Job {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process that computes is seen, with what it holds and what it uses, until it ends.
fn sees_processes(driver: &mut dyn Driver, mut job: Job) {
    let pid = job.0.id();
    let idle = driver.read(0).unwrap();
    let busy = |driver: &mut dyn Driver| {
        let reading = driver.read(1).unwrap();
        let found = reading.processes.unwrap().into_iter().find(|process| process.pid == pid);
        (reading.power.unwrap(), reading.memory_used_mib.unwrap(), found)
    };
    let memory = awaited("the process holds memory", || busy(driver).2?.memory_mib);
    assert!(memory > 0 && memory <= busy(driver).1, "{memory} MiB");
    let used = awaited("the process uses the card", || busy(driver).2?.utilization_gpu_percent);
    assert!((1..=100).contains(&used), "{used} %");
    let power =
        awaited("the card works", || Some(busy(driver).0).filter(|p| *p > Power::from_w(60)));
    assert!(power > idle.power.unwrap(), "{power}");
    assert_eq!(driver.read(0).unwrap().processes, Some(Vec::new()), "its neighbour has none");
    job.end();
    awaited("the process is gone", || busy(driver).2.is_none().then_some(()));
}

/// Each fault is the error that a caller can do something about.
fn fails_as_it_should(driver: &mut dyn Driver, fault: impl Fn(&[&str])) {
    fault(&["--gpu", "0", "lost"]);
    let gone = driver.read(0).unwrap_err();
    assert!(matches!(gone, GpuError::Gone { gpu: 0, .. }), "{gone:?}");
    assert!(driver.read(1).is_ok(), "its neighbour is well");
    fault(&["--gpu", "0", "clear"]);
    assert!(driver.read(0).is_ok());

    fault(&["--gpu", "0", "no-permission"]);
    let cap = driver.info(0).unwrap().cap_min.unwrap();
    let refused = driver.set_cap(0, cap).unwrap_err();
    assert!(matches!(refused, GpuError::Refused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("root"), "{refused}");
    fault(&["--gpu", "0", "clear"]);

    fault(&["--gpu", "0", "unsupported:temperature"]);
    let reading = driver.read(0).unwrap();
    assert_eq!(reading.temperature_c, None, "what is not read is missing, never zero");
    assert!(reading.power.is_some());
    fault(&["--gpu", "0", "clear"]);
}

/// The simulated library and the tool that makes its nodes, where they have been built.
fn simulated() -> Option<(PathBuf, PathBuf)> {
    let named = std::env::var_os(LIBRARY_ENV).map(PathBuf::from);
    let built = || {
        // This test is target/debug/deps/conformance-*.
        let test = std::env::current_exe().ok()?;
        Some(test.parent()?.parent()?.join("libnvml_sim.so"))
    };
    let library = named.or_else(built).filter(|library| library.is_file())?;
    let tool = library.parent()?.join("wattle-simnode");
    let built = tool.is_file() && library.parent()?.join("wattle-simjob").is_file();
    built.then_some((library, tool))
}

/// Past the test harness, which shows what is printed only where a test fails.
fn not_run(why: &str) {
    let _ = writeln!(std::io::stderr(), "\n{why}");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {}\n{told}{text}", output.status);
}

#[test]
fn simulated_cards() {
    // Started by itself, with the environment it needs.
    if let Some(state) = std::env::var_os(CHILD_STATE) {
        return claims_hold(Path::new(&state));
    }
    let Some((library, tool)) = simulated() else {
        not_run(
            "NOT RUN: no libnvml_sim.so and its tools beside this test; cargo build -p wattle-nvml-sim makes them",
        );
        return;
    };
    let folder = std::env::temp_dir().join(format!("wattle-gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("n0");
    let mut create = Command::new(tool);
    create.arg("create").arg("--state").arg(&state);
    create.args(["--node", "n0", "--gpus", "2", "--kind", "v100", "--rate", "60"]);
    run(&mut create);
    // The library finds its node through the environment, which a test must not change for the
    // others: so the claims are made in a process of their own.
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "simulated_cards", "--nocapture"]);
    child.env(LIBRARY_ENV, library).env(env::SIM_NODE, &state).env(CHILD_STATE, &state);
    run(&mut child);
    std::fs::remove_dir_all(folder).unwrap();
}

/// All that is claimed, of the simulated node whose state lies there.
fn claims_hold(state: &Path) {
    let (library, tool) = simulated().unwrap();
    let mut driver = NvmlDriver::open(Some(&library)).unwrap();
    reads_as_it_should(&mut driver);
    obeys(&mut driver);
    let mut job = Command::new(tool.with_file_name("wattle-simjob"));
    job.args(["--workload", "eaco-resnet18", "--steps", "1000000000"]);
    job.env("CUDA_VISIBLE_DEVICES", "1").stdout(Stdio::null()).stderr(Stdio::null());
    sees_processes(&mut driver, Job(job.spawn().unwrap()));
    fails_as_it_should(&mut driver, |arguments| {
        run(Command::new(&tool).arg("fault").arg("--state").arg(state).args(arguments));
    });
}

#[test]
fn real_cards() {
    if std::env::var("GPU_TESTS").as_deref() != Ok("1") {
        not_run("NOT RUN: GPU_TESTS=1 runs this on the machine's own NVIDIA cards; it only reads");
        return;
    }
    let mut driver = NvmlDriver::open(None).unwrap();
    reads_as_it_should(&mut driver);
}

#[test]
fn a_library_that_is_not_there_is_a_missing_driver() {
    let Err(error) = NvmlDriver::open(Some(Path::new("/nowhere/libnvidia-ml.so"))) else {
        panic!("opened");
    };
    assert!(matches!(error, GpuError::DriverAbsent { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/libnvidia-ml.so"), "{error}");
}

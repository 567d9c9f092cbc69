//! Conformance of [`NvmlDriver`] on the simulated NVML library and on real GPUs.
//!
//! * Simulated: runs if `libnvml_sim.so` has been built (`cargo build -p wattle-nvml-sim`) or
//!   `WATTLE_NVML_LIBRARY` names it. Creates a node, and also tests commands and faults.
//! * Real: runs if `GPU_TESTS=1`, on the system's NVML. Read-only.
//!
//! A skipped test prints NOT RUN.
#![cfg(feature = "nvml")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::messages::MemoryRepair;
use wattle_common::{Frequency, GpuIndex, Power, env, units::Energy};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{
    Driver, EnergyCounter, EnergyStep, GpuError, GpuHealth, GpuReading, LIBRARY_ENV, Slowdown,
    gpu_type_of,
};

const CHILD_STATE: &str = "WATTLE_TEST_STATE";

/// Limit on polls of 10 ms: 30 s.
const POLLS_MAX: u32 = 3_000;

/// Polls until `condition` returns a value.
fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..POLLS_MAX {
        if let Some(found) = condition() {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what}: not within 30 s")
}

/// Properties and readings of every GPU.
fn check_readings(driver: &mut dyn Driver) {
    let count = driver.count().unwrap();
    assert!(count > 0, "the node has no GPUs");
    for gpu in 0..count {
        let info = driver.info(gpu).unwrap();
        assert!(info.uuid.starts_with("GPU-"), "{}", info.uuid);
        assert_eq!(info.gpu_type, gpu_type_of(&info.name));
        assert!(info.memory_mib.is_none_or(|mib| mib > 1_000), "{:?} MiB", info.memory_mib);
        assert!(info.clocks.is_sorted(), "{:?}", info.clocks);
        let (Some(default), Some(min), Some(max)) = (info.cap_default, info.cap_min, info.cap_max)
        else {
            panic!("GPU {gpu} reports no caps: {info:?}")
        };
        assert!(min <= default && default <= max, "{min} {default} {max}");

        let reading = driver.read(gpu).unwrap();
        let power = reading.power.expect("data-centre GPUs report power");
        assert!(power > Power::from_w(5) && power < max.scale(1.5), "{power}");
        assert!(reading.utilization_gpu_percent.is_some_and(|percent| percent <= 100));
        let used = reading.memory_used_mib.zip(info.memory_mib);
        assert!(used.is_none_or(|(used, total)| used <= total), "{used:?}");
        assert!(reading.temperature_c.is_some_and(|celsius| (5..120).contains(&celsius)));
        let clock = reading.clock.expect("data-centre GPUs report the clock");
        assert!(info.clocks.last().is_none_or(|highest| clock <= *highest), "{clock}");
        assert_eq!(reading.cap, Some(driver.cap(gpu).unwrap()));
        assert!(reading.processes.is_some());

        let health = driver.health(gpu).unwrap();
        assert!(health.persistence_enabled.is_some(), "{health:?}");
        assert!(health.slowdown.is_some(), "data-centre GPUs report throttle reasons: {health:?}");
        if health.ecc_errors_uncorrected.is_some() {
            assert!(health.memory_repair.is_some(), "GPUs with ECC repair memory: {health:?}");
        }

        check_energy_counter(driver, gpu);
    }
    let beyond = driver.read(count).unwrap_err();
    assert!(matches!(beyond, GpuError::Refused { .. }), "{beyond:?}");
    assert!(beyond.to_string().contains("GPUs"), "{beyond}");
}

/// The energy counter increases monotonically.
fn check_energy_counter(driver: &mut dyn Driver, gpu: GpuIndex) {
    let mut counter = EnergyCounter::default();
    let mut spent = Energy::ZERO;
    wait_until("the energy counter increases", || {
        let total =
            driver.read(gpu).unwrap().energy_total.expect("Volta and later have an energy counter");
        match counter.step(total) {
            EnergyStep::First => {}
            EnergyStep::Spent(more) => spent += more,
            EnergyStep::Reset(total) => panic!("the counter was reset to {total:?}"),
        }
        (spent > Energy::from_mj(100)).then_some(())
    });
}

/// Commands take effect or are refused.
fn check_commands(driver: &mut dyn Driver) {
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
    assert_eq!(driver.cap(1), Ok(cap), "a refused command changes nothing");
    driver.set_cap(1, default).unwrap();

    let clocks = info.clocks;
    assert!(clocks.len() > 2, "{clocks:?}");
    let lower = clocks[clocks.len() / 2];
    driver.set_clock_max(1, Some(lower)).unwrap();
    wait_until("the clock falls", || {
        let clock = driver.read(1).unwrap().clock?;
        (clock <= lower).then_some(())
    });
    driver.set_clock_max(1, None).unwrap();
    let absent = driver.set_clock_max(9, Some(Frequency::from_mhz(1))).unwrap_err();
    assert!(matches!(absent, GpuError::Refused { .. }), "{absent:?}");
}

/// A process that is killed when the test ends.
struct Job(Child);

impl Job {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A compute process is listed with its memory and utilisation until it ends.
fn check_processes(driver: &mut dyn Driver, mut job: Job) {
    let pid = job.0.id();
    let idle = driver.read(0).unwrap();
    let busy = |driver: &mut dyn Driver| {
        let reading = driver.read(1).unwrap();
        let found = reading.processes.unwrap().into_iter().find(|process| process.pid == pid);
        (reading.power.unwrap(), reading.memory_used_mib.unwrap(), found)
    };
    let memory = wait_until("the process holds memory", || busy(driver).2?.memory_mib);
    assert!(memory > 0 && memory <= busy(driver).1, "{memory} MiB");
    let used = wait_until("the process uses the GPU", || busy(driver).2?.utilization_gpu_percent);
    assert!((1..=100).contains(&used), "{used} %");
    let power =
        wait_until("power rises", || Some(busy(driver).0).filter(|p| *p > Power::from_w(60)));
    assert!(power > idle.power.unwrap(), "{power}");
    assert_eq!(driver.read(0).unwrap().processes, Some(Vec::new()), "the other GPU has no process");
    job.kill();
    wait_until("the process is no longer listed", || busy(driver).2.is_none().then_some(()));
}

/// Each fault maps to the error of the caller's action.
fn check_faults(driver: &mut dyn Driver, fault: impl Fn(&[&str])) {
    fault(&["--gpu", "0", "lost"]);
    let lost = driver.read(0).unwrap_err();
    assert!(matches!(lost, GpuError::Lost { gpu: 0, .. }), "{lost:?}");
    assert!(driver.read(1).is_ok(), "the other GPU has no fault");
    fault(&["--gpu", "0", "clear"]);
    assert!(driver.read(0).is_ok());

    fault(&["--gpu", "0", "no-permission"]);
    let cap = driver.info(0).unwrap().cap_min.unwrap();
    let refused = driver.set_cap(0, cap).unwrap_err();
    assert!(matches!(refused, GpuError::Refused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("root"), "{refused}");
    fault(&["--gpu", "0", "clear"]);

    check_lacking(driver, &fault);
}

/// A reading that a GPU lacks costs that reading only: it is absent, not zero, and the GPU works.
fn check_lacking(driver: &mut dyn Driver, fault: impl Fn(&[&str])) {
    type Absent = fn(&GpuReading) -> bool;
    let (info, all) = (driver.info(0).unwrap(), driver.read(0).unwrap());
    assert!(all.power_instant.is_some() && all.energy_module.is_none() && !all.has_no_meter);
    let lacks: [(&str, Absent); 8] = [
        ("memory", |read| read.memory_used_mib.is_none() && read.memory_free_mib.is_none()),
        ("energy", |read| read.energy_total.is_none()),
        ("power", |read| read.power.is_none() && read.power_instant.is_none()),
        ("utilization", |read| read.utilization_gpu_percent.is_none()),
        ("cap", |read| read.cap.is_none() && read.cap_enforced.is_none()),
        ("clock", |read| read.clock.is_none()),
        ("temperature", |read| read.temperature_c.is_none()),
        ("processes", |read| read.processes.is_none()),
    ];
    let absent = |read: &GpuReading| lacks.map(|(_, is_absent)| is_absent(read));
    assert_eq!(absent(&all), [false; 8]);
    for (index, (name, _)) in lacks.iter().enumerate() {
        fault(&["--gpu", "0", &format!("unsupported:{name}")]);
        let read = driver.read(0).unwrap();
        let expected: [bool; 8] = std::array::from_fn(|other| other == index);
        assert_eq!(absent(&read), expected, "{name}: only this reading is absent");
        assert!(!read.has_no_meter, "{name}: one meter is left");
        let lacking = driver.info(0).unwrap();
        assert_eq!(lacking.memory_mib, info.memory_mib.filter(|_| *name != "memory"));
        assert_eq!(lacking.cap_max, info.cap_max.filter(|_| *name != "cap"));
        assert_eq!(lacking.clocks.is_empty(), *name == "clock");
        assert!(driver.health(0).is_ok(), "{name}");
        fault(&["--gpu", "0", "clear"]);
    }
    fault(&["--gpu", "0", "unsupported:power"]);
    fault(&["--gpu", "0", "unsupported:energy"]);
    let read = driver.read(0).unwrap();
    assert!(read.has_no_meter && read.power.is_none() && read.energy_total.is_none());
    assert!(driver.health(0).is_ok());
    fault(&["--gpu", "0", "lost"]);
    let lost = driver.read(0).unwrap_err();
    assert!(matches!(lost, GpuError::Lost { gpu: 0, .. }), "without a meter too: {lost:?}");
    fault(&["--gpu", "0", "clear"]);
    fault(&["--gpu", "0", "unsupported:cap-setting"]);
    let refused = driver.set_cap(0, info.cap_min.unwrap()).unwrap_err();
    assert!(matches!(refused, GpuError::Unsupported { .. }), "{refused:?}");
    assert!(driver.cap(0).is_ok());
    fault(&["--gpu", "0", "clear"]);
}

/// Each mode and fault shows in the health; what cannot be read is absent.
fn check_health(driver: &dyn Driver, fault: impl Fn(&str)) {
    let none = Slowdown::default();
    let healthy = GpuHealth {
        mig_enabled: None, // V100s have no MIG
        persistence_enabled: Some(true),
        ecc_errors_uncorrected: Some(0),
        memory_repair: Some(MemoryRepair::None),
        slowdown: Some(none),
    };
    let thermal = Some(Slowdown { thermal: true, ..none });
    let cases = [
        ("persistence-off", GpuHealth { persistence_enabled: Some(false), ..healthy }),
        ("ecc-errors:3", GpuHealth { ecc_errors_uncorrected: Some(3), ..healthy }),
        ("repair-pending", GpuHealth { memory_repair: Some(MemoryRepair::Pending), ..healthy }),
        ("slowdown:sw-thermal", GpuHealth { slowdown: thermal, ..healthy }),
        ("slowdown:hw-thermal", GpuHealth { slowdown: thermal, ..healthy }),
        ("unsupported:persistence", GpuHealth { persistence_enabled: None, ..healthy }),
        ("unsupported:ecc", GpuHealth { ecc_errors_uncorrected: None, ..healthy }),
        ("unsupported:memory-repair", GpuHealth { memory_repair: None, ..healthy }),
        ("unsupported:throttle-reasons", GpuHealth { slowdown: None, ..healthy }),
    ];
    for (name, expected) in cases {
        fault(name);
        assert_eq!(driver.health(0), Ok(expected), "{name}");
        assert_eq!(driver.health(1), Ok(healthy), "the other GPU under {name}");
        fault("clear");
        assert_eq!(driver.health(0), Ok(healthy), "after {name}");
    }
    fault("lost");
    let lost = driver.health(0).unwrap_err();
    assert!(matches!(lost, GpuError::Lost { gpu: 0, .. }), "{lost:?}");
    fault("clear");
}

/// A load of the driver needs a new driver, which finds the GPUs at default settings.
fn check_driver_load(mut driver: NvmlDriver, library: &Path, change: impl Fn(&str)) {
    let cap = driver.info(0).unwrap().cap_min.unwrap();
    driver.set_cap(0, cap).unwrap();
    change("unload");
    let absent = [driver.count().err(), driver.read(0).err(), driver.health(0).err()];
    let is_absent = |error: &_| matches!(error, Some(GpuError::DriverAbsent { .. }));
    assert!(absent.iter().all(is_absent), "{absent:?}");
    let Err(refused) = NvmlDriver::open(Some(library)) else { panic!("opened without a driver") };
    assert!(matches!(refused, GpuError::DriverAbsent { .. }), "{refused:?}");
    change("load");
    let stale = driver.read(0).unwrap_err();
    assert!(matches!(stale, GpuError::DriverAbsent { .. }), "{stale:?}");
    drop(driver);
    let driver = NvmlDriver::open(Some(library)).unwrap();
    assert_eq!(driver.cap(0).ok(), driver.info(0).unwrap().cap_default);
    assert_eq!(driver.health(0).unwrap().persistence_enabled, Some(false));
}

/// Paths of the simulated library and of wattle-simnode, if built.
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

/// Bypasses the test harness, which hides the output of passing tests.
fn not_run(reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nNOT RUN: {reason}");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
}

#[test]
fn simulated_gpus() {
    // Child process: the environment is set.
    if let Some(state) = std::env::var_os(CHILD_STATE) {
        return check_simulated_node(Path::new(&state));
    }
    let Some((library, tool)) = simulated() else {
        not_run("libnvml_sim.so and its tools are not built; run: cargo build -p wattle-nvml-sim");
        return;
    };
    let folder = std::env::temp_dir().join(format!("wattle-gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("n0");
    let mut create = Command::new(tool);
    create.arg("create").arg("--state").arg(&state);
    create.args(["--node", "n0", "--gpus", "2", "--gpu-type", "v100", "--rate", "60"]);
    run(&mut create);
    // The library reads the node's path from the environment, which tests of one process share:
    // so this test runs itself again in a child process.
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "simulated_gpus", "--nocapture"]);
    child.env(LIBRARY_ENV, library).env(env::SIM_NODE, &state).env(CHILD_STATE, &state);
    run(&mut child);
    std::fs::remove_dir_all(folder).unwrap();
}

/// All checks, on the simulated node with this state file.
fn check_simulated_node(state: &Path) {
    let (library, tool) = simulated().unwrap();
    let mut driver = NvmlDriver::open(Some(&library)).unwrap();
    check_readings(&mut driver);
    check_commands(&mut driver);
    let mut job = Command::new(tool.with_file_name("wattle-simjob"));
    job.args(["--workload", "eaco-resnet18", "--steps", "1000000000"]);
    job.env("CUDA_VISIBLE_DEVICES", "1").stdout(Stdio::null()).stderr(Stdio::null());
    check_processes(&mut driver, Job(job.spawn().unwrap()));
    check_faults(&mut driver, |arguments| {
        run(Command::new(&tool).arg("fault").arg("--state").arg(state).args(arguments));
    });
    check_health(&driver, |fault| {
        let mut command = Command::new(&tool);
        run(command.arg("fault").arg("--state").arg(state).args(["--gpu", "0", fault]));
    });
    check_driver_load(driver, &library, |change| {
        run(Command::new(&tool).arg("driver").arg("--state").arg(state).arg(change));
    });
}

#[test]
fn real_gpus() {
    if std::env::var("GPU_TESTS").as_deref() != Ok("1") {
        not_run("set GPU_TESTS=1 to test the NVIDIA GPUs of this machine (read-only)");
        return;
    }
    let mut driver = NvmlDriver::open(None).unwrap();
    check_readings(&mut driver);
}

#[test]
fn missing_library_is_an_absent_driver() {
    let Err(error) = NvmlDriver::open(Some(Path::new("/nowhere/libnvidia-ml.so"))) else {
        panic!("a missing library was opened");
    };
    assert!(matches!(error, GpuError::DriverAbsent { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/libnvidia-ml.so"), "{error}");
}

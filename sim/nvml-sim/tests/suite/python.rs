//! NVIDIA's own Python binding reads the simulated node through the library, under the name that
//! every driver installs.
//!
//! It needs python3 and, the first time, the package index; where they are missing the test says so
//! loudly and proves nothing. Where it runs, it fails if the two disagree.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{HEAVY, Job, Place, library, rate_when};
use nvml_sim::node::Node;

/// The binding's release; another one may look up other symbols.
const BINDING: &str = "nvidia-ml-py==13.615.71";

const SCRIPT: &str = r#"
import json, pynvml as n
n.nvmlInit()
out = {"driver": n.nvmlSystemGetDriverVersion(), "cuda": n.nvmlSystemGetCudaDriverVersion(), "gpus": []}
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))) == index
    m1, m2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    assert (m1.total, m1.used, m1.free) == (m2.total, m2.used, m2.free)
    reasons = n.nvmlDeviceGetCurrentClocksEventReasons(h)
    assert reasons == n.nvmlDeviceGetCurrentClocksThrottleReasons(h)
    assert reasons & ~n.nvmlDeviceGetSupportedClocksEventReasons(h) == 0
    memory_clocks = n.nvmlDeviceGetSupportedMemoryClocks(h)
    processes = n.nvmlDeviceGetComputeRunningProcesses(h)
    try:
        shares = {s.pid: s.smUtil for s in n.nvmlDeviceGetProcessUtilization(h, 0)}
    except n.NVMLError_NotFound:
        shares = {}
    out["gpus"].append({
        "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h),
        "bus": n.nvmlDeviceGetPciInfo(h).busId,
        "total": m1.total, "used": m1.used,
        "power": n.nvmlDeviceGetPowerUsage(h),
        "energy": n.nvmlDeviceGetTotalEnergyConsumption(h),
        "cap": n.nvmlDeviceGetPowerManagementLimit(h),
        "enforced": n.nvmlDeviceGetEnforcedPowerLimit(h),
        "default": n.nvmlDeviceGetPowerManagementDefaultLimit(h),
        "limits": n.nvmlDeviceGetPowerManagementLimitConstraints(h),
        "clock": n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
        "clocks": n.nvmlDeviceGetSupportedGraphicsClocks(h, memory_clocks[0]),
        "utilization": n.nvmlDeviceGetUtilizationRates(h).gpu,
        "temperature": n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
        "persistence": n.nvmlDeviceGetPersistenceMode(h),
        "capped": bool(reasons & n.nvmlClocksEventReasonSwPowerCap),
        "idle": bool(reasons & n.nvmlClocksEventReasonGpuIdle),
        "processes": [[p.pid, p.usedGpuMemory, shares[p.pid]] for p in processes],
    })
h = n.nvmlDeviceGetHandleByIndex(1)
n.nvmlDeviceSetPowerManagementLimit(h, 150000)
n.nvmlDeviceSetGpuLockedClocks(h, 0, out["gpus"][1]["clocks"][-1])
for wrong in (1, 10**6):
    try:
        n.nvmlDeviceSetPowerManagementLimit(h, wrong)
        raise SystemExit("a cap of %d mW was taken" % wrong)
    except n.NVMLError_InvalidArgument:
        pass
n.nvmlShutdown()
try:
    n.nvmlDeviceGetCount()
    raise SystemExit("it answers after shutdown")
except n.NVMLError_Uninitialized:
    pass
print(json.dumps(out))
"#;

/// A virtual environment with the binding in it, kept in the target folder; `Err` says what is
/// missing.
fn python() -> Result<PathBuf, String> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvidia-ml-py");
    let python = venv.join("bin/python");
    let run = |command: &mut Command| match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let has_it = |python: &Path| run(Command::new(python).args(["-c", "import pynvml"]));
    if has_it(&python).is_ok() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        .map_err(|error| format!("python3 -m venv: {error}"))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", BINDING]))
        .map_err(|error| format!("pip install {BINDING}: {error}"))?;
    has_it(&python).map(|()| python)
}

#[test]
fn nvidias_python_binding_reads_the_same_cards() {
    let python = match python() {
        Ok(python) => python,
        Err(missing) => {
            println!("NOT RUN: NVIDIA's Python binding cannot be had: {missing}");
            return;
        }
    };
    let place = Place::new(1);
    let node = Node::open(&place.node("n0", 2)).unwrap();
    let long = ["--workload", HEAVY, "--steps", "100000000"];
    let job = Job::start(node.path(), "0", "j", &long, &[]);
    rate_when(&node, "j", |_| true);
    std::os::unix::fs::symlink(library(), place.dir().join("libnvidia-ml.so.1")).unwrap();

    let before = node.look().unwrap();
    let out = Command::new(python)
        .args(["-c", SCRIPT])
        .env("LD_LIBRARY_PATH", place.dir())
        .env("WATTLE_SIM_NODE", node.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let seen: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let after = node.look().unwrap();

    assert!(seen["driver"].as_str().unwrap().contains("sim"));
    assert_eq!(seen["cuda"], 12_040);
    let gpu = node.gpu();
    let gpus = seen["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    for (index, seen) in gpus.iter().enumerate() {
        let card = &before.state.cards[index];
        let number = |name: &str| seen[name].as_u64().unwrap();
        assert_eq!(seen["name"], gpu.nvml_name.as_str());
        assert_eq!(seen["uuid"], nvml_sim::nvml::uuid_of(&node, index as u32));
        assert_eq!(seen["bus"], format!("00000000:0{}:00.0", 4 + index));
        assert_eq!(number("total"), gpu.memory_mib << 20);
        assert_eq!(number("used"), before.state.memory_mib(card) << 20);
        assert_eq!(number("power"), card.power.as_mw());
        let energy = |view: &nvml_sim::node::View| {
            view.state.energy(&view.state.cards[index], view.at).total().as_mj()
        };
        assert!((energy(&before)..=energy(&after)).contains(&number("energy")));
        assert_eq!(number("cap"), 250_000);
        assert_eq!((number("enforced"), number("default")), (250_000, gpu.cap_default.as_mw()));
        let limits = [gpu.cap_min.as_mw(), gpu.cap_max.as_mw()];
        assert_eq!(seen["limits"], serde_json::json!(limits));
        assert_eq!(number("clock"), u64::from(card.clock.as_mhz()));
        assert_eq!(seen["clocks"].as_array().unwrap().len(), gpu.clocks.len());
        assert_eq!(number("utilization"), (card.utilization_gpu * 100.0).round() as u64);
        assert!((30..90).contains(&number("temperature")));
        assert_eq!((number("persistence"), &seen["capped"]), (1, &card.power_capped.into()));
        assert_eq!(seen["idle"], index == 1);
    }
    let memory = before.state.memory_mib(&before.state.cards[0]) << 20;
    let busy = (before.state.cards[0].shares[0].utilization * 100.0).round() as u64;
    assert_eq!(gpus[0]["processes"], serde_json::json!([[job.pid(), memory, busy]]));
    assert_eq!(gpus[1]["processes"], serde_json::json!([]));
    // What Python set is what this process sees.
    assert_eq!(after.state.cards[1].cap.as_mw(), 150_000);
    assert_eq!(after.state.cards[1].clock_max, gpu.clocks.iter().min().copied());
}

//! NVIDIA's Python binding on the simulated library, under the library's standard name.
//!
//! Requires python3 and, on the first run, the package index; otherwise the test prints NOT RUN.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{HEAVY, Job, SimCluster, library, rate_when};
use nvml_sim::node::Node;

/// Pinned version of the binding; others may load other symbols.
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
        raise SystemExit("a cap of %d mW was accepted" % wrong)
    except n.NVMLError_InvalidArgument:
        pass
n.nvmlShutdown()
try:
    n.nvmlDeviceGetCount()
    raise SystemExit("a call after shutdown succeeded")
except n.NVMLError_Uninitialized:
    pass
print(json.dumps(out))
"#;

/// Python of a virtual environment with the binding, in the target directory; `Err` is the cause of
/// the failure.
fn python() -> Result<PathBuf, String> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvidia-ml-py");
    let python = venv.join("bin/python");
    let run = |command: &mut Command| match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let has_binding = |python: &Path| run(Command::new(python).args(["-c", "import pynvml"]));
    if has_binding(&python).is_ok() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        .map_err(|error| format!("python3 -m venv: {error}"))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", BINDING]))
        .map_err(|error| format!("pip install {BINDING}: {error}"))?;
    has_binding(&python).map(|()| python)
}

#[test]
fn nvidia_python_binding_reads_the_same_state() {
    let python = match python() {
        Ok(python) => python,
        Err(missing) => {
            println!("NOT RUN: cannot install NVIDIA's Python binding: {missing}");
            return;
        }
    };
    let cluster = SimCluster::new(1);
    let node = Node::open(&cluster.node("n0", 2)).unwrap();
    let long = ["--workload", HEAVY, "--steps", "100000000"];
    let job = Job::start(node.path(), "0", "j", &long, &[]);
    rate_when(&node, "j", |_| true);
    std::os::unix::fs::symlink(library(), cluster.dir().join("libnvidia-ml.so.1")).unwrap();

    let before = node.observe().unwrap();
    let out = Command::new(python)
        .args(["-c", SCRIPT])
        .env("LD_LIBRARY_PATH", cluster.dir())
        .env("WATTLE_SIM_NODE", node.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let after = node.observe().unwrap();

    assert!(report["driver"].as_str().unwrap().contains("sim"));
    assert_eq!(report["cuda"], 12_040);
    let model = node.model();
    let gpus = report["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    for (index, report) in gpus.iter().enumerate() {
        let gpu = &before.state.gpus[index];
        let number = |name: &str| report[name].as_u64().unwrap();
        assert_eq!(report["name"], model.nvml_name.as_str());
        assert_eq!(report["uuid"], nvml_sim::nvml::uuid_of(&node, index as u32));
        assert_eq!(report["bus"], format!("00000000:0{}:00.0", 4 + index));
        assert_eq!(number("total"), model.memory_mib << 20);
        assert_eq!(number("used"), before.state.memory_mib(gpu) << 20);
        assert_eq!(number("power"), gpu.power.as_mw());
        let energy = |snapshot: &nvml_sim::node::Snapshot| {
            snapshot.state.energy(&snapshot.state.gpus[index], snapshot.at).total().as_mj()
        };
        assert!((energy(&before)..=energy(&after)).contains(&number("energy")));
        assert_eq!(number("cap"), 250_000);
        assert_eq!((number("enforced"), number("default")), (250_000, model.cap_default.as_mw()));
        let limits = [model.cap_min.as_mw(), model.cap_max.as_mw()];
        assert_eq!(report["limits"], serde_json::json!(limits));
        assert_eq!(number("clock"), u64::from(gpu.clock.as_mhz()));
        assert_eq!(report["clocks"].as_array().unwrap().len(), model.clocks.len());
        assert_eq!(number("utilization"), (gpu.utilization_gpu * 100.0).round() as u64);
        assert!((30..90).contains(&number("temperature")));
        assert_eq!((number("persistence"), &report["capped"]), (1, &gpu.power_capped.into()));
        assert_eq!(report["idle"], index == 1);
    }
    let memory = before.state.memory_mib(&before.state.gpus[0]) << 20;
    let busy = (before.state.gpus[0].shares[0].utilization * 100.0).round() as u64;
    assert_eq!(gpus[0]["processes"], serde_json::json!([[job.pid(), memory, busy]]));
    assert_eq!(gpus[1]["processes"], serde_json::json!([]));
    // Settings made by Python are visible here.
    assert_eq!(after.state.gpus[1].cap.as_mw(), 150_000);
    assert_eq!(after.state.gpus[1].clock_max, model.clocks.iter().min().copied());
}

//! The library through an unmodified nvml-wrapper.

use crate::support::{HEAVY, Job, library, rate_when, until, with_nvml};
use nvml_sim::fault::{Fault, Feature};
use nvml_sim::node::Node;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, ClockId, ClockLimitId, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;

const LONG: [&str; 4] = ["--workload", HEAVY, "--steps", "100000000"];

#[test]
fn gpu_properties_and_idle_readings() {
    with_nvml("gpu_properties_and_idle_readings", 1, |nvml, node| {
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert!(nvml.sys_driver_version().unwrap().contains("sim"));
        assert!(nvml.sys_nvml_version().unwrap().contains("sim"));
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_040);
        let gpu = nvml.device_by_index(1).unwrap();
        assert_eq!(gpu.name().unwrap(), node.model().nvml_name);
        assert_eq!(gpu.index().unwrap(), 1);
        let uuid = gpu.uuid().unwrap();
        assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
        assert_ne!(uuid, nvml.device_by_index(0).unwrap().uuid().unwrap());
        assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), 1);
        let pci = gpu.pci_info().unwrap();
        assert_eq!((pci.domain, pci.bus, pci.device), (0, 5, 0));
        assert_eq!(nvml.device_by_pci_bus_id(pci.bus_id).unwrap().index().unwrap(), 1);
        assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
        assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));

        let memory = gpu.memory_info().unwrap();
        assert_eq!((memory.used, memory.free), (0, node.model().memory_mib << 20));
        let limits = gpu.power_management_limit_constraints().unwrap();
        assert_eq!(u64::from(limits.min_limit), node.model().cap_min.as_mw());
        assert_eq!(u64::from(limits.max_limit), node.model().cap_max.as_mw());
        let default = gpu.power_management_limit_default().unwrap();
        assert_eq!(u64::from(default), node.model().cap_default.as_mw());
        assert_eq!(gpu.power_management_limit().unwrap(), default);
        assert_eq!(gpu.enforced_power_limit().unwrap(), default);

        let memory_clocks = gpu.supported_memory_clocks().unwrap();
        assert_eq!(memory_clocks, [node.model().memory_clock.as_mhz()]);
        let clocks = gpu.supported_graphics_clocks(memory_clocks[0]).unwrap();
        assert_eq!(clocks.len(), node.model().clocks.len());
        assert!(clocks.is_sorted_by(|a, b| a > b), "highest first: {clocks:?}");
        assert!(matches!(gpu.supported_graphics_clocks(1), Err(NvmlError::NotFound)));
        assert_eq!(gpu.max_clock_info(Clock::SM).unwrap(), clocks[0]);
        assert_eq!(gpu.max_clock_info(Clock::Memory).unwrap(), memory_clocks[0]);

        // Idle.
        assert_eq!(u64::from(gpu.power_usage().unwrap()), node.model().idle.as_mw());
        let busy = gpu.utilization_rates().unwrap();
        assert_eq!((busy.gpu, busy.memory), (0, 0));
        assert!(gpu.running_compute_processes().unwrap().is_empty());
        assert!(gpu.running_graphics_processes().unwrap().is_empty());
        assert!(matches!(gpu.process_utilization_stats(None), Err(NvmlError::NotFound)));
        assert_eq!(gpu.current_throttle_reasons().unwrap(), ThrottleReasons::GPU_IDLE);
        assert!(gpu.supported_throttle_reasons().unwrap().contains(ThrottleReasons::SW_POWER_CAP));
        assert!((30..60).contains(&gpu.temperature(TemperatureSensor::Gpu).unwrap()));
        assert!(gpu.performance_state().is_ok());
    });
}

#[test]
fn energy_counter_is_the_integral_of_power() {
    with_nvml("energy_counter_is_the_integral_of_power", 60, |nvml, node| {
        let mut gpu = nvml.device_by_index(0).unwrap();
        let job = Job::start(node.path(), "0", "j", &LONG, &[]);
        rate_when(node, "j", |_| true);
        for cap in [200_000, 120_000, 250_000] {
            gpu.set_power_management_limit(cap).unwrap();
            // The counter is between the integrals just before and just after the call.
            let shown = |node: &Node| {
                let snapshot = node.observe().unwrap();
                let energy = snapshot.state.energy(&snapshot.state.gpus[0], snapshot.at).total();
                (snapshot.at, energy.as_mj(), snapshot.state.gpus[0].power)
            };
            let (from, before, power) = shown(node);
            let first = gpu.total_energy_consumption().unwrap();
            assert!(first >= before && first <= shown(node).1);
            let (to, after) = until("a system minute passes", || {
                let (at, energy, _) = shown(node);
                (at.since(from).as_secs() >= 60).then_some((at, energy))
            });
            let expected = power.over(to.since(from)).as_mj();
            assert!((after - before).abs_diff(expected) <= 1, "{} and {expected}", after - before);
            assert!(gpu.total_energy_consumption().unwrap() >= after);
        }
        drop(job);
    });
}

#[test]
fn cap_below_demand_slows_the_job_and_is_reported() {
    with_nvml("cap_below_demand_slows_the_job_and_is_reported", 60, |nvml, node| {
        let mut gpu = nvml.device_by_index(0).unwrap();
        let _job = Job::start(node.path(), "0", "j", &LONG, &[]);
        let free = rate_when(node, "j", |_| true);
        let power = gpu.power_usage().unwrap();
        let clock = gpu.clock_info(Clock::SM).unwrap();
        assert_eq!(clock, gpu.clock(Clock::Graphics, ClockId::Current).unwrap());
        assert!(power > 150_000, "{HEAVY} draws {power} mW");
        assert!(!gpu.current_throttle_reasons().unwrap().contains(ThrottleReasons::GPU_IDLE));
        let warm = gpu.temperature(TemperatureSensor::Gpu).unwrap();

        gpu.set_power_management_limit(120_000).unwrap();
        assert_eq!(gpu.power_management_limit().unwrap(), 120_000);
        // Measured means under a cap are slightly below it.
        assert!((100_000..=120_000).contains(&gpu.power_usage().unwrap()));
        assert!(gpu.clock_info(Clock::SM).unwrap() < clock);
        assert!(gpu.temperature(TemperatureSensor::Gpu).unwrap() < warm);
        assert!(gpu.current_throttle_reasons().unwrap().contains(ThrottleReasons::SW_POWER_CAP));
        let capped = rate_when(node, "j", |snapshot| snapshot.state.gpus[0].cap.as_mw() == 120_000);
        assert!(capped < 0.9 * free, "{capped} steps/s capped, {free} free");

        // Caps out of range are refused.
        for wrong in [0, 99_999, 250_001, u32::MAX] {
            let refused = gpu.set_power_management_limit(wrong);
            assert!(matches!(refused, Err(NvmlError::InvalidArg)), "{wrong}");
        }
        assert_eq!(gpu.power_management_limit().unwrap(), 120_000);
        // The other GPU is unaffected.
        assert_eq!(nvml.device_by_index(1).unwrap().power_management_limit().unwrap(), 250_000);
        gpu.set_power_management_limit(250_000).unwrap();
        assert_eq!(gpu.power_usage().unwrap(), power);
    });
}

#[test]
fn locked_clock_slows_the_job_and_is_reported() {
    with_nvml("locked_clock_slows_the_job_and_is_reported", 60, |nvml, node| {
        let mut gpu = nvml.device_by_index(0).unwrap();
        let _job = Job::start(node.path(), "0", "j", &LONG, &[]);
        let free = rate_when(node, "j", |_| true);
        let power = gpu.power_usage().unwrap();
        let locked =
            |min, max| GpuLockedClocksSetting::Numeric { min_clock_mhz: min, max_clock_mhz: max };
        let lowest = node.model().clocks.iter().min().unwrap().as_mhz();
        let middle = node.model().clocks[node.model().clocks.len() / 2].as_mhz();
        gpu.set_gpu_locked_clocks(locked(lowest, middle + 1)).unwrap();
        assert_eq!(gpu.clock_info(Clock::SM).unwrap(), middle, "rounded down to a supported clock");
        assert!(gpu.power_usage().unwrap() < power);
        let reasons = gpu.current_throttle_reasons().unwrap();
        assert!(reasons.contains(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING), "{reasons:?}");
        let slow = rate_when(node, "j", |snapshot| snapshot.state.gpus[0].clock_max.is_some());
        assert!(slow < free, "{slow} steps/s locked, {free} free");
        for wrong in [locked(middle, lowest), locked(0, lowest - 1)] {
            assert!(matches!(gpu.set_gpu_locked_clocks(wrong), Err(NvmlError::InvalidArg)));
        }
        gpu.set_gpu_locked_clocks(GpuLockedClocksSetting::Symbolic {
            lower_bound: ClockLimitId::Tdp,
            upper_bound: ClockLimitId::Unlimited,
        })
        .unwrap();
        assert_eq!(gpu.power_usage().unwrap(), power);
        gpu.reset_gpu_locked_clocks().unwrap();
        rate_when(node, "j", |snapshot| snapshot.state.gpus[0].clock_max.is_none());
        assert_eq!(gpu.power_usage().unwrap(), power);
    });
}

#[test]
fn co_located_jobs_slow_each_other() {
    with_nvml("co_located_jobs_slow_each_other", 60, |nvml, node| {
        let gpu = nvml.device_by_index(0).unwrap();
        let first = Job::start(node.path(), "0", "a", &LONG, &[]);
        let exclusive = rate_when(node, "a", |_| true);
        let used = gpu.memory_info().unwrap().used;
        let second = Job::start(node.path(), "0", "b", &LONG, &[]);
        let other = rate_when(node, "b", |_| true);
        let shared = rate_when(node, "a", |snapshot| snapshot.state.gpus[0].shares.len() == 2);
        assert!(shared < 0.9 * exclusive, "{shared} steps/s co-located, {exclusive} exclusive");
        assert!((shared - other).abs() < 1e-6, "equal jobs have equal shares");

        assert_eq!(gpu.memory_info().unwrap().used, 2 * used);
        let processes = gpu.running_compute_processes().unwrap();
        let mut pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        let mut expected = [first.pid(), second.pid()];
        expected.sort_unstable();
        assert_eq!(pids, expected);
        assert!(
            processes
                .iter()
                .all(|p| matches!(p.used_gpu_memory, UsedGpuMemory::Used(b) if b == used))
        );
        let samples = gpu.process_utilization_stats(None).unwrap();
        assert_eq!(samples.len(), 2);
        let sum: u32 = samples.iter().map(|sample| sample.sm_util).sum();
        let total = gpu.utilization_rates().unwrap().gpu;
        assert!(sum.abs_diff(total) <= 1, "{sum} of {total}");
        let newest = samples.iter().map(|sample| sample.timestamp).max().unwrap();
        let none = gpu.process_utilization_stats(newest + 60_000_000);
        assert!(matches!(none, Err(NvmlError::NotFound)));
        // The other GPU is idle.
        let idle = nvml.device_by_index(1).unwrap();
        assert!(idle.running_compute_processes().unwrap().is_empty());
        assert_eq!(u64::from(idle.power_usage().unwrap()), node.model().idle.as_mw());

        drop(second);
        let again = rate_when(node, "a", |snapshot| snapshot.state.gpus[0].shares.len() == 1);
        assert!((again - exclusive).abs() < 1e-9);
    });
}

#[test]
fn faults_return_driver_error_codes() {
    with_nvml("faults_return_driver_error_codes", 60, |nvml, node| {
        let mut gpu = nvml.device_by_index(0).unwrap();
        let set = |fault| {
            node.update(|state, hardware, at| state.set_fault(hardware, at, 0, fault)).unwrap();
        };
        set(Fault::NoPermission);
        assert!(matches!(gpu.set_power_management_limit(200_000), Err(NvmlError::NoPermission)));
        assert!(matches!(gpu.reset_gpu_locked_clocks(), Err(NvmlError::NoPermission)));
        assert!(gpu.power_usage().is_ok(), "readings are still allowed");
        set(Fault::Clear);
        gpu.set_power_management_limit(200_000).unwrap();

        set(Fault::Unsupported(Feature::Energy));
        assert!(matches!(gpu.total_energy_consumption(), Err(NvmlError::NotSupported)));
        assert!(gpu.power_usage().is_ok());
        set(Fault::Unsupported(Feature::ProcessUtilization));
        assert!(matches!(gpu.process_utilization_stats(None), Err(NvmlError::NotSupported)));
        set(Fault::Clear);

        set(Fault::StuckEnergy);
        let stuck = gpu.total_energy_consumption().unwrap();
        let from = node.now();
        until("a system minute passes", || (node.now().since(from).as_secs() >= 60).then_some(()));
        assert_eq!(gpu.total_energy_consumption().unwrap(), stuck);
        set(Fault::Clear);
        assert!(
            gpu.total_energy_consumption().unwrap() > stuck,
            "the integral continued meanwhile"
        );

        let job = Job::start(node.path(), "0", "j", &LONG, &[]);
        rate_when(node, "j", |_| true);
        set(Fault::Lost);
        assert!(matches!(gpu.power_usage(), Err(NvmlError::GpuLost)));
        assert!(matches!(gpu.name(), Err(NvmlError::GpuLost)));
        assert!(matches!(gpu.set_power_management_limit(200_000), Err(NvmlError::GpuLost)));
        assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert!(nvml.device_by_index(1).unwrap().power_usage().is_ok());
        let (status, _, stderr) = job.output();
        assert_eq!(status.code(), Some(1));
        assert!(stderr.contains("lost"), "{stderr}");
    });
}

#[test]
fn library_without_a_node_reports_no_driver() {
    with_nvml("library_without_a_node_reports_no_driver", 1, |nvml, node| {
        // The library stays initialised until the last user shuts it down.
        let library = library();
        let second = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        nvml.shutdown().unwrap();
        assert_eq!(second.device_count().unwrap(), 2);
        second.shutdown().unwrap();
        std::fs::remove_file(node.path()).unwrap();
        let absent = Nvml::builder().lib_path(library.as_os_str()).init();
        assert!(matches!(absent, Err(NvmlError::DriverNotLoaded)));
    });
}

#[test]
fn pascal_gpu_has_no_energy_counter() {
    let test = "pascal_gpu_has_no_energy_counter";
    if !crate::support::is_child() {
        let cluster = crate::support::SimCluster::new(1);
        let state = cluster.node_of("n0", 1, "p100");
        let out = crate::support::child_of(test).env("WATTLE_SIM_NODE", state).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let library = library();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    let mut gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.total_energy_consumption(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.reset_gpu_locked_clocks(), Err(NvmlError::NotSupported)));
    assert!(gpu.power_usage().is_ok());
    gpu.set_power_management_limit(150_000).unwrap();
}

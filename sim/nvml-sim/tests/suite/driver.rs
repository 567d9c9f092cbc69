//! The library as its clients see it: nvml-wrapper, unchanged, through its `lib_path`.

use crate::support::{HEAVY, Job, library, rate_when, until, with_nvml};
use nvml_sim::fault::{Fault, Reading};
use nvml_sim::node::Node;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, ClockId, ClockLimitId, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;

const LONG: [&str; 4] = ["--workload", HEAVY, "--steps", "100000000"];

#[test]
fn cards_say_what_they_are() {
    with_nvml("cards_say_what_they_are", 1, |nvml, node| {
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert!(nvml.sys_driver_version().unwrap().contains("sim"));
        assert!(nvml.sys_nvml_version().unwrap().contains("sim"));
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_040);
        let card = nvml.device_by_index(1).unwrap();
        assert_eq!(card.name().unwrap(), node.gpu().nvml_name);
        assert_eq!(card.index().unwrap(), 1);
        let uuid = card.uuid().unwrap();
        assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
        assert_ne!(uuid, nvml.device_by_index(0).unwrap().uuid().unwrap());
        assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), 1);
        let pci = card.pci_info().unwrap();
        assert_eq!((pci.domain, pci.bus, pci.device), (0, 5, 0));
        assert_eq!(nvml.device_by_pci_bus_id(pci.bus_id).unwrap().index().unwrap(), 1);
        assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
        assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));

        let memory = card.memory_info().unwrap();
        assert_eq!((memory.used, memory.free), (0, node.gpu().memory_mib << 20));
        let limits = card.power_management_limit_constraints().unwrap();
        assert_eq!(u64::from(limits.min_limit), node.gpu().cap_min.as_mw());
        assert_eq!(u64::from(limits.max_limit), node.gpu().cap_max.as_mw());
        let default = card.power_management_limit_default().unwrap();
        assert_eq!(u64::from(default), node.gpu().cap_default.as_mw());
        assert_eq!(card.power_management_limit().unwrap(), default);
        assert_eq!(card.enforced_power_limit().unwrap(), default);

        let memory_clocks = card.supported_memory_clocks().unwrap();
        assert_eq!(memory_clocks, [node.gpu().memory_clock.as_mhz()]);
        let clocks = card.supported_graphics_clocks(memory_clocks[0]).unwrap();
        assert_eq!(clocks.len(), node.gpu().clocks.len());
        assert!(clocks.is_sorted_by(|a, b| a > b), "highest first: {clocks:?}");
        assert!(matches!(card.supported_graphics_clocks(1), Err(NvmlError::NotFound)));
        assert_eq!(card.max_clock_info(Clock::SM).unwrap(), clocks[0]);
        assert_eq!(card.max_clock_info(Clock::Memory).unwrap(), memory_clocks[0]);

        // Nobody is there.
        assert_eq!(u64::from(card.power_usage().unwrap()), node.gpu().idle.as_mw());
        let busy = card.utilization_rates().unwrap();
        assert_eq!((busy.gpu, busy.memory), (0, 0));
        assert!(card.running_compute_processes().unwrap().is_empty());
        assert!(card.running_graphics_processes().unwrap().is_empty());
        assert!(matches!(card.process_utilization_stats(None), Err(NvmlError::NotFound)));
        assert_eq!(card.current_throttle_reasons().unwrap(), ThrottleReasons::GPU_IDLE);
        assert!(card.supported_throttle_reasons().unwrap().contains(ThrottleReasons::SW_POWER_CAP));
        assert!((30..60).contains(&card.temperature(TemperatureSensor::Gpu).unwrap()));
        assert!(card.performance_state().is_ok());
    });
}

#[test]
fn the_energy_counter_is_the_integral_of_power() {
    with_nvml("the_energy_counter_is_the_integral_of_power", 60, |nvml, node| {
        let mut card = nvml.device_by_index(0).unwrap();
        let job = Job::start(node.path(), "0", "j", &LONG, &[]);
        rate_when(node, "j", |_| true);
        for cap in [200_000, 120_000, 250_000] {
            card.set_power_management_limit(cap).unwrap();
            // The counter lies between what its definition gives just before and just after.
            let shown = |node: &Node| {
                let view = node.look().unwrap();
                let energy = view.state.energy(&view.state.cards[0], view.at).total();
                (view.at, energy.as_mj(), view.state.cards[0].power)
            };
            let (from, before, power) = shown(node);
            let first = card.total_energy_consumption().unwrap();
            assert!(first >= before && first <= shown(node).1);
            let (to, after) = until("a system minute passes", || {
                let (at, energy, _) = shown(node);
                (at.since(from).as_secs() >= 60).then_some((at, energy))
            });
            let expected = power.over(to.since(from)).as_mj();
            assert!((after - before).abs_diff(expected) <= 1, "{} and {expected}", after - before);
            assert!(card.total_energy_consumption().unwrap() >= after);
        }
        drop(job);
    });
}

#[test]
fn a_cap_below_demand_slows_the_job_and_says_so() {
    with_nvml("a_cap_below_demand_slows_the_job_and_says_so", 60, |nvml, node| {
        let mut card = nvml.device_by_index(0).unwrap();
        let _job = Job::start(node.path(), "0", "j", &LONG, &[]);
        let free = rate_when(node, "j", |_| true);
        let power = card.power_usage().unwrap();
        let clock = card.clock_info(Clock::SM).unwrap();
        assert_eq!(clock, card.clock(Clock::Graphics, ClockId::Current).unwrap());
        assert!(power > 150_000, "{HEAVY} draws {power} mW");
        assert!(!card.current_throttle_reasons().unwrap().contains(ThrottleReasons::GPU_IDLE));
        let warm = card.temperature(TemperatureSensor::Gpu).unwrap();

        card.set_power_management_limit(120_000).unwrap();
        assert_eq!(card.power_management_limit().unwrap(), 120_000);
        // Measured means under a cap lie a little below it.
        assert!((100_000..=120_000).contains(&card.power_usage().unwrap()));
        assert!(card.clock_info(Clock::SM).unwrap() < clock);
        assert!(card.temperature(TemperatureSensor::Gpu).unwrap() < warm);
        assert!(card.current_throttle_reasons().unwrap().contains(ThrottleReasons::SW_POWER_CAP));
        let capped = rate_when(node, "j", |view| view.state.cards[0].cap.as_mw() == 120_000);
        assert!(capped < 0.9 * free, "{capped} steps/s capped, {free} free");

        // What the card cannot do, it does not do.
        for wrong in [0, 99_999, 250_001, u32::MAX] {
            let refused = card.set_power_management_limit(wrong);
            assert!(matches!(refused, Err(NvmlError::InvalidArg)), "{wrong}");
        }
        assert_eq!(card.power_management_limit().unwrap(), 120_000);
        // The other card has nothing to do with it.
        assert_eq!(nvml.device_by_index(1).unwrap().power_management_limit().unwrap(), 250_000);
        card.set_power_management_limit(250_000).unwrap();
        assert_eq!(card.power_usage().unwrap(), power);
    });
}

#[test]
fn a_locked_clock_slows_the_job_and_says_so() {
    with_nvml("a_locked_clock_slows_the_job_and_says_so", 60, |nvml, node| {
        let mut card = nvml.device_by_index(0).unwrap();
        let _job = Job::start(node.path(), "0", "j", &LONG, &[]);
        let free = rate_when(node, "j", |_| true);
        let power = card.power_usage().unwrap();
        let locked = |least, greatest| GpuLockedClocksSetting::Numeric {
            min_clock_mhz: least,
            max_clock_mhz: greatest,
        };
        let lowest = node.gpu().clocks.iter().min().unwrap().as_mhz();
        let middle = node.gpu().clocks[node.gpu().clocks.len() / 2].as_mhz();
        card.set_gpu_locked_clocks(locked(lowest, middle + 1)).unwrap();
        assert_eq!(card.clock_info(Clock::SM).unwrap(), middle, "cut to a clock the card has");
        assert!(card.power_usage().unwrap() < power);
        let reasons = card.current_throttle_reasons().unwrap();
        assert!(reasons.contains(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING), "{reasons:?}");
        let slow = rate_when(node, "j", |view| view.state.cards[0].clock_max.is_some());
        assert!(slow < free, "{slow} steps/s locked, {free} free");
        for wrong in [locked(middle, lowest), locked(0, lowest - 1)] {
            assert!(matches!(card.set_gpu_locked_clocks(wrong), Err(NvmlError::InvalidArg)));
        }
        card.set_gpu_locked_clocks(GpuLockedClocksSetting::Symbolic {
            lower_bound: ClockLimitId::Tdp,
            upper_bound: ClockLimitId::Unlimited,
        })
        .unwrap();
        assert_eq!(card.power_usage().unwrap(), power);
        card.reset_gpu_locked_clocks().unwrap();
        rate_when(node, "j", |view| view.state.cards[0].clock_max.is_none());
        assert_eq!(card.power_usage().unwrap(), power);
    });
}

#[test]
fn two_tenants_slow_each_other() {
    with_nvml("two_tenants_slow_each_other", 60, |nvml, node| {
        let card = nvml.device_by_index(0).unwrap();
        let first = Job::start(node.path(), "0", "a", &LONG, &[]);
        let alone = rate_when(node, "a", |_| true);
        let (used, _) = (card.memory_info().unwrap().used, ());
        let second = Job::start(node.path(), "0", "b", &LONG, &[]);
        let other = rate_when(node, "b", |_| true);
        let shared = rate_when(node, "a", |view| view.state.cards[0].shares.len() == 2);
        assert!(shared < 0.9 * alone, "{shared} steps/s beside another, {alone} alone");
        assert!((shared - other).abs() < 1e-6, "equals share equally");

        assert_eq!(card.memory_info().unwrap().used, 2 * used);
        let processes = card.running_compute_processes().unwrap();
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
        let samples = card.process_utilization_stats(None).unwrap();
        assert_eq!(samples.len(), 2);
        let sum: u32 = samples.iter().map(|sample| sample.sm_util).sum();
        let whole = card.utilization_rates().unwrap().gpu;
        assert!(sum.abs_diff(whole) <= 1, "{sum} of {whole}");
        let newest = samples.iter().map(|sample| sample.timestamp).max().unwrap();
        let none = card.process_utilization_stats(newest + 60_000_000);
        assert!(matches!(none, Err(NvmlError::NotFound)));
        // The neighbour card saw none of them.
        let idle = nvml.device_by_index(1).unwrap();
        assert!(idle.running_compute_processes().unwrap().is_empty());
        assert_eq!(u64::from(idle.power_usage().unwrap()), node.gpu().idle.as_mw());

        drop(second);
        let again = rate_when(node, "a", |view| view.state.cards[0].shares.len() == 1);
        assert!((again - alone).abs() < 1e-9);
    });
}

#[test]
fn faults_are_the_drivers_own_codes() {
    with_nvml("faults_are_the_drivers_own_codes", 60, |nvml, node| {
        let mut card = nvml.device_by_index(0).unwrap();
        let set = |fault| {
            node.update(|state, physics, at| state.set_fault(physics, at, 0, fault)).unwrap();
        };
        set(Fault::NoPermission);
        assert!(matches!(card.set_power_management_limit(200_000), Err(NvmlError::NoPermission)));
        assert!(matches!(card.reset_gpu_locked_clocks(), Err(NvmlError::NoPermission)));
        assert!(card.power_usage().is_ok(), "reading is still allowed");
        set(Fault::Clear);
        card.set_power_management_limit(200_000).unwrap();

        set(Fault::Unsupported(Reading::Energy));
        assert!(matches!(card.total_energy_consumption(), Err(NvmlError::NotSupported)));
        assert!(card.power_usage().is_ok());
        set(Fault::Unsupported(Reading::ProcessUtilization));
        assert!(matches!(card.process_utilization_stats(None), Err(NvmlError::NotSupported)));
        set(Fault::Clear);

        set(Fault::StuckEnergy);
        let stuck = card.total_energy_consumption().unwrap();
        let from = node.now();
        until("a system minute passes", || (node.now().since(from).as_secs() >= 60).then_some(()));
        assert_eq!(card.total_energy_consumption().unwrap(), stuck);
        set(Fault::Clear);
        assert!(card.total_energy_consumption().unwrap() > stuck, "it had gone on unseen");

        let job = Job::start(node.path(), "0", "j", &LONG, &[]);
        rate_when(node, "j", |_| true);
        set(Fault::Lost);
        assert!(matches!(card.power_usage(), Err(NvmlError::GpuLost)));
        assert!(matches!(card.name(), Err(NvmlError::GpuLost)));
        assert!(matches!(card.set_power_management_limit(200_000), Err(NvmlError::GpuLost)));
        assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert!(nvml.device_by_index(1).unwrap().power_usage().is_ok());
        let (status, _, said) = job.said();
        assert_eq!(status.code(), Some(1));
        assert!(said.contains("lost"), "{said}");
    });
}

#[test]
fn a_library_without_its_node_says_so() {
    with_nvml("a_library_without_its_node_says_so", 1, |nvml, node| {
        // Two users: the first to leave does not end it for the other.
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
fn a_pascal_card_has_no_energy_counter() {
    let test = "a_pascal_card_has_no_energy_counter";
    if !crate::support::is_child() {
        let place = crate::support::Place::new(1);
        let state = place.node_of("n0", 1, "p100");
        let out = crate::support::again(test).env("WATTLE_SIM_NODE", state).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let library = library();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    let mut card = nvml.device_by_index(0).unwrap();
    assert!(matches!(card.total_energy_consumption(), Err(NvmlError::NotSupported)));
    assert!(matches!(card.reset_gpu_locked_clocks(), Err(NvmlError::NotSupported)));
    assert!(card.power_usage().is_ok());
    card.set_power_management_limit(150_000).unwrap();
}

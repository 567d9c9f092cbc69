//! Modes, memory errors, slowdowns and the load of the driver through an unmodified nvml-wrapper.

use crate::support::{HEAVY, Job, library, rate_when, with_nvml, with_nvml_of};
use nvml_sim::fault::{Fault, Feature, SlowdownCause};
use nvml_sim::node::Node;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

fn set(node: &Node, fault: Fault) {
    node.update(|state, hardware, at| state.set_fault(hardware, at, 0, fault)).unwrap();
}

fn errors(gpu: &Device<'_>) -> Result<u64, NvmlError> {
    gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
}

/// The fields of row remapping: pending, failed.
fn remapped(gpu: &Device<'_>) -> Vec<Result<SampleValue, NvmlError>> {
    let fields = gpu.field_values_for(&[144, 145].map(FieldId)).unwrap();
    fields.into_iter().map(|field| field.unwrap().value).collect()
}

#[test]
fn modes_and_memory_errors_of_a_v100() {
    with_nvml("modes_and_memory_errors_of_a_v100", 1, |nvml, node| {
        let gpu = nvml.device_by_index(0).unwrap();
        assert!(gpu.is_in_persistent_mode().unwrap());
        set(node, Fault::PersistenceOff);
        assert!(!gpu.is_in_persistent_mode().unwrap());
        assert!(matches!(gpu.mig_mode(), Err(NvmlError::NotSupported)), "V100s have no MIG");

        assert_eq!(errors(&gpu).unwrap(), 0);
        set(node, Fault::EccErrors(3));
        set(node, Fault::EccErrors(2));
        assert_eq!(errors(&gpu).unwrap(), 5);
        let corrected = gpu.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile);
        assert_eq!(corrected.unwrap(), 0);

        assert!(!gpu.are_pages_pending_retired().unwrap());
        set(node, Fault::RepairPending);
        assert!(gpu.are_pages_pending_retired().unwrap());
        let rows = remapped(&gpu);
        assert!(rows.iter().all(|row| matches!(row, Err(NvmlError::NotSupported))), "{rows:?}");
        set(node, Fault::Unsupported(Feature::Ecc));
        assert!(matches!(errors(&gpu), Err(NvmlError::NotSupported)));
        set(node, Fault::Clear);
        assert_eq!(errors(&gpu).unwrap(), 0);
    });
}

#[test]
fn mig_and_row_remapping_of_an_a100() {
    with_nvml_of("mig_and_row_remapping_of_an_a100", 1, "a100", |nvml, node| {
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.mig_mode().unwrap().current, 0);
        assert!(gpu.utilization_rates().is_ok());
        set(node, Fault::Mig);
        assert_eq!(gpu.mig_mode().unwrap().current, 1);
        assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
        assert_eq!(nvml.device_by_index(1).unwrap().mig_mode().unwrap().current, 0);

        assert!(matches!(gpu.are_pages_pending_retired(), Err(NvmlError::NotSupported)));
        let values = |gpu: &Device<'_>| -> Vec<u32> {
            let value = |row| match row {
                Ok(SampleValue::U32(value)) => value,
                other => panic!("{other:?}"),
            };
            remapped(gpu).into_iter().map(value).collect()
        };
        assert_eq!(values(&gpu), [0, 0]);
        set(node, Fault::RepairPending);
        assert_eq!(values(&gpu), [1, 0]);
        set(node, Fault::RepairFailed);
        assert_eq!(values(&gpu), [1, 1]);
        let other = gpu.field_values_for(&[FieldId(1)]).unwrap().remove(0).unwrap().value;
        assert!(matches!(other, Err(NvmlError::NotSupported)), "{other:?}");
    });
}

#[test]
fn slowdown_reduces_the_clock_and_is_reported() {
    with_nvml("slowdown_reduces_the_clock_and_is_reported", 60, |nvml, node| {
        let gpu = nvml.device_by_index(0).unwrap();
        let long = ["--workload", HEAVY, "--steps", "100000000"];
        let _job = Job::start(node.path(), "0", "j", &long, &[]);
        let free = rate_when(node, "j", |_| true);
        set(node, Fault::Slowdown(SlowdownCause::HardwareThermal));
        let reasons = gpu.current_throttle_reasons().unwrap();
        let thermal = ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert!(reasons.contains(thermal), "{reasons:?}");
        assert!(gpu.supported_throttle_reasons().unwrap().contains(thermal));
        let slow =
            rate_when(node, "j", |snapshot| snapshot.state.gpus[0].health.slowdown.is_some());
        assert!(slow < 0.9 * free, "{slow} steps/s slowed, {free} free");
        set(node, Fault::Slowdown(SlowdownCause::PowerBrake));
        let reasons = gpu.current_throttle_reasons().unwrap();
        assert!(reasons.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN), "{reasons:?}");
        set(node, Fault::Clear);
        let again = rate_when(node, "j", |s| s.state.gpus[0].health.slowdown.is_none());
        assert!((again - free).abs() < 1e-9, "{again} steps/s afterwards, {free} before");
    });
}

#[test]
fn load_of_the_driver_needs_a_new_initialisation_and_resets_settings() {
    let test = "load_of_the_driver_needs_a_new_initialisation_and_resets_settings";
    with_nvml(test, 60, |nvml, node| {
        let mut gpu = nvml.device_by_index(0).unwrap();
        let long = ["--workload", HEAVY, "--steps", "100000000"];
        let job = Job::start(node.path(), "0", "j", &long, &[]);
        rate_when(node, "j", |_| true);
        gpu.set_power_management_limit(150_000).unwrap();
        set(node, Fault::EccErrors(3));
        set(node, Fault::RepairPending);
        set(node, Fault::Lost);
        let counter = nvml.device_by_index(1).unwrap().total_energy_consumption().unwrap();

        let change = |load| {
            node.update(|state, hardware, at| {
                if load {
                    state.load_driver(hardware, at);
                } else {
                    state.unload_driver(hardware, at);
                }
                Ok(())
            })
            .unwrap();
        };
        change(false);
        assert!(matches!(nvml.device_count(), Err(NvmlError::Uninitialized)));
        assert!(matches!(gpu.power_usage(), Err(NvmlError::Uninitialized)));
        assert!(matches!(gpu.set_power_management_limit(200_000), Err(NvmlError::Uninitialized)));
        let init = || Nvml::builder().lib_path(library().as_os_str()).init();
        assert!(matches!(init(), Err(NvmlError::DriverNotLoaded)));
        let (status, _, stderr) = job.output();
        assert_eq!(status.code(), Some(1), "{stderr}");

        change(true);
        change(true);
        assert!(
            matches!(nvml.device_count(), Err(NvmlError::Uninitialized)),
            "of the earlier load"
        );
        nvml.shutdown().unwrap();
        let nvml = init().unwrap();
        let gpu = nvml.device_by_index(0).expect("the lost GPU is back");
        assert_eq!(gpu.power_management_limit().unwrap(), 250_000);
        assert_eq!(errors(&gpu).unwrap(), 0);
        assert!(!gpu.is_in_persistent_mode().unwrap());
        assert!(!gpu.are_pages_pending_retired().unwrap(), "the pages are retired");
        let restarted = nvml.device_by_index(1).unwrap().total_energy_consumption().unwrap();
        assert!(restarted < counter, "{restarted} mJ after {counter} mJ");
    });
}

//! Invalid calls that only a C caller can make. `tests/suite/driver.rs` tests the library through
//! nvml-wrapper.

use std::process::Command;

use wattle_common::NodeId;
use wattle_common::time::TimeScale;

use super::*;
use crate::node::NodeSpec;

const CHILD: &str = "WATTLE_TEST_CHILD";

/// The library has one state per process and reads its node from the environment, so this test runs
/// itself in a child process.
#[test]
fn invalid_calls_return_error_codes() {
    if std::env::var_os(CHILD).is_some() {
        return check_invalid_calls();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n0.node");
    let (node, gpu_type) = (NodeId::new("n0").unwrap(), "v100".to_owned());
    let spec = NodeSpec { node, gpus: 1, gpu_type, clock: TimeScale::WALL };
    Node::create(&path, &spec).unwrap();
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nvml::tests::invalid_calls_return_error_codes"])
        .env(CHILD, "1")
        .env(wattle_common::env::SIM_NODE, &path)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && output.contains("1 passed"), "{output}");
}

fn check_invalid_calls() {
    let mut count = 0;
    let mut device = std::ptr::null_mut();
    let mut text = [0; 4];
    assert_eq!(nvmlShutdown(), Code::UNINITIALIZED.0);
    // SAFETY: every pointer is null or refers to a local of at least the stated length.
    unsafe {
        assert_eq!(nvmlDeviceGetCount_v2(&raw mut count), Code::UNINITIALIZED.0);
        assert_eq!(nvmlInitWithFlags(0), 0);
        assert_eq!(nvmlDeviceGetCount_v2(std::ptr::null_mut()), Code::INVALID_ARGUMENT.0);
        assert_eq!(
            nvmlDeviceGetHandleByUUID(std::ptr::null(), &raw mut device),
            Code::INVALID_ARGUMENT.0
        );
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), 0);
        let named = nvmlDeviceGetName(device, text.as_mut_ptr(), 4);
        assert_eq!((named, text), (Code::INSUFFICIENT_SIZE.0, [0; 4]));
        for foreign in [std::ptr::null_mut(), handle(1), std::ptr::without_provenance_mut(8)] {
            assert_eq!(nvmlDeviceGetIndex(foreign, &raw mut count), Code::INVALID_ARGUMENT.0);
            assert_eq!(nvmlDeviceSetPowerManagementLimit(foreign, 1), Code::INVALID_ARGUMENT.0);
        }
        let mut memory = MemoryV2 { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
        let unversioned = nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory);
        assert_eq!(unversioned, Code::ARGUMENT_VERSION_MISMATCH.0);
        let clocks =
            node().map(|node| (node.model().memory_clock.as_mhz(), node.model().clocks.len()));
        let (memory_mhz, clocks) = clocks.unwrap();
        let (mut capacity, mut mhz) = (1, 0);
        let listed = nvmlDeviceGetSupportedGraphicsClocks(
            device,
            memory_mhz,
            &raw mut capacity,
            &raw mut mhz,
        );
        assert_eq!((listed, capacity as usize, mhz), (Code::INSUFFICIENT_SIZE.0, clocks, 0));
    }
    assert_eq!(nvmlShutdown(), 0);
    // A node of another release, and a missing node.
    let path = std::env::var_os(wattle_common::env::SIM_NODE).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[24] = 99;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(nvmlInit_v2(), Code::LIB_RM_VERSION_MISMATCH.0);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(nvmlInit_v2(), Code::DRIVER_NOT_LOADED.0);
}

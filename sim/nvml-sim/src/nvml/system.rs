//! Initialisation, versions and device handles.
#![allow(non_snake_case, reason = "NVML's names")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;
use std::sync::Arc;

use super::code::Code;
pub use super::code::nvmlErrorString;
use super::device::{bus_id, uuid_of};
use super::export::{nvml, return_value};
use super::{Device, handle, library, node};
use crate::node::Node;

/// A version of the 12 line, so that clients use its field ids; no real driver has this version.
const DRIVER_VERSION: &str = "550.0-wattle-sim";
const NVML_VERSION: &str = "12.550.0-wattle-sim";
/// CUDA 12.4, as in drivers of version 550.
const CUDA_VERSION: c_int = 12_040;

/// Opens the node named by the environment, unless it is open and its driver still loaded.
fn initialize() -> Result<(), Code> {
    let mut library = library();
    let node = match &library.node {
        Some(node) => Arc::clone(node),
        None => {
            // No node corresponds to no driver.
            let path =
                std::env::var_os(wattle_common::env::SIM_NODE).ok_or(Code::DRIVER_NOT_LOADED)?;
            Arc::new(Node::open(Path::new(&path))?)
        }
    };
    library.load = node.observe()?.state.driver.load().ok_or(Code::DRIVER_NOT_LOADED)?;
    library.node = Some(node);
    library.users += 1;
    Ok(())
}

nvml! {
    /// Initialises the library: opens the node named by the environment.
    action nvmlInit_v2() { initialize() }

    /// Initialises the library; flags have no effect.
    action nvmlInitWithFlags(_flags: c_uint) { initialize() }

    /// Closes the node when every initialisation has a matching shutdown.
    action nvmlShutdown() {
        let mut library = library();
        library.users = library.users.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
        if library.users == 0 {
            library.node = None;
        }
        Ok(())
    }

    /// Version of the driver, marked as simulated.
    text nvmlSystemGetDriverVersion() { node().map(|_| DRIVER_VERSION.to_owned()) }

    /// Version of the library, marked as simulated. Works before initialisation, as in NVIDIA's.
    text nvmlSystemGetNVMLVersion() { Ok(NVML_VERSION.to_owned()) }

    /// CUDA version of the driver.
    value nvmlSystemGetCudaDriverVersion() -> c_int { Ok(CUDA_VERSION) }

    /// CUDA version of the driver.
    value nvmlSystemGetCudaDriverVersion_v2() -> c_int { Ok(CUDA_VERSION) }

    /// Number of GPUs in the node, including lost ones.
    value nvmlDeviceGetCount_v2() -> c_uint { node().map(|node| node.gpu_count()) }

    /// Handle of the GPU with this index.
    value nvmlDeviceGetHandleByIndex_v2(index: c_uint) -> Device {
        node()?.observe()?.state.gpu(index, None)?;
        Ok(handle(index))
    }
}

/// Handle of the GPU with this UUID.
///
/// # Safety
/// `text` is null or a C string; `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    text: *const c_char,
    device: *mut Device,
) -> c_uint {
    // SAFETY: the caller gives the guarantees of `find`.
    unsafe { find(text, device, |node, index, text| uuid_of(node, index) == text) }
}

/// Handle of the GPU with this PCI bus id, in the form `00000000:04:00.0` or `0000:04:00.0`.
///
/// # Safety
/// `text` is null or a C string; `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    text: *const c_char,
    device: *mut Device,
) -> c_uint {
    let matches = |_: &Node, index, text: &str| {
        let full = bus_id(index);
        text.eq_ignore_ascii_case(&full) || text.eq_ignore_ascii_case(&full[4..])
    };
    // SAFETY: the caller gives the guarantees of `find`.
    unsafe { find(text, device, matches) }
}

/// Writes the handle of the first GPU for which `matches` holds.
///
/// # Safety
/// `text` is null or a C string; `device` is null or valid for a write.
unsafe fn find(
    text: *const c_char,
    device: *mut Device,
    matches: impl Fn(&Node, u32, &str) -> bool,
) -> c_uint {
    let search = || {
        let node = node()?;
        if text.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `text` is not null, so the caller guarantees a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_ARGUMENT)?;
        let index = (0..node.gpu_count())
            .find(|index| matches(&node, *index, text))
            .ok_or(Code::NOT_FOUND)?;
        node.observe()?.state.gpu(index, None)?;
        Ok(handle(index))
    };
    // SAFETY: the caller guarantees that `device` is null or valid for a write.
    unsafe { return_value(device, search) }
}

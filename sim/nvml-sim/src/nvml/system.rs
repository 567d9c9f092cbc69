//! Starting and ending the library, what it says of itself, and finding cards.
#![allow(non_snake_case, reason = "these are NVML's own names")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;
use std::sync::Arc;

use super::code::Code;
pub use super::code::nvmlErrorString;
use super::device::{bus_id, uuid_of};
use super::{Device, answer, answer_text, border, handle, library, node};
use crate::node::Node;

/// A driver of the 12 line, so that clients choose that line's field ids; and no real one's number.
const DRIVER_VERSION: &str = "550.0-wattle-sim";
const NVML_VERSION: &str = "12.550.0-wattle-sim";
/// CUDA 12.4, as 550 drivers say.
const CUDA_VERSION: c_int = 12_040;

/// Opens the node that the environment names.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    border(|| {
        let mut library = library();
        if library.node.is_none() {
            // Without a node there is nothing to drive, as on a machine without a driver.
            let path =
                std::env::var_os(wattle_common::env::SIM_NODE).ok_or(Code::DRIVER_NOT_LOADED)?;
            library.node = Some(Arc::new(Node::open(Path::new(&path))?));
        }
        library.users += 1;
        Ok(())
    })
}

/// As [`nvmlInit_v2`]; no flag makes a difference here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_uint {
    nvmlInit_v2()
}

/// Closes the node when every user has said so.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    border(|| {
        let mut library = library();
        library.users = library.users.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
        if library.users == 0 {
            library.node = None;
        }
        Ok(())
    })
}

/// The driver's version; it says that it is simulated.
///
/// # Safety
/// `version` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer_text(version, length, || node().map(|_| DRIVER_VERSION.to_owned())) }
}

/// The library's version; it says that it is simulated.
///
/// # Safety
/// `version` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same. This one works before initialisation, as NVIDIA's.
    unsafe { answer_text(version, length, || Ok(NVML_VERSION.to_owned())) }
}

/// The CUDA version of the driver.
///
/// # Safety
/// `version` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(version, || Ok(CUDA_VERSION)) }
}

/// As [`nvmlSystemGetCudaDriverVersion`].
///
/// # Safety
/// `version` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(version, || Ok(CUDA_VERSION)) }
}

/// How many cards the node has, lost ones included.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(count, || node().map(|node| node.gpu_count())) }
}

/// The card in a place.
///
/// # Safety
/// `device` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut Device,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(device, || {
            node()?.look()?.state.card(index, None)?;
            Ok(handle(index))
        })
    }
}

/// The card of a UUID.
///
/// # Safety
/// `text` is null or a C string; `device` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    text: *const c_char,
    device: *mut Device,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { find(text, device, |node, index, text| uuid_of(node, index) == text) }
}

/// The card in a slot, as in `00000000:04:00.0` or `0000:04:00.0`.
///
/// # Safety
/// `text` is null or a C string; `device` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    text: *const c_char,
    device: *mut Device,
) -> c_uint {
    let is_it = |_: &Node, index, text: &str| {
        let full = bus_id(index);
        text.eq_ignore_ascii_case(&full) || text.eq_ignore_ascii_case(&full[4..])
    };
    // SAFETY: the caller's promise is the same.
    unsafe { find(text, device, is_it) }
}

/// The card that a text names.
///
/// # Safety
/// `text` is null or a C string; `device` is null or may be written.
unsafe fn find(
    text: *const c_char,
    device: *mut Device,
    is_it: impl Fn(&Node, u32, &str) -> bool,
) -> c_uint {
    let search = || {
        let node = node()?;
        if text.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, and the caller promises a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_ARGUMENT)?;
        let index = (0..node.gpu_count())
            .find(|index| is_it(&node, *index, text))
            .ok_or(Code::NOT_FOUND)?;
        node.look()?.state.card(index, None)?;
        Ok(handle(index))
    };
    // SAFETY: the caller's promise is the same.
    unsafe { answer(device, search) }
}

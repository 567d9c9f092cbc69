//! NVML's C interface to a simulated node: the symbols that `nvml-wrapper` and NVIDIA's Python
//! binding load, with the layouts and return codes of `nvml.h` (version 12).
//!
//! `WATTLE_SIM_NODE` names the node when the library is initialised.

mod code;
mod device;
mod export;
mod health;
mod limit;
mod process;
mod system;
#[cfg(test)]
mod tests;

pub use device::*;
pub use health::*;
pub use limit::*;
pub use process::*;
pub use system::*;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wattle_world::GpuModel;

use code::Code;

use crate::fault::Feature;
use crate::node::{Node, Snapshot};
use crate::state::Gpu;

/// An NVML device handle: an encoded GPU index that is never dereferenced.
pub type Device = *mut c_void;

/// Added to a GPU index to make a handle, so that null and small numbers are invalid handles.
const HANDLE_BASE: usize = 0x5741_5454;

/// State of the library in this process.
struct Library {
    /// Initialisations without a matching shutdown.
    users: u32,
    node: Option<Arc<Node>>,
    /// Number of the driver's load that the library uses.
    load: u64,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, node: None, load: 0 });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open node. After the driver was unloaded, each process initialises the library again.
fn node() -> Result<Arc<Node>, Code> {
    let (node, load) = {
        let library = library();
        (library.node.clone().ok_or(Code::UNINITIALIZED)?, library.load)
    };
    let is_current = node.observe()?.state.driver.is_loaded(load);
    if is_current { Ok(node) } else { Err(Code::UNINITIALIZED) }
}

fn handle(index: u32) -> Device {
    std::ptr::without_provenance_mut(HANDLE_BASE + index as usize)
}

fn index_of(node: &Node, device: Device) -> Result<u32, Code> {
    device
        .addr()
        .checked_sub(HANDLE_BASE)
        .and_then(|index| u32::try_from(index).ok())
        .filter(|index| *index < node.gpu_count())
        .ok_or(Code::INVALID_ARGUMENT)
}

/// A GPU in the snapshot taken by one call.
struct GpuView {
    node: Arc<Node>,
    snapshot: Snapshot,
    index: u32,
}

impl GpuView {
    /// Observes a GPU that is not lost and supports `feature`.
    fn observe(device: Device, feature: Option<Feature>) -> Result<Self, Code> {
        let node = node()?;
        let index = index_of(&node, device)?;
        let snapshot = node.observe()?;
        snapshot.state.gpu(index, feature)?;
        Ok(Self { node, snapshot, index })
    }

    fn state(&self) -> &Gpu {
        &self.snapshot.state.gpus[self.index as usize]
    }

    fn model(&self) -> &'static GpuModel {
        self.node.model()
    }
}

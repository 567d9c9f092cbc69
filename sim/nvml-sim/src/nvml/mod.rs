//! NVML's C interface over a simulated node: the symbols that `nvml-wrapper` and NVIDIA's own
//! Python binding look up, with the layouts and return codes of `nvml.h` (version 12).
//!
//! The node is the one that `WATTLE_SIM_NODE` names when the library is initialised. Everything is
//! checked before it is touched; a panic becomes `NVML_ERROR_UNKNOWN` at the border.

mod code;
mod device;
mod limit;
mod process;
mod system;
#[cfg(test)]
mod tests;

pub use device::*;
pub use limit::*;
pub use process::*;
pub use system::*;

use std::ffi::{c_char, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use code::Code;

use crate::fault::Reading;
use crate::node::{Node, View};
use crate::state::Card;

/// An NVML device handle. It is a number in disguise, never followed.
pub type Device = *mut c_void;

/// Added to a card's index to make a handle, so that null and small numbers are no handles.
const HANDLE_BASE: usize = 0x5741_5454;

struct Library {
    users: u32,
    node: Option<Arc<Node>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, node: None });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node() -> Result<Arc<Node>, Code> {
    library().node.clone().ok_or(Code::UNINITIALIZED)
}

/// Runs what a C function does; nothing unwinds into C.
fn border(run: impl FnOnce() -> Result<(), Code>) -> c_uint {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Runs what a C function asks and stores its answer.
///
/// # Safety
/// `out` is null or points to a `T` that may be written.
unsafe fn answer<T>(out: *mut T, run: impl FnOnce() -> Result<T, Code>) -> c_uint {
    border(|| {
        let value = run()?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, and the caller promises that it may be written.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Stores a text with its NUL where it fits.
///
/// # Safety
/// `out` is null or points to `len` bytes that may be written.
unsafe fn answer_text(
    out: *mut c_char,
    len: c_uint,
    run: impl FnOnce() -> Result<String, Code>,
) -> c_uint {
    border(|| {
        let text = run()?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if text.len() >= len as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: the text and its NUL fit into the `len` bytes that the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
            out.add(text.len()).write(0);
        }
        Ok(())
    })
}

/// Stores a list as NVML's callers expect it: `count` comes in as the room there is and goes out
/// as the number there is; too little room is an error that still says how much is needed.
///
/// # Safety
/// `count` is null or may be read and written; `out` is null or points to `*count` items that may
/// be written.
unsafe fn answer_list<T>(
    count: *mut c_uint,
    out: *mut T,
    run: impl FnOnce() -> Result<Vec<T>, Code>,
) -> c_uint {
    border(|| {
        let items = run()?;
        if count.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, and the caller promises that it may be read and written.
        let room = unsafe { count.replace(items.len() as c_uint) } as usize;
        if items.is_empty() {
            return Ok(());
        }
        if room < items.len() || out.is_null() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (place, item) in items.into_iter().enumerate() {
            // SAFETY: there is room for `room` items, and `place` is below that.
            unsafe { out.add(place).write(item) };
        }
        Ok(())
    })
}

/// A card as one call sees it.
struct Seen {
    node: Arc<Node>,
    view: View,
    index: u32,
}

impl Seen {
    fn card(&self) -> &Card {
        &self.view.state.cards[self.index as usize]
    }
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

/// Looks at a card, where it answers and supports `reading`.
fn see(device: Device, reading: Option<Reading>) -> Result<Seen, Code> {
    let node = node()?;
    let index = index_of(&node, device)?;
    let view = node.look()?;
    view.state.card(index, reading)?;
    Ok(Seen { node, view, index })
}

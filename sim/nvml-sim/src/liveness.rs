//! Detects whether a process that holds GPUs is alive.
//!
//! A claim locks one byte of the node's file, beyond its end. The kernel releases the lock when the
//! process dies for any reason, before it is reaped. Zombies and reused process ids are therefore
//! handled correctly, also across containers. The locks are open-file-description locks
//! (`F_OFD_SETLK`), which std does not offer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Offset of the first lock: beyond any state, so it cannot overlap a lock on the state.
const BASE: i64 = 1 << 40;

fn request(slot: usize) -> libc::flock {
    // SAFETY: `flock` is a plain C struct of integers, for which all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = BASE + slot as i64;
    lock.l_len = 1;
    lock
}

/// Locks the slot of a claim for this open file; `false` if another process holds it.
///
/// # Errors
/// The operating system's error.
pub fn lock(file: &File, slot: usize) -> io::Result<bool> {
    let lock = request(slot);
    // SAFETY: the descriptor is open while `file` is borrowed, and `lock` outlives the call, which
    // only reads it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Unlocks the slot of a claim.
///
/// # Errors
/// The operating system's error.
pub fn unlock(file: &File, slot: usize) -> io::Result<()> {
    let mut lock = request(slot);
    lock.l_type = libc::F_UNLCK as libc::c_short;
    // SAFETY: the descriptor is open while `file` is borrowed, and `lock` outlives the call, which
    // only reads it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether another open file holds the slot of a claim.
///
/// # Errors
/// The operating system's error.
pub fn is_locked(file: &File, slot: usize) -> io::Result<bool> {
    let mut lock = request(slot);
    // SAFETY: the descriptor is open while `file` is borrowed, and the call has exclusive access to
    // `lock`, into which it writes its answer.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if result == 0 {
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_the_file_releases_the_lock() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let (ours, theirs) = (named.reopen().unwrap(), named.reopen().unwrap());
        assert!(!is_locked(&ours, 3).unwrap());
        assert!(lock(&theirs, 3).unwrap());
        assert!(is_locked(&ours, 3).unwrap() && !is_locked(&ours, 4).unwrap());
        assert!(!lock(&ours, 3).unwrap());
        unlock(&theirs, 3).unwrap();
        assert!(!is_locked(&ours, 3).unwrap());
        assert!(lock(&theirs, 3).unwrap());
        drop(theirs);
        assert!(!is_locked(&ours, 3).unwrap());
    }
}

//! Whether a process that holds cards still exists.
//!
//! A claim holds a lock on one byte of the node's file, far behind its end. The kernel drops the
//! lock the moment the process dies, whatever killed it, before anybody has waited for it; so a
//! zombie holds nothing, a reused process id fools nobody, and it works across containers. These
//! are open-file-description locks (`F_OFD_SETLK`), which std does not offer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Where the locks lie: far beyond any state, so they never meet a lock on the state itself.
const BASE: i64 = 1 << 40;

fn request(place: usize) -> libc::flock {
    // SAFETY: `flock` is a plain C struct of integers, for which all zeros is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = BASE + place as i64;
    lock.l_len = 1;
    lock
}

/// Locks the place of a claim for this open file; `false` where another process has it.
///
/// # Errors
/// What the system says.
pub fn hold(file: &File, place: usize) -> io::Result<bool> {
    let lock = request(place);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `lock` outlives the
    // call, which only reads it.
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

/// Gives the place of a claim back.
///
/// # Errors
/// What the system says.
pub fn let_go(file: &File, place: usize) -> io::Result<()> {
    let mut lock = request(place);
    lock.l_type = libc::F_UNLCK as libc::c_short;
    // SAFETY: as in `hold`.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether somebody other than this open file holds the place of a claim.
///
/// # Errors
/// What the system says.
pub fn is_held(file: &File, place: usize) -> io::Result<bool> {
    let mut lock = request(place);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `lock` is ours alone
    // while the call writes its answer into it.
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
    fn a_lock_ends_with_its_file() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let (ours, theirs) = (named.reopen().unwrap(), named.reopen().unwrap());
        assert!(!is_held(&ours, 3).unwrap());
        assert!(hold(&theirs, 3).unwrap());
        assert!(is_held(&ours, 3).unwrap() && !is_held(&ours, 4).unwrap());
        assert!(!hold(&ours, 3).unwrap());
        let_go(&theirs, 3).unwrap();
        assert!(!is_held(&ours, 3).unwrap());
        assert!(hold(&theirs, 3).unwrap());
        drop(theirs);
        assert!(!is_held(&ours, 3).unwrap());
    }
}

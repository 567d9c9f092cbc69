//! Waiting for a duration or a signal.
//!
//! Signals are blocked and read from the queue, so no handler is needed and none is missed between
//! two waits.

use std::time::Duration;

/// Request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGUSR1: write a checkpoint and exit.
    Checkpoint,
    /// SIGTERM, SIGINT or SIGHUP: the same; SIGKILL may follow.
    Terminate,
}

/// The signals that a job handles.
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals for this thread and the threads it starts.
    pub(crate) fn block() -> Self {
        // SAFETY: a signal set is plain data, initialised by `sigemptyset` before any other use;
        // the other calls only access this local set.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            // Fails only for an invalid first argument.
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits for `span` (wall time) or until a signal arrives.
    pub(crate) fn wait(&self, span: Duration) -> Option<Signal> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        // SAFETY: both pointers refer to values that live through the call; the null pointer
        // requests no signal information.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const timeout)
        };
        match signal {
            libc::SIGUSR1 => Some(Signal::Checkpoint),
            libc::SIGTERM | libc::SIGINT | libc::SIGHUP => Some(Signal::Terminate),
            // Timeout, or interrupted by another signal (EINTR): the caller continues.
            _ => None,
        }
    }
}

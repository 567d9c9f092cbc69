//! Waiting for time to pass or for a signal to come, whichever is first.
//!
//! The signals are blocked and taken from the queue, so there is no handler, and none is missed
//! between two waits.

use std::time::Duration;

/// What a signal asks of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGUSR1: write a checkpoint and go.
    Checkpoint,
    /// SIGTERM or SIGINT: the same, said by someone who will not wait for long.
    Terminate,
}

/// The signals a job listens to.
pub(super) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them for this thread and those it starts.
    pub(super) fn block() -> Self {
        // SAFETY: a signal set is plain data; `sigemptyset` makes it a valid one before anything
        // else reads it, and the other calls only read and write that local set.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(&raw mut set, signal);
            }
            // It can only fail for an unknown first argument.
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits for `span` (wall), or less if a signal comes.
    pub(super) fn wait(&self, span: Duration) -> Option<Signal> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        // SAFETY: both pointers are to values that live through the call, and no information on
        // the signal is asked for.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const timeout)
        };
        match signal {
            libc::SIGUSR1 => Some(Signal::Checkpoint),
            libc::SIGTERM | libc::SIGINT => Some(Signal::Terminate),
            // The time is over, or another signal was handled (EINTR): the caller looks again.
            _ => None,
        }
    }
}

//! Progress reports to the profiler. A missing or slow receiver never delays the job.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use wattle_common::progress::Progress;

use super::signals::Signals;

/// Retries of the last report, and the wall time between them.
const LAST_TRIES: u32 = 100;
const LAST_PAUSE: Duration = Duration::from_millis(10);

/// Sender of progress reports.
#[derive(Debug)]
pub(super) struct Reporter {
    to: Option<(UnixDatagram, PathBuf)>,
}

impl Reporter {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        let socket = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Self { to: path.and_then(|path| Some((socket()?, path))) }
    }

    /// Sends a report once; `false` if it was not received.
    pub(super) fn send(&self, progress: &Progress) -> bool {
        let Some((socket, path)) = &self.to else { return true };
        socket.send_to(progress.to_string().as_bytes(), path).is_ok()
    }

    /// Sends the last report, with retries for one second.
    pub(super) fn send_last(&self, progress: &Progress, signals: &Signals) {
        for _ in 0..LAST_TRIES {
            if self.send(progress) {
                return;
            }
            // The job is already stopping, so a signal has no effect.
            let _ = signals.wait(LAST_PAUSE);
        }
    }
}

//! Telling the profiler how far the job is. Nobody there, or nobody reading, never hurts the job.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use wattle_common::progress::Progress;

use super::signals::Signals;

/// How long (wall) the last line waits for somebody to take it.
const LAST_TRIES: u32 = 100;
const LAST_PAUSE: Duration = Duration::from_millis(10);

/// The socket the job's lines go to.
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

    /// Sends a line, once; `false` where nobody took it.
    pub(super) fn send(&self, progress: &Progress) -> bool {
        let Some((socket, path)) = &self.to else { return true };
        socket.send_to(progress.to_string().as_bytes(), path).is_ok()
    }

    /// Sends the line that must not be lost: tries for a second.
    pub(super) fn send_last(&self, progress: &Progress, signals: &Signals) {
        for _ in 0..LAST_TRIES {
            if self.send(progress) {
                return;
            }
            // A signal now asks for what is happening anyway.
            let _ = signals.wait(LAST_PAUSE);
        }
    }
}

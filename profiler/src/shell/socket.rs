//! The Unix datagram socket to which jobs send their progress.
//!
//! Any process with write permission may send anything. Lines are bounded and parsed; invalid ones
//! are counted and logged at a bounded rate. A line that finds the channel full is dropped, since
//! the job's next line supersedes it.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use wattle_common::Timestamp;
use wattle_common::bounds::check_progress_line;
use wattle_common::progress::{LINE_LEN_MAX, Progress};
use wattle_runtime::clock;

use crate::machine::Event;

/// Least time between two warnings: wall time.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Opens the socket at `path`, replacing one that a killed service has left.
///
/// # Errors
/// Where another process listens there, or no socket can be created in the folder. The error names
/// the path.
pub fn open(path: &Path, mode: u32) -> std::io::Result<UnixDatagram> {
    let named = |error: std::io::Error| {
        let what =
            format!("cannot listen at {}, which progress_socket names: {error}", path.display());
        std::io::Error::new(error.kind(), what)
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(named)?;
    }
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        let live = std::os::unix::net::UnixDatagram::unbound().and_then(|own| own.connect(path));
        if live.is_ok() {
            let taken = std::io::ErrorKind::AddrInUse.into();
            return Err(named(taken));
        }
        std::fs::remove_file(path).map_err(named)?;
    }
    let socket = UnixDatagram::bind(path).map_err(named)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(named)?;
    Ok(socket)
}

/// Sends every valid line to `events`.
pub async fn listen(socket: UnixDatagram, events: mpsc::Sender<Event>) {
    // One byte more than the longest line, to detect longer ones.
    let mut buffer = [0; LINE_LEN_MAX + 1];
    let mut rejected = RejectedLines::default();
    loop {
        let length = match socket.recv(&mut buffer).await {
            Ok(length) => length,
            Err(error) => {
                tracing::error!(%error, "the jobs' socket fails; retrying");
                tokio::time::sleep(WARN_INTERVAL).await;
                continue;
            }
        };
        let at = clock::now();
        match parse(&buffer[..length]) {
            Ok(line) => match events.try_send(Event::Progressed { at, line }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => {
                    rejected.add(at, "the event channel is full");
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            },
            Err(error) => rejected.add(at, error),
        }
    }
}

/// A line within the limits of the messages that are made of it.
fn parse(bytes: &[u8]) -> Result<Progress, String> {
    let line = Progress::parse(bytes).map_err(|error| error.to_string())?;
    check_progress_line(&line).map_err(|error| error.to_string())?;
    Ok(line)
}

/// Counts rejected lines and logs them at a bounded rate.
#[derive(Default)]
struct RejectedLines {
    pending: u64,
    warned_at: Option<Timestamp>,
}

impl RejectedLines {
    fn add(&mut self, now: Timestamp, why: impl std::fmt::Display) {
        self.pending += 1;
        let pause = WARN_INTERVAL * clock::scale().rate;
        if self.warned_at.is_none_or(|at| now.since(at) >= pause) {
            tracing::warn!(lines = self.pending, last = %why, "progress lines ignored");
            (self.pending, self.warned_at) = (0, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn valid_lines_arrive_and_invalid_ones_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/progress.sock");
        // Left by a killed service.
        drop(open(&path, 0o666).unwrap());
        let socket = open(&path, 0o622).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o622);
        let (sender, mut events) = mpsc::channel(4);
        let task = tokio::spawn(listen(socket, sender));
        let job = UnixDatagram::unbound().unwrap();
        for line in [&b"nonsense"[..], &[0xff; 3], &[b'x'; 600], b"job=a step=7\n"] {
            job.send_to(line, &path).await.unwrap();
        }
        let Some(Event::Progressed { line, .. }) = events.recv().await else { panic!("no line") };
        assert_eq!((line.job.as_str(), line.step), ("a", 7));
        // A second service on the same socket is refused.
        let error = open(&path, 0o666).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("progress_socket"), "{error}");
        task.abort();
    }
}

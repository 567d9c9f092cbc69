//! The Unix datagram socket to which jobs send their progress.
//!
//! Any process with write permission may send anything. The kernel adds the sender's process and user
//! ([`Sender`]), which no sender can forge. Lines are bounded and parsed; invalid ones are counted and
//! logged at a bounded rate. A line that finds the channel full is dropped, since the job's next line
//! supersedes it.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, UCred, recvmsg, sockopt};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use wattle_common::Timestamp;
use wattle_common::bounds::check_progress_line;
use wattle_common::progress::{LINE_LEN_MAX, Progress};
use wattle_runtime::clock;

use crate::machine::Event;
use crate::process_tree::reader;
use crate::sender::Sender;

/// Least time between two warnings: wall time.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a sender's process is not looked up again, wall time: far less than Linux needs to reuse
/// a process id.
const SENDER_KEPT: Duration = Duration::from_secs(1);
/// Most senders that are kept.
const SENDERS_MAX: usize = 256;

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
    sockopt::set_socket_passcred(&socket, true).map_err(|errno| named(errno.into()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(named)?;
    Ok(socket)
}

/// Sends every valid line to `events`.
pub async fn listen(socket: UnixDatagram, events: mpsc::Sender<Event>) {
    // One byte more than the longest line, to detect longer ones.
    let mut buffer = [0; LINE_LEN_MAX + 1];
    let mut rejected = RejectedLines::default();
    let mut senders = Senders::default();
    loop {
        let received = socket.async_io(Interest::READABLE, || receive(&socket, &mut buffer)).await;
        let (length, credentials) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::error!(%error, "the jobs' socket fails; retrying");
                tokio::time::sleep(WARN_INTERVAL).await;
                continue;
            }
        };
        let at = clock::now();
        match parse(&buffer[..length]) {
            Ok(line) => {
                let sender = senders.of(at, credentials);
                match events.try_send(Event::Progressed { at, line, sender }) {
                    Ok(()) => {}
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        rejected.add(at, "the event channel is full");
                    }
                    Err(mpsc::error::TrySendError::Closed(_)) => return,
                }
            }
            Err(error) => rejected.add(at, error),
        }
    }
}

/// Receives one datagram: its length and the credentials of its sender.
fn receive(socket: &UnixDatagram, buffer: &mut [u8]) -> std::io::Result<(usize, Option<UCred>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::DONTWAIT)?;
    let credentials = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials),
        _ => None,
    });
    Ok((received.bytes, credentials))
}

/// Senders by process, looked up again after [`SENDER_KEPT`]: a job may report a thousand times per second.
#[derive(Default)]
struct Senders(BTreeMap<i32, (Timestamp, Sender)>);

impl Senders {
    fn of(&mut self, now: Timestamp, credentials: Option<UCred>) -> Sender {
        let Some(credentials) = credentials else { return Sender::default() };
        let (pid, uid) = (credentials.pid.as_raw_nonzero().get(), credentials.uid.as_raw());
        let pause = SENDER_KEPT * clock::scale().rate;
        self.0.retain(|_, (at, _)| now.since(*at) < pause);
        if let Some((_, known)) = self.0.get(&pid).filter(|(_, known)| known.uid == Some(uid)) {
            return known.clone();
        }
        let origin = reader::read(pid.unsigned_abs());
        let sender = Sender { uid: Some(uid), origin };
        if self.0.len() < SENDERS_MAX {
            self.0.insert(pid, (now, sender.clone()));
        }
        sender
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
        let received = events.recv().await;
        let Some(Event::Progressed { line, sender, .. }) = received else { panic!("no line") };
        assert_eq!((line.job.as_str(), line.step), ("a", 7));
        // The kernel states its sender.
        assert_eq!(sender.uid, Some(rustix::process::getuid().as_raw()));
        let own = reader::read(std::process::id());
        assert!(!own.sessions.is_empty());
        assert_eq!(sender.origin, own);
        // A second service on the same socket is refused.
        let error = open(&path, 0o666).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("progress_socket"), "{error}");
        task.abort();
    }
}

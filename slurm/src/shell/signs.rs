//! The signs between this service and Slurm's scripts: the heartbeat file and the bell.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::net::UnixDatagram;
use wattle_runtime::files::{self, Access};

/// Writes the time, in seconds, into the heartbeat file. A reader never sees a part of it.
pub(super) fn beat(path: &Path, now_s: u64) -> io::Result<()> {
    // slurmctld's user reads it.
    files::replace(path, format!("{now_s}\n").as_bytes(), Access::AllUsers)
}

/// A socket at which Slurm's scripts request a poll of Slurm before the next regular one.
pub(super) struct Bell(Option<UnixDatagram>);

impl Bell {
    /// Opens the socket. Without one, the regular polls suffice.
    pub(super) fn open(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self(None) };
        let open = || {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let socket = UnixDatagram::bind(path)?;
            // A signal of any process causes one poll, and polls have a shortest interval.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
            Ok(socket)
        };
        match open() {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no bell: Slurm is read at intervals only");
                Self(None)
            }
        }
    }

    /// Returns after a signal. Cancel-safe.
    pub(super) async fn rings(&self) {
        let Some(socket) = &self.0 else { return std::future::pending().await };
        let mut text = [0; 64];
        if socket.recv(&mut text).await.is_err() {
            std::future::pending::<()>().await;
        }
        // Signals that arrived meanwhile, too.
        while socket.try_recv(&mut text).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn several_rings_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bell");
        let bell = Bell::open(Some(&path));
        let script = UnixDatagram::unbound().unwrap();
        for _ in 0..3 {
            script.send_to(b"x", &path).await.unwrap();
        }
        bell.rings().await;
        let again = std::pin::pin!(bell.rings());
        assert!(futures_are_pending(again).await);
        // A socket that an earlier process left is replaced.
        drop(Bell::open(Some(&path)));
    }

    async fn futures_are_pending(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        tokio::select! {
            biased;
            () = future => false,
            () = std::future::ready(()) => true,
        }
    }

    #[test]
    fn heartbeat_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heartbeat");
        beat(&path, 17).unwrap();
        beat(&path, 18).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "18\n");
    }
}

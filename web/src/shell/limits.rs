//! How many connections and sessions the process has files for.

use rustix::process::{Resource, getrlimit, setrlimit};

use super::sessions::SESSIONS_MAX;

/// Files that the service needs besides connections and sessions.
const OTHER_FILES: u64 = 64;
/// Connections besides those of viewers: to load pages, and for requests.
const CONNECTIONS_MORE: usize = 1_024;
/// Open files that suffice; more are not requested.
const FILES_MAX: u64 = 8_192;

/// The limits of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most connections of browsers.
    pub(super) connections: usize,
    /// Most sessions, each with a connection to the NATS server.
    pub(super) sessions: usize,
}

impl Limits {
    /// The limits of this process, which raises its limit of open files as far as it may.
    pub(super) fn of_process(viewers_max: usize) -> Self {
        let mut limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
        let files = limit.current.unwrap_or(FILES_MAX);
        if files >= most {
            return Self::of(files, viewers_max);
        }
        limit.current = Some(most);
        let files = if setrlimit(Resource::Nofile, limit).is_ok() { most } else { files };
        Self::of(files, viewers_max)
    }

    /// The limits with this number of files: two thirds for connections, a third for sessions.
    fn of(files: u64, viewers_max: usize) -> Self {
        let files = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
        let connections = (CONNECTIONS_MORE + viewers_max).min(files / 3 * 2).max(1);
        Self { connections, sessions: SESSIONS_MAX.min(files / 3).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_sessions_fit_the_open_files() {
        let limits = |files| {
            let Limits { connections, sessions } = Limits::of(files, 256);
            (connections, sessions)
        };
        assert_eq!(limits(8_192), (1_280, 512));
        assert_eq!(limits(1_024), (640, 320));
        for files in [0, 10, 64, 100, 1_024, u64::MAX] {
            let (connections, sessions) = limits(files);
            assert!((connections + sessions) as u64 + OTHER_FILES <= files.max(OTHER_FILES + 2));
        }
    }
}

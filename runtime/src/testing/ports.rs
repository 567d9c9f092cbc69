//! Ports of test servers that keep their number while the server is down.
//!
//! The system gives its own ephemeral ports to any connection, so a server that restarts on one may find it in
//! use. These are outside that range, and each is locked by the process that has it.

use std::fs::{File, TryLockError};
use std::net::TcpListener;

/// Below the ephemeral ports of Linux, and apart from the ports that tests and services have by default.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// A port that no other test of this user gets.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) number: u16,
    /// The lock ends with the file.
    _lock: File,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Panics
    /// Without a free port, or where the folder of the locks cannot be written.
    pub(super) fn reserve() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let folder = std::env::temp_dir().join(format!("wattle-ports-{user}"));
        std::fs::create_dir_all(&folder).expect("the system's temporary folder takes a folder");
        // Processes begin at different ports.
        let count = u32::from(RANGE.end - RANGE.start);
        let first = std::process::id() % count;
        let numbers = (0..count).map(|step| RANGE.start + ((first + step) % count) as u16);
        for number in numbers {
            let path = folder.join(number.to_string());
            let open = File::options().create(true).truncate(false).write(true).open(path);
            let lock = open.expect("the folder of the locks takes a file");
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => panic!("{}: {error}", folder.display()),
            }
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free port in {RANGE:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_until_they_are_returned() {
        let ports: Vec<Port> = (0..20).map(|_| Port::reserve()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        let busy = TcpListener::bind(("127.0.0.1", ports[0].number)).unwrap();
        let taken = ports[0].number;
        drop(ports);
        let next: Vec<Port> = (0..20).map(|_| Port::reserve()).collect();
        assert!(next.iter().all(|port| port.number != taken), "another program listens there");
        drop(busy);
    }
}

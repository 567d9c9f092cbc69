//! Where the NATS server's program is on this machine.

use std::path::PathBuf;

/// The environment variable that names the program, before `PATH` is searched.
pub const SERVER_ENV: &str = "NATS_SERVER";

/// Where nats-server is: what the environment names, or on `PATH`, or where Debian installs it.
#[must_use]
pub fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(SERVER_ENV).filter(|path| !path.is_empty()) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/bin"].map(PathBuf::from))
        .map(|folder| folder.join("nats-server"))
        .find(|file| file.is_file())
}

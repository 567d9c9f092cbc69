//! Finds the nats-server program.

use std::path::PathBuf;

/// The environment variable with the path of the program; it has precedence over `PATH`.
pub const SERVER_ENV: &str = "NATS_SERVER";

/// The path of nats-server: from the environment, on `PATH`, or where Debian installs it.
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

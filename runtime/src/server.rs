//! Finds the nats-server program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The environment variable with the path of the program; it has precedence over `PATH`.
pub const SERVER_ENV: &str = "NATS_SERVER";

/// Why nats-server cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The variable names something else than a program.
    #[error(
        "{SERVER_ENV}={} is not an executable file: set it to the path of the nats-server program, \
         or unset it to search PATH",
        .0.display()
    )]
    NotAProgram(PathBuf),
    /// The program is in none of the searched folders.
    #[error(
        "nats-server is not on PATH: install it (deploy/ensure-nats-server of the sources, or apt-get \
         install nats-server), or set {SERVER_ENV} to its path"
    )]
    NotFound,
}

/// The path of nats-server: from the environment, on `PATH`, or where deploy/ensure-nats-server or Debian installs
/// it.
///
/// # Errors
/// [`ServerError`] with the remedy.
pub fn find() -> Result<PathBuf, ServerError> {
    if let Some(named) = std::env::var_os(SERVER_ENV).filter(|path| !path.is_empty()) {
        return check(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin")))
        .chain(["/usr/local/bin", "/usr/sbin"].map(PathBuf::from))
        .map(|folder| folder.join("nats-server"))
        .find(|file| is_program(file))
        .ok_or(ServerError::NotFound)
}

fn check(named: PathBuf) -> Result<PathBuf, ServerError> {
    if is_program(&named) { Ok(named) } else { Err(ServerError::NotAProgram(named)) }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_executable_file_is_a_server() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(check(program.clone()), Ok(program));
        for wrong in ["/no/such/nats-server", "/", "nats://127.0.0.1:4222", "/etc/passwd"] {
            let error = check(wrong.into()).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("unset it"), "{error}");
        }
    }
}

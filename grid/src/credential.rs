//! The secret of a provider: read from a file that only its owner may read, and never shown.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Largest file of a secret, bytes.
const BYTES_MAX: u64 = 4_096;

/// A token, or name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(String);

/// Without the secret, so that no log can have it.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Why a file is no secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// It cannot be read.
    #[error("credential_file {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Others may read it.
    #[error("credential_file {path} has mode {mode:o}, others may read it: run `chmod 600 {path}`")]
    Mode {
        /// The file.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// It has no secret, several lines, or unprintable characters.
    #[error("credential_file {path} must have one line with the {expected}")]
    Content {
        /// The file.
        path: String,
        /// The secret that the file must contain.
        expected: &'static str,
    },
}

impl Credential {
    /// Reads a secret. It is read before each use, so a new one applies without a restart.
    ///
    /// # Errors
    /// [`CredentialError`] names the file and the remedy.
    pub fn read(path: &Path, expected: &'static str) -> Result<Self, CredentialError> {
        let shown = path.display().to_string();
        let unreadable = |source| CredentialError::Unreadable { path: shown.clone(), source };
        let metadata = std::fs::metadata(path).map_err(unreadable)?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CredentialError::Mode { path: shown, mode });
        }
        let wrong = || CredentialError::Content { path: shown.clone(), expected };
        if metadata.len() > BYTES_MAX {
            return Err(wrong());
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(wrong());
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret itself, for a header.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_private_file_of_one_line_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Credential::read(&path, "token")
        };
        let secret = write("s3cret\n", 0o600).unwrap();
        assert_eq!((secret.secret(), format!("{secret:?}").as_str()), ("s3cret", "Credential(..)"));
        let error = write("s3cret", 0o640).unwrap_err().to_string();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
        for wrong in ["", "\n", "a\nb", "a\u{7f}"] {
            let error = write(wrong, 0o600).unwrap_err();
            assert!(matches!(error, CredentialError::Content { .. }), "{wrong:?} {error}");
        }
        let absent = Credential::read(Path::new("/no/such/token"), "token").unwrap_err();
        assert!(absent.to_string().contains("/no/such/token"), "{absent}");
    }
}

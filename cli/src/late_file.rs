//! A file that is written once everything is done, whole or not at all.
//!
//! It is tried before: nobody should wait for hours to learn that it cannot be written. What stood
//! in it stays until the new text is on the disk beside it; then that takes its name. What is no
//! plain file, as a device or a pipe, is written as it is.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::output::{note, usage};

/// A file that can be written, as far as that can be told beforehand.
pub(crate) struct LateFile {
    /// As it was named.
    shown: String,
    to: To,
}

enum To {
    /// A plain file, and the one beside it that takes its place.
    Beside { path: PathBuf, new: PathBuf },
    /// What cannot be replaced.
    Straight(File),
}

impl LateFile {
    /// Tries whether the file can be written; changes nothing in it.
    ///
    /// # Errors
    /// Where it cannot be, with its name and what the system says.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let to = To::of(path).map_err(|error| usage(format!("cannot write {shown}: {error}")))?;
        Ok(Self { shown, to })
    }

    /// Writes it, and says so.
    ///
    /// # Errors
    /// Where that fails; the file is then as it was.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.shown);
        match self.to {
            To::Straight(mut file) => file.write_all(text.as_bytes()).with_context(cannot)?,
            To::Beside { path, new } => {
                let written = replace(&path, &new, text);
                if written.is_err() {
                    // Half a page is of no use to anybody.
                    let _ = fs::remove_file(&new);
                }
                written.with_context(cannot)?;
            }
        }
        note(&format!("wrote {}", self.shown));
        Ok(())
    }
}

impl To {
    fn of(path: &Path) -> io::Result<Self> {
        let there = match fs::metadata(path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut path = path.to_owned();
        if let Some(there) = there {
            let file = File::options().write(true).open(&path)?;
            if !there.is_file() {
                return Ok(Self::Straight(file));
            }
            // A link stays one: what it leads to is replaced.
            path = fs::canonicalize(&path)?;
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut new = std::ffi::OsString::from(".");
        new.push(name);
        new.push(format!(".{}.new", std::process::id()));
        let new = path.with_file_name(new);
        File::create(&new)?;
        fs::remove_file(&new)?;
        Ok(Self::Beside { path, new })
    }
}

/// Puts the text on the disk as `new`, and that in the place of `path`, with its permissions.
fn replace(path: &Path, new: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(new)?;
    if let Ok(there) = fs::metadata(path) {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_there_stays_until_all_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (page, link) = (folder.path().join("page.html"), folder.path().join("link.html"));
        fs::write(&page, "before").unwrap();
        std::os::unix::fs::symlink(&page, &link).unwrap();
        let late = LateFile::open(&link).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "before");
        late.write("after").unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // Its folder goes away while the run lasts.
        let gone = folder.path().join("gone");
        fs::create_dir(&gone).unwrap();
        let late = LateFile::open(&gone.join("page.html")).unwrap();
        assert!(fs::read_dir(&gone).unwrap().next().is_none(), "nothing is made beforehand");
        fs::remove_dir(&gone).unwrap();
        let error = format!("{:#}", late.write("after").unwrap_err());
        assert!(error.contains("cannot write") && error.contains("gone/page.html"), "{error}");
        assert!(LateFile::open(&gone.join("page.html")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside it");
    }
}

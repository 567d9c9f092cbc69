//! A result file that is replaced atomically at the end of a run.
//!
//! Write access is checked before the run, so that a run of hours does not end with a permission
//! error. A device or a pipe is written directly.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wattle_runtime::files::{self, Access};

use crate::output::{note, usage};

/// A file whose write access has been checked.
pub struct AtomicFile {
    /// The path as given.
    name: String,
    target: Target,
}

enum Target {
    /// A regular file.
    Replace(PathBuf),
    /// A device or a pipe.
    Direct(File),
}

impl AtomicFile {
    /// Checks that the file can be written, without changing it.
    ///
    /// # Errors
    /// If it cannot be written; the error has the name and the cause.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let target =
            Target::of(path).map_err(|error| usage(format!("cannot write {name}: {error}")))?;
        Ok(Self { name, target })
    }

    /// Whether its name is that of an SVG picture.
    #[must_use]
    pub fn is_svg(&self) -> bool {
        Path::new(&self.name).extension().is_some_and(|kind| kind.eq_ignore_ascii_case("svg"))
    }

    /// Writes the text and prints a note.
    ///
    /// # Errors
    /// If writing fails; the file is then unchanged.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.name);
        match self.target {
            Target::Direct(mut file) => file.write_all(text.as_bytes()).with_context(cannot)?,
            Target::Replace(path) => {
                files::replace(&path, text.as_bytes(), Access::Unchanged).with_context(cannot)?;
            }
        }
        note(&format!("wrote {}", self.name));
        Ok(())
    }
}

impl Target {
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
                return Ok(Self::Direct(file));
            }
            // A symbolic link is kept; its target is replaced.
            path = fs::canonicalize(&path)?;
        }
        let hidden = files::hidden(&path)?;
        File::create(&hidden)?;
        fs::remove_file(&hidden)?;
        Ok(Self::Replace(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_content_is_kept_until_the_new_text_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (page, link) = (folder.path().join("page.html"), folder.path().join("link.html"));
        fs::write(&page, "before").unwrap();
        std::os::unix::fs::symlink(&page, &link).unwrap();
        let file = AtomicFile::open(&link).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "before");
        file.write("after").unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // The folder disappears during the run.
        let gone = folder.path().join("gone");
        fs::create_dir(&gone).unwrap();
        let file = AtomicFile::open(&gone.join("page.html")).unwrap();
        assert!(fs::read_dir(&gone).unwrap().next().is_none(), "the check leaves no file");
        fs::remove_dir(&gone).unwrap();
        let error = format!("{:#}", file.write("after").unwrap_err());
        assert!(error.contains("cannot write") && error.contains("gone/page.html"), "{error}");
        assert!(AtomicFile::open(&gone.join("page.html")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    }
}

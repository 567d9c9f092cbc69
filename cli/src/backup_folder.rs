//! The folder of a backup: one snapshot for each stream, and a list with their sizes and checksums.
//!
//! The list is written last. A folder without it is no complete backup.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::{CrcReader, CrcWriter};
use serde::{Deserialize, Serialize};
use wattle_common::{ClusterId, Timestamp};
use wattle_runtime::bus::StreamDescription;
use wattle_runtime::files::{self, Access};

use crate::output::usage;
use crate::private_folder::check_owner;

/// The name of the list.
const LIST: &str = "backup.json";
/// The version of the list.
const FORMAT: u32 = 1;

/// The list of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BackupList {
    /// The version of this list.
    pub(crate) format: u32,
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// Version of the NATS server that took the snapshots.
    pub(crate) server_version: String,
    /// Version of `wattle`.
    pub(crate) wattle_version: String,
    /// When the backup began.
    pub(crate) began_at_us: Timestamp,
    /// The streams, in the order in which they were copied.
    pub(crate) streams: Vec<BackedUpStream>,
}

/// One stream of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BackedUpStream {
    /// Its name on the server.
    pub(crate) name: String,
    /// Size of its snapshot.
    pub(crate) bytes: u64,
    /// Checksum of its snapshot (CRC-32), which detects damage, not forgery.
    pub(crate) crc32: u32,
    /// What the server stated about it.
    pub(crate) description: StreamDescription,
}

impl BackupList {
    /// The list of a backup that begins.
    pub(crate) fn new(cluster: ClusterId, server_version: String, now: Timestamp) -> Self {
        Self {
            format: FORMAT,
            cluster,
            server_version,
            wattle_version: env!("CARGO_PKG_VERSION").to_owned(),
            began_at_us: now,
            streams: Vec::new(),
        }
    }

    /// Size of all snapshots.
    pub(crate) fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }
}

/// The folder of a backup.
pub(crate) struct BackupFolder(PathBuf);

/// A snapshot that is being written.
pub(crate) struct SnapshotFile(CrcWriter<BufWriter<File>>);

impl io::Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl SnapshotFile {
    /// Syncs it; returns its size and checksum.
    pub(crate) fn complete(mut self) -> io::Result<(u64, u32)> {
        self.0.flush()?;
        let file = self.0.get_ref().get_ref();
        file.sync_all()?;
        Ok((file.metadata()?.len(), self.0.crc().sum()))
    }
}

impl BackupFolder {
    /// Creates the folder, readable by this user only: job records contain environment variables.
    ///
    /// # Errors
    /// If it has files already, another user can change it, or it cannot be created.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        match fs::read_dir(path) {
            Ok(mut files) => {
                if files.next().is_some() {
                    return Err(usage(format!("{shown} is not empty: name a new folder")));
                }
                check_owner(path, "folder")?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let created = fs::DirBuilder::new().mode(0o700).recursive(true).create(path);
                created.with_context(|| format!("cannot create {shown}"))?;
            }
            Err(error) => return Err(error).context(format!("cannot read {shown}")),
        }
        Ok(Self(path.to_owned()))
    }

    /// Creates the file of a stream's snapshot.
    pub(crate) fn snapshot(&self, stream: &str) -> anyhow::Result<SnapshotFile> {
        Ok(SnapshotFile(CrcWriter::new(BufWriter::new(self.new_file(&file_name(stream))?))))
    }

    /// Writes the list: the backup is complete.
    pub(crate) fn complete(&self, list: &BackupList) -> anyhow::Result<()> {
        let path = self.0.join(LIST);
        files::replace(&path, &serde_json::to_vec_pretty(list)?, Access::Owner)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn new_file(&self, name: &str) -> anyhow::Result<File> {
        let path = self.0.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.with_context(|| format!("cannot create {}", path.display()))
    }

    /// Opens a complete backup and checks its files.
    ///
    /// # Errors
    /// If it is incomplete or damaged, or another user can change it.
    pub(crate) fn open(path: &Path) -> anyhow::Result<(Self, BackupList)> {
        let shown = path.display();
        let list = match fs::read(path.join(LIST)) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(usage(format!("{shown} is no complete backup: it has no {LIST}")));
            }
            Err(error) => return Err(error).context(format!("cannot read {shown}/{LIST}")),
        };
        check_owner(path, "folder")?;
        let damaged = || format!("{shown}/{LIST} is damaged: use another backup");
        let list: BackupList = serde_json::from_slice(&list).with_context(damaged)?;
        if list.format != FORMAT {
            let format = list.format;
            return Err(usage(format!(
                "{shown} has format {format} and this program reads format {FORMAT}: restore it with \
                 the version that wrote it"
            )));
        }
        let folder = Self(path.to_owned());
        for stream in &list.streams {
            let mut reader = CrcReader::new(folder.read(&stream.name)?);
            let bytes = io::copy(&mut reader, &mut io::sink())?;
            if bytes != stream.bytes || reader.crc().sum() != stream.crc32 {
                let name = file_name(&stream.name);
                return Err(anyhow::anyhow!("{shown}/{name} is damaged: use another backup"));
            }
        }
        Ok((folder, list))
    }

    /// The snapshot of a stream.
    pub(crate) fn read(&self, stream: &str) -> anyhow::Result<File> {
        let path = self.0.join(file_name(stream));
        File::open(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

fn file_name(stream: &str) -> String {
    format!("{stream}.snapshot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn written(folder: &Path) -> BackupList {
        let cluster = ClusterId::new("main").unwrap();
        let mut list = BackupList::new(cluster, "2.9.10".to_owned(), Timestamp::from_s(5));
        let backup = BackupFolder::create(folder).unwrap();
        let mut file = backup.snapshot("KV_a").unwrap();
        file.write_all(b"data").unwrap();
        let (bytes, crc32) = file.complete().unwrap();
        let nothing = serde_json::Value::Null;
        let description = StreamDescription { config: nothing.clone(), state: nothing };
        list.streams.push(BackedUpStream { name: "KV_a".to_owned(), bytes, crc32, description });
        backup.complete(&list).unwrap();
        list
    }

    #[test]
    fn backup_is_read_as_written_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b");
        let list = written(&path);
        assert_eq!(BackupFolder::open(&path).unwrap().1, list);
        for file in ["", "backup.json", "KV_a.snapshot"] {
            let mode = fs::metadata(path.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{file}");
        }
        let error = BackupFolder::create(&path).err().unwrap().to_string();
        assert!(error.contains("is not empty"), "{error}");
    }

    /// It has what others may not read, and its orders start programs once it is restored.
    #[test]
    fn a_folder_that_another_user_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        chmod(&empty, 0o777);
        let error = BackupFolder::create(&empty).err().unwrap().to_string();
        assert!(error.contains("every user may write"), "{error}");
        let path = folder.path().join("b");
        written(&path);
        chmod(&path, 0o777);
        let error = BackupFolder::open(&path).err().unwrap().to_string();
        assert!(error.contains("every user may write"), "{error}");
    }

    #[test]
    fn damaged_and_incomplete_backups_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b");
        written(&path);
        for damage in [&b"datb"[..], b"dat", b"datadata"] {
            fs::write(path.join("KV_a.snapshot"), damage).unwrap();
            let error = BackupFolder::open(&path).err().unwrap().to_string();
            assert!(error.contains("KV_a.snapshot is damaged"), "{error}");
        }
        fs::remove_file(path.join(LIST)).unwrap();
        let error = BackupFolder::open(&path).err().unwrap().to_string();
        assert!(error.contains("no complete backup"), "{error}");
    }
}

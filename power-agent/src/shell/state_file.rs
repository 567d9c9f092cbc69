//! The file with the caps that outlive the service.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use wattle_runtime::clock;
use wattle_runtime::files::{self, Access};

use crate::persisted::{Boot, PersistedCaps};

const FILE: &str = "caps.json";

/// The state folder, if one is configured.
#[derive(Clone, Debug)]
pub(super) struct StateFile(Option<PathBuf>);

impl StateFile {
    pub(super) fn new(state_dir: Option<&Path>) -> Self {
        Self(state_dir.map(|folder| folder.join(FILE)))
    }

    /// The stored caps by this process's clock; none if there are none or the file is damaged, which is logged.
    pub(super) fn read(&self) -> PersistedCaps {
        let boot = clock::boot().map(|(id, at_us)| Boot { id, at_us });
        self.stored().on_clock(boot)
    }

    fn stored(&self) -> PersistedCaps {
        let Some(path) = &self.0 else { return PersistedCaps::default() };
        let read = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Default::default()),
            Err(error) => Err(error.to_string()),
        };
        read.unwrap_or_else(|error| {
            let path = path.display();
            tracing::error!(%path, error, "stored caps cannot be read: caps found now are restored");
            PersistedCaps::default()
        })
    }

    /// Replaces the stored caps; a failure is logged.
    pub(super) fn write(&self, caps: &PersistedCaps) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = replace(path, caps) {
            let path = path.display();
            tracing::error!(%path, %error, "caps not stored: a restart does not know them");
        }
    }
}

fn replace(path: &Path, caps: &PersistedCaps) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    files::replace(path, &serde_json::to_vec(caps)?, Access::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persisted::Return;
    use wattle_common::messages::CapBound;
    use wattle_common::{Power, Timestamp};

    #[test]
    fn stored_caps_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(Some(&folder.path().join("agent")));
        assert_eq!(file.stored(), PersistedCaps::default());
        let caps = PersistedCaps {
            found: [("GPU-7".to_owned(), Power::from_w(180))].into(),
            restored: false,
            limited: Some([(0, Power::from_w(120))].into()),
            ahead: vec![CapBound {
                from_us: Timestamp::from_s(9),
                cap_mw: Some(Power::from_w(110)),
                ..CapBound::default()
            }],
            returns: Some(Return { at_us: Timestamp::from_s(19), limited: None }),
            reached_us: Some(Timestamp::from_s(9)),
            boot: clock::boot().map(|(id, at_us)| Boot { id, at_us }),
        };
        file.write(&caps);
        assert_eq!(file.stored(), caps);
        assert_eq!(
            PersistedCaps { boot: None, ..file.read() },
            PersistedCaps { boot: None, ..caps }
        );
        std::fs::write(folder.path().join("agent/caps.json"), "{").unwrap();
        assert_eq!(file.stored(), PersistedCaps::default());
    }
}

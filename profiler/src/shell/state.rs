//! The file with the state that outlives the service ([`crate::ledger`]).
//!
//! It is replaced atomically. It is not synced: a power failure resets the GPUs' counters too, and
//! an unreadable file is ignored.

use std::path::{Path, PathBuf};

use wattle_common::{NodeId, Timestamp};

use super::ServiceConfig;
use crate::ledger::State;

pub(super) struct StateFile {
    path: PathBuf,
    node: NodeId,
}

impl StateFile {
    pub(super) fn open(config: &ServiceConfig) -> Self {
        if let Err(error) = std::fs::create_dir_all(&config.state_dir) {
            tracing::error!(folder = %config.state_dir.display(), %error, "state_dir cannot be created");
        }
        let name = format!("energy.{}.{}.json", config.cluster, config.node);
        Self { path: config.state_dir.join(name), node: config.node.clone() }
    }

    pub(super) fn load(&self, now: Timestamp) -> Option<State> {
        let state = self.read()?;
        match state.check(&self.node, now) {
            Ok(()) => Some(state),
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "state ignored: energy since then is not in the ledger");
                None
            }
        }
    }

    fn read(&self) -> Option<State> {
        let path = self.path.display();
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .inspect_err(|error| tracing::warn!(%path, %error, "state unreadable; ignored"))
                .ok(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%path, %error, "state unreadable; ignored");
                None
            }
        }
    }

    pub(super) fn save(&self, state: &State) {
        if let Err(error) = self.replace(state) {
            let path = self.path.display();
            tracing::error!(%path, %error, "state not written: energy used while no profiler runs would be lost");
        }
    }

    fn replace(&self, state: &State) -> std::io::Result<()> {
        let unfinished: &Path = &self.path.with_extension("new");
        std::fs::write(unfinished, serde_json::to_vec(state)?)?;
        std::fs::rename(unfinished, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn saved_state_is_loaded_and_invalid_state_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("energy.main.n0.json");
        let file = StateFile { path, node: NodeId::new("n0").unwrap() };
        let now = Timestamp::from_s(9);
        assert_eq!(file.load(now), None);
        let state = State { until_us: Timestamp::from_s(7), ..State::default() };
        file.save(&state);
        assert_eq!(file.load(now), Some(state.clone()));
        // Neither a state from the future nor one of which an entry would be too long.
        let years_later = Timestamp::from_s(100_000_000);
        assert_eq!(file.load(years_later), None);
        file.save(&State { until_us: Timestamp::FOREVER, ..state });
        assert_eq!(file.load(now), None);
        std::fs::write(&file.path, b"{\"until").unwrap();
        assert_eq!(file.load(now), None);
    }
}

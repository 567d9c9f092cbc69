//! The file with the state that outlives the service ([`crate::resume`]).
//!
//! An unreadable file is ignored.

use std::path::PathBuf;
use std::time::Duration;

use wattle_common::{NodeId, Timestamp};
use wattle_runtime::clock;
use wattle_runtime::files::{self, Access};

use super::ServiceConfig;
use crate::resume::{Boot, State};

pub(super) struct StateFile {
    path: PathBuf,
    node: NodeId,
    /// The node's boot, and the least step of its clock.
    pub(super) boot: Option<Boot>,
    step_min: Duration,
}

impl StateFile {
    pub(super) fn open(config: &ServiceConfig, step_min: Duration) -> Self {
        if let Err(error) = std::fs::create_dir_all(&config.state_dir) {
            tracing::error!(folder = %config.state_dir.display(), %error, "state_dir cannot be created");
        }
        let name = format!("energy.{}.{}.json", config.cluster, config.node);
        let (path, node) = (config.state_dir.join(name), config.node.clone());
        let boot = clock::boot().map(|(id, at_us)| Boot { id, at_us });
        Self { path, node, boot, step_min }
    }

    pub(super) fn load(&self, now: Timestamp) -> Option<State> {
        let state = self.read()?;
        match state.check(&self.node, now, self.boot.as_ref(), self.step_min) {
            Ok(()) => Some(state),
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "state ignored: energy since then is not in the ledger");
                None
            }
        }
    }

    fn read(&self) -> Option<State> {
        let read = match std::fs::read(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            read => read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
        };
        let path = self.path.display();
        let unreadable = |error: &std::io::Error| {
            tracing::error!(%path, %error, "state unreadable: energy since it was written is not in the ledger");
        };
        read.inspect_err(unreadable).ok()
    }

    pub(super) fn save(&self, state: &State) {
        if let Err(error) = self.replace(state) {
            let path = self.path.display();
            tracing::error!(%path, %error, "state not written: energy used while no profiler runs would be lost");
        }
    }

    fn replace(&self, state: &State) -> std::io::Result<()> {
        files::replace(&self.path, &serde_json::to_vec(state)?, Access::Owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn saved_state_is_loaded_and_invalid_state_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("energy.main.n0.json");
        let (node, step_min) = (NodeId::new("n0").unwrap(), Duration::from_secs(2));
        let file = StateFile { path, node, boot: None, step_min };
        let now = Timestamp::from_s(9);
        assert_eq!(file.load(now), None);
        let state = State { until_us: Timestamp::from_s(7), ..State::default() };
        file.save(&state);
        assert_eq!(file.load(now), Some(state.clone()));
        // Not one of which an entry would be too long.
        let years_later = Timestamp::from_s(100_000_000);
        assert_eq!(file.load(years_later), None);
        std::fs::write(&file.path, b"{\"until").unwrap();
        assert_eq!(file.load(now), None);
    }
}

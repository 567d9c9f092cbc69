//! Stores the reports of nodes without delaying the rounds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use wattle_common::NodeId;
use wattle_common::messages::LaunchReport;
use wattle_common::subject::Reporter;
use wattle_runtime::bus::KvBucket;
use wattle_runtime::shell::chain;

/// Pause before a failed write is repeated: wall time.
const RETRY: Duration = Duration::from_secs(1);

/// The newest report of each node that is not stored yet. Clones share it.
#[derive(Clone, Default)]
pub struct Reports {
    newest: Arc<Mutex<BTreeMap<NodeId, LaunchReport>>>,
    changed: Arc<Notify>,
}

impl Reports {
    /// Has a report stored; it replaces an earlier one of its node.
    pub fn send(&self, report: LaunchReport) {
        self.lock().insert(report.node.clone(), report);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, LaunchReport>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores reports in the bucket `actual`; never returns.
    pub async fn store(self, actual: KvBucket) {
        loop {
            let Some((node, report)) = self.lock().pop_first() else {
                self.changed.notified().await;
                continue;
            };
            let key = Reporter::Launcher.key(&node);
            if let Err(error) = actual.put(&key, &report).await {
                tracing::warn!(%node, error = chain(&error), "report not stored; retrying");
                self.lock().entry(node).or_insert(report);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

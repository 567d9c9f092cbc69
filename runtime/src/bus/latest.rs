//! Publishes the newest value of a report that is replaced at every change.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use super::KvBucket;
use crate::shell::chain;

/// Pause between two attempts, in wall time.
const RETRY: Duration = Duration::from_secs(1);

impl KvBucket {
    /// Writes every new value of `reports` under `key`, the newest first: a value that is replaced
    /// while the server is away is skipped. Returns when the sender is gone and its last value is
    /// stored.
    pub async fn put_latest<T: Serialize + Clone>(
        &self,
        key: &str,
        mut reports: watch::Receiver<Option<T>>,
    ) {
        reports.mark_changed();
        let mut failing = false;
        while reports.changed().await.is_ok() {
            loop {
                let Some(report) = reports.borrow_and_update().clone() else { break };
                match self.put(key, &report).await {
                    Ok(_) => {
                        if std::mem::take(&mut failing) {
                            tracing::info!(key, "reports are stored again");
                        }
                        break;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(
                                key,
                                error = chain(&error),
                                "report not stored; retrying"
                            );
                        }
                    }
                }
                // A newer report is written at once; without a sender the last one is retried.
                if let Ok(Err(_)) = tokio::time::timeout(RETRY, reports.changed()).await {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

//! Writes that wait for the server, at most one for each key.

use std::collections::BTreeMap;

use super::BusError;
use crate::shell::chain;

/// Failed writes to be repeated: the newest of each key.
///
/// The caller makes every write itself and records its result here; a value is complete, so only the
/// newest write of a key matters. The number of keys is limited.
#[derive(Debug)]
pub struct PendingWrites<K, W> {
    writes: BTreeMap<K, W>,
    capacity: usize,
}

impl<K: Ord + Clone + std::fmt::Debug, W> PendingWrites<K, W> {
    /// No pending writes; at most `capacity` keys.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { writes: BTreeMap::new(), capacity }
    }

    /// Records the result of `write`: removes it on success, keeps it after a transient error. Other
    /// errors are logged.
    pub fn record(&mut self, key: K, write: W, result: Result<(), BusError>) {
        match result {
            Ok(()) => {
                self.writes.remove(&key);
            }
            Err(error) if error.is_transient() => {
                if self.writes.is_empty() {
                    tracing::warn!(%error, "cannot write; retrying");
                }
                self.insert(key, write);
            }
            Err(error) => tracing::error!(?key, error = chain(&error), "not written"),
        }
    }

    /// Adds a write without an attempt; beyond the capacity it is dropped.
    pub fn insert(&mut self, key: K, write: W) {
        if self.writes.len() < self.capacity || self.writes.contains_key(&key) {
            self.writes.insert(key, write);
        }
    }

    /// Removes the first pending write.
    pub fn pop_first(&mut self) -> Option<(K, W)> {
        self.writes.pop_first()
    }

    /// Whether a write of `key` is pending.
    pub fn contains(&self, key: &K) -> bool {
        self.writes.contains_key(key)
    }

    /// Discards the pending write of `key`.
    pub fn discard(&mut self, key: &K) {
        self.writes.remove(key);
    }

    /// Discards all pending writes.
    pub fn clear(&mut self) {
        self.writes.clear();
    }

    /// Takes all pending writes, in key order.
    #[must_use]
    pub fn take(&mut self) -> BTreeMap<K, W> {
        std::mem::take(&mut self.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_write_of_a_key_is_kept_until_it_succeeds() {
        let busy = || Err(BusError::Busy);
        let mut pending = PendingWrites::new(2);
        pending.record("a", 1, busy());
        pending.record("a", 2, busy());
        pending.record("b", 3, busy());
        pending.record("c", 4, busy());
        assert!(!pending.contains(&"c"), "beyond the capacity");
        pending.record("b", 3, Ok(()));
        let refused = BusError::NoResponder { subject: "s".to_owned() };
        pending.record("d", 5, Err(refused));
        assert_eq!(pending.take(), [("a", 2)].into());
        assert_eq!(pending.pop_first(), None);
    }
}

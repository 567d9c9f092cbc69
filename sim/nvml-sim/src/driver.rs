//! Whether the simulated driver is loaded, and how often it was.
//!
//! A process that initialised the library before the driver was unloaded has to initialise it again.

/// State of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverState {
    /// Loads and unloads since the node was created: even while it is loaded.
    changes: u64,
}

impl DriverState {
    /// Number of the present load; `None` while it is not loaded.
    #[must_use]
    pub const fn load(self) -> Option<u64> {
        if self.changes.is_multiple_of(2) { Some(self.changes / 2) } else { None }
    }

    /// Whether this load is the present one.
    #[must_use]
    pub fn is_loaded(self, load: u64) -> bool {
        self.load() == Some(load)
    }

    /// The state after it is unloaded.
    pub(crate) const fn unloaded(self) -> Self {
        Self { changes: self.changes | 1 }
    }

    /// The state after it is loaded.
    pub(crate) const fn loaded(self) -> Self {
        Self { changes: self.changes.wrapping_add(self.changes & 1) }
    }

    pub(crate) const fn to_word(self) -> u64 {
        self.changes
    }

    pub(crate) const fn from_word(changes: u64) -> Self {
        Self { changes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_has_its_own_number() {
        let first = DriverState::default();
        assert!(first.is_loaded(0) && first.loaded() == first);
        let unloaded = first.unloaded();
        assert_eq!((unloaded.load(), unloaded.unloaded()), (None, unloaded));
        let second = unloaded.loaded();
        assert!(second.is_loaded(1) && !second.is_loaded(0));
    }
}

//! The mark of a store that was restored from a backup.
//!
//! * **Publisher:** `wattle restore`, before any placer starts.
//! * **Listeners:** the placer: it compares the records with the nodes' reports before it gives an order,
//!   and then deletes the mark.
//! * **How often:** once for each restoration.
//! * **Delivery:** key-value bucket `budget`, key `restored`.
//! * **Lost or doubled:** without the mark, the placer recognises an older store only by the generation
//!   that a node reports; a comparison that is repeated changes nothing.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The mark of a restored store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRestored {
    /// When the backup began.
    pub backup_at_us: Timestamp,
    /// When it was restored.
    pub restored_at_us: Timestamp,
}

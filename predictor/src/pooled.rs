//! What is pooled over all jobs seen on one kind of card, for each model that pools.
//!
//! A job's own fit is cheap and made with each window; these fits read the whole history and are
//! made apart, at a pace of their own. A model that pools gets a field here, with what it believes
//! before anything was seen and how it is fitted from the history; the formulas are the models'.

use std::sync::Arc;

use crate::history::History;
use crate::model::interference;
use crate::model::transfer::Transfer;
use crate::prior;

/// Everything pooled, for one kind of card.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// What tenants do to each other.
    pub interference: interference::Pooled,
    /// What caps do to a job that was not seen under them; shared with the jobs' own models.
    pub transfer: Arc<Transfer>,
}

impl Pooled {
    /// What is believed before anything was seen.
    #[must_use]
    pub fn believed() -> Self {
        Self {
            interference: interference::Pooled::believed(),
            transfer: Arc::new(Transfer::believed()),
        }
    }

    /// Fits all that `history` holds of `kind`.
    #[must_use]
    pub fn fit(history: &History, kind: &str) -> Self {
        let (slow, power) = history.seen(kind);
        let capped = history.capped(kind);
        // What counts as capped is at least one per cent below the default.
        let most = capped.iter().map(|s| s.cap_w / 0.99).reduce(f64::max);
        let transfer = Transfer::fit(&capped, prior::default_cap(kind, most).watts);
        Self {
            interference: interference::Pooled::fit(&slow, &power),
            transfer: Arc::new(transfer),
        }
    }
}

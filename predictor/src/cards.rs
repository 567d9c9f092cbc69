//! What windows have shown of each kind of card: its highest cap and clock, its lowest power.
//!
//! Together with the data sheets in [`crate::prior`] that is what the models know of a card. Bounded
//! in kinds.

use std::collections::BTreeMap;

use crate::model::cap::Card;
use crate::prior;
use wattle_common::datasheet;
use wattle_common::observation::Observation;

/// Kinds of card remembered; a cluster has a handful.
pub const GPU_TYPES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    cap_w_max: Option<f64>,
    clock_mhz_max: Option<f64>,
    power_w_min: Option<f64>,
    power_w_max: Option<f64>,
}

/// Every kind of card seen.
#[derive(Clone, Debug, Default)]
pub struct Cards {
    kinds: BTreeMap<String, Seen>,
    newest: Option<String>,
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

impl Cards {
    /// Takes in what a window shows of its cards.
    pub fn see(&mut self, kind: &str, window: &Observation) {
        if !self.kinds.contains_key(kind) && self.kinds.len() >= GPU_TYPES_MAX {
            return;
        }
        let seen = self.kinds.entry(kind.to_owned()).or_default();
        seen.cap_w_max = larger(seen.cap_w_max, window.cap_w);
        seen.clock_mhz_max =
            larger(larger(seen.clock_mhz_max, window.clock_mhz_max), window.clock_mhz_mean);
        seen.power_w_min = match (seen.power_w_min, window.gpu_power_w) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        seen.power_w_max = larger(seen.power_w_max, window.gpu_power_w);
        if self.newest.as_deref() != Some(kind) {
            self.newest = Some(kind.to_owned());
        }
    }

    /// Takes down that such cards were there before anything is seen of them.
    pub fn restore(&mut self, kind: &str) {
        if self.newest.is_none() {
            self.newest = Some(kind.to_owned());
        }
    }

    /// The kind seen last.
    #[must_use]
    pub fn newest(&self) -> Option<&str> {
        self.newest.as_deref()
    }

    /// What is known of a kind of card.
    #[must_use]
    pub fn card(&self, kind: &str) -> Card {
        let seen = self.kinds.get(kind).copied().unwrap_or_default();
        // A card of which no cap was ever read shows by its power which form factor it is.
        let most = seen.cap_w_max.or(seen.power_w_max);
        let default = datasheet::default_cap(kind, most);
        Card {
            cap_default_w: default.watts,
            cap_known: default.known,
            idle_w: datasheet::idle_w(default.watts, seen.power_w_min),
            clock_mhz_top: seen.clock_mhz_max,
            power_carried: kind != prior::POWER_MEASURED_ON,
        }
    }
}

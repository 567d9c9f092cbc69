//! The state that outlives a power agent: the caps that it found, and the caps of a power limit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::messages::CapBound;
use wattle_common::{GpuIndex, Power, Timestamp};

use crate::config::Settings;
use crate::gpu_state::GpuFacts;

/// Caps that a restarted agent needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedCaps {
    /// Cap of each GPU, by UUID, before this agent first set one: the site's own cap, which is set
    /// again when the agent stops.
    #[serde(default)]
    pub found: BTreeMap<String, Power>,
    /// Whether the found caps have been set again since; the next agent then reads them again.
    #[serde(default)]
    pub restored: bool,
    /// Last ordered cap of each GPU under a power limit of the site or of its group: its share of the
    /// limit. A GPU that is not named has its default cap as its share. Absent: no limit is in force.
    #[serde(default)]
    pub limited: Option<BTreeMap<GpuIndex, Power>>,
    /// Bounds of every cap under a power limit that changes with time, ascending by time.
    #[serde(default)]
    pub ahead: Vec<CapBound>,
}

impl PersistedCaps {
    /// The cap of a GPU without a lease: the configured one or the GPU's default, and under a power limit
    /// at most its share.
    #[must_use]
    pub fn safe_cap(&self, gpu: GpuIndex, facts: &GpuFacts, settings: &Settings) -> Option<Power> {
        self.at_most_share(gpu, facts, facts.safe_cap(settings.safe_cap))
    }

    /// The cap of a GPU after the agent has stopped: the one that it found, with the same bound.
    #[must_use]
    pub fn final_cap(&self, gpu: GpuIndex, facts: &GpuFacts, settings: &Settings) -> Option<Power> {
        let found = self.found.get(&facts.uuid).copied();
        self.at_most_share(gpu, facts, facts.safe_cap(found.or(settings.safe_cap)))
    }

    fn at_most_share(&self, gpu: GpuIndex, facts: &GpuFacts, cap: Option<Power>) -> Option<Power> {
        let Some(limited) = &self.limited else { return cap };
        let share = limited.get(&gpu).copied().or(facts.cap_default);
        let share = share.and_then(|share| facts.nearest_cap(share));
        cap.map(|cap| share.map_or(cap, |share| cap.min(share)))
    }

    /// The bound of every cap at an instant; absent: the shares alone bound the caps.
    #[must_use]
    pub fn bound_at(&self, now: Timestamp) -> Option<Power> {
        self.ahead.iter().rev().find(|bound| bound.from_us <= now)?.cap_mw
    }

    /// When the next bound begins.
    #[must_use]
    pub fn next_bound(&self, now: Timestamp) -> Option<Timestamp> {
        self.ahead.iter().map(|bound| bound.from_us).find(|from| *from > now)
    }

    /// The shares of an order that has expired before it was received: they only lower the known ones,
    /// because the order may be older than those.
    pub(crate) fn lower_to(&mut self, shares: BTreeMap<GpuIndex, Power>) {
        let known = self.limited.get_or_insert_default();
        for (gpu, share) in shares {
            let known = known.entry(gpu).or_insert(share);
            *known = (*known).min(share);
        }
    }
}

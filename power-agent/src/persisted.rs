//! The state that outlives a power agent: the caps that it found, and the caps of a power limit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::{GpuIndex, Power};

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
    /// Last ordered cap of each GPU under a power limit of the site: its share of the limit.
    #[serde(default)]
    pub limited: BTreeMap<GpuIndex, Power>,
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
        let share = self.limited.get(&gpu).copied();
        let share = share.filter(|share| facts.check_cap(*share).is_ok());
        cap.map(|cap| share.map_or(cap, |share| cap.min(share)))
    }
}

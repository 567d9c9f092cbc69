//! The target of each GPU: what the lease orders, within the bound of every cap, else the safe cap.

use wattle_common::messages::DesiredGpu;
use wattle_common::{GpuIndex, Power};

use super::{Action, Lease};
use crate::config::Settings;
use crate::gpu_state::{GpuFacts, GpuState};
use crate::note::Note;
use crate::persisted::{InForce, PersistedCaps};

/// The cap of a GPU without a lease, and the bound of every cap.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'a> {
    settings: &'a Settings,
    caps: &'a PersistedCaps,
    in_force: &'a InForce,
    stopping: bool,
}

impl<'a> Bounds<'a> {
    pub(super) const fn of(
        settings: &'a Settings,
        caps: &'a PersistedCaps,
        in_force: &'a InForce,
        stopping: bool,
    ) -> Self {
        Self { settings, caps, in_force, stopping }
    }

    fn safe_cap(self, gpu: GpuIndex, facts: &GpuFacts) -> Option<Power> {
        if self.stopping {
            self.caps.final_cap(gpu, facts, self.settings, self.in_force)
        } else {
            self.caps.safe_cap(gpu, facts, self.settings, self.in_force)
        }
    }

    /// The ordered settings with a cap within the bound.
    fn within(
        self,
        gpu: GpuIndex,
        facts: &GpuFacts,
        ordered: Option<&DesiredGpu>,
    ) -> Option<DesiredGpu> {
        let Some(bound) = self.in_force.bound_of(gpu, facts) else { return ordered.copied() };
        let cap = ordered.and_then(|gpu| gpu.cap_mw).or(facts.cap_default);
        Some(DesiredGpu {
            gpu,
            cap_mw: Some(cap.map_or(bound, |cap| cap.min(bound))),
            clock_mhz_max: ordered.and_then(|gpu| gpu.clock_mhz_max),
        })
    }
}

/// Sets the target of a GPU: the ordered settings within the bound, or the safe cap without a lease.
pub(super) fn set_target(
    state: &mut GpuState,
    gpu: GpuIndex,
    lease: Option<&Lease>,
    bounds: Bounds<'_>,
    out: &mut Vec<Action>,
) {
    let before = state.rejected.clone();
    match lease {
        Some(lease) => {
            let ordered = bounds.within(gpu, &state.facts, lease.gpus.get(&gpu));
            state.set_target(ordered.as_ref(), lease.power_limited);
        }
        None => state.set_safe_target(bounds.safe_cap(gpu, &state.facts)),
    }
    if state.rejected != before
        && let Some(error) = state.rejected.clone()
    {
        out.push(Action::Log(Note::NotApplied { gpu, error }));
    }
}

//! The parts of a saving, each switched off in turn.

use wattle_common::job::Sharing;
use wattle_simulator::Scenario;

use super::Parts;
use super::runs::Features;

/// A part of the saving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Settings,
    Packing,
    Sizes,
    Sleep,
}

/// The runs with one part left out. A part that the run does not use has no run.
pub(super) fn leave_one_out(all: Features, scenario: &Scenario) -> Vec<(Part, Features)> {
    let mut parts = vec![(Part::Settings, Features { settings: false, ..all })];
    // The policy shares GPUs between jobs that can stop, so that it can undo a pair.
    let can_stop = scenario.jobs.iter().any(|job| job.can_stop);
    if can_stop && all.share == Sharing::Any {
        parts.push((Part::Packing, Features { share: Sharing::Never, ..all }));
    }
    if can_stop {
        parts.push((Part::Sizes, Features { sizes: false, ..all }));
    }
    if all.sleep {
        parts.push((Part::Sleep, Features { sleep: false, ..all }));
    }
    parts
}

impl Parts {
    /// The value of one part.
    pub(super) fn of(&mut self, part: Part) -> &mut f64 {
        match part {
            Part::Settings => &mut self.settings,
            Part::Packing => &mut self.packing,
            Part::Sizes => &mut self.sizes,
            Part::Sleep => &mut self.sleep,
        }
    }
}

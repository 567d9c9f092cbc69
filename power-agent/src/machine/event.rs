//! Inputs and outputs of the power agent.

use wattle_common::messages::{NodeDesired, PowerReport, SleepResult};
use wattle_common::{Frequency, GpuIndex, Power, Timestamp};

use crate::gpu_state::{GpuStatus, SetError};
use crate::note::Note;
use crate::persisted::PersistedCaps;

/// An input of the power agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The placer wrote a desired state.
    DesiredChanged(NodeDesired),
    /// Every GPU was read; one that does not answer has the driver's error.
    GpusRead(Vec<(GpuIndex, Result<GpuStatus, String>)>),
    /// No GPU could be read: there is no driver.
    GpusUnreadable(String),
    /// The driver finished a [`Action::SetCap`].
    CapSet {
        /// The GPU.
        gpu: GpuIndex,
        /// The requested cap.
        cap: Power,
        /// Whether it is set.
        result: Result<(), SetError>,
    },
    /// The driver finished a [`Action::SetClock`].
    ClockSet {
        /// The GPU.
        gpu: GpuIndex,
        /// The requested lock.
        clock: Option<Frequency>,
        /// Whether it is set.
        result: Result<(), SetError>,
    },
    /// The sleep command ended, perhaps after the node has slept.
    SleepEnded(SleepResult),
    /// The service is shutting down.
    StopRequested,
}

/// An output of the power agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read every GPU; the result is [`Event::GpusRead`].
    ReadGpus,
    /// Set a GPU's cap; the result is [`Event::CapSet`].
    SetCap {
        /// The GPU.
        gpu: GpuIndex,
        /// The cap.
        cap: Power,
    },
    /// Lock or unlock a GPU's clock; the result is [`Event::ClockSet`].
    SetClock {
        /// The GPU.
        gpu: GpuIndex,
        /// The highest clock; `None` unlocks it.
        clock: Option<Frequency>,
    },
    /// Run the operator's sleep command for the request of this instant; the result is
    /// [`Event::SleepEnded`].
    Sleep(Timestamp),
    /// Publish the actual state.
    Report(PowerReport),
    /// Store the caps that a restarted agent needs.
    StoreCaps(PersistedCaps),
    /// Write this to the log.
    Log(Note),
}

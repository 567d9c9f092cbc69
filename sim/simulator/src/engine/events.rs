//! The queue of scheduled events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event. At one instant, events are processed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The job has done its work.
    Completed,
    /// The job has run an epoch since its early observation began.
    EpochCompleted,
    /// The restart of an observed job is over.
    Resumed,
    /// A window of the job closes.
    WindowClosed,
    /// A node has woken up.
    NodeAwake,
}

impl Event {
    /// Whether the event belongs to one configuration of a job, and is void under a later one.
    pub(super) fn is_of_configuration(self) -> bool {
        !matches!(self, Self::NodeAwake)
    }
}

/// An event with its time. The order of the fields is the order of processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scheduled {
    at_us: u64,
    pub(super) event: Event,
    /// The job, or the node.
    pub(super) index: u32,
    /// The job's configuration.
    pub(super) version: u32,
}

/// Scheduled events, earliest first.
#[derive(Default)]
pub(super) struct EventQueue(BinaryHeap<Reverse<Scheduled>>);

impl EventQueue {
    /// Schedules an event of a job's configuration.
    pub(super) fn schedule(&mut self, at_us: u64, event: Event, job: u32, version: u32) {
        self.0.push(Reverse(Scheduled { at_us, event, index: job, version }));
    }

    /// Schedules an event without a configuration: of a node.
    pub(super) fn schedule_unversioned(&mut self, at_us: u64, event: Event, index: u32) {
        self.schedule(at_us, event, index, 0);
    }

    /// Time of the next event.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.0.peek().map(|Reverse(next)| next.at_us)
    }

    /// The next event, if its time is `now_us`.
    pub(super) fn pop_at(&mut self, now_us: u64) -> Option<Scheduled> {
        if self.next_at()? != now_us {
            return None;
        }
        self.0.pop().map(|Reverse(next)| next)
    }
}

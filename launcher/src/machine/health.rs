//! Whether this node can start jobs.
//!
//! A start that fails because of the node shows a fault. It is tested from time to time and ends with the
//! first test that succeeds. If a start fails again soon after, the test does not show the fault: the pause
//! before the next test doubles, so that the node prevents few starts.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::NodeFault;

use super::Action;
use crate::Fault;

/// Pause between tests.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest pause between tests.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// A fault this soon after the last one is the same one.
const RELAPSE: Duration = Duration::from_secs(1_200);
/// Time after which a fault that lasts raises its alarm again.
const ALARM_AGAIN: Duration = Duration::from_secs(600);

/// The state of the node.
#[derive(Debug)]
pub(super) struct Health {
    fault: Option<NodeFault>,
    /// When the fault is tested next; absent: a test runs, or there is no fault.
    test_at: Option<Timestamp>,
    /// The pause before a test.
    pause: Duration,
    /// When the last fault ended.
    ended_at: Option<Timestamp>,
    /// When the fault last raised an alarm.
    alarmed_at: Timestamp,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            fault: None,
            test_at: None,
            pause: PAUSE,
            ended_at: None,
            alarmed_at: Timestamp::EPOCH,
        }
    }
}

impl Health {
    /// Why no job can be started now.
    pub(super) const fn fault(&self) -> Option<&NodeFault> {
        self.fault.as_ref()
    }

    /// When the next test is due.
    pub(super) const fn test_at(&self) -> Option<Timestamp> {
        self.test_at
    }

    /// A start failed because of the node.
    pub(super) fn failed(&mut self, now: Timestamp, fault: Fault, out: &mut Vec<Action>) {
        if self.fault.is_none() {
            let relapse = self.ended_at.is_some_and(|ended| now.since(ended) < RELAPSE);
            self.pause = if relapse { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE };
        }
        self.noted(now, fault, out);
    }

    /// A test has ended.
    pub(super) fn tested(
        &mut self,
        now: Timestamp,
        result: Result<(), Fault>,
        out: &mut Vec<Action>,
    ) {
        match result {
            Err(fault) => self.noted(now, fault, out),
            Ok(()) if self.fault.take().is_some() => {
                self.ended_at = Some(now);
                self.test_at = None;
                out.push(Action::FaultEnded);
            }
            Ok(()) => {}
        }
    }

    fn noted(&mut self, now: Timestamp, fault: Fault, out: &mut Vec<Action>) {
        let Fault { kind, error } = fault;
        let before = self.fault.as_ref();
        let is_new = before.is_none_or(|before| before.kind != kind);
        let since_us = before.map_or(now, |before| before.since_us);
        let fault = NodeFault { kind, error, since_us };
        if is_new || now.since(self.alarmed_at) >= ALARM_AGAIN {
            self.alarmed_at = now;
            out.push(Action::FaultAlarm(fault.clone()));
        }
        self.fault = Some(fault);
        self.test_at = Some(now + self.pause);
    }

    /// Tests the node if it is time.
    pub(super) fn test_if_due(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.test_at.is_some_and(|at| now >= at) {
            self.test_at = None;
            out.push(Action::Test);
        }
    }
}

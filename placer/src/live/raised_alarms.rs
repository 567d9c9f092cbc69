//! The alarms raised lately, so that a lasting fault raises one alarm, also while other faults last.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;

/// An alarm that has not occurred for this time is raised again.
const QUIET: Duration = Duration::from_secs(600);
/// Most alarms that are remembered; the one that occurred least recently is forgotten first.
const ALARMS_MAX: usize = 256;

/// The texts of alarms with the time of their last occurrence.
#[derive(Debug, Default)]
pub(super) struct RaisedAlarms(BTreeMap<String, Timestamp>);

impl RaisedAlarms {
    /// Notes an occurrence; returns whether the alarm is raised.
    pub(super) fn is_new(&mut self, now: Timestamp, alarm: &str) -> bool {
        if let Some(last) = self.0.get_mut(alarm) {
            return now.since(std::mem::replace(last, now)) >= QUIET;
        }
        if self.0.len() >= ALARMS_MAX
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, at)| **at).map(|(text, _)| text.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(alarm.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_faults_raise_one_alarm_each() {
        let mut raised = RaisedAlarms::default();
        let at = Timestamp::from_s;
        let new = |raised: &mut RaisedAlarms, s, text| raised.is_new(at(s), text);
        assert!(new(&mut raised, 0, "a"));
        for s in 1..2_000 {
            assert_eq!(new(&mut raised, s, "b"), s == 1);
            assert!(!new(&mut raised, s, "a"));
        }
        assert!(new(&mut raised, 1_999 + 600, "a"), "the fault is back");
    }

    #[test]
    fn their_number_is_bounded() {
        let mut raised = RaisedAlarms::default();
        for s in 0..1_000 {
            assert!(raised.is_new(Timestamp::from_s(s), &s.to_string()));
        }
        assert_eq!(raised.0.len(), ALARMS_MAX);
        assert!(!raised.is_new(Timestamp::from_s(1_000), "999"));
    }
}

//! The alarms raised lately, so that a lasting fault raises one alarm, also while other faults last.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Timestamp;

/// An alarm that has not occurred for this time is raised again.
const QUIET: Duration = Duration::from_secs(600);

/// What distinguishes alarms (their text, or their object and kind), with the time of the last occurrence.
#[derive(Debug)]
pub struct RaisedAlarms<K = String> {
    last: BTreeMap<K, Timestamp>,
    max: usize,
}

impl<K: Ord + Clone> RaisedAlarms<K> {
    /// Remembers at most `max` alarms; the one that occurred least recently is forgotten first.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { last: BTreeMap::new(), max }
    }

    /// Notes an occurrence; returns whether the alarm is raised.
    pub fn is_new(&mut self, now: Timestamp, alarm: &K) -> bool {
        if let Some(last) = self.last.get_mut(alarm) {
            return now.since(std::mem::replace(last, now)) >= QUIET;
        }
        if self.last.len() >= self.max
            && let Some(oldest) =
                self.last.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
        {
            self.last.remove(&oldest);
        }
        self.last.insert(alarm.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_faults_raise_one_alarm_each() {
        let mut raised = RaisedAlarms::new(2);
        let at = Timestamp::from_s;
        let new = |raised: &mut RaisedAlarms<_>, s, text| raised.is_new(at(s), &text);
        assert!(new(&mut raised, 0, "a"));
        for s in 1..2_000 {
            assert_eq!(new(&mut raised, s, "b"), s == 1);
            assert!(!new(&mut raised, s, "a"));
        }
        assert!(new(&mut raised, 1_999 + 600, "a"), "the fault is back");
    }

    #[test]
    fn their_number_is_bounded() {
        let mut raised = RaisedAlarms::new(256);
        for s in 0..1_000 {
            assert!(raised.is_new(Timestamp::from_s(s), &s.to_string()));
        }
        assert_eq!(raised.last.len(), 256);
        assert!(!raised.is_new(Timestamp::from_s(1_000), &"999".to_owned()));
    }
}

//! How far a long run is, on stderr: on a terminal one line that changes, elsewhere a line now and
//! then. A short run says nothing, and what is said never hangs on how often it is told.

use std::io::IsTerminal;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_runtime::clock::wall_now;

use crate::output::{change_line, note};

/// How often the line on a terminal changes, wall time.
const LIVE_EVERY: Duration = Duration::from_millis(500);
/// How often a line is printed elsewhere, wall time.
const PRINT_EVERY: Duration = Duration::from_secs(10);
/// What takes less says nothing, wall time.
const QUIET_FOR: Duration = Duration::from_secs(3);

/// How often something is said, on a terminal or elsewhere, wall time.
pub(crate) const fn every(live: bool) -> Duration {
    if live { LIVE_EVERY } else { PRINT_EVERY }
}

/// Says how far something is until dropped; a line that changes is gone then.
pub(crate) struct Progress {
    what: String,
    /// What is counted, with its verb.
    counted: &'static str,
    pace: Pace,
    shown: bool,
}

impl Progress {
    /// Of `what`, which begins now; `counted` says what of it, as in `jobs have ended`.
    pub(crate) fn of(what: String, counted: &'static str) -> Self {
        let pace = Pace::new(std::io::stderr().is_terminal(), wall_now());
        Self { what, counted, pace, shown: false }
    }

    /// So many of all are done.
    pub(crate) fn reached(&mut self, done: usize, of: usize) {
        if !self.pace.is_due(wall_now()) {
            return;
        }
        let line = line(&self.what, self.counted, done, of);
        if self.pace.live {
            change_line(&line);
            self.shown = true;
        } else {
            note(&line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            change_line("");
        }
    }
}

fn line(what: &str, counted: &str, done: usize, of: usize) -> String {
    let percent = 100 * done / of.max(1);
    format!("{what}: {done} of {of} {counted}, {percent} %")
}

/// When something is to be said.
struct Pace {
    live: bool,
    next: Timestamp,
}

impl Pace {
    fn new(live: bool, began: Timestamp) -> Self {
        Self { live, next: began + QUIET_FOR }
    }

    /// Whether it is time to say something again.
    fn is_due(&mut self, now: Timestamp) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + every(self.live);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_speaks_after_a_while_and_then_seldom() {
        let at = |ms: u64| Timestamp::from_us(7_000_000) + Duration::from_millis(ms);
        let said = |live: bool| -> Vec<u64> {
            let mut pace = Pace::new(live, at(0));
            (0..=20_000).step_by(100).filter(|&ms| pace.is_due(at(ms))).collect()
        };
        assert_eq!(said(false), [3_000, 13_000]);
        assert_eq!(said(true)[..3], [3_000, 3_500, 4_000]);
    }

    #[test]
    fn a_line_names_who_and_what_share() {
        let said = line("powerflow, 1 of 2", "jobs have ended", 4_100, 12_000);
        assert_eq!(said, "powerflow, 1 of 2: 4100 of 12000 jobs have ended, 34 %");
        let none = line("fifo, 1 of 1", "jobs have ended", 0, 0);
        assert_eq!(none, "fifo, 1 of 1: 0 of 0 jobs have ended, 0 %");
    }
}

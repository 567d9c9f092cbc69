//! Progress of a long run on stderr: one updated line on a terminal, a line every ten seconds
//! elsewhere. A short run prints nothing. The results of a run do not depend on its progress output.

use std::io::IsTerminal;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::duration::span;
use wattle_runtime::clock::wall_now;

use crate::output::{note, replace_line};

/// Interval between updates on a terminal, wall time.
const LIVE_EVERY: Duration = Duration::from_millis(500);
/// Interval between lines elsewhere, wall time.
const PRINT_EVERY: Duration = Duration::from_secs(10);
/// A run shorter than this prints nothing, wall time.
const QUIET_FOR: Duration = Duration::from_secs(3);

/// Interval between updates, wall time; `live` for a terminal.
pub(crate) const fn update_interval(live: bool) -> Duration {
    if live { LIVE_EVERY } else { PRINT_EVERY }
}

/// Prints progress until dropped; the updated line is then cleared.
pub(crate) struct Progress {
    name: String,
    started: Timestamp,
    /// Unit and verb of the count, as in `jobs have ended`.
    unit: &'static str,
    pace: Pace,
    shown: bool,
}

impl Progress {
    /// Starts the progress of `name`. `unit` completes the line, as in `jobs have ended`.
    pub(crate) fn start(name: String, unit: &'static str) -> Self {
        let started = wall_now();
        let pace = Pace::new(std::io::stderr().is_terminal(), started);
        Self { name, started, unit, pace, shown: false }
    }

    /// Reports `done` of `total`.
    pub(crate) fn update(&mut self, done: usize, total: usize) {
        let now = wall_now();
        if !self.pace.is_due(now) {
            return;
        }
        let elapsed = now.since(self.started);
        let line = line(&self.name, self.unit, done, total, elapsed);
        if self.pace.live {
            replace_line(&line);
            self.shown = true;
        } else {
            note(&line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            replace_line("");
        }
    }
}

fn line(name: &str, unit: &str, done: usize, total: usize, elapsed: Duration) -> String {
    let percent = 100 * done / total.max(1);
    let text = format!("{name}: {done} of {total} {unit}, {percent} %");
    if done == 0 {
        return text;
    }
    // At the mean speed so far.
    let left = elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / done as f64;
    format!("{text}, {} left", span(left))
}

/// Decides when an update is due.
struct Pace {
    live: bool,
    next: Timestamp,
}

impl Pace {
    fn new(live: bool, start: Timestamp) -> Self {
        Self { live, next: start + QUIET_FOR }
    }

    /// Whether an update is due; if so, the next one is due an interval later.
    fn is_due(&mut self, now: Timestamp) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + update_interval(self.live);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_start_late_and_keep_their_interval() {
        let at = |ms: u64| Timestamp::from_us(7_000_000) + Duration::from_millis(ms);
        let updates = |live: bool| -> Vec<u64> {
            let mut pace = Pace::new(live, at(0));
            (0..=20_000).step_by(100).filter(|&ms| pace.is_due(at(ms))).collect()
        };
        assert_eq!(updates(false), [3_000, 13_000]);
        assert_eq!(updates(true)[..3], [3_000, 3_500, 4_000]);
    }

    #[test]
    fn line_has_name_count_share_and_time_left() {
        let elapsed = Duration::from_secs(41);
        let some = line("powerflow, 1 of 2", "jobs have ended", 4_100, 12_000, elapsed);
        assert_eq!(some, "powerflow, 1 of 2: 4100 of 12000 jobs have ended, 34 %, 79 s left");
        let none = line("fifo, 1 of 1", "jobs have ended", 0, 0, elapsed);
        assert_eq!(none, "fifo, 1 of 1: 0 of 0 jobs have ended, 0 %");
    }
}

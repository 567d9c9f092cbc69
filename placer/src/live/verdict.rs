//! What is wrong with the jobs, the budget and the aim ([`wattle_common::verdict`]): an alarm when it begins, and
//! its extent for the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::messages::{AimStatus, BudgetRecord, BudgetStatus, JobRecord, Late};
use wattle_common::verdict::{Finding, aim_exceeded, below_idle, late, late_finding};
use wattle_common::{JobId, Timestamp};

use crate::live::outbox::Outbox;

/// Time for which the aim is exceeded before it is an alarm: a few long jobs move the estimate for a while.
const AIM_HOLD: Duration = Duration::from_secs(1_800);

/// A finding that alarms distinguish.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// No job can start under the budget.
    BelowIdle,
    /// The bound of the aim is exceeded.
    AimExceeded,
    /// A job is late: past its deadline, or by prediction.
    Late(JobId, bool),
}

impl Key {
    /// How long it lasts before it is an alarm.
    const fn hold(&self) -> Duration {
        match self {
            Self::AimExceeded => AIM_HOLD,
            Self::BelowIdle | Self::Late(..) => Duration::ZERO,
        }
    }
}

/// Budget and aim at one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) now: Timestamp,
    pub(super) budget: Option<&'a BudgetRecord>,
    pub(super) status: Option<&'a BudgetStatus>,
    /// Absent under a budget with a window.
    pub(super) aim: Option<&'a AimStatus>,
}

/// Numbers of findings, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Jobs past their deadlines that have not ended.
    pub late: usize,
    /// Jobs that will miss their deadlines by prediction.
    pub late_predicted: usize,
    /// Whether the estimated slowdown exceeds the bound of the energy aim.
    pub aim_exceeded: bool,
    /// Whether the idle cluster draws more than the budget allows, so that no job can start.
    pub below_idle: bool,
}

/// The findings, each with what distinguishes it.
fn findings<'r>(
    records: impl Iterator<Item = &'r JobRecord>,
    seen: Seen<'_>,
) -> impl Iterator<Item = (Key, Finding)> {
    let budget = seen.budget.zip(seen.status);
    let below = budget.and_then(|(set, status)| below_idle(&set.budget, status));
    let below = below.map(|finding| (Key::BelowIdle, finding));
    let aim = seen.aim.and_then(|aim| aim_exceeded(aim, seen.now));
    let aim = aim.map(|finding| (Key::AimExceeded, finding));
    let late = late(records, seen.now).into_iter().map(|(job, late)| {
        let key = Key::Late(job.clone(), matches!(late, Late::Passed(_)));
        (key, late_finding(job, late))
    });
    below.into_iter().chain(aim).chain(late)
}

/// The numbers of findings.
pub(super) fn count<'r>(records: impl Iterator<Item = &'r JobRecord>, seen: Seen<'_>) -> Findings {
    let mut counts = Findings::default();
    for (key, _) in findings(records, seen) {
        match key {
            Key::BelowIdle => counts.below_idle = true,
            Key::AimExceeded => counts.aim_exceeded = true,
            Key::Late(_, true) => counts.late += 1,
            Key::Late(_, false) => counts.late_predicted += 1,
        }
    }
    counts
}

/// The findings at the last look, with the times of their first; bounded like the placer's jobs.
#[derive(Default)]
pub(super) struct Verdict {
    /// Since when each lasts, and whether it was an alarm.
    present: BTreeMap<Key, (Timestamp, bool)>,
}

impl Verdict {
    /// Raises an alarm for each finding that has lasted for its hold time, once while it lasts.
    pub(super) fn look<'r>(
        &mut self,
        records: impl Iterator<Item = &'r JobRecord>,
        seen: Seen<'_>,
        outbox: &mut Outbox,
    ) {
        let before = std::mem::take(&mut self.present);
        for (key, finding) in findings(records, seen) {
            let (since, was_raised) = before.get(&key).copied().unwrap_or((seen.now, false));
            let is_due = seen.now.since(since) >= key.hold();
            if is_due && !was_raised {
                let Finding { text, remedy, .. } = finding;
                outbox.alarm_of(format!("{key:?}"), format!("{text}: {remedy}"));
            }
            self.present.insert(key, (since, was_raised || is_due));
        }
    }
}

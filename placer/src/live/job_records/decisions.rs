//! A plan in the jobs' records: each decision with its reason, and why the first jobs wait.

use wattle_common::job::{JobPhase, Placement};
use wattle_common::messages::job_record::REASONS_MAX;
use wattle_common::messages::{JobRecord, Prediction, RecordedReason};
use wattle_common::{JobId, Timestamp};

use crate::live::LiveController;
use crate::live::job_records::JobRecords;
use crate::{Blocked, ClusterState, Decision, JobKey, Plan, Reason, prediction};

/// The decision recorded for the first queued job that finds no room.
const WAITS: &str = "waits";
/// Beginning of the decision recorded for a changed setting.
const SET_TO: &str = "set to ";
/// Most changes of the setting that are kept with a job's reasons.
const SETTINGS_MAX: usize = 8;

impl JobRecords {
    /// Carries out a plan: records each decision and why jobs wait, and applies the plan to the cluster's state.
    pub(in crate::live) fn carry_out(
        &mut self,
        now: Timestamp,
        plan: &Plan,
        controller: &mut LiveController,
    ) {
        for decision in &plan.decisions {
            self.decided(now, decision, controller);
        }
        for blocked in plan.blocked.iter().chain(&plan.held_back) {
            self.blocked(now, blocked, controller);
        }
        // Last: the records take placements and predictions from the state for which the plan was made.
        controller.apply(plan);
    }

    /// Records one decision with its reason.
    fn decided(&mut self, now: Timestamp, decision: &Decision, controller: &LiveController) {
        let state = controller.state();
        let Some(job) = id_of(state, decision.job()) else { return };
        let reason = reason_text(controller, decision);
        let placement = match decision {
            Decision::Start { on, .. } => Some(state.placement(on)),
            _ => None,
        };
        let prediction = predicted(state, decision);
        let text = self.change(&job, |record| {
            if let Decision::Start { .. } | Decision::Set { .. } = decision {
                record.prediction_placed = prediction.map(Box::new);
            }
            if let Decision::Reject { .. } = decision {
                record.error = Some(reason.clone());
            }
            record_decision(now, record, decision, placement)
        });
        let Some(text) = text else { return };
        match decision {
            // Its processes may be gone already.
            Decision::Stop { .. } | Decision::Undo { .. } => {
                self.to_reconcile.insert(job.clone());
            }
            Decision::Reject { .. } => self.forget_key(&job),
            Decision::Start { .. } | Decision::Set { .. } | Decision::Settle { .. } => {}
        }
        self.reason(now, &job, controller.policy().name(), text, reason);
    }

    /// Records why the first queued job waits, or the first of an account that its quota or share holds back, at
    /// most as often as progress is stored.
    fn blocked(&mut self, now: Timestamp, blocked: &Blocked, controller: &LiveController) {
        let Some(job) = id_of(controller.state(), blocked.job) else { return };
        let Some(record) = self.get(&job) else { return };
        let reason = RecordedReason {
            at_us: now,
            policy: controller.policy().name().to_owned(),
            decision: WAITS.to_owned(),
            reason: blocked.reason.to_string(),
        };
        match record.reasons.last() {
            Some(last) if last.decision == WAITS => {
                // The quantities of a reason change with every round, so it is stored later.
                if last.reason != reason.reason {
                    self.note(&job, |record| {
                        record.reasons.pop();
                        record.reasons.push(reason);
                    });
                }
            }
            _ => {
                self.change(&job, |record| {
                    record.reasons.push(reason);
                    trim(&mut record.reasons);
                });
            }
        }
    }
}

/// Changes the record by a decision, and returns the decision in words.
fn record_decision(
    now: Timestamp,
    record: &mut JobRecord,
    decision: &Decision,
    placement: Option<Placement>,
) -> String {
    let at = record.placement.as_ref().map(ToString::to_string).unwrap_or_default();
    match decision {
        Decision::Start { observe, setting, .. } => {
            let on = placement.as_ref().map(ToString::to_string).unwrap_or_default();
            record.placement = placement;
            record.setting = *setting;
            record.phase = JobPhase::Starting;
            record.phase_since_us = now;
            record.attempt = record.attempt.saturating_add(1);
            record.observing = *observe;
            // The end of the attempt before, its output and its speed are not this attempt's.
            record.exit_code = None;
            record.limit = None;
            record.error = None;
            record.log_paths.clear();
            record.steps_per_s = None;
            format!("placed on {on}")
        }
        Decision::Set { setting, .. } => {
            record.setting = *setting;
            format!("{SET_TO}{setting}")
        }
        Decision::Stop { .. } | Decision::Undo { .. } => {
            record.phase = JobPhase::Stopping;
            record.phase_since_us = now;
            record.next_phase = Some(JobPhase::Queued);
            record.observing = false;
            format!("taken off {at}")
        }
        Decision::Settle { .. } => {
            record.observing = false;
            format!("stays on {at}")
        }
        Decision::Reject { .. } => {
            record.phase = JobPhase::Failed;
            record.phase_since_us = now;
            record.ended_at_us = Some(now);
            "rejected".to_owned()
        }
    }
}

fn id_of(state: &ClusterState, key: JobKey) -> Option<JobId> {
    state.job(key).map(|job| job.facts.id.clone())
}

/// The reason of a decision. A changed setting follows from the energy price, so its position comes first.
fn reason_text(controller: &LiveController, decision: &Decision) -> String {
    let reason = decision.reason();
    let is_priced = matches!((decision, reason), (Decision::Set { .. }, Reason::Market { .. }));
    match controller.price_position().filter(|_| is_priced) {
        Some(position) => format!("energy price {position:.3} of 1; {reason}"),
        None => reason.to_string(),
    }
}

/// The prediction under which a job starts or is set.
fn predicted(state: &ClusterState, decision: &Decision) -> Option<Prediction> {
    match decision {
        Decision::Start { job, on, setting, .. } => prediction::on(state, *job, on, *setting),
        Decision::Set { job, setting, .. } => {
            prediction::on(state, *job, state.job(*job)?.state.gpus()?, *setting)
        }
        _ => None,
    }
}

/// Removes the oldest reasons above the limits. Changes of the setting may be frequent and are removed first,
/// so that the reasons of the placement are kept.
pub(super) fn trim(reasons: &mut Vec<RecordedReason>) {
    let is_set = |reason: &RecordedReason| reason.decision.starts_with(SET_TO);
    let mut surplus_sets =
        reasons.iter().filter(|reason| is_set(reason)).count().saturating_sub(SETTINGS_MAX);
    reasons.retain(|reason| {
        let is_removed = surplus_sets > 0 && is_set(reason);
        surplus_sets -= usize::from(is_removed);
        !is_removed
    });
    let surplus = reasons.len().saturating_sub(REASONS_MAX);
    reasons.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_changes_of_the_setting_do_not_displace_the_placement() {
        let recorded = |decision: &str, s| RecordedReason {
            at_us: Timestamp::from_s(s),
            policy: "wattle".to_owned(),
            decision: decision.to_owned(),
            reason: "energy price 0.500 of 1".to_owned(),
        };
        let mut reasons = vec![recorded("placed on n0:0", 0)];
        for s in 1..100 {
            reasons.push(recorded("set to 125 W", s));
            trim(&mut reasons);
        }
        assert_eq!(reasons.len(), 1 + SETTINGS_MAX);
        assert_eq!(reasons[0].decision, "placed on n0:0");
        assert_eq!(reasons.last().unwrap().at_us, Timestamp::from_s(99));
        for s in 100..200 {
            reasons.push(recorded("taken off n0:0", s));
            trim(&mut reasons);
        }
        assert_eq!(reasons.len(), REASONS_MAX);
    }
}

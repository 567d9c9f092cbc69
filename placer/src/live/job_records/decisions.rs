//! A plan in the jobs' records: each decision with its reason, and why the first jobs wait.

use std::collections::BTreeSet;

use wattle_common::job::{JobPhase, Placement};
use wattle_common::messages::job_record::{REASONS_MAX, WAITS};
use wattle_common::messages::{JobRecord, Prediction, RecordedReason};
use wattle_common::{JobId, Timestamp};

use crate::controller::aim::SetsPrice;
use crate::expected::consequences::Compared;
use crate::live::LiveController;
use crate::live::job_records::JobRecords;
use crate::{
    Blocked, ClusterState, Decision, JobKey, Plan, Reason, SettingChange, Stage, StageReports,
    prediction,
};

/// Beginning of the decision recorded for a job that keeps its GPUs.
const STAYS: &str = "stays on ";
/// Most changes of the setting that are kept with a job's reasons.
const SETTINGS_MAX: usize = 8;

impl JobRecords {
    /// Carries out a plan: records each decision and why jobs wait, and applies the plan to the cluster's state.
    /// `faults`: the nodes that cannot start jobs.
    pub(in crate::live) fn carry_out(
        &mut self,
        now: Timestamp,
        plan: &Plan,
        reports: &StageReports,
        faults: Option<&str>,
        controller: &mut LiveController,
    ) {
        let compared = controller.compared(plan);
        for decision in &plan.decisions {
            self.decided(now, decision, reports, compared.get(&decision.job()), controller);
        }
        self.wait(now, plan, reports, faults, controller);
        self.keep(now, reports, controller);
        // The records take placements and predictions from the state for which the plan was made.
        controller.apply(plan);
        for (key, consequence) in controller.consequences(compared, reports) {
            let Some(job) = id_of(controller.state(), key) else { continue };
            self.change(&job, |record| {
                // A start that a stage has set has two reasons, and its placement is the first.
                let mut decided = record.reasons.iter_mut().filter(|r| r.at_us == now);
                if let Some(reason) = decided.find(|reason| reason.decision != WAITS) {
                    reason.consequence = Some(consequence);
                }
            });
        }
    }

    /// Records one decision with its reason.
    fn decided(
        &mut self,
        now: Timestamp,
        decision: &Decision,
        reports: &StageReports,
        compared: Option<&Compared>,
        controller: &LiveController,
    ) {
        let state = controller.state();
        let Some(job) = id_of(state, decision.job()) else { return };
        let reason = reason_text(controller, decision, reports, compared);
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
            Decision::Start { .. } | Decision::Set { .. } | Decision::Confirm { .. } => {}
        }
        let policy = controller.policy().name();
        let recorded_reason = recorded(now, policy, reports.stage_of(decision), text, reason);
        let details = details(controller, decision);
        self.add_reason(&job, RecordedReason { details, ..recorded_reason });
        // A start has the reason of its placement; a stage that set other caps or clocks has its own.
        if let Decision::Start { job: key, setting, .. } = decision
            && let Some((stage, change)) = reports.setting_of(*key)
        {
            let text = RecordedReason::set_to(*setting);
            self.add_reason(&job, recorded(now, policy, Some(stage), text, why_set(change)));
        }
    }

    /// Records why jobs wait, at most as often as progress is stored: the first queued job, the first of each
    /// account at its limit, and every other job that a stage holds back.
    fn wait(
        &mut self,
        now: Timestamp,
        plan: &Plan,
        reports: &StageReports,
        faults: Option<&str>,
        controller: &LiveController,
    ) {
        let (state, policy) = (controller.state(), controller.policy().name());
        let why = |job: &JobKey| Some((*job, reports.why_held_back(*job)?));
        let firsts = reports.accounts.first.iter().filter_map(why);
        let firsts = firsts.map(|(job, (stage, reason))| (job, Some(stage), reason.to_string()));
        let blocked = plan.blocked.iter().map(|Blocked { job, reason }| {
            let stage = reports.why_held_back(*job).map(|(stage, _)| stage);
            // Their GPUs are missing, whatever the policy states.
            let faults = faults.filter(|_| stage.is_none()).map(|faults| format!("; {faults}"));
            (*job, stage, format!("{reason}{}", faults.unwrap_or_default()))
        });
        for (job, stage, reason) in firsts.chain(blocked) {
            let Some(job) = id_of(state, job) else { continue };
            let reason = recorded(now, policy, stage, WAITS.to_owned(), reason);
            if self.last_waits(&job) {
                self.note_wait(&job, reason);
            } else {
                self.add_reason(&job, reason);
            }
        }
        let mut current = BTreeSet::new();
        for (stage, job) in reports.held_back() {
            let Some((id, (_, reason))) = id_of(state, job).zip(reports.why_held_back(job)) else {
                continue;
            };
            // Many jobs may be held back, and the numbers of a reason change often: the numbers of the first job
            // of each stage are kept current, of the others the stage counts. Their records must not delay the
            // orders of this round.
            if current.insert(stage) || !self.is_noted(&id, stage, WAITS) {
                let text = reason.to_string();
                self.note_wait(&id, recorded(now, policy, Some(stage), WAITS.to_owned(), text));
            }
        }
    }

    /// Notes another reason to wait, in place of the one before.
    fn note_wait(&mut self, job: &JobId, reason: RecordedReason) {
        let (waits, last) =
            (self.last_waits(job), self.get(job).and_then(|job| job.reasons.last()));
        let is_same =
            last.is_some_and(|last| (&last.stage, &last.reason) == (&reason.stage, &reason.reason));
        if waits && is_same {
            return;
        }
        self.note(job, |record| {
            if waits {
                record.reasons.pop();
            }
            record.reasons.push(reason);
            trim(&mut record.reasons);
        });
    }

    /// Records that jobs keep their GPUs although the policy moves them.
    fn keep(&mut self, now: Timestamp, reports: &StageReports, controller: &LiveController) {
        for (&job, until) in &reports.settling {
            let Some(job) = id_of(controller.state(), job) else { continue };
            if self.is_noted(&job, Stage::Settling, STAYS) {
                continue;
            }
            let at = self.get(&job).and_then(|record| record.placement.as_ref());
            let text = format!("{STAYS}{}", at.map(ToString::to_string).unwrap_or_default());
            let reason = format!("placed too recently to be moved; it may move from {until} on");
            let policy = controller.policy().name();
            self.add_reason(&job, recorded(now, policy, Some(Stage::Settling), text, reason));
        }
    }

    /// Whether the last reason of a job is one to wait.
    fn last_waits(&self, job: &JobId) -> bool {
        let last = self.get(job).and_then(|record| record.reasons.last());
        last.is_some_and(|last| last.decision == WAITS)
    }

    /// Whether the last reason of a job is such a decision of this stage.
    fn is_noted(&self, job: &JobId, stage: Stage, decision: &str) -> bool {
        let last = self.get(job).and_then(|record| record.reasons.last());
        last.is_some_and(|last| {
            last.stage.as_deref() == Some(stage.name()) && last.decision.starts_with(decision)
        })
    }

    /// Adds the reason of a decision outside plans to the job's record.
    pub(in crate::live) fn reason(
        &mut self,
        now: Timestamp,
        job: &JobId,
        policy: &str,
        decision: String,
        reason: String,
    ) {
        self.add_reason(job, recorded(now, policy, None, decision, reason));
    }

    fn add_reason(&mut self, job: &JobId, reason: RecordedReason) {
        self.change(job, |record| {
            record.reasons.push(reason);
            trim(&mut record.reasons);
        });
    }
}

/// Why a stage has set another cap or clock than planned.
fn why_set(change: &SettingChange) -> String {
    format!("{} instead of {}: {}", change.to, change.from, change.reason)
}

fn recorded(
    at_us: Timestamp,
    policy: &str,
    stage: Option<Stage>,
    decision: String,
    reason: String,
) -> RecordedReason {
    let stage = stage.map(|stage| stage.name().to_owned());
    RecordedReason { stage, ..RecordedReason::new(at_us, policy, decision, reason) }
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
            record.enter(JobPhase::Starting, now);
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
            RecordedReason::set_to(*setting)
        }
        Decision::Stop { .. } | Decision::Undo { .. } => {
            let next = match decision {
                Decision::Stop { next_gpus: Some(1), .. } => " to continue on 1 GPU".to_owned(),
                Decision::Stop { next_gpus: Some(gpus), .. } => {
                    format!(" to continue on {gpus} GPUs")
                }
                _ => String::new(),
            };
            record.enter(JobPhase::Stopping, now);
            record.next_phase = Some(JobPhase::Queued);
            record.observing = false;
            format!("taken off {at}{next}")
        }
        Decision::Confirm { .. } => {
            record.observing = false;
            format!("{STAYS}{at}")
        }
        Decision::Reject { .. } => {
            record.enter(JobPhase::Failed, now);
            record.ended_at_us = Some(now);
            "rejected".to_owned()
        }
    }
}

fn id_of(state: &ClusterState, key: JobKey) -> Option<JobId> {
    state.job(key).map(|job| job.facts.id.clone())
}

/// The reason of a decision in a sentence.
fn reason_text(
    controller: &LiveController,
    decision: &Decision,
    reports: &StageReports,
    compared: Option<&Compared>,
) -> String {
    let reason = decision.reason();
    if let Some(planned) = reports.site_rules.moved.get(&decision.job()) {
        return format!("instead of {}: {reason}", controller.state().placement(planned));
    }
    if let Decision::Set { job, .. } = decision {
        if let Some((_, change)) = reports.setting_of(*job) {
            return why_set(change);
        }
        // The setting of a running job follows from the energy price, whatever its size was chosen for.
        if is_market(reason)
            && let Some((sets_price, is_slower)) =
                controller.sets_price().zip(compared.and_then(Compared::is_slower))
        {
            return priced_text(sets_price, is_slower).to_owned();
        }
    }
    reason.to_string()
}

/// Why the energy price changes the setting of a running job.
const fn priced_text(sets_price: SetsPrice, is_slower: bool) -> &'static str {
    match (sets_price, is_slower) {
        (SetsPrice::Budget, true) => "to keep the budget with the least delay of jobs",
        (SetsPrice::Budget, false) => "the budget permits more power",
        (SetsPrice::Aim, true) => "to save energy; the energy aim permits this delay",
        (SetsPrice::Aim, false) => {
            "the setting before would delay jobs more than the energy aim permits"
        }
    }
}

/// The prices behind a decision.
fn details(controller: &LiveController, decision: &Decision) -> Option<String> {
    let reason = decision.reason();
    let details = reason.details()?;
    match controller.price_position().filter(|_| is_market(reason)) {
        Some(position) => Some(format!("energy price {position:.3} of 1; {details}")),
        None => Some(details),
    }
}

const fn is_market(reason: &Reason) -> bool {
    matches!(reason, Reason::Market { .. })
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
fn trim(reasons: &mut Vec<RecordedReason>) {
    let sets = reasons.iter().filter(|reason| reason.is_of_setting()).count();
    let mut surplus_sets = sets.saturating_sub(SETTINGS_MAX);
    reasons.retain(|reason| {
        let is_removed = surplus_sets > 0 && reason.is_of_setting();
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
        let recorded = |decision: &str, s| {
            let (at, reason) = (Timestamp::from_s(s), "the energy aim".to_owned());
            RecordedReason::new(at, "wattle", decision.to_owned(), reason)
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

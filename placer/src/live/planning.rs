//! One planning round: plan, check, record with reasons, apply.

use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_common::messages::job_record::REASONS_MAX;
use wattle_common::messages::{Prediction, RecordedReason};

use crate::live::Placer;
use crate::{
    Blocked, Decision, JobKey, Plan, Reason, Round, SettingChange, Stage, StageReports, prediction,
};

/// The decision recorded for a queued job that a stage holds back, and the first one that finds no room.
const WAITS: &str = "waits";
/// Beginning of the decision recorded for a job that keeps its GPUs.
const STAYS: &str = "stays on ";
/// Most changes of the setting that are kept with a job's reasons.
const SETTINGS_MAX: usize = 8;

impl Placer {
    pub(super) fn round(&mut self, now: Timestamp) {
        self.rounds += 1;
        let inventory_complete = self.inventory_complete(now);
        self.controller.events().inventory_known(inventory_complete);
        let Round { mut plan, reports } = self.controller.plan();
        self.controller.keep_possible(&mut plan, |node, decision| {
            self.is_possible(now, &node.facts.id, decision)
        });
        let violations = self.controller.check(&plan);
        if !violations.is_empty() {
            // No change rather than an invalid one.
            self.alarms.push(format!(
                "the plan of policy {} is invalid and was discarded: {}; fix the policy or configure another",
                self.controller.policy().name(),
                self.controller.sentences(&violations)
            ));
            return;
        }
        for decision in &plan.decisions {
            self.record(now, decision, &reports);
        }
        for decision in &plan.nodes {
            self.node_decided(now, decision);
        }
        self.note_waiting(now, &plan, &reports);
        self.note_kept(now, &reports);
        if let Some(at) = plan.again_at {
            let at = at.max(now + self.config.round_delay());
            self.round_at = Some(self.round_at.map_or(at, |sooner| sooner.min(at)));
        }
        self.controller.apply(&plan);
        self.plan_is_outdated = false;
        self.note_planned_budget();
        if self.controller.limits().is_power_limited() {
            // The power reserved for each GPU may have changed, and its cap with it.
            self.to_order.extend(self.nodes.keys().cloned());
        }
    }

    /// Records one decision. The cluster's state is changed afterwards.
    fn record(&mut self, now: Timestamp, decision: &Decision, reports: &StageReports) {
        let Some(facts) =
            self.controller.state().job(decision.job()).map(|job| job.facts.id.clone())
        else {
            return;
        };
        let reason = self.reason_text(decision, reports);
        let policy = self.controller.policy().name().to_owned();
        let placement = match decision {
            Decision::Start { on, .. } => Some(self.controller.state().placement(on)),
            _ => None,
        };
        let prediction = self.predicted(decision);
        let Some(tracked) = self.jobs.get_mut(&facts) else { return };
        let record = &mut tracked.record;
        if let Decision::Start { .. } | Decision::Set { .. } = decision {
            record.prediction_placed = prediction.map(Box::new);
        }
        let at = record.placement.as_ref().map(ToString::to_string).unwrap_or_default();
        let text = match decision {
            Decision::Start { observe, setting, .. } => {
                record.setting = *setting;
                record.phase = JobPhase::Starting;
                record.phase_since_us = now;
                record.attempt = record.attempt.saturating_add(1);
                record.observing = *observe;
                record.exit_code = None;
                record.limit = None;
                record.error = None;
                record.log_paths.clear();
                record.steps_per_s = None;
                let on = placement.as_ref().map(ToString::to_string).unwrap_or_default();
                for share in placement.iter().flat_map(|placement| &placement.shares) {
                    self.nodes.entry(share.node.clone()).or_default().jobs.insert(facts.clone());
                    self.to_order.insert(share.node.clone());
                }
                record.placement = placement;
                format!("placed on {on}")
            }
            Decision::Set { setting, .. } => {
                record.setting = *setting;
                for share in record.placement.iter().flat_map(|placement| &placement.shares) {
                    self.to_order.insert(share.node.clone());
                }
                RecordedReason::set_to(*setting)
            }
            Decision::Stop { .. } | Decision::Undo { .. } => {
                record.phase = JobPhase::Stopping;
                record.phase_since_us = now;
                record.next_phase = Some(JobPhase::Queued);
                record.observing = false;
                for share in record.placement.iter().flat_map(|placement| &placement.shares) {
                    self.to_order.insert(share.node.clone());
                }
                self.to_reconcile.insert(facts.clone());
                format!("taken off {at}")
            }
            Decision::Settle { .. } => {
                record.observing = false;
                format!("{STAYS}{at}")
            }
            Decision::Reject { .. } => {
                record.phase = JobPhase::Failed;
                record.phase_since_us = now;
                record.ended_at_us = Some(now);
                record.error = Some(reason.clone());
                tracked.key = None;
                self.ended.insert((now, facts.clone()));
                "rejected".to_owned()
            }
        };
        let stage = reports.stage_of(decision);
        self.add_reason(&facts, recorded(now, policy.clone(), stage, text, reason));
        // A start has the reason of its placement; a stage that set other caps or clocks has its own.
        if let Decision::Start { job, setting, .. } = decision
            && let Some((stage, change)) = reports.setting_of(*job)
        {
            let text = RecordedReason::set_to(*setting);
            self.add_reason(&facts, recorded(now, policy, Some(stage), text, why_set(change)));
        }
    }

    /// The reason of a decision. A changed setting follows from the energy price, so its position comes first.
    fn reason_text(&self, decision: &Decision, reports: &StageReports) -> String {
        let reason = decision.reason();
        if let Some(planned) = reports.site_rules.moved.get(&decision.job()) {
            return format!("{reason}, in place of {}", self.controller.state().placement(planned));
        }
        if let Decision::Set { job, .. } = decision
            && let Some((_, change)) = reports.setting_of(*job)
        {
            return why_set(change);
        }
        let is_priced = matches!((decision, reason), (Decision::Set { .. }, Reason::Market { .. }));
        match self.controller.price_position().filter(|_| is_priced) {
            Some(position) => format!("energy price {position:.3} of 1; {reason}"),
            None => reason.to_string(),
        }
    }

    /// The prediction under which a job starts or is set.
    fn predicted(&self, decision: &Decision) -> Option<Prediction> {
        let state = self.controller.state();
        match decision {
            Decision::Start { job, on, setting, .. } => prediction::on(state, *job, on, *setting),
            Decision::Set { job, setting, .. } => {
                prediction::on(state, *job, state.job(*job)?.state.gpus()?, *setting)
            }
            _ => None,
        }
    }

    /// Records why jobs wait, at most as often as progress is stored: the first queued job, the first of each
    /// account at its limit, and every other job that a stage holds back.
    fn note_waiting(&mut self, now: Timestamp, plan: &Plan, reports: &StageReports) {
        let why = |job: &JobKey| Some((*job, reports.why_held_back(*job)?));
        for (job, (stage, reason)) in reports.accounts.first.iter().filter_map(why) {
            self.note(now, job, Some(stage), &reason, true);
        }
        if let Some(Blocked { job, reason }) = &plan.blocked {
            let stage = reports.why_held_back(*job).map(|(stage, _)| stage);
            self.note(now, *job, stage, reason, true);
        }
        for (stage, job) in reports.held_back() {
            // Many jobs may be held back, and the numbers of a reason change often: the stage counts. Their
            // records must not delay the orders of this round.
            if !self.is_noted(job, stage, WAITS)
                && let Some((_, reason)) = reports.why_held_back(job)
            {
                self.note(now, job, Some(stage), &reason, false);
            }
        }
    }

    /// Records that jobs keep their GPUs although the policy moves them.
    fn note_kept(&mut self, now: Timestamp, reports: &StageReports) {
        for (&job, until) in &reports.settling {
            if self.is_noted(job, Stage::Settling, STAYS) {
                continue;
            }
            let Some(id) = self.id_of(job) else { continue };
            let at = self.jobs.get(&id).and_then(|tracked| tracked.record.placement.as_ref());
            let text = format!("{STAYS}{}", at.map(ToString::to_string).unwrap_or_default());
            let reason = format!("it has not settled yet; it may move from {until} on");
            let policy = self.controller.policy().name().to_owned();
            self.add_reason(&id, recorded(now, policy, Some(Stage::Settling), text, reason));
        }
    }

    /// Whether the last reason of a job is such a decision of this stage.
    fn is_noted(&self, job: JobKey, stage: Stage, decision: &str) -> bool {
        let id = self.controller.state().job(job).map(|job| &job.facts.id);
        let last = id.and_then(|id| self.jobs.get(id)?.record.reasons.last());
        last.is_some_and(|last| {
            last.stage.as_deref() == Some(stage.name()) && last.decision.starts_with(decision)
        })
    }

    /// Records why a job waits; a new reason is stored with this round if it `is_first`.
    fn note(
        &mut self,
        now: Timestamp,
        job: JobKey,
        stage: Option<Stage>,
        reason: &Reason,
        is_first: bool,
    ) {
        let Some(id) = self.id_of(job) else { return };
        let policy = self.controller.policy().name().to_owned();
        let Some(tracked) = self.jobs.get_mut(&id) else { return };
        let reason = recorded(now, policy, stage, WAITS.to_owned(), reason.to_string());
        match tracked.record.reasons.last_mut() {
            Some(last) if last.decision == WAITS => {
                if (&last.stage, &last.reason) != (&reason.stage, &reason.reason) {
                    *last = reason;
                    tracked.unsaved = true;
                }
            }
            _ => {
                tracked.record.reasons.push(reason);
                trim(&mut tracked.record.reasons);
                tracked.unsaved = true;
                self.to_store.extend(is_first.then_some(id));
            }
        }
    }

    fn id_of(&self, key: JobKey) -> Option<wattle_common::JobId> {
        self.controller.state().job(key).map(|job| job.facts.id.clone())
    }

    /// Adds a reason to the job's record, and stores it.
    pub(super) fn reason(
        &mut self,
        now: Timestamp,
        job: &wattle_common::JobId,
        policy: &str,
        decision: String,
        reason: String,
    ) {
        self.add_reason(job, recorded(now, policy.to_owned(), None, decision, reason));
    }

    fn add_reason(&mut self, job: &wattle_common::JobId, reason: RecordedReason) {
        if let Some(tracked) = self.jobs.get_mut(job) {
            tracked.record.reasons.push(reason);
            trim(&mut tracked.record.reasons);
            self.to_store.insert(job.clone());
        }
    }
}

/// Why a stage has set another cap or clock than planned.
fn why_set(change: &SettingChange) -> String {
    format!("{}, in place of {}", change.reason, change.from)
}

fn recorded(
    at_us: Timestamp,
    policy: String,
    stage: Option<Stage>,
    decision: String,
    reason: String,
) -> RecordedReason {
    let stage = stage.map(|stage| stage.name().to_owned());
    RecordedReason { at_us, policy, stage, decision, reason }
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
        let recorded = |decision: &str, s| RecordedReason {
            at_us: Timestamp::from_s(s),
            policy: "wattle".to_owned(),
            stage: None,
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

//! What the stages of a round changed, and why.
//!
//! A report holds changes only: a stage that changed nothing allocates nothing. Decisions of the plan carry
//! their reasons, so a report names their jobs.

use std::collections::BTreeMap;

use wattle_common::Timestamp;

use crate::accounts::stage::AccountLimits;
use crate::allocation::site_rules::SiteRulesReport;
use crate::plan::reason::Reason;
use crate::plan::{Decision, NodeDecision, SettingChange};
use crate::policies::colocation_trial::TrialReport;
use crate::power::carbon_deferral::Deferrals;
use crate::power::limits::PowerLimitsReport;
use crate::state::gpu_set::JobKey;

/// A stage of a planning round beside the policy, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Jobs with slack wait and pause until the grid is cleaner.
    CarbonDeferral,
    /// Jobs that the budget never supplies do not start.
    Budget,
    /// Accounts at their limit get no further job.
    Accounts,
    /// Co-located jobs are observed, then confirmed or undone.
    Trial,
    /// Jobs that have not settled keep their GPUs.
    Settling,
    /// Starts follow the rules of the site's scheduler.
    SiteRules,
    /// A rule sets all caps and clocks.
    FixedSettings,
    /// Unused nodes sleep, and wake for queued jobs.
    NodeSleep,
    /// The plan keeps all power limits.
    PowerLimits,
}

impl Stage {
    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CarbonDeferral => "carbon deferral",
            Self::Budget => "budget",
            Self::Accounts => "quotas and fair shares",
            Self::Trial => "co-location trial",
            Self::Settling => "settling",
            Self::SiteRules => "rules of the site's scheduler",
            Self::FixedSettings => "fixed caps and clocks",
            Self::NodeSleep => "node sleep",
            Self::PowerLimits => "power limits",
        }
    }
}

/// What each stage changed, in the order of the stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageReports {
    /// The jobs that wait and pause for a cleaner grid.
    pub deferral: Deferrals,
    /// The queued jobs that the budget never supplies.
    pub over_budget: BTreeMap<JobKey, Reason>,
    /// The queued jobs that a quota or a share holds back, and the sizes that it bounds.
    pub accounts: AccountLimits,
    /// The co-location trials that end and begin.
    pub trial: TrialReport,
    /// The jobs that keep their GPUs although the policy moves them, and until when at least.
    pub settling: BTreeMap<JobKey, Timestamp>,
    /// The starts that the site's rules move or hold back.
    pub site_rules: SiteRulesReport,
    /// The settings that a rule replaces.
    pub fixed_settings: BTreeMap<JobKey, SettingChange>,
    /// The nodes that wake and sleep.
    pub node_sleep: Vec<NodeDecision>,
    /// The jobs that the limits hold back, stop and set, and the nodes that stay asleep.
    pub power_limits: PowerLimitsReport,
}

impl StageReports {
    /// The queued jobs that a stage holds back, in the order of the stages.
    pub fn held_back(&self) -> impl Iterator<Item = (Stage, JobKey)> {
        let of = |stage| move |&job: &JobKey| (stage, job);
        let deferred = self.deferral.waiting.keys().map(of(Stage::CarbonDeferral));
        let over_budget = self.over_budget.keys().map(of(Stage::Budget));
        // A job may be both deferred and over budget.
        let over_budget = over_budget.filter(|(_, job)| !self.deferral.waiting.contains_key(job));
        let limited = self.power_limits.held_back.keys().map(of(Stage::PowerLimits));
        // The first job that waits for power may lack a node that satisfies the site's rules, too.
        let limited = limited.filter(|(_, job)| !self.site_rules.held_back.contains_key(job));
        deferred
            .chain(over_budget)
            .chain(self.accounts.held_back.keys().map(of(Stage::Accounts)))
            .chain(self.site_rules.held_back.keys().map(of(Stage::SiteRules)))
            .chain(limited)
    }

    /// The first stage that holds a queued job back, and why.
    #[must_use]
    pub fn why_held_back(&self, job: JobKey) -> Option<(Stage, Reason)> {
        let later = [
            (Stage::Budget, &self.over_budget),
            (Stage::Accounts, &self.accounts.held_back),
            (Stage::SiteRules, &self.site_rules.held_back),
            (Stage::PowerLimits, &self.power_limits.held_back),
        ];
        let deferred = self.deferral.reason(job).map(|reason| (Stage::CarbonDeferral, reason));
        deferred.or_else(|| {
            later.into_iter().find_map(|(stage, jobs)| Some((stage, jobs.get(&job)?.clone())))
        })
    }

    /// The last stage that changed the cap or clock of a job, and the change.
    #[must_use]
    pub fn setting_of(&self, job: JobKey) -> Option<(Stage, &SettingChange)> {
        let limited = self.power_limits.settings.get(&job).map(|set| (Stage::PowerLimits, set));
        limited.or_else(|| Some((Stage::FixedSettings, self.fixed_settings.get(&job)?)))
    }

    /// The stage that made a decision of the plan, or the placement of a start; `None`: the policy.
    #[must_use]
    pub fn stage_of(&self, decision: &Decision) -> Option<Stage> {
        let job = decision.job();
        match decision {
            Decision::Start { .. } => {
                self.site_rules.moved.contains_key(&job).then_some(Stage::SiteRules)
            }
            Decision::Stop { .. } if self.power_limits.stopped.contains_key(&job) => {
                Some(Stage::PowerLimits)
            }
            Decision::Stop { .. } => {
                self.deferral.pausing.contains_key(&job).then_some(Stage::CarbonDeferral)
            }
            Decision::Set { .. } => self.setting_of(job).map(|(stage, _)| stage),
            Decision::Undo { .. } | Decision::Confirm { .. } => {
                let is_judged = self.trial.verdicts.iter().any(|verdict| verdict.job() == job);
                is_judged.then_some(Stage::Trial)
            }
            Decision::Reject { .. } => None,
        }
    }
}

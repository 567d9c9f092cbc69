//! The rules of a site: quotas, weights and members, and the admission of a job by them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use wattle_common::job::Flexibility;

use crate::accounts::Account;
use crate::state::job::JobFacts;

/// Most users and projects with rules of their own.
pub const RULES_MAX: usize = 10_000;

/// The quotas and weights of a site.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountRules {
    /// What jobs that state none give up during a grid event; absent: they have no promise.
    #[serde(default)]
    pub flexibility: Option<FlexibilityRule>,
    /// Among which accounts contended GPUs are divided; absent: policies decide alone.
    #[serde(default)]
    pub fair_share: Option<FairShare>,
    /// Most GPUs held by the running jobs of a user without a rule of its own.
    #[serde(default)]
    pub user_gpus_max: Option<u32>,
    /// Most queued and running jobs of a user without a rule of its own.
    #[serde(default)]
    pub user_jobs_max: Option<u32>,
    /// Users with rules of their own, by name.
    #[serde(default)]
    pub users: BTreeMap<String, UserRule>,
    /// The projects, by name. If there are any, a job may name no other.
    #[serde(default)]
    pub projects: BTreeMap<String, ProjectRule>,
}

/// Among which accounts GPUs are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FairShare {
    /// Among the users with jobs.
    User,
    /// Among the projects with jobs.
    Project,
}

/// The rule of a user.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRule {
    /// Most GPUs held by its running jobs; absent: no quota.
    #[serde(default)]
    pub gpus_max: Option<u32>,
    /// Most queued and running jobs; absent: no quota.
    #[serde(default)]
    pub jobs_max: Option<u32>,
    /// Its weight in the fair share.
    #[serde(default = "one")]
    pub weight: f64,
}

/// The rule of a project.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectRule {
    /// Most GPUs held by its running jobs; absent: no quota.
    #[serde(default)]
    pub gpus_max: Option<u32>,
    /// Most queued and running jobs; absent: no quota.
    #[serde(default)]
    pub jobs_max: Option<u32>,
    /// Its weight in the fair share.
    #[serde(default = "one")]
    pub weight: f64,
    /// What its jobs that state none give up during a grid event; absent: as every job of the site.
    #[serde(default)]
    pub flexibility: Option<FlexibilityRule>,
    /// Users with access; empty: every user.
    #[serde(default)]
    pub members: Vec<String>,
}

/// What jobs give up during a grid event by default.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlexibilityRule {
    /// The largest loss of throughput on average over an event, a share.
    pub share: f64,
    /// Whether they may be paused.
    #[serde(default)]
    pub pause: bool,
    /// Whether their number of GPUs may change.
    #[serde(default)]
    pub resize: bool,
}

impl From<FlexibilityRule> for Flexibility {
    fn from(rule: FlexibilityRule) -> Self {
        let loss_permille = (rule.share * 1e3).round() as u32;
        Self { loss_permille, may_pause: rule.pause, may_resize: rule.resize }
    }
}

const fn one() -> f64 {
    1.0
}

/// Why a job is refused by the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The site has projects, and this is none of them.
    #[error("unknown project `{project}`: the site's projects are {known}")]
    UnknownProject {
        /// The project.
        project: Arc<str>,
        /// The site's projects.
        known: String,
    },
    /// The user is not a member of the project.
    #[error("{user} may not use project `{project}`: an operator adds members to its rule")]
    NotMember {
        /// The user.
        user: Account,
        /// The project.
        project: Arc<str>,
    },
    /// The account has as many jobs as its quota.
    #[error(
        "{account} has {jobs_max} queued and running jobs, its quota; cancel a job or wait for an end"
    )]
    TooManyJobs {
        /// The account.
        account: Account,
        /// The quota.
        jobs_max: u32,
    },
    /// The job needs more GPUs than the account may hold.
    #[error("the job needs {gpus} GPUs and {account} may hold {gpus_max}; request fewer")]
    TooManyGpus {
        /// The account.
        account: Account,
        /// The least number of GPUs of the job.
        gpus: u32,
        /// The quota.
        gpus_max: u32,
    },
}

impl AccountRules {
    /// Whether no rule can ever hold a job back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        let rules = self.users.len().max(self.projects.len());
        if rules > RULES_MAX {
            return Err(format!("accounts: {rules} rules are more than the limit of {RULES_MAX}"));
        }
        let users = self.users.iter().map(|(name, rule)| {
            (format!("accounts.users.{name}"), rule.gpus_max, rule.jobs_max, rule.weight)
        });
        let projects = self.projects.iter().map(|(name, rule)| {
            (format!("accounts.projects.{name}"), rule.gpus_max, rule.jobs_max, rule.weight)
        });
        let default = ("accounts.user".to_owned(), self.user_gpus_max, self.user_jobs_max, 1.0);
        for (key, gpus_max, jobs_max, weight) in users.chain(projects).chain([default]) {
            if gpus_max == Some(0) || jobs_max == Some(0) {
                return Err(format!(
                    "{key}: a quota of 0 admits no job; remove the key for no quota, or the user's key \
                     for no access"
                ));
            }
            if !(weight.is_finite() && (1e-3..=1e3).contains(&weight)) {
                return Err(format!("{key}.weight = {weight}: give a weight from 0.001 to 1,000"));
            }
        }
        let of_projects = self.projects.iter().map(|(name, rule)| {
            (format!("accounts.projects.{name}.flexibility"), rule.flexibility)
        });
        for (key, rule) in
            of_projects.chain([("accounts.flexibility".to_owned(), self.flexibility)])
        {
            if let Some(share) = rule.map(|rule| rule.share).filter(|s| !(0.0..=1.0).contains(s)) {
                return Err(format!("{key}.share = {share}: give a share from 0 to 1"));
            }
        }
        Ok(())
    }

    /// What a job of this project gives up during a grid event, if it does not state it.
    #[must_use]
    pub fn flexibility(&self, project: Option<&str>) -> Option<Flexibility> {
        let of_project = self.project(project).and_then(|rule| rule.flexibility);
        of_project.or(self.flexibility).map(Flexibility::from)
    }

    /// The quota of GPUs of an account.
    #[must_use]
    pub fn gpus_max(&self, account: &Account) -> Option<u32> {
        self.limits(account).0
    }

    /// The quota of queued and running jobs of an account.
    #[must_use]
    pub fn jobs_max(&self, account: &Account) -> Option<u32> {
        self.limits(account).1
    }

    /// The weight of an account in the fair share.
    #[must_use]
    pub fn weight(&self, account: &Account) -> f64 {
        self.limits(account).2
    }

    /// The quota of GPUs, the quota of jobs and the weight of an account.
    fn limits(&self, account: &Account) -> (Option<u32>, Option<u32>, f64) {
        match account {
            Account::User(user) => match user.as_deref().and_then(|name| self.users.get(name)) {
                Some(rule) => (rule.gpus_max, rule.jobs_max, rule.weight),
                None => (self.user_gpus_max, self.user_jobs_max, 1.0),
            },
            Account::Project(project) => match self.project(project.as_deref()) {
                Some(rule) => (rule.gpus_max, rule.jobs_max, rule.weight),
                None => (None, None, 1.0),
            },
        }
    }

    fn project(&self, name: Option<&str>) -> Option<&ProjectRule> {
        self.projects.get(name?)
    }

    /// Whether a job may be admitted beside `present`, the queued and running jobs.
    ///
    /// # Errors
    /// Names the account and the remedy.
    pub fn admit<'a>(
        &self,
        job: &JobFacts,
        present: impl Iterator<Item = &'a JobFacts>,
    ) -> Result<(), Refusal> {
        if let Some(project) = job.project.clone().filter(|_| !self.projects.is_empty()) {
            let Some(rule) = self.project(Some(&project)) else {
                let known = self.projects.keys().cloned().collect::<Vec<_>>().join(", ");
                return Err(Refusal::UnknownProject { project, known });
            };
            let is_member = |user: &Arc<str>| rule.members.iter().any(|member| **member == **user);
            if !rule.members.is_empty() && !job.user.as_ref().is_some_and(is_member) {
                return Err(Refusal::NotMember { user: Account::User(job.user.clone()), project });
            }
        }
        let accounts = accounts_of(job);
        for account in &accounts {
            let gpus = job.request.min;
            if let Some(gpus_max) = self.gpus_max(account).filter(|max| gpus > *max) {
                return Err(Refusal::TooManyGpus { account: account.clone(), gpus, gpus_max });
            }
        }
        let quotas = accounts.map(|account| (self.jobs_max(&account), account));
        if quotas.iter().all(|(jobs_max, _)| jobs_max.is_none()) {
            return Ok(());
        }
        let mut counts = [0_u32; 2];
        for other in present {
            counts[0] += u32::from(other.user == job.user);
            counts[1] += u32::from(other.project == job.project);
        }
        for ((jobs_max, account), count) in quotas.into_iter().zip(counts) {
            if let Some(jobs_max) = jobs_max.filter(|max| count >= *max) {
                return Err(Refusal::TooManyJobs { account, jobs_max });
            }
        }
        Ok(())
    }
}

/// The accounts of a job: its user's and its project's.
#[must_use]
pub fn accounts_of(job: &JobFacts) -> [Account; 2] {
    [Account::User(job.user.clone()), Account::Project(job.project.clone())]
}

//! The stage of a planning round that applies the rules: jobs held back, and the sizes of elastic jobs.
//!
//! * Jobs of an account start in queue order. A job is held back if its account would exceed its quota, and
//!   then the account's later jobs are too, so that small jobs do not overtake a large one for ever.
//! * If all demands together exceed the GPUs, an account that holds its entitlement gets no further job. The
//!   job that crosses the entitlement may start, or a large job could never do so.
//! * Under an elastic policy the jobs of an account may grow as far as quota and entitlement permit: GPUs left
//!   are given to its jobs in order, by doubling, so that all together cannot exceed the limit.
//!
//! No running job is stopped or shrunk for a quota or a share. An account that holds more keeps these GPUs until
//! its jobs end.

use std::collections::{BTreeMap, BTreeSet};

use crate::accounts::Account;
use crate::accounts::rules::{AccountRules, FairShare, accounts_of};
use crate::accounts::shares::{Demand, entitlements};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::Job;

/// The outcome of the stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountLimits {
    /// Queued jobs that may not start.
    pub held_back: BTreeMap<JobKey, Reason>,
    /// The first of them of each account.
    pub first: Vec<JobKey>,
    /// The largest size of elastic jobs whose account is limited.
    pub sizes_max: BTreeMap<JobKey, u32>,
}

/// A limit of an account in this round.
#[derive(Debug, Default)]
struct Limits {
    /// GPUs that its jobs hold, with those of the admitted jobs.
    held: u32,
    /// GPUs of its first jobs, which may run, whether they do or not.
    entitled_jobs: u32,
    quota: Option<u32>,
    /// GPUs that it is entitled to while GPUs are contended.
    share: Option<f64>,
    /// Whether the quota excludes one of its first jobs.
    is_full: bool,
    /// Whether one of its jobs is held back.
    has_first: bool,
    /// Its running and admitted jobs.
    jobs: Vec<JobKey>,
}

/// Applies the rules to the jobs of a round.
pub(crate) fn limit(
    rules: &AccountRules,
    is_elastic: bool,
    input: PlanningInput<'_>,
) -> AccountLimits {
    let mut limits = AccountLimits::default();
    if rules.is_empty() {
        return limits;
    }
    let mut jobs: Vec<(JobKey, &Job)> = input.state.running().chain(input.state.queue()).collect();
    // Jobs that keep their GPUs in any case, then the others in queue order.
    jobs.sort_by_key(|(_, job)| (job.facts.can_stop || held(job) == 0, job.arrival));
    let mut accounts = accounts(rules, &jobs);
    if let Some(by) = rules.fair_share {
        share(rules, by, is_elastic, input, &jobs, &mut accounts);
    }
    admit(&jobs, &mut accounts, &mut limits);
    if is_elastic {
        bound_sizes(input, &accounts, &mut limits);
    }
    limits
}

/// The accounts with the GPUs that their jobs hold.
fn accounts(rules: &AccountRules, jobs: &[(JobKey, &Job)]) -> BTreeMap<Account, Limits> {
    let mut accounts: BTreeMap<Account, Limits> = BTreeMap::new();
    for (key, job) in jobs {
        for account in accounts_of(&job.facts) {
            let quota = rules.gpus_max(&account);
            let limits = accounts.entry(account).or_default();
            limits.quota = quota;
            if held(job) > 0 {
                limits.held += held(job);
                limits.jobs.push(*key);
            }
        }
    }
    accounts
}

/// Sets the shares, if the demands together exceed the GPUs of the cluster.
fn share(
    rules: &AccountRules,
    by: FairShare,
    is_elastic: bool,
    input: PlanningInput<'_>,
    jobs: &[(JobKey, &Job)],
    accounts: &mut BTreeMap<Account, Limits>,
) {
    let nodes = input.state.nodes().iter();
    let gpus: u32 = nodes.map(|node| node.facts.healthy.count_ones()).sum();
    let mut demands: BTreeMap<Account, u32> = BTreeMap::new();
    for (_, job) in jobs {
        let request = job.facts.request;
        let demand = if is_elastic { request.max } else { request.min };
        let [user, project] = accounts_of(&job.facts);
        let account = if by == FairShare::User { user } else { project };
        let quota = rules.gpus_max(&account).unwrap_or(u32::MAX);
        let sum = demands.entry(account).or_default();
        *sum = sum.saturating_add(demand.min(gpus)).min(quota);
    }
    let weighted =
        demands.iter().map(|(account, &gpus)| Demand { gpus, weight: rules.weight(account) });
    let shares = entitlements(gpus, &weighted.collect::<Vec<_>>());
    for (account, share) in demands.into_keys().zip(shares.unwrap_or_default()) {
        accounts.entry(account).or_default().share = Some(share);
    }
}

/// GPUs that a job holds or is about to get again.
fn held(job: &Job) -> u32 {
    job.state.gpus().map_or(0, GpuSet::gpu_count).max(job.next_gpus.unwrap_or(0))
}

/// Admits the queued jobs in order. Which jobs are within a limit does not depend on whether they run: otherwise
/// a preemption would admit other jobs, and the next plan would undo it.
fn admit(
    jobs: &[(JobKey, &Job)],
    accounts: &mut BTreeMap<Account, Limits>,
    limits: &mut AccountLimits,
) {
    for &(key, job) in jobs {
        let (holds, least) = (held(job), job.facts.request.min);
        let gpus = if job.facts.can_stop { least } else { least.max(holds) };
        let names = accounts_of(&job.facts);
        let refusal = names.iter().find_map(|name| {
            let limits = accounts.get_mut(name)?;
            let reason = limits.refusal(name, gpus, holds)?;
            let is_first = holds == 0 && !std::mem::replace(&mut limits.has_first, true);
            Some((reason, is_first))
        });
        if holds == 0
            && let Some((reason, is_first)) = refusal
        {
            limits.first.extend(is_first.then_some(key));
            limits.held_back.insert(key, reason);
            continue;
        }
        for name in &names {
            if let Some(limits) = accounts.get_mut(name) {
                limits.entitled_jobs = limits.entitled_jobs.saturating_add(gpus);
                if holds == 0 {
                    limits.held = limits.held.saturating_add(gpus);
                    limits.jobs.push(key);
                }
            }
        }
    }
}

impl Limits {
    /// Why the next job of the account, which needs `gpus` GPUs and holds `holds`, is beyond a limit.
    fn refusal(&mut self, account: &Account, gpus: u32, holds: u32) -> Option<Reason> {
        let account = || account.clone();
        if let Some(gpus_max) = self.quota {
            self.is_full |= self.entitled_jobs.saturating_add(gpus) > gpus_max;
            if self.is_full || (holds == 0 && self.held.saturating_add(gpus) > gpus_max) {
                return Some(Reason::Quota { account: account(), gpus_max });
            }
        }
        let share = self.share.filter(|share| f64::from(self.entitled_jobs) >= *share)?;
        Some(Reason::FairShare { account: account(), share: share.round() as u32 })
    }
}

/// Bounds the sizes of the jobs of limited accounts.
fn bound_sizes(
    input: PlanningInput<'_>,
    accounts: &BTreeMap<Account, Limits>,
    limits: &mut AccountLimits,
) {
    for account in accounts.values() {
        let entitled = account.share.map(|share| share as u32);
        let Some(limit) = account.quota.into_iter().chain(entitled).min() else { continue };
        let jobs: Vec<(JobKey, u32, u32)> = account
            .jobs
            .iter()
            .filter_map(|&key| {
                let job = input.state.job(key)?;
                let least = held(job).max(job.facts.request.min);
                Some((key, least, job.facts.request.max.max(least)))
            })
            .collect();
        let mut sizes: Vec<u32> = jobs.iter().map(|(_, least, _)| *least).collect();
        let mut left = limit.saturating_sub(sizes.iter().sum());
        let mut grows: BTreeSet<usize> = (0..jobs.len()).collect();
        while left > 0 && !grows.is_empty() {
            for index in grows.clone() {
                let more = sizes[index].min(jobs[index].2 - sizes[index]);
                if more == 0 || more > left {
                    grows.remove(&index);
                } else {
                    sizes[index] += more;
                    left -= more;
                }
            }
        }
        for ((key, _, most), size) in jobs.into_iter().zip(sizes) {
            if size < most {
                let known = limits.sizes_max.entry(key).or_insert(size);
                *known = size.min(*known);
            }
        }
    }
}

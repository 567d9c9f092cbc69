//! Quotas and fair shares of users and projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::job::{Flexibility, GpuRequest};
use wattle_placer::accounts::Account;
use wattle_placer::accounts::rules::{AccountRules, FairShare, ProjectRule, UserRule};
use wattle_placer::{JobFacts, JobKey, Policy, Reason, Round, Stage, check, solve};

use crate::policies::helpers::{arrive, cluster, facts};
use crate::policies::plans::{Step, happen, spelling, step};
use crate::support::Site;

fn user(name: &str) -> Option<Arc<str>> {
    Some(Arc::from(name))
}

fn of(user_name: &str, job: &str, gpus: u32) -> JobFacts {
    JobFacts { user: user(user_name), can_stop: true, ..facts(job, gpus) }
}

/// Plans and carries out until nothing is left to do; returns the last round.
fn carry_out(site: &mut Site, policy: &dyn Policy) -> Round {
    let mut plans = Vec::new();
    for _ in 0..20 {
        let round = solve(policy, site.input());
        let plan = round.plan.clone();
        assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
        site.apply(&plan);
        site.complete_stops();
        if plan.is_empty() {
            return round;
        }
        plans.push(plan);
    }
    panic!("{} does not converge: {plans:?}", policy.name());
}

/// GPUs that the jobs of each user hold or are about to get again.
fn held(site: &Site) -> BTreeMap<Option<Arc<str>>, u32> {
    let mut held = BTreeMap::new();
    for (_, job) in site.running().chain(site.queue()) {
        *held.entry(job.facts.user.clone()).or_default() += job.intended_gpus().unwrap_or(0);
    }
    held
}

fn quota(gpus_max: u32) -> AccountRules {
    AccountRules { user_gpus_max: Some(gpus_max), ..AccountRules::default() }
}

fn fair() -> AccountRules {
    AccountRules { fair_share: Some(FairShare::User), ..AccountRules::default() }
}

fn ends(site: &mut Site, name: &str) {
    let found = site.running().find(|(_, job)| job.facts.id.as_str() == name);
    let key = found.expect("a running job").0;
    site.job_ended(key);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Under every policy, at every event.
    #[test]
    fn no_user_holds_more_gpus_than_the_quota(
        sizes in prop::collection::vec(prop_oneof![Just(2u32), Just(4), Just(8)], 1..5),
        steps in prop::collection::vec(step(), 1..40),
        gpus_max in 2u32..8,
        fair_share in prop::option::of(Just(FairShare::User)),
        name in spelling(),
    ) {
        let policy = policy(&name).unwrap();
        let mut site = cluster(&sizes);
        site.limits.accounts = Arc::new(AccountRules { fair_share, ..quota(gpus_max) });
        for (i, step) in steps.into_iter().enumerate() {
            // Such a job is refused at submission.
            if matches!(step, Step::Arrives { gpus, .. } if gpus > gpus_max) {
                continue;
            }
            happen(&mut site, &sizes, format!("j{i}"), step);
            carry_out(&mut site, &*policy);
            let held = held(&site);
            prop_assert!(held.values().all(|gpus| *gpus <= gpus_max), "{name}: {held:?}");
        }
    }
}

#[test]
fn a_quota_holds_back_starts_in_order_and_nothing_else() {
    for name in NAMES {
        let policy = policy(name).unwrap();
        let mut site = cluster(&[8]);
        site.limits.accounts = Arc::new(quota(4));
        arrive(&mut site, of("ada", "a-0", 3), Some(1));
        let large = arrive(&mut site, of("ada", "a-1", 4), Some(1));
        let small = arrive(&mut site, of("ada", "a-2", 1), Some(1));
        arrive(&mut site, of("bob", "b-0", 4), Some(1));
        let reports = carry_out(&mut site, &*policy).reports;
        let expected = BTreeMap::from([(user("ada"), 3), (user("bob"), 4)]);
        assert_eq!(held(&site), expected, "{name}");
        assert_eq!(reports.accounts.first, [large], "{name}");
        // The small job does not overtake the large one, for the same reason.
        let reason = Reason::Quota { account: Account::User(user("ada")), gpus_max: 4 };
        for job in [large, small] {
            let why = reports.why_held_back(job);
            assert_eq!(why, Some((Stage::Accounts, reason.clone())), "{name}");
        }
        ends(&mut site, "a-0");
        carry_out(&mut site, &*policy);
        assert_eq!(held(&site)[&user("ada")], 4, "{name}");
    }
}

/// Ada's eight jobs came first and hold every GPU.
#[test]
fn contended_gpus_are_divided_by_weight_as_jobs_end() {
    let weights = [(1.0, [4, 4]), (3.0, [2, 6])];
    for (name, (weight, expected)) in
        NAMES.into_iter().flat_map(|name| weights.map(|weight| (name, weight)))
    {
        let policy = policy(name).unwrap();
        let mut site = cluster(&[8]);
        let rule = UserRule { gpus_max: None, jobs_max: None, weight };
        let users = BTreeMap::from([("bob".to_owned(), rule)]);
        site.limits.accounts = Arc::new(AccountRules { users, ..fair() });
        let alone = |owner: &str, job: &str| JobFacts {
            exclusive: true,
            can_stop: false,
            ..of(owner, job, 1)
        };
        for i in 0..16 {
            arrive(&mut site, alone("ada", &format!("a-{i}")), Some(1));
        }
        carry_out(&mut site, &*policy);
        assert_eq!(held(&site)[&user("ada")], 8, "{name}: without others every GPU is Ada's");
        for i in 0..16 {
            arrive(&mut site, alone("bob", &format!("b-{i}")), Some(1));
        }
        for _ in 0..8 {
            let most = site.running().filter(|(_, job)| job.facts.user == user("ada"));
            let first = most.map(|(_, job)| job.facts.id.to_string()).min().unwrap();
            if held(&site)[&user("ada")] > expected[0] {
                ends(&mut site, &first);
            }
            carry_out(&mut site, &*policy);
        }
        let held = held(&site);
        assert_eq!([held[&user("ada")], held[&user("bob")]], expected, "{name}");
    }
}

#[test]
fn elastic_jobs_of_an_account_grow_up_to_its_quota_together() {
    for name in ["afs", "powerflow", "greenflow", "wattle"] {
        let policy = policy(name).unwrap();
        let sizes = |rules: AccountRules| {
            let mut site = cluster(&[8, 8]);
            site.limits.accounts = Arc::new(rules);
            let request = GpuRequest { min: 1, max: 8 };
            let jobs: Vec<JobKey> = (0..2)
                .map(|i| JobFacts { request, ..of("ada", &format!("a-{i}"), 1) })
                .map(|facts| arrive(&mut site, facts, Some(2)))
                .collect();
            carry_out(&mut site, &*policy);
            jobs.into_iter().map(|job| site.size(job).0).collect::<Vec<_>>()
        };
        assert_eq!(sizes(AccountRules::default()), [8, 8], "{name}");
        assert_eq!(sizes(quota(4)), [2, 2], "{name}");
        assert_eq!(sizes(quota(6)), [4, 2], "{name}");
    }
}

#[test]
fn projects_count_over_all_their_users() {
    let fifo = policy("fifo").unwrap();
    let mut site = cluster(&[8]);
    let rule = ProjectRule {
        gpus_max: Some(2),
        jobs_max: Some(4),
        weight: 1.0,
        flexibility: None,
        members: Vec::new(),
    };
    let rules = AccountRules {
        projects: BTreeMap::from([("nlp".to_owned(), rule)]),
        ..AccountRules::default()
    };
    site.limits.accounts = Arc::new(rules);
    for (owner, job) in [("ada", "a"), ("bob", "b"), ("cleo", "c")] {
        arrive(&mut site, JobFacts { project: user("nlp"), ..of(owner, job, 1) }, None);
    }
    arrive(&mut site, of("cleo", "d", 1), None);
    let reports = carry_out(&mut site, &*fifo).reports;
    let ran: Vec<String> = site.running().map(|(_, job)| job.facts.id.to_string()).collect();
    assert_eq!(ran, ["a", "b", "d"]);
    let account = Account::Project(user("nlp"));
    let [first] = reports.accounts.first[..] else { panic!("{reports:?}") };
    let reason = Reason::Quota { account, gpus_max: 2 };
    assert_eq!(reports.why_held_back(first), Some((Stage::Accounts, reason)));
}

/// The section `[accounts]` of the documentation.
fn documented() -> AccountRules {
    let page = include_str!("../../../../docs/budgets.md");
    let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut config: BTreeMap<String, AccountRules> = toml::from_str(block.unwrap()).unwrap();
    config.remove("accounts").unwrap()
}

#[test]
fn a_job_without_a_flexibility_has_that_of_its_project_else_of_the_site() {
    let text = "flexibility = { share = 0.1 }\n[projects.a]\nflexibility = { share = 0.5, pause = true }\n[projects.b]";
    let rules: AccountRules = toml::from_str(text).unwrap();
    rules.check().unwrap();
    let of = |project| rules.flexibility(project).map(Flexibility::sentence);
    assert_eq!(of(Some("a")).as_deref(), Some("50 %, may be paused"));
    assert_eq!((of(Some("b")), of(None)), (Some("10 %".into()), Some("10 %".into())));
    assert_eq!(AccountRules::default().flexibility(None), None);
    let wrong: AccountRules = toml::from_str("flexibility = { share = 1.5 }").unwrap();
    let error = wrong.check().unwrap_err();
    assert_eq!(error, "accounts.flexibility.share = 1.5: give a share from 0 to 1");
}

#[test]
fn jobs_beyond_a_quota_or_outside_a_project_are_refused() {
    let rules = AccountRules { user_jobs_max: Some(2), ..documented() };
    rules.check().unwrap();
    let refusal = |job: &JobFacts, present: &[JobFacts]| {
        rules.admit(job, present.iter()).map_err(|error| error.to_string())
    };
    let present = [of("bob", "a", 1), of("bob", "b", 1), of("ada", "c", 1)];
    assert_eq!(
        refusal(&of("bob", "d", 1), &present),
        Err("user `bob` has 2 queued and running jobs, its quota; cancel a job or wait for an end"
            .into())
    );
    assert_eq!(refusal(&of("bob", "d", 1), &present[1..]), Ok(()));
    // Ada's own rule has no quota of jobs.
    assert_eq!(refusal(&of("ada", "d", 32), &vec![of("ada", "x", 1); 9]), Ok(()));
    assert_eq!(
        refusal(&of("cleo", "d", 17), &present),
        Err("the job needs 17 GPUs and user `cleo` may hold 16; request fewer".into())
    );
    let in_project = |owner, project| JobFacts { project: user(project), ..of(owner, "d", 1) };
    assert_eq!(refusal(&in_project("ada", "nlp"), &present), Ok(()));
    assert_eq!(
        refusal(&in_project("cleo", "nlp"), &present),
        Err("user `cleo` may not use project `nlp`: an operator adds members to its rule".into())
    );
    assert_eq!(
        refusal(&in_project("ada", "cv"), &present),
        Err("unknown project `cv`: the site's projects are nlp".into())
    );
}

#[test]
fn rules_that_admit_nothing_are_refused() {
    for (toml, named) in [
        ("user_gpus_max = 0", "accounts.user:"),
        ("[users.ada]\njobs_max = 0", "accounts.users.ada"),
        ("[projects.nlp]\nweight = 0.0", "accounts.projects.nlp.weight"),
        ("[projects.nlp]\nweight = nan", "accounts.projects.nlp.weight"),
    ] {
        let rules: AccountRules = toml::from_str(toml).unwrap();
        let error = rules.check().unwrap_err();
        assert!(error.starts_with(named), "{error}");
    }
}

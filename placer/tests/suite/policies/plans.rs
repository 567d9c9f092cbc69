//! Invariants of every plan of every policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Site, gpu_power};
use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::Power;
use wattle_common::job::GpuRequest;
use wattle_placer::{
    Decision, GridForecast, JobFacts, JobKey, NodeFacts, Progress, State, Wakefulness, check, solve,
};

use crate::policies::helpers::{arrive, cluster, decide_until_empty, facts, learn, node};
use crate::policies::stages::assert_consistent;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Arrives {
        gpus: u32,
        /// Largest number of GPUs as a multiple of the smallest.
        times: u32,
        class: Option<usize>,
        exclusive: bool,
        can_stop: bool,
        deadline_s: Option<u64>,
    },
    Ends(prop::sample::Index),
    /// The user, not the policy, stops it.
    IsStopped(prop::sample::Index),
    Advances {
        s: u64,
    },
    Fails {
        node: usize,
        gpus: u64,
    },
    Learns {
        which: prop::sample::Index,
        class: usize,
    },
    Costs {
        price: f64,
    },
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let arrives = (
        1u32..18,
        prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(8)],
        prop::option::weighted(0.8, 0usize..3),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.3, 1u64..4_000),
    )
        .prop_map(|(gpus, times, class, exclusive, can_stop, deadline_s)| {
            // Mostly small jobs, as in real traces.
            let gpus = if gpus > 9 { gpus - 8 } else { gpus.min(2) };
            Step::Arrives { gpus, times, class, exclusive, can_stop, deadline_s }
        });
    let one = any::<prop::sample::Index>;
    prop_oneof![
        5 => arrives,
        2 => one().prop_map(Step::Ends),
        1 => one().prop_map(Step::IsStopped),
        3 => (1u64..700).prop_map(|s| Step::Advances { s }),
        1 => (0usize..4, any::<u64>()).prop_map(|(node, gpus)| Step::Fails { node, gpus }),
        1 => (one(), 0usize..3).prop_map(|(which, class)| Step::Learns { which, class }),
        1 => (0.0..3.0).prop_map(|price| Step::Costs { price }),
    ]
}

/// A policy name, plain or with options.
pub(super) fn spelling() -> impl Strategy<Value = String> {
    let plain = || prop::sample::select(NAMES.to_vec());
    prop_oneof![
        4 => plain().prop_map(str::to_owned),
        1 => plain().prop_map(|name| format!("{name}@1080")),
        1 => plain().prop_map(|name| format!("{name}+zeus")),
        1 => Just("afs:0.5".to_owned()),
        1 => Just("tiresias:300".to_owned()),
    ]
}

pub(super) fn happen(site: &mut Site, sizes: &[u32], name: String, step: Step) {
    let one_of = |site: &Site, which: prop::sample::Index| {
        let running = |job: &wattle_placer::Job| matches!(job.state, State::Running { .. });
        let running = site.running().filter(|(_, job)| running(job));
        let keys: Vec<JobKey> = running.map(|(key, _)| key).collect();
        (!keys.is_empty()).then(|| keys[which.index(keys.len())])
    };
    match step {
        Step::Arrives { gpus, times, class, exclusive, can_stop, deadline_s } => {
            let deadline = deadline_s.map(|s| site.now() + Duration::from_secs(s));
            let duration_alone = deadline_s.map(|s| Duration::from_secs(s / 2));
            let request = GpuRequest { min: gpus, max: gpus * times };
            // Derived from the deadline, so that recorded failures reproduce.
            let priority = u8::from(deadline_s.is_some_and(|s| s % 4 == 0));
            // Only the stages around the policy read it.
            let slack = deadline_s.filter(|s| s % 3 == 0).map(|_| Duration::from_secs(7_200));
            let facts = JobFacts {
                slack,
                request,
                exclusive,
                // Derived from the number in the name, so that recorded failures reproduce.
                consents_to_sharing: name.ends_with(['0', '2', '4', '6', '8']),
                user: name.ends_with(['0', '3', '6', '9']).then(|| Arc::from("ada")),
                priority,
                can_stop,
                deadline,
                duration_alone,
                ..facts(&name, gpus)
            };
            arrive(site, facts, class);
        }
        Step::Ends(which) => {
            if let Some(key) = one_of(site, which) {
                site.job_ended(key);
            }
        }
        Step::IsStopped(which) => {
            if let Some(key) = one_of(site, which) {
                site.job_stopping(key);
            }
        }
        Step::Advances { s } => {
            site.pass(Duration::from_secs(s));
            let done = |key: JobKey, job: &wattle_placer::Job| {
                job.progress.map_or(0, |p| p.step) + s / (1 + key.index() as u64 % 3)
            };
            let reports: Vec<(JobKey, u64)> =
                site.running().map(|(key, job)| (key, done(key, job))).collect();
            for (key, step) in reports {
                let at = site.now();
                let progress = Progress {
                    at,
                    step,
                    steps_total: Some(3_000),
                    steps_per_epoch: Some(100),
                    ..Progress::default()
                };
                site.job_progressed(key, progress);
            }
            let waking = |(_, node): &(_, &wattle_placer::Node)| {
                node.wakefulness == Wakefulness::Waking && s > 120
            };
            let woken: Vec<_> = site.keyed_nodes().filter(waking).map(|(key, _)| key).collect();
            woken.into_iter().for_each(|key| site.wakefulness_changed(key, Wakefulness::Awake));
        }
        Step::Fails { node: i, gpus } => {
            if let Some(&size) = sizes.get(i) {
                site.node_known(NodeFacts { healthy: gpus, ..node(i, size) });
            }
        }
        Step::Learns { which, class } => {
            if let Some(key) = one_of(site, which) {
                learn(site, key, class);
            }
        }
        Step::Costs { price } => site.limits.price = price,
    }
}

proptest! {
    /// Every plan is valid, and a few plans at most leave nothing to do.
    #[test]
    fn plans_are_valid_and_complete(
        sizes in prop::collection::vec(prop_oneof![Just(2u32), Just(4), Just(8)], 1..5),
        tenants_max in 1u32..4,
        nodes_sleep in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
        name in spelling(),
    ) {
        let policy = policy(&name).unwrap();
        let mut site = cluster(&sizes);
        site.limits.tenants_max = tenants_max;
        site.limits.nodes_sleep = nodes_sleep;
        for (i, step) in steps.into_iter().enumerate() {
            happen(&mut site, &sizes, format!("j{i}"), step);
            decide_until_empty(&mut site, &*policy);
            // Stops complete before the next event.
            for round in 0.. {
                let stopping = site.stopping();
                if stopping.is_empty() {
                    break;
                }
                prop_assert!(round < 20, "{name} does not converge");
                for key in stopping {
                    site.job_stopped(key);
                    decide_until_empty(&mut site, &*policy);
                }
            }
        }
    }
}

/// Limits of a round: bounds on power in watts, and whether the grid is dirty.
#[derive(Clone, Copy, Debug)]
struct Limits {
    power_max: Option<u64>,
    admission_limit: Option<u64>,
    preemption_limit: Option<u64>,
    is_dirty: bool,
}

fn limits() -> impl Strategy<Value = Limits> {
    let watts = || prop::option::weighted(0.3, 100u64..3_000);
    (watts(), watts(), watts(), any::<bool>()).prop_map(
        |(power_max, admission_limit, preemption_limit, is_dirty)| Limits {
            power_max,
            admission_limit,
            preemption_limit,
            is_dirty,
        },
    )
}

impl Limits {
    fn apply(self, site: &mut Site) {
        let limits = &mut site.limits;
        limits.power_max = self.power_max.map(Power::from_w);
        limits.caps_enforced = self.power_max.is_some();
        limits.admission_limit = self.admission_limit.map(Power::from_w);
        limits.preemption_limit = self.preemption_limit.map(Power::from_w);
        let later = |h: u64| site.state.now() + Duration::from_secs(3_600 * h);
        limits.grid = self.is_dirty.then(|| {
            let expected = (0..24).map(|h| (later(h), if h == 0 { 500.0 } else { 100.0 }));
            Arc::new(GridForecast { now: 500.0, until: later(1), expected: expected.collect() })
        });
    }
}

proptest! {
    /// A job without a checkpoint signal runs until it ends, under every policy and every limit: a power
    /// limit and a budget stop other jobs, lower caps and hold back starts.
    #[test]
    fn jobs_without_a_checkpoint_are_never_stopped(
        sizes in prop::collection::vec(prop_oneof![Just(2u32), Just(4)], 1..4),
        steps in prop::collection::vec((step(), limits()), 1..40),
        name in spelling(),
    ) {
        let policy = policy(&name).unwrap();
        let mut site = cluster(&sizes);
        let power = gpu_power(40, 250, 100, 300);
        site.gpu_power_known(BTreeMap::from([("v100".to_owned(), power)]));
        for (i, (step, limits)) in steps.into_iter().enumerate() {
            // The user may stop any job; that is not the policy's decision.
            if !matches!(step, Step::IsStopped(_)) {
                happen(&mut site, &sizes, format!("j{i}"), step);
            }
            limits.apply(&mut site);
            for _ in 0..3 {
                let round = solve(policy.as_ref(), site.input());
                assert_consistent(&site, &round);
                let plan = round.plan;
                prop_assert_eq!(check(site.input(), &plan), []);
                for decision in &plan.decisions {
                    let stops = matches!(decision, Decision::Stop { .. } | Decision::Undo { .. });
                    let can_stop = site.job(decision.job()).unwrap().facts.can_stop;
                    prop_assert!(!stops || can_stop, "{name}: {decision:?}");
                }
                site.apply(&plan);
                site.complete_stops();
            }
        }
    }
}

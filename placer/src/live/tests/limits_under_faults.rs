//! Limits of the randomised fault injection: budgets, power limits, jobs with slack, node sleep, the energy
//! ledger, and other placers that take over from the store.
//!
//! Half of these runs have one power limit, no refused caps and placers with other clocks; the limit holds in
//! every second. The others have changing budgets of energy, carbon and power; every entry of the ledger counts
//! once, in proportion to its part after the budget was set.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wattle_common::job::JobSpec;
use wattle_common::messages::{
    BudgetReply, IntensitySeries, JobEnergy, LedgerEntry, SetBudget, SleepState,
};
use wattle_common::rng::Stream;
use wattle_common::{Budget, CarbonIntensity, Power, Timestamp};

use crate::config::node_sleep::SleepConfig;
use crate::live::Event;
use crate::live::tests::fault_injection::one_in;
use crate::live::tests::node::is_live;
use crate::live::tests::power_shares::{HOST, IDLE, draw};
use crate::live::tests::world::World;

/// Interval of ledger entries.
const LEDGER: Duration = Duration::from_secs(10);
/// Three hosts and twelve idle GPUs draw 1.5 kW; twelve GPUs at their lowest cap 2.1 kW.
const LIMIT_KW: f64 = 2.2;
/// Power of a node that sleeps.
const ASLEEP: Power = Power::from_w(30);

/// The limits of one run.
pub(super) struct Limits {
    rng: Stream,
    /// Whether one power limit is in force, instead of changing budgets.
    fixed: bool,
    nodes: Vec<&'static str>,
    metered_until: BTreeMap<&'static str, Timestamp>,
    /// Entries that the placer has not acknowledged.
    waiting: VecDeque<LedgerEntry>,
    acknowledged: Vec<LedgerEntry>,
    /// A budget that was not acknowledged.
    unset: Option<SetBudget>,
    violation: Option<String>,
    /// Whether the faults have ended.
    ended: bool,
}

/// The limits of every second round of seeds.
pub(super) fn of(round: u64, seed: u64) -> Option<Limits> {
    (round % 2 == 1).then(|| Limits {
        rng: Stream::new(seed, "limits"),
        fixed: round % 4 == 1,
        nodes: Vec::new(),
        metered_until: BTreeMap::new(),
        waiting: VecDeque::new(),
        acknowledged: Vec::new(),
        unset: None,
        violation: None,
        ended: false,
    })
}

fn intensity(now: Timestamp) -> IntensitySeries {
    let steps = [(0, 500.0), (40, 100.0), (80, 300.0)];
    let steps = steps.map(|(at, g)| (at, CarbonIntensity::from_g_per_kwh(g))).to_vec();
    let (name, starts_at_us) = ("grid".to_owned(), now - Duration::from_secs(240));
    IntensitySeries { name, starts_at_us, steps, period_s: 120, origins: Vec::new() }
}

fn sleeps_in(world: &World, node: &str, state: SleepState) -> bool {
    world.desired(node).sleep.is_some_and(|sleep| sleep.state == state)
}

impl Limits {
    /// Nodes sleep, and their power is known.
    pub(super) fn begin(&mut self, world: &mut World, nodes: &[&'static str]) {
        self.nodes = nodes.to_vec();
        world.config.sleep = SleepConfig {
            wake_command: Some(vec!["wake".to_owned()]),
            idle_before_sleep_s: 15,
            sleep_timeout_s: 20,
            wake_timeout_s: 60,
            wake_time_s: 20,
            asleep_w: Some(ASLEEP.as_mw() / 1_000),
            host_w: Some(HOST.as_mw() / 1_000),
            gpu_idle_w: Some(IDLE.as_mw() / 1_000),
        };
        for node in nodes {
            world.simulated_sleep(node).can = true;
        }
    }

    /// Sets the power limit, if one is in force throughout, after the nodes' power was metered.
    pub(super) fn set_power_limit(&mut self, world: &mut World) {
        world.pass(10);
        self.meter(world);
        self.deliver(world);
        if self.fixed {
            let budget = Budget::from_human(None, None, Some(LIMIT_KW), None).unwrap();
            self.set(world, SetBudget { budget, intensity: None });
            assert!(self.unset.is_none());
        }
    }

    /// Whether nodes may refuse caps: such a node has its default caps, above any limit.
    pub(super) const fn permits_refusals(&self) -> bool {
        !self.fixed
    }

    /// Gives a job slack.
    pub(super) fn change_job(&mut self, job: &mut JobSpec) {
        job.slack_ms = one_in(&mut self.rng, 3).then(|| 1_000 + self.rng.below(100_000));
        job.max_slowdown_permille = one_in(&mut self.rng, 4).then(|| self.rng.below(500) as u32);
    }

    /// The events of one second.
    pub(super) fn inject(&mut self, world: &mut World) {
        let node = self.nodes[self.rng.below(self.nodes.len() as u64) as usize];
        match self.rng.below(20) {
            0 => {
                let lost = one_in(&mut self.rng, 2);
                world.simulated_sleep(node).ignores_orders = lost;
            }
            1 => {
                let fails = one_in(&mut self.rng, 2).then(|| "device busy".to_owned());
                world.simulated_sleep(node).fails = fails;
            }
            2 | 3 if !self.fixed => {
                let request = self.a_budget(world.now);
                self.set(world, request);
            }
            4 | 5 => {
                let away = self.rng.below(15);
                let ahead_s = if self.fixed { self.rng.below(121) as i64 - 60 } else { 0 };
                world.fail_over(away, ahead_s);
            }
            // The placer is killed in the middle of what follows.
            6 => world.kill_at = Some(world.writes + self.rng.below(4) as usize),
            // An entry is delivered again.
            7 => {
                if let Some(last) = self.acknowledged.last().cloned() {
                    world.deliver(Event::EnergyMetered(Box::new(last)));
                }
            }
            _ => {}
        }
    }

    fn a_budget(&mut self, now: Timestamp) -> SetBudget {
        let energy = one_in(&mut self.rng, 2).then(|| 0.01 + self.rng.unit());
        let carbon = one_in(&mut self.rng, 3).then(|| 0.01 + self.rng.unit());
        let power = one_in(&mut self.rng, 2).then(|| 0.5 + 3.0 * self.rng.unit());
        let budget = Budget::from_human(energy, carbon, power, None).unwrap();
        SetBudget { budget, intensity: Some(intensity(now)) }
    }

    fn set(&mut self, world: &mut World, request: SetBudget) {
        world.budget_reply = None;
        world.deliver(Event::BudgetSet(7, Box::new(request.clone())));
        match world.budget_reply.take() {
            Some(BudgetReply::Stored { .. }) => self.unset = None,
            Some(BudgetReply::Refused { error }) => panic!("{error}"),
            // The placer was killed.
            None => self.unset = Some(request),
        }
    }

    /// Writes the entries that are due.
    fn meter(&mut self, world: &mut World) {
        for (number, node) in self.nodes.clone().into_iter().enumerate() {
            let from = *self.metered_until.entry(node).or_insert(world.now - LEDGER);
            if world.now.since(from) < LEDGER || world.simulated_sleep(node).asleep {
                continue;
            }
            self.metered_until.insert(node, world.now);
            let span = world.now.since(from);
            let gpus = draw(world, number).saturating_sub(HOST).over(span);
            let each = wattle_common::Energy::from_mj(gpus.as_mj() / 4);
            self.waiting.push_back(LedgerEntry {
                unknown: Vec::new(),
                node: wattle_testkit::node(node),
                from_us: from,
                until_us: world.now,
                energy_mj_gpus: vec![Some(each.min(IDLE.over(span))); 4],
                energy_mj_host: HOST.over(span),
                jobs: Vec::<JobEnergy>::new(),
            });
        }
    }

    /// Delivers the entries in order, each until it is acknowledged.
    fn deliver(&mut self, world: &mut World) {
        while let Some(entry) = self.waiting.front().cloned() {
            let placers = world.placers;
            world.deliver(Event::EnergyMetered(Box::new(entry.clone())));
            if world.placers > placers {
                // The placer was killed; this entry comes again later.
                return;
            }
            self.acknowledged.push(entry);
            self.waiting.pop_front();
        }
    }

    /// Ends the faults: operators boot nodes that did not wake, and end a budget that could hold jobs for good.
    pub(super) fn end(&mut self, world: &mut World) {
        world.kill_at = None;
        self.ended = true;
        for node in &self.nodes {
            let sleep = world.simulated_sleep(node);
            (sleep.fails, sleep.ignores_orders) = (None, false);
        }
        if self.fixed {
            return;
        }
        self.deliver(world);
        self.check_spent(world);
        self.set(world, SetBudget { budget: Budget::default(), intensity: None });
        assert!(self.unset.is_none());
    }

    /// Checks the state after each second.
    pub(super) fn check(&mut self, world: &mut World) {
        if let Some(request) = self.unset.clone() {
            self.set(world, request);
        }
        self.meter(world);
        self.deliver(world);
        for node in &self.nodes {
            let (_, launch) = world.reports(node);
            let asleep = world.simulated_sleep(node).asleep;
            assert!(!asleep || !launch.jobs.iter().any(is_live), "{node} sleeps with a live job");
            // An operator boots a node that did not wake, or that counts as awake after a late report.
            let is_lost = sleeps_in(world, node, SleepState::WakeFailed)
                || world.desired(node).sleep.is_none();
            if self.ended && asleep && is_lost {
                world.simulated_sleep(node).asleep = false;
            }
        }
        if !self.fixed {
            return;
        }
        let total: Power = self
            .nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                // A node that was cut off before it read its sleep order counts as asleep.
                let asleep = world.simulated_sleep(node).asleep
                    || sleeps_in(world, node, SleepState::Asleep);
                if asleep { ASLEEP } else { draw(world, number) }
            })
            .sum();
        let limit = Power::from_w_f64(LIMIT_KW * 1e3);
        if total > limit && self.violation.is_none() {
            world.log.push(format!("*** {total} is above {limit}"));
            self.violation = Some(format!("{total} is above the limit of {limit}"));
        }
    }

    /// The energy of the budget's window is that of the entries.
    fn check_spent(&mut self, world: &World) {
        let (Some(set), Some(status)) = (&world.budget, &world.budget_status) else { return };
        if set.since_us != status.window_from_us {
            return;
        }
        let joules = |entry: &LedgerEntry| {
            let from = entry.from_us.max(set.since_us);
            let share = entry.until_us.since(from).as_secs_f64()
                / entry.until_us.since(entry.from_us).as_secs_f64();
            let gpus: f64 = entry.energy_mj_gpus.iter().flatten().map(|energy| energy.as_j()).sum();
            (gpus + entry.energy_mj_host.as_j()) * share
        };
        let counted = self.acknowledged.iter().filter(|entry| entry.until_us > set.since_us);
        let expected: f64 = counted.map(joules).sum();
        let spent = status.energy_mj.as_j();
        if (spent - expected).abs() > 1.0 {
            self.violation = Some(format!("the budget counts {spent} J of {expected} J"));
        }
    }

    /// What did not hold.
    pub(super) fn violation(self) -> Option<String> {
        self.violation
    }
}

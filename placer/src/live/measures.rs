//! The state of the placer in numbers, for metrics. Nothing is decided here.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{FeederStatus, LimitCost, PowerMargin};
use wattle_common::{Energy, Power, Timestamp};

pub use crate::live::events::{EventMeasures, TargetMeasures};
pub use crate::live::expected::{ErrorMeasures, ExpectedMeasures};
pub use crate::live::grid::GridMeasures;
pub use crate::live::twin::TwinMeasures;
pub use crate::live::verdict::Findings;

use crate::live::budget::limit_cost;
use crate::live::{Placer, verdict};
use crate::power::model::{expected_power, least_baseline, reserved_power_sum};

/// The state of the placer in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    /// Number of jobs by phase; of ended jobs, those that are kept.
    pub jobs: BTreeMap<JobPhase, usize>,
    /// Age of the oldest submission that is queued.
    pub oldest_queued: Duration,
    /// Number of nodes that accept jobs, cannot start them, are silent, asleep, or about to wake.
    pub nodes: NodeCounts,
    /// Number of GPUs by use.
    pub gpus: GpuCounts,
    /// Number of planning rounds since the start.
    pub rounds: u64,
    /// Expected power draw, complete nodes.
    pub power_expected: Power,
    /// Power draw without jobs, with every node asleep that may sleep; absent: not known yet.
    pub power_baseline: Option<Power>,
    /// Power reserved for the present jobs, complete nodes; absent: no power limit, or not known yet.
    pub power_reserved: Option<Power>,
    /// The power limit in force: of the budget and of grid events.
    pub power_limit: Option<Power>,
    /// What the power limit costs; absent: no limit, or no price of power.
    pub limit_cost: Option<LimitCost>,
    /// The correction of predicted power by measurements; absent: no power limit.
    pub power_margin: Option<PowerMargin>,
    /// The power of each feeder; empty: not known yet, or no feeder.
    pub feeders: Vec<FeederStatus>,
    /// The grid events.
    pub events: EventMeasures,
    /// The energy price, from 0 (free) to 1 (the highest of the policy).
    pub price: Option<f64>,
    /// What was saved against the former scheduler; absent: not known yet.
    pub twin: Option<TwinMeasures>,
    /// The expected starts and ends, and their errors.
    pub expected: Option<ExpectedMeasures>,
    /// The estimated and the largest permitted increase of mean completion time under the energy aim, shares.
    pub slowdown: Option<(f64, f64)>,
    /// What is wrong with the jobs, the budget and the aim.
    pub findings: Findings,
    /// The budget's window.
    pub window: Option<WindowMeasures>,
    /// Carbon intensity of the grid now, g/kWh.
    pub intensity_g_per_kwh: Option<f64>,
    /// Sources of carbon intensity and electricity price.
    pub grid: GridMeasures,
    /// The instant of the measures.
    pub at: Timestamp,
}

/// Numbers of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Both services have reported recently.
    pub ready: usize,
    /// Both have, and a fault keeps it from starting jobs.
    pub faulty: usize,
    /// A service is silent, and the node is not asleep.
    pub silent: usize,
    /// Asleep or entering sleep.
    pub asleep: usize,
    /// Ordered to wake.
    pub waking: usize,
}

/// Numbers of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuCounts {
    /// With at least one job.
    pub busy: u32,
    /// Free and healthy, on a node that is awake.
    pub free: u32,
    /// Without a job, and not free.
    pub unavailable: u32,
}

/// Consumption of the budget in the open window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowMeasures {
    /// The budget's energy.
    pub energy_limit: Option<Energy>,
    /// Energy consumed.
    pub energy_spent_j: f64,
    /// The budget's carbon, g.
    pub carbon_limit_g: Option<f64>,
    /// Carbon emitted, g; absent: the intensity is not known.
    pub carbon_spent_g: Option<f64>,
    /// Time until the window ends.
    pub left: Duration,
}

impl Placer {
    /// The state in numbers, at the instant of the last event.
    #[must_use]
    pub fn measures(&self) -> Measures {
        let (state, limits) = (self.controller.state(), self.controller.limits());
        let now = state.now();
        let input = self.controller.input();
        let mut jobs = BTreeMap::new();
        let mut oldest_queued = Duration::ZERO;
        for record in self.jobs.all() {
            *jobs.entry(record.phase).or_default() += 1;
            if record.phase == JobPhase::Queued {
                let age = now.since(record.spec.submitted_at_us);
                oldest_queued = oldest_queued.max(age);
            }
        }
        let budget = self.controller.budget();
        let aim = self.controller.aim_status();
        let status = self.spending.status(now, &self.nodes, &self.controller);
        let (record, status) = (self.spending.record(), status.as_ref());
        let seen = verdict::Seen { now, budget: record, status, aim: aim.as_ref() };
        Measures {
            jobs,
            oldest_queued,
            nodes: self.nodes.counts(now),
            gpus: self.gpu_counts(),
            rounds: self.rounds.made(),
            power_expected: expected_power(input),
            power_baseline: least_baseline(input),
            power_reserved: reserved_power_sum(input).filter(|_| limits.is_power_limited()),
            power_limit: limits.power_max,
            limit_cost: limit_cost(now, &self.controller),
            power_margin: self.controller.power_margin(),
            feeders: self.feeders.statuses(&self.controller).unwrap_or_default(),
            events: self.events.measures(now, &self.controller),
            price: match (budget, &aim) {
                (_, Some(aim)) => Some(aim.price),
                (Some(budget), None) => Some(budget.position()),
                (None, None) => None,
            },
            twin: self.twin.measures(),
            expected: ExpectedMeasures::of(&self.controller),
            slowdown: aim.as_ref().and_then(|aim| Some((aim.slowdown()?, aim.max_slowdown))),
            findings: verdict::count(self.jobs.all(), seen),
            window: self.window_measures(),
            intensity_g_per_kwh: limits.grid.as_ref().map(|grid| grid.now),
            grid: self.grid.measures(now),
            at: now,
        }
    }

    fn gpu_counts(&self) -> GpuCounts {
        let mut counts = GpuCounts::default();
        for node in self.controller.state().nodes() {
            let (busy, free) = (node.occupied.count_ones(), node.free().count_ones());
            counts.busy += busy;
            counts.free += free;
            counts.unavailable += node.facts.gpus.saturating_sub(busy + free);
        }
        counts
    }

    fn window_measures(&self) -> Option<WindowMeasures> {
        let record = self.spending.record().filter(|record| record.budget.has_window())?;
        let ledger = self.controller.budget()?.controller().ledger();
        let (open, budget) = (ledger.open(), &record.budget);
        Some(WindowMeasures {
            energy_limit: budget.energy_mj,
            energy_spent_j: open.energy_j,
            carbon_limit_g: budget.carbon_ug.map(wattle_common::Carbon::as_g),
            carbon_spent_g: record.intensity.is_some().then_some(open.carbon_g),
            left: ledger.ends().since(self.controller.state().now()),
        })
    }
}

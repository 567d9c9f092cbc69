//! The budget in force, live: set by a user, charged from the energy ledger, reported in a status.
//!
//! The record is stored before it is acknowledged. The status reflects it after the next planning round, when
//! the orders of that round are stored. The status also names the ledger entries it has
//! counted, so that an entry that arrives again after a restart counts once. The ledger also shows
//! the power of each node's host and of an idle GPU; until both are known, a power limit admits no
//! new job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::bounds::check_budget;
use wattle_common::budget::{Budget, WINDOW_MIN};
use wattle_common::messages::budget::STEPS_MAX;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, BudgetStatus, IntensitySeries, LedgerEntry, LimitCost, SetBudget,
};
use wattle_common::{
    Carbon, CarbonIntensity, Energy, FeederId, NodeId, Power, Timestamp, generation,
};

use crate::GpuPower;
use crate::config::Config;
use crate::controller::budget::ActiveBudget;
use crate::live::nodes::Nodes;
use crate::live::{Action, LiveController, Turn};
use crate::power::budget::{BudgetController, Grid, Series, SeriesError, Spent};
use crate::power::model::{expected_power, least_baseline, least_by_node};

/// Ledger entries shorter than this say nothing about idle power.
const IDLE_SPAN_MIN: Duration = Duration::from_secs(10);

/// Share of a GPU's energy that is attributed to no job if the GPU is idle: the last job may have ended
/// at the entry's begin.
const IDLE_SHARE: f64 = 0.95;

/// The values of the bucket `budget`, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    Aim,
    Budget,
    Status,
}

/// The budget in force.
struct InForce {
    record: BudgetRecord,
    /// Until when each node's energy is counted.
    counted: BTreeMap<NodeId, Timestamp>,
}

/// The spending with which a budget continues; by default its window begins.
#[derive(Default)]
struct Continued {
    open: Option<Spent>,
    /// The position of the price.
    position: f64,
    counted: BTreeMap<NodeId, Timestamp>,
}

/// The budget in force, its spending, and the power of the nodes as the ledger shows it.
pub(super) struct Spending {
    in_force: Option<InForce>,
    /// The generation of the budget for which the last planning round was made.
    planned: u64,
    ledger_power: LedgerPower,
    /// Whether the power of idle GPUs is configured.
    has_idle_power: bool,
    /// The values that the event being handled has changed.
    to_store: BTreeSet<Stored>,
}

/// The power of nodes as the energy ledger shows it.
#[derive(Default)]
struct LedgerPower {
    /// The last mean power of each node's host.
    hosts: BTreeMap<NodeId, Power>,
    /// The lowest mean power of a GPU of each node, with or without jobs.
    lowest: BTreeMap<NodeId, Power>,
    /// The lowest mean power of a GPU without jobs of each node.
    idle: BTreeMap<NodeId, Power>,
}

/// Whether one GPU had no job for nearly all of an entry's time: its energy is attributed to no job.
fn has_idle_gpu(entry: &LedgerEntry) -> bool {
    let least = entry.energy_mj_gpus.iter().flatten().copied().min();
    least.is_some_and(|least| entry.idle() >= least.scale(IDLE_SHARE))
}

/// Why a budget is refused.
#[derive(Debug, thiserror::Error)]
enum BudgetError {
    #[error(
        "a budget's quantities must be greater than 0 and its window from {} s to a year",
        WINDOW_MIN.as_secs()
    )]
    Invalid,
    #[error("{0} intensities; the limit is {STEPS_MAX}")]
    TooManySteps(usize),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error("a carbon budget needs the grid's intensity: give --carbon FILE")]
    NoIntensity,
    #[error(
        "the carbon intensity comes from {0}: omit --carbon, or remove [grid.carbon] from the placer's \
         configuration"
    )]
    Provider(String),
}

/// The series of a message.
fn series(message: &IntensitySeries) -> Result<Series, BudgetError> {
    if message.steps.len() > STEPS_MAX {
        return Err(BudgetError::TooManySteps(message.steps.len()));
    }
    let us = |s: u64| s.saturating_mul(1_000_000);
    let steps = message.steps.iter().map(|(at, g)| (us(*at), g.as_g_per_kwh())).collect();
    Ok(Series::new(message.starts_at_us, steps, us(message.period_s))?)
}

fn grid(record: &BudgetRecord) -> Option<Grid> {
    let message = record.intensity.as_ref()?;
    let series = series(message).ok()?;
    let known_from = series.starts_at();
    let forecast = super::grid::forecast(message, &series);
    Some(Grid::new(series, forecast, known_from))
}

impl Spending {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            in_force: None,
            planned: 0,
            ledger_power: LedgerPower::default(),
            has_idle_power: config.sleep.watts().is_some(),
            to_store: BTreeSet::new(),
        }
    }

    /// The record of the budget in force.
    pub(super) fn record(&self) -> Option<&BudgetRecord> {
        self.in_force.as_ref().map(|in_force| &in_force.record)
    }

    /// The generation of the budget in force; 0: none.
    pub(super) fn generation(&self) -> u64 {
        self.record().map_or(0, |record| record.generation)
    }

    /// Stores all values again.
    pub(super) fn store_again(&mut self) {
        self.to_store = BTreeSet::from([Stored::Aim, Stored::Budget, Stored::Status]);
    }

    /// A user sets a budget; one without limits ends the budget in force. `provider` supplies the carbon
    /// intensity, if one is configured.
    pub(super) fn set(
        &mut self,
        turn: &mut Turn<'_>,
        request: SetBudget,
        provider: Option<String>,
        nodes: &mut Nodes,
    ) -> BudgetReply {
        let budget = request.budget.clone();
        let replaced = self.replacement(turn.now, request, provider, turn.controller);
        let replaced = replaced.map(|(record, continued)| {
            let generation = record.generation;
            self.put_in_force(turn, record, continued, nodes);
            // A repeated request is stored again too, before its answer.
            self.to_store.extend([Stored::Budget, Stored::Status]);
            generation
        });
        match replaced {
            Ok(generation) => BudgetReply::Stored { budget, generation },
            Err(error) => BudgetReply::Refused { error: error.to_string() },
        }
    }

    /// The record of a requested budget, and the spending with which it continues.
    fn replacement(
        &self,
        now: Timestamp,
        request: SetBudget,
        provider: Option<String>,
        controller: &LiveController,
    ) -> Result<(BudgetRecord, Continued), BudgetError> {
        let budget = request.budget;
        if !budget.is_valid() {
            return Err(BudgetError::Invalid);
        }
        request.intensity.as_ref().map(series).transpose()?;
        if request.intensity.is_some()
            && let Some(provider) = provider
        {
            return Err(BudgetError::Provider(provider));
        }
        let known = self.record().and_then(|before| before.intensity.clone());
        let last = self.generation();
        let is_new = self.record().is_none_or(|before| {
            let replaces = request.intensity.is_some() && request.intensity != known;
            before.budget != budget || replaces
        });
        // An equal budget, as of a repeated request, is no change.
        let generation = if is_new || last == 0 { generation::next(last) } else { last };
        let intensity = request.intensity.or(known);
        if budget.carbon_ug.is_some() && intensity.is_none() {
            return Err(BudgetError::NoIntensity);
        }
        // The same budget continues its window.
        let same = self.in_force.as_ref().filter(|before| before.record.budget == budget);
        let since_us = same.map_or(now, |same| same.record.since_us);
        let record = BudgetRecord { generation, budget, since_us, intensity };
        let continued = same.map(|same| {
            let active = controller.budget().map(ActiveBudget::controller);
            Continued {
                open: active.map(|active| *active.ledger().open()),
                position: active.map_or(0.0, BudgetController::position),
                counted: same.counted.clone(),
            }
        });
        Ok((record, continued.unwrap_or_default()))
    }

    /// Restores the budget that was in force before a restart.
    pub(super) fn restore(
        &mut self,
        turn: &mut Turn<'_>,
        record: BudgetRecord,
        status: Option<BudgetStatus>,
        nodes: &mut Nodes,
    ) {
        let status = match check_budget(&record, status.as_ref(), turn.now) {
            Ok(()) => status,
            Err(error) => {
                turn.outbox.alarm_out_of_bounds(turn.now, "the stored budget".to_owned(), &error);
                // Without its status, the budget begins a new window.
                if check_budget(&record, None, turn.now).is_err() {
                    return;
                }
                None
            }
        };
        // The status of a restored store may be newer than its record.
        let planned = status.as_ref().map_or(0, |status| status.observed_generation);
        self.planned = planned.min(record.generation);
        let status = status.filter(|status| status.window_from_us >= record.since_us);
        let open = status.as_ref().map(|status| Spent {
            from_us: status.window_from_us,
            until_us: status.at_us,
            energy_j: status.energy_mj.as_j(),
            carbon_g: status.carbon_ug.unwrap_or_default().as_g(),
        });
        let position =
            status.as_ref().map_or(0.0, |status| status.price_integral.unwrap_or(status.price));
        let counted = status.map(|status| status.counted_until_us).unwrap_or_default();
        let continued = Continued { open, position, counted };
        self.put_in_force(turn, record, continued, nodes);
    }

    fn put_in_force(
        &mut self,
        turn: &mut Turn<'_>,
        record: BudgetRecord,
        continued: Continued,
        nodes: &mut Nodes,
    ) {
        let Continued { open, position, counted } = continued;
        let open = open.unwrap_or(Spent {
            from_us: record.since_us,
            until_us: record.since_us,
            ..Spent::default()
        });
        let budget = record.budget.clone();
        let resumed = BudgetController::resumed(budget, grid(&record), open, position, turn.now);
        turn.controller.set_budget(resumed, turn.now);
        self.in_force = Some(InForce { record, counted });
        // The power limit may be another, and the caps with it.
        nodes.order_all();
        turn.outbox.plan_soon();
    }

    /// Puts another carbon intensity in force; window, spending and price of the budget continue.
    pub(super) fn use_intensity(
        &mut self,
        turn: &mut Turn<'_>,
        series: IntensitySeries,
        nodes: &mut Nodes,
    ) {
        let Some(InForce { record, .. }) = &mut self.in_force else {
            // A budget without limits carries the intensity.
            let (budget, intensity) = (Budget::default(), Some(series));
            let record = BudgetRecord { generation: 1, budget, since_us: turn.now, intensity };
            self.put_in_force(turn, record, Continued::default(), nodes);
            self.to_store.extend([Stored::Budget, Stored::Status]);
            return;
        };
        if record.intensity.as_ref() == Some(&series) {
            return;
        }
        record.intensity = Some(series);
        record.generation = generation::next(record.generation);
        turn.controller.set_grid(grid(record), turn.now);
        self.to_store.extend([Stored::Budget, Stored::Status]);
        self.control(turn, nodes);
    }

    /// A node's entry in the energy ledger arrived.
    pub(super) fn metered(&mut self, turn: &mut Turn<'_>, entry: &LedgerEntry, nodes: &mut Nodes) {
        let span = entry.until_us.since(entry.from_us);
        if span.is_zero() {
            return;
        }
        // Over an interval that was not measured completely, mean power is too low.
        let measured = entry.unknown.iter().all(|unknown| !unknown.unmeasured);
        if let Some(host) = entry.energy_mj_host.mean_power(span).filter(|_| measured) {
            let before = self.ledger_power.hosts.insert(entry.node.clone(), host);
            if before != Some(host) {
                nodes.outdate_plan();
            }
        }
        if span >= IDLE_SPAN_MIN && measured {
            let gpus = entry.energy_mj_gpus.iter().flatten();
            let least = gpus.filter_map(|energy| energy.mean_power(span)).min();
            if let Some(least) = least {
                let mut known = vec![&mut self.ledger_power.lowest];
                if has_idle_gpu(entry) {
                    known.push(&mut self.ledger_power.idle);
                }
                for known in known {
                    let power = known.entry(entry.node.clone()).or_insert(least);
                    *power = (*power).min(least);
                }
            }
        }
        let Some(in_force) = &mut self.in_force else { return };
        let counted = in_force.counted.entry(entry.node.clone()).or_default();
        // Energy from before the budget, or counted already, does not count.
        let from = entry.from_us.max(*counted).max(in_force.record.since_us);
        if entry.until_us <= from {
            return;
        }
        *counted = entry.until_us;
        let share = entry.until_us.since(from).as_secs_f64() / span.as_secs_f64();
        let joules = (entry.gpus() + entry.energy_mj_host).as_j() * share;
        turn.controller.metered(from, entry.until_us, joules);
        turn.controller.control_soon(turn.now);
        self.control(turn, nodes);
        self.to_store.insert(Stored::Status);
    }

    /// A planning round was made for the budget in force; the status that states it follows the round's orders.
    pub(super) fn planned(&mut self) {
        let generation = self.generation();
        if self.planned != generation {
            self.planned = generation;
            self.to_store.insert(Stored::Status);
        }
    }

    /// The correction of predicted power has changed.
    pub(super) fn margin_changed(&mut self) {
        if self.in_force.is_some() {
            self.to_store.insert(Stored::Status);
        }
    }

    /// Takes the control steps of the budget and of the energy aim that are due.
    pub(super) fn control(&mut self, turn: &mut Turn<'_>, nodes: &Nodes) {
        turn.controller.events().gpu_power_known(self.gpu_power(nodes));
        let aim_before = turn.controller.aim_status();
        let controlled = turn.controller.control(turn.now);
        if turn.controller.aim_status() != aim_before {
            self.to_store.insert(Stored::Aim);
        }
        if controlled.limits_changed {
            self.to_store.insert(Stored::Status);
        }
        if controlled.plan_again {
            turn.outbox.plan_soon();
        }
    }

    /// The power of each GPU type, from the nodes' reports and the ledger: the highest of all nodes.
    fn gpu_power(&self, nodes: &Nodes) -> BTreeMap<String, GpuPower> {
        let mut by_type: BTreeMap<String, GpuPower> = BTreeMap::new();
        for (id, report) in nodes.power_reports() {
            let Some(host) = self.ledger_power.hosts.get(id).copied() else { continue };
            // Until a GPU without jobs was metered, the lowest power of any is an upper bound.
            let metered = self.ledger_power.idle.get(id).or(self.ledger_power.lowest.get(id));
            let idle = metered.copied().unwrap_or(Power::ZERO);
            for gpu in &report.gpus {
                // The power of a GPU without caps is unbounded.
                let Some(most) = gpu.cap_mw_default.or(gpu.cap_mw_max) else { continue };
                // Only busy GPUs may have been metered. No cap is below the power of an idle GPU.
                let idle = gpu.cap_mw_min.map_or(idle, |least| idle.min(least));
                let power = GpuPower { idle, most, cap_min: gpu.cap_mw_min, host };
                // At every wake-up, for every GPU: the name is copied once for each type.
                let Some(known) = by_type.get_mut(&gpu.gpu_type) else {
                    by_type.insert(gpu.gpu_type.clone(), power);
                    continue;
                };
                known.idle = known.idle.max(power.idle);
                known.most = known.most.max(power.most);
                known.cap_min = known.cap_min.max(power.cap_min);
                known.host = known.host.max(power.host);
            }
        }
        by_type
    }

    /// Whether the idle power of every node is metered or configured.
    fn is_idle_power_known(&self, nodes: &Nodes) -> bool {
        self.has_idle_power || nodes.ids().all(|node| self.ledger_power.idle.contains_key(node))
    }

    /// What the site or a feeder draws without jobs, at least: until an idle GPU of every node was metered, its hosts.
    /// `None`: not known, as where nodes may sleep.
    pub(super) fn idle_at_least(
        &self,
        feeder: Option<&FeederId>,
        nodes: &Nodes,
        controller: &LiveController,
    ) -> Option<Power> {
        let input = controller.input();
        let carried = match feeder {
            None => None,
            Some(feeder) => Some(input.limits.carried.on(feeder)?),
        };
        let share = |node: &NodeId| {
            carried.map_or(1.0, |of| of.shares.get(node).copied().unwrap_or_default())
        };
        let host = |(node, power): (&NodeId, &Power)| share(node) * power.as_w();
        let hosts_w = || self.ledger_power.hosts.iter().map(host).sum::<f64>();
        let hosts_w = (!input.limits.nodes_sleep).then(hosts_w);
        let least = least_by_node(input).filter(|_| self.is_idle_power_known(nodes));
        let nodes = input.state.nodes().iter();
        let least_w = least.map(|least| {
            nodes.zip(&least).map(|(node, power)| share(&node.facts.id) * power.as_w()).sum()
        });
        let static_w = carried.map_or(0.0, |of| of.static_load.as_w());
        least_w.or(hosts_w).map(|nodes_w: f64| Power::from_w_f64(nodes_w + static_w))
    }

    /// Stores the budget, its status and the state of the energy aim where they have changed.
    pub(super) fn store(
        &mut self,
        now: Timestamp,
        nodes: &Nodes,
        controller: &LiveController,
        out: &mut Vec<Action>,
    ) {
        for value in std::mem::take(&mut self.to_store) {
            match value {
                Stored::Aim => out.extend(controller.aim_status().map(Action::StoreAimStatus)),
                Stored::Budget => {
                    let record = self.record().cloned().map(Box::new);
                    out.extend(record.map(Action::StoreBudget));
                }
                Stored::Status => {
                    let status = self.status(now, nodes, controller).map(Box::new);
                    out.extend(status.map(Action::StoreBudgetStatus));
                }
            }
        }
    }

    /// The status of the budget in force.
    pub(super) fn status(
        &self,
        now: Timestamp,
        nodes: &Nodes,
        controller: &LiveController,
    ) -> Option<BudgetStatus> {
        let (in_force, active) = (self.in_force.as_ref()?, controller.budget()?);
        let (limits, input) = (controller.limits(), controller.input());
        let budget = active.controller();
        let (ledger, open) = (budget.ledger(), budget.ledger().open());
        let has_grid = in_force.record.intensity.is_some();
        let has_window = in_force.record.budget.has_window();
        let grams = |g: f64| Carbon::from_ug((g * 1e6).round() as u64);
        let intensity = limits.grid.as_ref().map(|grid| grid.now);
        Some(BudgetStatus {
            at_us: now,
            observed_generation: self.planned,
            window_from_us: open.from_us,
            window_until_us: ledger.ends(),
            energy_mj: Energy::from_mj((open.energy_j * 1e3).round() as u64),
            carbon_ug: has_grid.then(|| grams(open.carbon_g)),
            overrun_previous: ledger.closed().last().map(|window| budget.overrun(window)),
            price: active.position(),
            price_integral: Some(budget.position()),
            policy_price: limits.price,
            power_mw_expected: expected_power(input),
            power_mw_baseline: least_baseline(input).filter(|_| self.is_idle_power_known(nodes)),
            power_mw_budget_mean: has_window.then(|| Power::from_w_f64(budget.mean_w(now))),
            intensity_mg_per_kwh: intensity.map(CarbonIntensity::from_g_per_kwh),
            limit_cost: limit_cost(now, controller),
            power_margin: limits.power_max.and_then(|_| controller.power_margin()),
            counted_until_us: in_force.counted.clone(),
        })
    }
}

/// What the power limit costs; `None` without a limit, or where no price of power is known.
pub(super) fn limit_cost(now: Timestamp, controller: &LiveController) -> Option<LimitCost> {
    controller.limits().power_max?;
    let cost = controller.limit_cost();
    let price_s_per_kwh = cost.price_s_per_kwh();
    let saved_s_per_kw = cost.saved_s(now, Power::from_w(1_000));
    let is_priced = price_s_per_kwh > 0.0 || saved_s_per_kw.is_some_and(|saved_s| saved_s > 0.0);
    is_priced.then_some(LimitCost { price_s_per_kwh, saved_s_per_kw })
}

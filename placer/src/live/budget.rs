//! The budget in force, live: set by a user, charged from the energy ledger, reported in a status.
//!
//! The record is stored before it is acknowledged. The status reflects it after the next planning round, when
//! the orders of that round are stored. The status also names the ledger entries it has
//! counted, so that an entry that arrives again after a restart counts once. The ledger also shows
//! the power of each node's host and of an idle GPU; until both are known, a power limit admits no
//! new job.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::bounds::check_budget;
use wattle_common::budget::WINDOW_MIN;
use wattle_common::messages::budget::STEPS_MAX;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, BudgetStatus, IntensitySeries, LedgerEntry, SetBudget,
};
use wattle_common::{Carbon, CarbonIntensity, Energy, NodeId, Power, Timestamp, generation};

use crate::GpuPower;
use crate::live::{Action, Placer};
use crate::power::budget::{BudgetController, Grid, Series, SeriesError, Spent};
use crate::power::model::{expected_power, least_baseline};

/// Ledger entries shorter than this say nothing about idle power.
const IDLE_SPAN_MIN: Duration = Duration::from_secs(10);

/// Share of a GPU's energy that is attributed to no job if the GPU is idle: the last job may have ended
/// at the entry's begin.
const IDLE_SHARE: f64 = 0.95;

/// The budget in force, as it is stored.
pub(super) struct StoredBudget {
    pub(super) record: BudgetRecord,
    /// Until when each node's energy is counted.
    counted: BTreeMap<NodeId, Timestamp>,
}

/// The power of nodes as the energy ledger shows it.
#[derive(Default)]
pub(super) struct LedgerPower {
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

pub(super) fn grid(record: &BudgetRecord) -> Option<Grid> {
    let message = record.intensity.as_ref()?;
    let series = series(message).ok()?;
    let known_from = series.starts_at();
    let forecast = super::grid::forecast(message, &series);
    Some(Grid::new(series, forecast, known_from))
}

impl Placer {
    /// A user sets a budget; one without limits ends the budget in force.
    pub(super) fn budget_set(&mut self, now: Timestamp, request: SetBudget) -> BudgetReply {
        let budget = request.budget;
        match self.replace_budget(now, request) {
            Ok(generation) => BudgetReply::Stored { budget, generation },
            Err(error) => BudgetReply::Refused { error: error.to_string() },
        }
    }

    /// Puts a budget in force, and returns its generation.
    fn replace_budget(&mut self, now: Timestamp, request: SetBudget) -> Result<u64, BudgetError> {
        let budget = request.budget;
        if !budget.is_valid() {
            return Err(BudgetError::Invalid);
        }
        request.intensity.as_ref().map(series).transpose()?;
        if request.intensity.is_some()
            && let Some(provider) = self.grid.carbon_provider()
        {
            return Err(BudgetError::Provider(provider));
        }
        let before = self.budget.take();
        let known = before.as_ref().and_then(|before| before.record.intensity.clone());
        let last = before.as_ref().map_or(0, |before| before.record.generation);
        let is_new = before.as_ref().is_none_or(|before| {
            let replaces = request.intensity.is_some() && request.intensity != known;
            before.record.budget != budget || replaces
        });
        // An equal budget, as of a repeated request, is no change.
        let generation = if is_new || last == 0 { generation::next(last) } else { last };
        let intensity = request.intensity.or(known);
        if budget.carbon_ug.is_some() && intensity.is_none() {
            self.budget = before;
            return Err(BudgetError::NoIntensity);
        }
        // The same budget continues its window.
        let same = before.filter(|before| before.record.budget == budget);
        let since_us = same.as_ref().map_or(now, |same| same.record.since_us);
        let record = BudgetRecord { generation, budget, since_us, intensity };
        let active =
            self.controller.budget().map(crate::controller::budget::ActiveBudget::controller);
        let (open, position) = match active.filter(|_| same.is_some()) {
            Some(controller) => (Some(*controller.ledger().open()), controller.position()),
            None => (None, 0.0),
        };
        let counted = same.map(|same| same.counted).unwrap_or_default();
        self.put_in_force(now, record, open, position, counted);
        self.store_budget = true;
        Ok(generation)
    }

    /// Restores the budget that was in force before a restart.
    pub(super) fn restore_budget(
        &mut self,
        now: Timestamp,
        record: Option<BudgetRecord>,
        status: Option<BudgetStatus>,
    ) {
        let Some(record) = record else { return };
        let status = match check_budget(&record, status.as_ref(), now) {
            Ok(()) => status,
            Err(error) => {
                self.outbox.alarm_out_of_bounds(now, "the stored budget".to_owned(), &error);
                // Without its status, the budget begins a new window.
                if check_budget(&record, None, now).is_err() {
                    return;
                }
                None
            }
        };
        // The status of a restored store may be newer than its record.
        let planned = status.as_ref().map_or(0, |status| status.observed_generation);
        self.budget_planned = planned.min(record.generation);
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
        self.put_in_force(now, record, open, position, counted);
    }

    pub(super) fn put_in_force(
        &mut self,
        now: Timestamp,
        record: BudgetRecord,
        open: Option<Spent>,
        position: f64,
        counted: BTreeMap<NodeId, Timestamp>,
    ) {
        let open = open.unwrap_or(Spent {
            from_us: record.since_us,
            until_us: record.since_us,
            ..Spent::default()
        });
        let controller =
            BudgetController::resumed(record.budget, grid(&record), open, position, now);
        self.controller.set_budget(controller, now);
        self.budget = Some(StoredBudget { record, counted });
        self.nodes.order_all();
        self.outbox.plan_soon();
    }

    /// A node's entry in the energy ledger arrived.
    pub(super) fn metered(&mut self, now: Timestamp, entry: &LedgerEntry) {
        let span = entry.until_us.since(entry.from_us);
        if span.is_zero() {
            return;
        }
        // Over an interval that was not measured completely, mean power is too low.
        let measured = entry.unknown.iter().all(|unknown| !unknown.unmeasured);
        if let Some(host) = entry.energy_mj_host.mean_power(span).filter(|_| measured) {
            let before = self.ledger_power.hosts.insert(entry.node.clone(), host);
            if before != Some(host) {
                self.nodes.outdate_plan();
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
        let Some(stored) = &mut self.budget else { return };
        let counted = stored.counted.entry(entry.node.clone()).or_default();
        // Energy from before the budget, or counted already, does not count.
        let from = entry.from_us.max(*counted).max(stored.record.since_us);
        if entry.until_us <= from {
            return;
        }
        *counted = entry.until_us;
        let gpus: Energy = entry.energy_mj_gpus.iter().flatten().copied().sum();
        let share = entry.until_us.since(from).as_secs_f64() / span.as_secs_f64();
        let joules = (gpus + entry.energy_mj_host).as_j() * share;
        self.controller.metered(from, entry.until_us, joules);
        self.controller.control_soon(now);
        self.control_budget(now);
        self.store_status = true;
    }

    /// A planning round was made for the budget in force; the status that states it follows the round's orders.
    pub(super) fn note_planned_budget(&mut self) {
        let generation = self.budget.as_ref().map_or(0, |stored| stored.record.generation);
        self.store_status |= self.budget_planned != generation;
        self.budget_planned = generation;
    }

    /// Takes the budget's control step, if one is due.
    pub(super) fn control_budget(&mut self, now: Timestamp) {
        let gpu_power = self.gpu_power();
        self.controller.events().gpu_power_known(gpu_power);
        let aim_before = self.controller.aim_status();
        let controlled = self.controller.control(now);
        self.store_aim |= self.controller.aim_status() != aim_before;
        self.store_status |= controlled.limits_changed;
        if controlled.plan_again {
            self.outbox.plan_soon();
        }
    }

    /// The power of each GPU type, from the nodes' reports and the ledger: the highest of all nodes.
    fn gpu_power(&self) -> BTreeMap<String, GpuPower> {
        let mut by_type: BTreeMap<String, GpuPower> = BTreeMap::new();
        for (id, report) in self.nodes.power_reports() {
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
    fn is_idle_power_known(&self) -> bool {
        let configured = self.config.sleep.watts().is_some();
        configured || self.nodes.ids().all(|node| self.ledger_power.idle.contains_key(node))
    }

    /// Stores the budget, its status and the state of the energy aim where they have changed.
    pub(super) fn store_spending(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.store_aim)
            && let Some(status) = self.controller.aim_status()
        {
            out.push(Action::StoreAimStatus(status));
        }
        let (set, changed) =
            (std::mem::take(&mut self.store_budget), std::mem::take(&mut self.store_status));
        let (Some(stored), Some(active)) = (&self.budget, self.controller.budget()) else { return };
        if set {
            out.push(Action::StoreBudget(Box::new(stored.record.clone())));
        }
        if !set && !changed {
            return;
        }
        let (controller, limits) = (active.controller(), self.controller.limits());
        let (ledger, input) = (controller.ledger(), self.controller.input());
        let open = ledger.open();
        let has_grid = stored.record.intensity.is_some();
        let has_window = stored.record.budget.has_window();
        let grams = |g: f64| Carbon::from_ug((g * 1e6).round() as u64);
        let intensity = limits.grid.as_ref().map(|grid| grid.now);
        out.push(Action::StoreBudgetStatus(Box::new(BudgetStatus {
            at_us: now,
            observed_generation: self.budget_planned,
            window_from_us: open.from_us,
            window_until_us: ledger.ends(),
            energy_mj: Energy::from_mj((open.energy_j * 1e3).round() as u64),
            carbon_ug: has_grid.then(|| grams(open.carbon_g)),
            overrun_previous: ledger.closed().last().map(|window| controller.overrun(window)),
            price: active.position(),
            price_integral: Some(controller.position()),
            policy_price: limits.price,
            power_mw_expected: expected_power(input),
            power_mw_baseline: least_baseline(input).filter(|_| self.is_idle_power_known()),
            power_mw_budget_mean: has_window.then(|| Power::from_w_f64(controller.mean_w(now))),
            intensity_mg_per_kwh: intensity.map(CarbonIntensity::from_g_per_kwh),
            counted_until_us: stored.counted.clone(),
        })));
    }
}

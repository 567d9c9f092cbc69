//! The budget that stands, live: set by a person, steered by the energy ledger, told in a status.
//!
//! Stored before it is acknowledged; the status says which entries of the ledger it has counted, so
//! that one that comes again after a restart counts once. What a node draws beside its cards, and what
//! an idle card draws, is learned from the ledger; until then nothing new starts under a power limit.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::budget::WINDOW_MIN;
use wattle_common::messages::budget::STEPS_MAX;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, BudgetStatus, IntensitySeries, LedgerEntry, SetBudget,
};
use wattle_common::{Carbon, CarbonIntensity, Energy, NodeId, Power, Timestamp};

use crate::live::{Action, Placer};
use crate::policies::RELATIVE_PRICES;
use crate::power::budget::{BudgetController, ForecastSource, Grid, Series, Spent};
use crate::power::model::{PowerEstimate, enforced_cap, expected_power, least_baseline, min_power};
use crate::{CardPower, PlanningInput};

/// The lowest mean power of an idle card is looked for in entries at least so long.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// A budget under way.
pub(super) struct ActiveBudget {
    pub(super) record: BudgetRecord,
    steering: BudgetController,
    next: Timestamp,
    position: f64,
    counted: BTreeMap<NodeId, Timestamp>,
}

/// What the ledger has shown of nodes.
#[derive(Default)]
pub(super) struct Seen {
    /// What each node draws beside its cards.
    hosts: BTreeMap<NodeId, Power>,
    /// The least a card of a node drew over an entry.
    idle: BTreeMap<NodeId, Power>,
}

/// The series of a message.
fn series(said: &IntensitySeries) -> Result<Series, String> {
    if said.steps.len() > STEPS_MAX {
        return Err(format!("{} intensities; at most {STEPS_MAX} are taken", said.steps.len()));
    }
    let us = |s: u64| s.saturating_mul(1_000_000);
    let steps = said.steps.iter().map(|(at, g)| (us(*at), g.as_g_per_kwh())).collect();
    Series::new(said.starts_at_us, steps, us(said.period_s)).map_err(|error| error.to_string())
}

fn grid(record: &BudgetRecord) -> Option<Grid> {
    let series = series(record.intensity.as_ref()?).ok()?;
    let seen_from = series.starts_at();
    Some(Grid::new(series, ForecastSource::Persistence, seen_from))
}

impl Placer {
    /// A person sets a budget, or one without limits to end the one that stands.
    pub(super) fn budget_set(&mut self, now: Timestamp, asked: SetBudget) -> BudgetReply {
        let refused = |error: String| BudgetReply::Refused { error };
        let budget = asked.budget;
        if !budget.is_valid() {
            return refused(format!(
                "a budget's quantities must be greater than 0 and its window from {} s to a year",
                WINDOW_MIN.as_secs()
            ));
        }
        if let Some(Err(error)) = asked.intensity.as_ref().map(series) {
            return refused(error);
        }
        let before = self.budget.as_ref().map(|standing| &standing.record);
        let intensity = asked.intensity.or_else(|| before.and_then(|b| b.intensity.clone()));
        if budget.carbon_ug.is_some() && intensity.is_none() {
            return refused(
                "a carbon budget needs the grid's intensity: give --carbon FILE".into(),
            );
        }
        // The same budget again goes on with its window.
        let since_us =
            before.filter(|before| before.budget == budget).map_or(now, |before| before.since_us);
        let goes_on = before.is_some_and(|before| before.budget == budget);
        let record = BudgetRecord { budget, since_us, intensity };
        let kept = self.budget.take().filter(|_| goes_on);
        let (open, position, counted) = match kept {
            Some(kept) => {
                (Some(*kept.steering.ledger().open()), kept.steering.position(), kept.counted)
            }
            None => (None, 0.0, BTreeMap::new()),
        };
        self.budget_stands(now, record, open, position, counted);
        self.store_budget = true;
        BudgetReply::Stored { budget }
    }

    /// What lies in the bucket when the placer starts.
    pub(super) fn recall_budget(
        &mut self,
        now: Timestamp,
        record: Option<BudgetRecord>,
        status: Option<BudgetStatus>,
    ) {
        let Some(record) = record else { return };
        let status = status.filter(|status| status.window_from_us >= record.since_us);
        let open = status.as_ref().map(|status| Spent {
            from_us: status.window_from_us,
            until_us: status.at_us,
            energy_j: status.energy_mj.as_j(),
            carbon_g: status.carbon_ug.unwrap_or_default().as_g(),
        });
        let position = status.as_ref().map_or(0.0, |status| status.price);
        let counted = status.map(|status| status.counted_until_us).unwrap_or_default();
        self.budget_stands(now, record, open, position, counted);
    }

    fn budget_stands(
        &mut self,
        now: Timestamp,
        record: BudgetRecord,
        open: Option<Spent>,
        position: f64,
        counted: BTreeMap<NodeId, Timestamp>,
    ) {
        let grid = grid(&record);
        let budget = record.budget;
        let open = open.unwrap_or(Spent {
            from_us: record.since_us,
            until_us: record.since_us,
            ..Spent::default()
        });
        let steering = BudgetController::resumed(budget, grid, open, position, now);
        self.budget = Some(ActiveBudget { record, steering, next: now, position, counted });
        self.to_order.extend(self.nodes.keys().cloned());
        self.plan_soon(now);
    }

    /// A node says what it has spent.
    pub(super) fn metered(&mut self, now: Timestamp, entry: &LedgerEntry) {
        let span = entry.until_us.since(entry.from_us);
        if span.is_zero() {
            return;
        }
        if let Some(host) = entry.energy_mj_host.mean_power(span) {
            self.seen.hosts.insert(entry.node.clone(), host);
        }
        if span >= LONG_ENOUGH {
            let cards = entry.energy_mj_gpus.iter().flatten();
            let least = cards.filter_map(|energy| energy.mean_power(span)).min();
            if let Some(least) = least {
                let known = self.seen.idle.entry(entry.node.clone()).or_insert(least);
                *known = (*known).min(least);
            }
        }
        let Some(standing) = &mut self.budget else { return };
        let counted = standing.counted.entry(entry.node.clone()).or_default();
        // What was spent before the budget stood does not count, nor does an entry that comes again.
        let from = entry.from_us.max(*counted).max(standing.record.since_us);
        if entry.until_us <= from {
            return;
        }
        *counted = entry.until_us;
        let cards: Energy = entry.energy_mj_gpus.iter().flatten().copied().sum();
        let share = entry.until_us.since(from).as_secs_f64() / span.as_secs_f64();
        let joules = (cards + entry.energy_mj_host).as_j() * share;
        standing.steering.spent(from, entry.until_us, joules);
        standing.next = now;
        self.steer(now);
        self.store_status = true;
    }

    /// Asks the steering, if its time has come, and tells the problem.
    pub(super) fn steer(&mut self, now: Timestamp) {
        self.know_draws();
        let Some(standing) = &mut self.budget else { return };
        self.limits.power_max = standing.record.budget.power_mw;
        self.limits.caps_enforced = self.limits.power_max.is_some();
        if now < standing.next {
            return;
        }
        let prices = self.policy.capabilities().prices;
        let least = min_power(
            PlanningInput::new(&self.state, &self.limits),
            PowerEstimate::under(self.policy.as_ref()),
        );
        let orders = standing.steering.steer(now, least);
        standing.next = orders.again_at;
        let has_window = standing.record.budget.has_window();
        let price =
            if has_window { prices.unwrap_or(RELATIVE_PRICES).at(orders.position) } else { 0.0 };
        let differs = |a: f64, b: f64| a.total_cmp(&b).is_ne();
        let changed = differs(price, self.limits.price)
            || orders.admission_limit != self.limits.admission_limit
            || orders.preemption_limit.is_some()
            || differs(orders.carbon_ratio, self.limits.carbon_ratio);
        standing.position = orders.position;
        self.limits.price = price;
        self.limits.price_sets_clocks = has_window;
        self.limits.admission_limit = orders.admission_limit;
        self.limits.preemption_limit = orders.preemption_limit;
        self.limits.carbon_ratio = orders.carbon_ratio;
        self.limits.grid = orders.outlook;
        if changed {
            self.store_status = true;
            self.plan_soon(now);
        }
    }

    /// When the steering is to be asked.
    pub(super) fn steers_at(&self) -> Option<Timestamp> {
        self.budget.as_ref().map(|standing| standing.next)
    }

    /// What cards of each kind draw, as reports and the ledger have it.
    fn know_draws(&mut self) {
        let mut draws: BTreeMap<String, CardPower> = BTreeMap::new();
        for (id, state) in &self.nodes {
            let Some((report, _)) = &state.power else { continue };
            let Some(host) = self.seen.hosts.get(id).copied() else { continue };
            let idle = self.seen.idle.get(id).copied().unwrap_or(Power::ZERO);
            for card in &report.gpus {
                // A card that cannot be capped may draw anything.
                let Some(most) = card.cap_mw_default.or(card.cap_mw_max) else { continue };
                let draw = CardPower { idle, most, cap_least: card.cap_mw_min, host };
                draws
                    .entry(card.gpu_type.clone())
                    .and_modify(|known| {
                        known.idle = known.idle.max(draw.idle);
                        known.most = known.most.max(draw.most);
                        known.cap_least = known.cap_least.max(draw.cap_least);
                        known.host = known.host.max(draw.host);
                    })
                    .or_insert(draw);
            }
        }
        self.state.gpu_power_known(draws);
    }

    /// The cap that holds a card to what it was reserved_power to draw, where a power limit stands.
    pub(super) fn enforced_cap(&self, node: &NodeId, gpu: u32) -> Option<Power> {
        enforced_cap(self.input(), self.state.node_key(node)?, gpu)
    }

    /// Writes what has changed.
    pub(super) fn store_spending(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let (set, told) =
            (std::mem::take(&mut self.store_budget), std::mem::take(&mut self.store_status));
        let Some(standing) = &self.budget else { return };
        if set {
            out.push(Action::StoreBudget(Box::new(standing.record.clone())));
        }
        if !set && !told {
            return;
        }
        let (steering, ledger) = (&standing.steering, standing.steering.ledger());
        let open = ledger.open();
        let grid = standing.record.intensity.is_some();
        let has_window = standing.record.budget.has_window();
        let grams = |g: f64| Carbon::from_ug((g * 1e6).round() as u64);
        let now_g = self.limits.grid.as_ref().map(|grid| grid.now);
        out.push(Action::StoreBudgetStatus(Box::new(BudgetStatus {
            at_us: now,
            window_from_us: open.from_us,
            window_until_us: ledger.ends(),
            energy_mj: Energy::from_mj((open.energy_j * 1e3).round() as u64),
            carbon_ug: grid.then(|| grams(open.carbon_g)),
            overrun_previous: ledger.closed().last().map(|window| steering.overrun(window)),
            price: standing.position,
            policy_price: self.limits.price,
            power_mw_expected: expected_power(self.input()),
            power_mw_baseline: least_baseline(self.input()),
            power_mw_budget_mean: has_window.then(|| Power::from_w_f64(steering.mean_w(now))),
            intensity_mg_per_kwh: now_g.map(CarbonIntensity::from_g_per_kwh),
            counted_until_us: standing.counted.clone(),
        })));
    }
}

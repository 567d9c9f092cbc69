//! The policy `wattle`: a market for GPU-seconds, and for power where it is limited.
//!
#![doc = include_str!("wattle/README.md")]

mod allocation_cache;
mod bidders;
mod clearing;
mod incremental;
mod joint_curve;
mod knapsack;
mod local_limits;
mod market;
mod pair_selection;
mod pairing;
mod power_knapsack;
mod power_shares;
mod power_supply;
mod priced_curve;
mod prices;
mod rounding;
mod upper_envelope;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::allocation::capacity::{FreeCapacity, NodeCounts, Scope};
use crate::allocation::settling::plan_when_settled;
use crate::allocation::transition::Target;
use crate::plan::capabilities::PriceRange;
use crate::plan::input::{PlanningInput, PolicyCache};
use crate::plan::{Blocked, Plan, reason::Reason};
use crate::policies::elastic::{ElasticJob, Sizing, measure_at_default};
use crate::policies::gpu_type_assignment::assign_types_by_turns;
use crate::policies::wattle::allocation_cache::{AllocationCache, Conditions, Grants};
use crate::policies::wattle::bidders::{Bidder, PATIENCE, PATIENCE_S, build_bids, fixed_gpus};
use crate::policies::wattle::clearing::clear;
use crate::policies::wattle::incremental::{next_full_round, solve_incremental};
use crate::policies::wattle::joint_curve::SharedJointCurves;
use crate::policies::wattle::knapsack::UnusedGpuCost;
use crate::policies::wattle::local_limits::LocalLimits;
use crate::policies::wattle::market::{Bid, ClearedMarket, Market, MarketRules, MarketSupply};
use crate::policies::wattle::pairing::Pairing;
use crate::policies::wattle::power_shares::{limit_unknown_power, share_power};
use crate::policies::wattle::power_supply::PowerSupply;
use crate::policies::wattle::prices::{PriceForecast, Prices};
use crate::policies::wattle::rounding::Rounding;
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Reads, Service};
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::State;
use crate::state::operating_points::OperatingPoint;

/// The long-run price of a GPU-second, s.
const LONG_RUN_PRICE: f64 = 0.1;
/// The price forecast's time constant, in mean durations of a job.
const TAU_DURATIONS: f64 = 6.0;
/// That time constant before any job has completed, s, and its weight in jobs.
const TAU_PRIOR_S: f64 = 100.0 * 3_600.0;
const TAU_PRIOR_JOBS: f64 = 30.0;
/// The prices of a joule between which plans change, s/J: below the least only time counts; above the
/// greatest every job is at its lowest power.
const TIME_PRICES: PriceRange = PriceRange { least: 1e-5, most: 1.0 };
/// The time to the next round if the remaining work of a job is estimated, or a job waits.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1_800);

/// A market for GPU-seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wattle;

impl Wattle {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "wattle",
        rule: "elastic: least completion time plus price times energy, by a market for GPUs; sizes, clocks and pairs together",
        source: "this project",
        build: Build::Plain(|| Box::new(Wattle)),
    };
}

impl Policy for Wattle {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reads: Reads::All,
            is_elastic: true,
            shares_gpus: true,
            has_trials: true,
            sets_gpus: true,
            prices: Some(TIME_PRICES),
            follows_grid: true,
            serves: Service::ShortestFirst { patience: PATIENCE, patience_s: PATIENCE_S },
            ..Capabilities::default()
        }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = solve_incremental(input).unwrap_or_else(|| solve_full(input));
        // While jobs wait, arrivals and completions lead to rounds soon enough.
        if plan.blocked.is_none() {
            plan_when_settled(input, &mut plan);
        }
        plan
    }
}

/// A full round: all GPUs are allocated from scratch.
fn solve_full(input: PlanningInput<'_>) -> Plan {
    let mut sizing = Sizing::of(input);
    sizing.jobs.extend(jobs_returning_to_queue(input));
    sizing.jobs.sort_by_key(|elastic| elastic.job.arrival);
    assign_gpu_types(input, &mut sizing);
    let mut by_gpu_type: BTreeMap<&str, Vec<ElasticJob<'_>>> = BTreeMap::new();
    for elastic in std::mem::take(&mut sizing.jobs) {
        by_gpu_type.entry(elastic.gpu_type()).or_default().push(elastic);
    }
    let mut targets = Vec::new();
    let mut estimates_work = false;
    let mut markets = BTreeMap::new();
    let mut joint_curves = BTreeMap::new();
    let mut first_waiting: Vec<(u64, JobKey)> = Vec::new();
    limit_unknown_power(input, &mut sizing.fixed);
    let power = share_power(input, &sizing, &by_gpu_type);
    for (gpu_type, jobs) in &mut by_gpu_type {
        let supply =
            Supply { power: power.get(gpu_type).copied(), ..Supply::of(input, gpu_type, &sizing) };
        let allocation = allocate_type(input, jobs, &supply);
        let served: BTreeSet<JobKey> =
            allocation.targets.iter().flat_map(|target| &target.jobs).copied().collect();
        let queued = jobs.iter().filter(|elastic| elastic.job.state == State::Queued);
        let mut waiting = queued.filter(|elastic| !served.contains(&elastic.key));
        first_waiting.extend(waiting.next().map(|elastic| (elastic.job.arrival, elastic.key)));
        estimates_work |= allocation.estimates_work;
        markets.extend(allocation.market.map(|market| ((*gpu_type).to_owned(), market)));
        targets.extend(allocation.targets);
        joint_curves.insert((*gpu_type).to_owned(), supply.joint_curves);
    }
    let before = targets.len() as u32;
    let mut targets = sizing.all_targets(targets);
    // Where power has a price, a job starts within what the limit leaves, and is measured there.
    if markets.values().all(|market: &ClearedMarket| market.prices.power <= 0.0) {
        measure_at_default(input, &mut targets);
    }
    let rejected = sizing.rejected.len();
    let mut plan = sizing.plan_for(input, &targets, before);
    // A job that has GPUs but no free block is named before one without GPUs.
    let outranked = |(_, job)| Blocked { job, reason: Reason::Outranked { before } };
    plan.blocked = plan.blocked.or_else(|| first_waiting.into_iter().min().map(outranked));
    if estimates_work || plan.blocked.is_some() {
        plan.again_at = Some(input.now() + REVIEW_INTERVAL);
    }
    let jobs = input.state.job_count() - rejected;
    let cleared = markets.values().map(|market| market.prices.power).fold(0.0, f64::max);
    let shared_w = power.values().map(PowerSupply::charged_w).sum();
    plan.power_price = stated_power_price(cleared, jobs, shared_w);
    let is_free = |market: &ClearedMarket| market.prices == Prices::default();
    let has_deadline = || {
        let mut jobs = input.state.queue().chain(input.state.running());
        jobs.any(|(_, job)| job.facts.deadline.is_some())
    };
    let is_calm = markets.values().all(is_free) && !has_deadline();
    plan.cache = Some(PolicyCache::new(AllocationCache {
        at: input.now(),
        next_full_round: next_full_round(input.now(), jobs, is_calm),
        estimates_work,
        arrivals: input.state.arrivals(),
        jobs,
        conditions: Conditions::of(input),
        surface_revision: input.state.surface_revision(),
        grants: vec![Grants::new(input.state, targets)],
        power_price: plan.power_price,
        markets,
        joint_curves,
    }));
    plan
}

/// Assigns jobs to GPU types by the cost of a training step on each, in time and energy. Each type then has
/// its own market.
fn assign_gpu_types<'a>(input: PlanningInput<'a>, sizing: &mut Sizing<'a>) {
    let types = sizing.free.by_name();
    let charges: BTreeMap<&str, Charge> =
        types.keys().map(|&gpu_type| (gpu_type, Charge::on(input, gpu_type))).collect();
    let joule = input.limits.price_now();
    assign_types_by_turns(input, sizing, &|points, gpus| {
        let charge = charges.get(points.gpu_type.as_str())?;
        let value = |point: &OperatingPoint| {
            point.steps_per_s.ln() - (1.0 + joule * charge.watts(point)).ln()
        };
        points.with_gpus(gpus).iter().map(value).reduce(f64::max)
    });
}

/// Jobs that are stopping to wait in the queue. They bid like queued jobs: the price that sent them back
/// must not fall because they left.
fn jobs_returning_to_queue(input: PlanningInput<'_>) -> impl Iterator<Item = ElasticJob<'_>> {
    input.state.running().filter_map(move |(key, job)| {
        let points =
            job.operating_points.as_deref().filter(|points| !points.points().is_empty())?;
        let stops = matches!(job.state, State::Stopping { .. }) && job.next_gpus.is_none();
        let mut nodes = input.state.nodes().iter();
        let exists = nodes.any(|node| node.facts.gpu_type == points.gpu_type);
        (stops && exists).then_some(ElasticJob::new(input, key, job, points))
    })
}

/// The GPUs of one type.
struct Supply<'a> {
    gpu_type: &'a str,
    /// GPUs to share out.
    free: u32,
    nodes: NodeCounts,
    charge: Charge,
    /// Least device memory of a GPU, MiB; absent: not known of every node.
    memory_mib: Option<u64>,
    /// GPUs of jobs that take no part in the market.
    fixed: u32,
    /// The cost of unused GPUs, where nodes sleep and all have one size.
    unused: Option<UnusedGpuCost>,
    /// The highest power of a GPU, watts; infinite if unknown.
    gpu_w_max: f64,
    /// The power below the site's limit, if there is one.
    power: Option<PowerSupply>,
    /// Joint curves of earlier rounds.
    joint_curves: SharedJointCurves,
}

impl<'a> Supply<'a> {
    fn of(input: PlanningInput<'_>, gpu_type: &'a str, sizing: &Sizing<'_>) -> Self {
        let nodes = || input.state.nodes().iter().filter(|node| node.facts.gpu_type == gpu_type);
        let fixed_targets = sizing.fixed.iter().filter(|target| target.gpu_type == gpu_type);
        let fixed = || fixed_targets.clone().map(|target| target.gpus);
        let mut counts = FreeCapacity::new(input.state, Scope::All).node_counts(gpu_type);
        counts.take_sets(fixed());
        let charge = Charge::on(input, gpu_type);
        let per_gpu = input.limits.price_now() * charge.share_w();
        let sizes = nodes().map(|node| node.facts.gpus);
        let size = sizes.reduce(|a, b| if a == b { a } else { 0 }).filter(|&size| size > 0);
        let unused = size.filter(|_| per_gpu > 0.0);
        Self {
            gpu_type,
            free: sizing.free.of_type(gpu_type),
            nodes: counts,
            charge,
            memory_mib: nodes().map(|node| node.facts.memory_mib).min().flatten(),
            fixed: fixed().sum(),
            unused: unused.map(|node_gpus| UnusedGpuCost { node_gpus, taken: 0, per_gpu }),
            gpu_w_max: input
                .state
                .gpu_power(gpu_type)
                .map_or(f64::INFINITY, |power| power.most.as_w()),
            power: None,
            joint_curves: last_allocation(input)
                .and_then(|last| last.joint_curves.get(gpu_type).map(Arc::clone))
                .unwrap_or_default(),
        }
    }

    /// What the market may hand out.
    fn to_market(&self) -> MarketSupply {
        let watts = self.power.map(|power| power.charged_w());
        MarketSupply { gpus: self.free, watts }
    }
}

/// The last allocation.
fn last_allocation(input: PlanningInput<'_>) -> Option<&AllocationCache> {
    input.cache.and_then(|cache| cache.get())
}

/// The prices of this type after the last full round; 0 without one.
fn last_prices(input: PlanningInput<'_>, gpu_type: &str) -> Prices {
    let cleared = last_allocation(input).and_then(|last| last.markets.get(gpu_type));
    cleared.map_or_else(Prices::default, |cleared| cleared.prices)
}

/// The price of power that is stated outside the policy, s/J, of a market that cleared at `price` among this many jobs
/// that share this much power, watts.
///
/// Among a few short jobs the market clears at any price above some value: the value of their work rises with the
/// price. There the price is at most the number of jobs over the power that they share: if speeds grow in proportion
/// to power, a watt more shortens the sum of completion times by no more than that, per second.
fn stated_power_price(price: f64, jobs: usize, shared_w: f64) -> f64 {
    if shared_w > 0.0 { price.min(jobs as f64 / shared_w) } else { 0.0 }
}

/// The allocation of the GPUs of one type.
#[derive(Default)]
struct TypeAllocation {
    targets: Vec<Target>,
    /// Whether the remaining work of some job is estimated.
    estimates_work: bool,
    market: Option<ClearedMarket>,
}

/// Allocates the GPUs of one type.
///
/// A job that cannot stop keeps the size it gets first, which changes the demand at every price. So its
/// size is fixed and the rest is allocated again, until no size is new.
fn allocate_type(
    input: PlanningInput<'_>,
    jobs: &mut [ElasticJob<'_>],
    supply: &Supply<'_>,
) -> TypeAllocation {
    let mut moved: BTreeSet<JobKey> = BTreeSet::new();
    loop {
        let allocation = allocate_once(input, jobs, supply, &moved);
        let sizes: BTreeMap<JobKey, u32> = (allocation.targets.iter())
            .flat_map(|target| target.jobs.iter().map(|&job| (job, target.gpus)))
            .collect();
        let mut changed = false;
        // A co-located job that moves is free to get another co-tenant, and must not lose the one it
        // has now once it is on its way.
        for elastic in jobs.iter() {
            if let State::Running { on, .. } = &elastic.job.state
                && is_shared(input, on)
                && sizes.get(&elastic.key) != Some(&on.gpu_count())
            {
                changed |= moved.insert(elastic.key);
            }
        }
        for elastic in jobs.iter_mut() {
            if !elastic.job.facts.can_stop && elastic.fixed_size.is_none() {
                elastic.fixed_size = sizes.get(&elastic.key).copied();
                changed |= elastic.fixed_size.is_some();
            }
        }
        if !changed {
            return allocation;
        }
    }
}

/// Whether these GPUs have more than one job.
fn is_shared(input: PlanningInput<'_>, on: &GpuSet) -> bool {
    on.gpus().next().is_some_and(|(node, gpu)| input.state.node(node).tenants(gpu).len() > 1)
}

/// One pass through the phases. Pairs of `moved` jobs are not kept together.
fn allocate_once(
    input: PlanningInput<'_>,
    jobs: &[ElasticJob<'_>],
    supply: &Supply<'_>,
    moved: &BTreeSet<JobKey>,
) -> TypeAllocation {
    let last = last_prices(input, supply.gpu_type);
    let (bidders, mut market) = open_market(input, jobs, supply, supply.to_market());
    if bidders.is_empty() {
        return TypeAllocation::default();
    }
    let gpus = supply.free.saturating_sub(fixed_gpus(&bidders));
    let to_market = MarketSupply { gpus, ..supply.to_market() };
    let (mut prices, mut bids) = clear_market(&market, to_market, last);
    let mut pairing = Pairing::of(input, supply, &market, &bidders, moved, &bids, prices);
    if !pairing.pairs.is_empty() {
        prices = pairing.select_pairs(&mut market, &bidders, to_market, prices);
        bids = market.bids_at(prices);
    }
    let local = LocalLimits::of(input, &bidders);
    let rounding = Rounding {
        local: local.as_ref(),
        supply,
        bidders: &bidders,
        market: &market,
        pairing: &pairing,
        bids: &bids,
        prices,
    };
    let allotment = rounding.round_to_blocks();
    TypeAllocation {
        targets: rounding.emit_targets(&allotment),
        estimates_work: bidders.iter().any(|bidder| !bidder.work_is_known),
        market: Some(ClearedMarket {
            prices,
            rules: market.rules,
            largest_set: supply.nodes.largest_set(),
        }),
    }
}

/// The bidders for one GPU type, and their market with the forecast of its prices.
fn open_market<'a>(
    input: PlanningInput<'_>,
    jobs: &[ElasticJob<'a>],
    supply: &Supply<'_>,
    to_market: MarketSupply,
) -> (Vec<Bidder<'a>>, Market<'a>) {
    let last = last_prices(input, supply.gpu_type);
    // The price of power is expected to fall to zero: its mean so far predicts no better.
    let long_run = Prices { gpu: LONG_RUN_PRICE, power: 0.0 };
    let forecast = PriceForecast { long_run, tau_s: TAU_PRIOR_S };
    let rules =
        MarketRules::new(forecast, to_market, last.power > 0.0 && to_market.watts.is_some());
    let largest_set = supply.nodes.largest_set();
    let (bidders, mut market) = build_bids(input, jobs, supply.charge, rules, largest_set);
    if !bidders.is_empty() {
        let speeds = bidders.iter().map(|b| market.curves[b.curve].cheapest_speed(LONG_RUN_PRICE));
        let mean_speed = speeds.sum::<f64>() / bidders.len() as f64;
        market.set_tau(tau_s(input, mean_speed));
    }
    (bidders, market)
}

/// The prices that clear the market without pairs, and the bids at those prices.
fn clear_market(market: &Market<'_>, supply: MarketSupply, last: Prices) -> (Prices, Vec<Bid>) {
    let prices =
        clear(supply, last, market.classes.len(), |class, prices| market.demand(class, prices));
    (prices, market.bids_at(prices))
}

/// The time constant of the price forecast, if jobs run at this multiple of the speed of one GPU.
fn tau_s(input: PlanningInput<'_>, speed: f64) -> f64 {
    let history = input.state.work_history();
    let completed = history.len() as f64;
    let duration_s = history.mean_s().unwrap_or(0.0) / speed.max(1e-9);
    let known = completed * TAU_DURATIONS * duration_s;
    (TAU_PRIOR_JOBS * TAU_PRIOR_S + known) / (TAU_PRIOR_JOBS + completed)
}

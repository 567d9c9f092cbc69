//! The power below the site's limit, shared among the GPU types, and the power of jobs outside the market.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::policies::elastic::{ElasticJob, Sizing};
use crate::policies::wattle::bidders::fixed_gpus;
use crate::policies::wattle::clearing::{clear, least_power_price};
use crate::policies::wattle::market::{MUST_RUN_SHARE, Market, MarketSupply};
use crate::policies::wattle::power_supply::PowerSupply;
use crate::policies::wattle::prices::Prices;
use crate::policies::wattle::{Supply, last_prices, open_market};
use crate::power::energy_cost::Charge;
use crate::power::model::JobGpus;
use crate::state::job::State;
use crate::state::node::Node;

/// The power of each GPU type: what it draws at one price of power at which all types together are within the
/// site's limit, with an equal part of the remaining power for each of its nodes.
pub(super) fn share_power<'a>(
    input: PlanningInput<'_>,
    sizing: &Sizing<'_>,
    by_gpu_type: &BTreeMap<&'a str, Vec<ElasticJob<'_>>>,
) -> BTreeMap<&'a str, PowerSupply> {
    let Some(site_w) = PowerSupply::of_site(input) else { return BTreeMap::new() };
    let types = input.state.nodes().iter().map(|node| node.facts.gpu_type.as_str());
    let types: BTreeSet<&str> = types.collect();
    let fixed = |gpu_type: &str| {
        let targets = sizing.fixed.iter().filter(|target| target.gpu_type == gpu_type);
        let watts = |target: &Target| fixed_w(input, target);
        (targets.clone().map(|target| target.gpus).sum(), targets.map(watts).sum())
    };
    let supply = |gpu_type: &str, limit_w: f64| {
        let charge = Charge::on(input, gpu_type);
        PowerSupply::new(nodes_of(input, gpu_type), charge, limit_w, fixed(gpu_type))
    };
    if let [only] = types.iter().collect::<Vec<_>>()[..] {
        let gpu_type = by_gpu_type.keys().find(|gpu_type| *gpu_type == only);
        return gpu_type
            .map(|gpu_type| (*gpu_type, supply(gpu_type, site_w)))
            .into_iter()
            .collect();
    }
    // Without a market a type draws what its fixed jobs draw.
    let needs_w = |gpu_type: &str| site_w - supply(gpu_type, site_w).charged_w();
    let left_w = site_w - types.iter().map(|gpu_type| needs_w(gpu_type)).sum::<f64>();
    let markets: Vec<TypeMarket<'_>> = by_gpu_type
        .iter()
        .map(|(gpu_type, jobs)| {
            TypeMarket::new(input, jobs, &Supply::of(input, gpu_type, sizing), left_w)
        })
        .collect();
    let demand = |power: f64| markets.iter().map(|market| market.drawn_w(power)).sum::<f64>();
    let last = by_gpu_type.keys().next().map_or(0.0, |first| last_prices(input, first).power);
    let power = least_power_price(last, false, |power| demand(power) - left_w);
    let drawn: Vec<f64> = markets.iter().map(|market| market.drawn_w(power)).collect();
    let spare_w = (left_w - drawn.iter().sum::<f64>()).max(0.0);
    let nodes = by_gpu_type.keys().map(|gpu_type| nodes_of(input, gpu_type).count()).sum::<usize>();
    let shares = by_gpu_type.keys().zip(drawn).map(|(gpu_type, drawn_w)| {
        let part = nodes_of(input, gpu_type).count() as f64 / nodes.max(1) as f64;
        let limit_w = needs_w(gpu_type) + drawn_w + spare_w * part;
        (*gpu_type, supply(gpu_type, limit_w))
    });
    shares.collect()
}

fn nodes_of<'a>(input: PlanningInput<'a>, gpu_type: &'a str) -> impl Iterator<Item = &'a Node> {
    input.state.nodes().iter().filter(move |node| node.facts.gpu_type == gpu_type)
}

/// Sets the lowest cap for starts of jobs whose power is not known, where power is scarce: at the default they
/// would count with the highest power of their GPUs, and running jobs would stop for them. The first window of
/// measurement ends this.
pub(super) fn limit_unknown_power(input: PlanningInput<'_>, fixed: &mut [Target]) {
    let Some(site_w) = PowerSupply::of_site(input) else { return };
    let starts = |target: &Target| {
        let job = target.jobs.first().and_then(|&key| input.state.job(key));
        job.is_some_and(|job| !matches!(job.state, State::Running { .. }))
    };
    for target in fixed.iter_mut().filter(|target| starts(target)) {
        let is_scarce = last_prices(input, &target.gpu_type).power > 0.0
            || fixed_w(input, target) > MUST_RUN_SHARE * site_w;
        let power = input.state.gpu_power(&target.gpu_type).filter(|_| is_scarce);
        if let Some(least) = power.and_then(|power| power.cap_min) {
            target.setting.cap_mw = Some(least);
        }
    }
}

/// What the jobs of a fixed target draw above idle, watts.
fn fixed_w(input: PlanningInput<'_>, target: &Target) -> f64 {
    let node = input.state.nodes().iter().find(|node| node.facts.gpu_type == target.gpu_type);
    let job = target.jobs.first().and_then(|&key| input.state.job(key));
    let (Some(node), Some(job)) = (node, job) else { return 0.0 };
    let gpus = JobGpus::of(node, job, target.gpus);
    // The supply has what is measured below the prediction.
    let gpu_w = gpus.predicted_w(input, target.setting);
    if !gpu_w.is_finite() {
        return 0.0;
    }
    f64::from(target.gpus) * (gpu_w - Charge::on(input, &target.gpu_type).idle_w()).max(0.0)
}

/// The market of one GPU type on its own.
struct TypeMarket<'a> {
    market: Market<'a>,
    gpus: u32,
}

impl<'a> TypeMarket<'a> {
    fn new(
        input: PlanningInput<'_>,
        jobs: &[ElasticJob<'a>],
        supply: &Supply<'_>,
        watts: f64,
    ) -> Self {
        let market_supply = MarketSupply { gpus: supply.free, watts: Some(watts) };
        let (bidders, market) = open_market(input, jobs, supply, market_supply);
        Self { market, gpus: supply.free.saturating_sub(fixed_gpus(&bidders)) }
    }

    /// The charged power at this price of power, with the price of GPUs that clears, watts.
    fn drawn_w(&self, power: f64) -> f64 {
        let supply = MarketSupply { gpus: self.gpus, watts: None };
        let at = |prices: Prices| Prices { power, ..prices };
        let classes = 0..self.market.classes.len();
        let prices = clear(supply, Prices::default(), classes.len(), |class, prices| {
            self.market.demand(class, at(prices))
        });
        classes.map(|class| self.market.demand(class, at(prices)).watts).sum()
    }
}

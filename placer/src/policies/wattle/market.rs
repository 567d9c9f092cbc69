//! The market for the GPUs of one type and, below a power limit, for power: bids at prices, and the prices that
//! clear.
//!
//! Jobs with the same operating points, nearly the same remaining work ([`WORK_STEPS`]) and the same bounds
//! have the same demand and form one class, so each class bids once. A bid does not depend on whether a
//! job runs or is queued: otherwise prices would change as soon as a plan was applied, and so would the
//! plan.

use crate::plan::reason::GPU_PRICE_MAX;
use crate::policies::wattle::prices::{PriceForecast, Prices};
use crate::policies::wattle::upper_envelope::{CurvePoint, OperatingCurve};

/// Steps per factor of e to which remaining work is rounded: 3 % apart. An error of a factor of two costs
/// a hundredth of the gain.
pub(super) const WORK_STEPS: f64 = 32.0;

/// The share of a job's age that is subtracted from its time to completion when its work is priced. At 0
/// long jobs pay for short ones, and the slowest completion times grow by a third to a half where GPUs are
/// scarce; at 2 nothing of the gain is left.
const AGE_WEIGHT: f64 = 0.8;
/// The same where power is scarce: at 0.8 the mean completion time is 3 % longer.
const AGE_WEIGHT_SCARCE: f64 = 0.4;
/// Where power is scarce, most of the GPUs and of the power that jobs get before others because of deadlines or a
/// long wait, as a share. With all of them, such a job takes the power of several others: at 62 % of the peak
/// power of ElasticFlow's trace, in which every job has a deadline, the mean completion time is 1.4 times as long.
pub(super) const MUST_RUN_SHARE: f64 = 0.25;

/// The least share of the time to completion that counts at any age. A job priced at the present price
/// alone would pay any price, and no price would clear.
const HORIZON_MIN: f64 = 0.1;

/// Steps per factor of e to which ages are rounded, from an hour on.
const AGE_STEPS: f64 = 4.0;
const AGE_FIRST_S: f64 = 3_600.0;

/// The step of an age in seconds.
pub(super) fn age_step(age_s: f64) -> i32 {
    ((age_s.max(AGE_FIRST_S) / AGE_FIRST_S).ln() * AGE_STEPS).round() as i32
}

/// The age of a step, s; the first step is age 0.
pub(super) fn age_of(step: i32) -> f64 {
    if step == 0 { 0.0 } else { AGE_FIRST_S * (f64::from(step) / AGE_STEPS).exp() }
}

/// The relative accuracy of the clearing price.
pub(super) const PRICE_TOLERANCE: f64 = 1e-3;
/// The relative accuracy of the price of power. At 5 % mean completion times are hardly longer; each step costs
/// a search for the GPU price.
const POWER_TOLERANCE: f64 = 0.01;
/// The price of power at which the search begins without an earlier one, and its bounds, s/J. Among short jobs, whose
/// completion hardly lowers the expected price, it may exceed a second per joule.
const POWER_FIRST: f64 = 1e-4;
const POWER_LEAST: f64 = 1e-8;
const POWER_MOST: f64 = 1e4;
/// The first step of the search from an earlier price, and the longest, in steps of [`POWER_TOLERANCE`].
const POWER_STEP_FIRST: i32 = 5;
const POWER_STEP_MOST: i32 = 160;

/// The highest price of a GPU-second in the search, s. Pairs may demand GPUs beyond it: the value of their
/// work grows with the price.
const PRICE_MAX: f64 = GPU_PRICE_MAX;

/// What a market depends on besides its bidders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MarketRules {
    pub(super) forecast: PriceForecast,
    /// The share of a job's age that counts.
    age_weight: f64,
    /// What jobs with deadlines and overdue jobs get before others.
    pub(super) must_run: MarketSupply,
}

impl MarketRules {
    /// The rules of a market with this supply. `is_scarce`: whether power had a price so far.
    pub(super) fn new(forecast: PriceForecast, supply: MarketSupply, is_scarce: bool) -> Self {
        if !is_scarce {
            return Self { forecast, age_weight: AGE_WEIGHT, must_run: supply };
        }
        let gpus = (f64::from(supply.gpus) * MUST_RUN_SHARE).floor() as u32;
        let watts = supply.watts.map(|watts| watts * MUST_RUN_SHARE);
        let must_run = MarketSupply { gpus, watts };
        Self { forecast, age_weight: AGE_WEIGHT_SCARCE, must_run }
    }
}

/// The outcome of a market.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClearedMarket {
    pub(super) prices: Prices,
    pub(super) rules: MarketRules,
    /// The largest set of GPUs that one job could get.
    pub(super) largest_set: u32,
}

/// Jobs with the same demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct BidderClass {
    /// Index of the operating curve.
    pub(super) curve: usize,
    /// Remaining work, seconds on one GPU.
    pub(super) work: f64,
    /// The least and the greatest size, apart from none at all.
    pub(super) gpus_min: u32,
    pub(super) gpus_max: u32,
    /// Whether it may get no GPUs.
    pub(super) may_wait: bool,
    /// Whether it has its GPUs already and keeps them. It demands power alone.
    pub(super) has_gpus: bool,
    /// The least speed with which it meets its deadline.
    pub(super) speed_min: f64,
    /// Time since submission, s.
    pub(super) age_s: f64,
    /// Number of jobs.
    pub(super) jobs: u32,
    /// The weight of the present price at its completion with the speed of two GPUs.
    pub(super) decay: f64,
}

impl BidderClass {
    /// The time to completion that counts when its work is priced, s.
    fn horizon_s(&self, done_in_s: f64, age_weight: f64) -> f64 {
        (done_in_s - age_weight * self.age_s).max(HORIZON_MIN * done_in_s)
    }
}

/// The bid of a class at given prices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bid {
    /// The value of a unit of its work, s.
    pub(super) work_price: f64,
    /// The number of GPUs it demands.
    pub(super) gpus: u32,
    /// The power it demands, as charged, watts.
    pub(super) watts: f64,
    /// Its surplus, s/s.
    pub(super) surplus: f64,
    /// The time to its completion, s.
    pub(super) done_in_s: f64,
}

/// What bidders demand.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub(super) gpus: u64,
    /// Charged power, watts.
    pub(super) watts: f64,
}

impl Demand {
    pub(super) fn plus(self, other: Self) -> Self {
        Self { gpus: self.gpus + other.gpus, watts: self.watts + other.watts }
    }
}

/// The demand for the GPUs of one type.
#[derive(Debug)]
pub(super) struct Market<'a> {
    pub(super) curves: Vec<OperatingCurve<'a>>,
    pub(super) classes: Vec<BidderClass>,
    pub(super) rules: MarketRules,
}

impl Market<'_> {
    /// Sets the time constant of the price forecast, s.
    pub(super) fn set_tau(&mut self, tau_s: f64) {
        let MarketRules { forecast, age_weight, .. } = &mut self.rules;
        forecast.tau_s = tau_s;
        for class in &mut self.classes {
            class.decay = forecast.decay(class.horizon_s(class.work / 2.0, *age_weight));
        }
    }

    /// The bid of a class at these prices. The value of its work depends on its completion time and the
    /// completion time on that value, so both are found in two rounds.
    pub(super) fn bid(&self, class: &BidderClass, prices: Prices) -> Bid {
        let mut bid = Bid::default();
        let curve = &self.curves[class.curve];
        let MarketRules { forecast, age_weight, .. } = self.rules;
        for round in 0..2 {
            let at_completion = match round {
                0 => forecast.decayed(prices, class.decay),
                _ => forecast.after(prices, class.horizon_s(bid.done_in_s, age_weight)),
            };
            bid.work_price = curve.work_cost(at_completion);
            let best = self.best_size(class, bid.work_price, prices);
            (bid.gpus, bid.watts, bid.surplus) = (best.gpus, best.watts, best.surplus);
            // A waiting job is assumed to run at half the speed of one GPU.
            bid.done_in_s = class.work / if bid.gpus > 0 { best.speed } else { 0.5 };
        }
        bid
    }

    /// The bids of all classes at these prices.
    pub(super) fn bids_at(&self, prices: Prices) -> Vec<Bid> {
        self.classes.iter().map(|class| self.bid(class, prices)).collect()
    }

    /// The size and setting with the greatest surplus.
    fn best_size(&self, class: &BidderClass, work_price: f64, prices: Prices) -> BestSize {
        let surplus = if class.may_wait { 0.0 } else { f64::NEG_INFINITY };
        let mut best = BestSize { gpus: 0, watts: 0.0, speed: 0.0, surplus };
        let curve = &self.curves[class.curve];
        let joule = curve.joule(prices).total();
        for size in &curve.sizes {
            if size.gpus < class.gpus_min || size.gpus > class.gpus_max {
                continue;
            }
            let Some(point) = size.best_point(work_price, joule, class.speed_min) else { continue };
            let surplus = point.value(work_price, joule) - prices.gpu * f64::from(size.gpus);
            if surplus > best.surplus {
                let CurvePoint { speed, watts, .. } = point;
                best = BestSize { gpus: size.gpus, watts, speed, surplus };
            }
        }
        best
    }

    /// What all jobs of a class demand at these prices.
    pub(super) fn demand(&self, class: usize, prices: Prices) -> Demand {
        let class = &self.classes[class];
        if class.jobs == 0 {
            return Demand::default();
        }
        let bid = self.bid(class, prices);
        let gpus = if class.has_gpus { 0 } else { bid.gpus };
        let jobs = class.jobs;
        Demand { gpus: u64::from(jobs) * u64::from(gpus), watts: f64::from(jobs) * bid.watts }
    }
}

/// A size with its best setting.
struct BestSize {
    gpus: u32,
    watts: f64,
    speed: f64,
    surplus: f64,
}

/// What one market may hand out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MarketSupply {
    pub(super) gpus: u32,
    /// Charged power, watts; absent: not limited.
    pub(super) watts: Option<f64>,
}

impl MarketSupply {
    /// Whether this much of it is left.
    pub(super) fn has(&self, gpus: u32, watts: f64) -> bool {
        gpus <= self.gpus && self.watts.is_none_or(|left| watts <= left)
    }

    /// Takes a part of it. False if less is left.
    pub(super) fn take(&mut self, gpus: u32, watts: f64) -> bool {
        if !self.has(gpus, watts) {
            return false;
        }
        self.gpus -= gpus;
        self.watts = self.watts.map(|left| left - watts);
        true
    }
}

/// The prices at which `count` bidders together demand at most the supply: the least price of power at which
/// they do, and for it the least price of GPUs. `last`: the price of power to search from.
pub(super) fn clear(
    supply: MarketSupply,
    last: f64,
    count: usize,
    demand: impl Fn(usize, Prices) -> Demand,
) -> Prices {
    let at = |power: f64| {
        let demanded = |bidder, gpu| demand(bidder, Prices { gpu, power }).gpus;
        Prices { gpu: clear_gpus(supply.gpus, count, demanded), power }
    };
    let drawn = |prices| (0..count).map(|bidder| demand(bidder, prices).watts).sum::<f64>();
    let free = at(0.0);
    match supply.watts {
        Some(watts) if drawn(free) > watts => {
            at(least_power_price(last, |power| drawn(at(power)) > watts))
        }
        _ => free,
    }
}

/// The least price of power that does not exceed the supply, found from `last` on; s/J. At price 0 it is exceeded.
/// Prices are steps of [`POWER_TOLERANCE`] apart, so that the result does not depend on `last`.
pub(super) fn least_power_price(last: f64, exceeds: impl Fn(f64) -> bool) -> f64 {
    let step_of = |price: f64| (price.ln() / POWER_TOLERANCE.ln_1p()).round() as i32;
    let price = |step: i32| (f64::from(step) * POWER_TOLERANCE.ln_1p()).exp();
    let (least, most) = (step_of(POWER_LEAST), step_of(POWER_MOST));
    let first = step_of(if last > POWER_LEAST { last } else { POWER_FIRST });
    let is_low = exceeds(price(first));
    let (mut low, mut high, mut length) = (first, first, POWER_STEP_FIRST);
    loop {
        if is_low {
            (low, high) = (high, high + length);
            if high > most {
                return price(high);
            }
            if !exceeds(price(high)) {
                break;
            }
        } else {
            (low, high) = (low - length, low);
            if low < least || exceeds(price(low)) {
                break;
            }
        }
        length = (2 * length).min(POWER_STEP_MOST);
    }
    while high > low + 1 {
        let middle = i32::midpoint(low, high);
        *(if exceeds(price(middle)) { &mut low } else { &mut high }) = middle;
    }
    price(high)
}

/// A bidder whose demand differs between the ends of the search interval.
struct Undecided {
    bidder: usize,
    at_low: u64,
    at_high: u64,
}

/// The least price at which `count` bidders together demand at most `gpus` GPUs. `demand` is the demand of
/// one bidder at a price and does not increase with the price, so a bidder with the same demand at both
/// ends of an interval is not evaluated again within it.
pub(super) fn clear_gpus(gpus: u32, count: usize, demand: impl Fn(usize, f64) -> u64) -> f64 {
    let gpus = u64::from(gpus);
    // At price zero demand usually exceeds supply; stop early.
    let at_zero = (0..count).try_fold(0, |sum, bidder| {
        let sum = sum + demand(bidder, 0.0);
        if sum > gpus { None } else { Some(sum) }
    });
    if at_zero.is_some() {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 0.1);
    let evaluate = |bidder| Undecided { bidder, at_low: u64::MAX, at_high: demand(bidder, 0.1) };
    let mut undecided: Vec<Undecided> = (0..count).map(evaluate).collect();
    while undecided.iter().map(|bidder| bidder.at_high).sum::<u64>() > gpus {
        (low, high) = (high, 4.0 * high);
        if high > PRICE_MAX {
            return high;
        }
        for entry in &mut undecided {
            entry.at_low = entry.at_high;
            // Demand is non-increasing in price.
            entry.at_high = if entry.at_low == 0 { 0 } else { demand(entry.bidder, high) };
        }
    }
    let mut decided = 0;
    let mut at_middle: Vec<u64> = Vec::with_capacity(undecided.len());
    while high - low > PRICE_TOLERANCE * high && high > 1.0 / PRICE_MAX {
        undecided.retain(|entry| {
            let differs = entry.at_low != entry.at_high;
            decided += if differs { 0 } else { entry.at_low };
            differs
        });
        // Geometric bisection, once the lower end is above zero.
        let middle = if low > 0.0 { f64::sqrt(low * high) } else { high / 4.0 };
        at_middle.clear();
        at_middle.extend(undecided.iter().map(|entry| demand(entry.bidder, middle)));
        let exceeds = decided + at_middle.iter().sum::<u64>() > gpus;
        for (entry, &demanded) in undecided.iter_mut().zip(&at_middle) {
            *(if exceeds { &mut entry.at_low } else { &mut entry.at_high }) = demanded;
        }
        *(if exceeds { &mut low } else { &mut high }) = middle;
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_power_is_the_least_that_clears() {
        for (last, watts) in
            [(0.0, 700.0), (1e-3, 700.0), (5e-5, 700.0), (1e-4, 20.0), (0.3, 999.0)]
        {
            // Watts fall from 1,000 at price 0 with the price.
            let drawn = |price: f64| 1_000.0 / (1.0 + price * 1e4);
            let price = least_power_price(last, |price| drawn(price) > watts);
            let exact = (1_000.0 / watts - 1.0) * 1e-4;
            assert!(price >= exact && price <= 1.011 * exact, "{price} {exact} from {last}");
            let from_elsewhere = least_power_price(7e-4, |price| drawn(price) > watts);
            assert!((price - from_elsewhere).abs() < 1e-12, "{price} from {last}");
        }
        let bound = least_power_price(1e-4, |_| true);
        assert!(bound.is_finite() && bound > POWER_MOST);
    }

    #[test]
    fn both_prices_clear_together() {
        // Each bidder takes one GPU up to its own value, less 100 W at the price of power.
        let value = |bidder: usize| 1.0 + bidder as f64;
        let demand = |bidder: usize, prices: Prices| {
            let takes = value(bidder) > prices.gpu + 100.0 * prices.power;
            Demand { gpus: u64::from(takes), watts: if takes { 100.0 } else { 0.0 } }
        };
        let clear = |gpus, watts| clear(MarketSupply { gpus, watts }, 0.0, 10, demand);
        assert!(clear(4, None).power < 1e-12);
        assert_eq!(clear(4, Some(400.0)), clear(4, None), "power is not scarce");
        let scarce = clear(4, Some(200.0));
        assert!((scarce.gpu + 100.0 * scarce.power - 8.0).abs() < 0.2, "{scarce:?}");
        assert!(clear(10, Some(200.0)).gpu < 1e-12, "GPUs are not scarce");
    }

    #[test]
    fn the_price_is_the_least_that_clears() {
        for (scale, gpus) in [(100.0, 10), (100.0, 99), (1e6, 3), (0.2, 1)] {
            // One bidder that demands scale / (1 + price) GPUs.
            let price = clear_gpus(gpus, 1, |_, price| (scale / (1.0 + price)) as u64);
            let exact = (scale / f64::from(gpus + 1) - 1.0).max(0.0);
            assert!((price - exact).abs() <= 2e-3 * exact + 1e-6, "{price} {exact}");
        }
        // Many bidders, each with a demand of one up to its own price.
        let price = clear_gpus(3, 10, |bidder, price| u64::from(price < 1.0 + bidder as f64));
        assert!((price - 7.0).abs() < 0.01, "{price}");
        // With demand at any price no price clears.
        let bound = clear_gpus(0, 1, |_, _| 1);
        assert!(bound.is_finite() && bound > GPU_PRICE_MAX, "{bound}");
    }
}

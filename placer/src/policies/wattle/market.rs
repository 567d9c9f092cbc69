//! The market for the GPUs of one type: bids at a price, and the price that clears.
//!
//! Jobs with the same operating points, nearly the same remaining work ([`WORK_STEPS`]) and the same bounds
//! have the same demand and form one class, so each class bids once. A bid does not depend on whether a
//! job runs or is queued: otherwise prices would change as soon as a plan was applied, and so would the
//! plan.

use crate::plan::reason::GPU_PRICE_MAX;
use crate::policies::wattle::upper_envelope::OperatingCurve;

/// Steps per factor of e to which remaining work is rounded: 3 % apart. An error of a factor of two costs
/// a hundredth of the gain.
pub(super) const WORK_STEPS: f64 = 32.0;

/// The share of a job's age that is subtracted from its time to completion when its work is priced. At 0
/// long jobs pay for short ones, and the slowest completion times grow by a third to a half where GPUs are
/// scarce; at 2 nothing of the gain is left.
const AGE_WEIGHT: f64 = 0.8;

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
/// The highest price of a GPU-second in the search, s. Pairs may demand GPUs beyond it: the value of their
/// work grows with the price.
const PRICE_MAX: f64 = GPU_PRICE_MAX;

/// The expected price of GPU-seconds over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PriceForecast {
    /// The long-run price of a GPU-second, s.
    pub(super) long_run: f64,
    /// The time constant with which the present price decays to it, s.
    pub(super) tau_s: f64,
}

impl PriceForecast {
    /// The expected price after this time.
    pub(super) fn after(&self, now: f64, seconds: f64) -> f64 {
        self.decayed(now, self.decay(seconds))
    }

    /// The weight of the present price after this time.
    fn decay(&self, seconds: f64) -> f64 {
        (-seconds / self.tau_s).exp()
    }

    fn decayed(&self, now: f64, decay: f64) -> f64 {
        self.long_run + (now - self.long_run) * decay
    }
}

/// The outcome of a market.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClearedMarket {
    /// The price of a GPU-second, s.
    pub(super) price: f64,
    /// The time constant of its forecast, s.
    pub(super) tau_s: f64,
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
    fn horizon_s(&self, done_in_s: f64) -> f64 {
        (done_in_s - AGE_WEIGHT * self.age_s).max(HORIZON_MIN * done_in_s)
    }
}

/// The bid of a class at a GPU price.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bid {
    /// The value of a unit of its work, s.
    pub(super) work_price: f64,
    /// The number of GPUs it demands.
    pub(super) gpus: u32,
    /// Its surplus, s/s.
    pub(super) surplus: f64,
    /// The time to its completion, s.
    pub(super) done_in_s: f64,
}

/// The demand for the GPUs of one type.
#[derive(Debug)]
pub(super) struct Market<'a> {
    pub(super) curves: Vec<OperatingCurve<'a>>,
    pub(super) classes: Vec<BidderClass>,
    pub(super) forecast: PriceForecast,
}

impl Market<'_> {
    /// Sets the time constant of the price forecast, s.
    pub(super) fn set_tau(&mut self, tau_s: f64) {
        self.forecast.tau_s = tau_s;
        for class in &mut self.classes {
            class.decay = self.forecast.decay(class.horizon_s(class.work / 2.0));
        }
    }

    /// The bid of a class at a price. The value of its work depends on its completion time and the
    /// completion time on that value, so both are found in two rounds.
    pub(super) fn bid(&self, class: &BidderClass, gpu_price: f64) -> Bid {
        let mut bid = Bid::default();
        for round in 0..2 {
            let price_at_completion = match round {
                0 => self.forecast.decayed(gpu_price, class.decay),
                _ => self.forecast.after(gpu_price, class.horizon_s(bid.done_in_s)),
            };
            let (work_price, speed);
            work_price = self.curves[class.curve].work_cost(price_at_completion);
            (bid.gpus, speed, bid.surplus) = self.best_size(class, work_price, gpu_price);
            bid.work_price = work_price;
            // A waiting job is assumed to run at half the speed of one GPU.
            bid.done_in_s = class.work / if bid.gpus > 0 { speed } else { 0.5 };
        }
        bid
    }

    /// The bids of all classes at a price.
    pub(super) fn bids_at(&self, gpu_price: f64) -> Vec<Bid> {
        self.classes.iter().map(|class| self.bid(class, gpu_price)).collect()
    }

    /// The number of GPUs with the greatest surplus, the speed there, and the surplus.
    fn best_size(&self, class: &BidderClass, work_price: f64, gpu_price: f64) -> (u32, f64, f64) {
        let waiting = if class.may_wait { 0.0 } else { f64::NEG_INFINITY };
        let mut best = (0, 0.0, waiting);
        for size in &self.curves[class.curve].sizes {
            if size.gpus < class.gpus_min || size.gpus > class.gpus_max {
                continue;
            }
            let Some(point) = size.best_point(work_price, class.speed_min) else { continue };
            let surplus = point.at(work_price) - gpu_price * f64::from(size.gpus);
            if surplus > best.2 {
                best = (size.gpus, point.slope, surplus);
            }
        }
        best
    }

    /// The GPUs that all jobs of a class demand at a price.
    pub(super) fn demand(&self, class: usize, gpu_price: f64) -> u64 {
        let class = &self.classes[class];
        match class.jobs {
            0 => 0,
            jobs => u64::from(jobs) * u64::from(self.bid(class, gpu_price).gpus),
        }
    }
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
pub(super) fn clear(gpus: u32, count: usize, demand: impl Fn(usize, f64) -> u64) -> f64 {
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
    fn the_price_is_the_least_that_clears() {
        for (scale, gpus) in [(100.0, 10), (100.0, 99), (1e6, 3), (0.2, 1)] {
            // One bidder that demands scale / (1 + price) GPUs.
            let price = clear(gpus, 1, |_, price| (scale / (1.0 + price)) as u64);
            let exact = (scale / f64::from(gpus + 1) - 1.0).max(0.0);
            assert!((price - exact).abs() <= 2e-3 * exact + 1e-6, "{price} {exact}");
        }
        // Many bidders, each with a demand of one up to its own price.
        let price = clear(3, 10, |bidder, price| u64::from(price < 1.0 + bidder as f64));
        assert!((price - 7.0).abs() < 0.01, "{price}");
        // With demand at any price no price clears.
        let bound = clear(0, 1, |_, _| 1);
        assert!(bound.is_finite() && bound > GPU_PRICE_MAX, "{bound}");
    }

    #[test]
    fn the_price_forecast_returns_to_the_long_run_price() {
        let forecast = PriceForecast { long_run: 0.1, tau_s: 100.0 };
        assert!((forecast.after(2.0, 0.0) - 2.0).abs() < 1e-12);
        assert!((forecast.after(2.0, 1e6) - 0.1).abs() < 1e-12);
    }
}

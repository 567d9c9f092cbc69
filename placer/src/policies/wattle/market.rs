//! The market for the GPUs of one type and, below a power limit, for power: its classes of bidders and their bids at
//! prices. [`super::clearing`] finds the prices.
//!
//! Jobs with the same operating points, nearly the same remaining work ([`WORK_STEPS`]) and the same bounds
//! have the same demand and form one class, so each class bids once. A bid does not depend on whether a
//! job runs or is queued: otherwise prices would change as soon as a plan was applied, and so would the
//! plan.

use crate::policies::wattle::priced_curve::PricedCurves;
use crate::policies::wattle::prices::{PriceForecast, Prices};
use crate::policies::wattle::upper_envelope::{OperatingCurve, SizedPoint};

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
    /// The weight of its work.
    pub(super) weight: f64,
    /// Time since submission, s.
    pub(super) age_s: f64,
    /// Number of jobs.
    pub(super) jobs: u32,
    /// The weight of the present price at its completion with the speed of two GPUs.
    pub(super) decay: f64,
}

impl BidderClass {
    /// Whether neither its sizes nor its speeds are bounded within a curve.
    fn may_have_all(&self, curve: &OperatingCurve<'_>) -> bool {
        let (least, most) = (curve.sizes.first(), curve.sizes.last());
        self.speed_min <= 0.0
            && least.is_some_and(|size| self.gpus_min <= size.gpus)
            && most.is_some_and(|size| self.gpus_max >= size.gpus)
    }

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
    pub(super) priced: PricedCurves,
}

impl<'a> Market<'a> {
    pub(super) fn new(
        curves: Vec<OperatingCurve<'a>>,
        classes: Vec<BidderClass>,
        rules: MarketRules,
    ) -> Self {
        let priced = PricedCurves::new(curves.len(), classes.iter().map(|class| class.curve));
        Self { curves, classes, rules, priced }
    }

    /// Sets the time constant of the price forecast, s.
    pub(super) fn set_tau(&mut self, tau_s: f64) {
        let MarketRules { forecast, age_weight, .. } = &mut self.rules;
        forecast.tau_s = tau_s;
        for class in &mut self.classes {
            class.decay = forecast.decay(class.horizon_s(class.work / 2.0, *age_weight));
        }
        self.priced.clear();
    }

    /// The bid of a class at these prices. The value of its work depends on its completion time and the
    /// completion time on that value, so both are found in two rounds.
    pub(super) fn bid(&self, class: &BidderClass, prices: Prices) -> Bid {
        let mut bid = Bid::default();
        let curve = &self.curves[class.curve];
        let MarketRules { forecast, age_weight, .. } = self.rules;
        let priced = self.priced.at(prices, class.curve, curve, &forecast);
        for round in 0..2 {
            let decay = match round {
                0 => class.decay,
                _ => forecast.decay(class.horizon_s(bid.done_in_s, age_weight)),
            };
            let work_cost = match &priced {
                Some(priced) => priced.work_cost(curve, &forecast, (prices, decay)),
                None => curve.work_cost(forecast.decayed(prices, decay)),
            };
            bid.work_price = class.weight * work_cost;
            let best = match &priced {
                Some(priced) if class.may_have_all(curve) => {
                    let best = priced.best_size(curve, bid.work_price, prices);
                    if class.may_wait && best.surplus <= 0.0 { BestSize::default() } else { best }
                }
                _ => self.best_size(class, bid.work_price, prices),
            };
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
        let mut best = BestSize { surplus, ..BestSize::default() };
        let curve = &self.curves[class.curve];
        let joule = curve.joule(prices).total();
        for size in &curve.sizes {
            if size.gpus < class.gpus_min || size.gpus > class.gpus_max {
                continue;
            }
            let Some(point) = size.best_point(work_price, joule, class.speed_min) else { continue };
            let point = SizedPoint::of(size.gpus, &point);
            let next = BestSize::of(point, (work_price, joule, prices.gpu));
            if next.surplus > best.surplus {
                best = next;
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

/// A size with its best setting; by default no GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BestSize {
    gpus: u32,
    watts: f64,
    speed: f64,
    surplus: f64,
}

impl BestSize {
    /// This point at prices of work, of a joule and of a GPU-second.
    pub(super) fn of(point: SizedPoint, (work_price, joule, gpu_price): (f64, f64, f64)) -> Self {
        let SizedPoint { gpus, speed, watts } = point;
        let value = work_price * speed - joule * watts;
        Self { gpus, watts, speed, surplus: value - gpu_price * f64::from(gpus) }
    }
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

//! An operating curve at given prices, for the bids of many classes.
//!
//! At one pair of prices every class with the same curve chooses among the same operating points, by two quantities of
//! its own: the weight `d` of the present prices at its completion, and the value `w` of its work. With speed `v`,
//! power `P` and `n` GPUs, and prices that decay from `nu, mu` to `nu', mu'`,
//!
//! * the cost of a unit of work `(1 + n (nu' + (nu - nu') d) + (lambda + mu' + (mu - mu') d) P) / v` is linear in `d`;
//! * the surplus `v w - (lambda + mu) P - n nu` is linear in `w`.
//!
//! So each is an envelope of lines, and a class finds its points by binary search. A class whose sizes or speeds are
//! bounded further chooses its size without the second one.

use std::cell::RefCell;
use std::rc::Rc;

use crate::policies::wattle::market::BestSize;
use crate::policies::wattle::prices::{PriceForecast, Prices};
use crate::policies::wattle::upper_envelope::{
    Line, OperatingCurve, SizedPoint, envelope, highest,
};

/// Classes of a curve from which on its envelopes are computed: they take about as long as five bids.
const CLASSES_MIN: u32 = 16;

/// A curve at given prices.
#[derive(Debug)]
pub(super) struct PricedCurve {
    /// The negative cost of a unit of work, over the weight of the present prices.
    costs: Vec<Line<SizedPoint>>,
    /// The surplus, over the value of work.
    surpluses: Vec<Line<SizedPoint>>,
}

impl PricedCurve {
    fn new(curve: &OperatingCurve<'_>, forecast: &PriceForecast, prices: Prices) -> Self {
        let joule = curve.joule(prices).total();
        let (last, first) = (forecast.decayed(prices, 0.0), forecast.decayed(prices, 1.0));
        let cost = |&point: &SizedPoint| {
            let [last, first] = [last, first].map(|at| curve.cost_at(point, at));
            Line::new(last - first, last, point)
        };
        let surplus = |point: SizedPoint| {
            let spent = joule * point.watts + prices.gpu * f64::from(point.gpus);
            Line::new(point.speed, spent, point)
        };
        Self {
            costs: envelope(curve.by_speed.iter().map(cost).collect()),
            surpluses: envelope(curve.candidates(joule).map(surplus).collect()),
        }
    }

    /// The least cost of a unit of work where the present prices have this weight.
    pub(super) fn work_cost(
        &self,
        curve: &OperatingCurve<'_>,
        forecast: &PriceForecast,
        (prices, weight): (Prices, f64),
    ) -> f64 {
        let point = self.costs[highest(&self.costs, weight)].label;
        curve.cost_at(point, forecast.decayed(prices, weight))
    }

    /// The size and setting of the greatest surplus at this value of work, among all of the curve.
    pub(super) fn best_size(
        &self,
        curve: &OperatingCurve<'_>,
        work_price: f64,
        prices: Prices,
    ) -> BestSize {
        let point = self.surpluses[highest(&self.surpluses, work_price)].label;
        BestSize::of(point, (work_price, curve.joule(prices).total(), prices.gpu))
    }
}

/// The curves of a market at the last prices.
#[derive(Debug, Default)]
pub(super) struct PricedCurves {
    /// Of each curve, whether it has many classes.
    is_common: Vec<bool>,
    last: RefCell<(Prices, Vec<Option<Rc<PricedCurve>>>)>,
}

impl PricedCurves {
    /// For the curves with these indices in the classes of a market.
    pub(super) fn new(curves: usize, of_classes: impl Iterator<Item = usize>) -> Self {
        let mut classes = vec![0_u32; curves];
        of_classes.for_each(|curve| classes[curve] += 1);
        let is_common = classes.into_iter().map(|count| count >= CLASSES_MIN).collect();
        Self { is_common, last: RefCell::default() }
    }

    /// Whether many classes have this curve.
    pub(super) fn is_common(&self, index: usize) -> bool {
        self.is_common.get(index).copied().unwrap_or(false)
    }

    /// Forgets all envelopes, after the forecast has changed.
    pub(super) fn clear(&mut self) {
        self.last.take();
    }

    /// A curve at these prices. `None` where few classes have it.
    pub(super) fn at(
        &self,
        prices: Prices,
        index: usize,
        curve: &OperatingCurve<'_>,
        forecast: &PriceForecast,
    ) -> Option<Rc<PricedCurve>> {
        if !self.is_common(index) {
            return None;
        }
        let mut last = self.last.borrow_mut();
        if last.0 != prices || last.1.is_empty() {
            *last = (prices, vec![None; self.is_common.len()]);
        }
        let known =
            last.1[index].get_or_insert_with(|| Rc::new(PricedCurve::new(curve, forecast, prices)));
        Some(Rc::clone(known))
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::Frequency;
    use wattle_common::job::GpuRequest;
    use wattle_common::messages::SurfacePoint;
    use wattle_testkit as testkit;

    use super::*;
    use crate::policies::wattle::market::{Bid, BidderClass, Market, MarketRules, MarketSupply};
    use crate::policies::wattle::prices::EnergyPrice;
    use crate::power::energy_cost::Charge;
    use crate::state::operating_points::OperatingPoints;

    fn points(grows: f64) -> OperatingPoints {
        let point = |gpus: u32, clock: Option<u32>| {
            let slower = clock.map_or(1.0, |mhz| f64::from(mhz) / 1_410.0);
            let (n, grown) = (f64::from(gpus), f64::from(gpus).powf(grows));
            let power_w = 60.0 + 300.0 * (0.35 + 0.65 * grown / n) * slower.powi(2);
            SurfacePoint {
                clock_mhz_max: clock.map(Frequency::from_mhz),
                ..testkit::point(gpus, grown * slower.sqrt(), power_w)
            }
        };
        let clocks = [None, Some(1_300), Some(1_100), Some(900), Some(700)];
        let sizes = [1_u32, 2, 4, 8, 16].into_iter();
        let all = sizes.flat_map(|gpus| clocks.map(|clock| point(gpus, clock)));
        OperatingPoints::of(&testkit::surface("j", "a100", all), GpuRequest { min: 1, max: 16 })
    }

    #[test]
    fn bids_of_many_classes_are_those_of_one() {
        let supply = MarketSupply { gpus: 64, watts: Some(20_000.0) };
        let energies = [0.0, 2e-4].map(|price| EnergyPrice { now: price, mean: 1.5 * price });
        for (grows, energy) in [0.2, 0.6, 0.95].into_iter().zip(energies.into_iter().cycle()) {
            let known = points(grows);
            let charge = Charge::new(60.0, 40.0);
            let curve = OperatingCurve::new(&known, 1.0, charge, energy, 16).unwrap();
            let long_run = Prices { gpu: 0.2, power: 0.0 };
            let forecast = PriceForecast { long_run, tau_s: 20_000.0 };
            let rules = MarketRules::new(forecast, supply, true);
            let class = |number: u32| BidderClass {
                curve: 0,
                work: 100.0 * 1.4_f64.powi(number as i32),
                gpus_min: number % 2,
                gpus_max: if number.is_multiple_of(5) { 4 } else { 16 },
                may_wait: number.is_multiple_of(2),
                has_gpus: false,
                speed_min: if number.is_multiple_of(7) { 1.5 } else { 0.0 },
                weight: 1.0,
                age_s: 600.0 * f64::from(number),
                jobs: 1,
                decay: 1.0,
            };
            let classes: Vec<BidderClass> = (0..CLASSES_MIN + 14).map(class).collect();
            let market = |classes| {
                let mut market = Market::new(vec![curve.clone()], classes, rules);
                market.set_tau(20_000.0);
                market
            };
            let together = market(classes.clone());
            assert!(together.priced.is_common(0));
            for (gpu, power) in [(0.0, 0.0), (0.3, 0.0), (0.0, 1e-4), (0.5, 1e-5), (2.0, 3e-3)] {
                let prices = Prices { gpu, power };
                for (number, class) in classes.iter().enumerate() {
                    let alone = market(vec![*class]);
                    assert!(!alone.priced.is_common(0));
                    let bids = [
                        alone.bid(&alone.classes[0], prices),
                        together.bid(&together.classes[number], prices),
                    ];
                    let of = |bid: &Bid| (bid.gpus, bid.watts);
                    assert_eq!(of(&bids[0]), of(&bids[1]), "{number} {prices:?}");
                    for (a, b) in [
                        (bids[0].work_price, bids[1].work_price),
                        (bids[0].surplus, bids[1].surplus),
                        (bids[0].done_in_s, bids[1].done_in_s),
                    ] {
                        assert!(
                            (a - b).abs() <= 1e-9 * a.abs(),
                            "{a} {b} of {number} at {prices:?}"
                        );
                    }
                }
            }
        }
    }
}

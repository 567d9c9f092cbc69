//! The search for the prices that clear a market: the least price of power, and for each price of power that it tries the
//! least price of GPUs.
//!
//! Both searches begin at the last prices. Where many bidders make demand smooth they step by interpolation, and else by
//! halves, so that the result does not depend on where they begin.

use std::cell::RefCell;

use crate::plan::reason::GPU_PRICE_MAX;
use crate::policies::wattle::market::{Demand, MarketSupply};
use crate::policies::wattle::prices::Prices;

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

/// From this many bidders on, demand falls smoothly with the prices, and their searches begin at expected prices. A few
/// bidders may together demand more at a slightly higher price, because the value of their work grows with it; then
/// the result would depend on where a search begins.
const SMOOTH_MIN: usize = 128;

/// The highest price of a GPU-second in the search, s. Pairs may demand GPUs beyond it: the value of their
/// work grows with the price.
const PRICE_MAX: f64 = GPU_PRICE_MAX;

/// The prices at which `count` bidders together demand at most the supply: the least price of power at which
/// they do, and for it the least price of GPUs. `last`: the prices to search from, 0 where there are none.
pub(super) fn clear(
    supply: MarketSupply,
    last: Prices,
    count: usize,
    demand: impl Fn(usize, Prices) -> Demand,
) -> Prices {
    let is_smooth = count >= SMOOTH_MIN;
    let near = RefCell::new(NearbyPrices::default());
    let at = |power: f64| {
        let demanded = |bidder, gpu| demand(bidder, Prices { gpu, power }).gpus;
        let expected = if is_smooth { near.borrow().gpu_at(power, last) } else { 0.0 };
        let prices = Prices { gpu: clear_gpus(supply.gpus, count, expected, demanded), power };
        near.borrow_mut().add(prices);
        prices
    };
    let drawn = |prices| (0..count).map(|bidder| demand(bidder, prices).watts).sum::<f64>();
    let Some(watts) = supply.watts else { return at(0.0) };
    let power = least_power_price(last.power, is_smooth, |power| drawn(at(power)) - watts);
    let known = near.borrow().at(power);
    known.unwrap_or_else(|| at(power))
}

/// The prices of GPUs found so far at prices of power, from which that at another one is expected.
#[derive(Default)]
struct NearbyPrices(Vec<Prices>);

impl NearbyPrices {
    fn add(&mut self, prices: Prices) {
        self.0.push(prices);
    }

    /// Those at this price of power.
    fn at(&self, power: f64) -> Option<Prices> {
        self.0.iter().copied().find(|known| known.power.total_cmp(&power).is_eq())
    }

    /// The expected price of GPUs: linear in the logarithm of the price of power through the two nearest.
    fn gpu_at(&self, power: f64, last: Prices) -> f64 {
        let distance = |known: &Prices| (known.power / power).ln().abs();
        let known = self.0.iter().copied().filter(|known| known.power > 0.0 && power > 0.0);
        let mut known: Vec<Prices> = known.collect();
        known.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        match known[..] {
            [] => last.gpu,
            [one] => one.gpu,
            [one, two, ..] => {
                let share = (power / one.power).ln() / (two.power / one.power).ln();
                let expected = one.gpu + (two.gpu - one.gpu) * share;
                if expected.is_finite() { expected.max(0.0) } else { one.gpu }
            }
        }
    }
}

/// The least price of power that does not exceed the supply, found from `last` on, s/J; 0 where power is not scarce.
/// `excess` is the draw above the supply at a price, and falls with it. Prices are steps of [`POWER_TOLERANCE`]
/// apart, so that the result does not depend on `last`. Where `excess` is smooth, steps are interpolated.
pub(super) fn least_power_price(last: f64, is_smooth: bool, excess: impl Fn(f64) -> f64) -> f64 {
    let step_of = |price: f64| (price.ln() / POWER_TOLERANCE.ln_1p()).round() as i32;
    let price = |step: i32| (f64::from(step) * POWER_TOLERANCE.ln_1p()).exp();
    let at = |step: i32| PricedStep { step, excess: excess(price(step)) };
    let (least, most) = (step_of(POWER_LEAST), step_of(POWER_MOST));
    let is_known = last > POWER_LEAST;
    let is_near = is_known && is_smooth;
    if !is_near && excess(0.0) <= 0.0 {
        return 0.0;
    }
    let first = at(step_of(if is_known { last } else { POWER_FIRST }));
    let mut length = if is_near { 1 } else { POWER_STEP_FIRST };
    let (mut low, mut high) = (first, first);
    let mut is_scarce = !is_near || first.excess > 0.0;
    loop {
        if first.excess > 0.0 {
            low = high;
            if low.step + length > most {
                return price(low.step + length);
            }
            high = at(low.step + length);
            if high.excess <= 0.0 {
                break;
            }
        } else {
            high = low;
            let step = high.step - length;
            if step < least {
                low = PricedStep { step, excess: f64::INFINITY };
                break;
            }
            low = at(step);
            if low.excess > 0.0 {
                break;
            }
            // The search may go far down, or power is no longer scarce.
            if !is_scarce && excess(0.0) <= 0.0 {
                return 0.0;
            }
            is_scarce = true;
        }
        length = (2 * length).min(POWER_STEP_MOST);
    }
    let mut is_interpolated = is_smooth;
    while high.step > low.step + 1 {
        let middle = i32::midpoint(low.step, high.step);
        let step = if is_interpolated { PricedStep::crossing(low, high) } else { middle };
        let next = at(step);
        let width = high.step - low.step;
        *(if next.excess > 0.0 { &mut low } else { &mut high }) = next;
        // Where the crossing is near one end, the other end hardly moves.
        is_interpolated = is_smooth && 2 * (high.step - low.step) <= width;
    }
    price(high.step)
}

/// A price of power with the draw above the supply, watts.
#[derive(Clone, Copy)]
struct PricedStep {
    step: i32,
    excess: f64,
}

impl PricedStep {
    /// The step strictly between two at which the excess is expected to end.
    fn crossing(low: Self, high: Self) -> i32 {
        let share = low.excess / (low.excess - high.excess);
        if !share.is_finite() {
            return i32::midpoint(low.step, high.step);
        }
        let step = low.step + (share * f64::from(high.step - low.step)).round() as i32;
        step.clamp(low.step + 1, high.step - 1)
    }
}

/// A bidder whose demand differs between the ends of the search interval.
struct Undecided {
    bidder: usize,
    at_low: u64,
    at_high: u64,
}

/// The search for the price of GPUs, with the demand at the prices so far. `demand` is that of one bidder at a price and does
/// not increase with the price, so a bidder with the same demand at both ends of the interval is not evaluated again
/// within it.
struct GpuSearch<D> {
    gpus: u64,
    demand: D,
    /// The greatest price at which demand is known to exceed the supply, and the least at which it is not.
    low: f64,
    high: f64,
    /// The demand of bidders with the same one at both.
    decided: u64,
    undecided: Vec<Undecided>,
}

impl<D: Fn(usize, f64) -> u64> GpuSearch<D> {
    fn new(gpus: u32, count: usize, demand: D) -> Self {
        let unknown = |bidder| Undecided { bidder, at_low: u64::MAX, at_high: 0 };
        Self {
            gpus: u64::from(gpus),
            demand,
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            decided: 0,
            undecided: (0..count).map(unknown).collect(),
        }
    }

    /// Whether demand exceeds the supply at a price.
    fn exceeds(&mut self, price: f64) -> bool {
        if price <= self.low || price >= self.high {
            return price <= self.low;
        }
        let demanded = |entry: &Undecided| (self.demand)(entry.bidder, price);
        let at_price: Vec<u64> = self.undecided.iter().map(demanded).collect();
        let exceeds = self.decided + at_price.iter().sum::<u64>() > self.gpus;
        *(if exceeds { &mut self.low } else { &mut self.high }) = price;
        for (entry, demanded) in self.undecided.iter_mut().zip(at_price) {
            *(if exceeds { &mut entry.at_low } else { &mut entry.at_high }) = demanded;
        }
        let decided = &mut self.decided;
        self.undecided.retain(|entry| {
            let differs = entry.at_low != entry.at_high;
            *decided += if differs { 0 } else { entry.at_low };
            differs
        });
        exceeds
    }

    /// The same at price 0, where demand usually exceeds supply: it stops early.
    fn exceeds_if_free(&self) -> bool {
        if self.low >= 0.0 || self.high <= 0.0 {
            return self.low >= 0.0;
        }
        let mut left = self.gpus.checked_sub(self.decided);
        for entry in &self.undecided {
            let Some(known) = left else { break };
            left = known.checked_sub((self.demand)(entry.bidder, 0.0));
        }
        left.is_none()
    }

    /// Evaluates prices around `expected` until both ends of an interval are known.
    fn bracket(&mut self, expected: f64) {
        let mut factor = 1.0 + 2.0 * PRICE_TOLERANCE;
        let (mut low, mut high) = (expected / factor, expected * factor);
        if self.exceeds(high) {
            while high <= PRICE_MAX && self.exceeds(high * factor) {
                (high, factor) = (high * factor, factor * factor);
            }
        } else {
            while low >= 1.0 / PRICE_MAX && !self.exceeds(low) {
                (low, factor) = (low / factor, factor * factor);
            }
        }
    }
}

/// The least price at which `count` bidders together demand at most `gpus` GPUs. `demand` is the demand of one bidder
/// at a price and does not increase with the price. The price is one of a fixed sequence of bisections, so that it does
/// not depend on `expected`, near which it is searched first; 0: no price is expected.
pub(super) fn clear_gpus(
    gpus: u32,
    count: usize,
    expected: f64,
    demand: impl Fn(usize, f64) -> u64,
) -> f64 {
    let mut search = GpuSearch::new(gpus, count, demand);
    if expected > 0.0 {
        search.bracket(expected);
    }
    if !search.exceeds_if_free() {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 0.1);
    while search.exceeds(high) {
        (low, high) = (high, 4.0 * high);
        if high > PRICE_MAX {
            return high;
        }
    }
    while high - low > PRICE_TOLERANCE * high && high > 1.0 / PRICE_MAX {
        // Geometric bisection, once the lower end is above zero.
        let middle = if low > 0.0 { f64::sqrt(low * high) } else { high / 4.0 };
        *(if search.exceeds(middle) { &mut low } else { &mut high }) = middle;
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
            let price = least_power_price(last, true, |price| drawn(price) - watts);
            let exact = (1_000.0 / watts - 1.0) * 1e-4;
            assert!(price >= exact && price <= 1.011 * exact, "{price} {exact} from {last}");
            let from_elsewhere = least_power_price(7e-4, false, |price| drawn(price) - watts);
            assert!((price - from_elsewhere).abs() < 1e-12, "{price} from {last}");
        }
        let bound = least_power_price(1e-4, true, |_| 1.0);
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
        let clear = |gpus, watts| {
            let supply = MarketSupply { gpus, watts };
            clear(supply, Prices::default(), 10, demand)
        };
        assert!(clear(4, None).power < 1e-12);
        assert_eq!(clear(4, Some(400.0)), clear(4, None), "power is not scarce");
        let scarce = clear(4, Some(200.0));
        assert!((scarce.gpu + 100.0 * scarce.power - 8.0).abs() < 0.2, "{scarce:?}");
        assert!(clear(10, Some(200.0)).gpu < 1e-12, "GPUs are not scarce");
    }

    #[test]
    fn many_bidders_clear_at_the_same_prices_wherever_the_search_begins() {
        // Each takes fewer GPUs at a higher price, and draws less at a higher price of power.
        let demand = |bidder: usize, prices: Prices| {
            let value = 2.0 + (bidder % 37) as f64;
            let gpus = (value / (0.2 + prices.gpu + 100.0 * prices.power)) as u64;
            let watts = gpus as f64 * (60.0 + 200.0 / (1.0 + 1e3 * prices.power));
            Demand { gpus, watts }
        };
        let count = 2 * SMOOTH_MIN;
        for (gpus, watts) in
            [(900, None), (900, Some(1e9)), (900, Some(150_000.0)), (9_000, Some(90_000.0))]
        {
            let supply = MarketSupply { gpus, watts };
            let clear = |gpu, power| clear(supply, Prices { gpu, power }, count, demand);
            let prices = clear(0.0, 0.0);
            assert_eq!(prices.power > 0.0, watts.is_some_and(|watts| watts < 1e6), "{prices:?}");
            for (gpu, power) in [(0.3, 1e-3), (prices.gpu, prices.power), (7e3, 0.5), (1e-3, 0.0)] {
                assert_eq!(clear(gpu, power), prices, "from {gpu} and {power}");
            }
            let drawn: f64 = (0..count).map(|bidder| demand(bidder, prices).watts).sum();
            assert!(watts.is_none_or(|watts| drawn <= watts), "{drawn} {watts:?}");
        }
    }

    #[test]
    fn the_price_is_the_least_that_clears() {
        for (scale, gpus) in [(100.0, 10), (100.0, 99), (1e6, 3), (0.2, 1)] {
            // One bidder that demands scale / (1 + price) GPUs.
            let demand = |_, price| (scale / (1.0 + price)) as u64;
            let price = clear_gpus(gpus, 1, 0.0, demand);
            for expected in [1e-7, 0.1, price, 1.001 * price, 0.5 * price, 3.0 * price, 1e12] {
                let from_elsewhere = clear_gpus(gpus, 1, expected, demand);
                assert!(from_elsewhere.total_cmp(&price).is_eq(), "{price} from {expected}");
            }
            let exact = (scale / f64::from(gpus + 1) - 1.0).max(0.0);
            assert!((price - exact).abs() <= 2e-3 * exact + 1e-6, "{price} {exact}");
        }
        // Many bidders, each with a demand of one up to its own price.
        let price = clear_gpus(3, 10, 0.0, |bidder, price| u64::from(price < 1.0 + bidder as f64));
        assert!((price - 7.0).abs() < 0.01, "{price}");
        // With demand at any price no price clears.
        let bound = clear_gpus(0, 1, 0.0, |_, _| 1);
        assert!(bound.is_finite() && bound > GPU_PRICE_MAX, "{bound}");
    }
}

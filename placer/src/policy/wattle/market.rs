//! What a GPU-second is worth now, so that no more GPUs are wanted than there are, and what each
//! job's work is worth at the price expected when it will be done.
//!
//! A job's own time counts too: what it has been here is taken off what it still needs
//! ([`AGE_COUNTS`]), so that long jobs are priced as short ones are before they have been here for ever.
//!
//! Jobs of one kind with nearly the same work left (within [`WORK_STEP`]) and the same bounds are one
//! lot: they want the same, so each lot is asked once. Nothing here knows who runs or waits: prices
//! must not depend on it, or a plan just carried out would be made anew.

use crate::policy::wattle::shape::Shape;

/// Work left is rounded to so many steps for each factor of e: 3 % apart. Wrong by a factor of two it
/// costs a hundredth of what it brings.
pub(super) const WORK_STEP: f64 = 32.0;

/// So much of the time a job has been here is taken off the time it still needs when its work is
/// priced. 0: long jobs pay for short ones, and the slowest completion times grow by a third to a half
/// where GPUs are short; 2: nothing is left of what the rule gains.
const AGE_COUNTS: f64 = 0.8;

/// At least this share of the time a job needs counts, however old it is: one that ended at the
/// present price would pay any price, and then none clears.
const LEFT_LEAST: f64 = 0.1;

/// Ages are rounded to so many steps for each factor of e, from an hour on.
const AGE_STEP: f64 = 4.0;
const AGE_FIRST_S: f64 = 3_600.0;

/// The step of an age in seconds.
pub(super) fn age_step(age_s: f64) -> i32 {
    ((age_s.max(AGE_FIRST_S) / AGE_FIRST_S).ln() * AGE_STEP).round() as i32
}

/// The age of a step, s; the first step is none.
pub(super) fn age_of(step: i32) -> f64 {
    if step == 0 { 0.0 } else { AGE_FIRST_S * (f64::from(step) / AGE_STEP).exp() }
}

/// The price is found to within this share.
const CLOSE: f64 = 1e-3;
/// No GPU-second is worth more, s: a bound for the search.
const PRICE_MAX: f64 = 1e9;

/// How GPU prices are expected to change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    /// What a GPU-second costs in the long run, s.
    pub(super) later: f64,
    /// Over what time the present price is forgotten, s.
    pub(super) tau_s: f64,
}

impl Forecast {
    /// The price of a GPU-second expected after so long.
    pub(super) fn after(&self, now: f64, seconds: f64) -> f64 {
        self.faded(now, self.left_of_it(seconds))
    }

    /// How much of the present price is left after so long, as a share.
    fn left_of_it(&self, seconds: f64) -> f64 {
        (-seconds / self.tau_s).exp()
    }

    fn faded(&self, now: f64, left_of_it: f64) -> f64 {
        self.later + (now - self.later) * left_of_it
    }
}

/// Jobs that want the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lot {
    pub(super) shape: usize,
    /// Work left, seconds on one GPU.
    pub(super) work: f64,
    /// Sizes it may have, beside none at all: at least, at most.
    pub(super) least: u32,
    pub(super) most: u32,
    /// Whether it may have none at all.
    pub(super) may_wait: bool,
    /// It must be at least so fast to meet its deadline.
    pub(super) need: f64,
    /// How long it has been here, s.
    pub(super) age_s: f64,
    /// How many jobs.
    pub(super) jobs: u32,
    /// How much of the present price is left when it would be done at two GPUs' speed, as a share.
    pub(super) fades_to: f64,
}

impl Lot {
    /// The time for which it is priced, where it would be done in so long, s.
    fn counts_s(&self, done_in_s: f64) -> f64 {
        (done_in_s - AGE_COUNTS * self.age_s).max(LEFT_LEAST * done_in_s)
    }
}

/// What a lot would do at some price of a GPU-second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bid {
    /// What a unit of its work is worth, s.
    pub(super) work_price: f64,
    /// How many GPUs it would take.
    pub(super) gpus: u32,
    /// What it would gain, s/s.
    pub(super) surplus: f64,
    /// When it would be done, s from now.
    pub(super) done_in_s: f64,
}

/// Everybody's menus and wishes.
#[derive(Debug)]
pub(super) struct Market<'a> {
    pub(super) shapes: Vec<Shape<'a>>,
    pub(super) lots: Vec<Lot>,
    pub(super) forecast: Forecast,
}

impl Market<'_> {
    /// Prices are remembered for so long, s.
    pub(super) fn remember_for(&mut self, tau_s: f64) {
        self.forecast.tau_s = tau_s;
        for lot in &mut self.lots {
            lot.fades_to = self.forecast.left_of_it(lot.counts_s(lot.work / 2.0));
        }
    }

    /// What a lot would do at that price: the price of its work follows from when it is done, and
    /// when it is done from that price, so both are found in two rounds.
    pub(super) fn bid(&self, lot: &Lot, gpu_price: f64) -> Bid {
        let mut bid = Bid::default();
        for round in 0..2 {
            let later = match round {
                0 => self.forecast.faded(gpu_price, lot.fades_to),
                _ => self.forecast.after(gpu_price, lot.counts_s(bid.done_in_s)),
            };
            let (work_price, speed);
            work_price = self.shapes[lot.shape].cost(later);
            (bid.gpus, speed, bid.surplus) = self.best(lot, work_price, gpu_price);
            bid.work_price = work_price;
            // Who waits is taken to go at half a GPU's speed.
            bid.done_in_s = lot.work / if bid.gpus > 0 { speed } else { 0.5 };
        }
        bid
    }

    /// The best number of GPUs at these prices, the speed there, and what is gained.
    fn best(&self, lot: &Lot, work_price: f64, gpu_price: f64) -> (u32, f64, f64) {
        let none = if lot.may_wait { 0.0 } else { f64::NEG_INFINITY };
        let mut best = (0, 0.0, none);
        for size in &self.shapes[lot.shape].sizes {
            if size.gpus < lot.least || size.gpus > lot.most {
                continue;
            }
            let Some(way) = size.way(work_price, lot.need) else { continue };
            let surplus = way.at(work_price) - gpu_price * f64::from(size.gpus);
            if surplus > best.2 {
                best = (size.gpus, way.slope, surplus);
            }
        }
        best
    }

    /// How many GPUs all lots together would take; no more is counted once it is beyond `enough`.
    pub(super) fn demand(&self, gpu_price: f64, enough: u32) -> u64 {
        let mut wanted = 0;
        for lot in self.lots.iter().filter(|lot| lot.jobs > 0) {
            wanted += u64::from(lot.jobs) * u64::from(self.bid(lot, gpu_price).gpus);
            if wanted > u64::from(enough) {
                break;
            }
        }
        wanted
    }
}

/// The least price at which no more than `room` GPUs are wanted.
pub(super) fn clear(room: u32, demand: impl Fn(f64) -> u64) -> f64 {
    let room = u64::from(room);
    if demand(0.0) <= room {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 0.1);
    while demand(high) > room {
        (low, high) = (high, 4.0 * high);
        if high > PRICE_MAX {
            return high;
        }
    }
    while high - low > CLOSE * high && high > 1.0 / PRICE_MAX {
        // By factors, once there is a lower end to go by.
        let middle = if low > 0.0 { f64::sqrt(low * high) } else { high / 4.0 };
        if demand(middle) > room { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_is_the_least_that_clears() {
        for (wanted, room) in [(100.0, 10), (100.0, 99), (1e6, 3), (0.2, 1)] {
            // Someone wants wanted / (1 + price) GPUs.
            let price = clear(room, |price| (wanted / (1.0 + price)) as u64);
            let exact = (wanted / f64::from(room + 1) - 1.0).max(0.0);
            assert!((price - exact).abs() <= 2e-3 * exact + 1e-6, "{price} {exact}");
        }
        assert!(clear(0, |_| 1).is_finite());
    }

    #[test]
    fn prices_are_forgotten() {
        let forecast = Forecast { later: 0.1, tau_s: 100.0 };
        assert!((forecast.after(2.0, 0.0) - 2.0).abs() < 1e-12);
        assert!((forecast.after(2.0, 1e6) - 0.1).abs() < 1e-12);
    }
}

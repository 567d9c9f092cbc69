//! What a GPU-second is worth now, so that no more GPUs are wanted than there are, and what each
//! job's work is worth at the price expected when it will be done.
//!
//! A job's own time counts too: what it has been here is taken off what it still needs
//! ([`AGE_COUNTS`]), so that long jobs are priced as short ones are before they have been here for ever.
//!
//! Jobs of one kind with nearly the same work left (within [`WORK_STEP`]) and the same bounds are one
//! lot: they want the same, so each lot is asked once. Nothing here knows who runs or waits: prices
//! must not depend on it, or a plan just carried out would be made anew.

use crate::plan::reason::GPU_PRICE_MAX;
use crate::policies::wattle::upper_envelope::Shape;

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
pub(super) const CLOSE: f64 = 1e-3;
/// No GPU-second is worth more, s: a bound for the search. Two that share may ask for their GPUs
/// beyond it: what their work is worth rises with the price, and together they do more than one.
const PRICE_MAX: f64 = GPU_PRICE_MAX;

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

    /// How many GPUs all jobs of a lot together would take.
    pub(super) fn wanted(&self, lot: usize, gpu_price: f64) -> u64 {
        let lot = &self.lots[lot];
        match lot.jobs {
            0 => 0,
            jobs => u64::from(jobs) * u64::from(self.bid(lot, gpu_price).gpus),
        }
    }
}

/// One whose answer differs at the ends of the range in which the price is looked for.
struct Open {
    who: usize,
    at_low: u64,
    at_high: u64,
}

/// The least price at which no more than `room` GPUs are wanted in all by `count` of them, of whom
/// `wanted` says how many each wants at a price. Nobody wants more where it is dearer: who wants the
/// same at both ends of a range is not asked again within it.
pub(super) fn clear(room: u32, count: usize, wanted: impl Fn(usize, f64) -> u64) -> f64 {
    let room = u64::from(room);
    // Somebody wants something for nothing, mostly more than there is long before all are asked.
    let for_nothing = (0..count).try_fold(0, |sum, who| {
        let sum = sum + wanted(who, 0.0);
        if sum > room { None } else { Some(sum) }
    });
    if for_nothing.is_some() {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 0.1);
    let ask = |who| Open { who, at_low: u64::MAX, at_high: wanted(who, 0.1) };
    let mut open: Vec<Open> = (0..count).map(ask).collect();
    while open.iter().map(|open| open.at_high).sum::<u64>() > room {
        (low, high) = (high, 4.0 * high);
        if high > PRICE_MAX {
            return high;
        }
        for open in &mut open {
            open.at_low = open.at_high;
            // Who wants none wants none where it is dearer.
            open.at_high = if open.at_low == 0 { 0 } else { wanted(open.who, high) };
        }
    }
    let mut settled = 0;
    let mut answers: Vec<u64> = Vec::with_capacity(open.len());
    while high - low > CLOSE * high && high > 1.0 / PRICE_MAX {
        open.retain(|open| {
            let stays = open.at_low != open.at_high;
            settled += if stays { 0 } else { open.at_low };
            stays
        });
        // By factors, once there is a lower end to go by.
        let middle = if low > 0.0 { f64::sqrt(low * high) } else { high / 4.0 };
        answers.clear();
        answers.extend(open.iter().map(|open| wanted(open.who, middle)));
        let sum = settled + answers.iter().sum::<u64>();
        let dearer = sum > room;
        for (open, &answer) in open.iter_mut().zip(&answers) {
            *(if dearer { &mut open.at_low } else { &mut open.at_high }) = answer;
        }
        *(if dearer { &mut low } else { &mut high }) = middle;
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
            let price = clear(room, 1, |_, price| (wanted / (1.0 + price)) as u64);
            let exact = (wanted / f64::from(room + 1) - 1.0).max(0.0);
            assert!((price - exact).abs() <= 2e-3 * exact + 1e-6, "{price} {exact}");
        }
        // Many who each want one up to a price of their own: the dearest of them set it.
        let price = clear(3, 10, |who, price| u64::from(price < 1.0 + who as f64));
        assert!((price - 7.0).abs() < 0.01, "{price}");
        // Who asks at any price lets none clear.
        let bound = clear(0, 1, |_, _| 1);
        assert!(bound.is_finite() && bound > GPU_PRICE_MAX, "{bound}");
    }

    #[test]
    fn prices_are_forgotten() {
        let forecast = Forecast { later: 0.1, tau_s: 100.0 };
        assert!((forecast.after(2.0, 0.0) - 2.0).abs() < 1e-12);
        assert!((forecast.after(2.0, 1e6) - 0.1).abs() < 1e-12);
    }
}

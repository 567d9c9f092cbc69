//! The dual function: a lower bound on the cost of every schedule from paths of prices.
//!
//! Let a GPU-second cost `nu(t)` seconds at time `t`, and a joule `lambda w(t) + mu(t)` seconds with
//! weight `w` (one, or the grid's relative intensity) and price of power `mu`. For all prices `nu, mu
//! >= 0`, the sum of flow times + `lambda` * weighted joules of every schedule is at least
//!
//! ```text
//! sum_j min_T max_p { T - a_j + p x_j - int_{a_j}^{T} h_j(p, t) dt }  -  int (G nu + W mu) dt,
//! h_j(p, t) = max(0, max over options of p speed - (lambda w(t) + mu(t)) power - nu(t) GPUs)
//! ```
//!
//! for jobs that arrive at `a_j` with `x_j` steps, `G` GPUs and `W` watts. A schedule uses at most `G`
//! GPUs and draws at most `W` watts at every instant, so charging its use and refunding `int (G nu + W
//! mu)` does not increase its cost; then every job minimizes independently. The inner part is the
//! linear program of finishing at `T` at least cost, in its dual form with step price `p`. Without a
//! power limit `mu` is 0.
//!
//! Approximations, all of which keep the result a lower bound:
//! * Prices are constant within a bucket and zero after the last. Any path is valid.
//! * Within a bucket the bracket is linear in `T` and concave in `p`: the minimum over `T` of the
//!   maximum over `p` is the maximum over `p` of the smaller end. No finish time is left out or
//!   overestimated.
//! * `p` is on a grid. Every `p` gives a lower bound, so omitting some only lowers it.
//! * Finish times after the last bucket use one `p`, the step price at free GPUs and the least
//!   weight, at which the bracket is constant or increasing in `T`.
//! * Prices of a joule are rounded down ([`super::weights`]), and the refund with them: it counts the
//!   price of power that is charged at least.
//! * Energy and time are sums of some thousand terms; the rounding error is below 1e-11.

use super::weights::Weights;
use super::{BoundOption, Class, Supply};

/// A line `value - gpus * nu`.
#[derive(Debug, Clone, Copy)]
struct Worth {
    value: f64,
    gpus: f64,
    speed: f64,
    watts: f64,
}

impl Worth {
    fn at(self, nu: f64) -> f64 {
        self.value - self.gpus * nu
    }
}

/// A class of jobs.
struct Priceable<'c> {
    class: &'c Class,
    /// Options by ascending GPUs, as (GPUs, speed, power).
    options: Vec<(f64, f64, f64)>,
}

/// A value for each bucket, of GPUs and of watts: prices, demand, or step sizes of a search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Paths {
    pub(super) gpus: Vec<f64>,
    pub(super) watts: Vec<f64>,
}

impl Paths {
    pub(super) fn of(buckets: usize, gpus: f64, watts: f64) -> Self {
        Self { gpus: vec![gpus; buckets], watts: vec![watts; buckets] }
    }

    /// Adds an option for some seconds of a bucket.
    fn add(&mut self, bucket: usize, option: Worth, seconds: f64) {
        self.gpus[bucket] += option.gpus * seconds;
        self.watts[bucket] += option.watts * seconds;
    }
}

/// The dual function at one energy price.
pub(super) struct Dual<'c> {
    classes: Vec<Priceable<'c>>,
    supply: Supply,
    /// The energy price, seconds per weighted joule.
    lambda: f64,
    /// Start of the first bucket, seconds.
    origin_s: f64,
    bucket_s: f64,
    weights: &'c Weights,
    scratch: Scratch,
}

/// Buffers that are refilled for each class.
#[derive(Default)]
struct Scratch {
    /// Per step price and weight: the value of running at each GPU count that is optimal at some
    /// GPU price.
    worth: Vec<Vec<Worth>>,
    /// Number of weights.
    levels: usize,
    /// Step prices, ascending.
    step_prices: Vec<f64>,
    /// Per step price, `int (1 - h) dt` up to each bucket's start.
    slack: Vec<f64>,
    row: Vec<f64>,
}

/// The dual function's value at a path, and its subgradient.
pub(super) struct Answer {
    /// The value, seconds.
    pub(super) value_s: f64,
    /// Demand for GPUs and watts at these prices, per bucket.
    pub(super) demand: Paths,
    /// The refund of a watt over all time, seconds: the value changes by its negative where the limit
    /// is a watt higher.
    pub(super) per_watt_s: f64,
}

impl<'c> Dual<'c> {
    pub(super) fn new(
        classes: &'c [Class],
        supply: Supply,
        lambda: f64,
        (origin_s, bucket_s): (f64, f64),
        weights: &'c Weights,
    ) -> Self {
        let priced =
            |option: &BoundOption| (f64::from(option.gpus), option.steps_per_s, option.power_w);
        let classes = classes
            .iter()
            .map(|class| {
                let mut options: Vec<_> = class.options.iter().map(priced).collect();
                options.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
                Priceable { class, options }
            })
            .collect();
        let scratch = Scratch::default();
        Self { classes, supply, lambda, origin_s, bucket_s, weights, scratch }
    }

    /// The value at a path, with `step_prices` step prices per class.
    pub(super) fn at(&mut self, paths: &Paths, step_prices: usize) -> Answer {
        let path = &paths.gpus[..];
        let highest = path.iter().copied().fold(0.0, f64::max);
        let mut demand = Paths::of(path.len(), 0.0, 0.0);
        let mut value_s = -f64::from(self.supply.gpus) * self.bucket_s * path.iter().sum::<f64>();
        let (origin_s, bucket_s, lambda) = (self.origin_s, self.bucket_s, self.lambda);
        let mut per_watt_s = 0.0;
        let priced = if self.supply.is_power_limited() {
            let joules = self.weights.with_power(lambda, &paths.watts);
            let refunded = |bucket| joules.at(bucket) - lambda * self.weights.at(bucket);
            let refunds = (0..path.len()).map(|bucket| refunded(bucket).max(0.0));
            per_watt_s = bucket_s * refunds.sum::<f64>();
            value_s -= self.supply.watts * per_watt_s;
            joules
        } else {
            self.weights.times(lambda)
        };
        let weights = &priced;
        let grid = Grid { origin_s, bucket_s, path, ranked: ranked(path, weights), weights };
        for class in &self.classes {
            self.scratch.fill(class, &grid, highest, step_prices);
            for &(arrival_s, work) in &class.class.jobs {
                value_s += self.scratch.job(arrival_s, work, &grid, &mut demand);
            }
        }
        for taken in demand.gpus.iter_mut().chain(&mut demand.watts) {
            *taken /= self.bucket_s;
        }
        Answer { value_s, demand, per_watt_s }
    }
}

/// The path and its buckets.
struct Grid<'p> {
    origin_s: f64,
    bucket_s: f64,
    path: &'p [f64],
    /// Prices and their buckets, grouped by weight and ascending by price.
    ranked: Vec<(f64, usize)>,
    weights: &'p Weights,
}

/// Prices and their buckets, grouped by weight and ascending by price.
fn ranked(path: &[f64], weights: &Weights) -> Vec<(f64, usize)> {
    let mut ranked: Vec<_> =
        weights.by_group().iter().map(|&bucket| (path[bucket], bucket)).collect();
    for group in 0..weights.levels().len() {
        ranked[weights.range(group)].sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    }
    ranked
}

impl Priceable<'_> {
    /// The step price at which running offsets a second of waiting, at GPU price `nu` and `weight`
    /// seconds per joule.
    fn break_even(&self, nu: f64, weight: f64) -> f64 {
        let cost =
            |&(gpus, speed, power): &(f64, f64, f64)| (1.0 + weight * power + nu * gpus) / speed;
        self.options.iter().map(cost).fold(f64::INFINITY, f64::min)
    }
}

impl Scratch {
    fn fill(&mut self, class: &Priceable<'_>, grid: &Grid<'_>, highest: f64, step_prices: usize) {
        // Outside these two the bracket is monotone in the finish time, so no other step price can
        // be optimal.
        let (least, most) = (grid.weights.least(), grid.weights.most());
        let (low, high) = (class.break_even(0.0, least), class.break_even(highest, most));
        self.step_prices.clear();
        self.step_prices.push(low);
        if high > low {
            let last = step_prices.max(2) - 1;
            let ratio = high / low;
            self.step_prices.extend((1..last).map(|i| low * ratio.powf(i as f64 / last as f64)));
            self.step_prices.push(high);
        }
        let buckets = grid.path.len();
        self.slack.resize(self.step_prices.len() * (buckets + 1), 0.0);
        self.row.resize(buckets, 0.0);
        self.levels = grid.weights.levels().len();
        self.worth.resize_with(self.step_prices.len() * self.levels, Vec::new);
        let rows = self.slack.chunks_exact_mut(buckets + 1);
        let worths = self.worth.chunks_exact_mut(self.levels);
        for ((&p, worths), slack) in self.step_prices.iter().zip(worths).zip(rows) {
            self.row.fill(0.0);
            for (group, (weight, worth)) in grid.weights.levels().zip(worths).enumerate() {
                useful(p, weight, &class.options, worth);
                let Some((mut line, mut fewer)) = worth.split_last() else { continue };
                // The optimal number of GPUs is non-increasing in their price.
                for &(nu, bucket) in &grid.ranked[grid.weights.range(group)] {
                    let mut gain = line.at(nu);
                    while let Some((next, rest)) = fewer.split_last()
                        && next.at(nu) > gain
                    {
                        (line, fewer, gain) = (next, rest, next.at(nu));
                    }
                    if gain <= 0.0 {
                        break;
                    }
                    self.row[bucket] = gain;
                }
            }
            let mut sum = 0.0;
            slack[0] = sum;
            for (gain, after) in self.row.iter().zip(&mut slack[1..]) {
                sum += (1.0 - gain) * grid.bucket_s;
                *after = sum;
            }
        }
    }

    /// The value of running at a step price, by weight.
    fn worth(&self, price: usize) -> &[Vec<Worth>] {
        &self.worth[price * self.levels..(price + 1) * self.levels]
    }

    /// The least cost of a job at these prices; adds its demand per bucket, in GPU-seconds and joules.
    fn job(&self, arrival_s: f64, work: f64, grid: &Grid<'_>, demand: &mut Paths) -> f64 {
        let buckets = grid.path.len();
        let since = (arrival_s - grid.origin_s) / grid.bucket_s;
        let first = (since as usize).min(buckets - 1);
        let into = (since - first as f64).clamp(0.0, 1.0);
        let row = |i: usize| &self.slack[i * (buckets + 1)..(i + 1) * (buckets + 1)];
        // `int (1 - h)` up to the arrival, linear within its bucket.
        let before = |i: usize| {
            let row = row(i);
            row[first] + (row[first + 1] - row[first]) * into
        };
        let cheap = row(0);
        let cheap_base = self.step_prices[0] * work - before(0);
        // After the last bucket: at this step price `1 - h` is zero there.
        let mut least = cheap_base + cheap[buckets];
        let (mut end, mut price) = (buckets, 0);
        let mut i = self.step_prices.len() - 1;
        for bucket in first..buckets {
            // The lowest step price gives a lower bound that is increasing in the finish time.
            if bucket > first && cheap_base + cheap[bucket] >= least {
                break;
            }
            let bracket = |i: usize| {
                let (row, before) = (row(i), before(i));
                let start = if bucket == first { before } else { row[bucket] };
                self.step_prices[i] * work - before + start.min(row[bucket + 1])
            };
            // Concave in the step price; the optimal one is non-increasing in the finish time.
            let mut best = bracket(i);
            while i > 0 {
                let lower = bracket(i - 1);
                if lower < best {
                    break;
                }
                (i, best) = (i - 1, lower);
            }
            if best < least {
                (least, end, price) = (best, bucket + 1, i);
            }
        }
        let span = Span { grid, first, into, end };
        self.take(&span, price, work, demand);
        least
    }

    /// Adds the demand of a job that finishes in the span's last bucket at about this step price.
    ///
    /// A step price on the grid completes slightly too much or too little work; the least-cost
    /// solution leaves the last bucket early, or mixes the solutions of two adjacent prices.
    fn take(&self, span: &Span<'_>, price: usize, work: f64, demand: &mut Paths) {
        if price == 0 || price + 1 == self.step_prices.len() {
            // At the lowest or highest step price the bracket may be constant over many finish
            // times; the work then determines the end.
            let mut done = 0.0;
            for bucket in span.first..span.grid.path.len() {
                let taken = span.taken(self.worth(price), bucket);
                let (speed, seconds) = (taken.speed, span.seconds(bucket));
                let share =
                    if speed > 0.0 { ((work - done) / (speed * seconds)).min(1.0) } else { 0.0 };
                demand.add(bucket, taken, share * seconds);
                done += share * speed * seconds;
                if done >= work {
                    break;
                }
            }
            return;
        }
        let (steps, last) = span.steps(self.worth(price));
        if steps >= work && steps - last <= work {
            let left = if last > 0.0 { (steps - work) / last } else { 0.0 };
            span.add(self.worth(price), 1.0, demand);
            span.add_last(self.worth(price), -left, demand);
        } else if steps < work {
            let (more, _) = span.steps(self.worth(price + 1));
            let share = if more > steps { ((work - steps) / (more - steps)).min(1.0) } else { 0.0 };
            span.add(self.worth(price), 1.0 - share, demand);
            span.add(self.worth(price + 1), share, demand);
        } else {
            let least = steps - last;
            let (steps, last) = span.steps(self.worth(price - 1));
            let fewer = steps - last;
            let share =
                if least > fewer { ((least - work) / (least - fewer)).min(1.0) } else { 0.0 };
            span.add(self.worth(price), 1.0 - share, demand);
            span.add_last(self.worth(price), share - 1.0, demand);
            span.add(self.worth(price - 1), share, demand);
            span.add_last(self.worth(price - 1), -share, demand);
        }
    }
}

/// The buckets in which a job runs.
struct Span<'g> {
    grid: &'g Grid<'g>,
    first: usize,
    /// Elapsed share of the first bucket at the arrival, 0 to 1.
    into: f64,
    end: usize,
}

impl Span<'_> {
    fn seconds(&self, bucket: usize) -> f64 {
        let share = if bucket == self.first { 1.0 - self.into } else { 1.0 };
        share * self.grid.bucket_s
    }

    /// The optimal option in a bucket.
    fn taken(&self, worth: &[Vec<Worth>], bucket: usize) -> Worth {
        taken(&worth[self.grid.weights.group(bucket)], self.grid.path[bucket])
    }

    /// Steps in the span, and in its last bucket.
    fn steps(&self, worth: &[Vec<Worth>]) -> (f64, f64) {
        let mut sum = 0.0;
        let mut last = 0.0;
        for bucket in self.first..self.end {
            last = self.taken(worth, bucket).speed * self.seconds(bucket);
            sum += last;
        }
        (sum, last)
    }

    fn add(&self, worth: &[Vec<Worth>], share: f64, demand: &mut Paths) {
        for bucket in self.first..self.end {
            demand.add(bucket, self.taken(worth, bucket), share * self.seconds(bucket));
        }
    }

    fn add_last(&self, worth: &[Vec<Worth>], share: f64, demand: &mut Paths) {
        if self.end > self.first {
            let bucket = self.end - 1;
            demand.add(bucket, self.taken(worth, bucket), share * self.seconds(bucket));
        }
    }
}

/// The optimal option at a GPU price; zeros where running has no value.
fn taken(worth: &[Worth], nu: f64) -> Worth {
    let mut chosen = (0.0, Worth { value: 0.0, gpus: 0.0, speed: 0.0, watts: 0.0 });
    for line in worth {
        let gain = line.at(nu);
        if gain > chosen.0 {
            chosen = (gain, *line);
        }
    }
    chosen.1
}

/// The options that are optimal at some GPU price `nu >= 0`, at step price `p` and `weight` seconds per
/// joule: the upper envelope of their lines and of zero.
fn useful(p: f64, weight: f64, options: &[(f64, f64, f64)], worth: &mut Vec<Worth>) {
    worth.clear();
    // Options ascend by GPUs, from the flattest line to the steepest, so each line must have a
    // higher value at free GPUs than those before it.
    for &(gpus, speed, watts) in options {
        let line = Worth { value: p * speed - weight * watts, gpus, speed, watts };
        if line.value <= 0.0 || worth.last().is_some_and(|last| line.value <= last.value) {
            continue;
        }
        if worth.last().is_some_and(|last| last.gpus >= gpus) {
            worth.pop();
        }
        while let [.., a, b] = worth[..] {
            // b is optimal between its crossings with the new line and with a.
            let leaves_new = (line.value - b.value) * (b.gpus - a.gpus);
            let leaves_b = (b.value - a.value) * (line.gpus - b.gpus);
            if leaves_new < leaves_b {
                break;
            }
            worth.pop();
        }
        if let [only] = worth[..]
            && (line.value - only.value) * only.gpus >= only.value * (line.gpus - only.gpus)
        {
            worth.pop();
        }
        worth.push(line);
    }
}

//! The energy aim: the least energy within a bound on mean completion time.
//!
//! A policy with an energy price spends less energy at a higher price, and its jobs complete later.
//! The energy aim with a bound of 5 % selects the run of least energy whose mean completion time is
//! at most 5 % above that of the time aim, which is the same policy on the same jobs at price 0.
//! [`least_energy`] searches the price with complete simulations.
//!
//! * Mean completion times are over the jobs that complete in both runs, each with the same weight.
//!   A run that completes fewer jobs than the time aim is not feasible.
//! * Energies are compared over one period: until the last completion of any run. After its own last
//!   completion a run draws its power at rest ([`AimRun::rest_w`]).
//! * The search is on the logarithm of the price. It moves by a factor ([`AimSearch::factor`], four by
//!   default) until a feasible and an infeasible price are found, then interpolates the slowdown between
//!   them. It ends close below the bound ([`AimSearch::close`], within a tenth by default), or after
//!   [`AimSearch::runs_max`] runs. Neither energy nor slowdown has to be monotonic in the price: the
//!   result is the feasible run of least energy among those made.

/// Number of runs of a search, the one at price 0 included.
pub const RUNS_MAX: usize = 8;

/// [`AimSearch::factor`] of a search without a good first price.
const BRACKET_FACTOR: f64 = 4.0;
/// [`AimSearch::close`] by default.
const CLOSE_TO_BOUND: f64 = 0.9;
/// The search ends when the bracket is narrower than this factor.
const NARROW_FACTOR: f64 = 1.1;
/// An interpolated price keeps this share of the bracket's logarithmic width from either end.
const MARGIN: f64 = 0.15;

/// A simulated run, as the search reads it.
pub trait AimRun {
    /// Energy from the first submission to the run's last completion, kWh.
    fn energy_kwh(&self) -> f64;
    /// From the first submission to the last completion, s.
    fn makespan_s(&self) -> f64;
    /// Power of the cluster after the last completion, W.
    fn rest_w(&self) -> f64;
    /// Completion time of each job in the order of the scenario, s; `None` where it did not
    /// complete.
    fn completion_s(&self) -> &[Option<f64>];

    /// Energy from the first submission over a period at least as long as the makespan, kWh.
    fn energy_kwh_over(&self, period_s: f64) -> f64 {
        self.energy_kwh() + self.rest_w() * (period_s - self.makespan_s()).max(0.0) / 3.6e6
    }
}

/// A search for the least energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AimSearch {
    /// Bound on the mean completion time relative to the time aim's, minus 1: 0.05 for 5 %.
    pub max_slowdown: f64,
    /// The first price after 0, in the unit of the policy.
    pub start: f64,
    /// The least price above 0 that is tried.
    pub least: f64,
    /// The greatest price that is tried.
    pub most: f64,
    /// Number of runs, the one at price 0 included.
    pub runs_max: usize,
    /// Factor between prices while the bound is not bracketed.
    pub factor: f64,
    /// The search ends at a feasible run whose slowdown is at least this share of the bound.
    pub close: f64,
}

impl AimSearch {
    /// A search between the prices of a policy's range, which begins at their geometric mean.
    #[must_use]
    pub fn within(max_slowdown: f64, least: f64, most: f64) -> Self {
        Self {
            max_slowdown,
            start: (least * most).sqrt(),
            least,
            most,
            runs_max: RUNS_MAX,
            factor: BRACKET_FACTOR,
            close: CLOSE_TO_BOUND,
        }
    }
}

/// A price with its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced<R> {
    /// The price.
    pub price: f64,
    /// The run at that price.
    pub run: R,
}

/// One price of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// The price.
    pub price: f64,
    /// Energy over the common period, kWh.
    pub energy_kwh: f64,
    /// Mean completion time relative to the time aim's, minus 1. `None` where the run completed
    /// fewer jobs, or none in common.
    pub slowdown: Option<f64>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct AimOutcome<R> {
    /// The time aim: the run at price 0.
    pub time: R,
    /// The feasible run of least energy. `None` where that is the time aim.
    pub energy: Option<Priced<R>>,
    /// Every price tried, in order; the first is 0.
    pub tried: Vec<Tried>,
}

impl<R> AimOutcome<R> {
    /// The price of the selected run.
    #[must_use]
    pub fn price(&self) -> f64 {
        self.energy.as_ref().map_or(0.0, |energy| energy.price)
    }

    /// The selected run.
    #[must_use]
    pub fn run(&self) -> &R {
        self.energy.as_ref().map_or(&self.time, |energy| &energy.run)
    }

    /// The selected run; the others are dropped.
    #[must_use]
    pub fn into_run(self) -> R {
        self.energy.map_or(self.time, |energy| energy.run)
    }

    /// The slowdown of the selected run.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        let price = self.price();
        let tried = self.tried.iter().find(|tried| tried.price.total_cmp(&price).is_eq());
        tried.and_then(|tried| tried.slowdown).unwrap_or(0.0)
    }
}

/// Mean completion time of `run` relative to that of `reference`, minus 1, over the jobs that
/// complete in both. `None` where `run` completes fewer jobs, or none in common.
#[must_use]
pub fn slowdown(run: &impl AimRun, reference: &impl AimRun) -> Option<f64> {
    let completed = |jobs: &[Option<f64>]| jobs.iter().flatten().count();
    if completed(run.completion_s()) < completed(reference.completion_s()) {
        return None;
    }
    let both = run.completion_s().iter().zip(reference.completion_s());
    let (mut sum, mut sum_reference) = (0.0, 0.0);
    for (own, other) in both.filter_map(|(own, other)| own.zip(*other)) {
        sum += own;
        sum_reference += other;
    }
    (sum_reference > 0.0).then(|| sum / sum_reference - 1.0)
}

/// The run of least energy within the bound. `run_at_price` makes one complete simulation.
///
/// # Errors
/// The first error of `run_at_price`.
pub fn least_energy<R: AimRun, E>(
    search: &AimSearch,
    mut run_at_price: impl FnMut(f64) -> Result<R, E>,
) -> Result<AimOutcome<R>, E> {
    let time = run_at_price(0.0)?;
    let mut runs: Vec<(Priced<R>, Option<f64>)> = Vec::new();
    let mut next = Some(search.start.clamp(search.least, search.most));
    while let Some(price) = next.filter(|_| runs.len() + 1 < search.runs_max) {
        let run = run_at_price(price)?;
        let slowdown = slowdown(&run, &time);
        runs.push((Priced { price, run }, slowdown));
        let tried: Vec<(f64, Option<f64>)> =
            runs.iter().map(|(priced, slowdown)| (priced.price, *slowdown)).collect();
        next = next_price(search, &tried);
    }
    let makespans = runs.iter().map(|(priced, _)| priced.run.makespan_s());
    let period_s = makespans.fold(time.makespan_s(), f64::max);
    let of_time =
        Tried { price: 0.0, energy_kwh: time.energy_kwh_over(period_s), slowdown: Some(0.0) };
    let mut tried = vec![of_time];
    let mut best: Option<(f64, Priced<R>)> = None;
    for (priced, slowdown) in runs {
        let energy_kwh = priced.run.energy_kwh_over(period_s);
        tried.push(Tried { price: priced.price, energy_kwh, slowdown });
        let least = best.as_ref().map_or(of_time.energy_kwh, |(energy_kwh, _)| *energy_kwh);
        if slowdown.is_some_and(|slowdown| slowdown <= search.max_slowdown) && energy_kwh < least {
            best = Some((energy_kwh, priced));
        }
    }
    Ok(AimOutcome { time, energy: best.map(|(_, priced)| priced), tried })
}

/// The next price to try after these prices with their slowdowns; `None` at the end of the search.
fn next_price(search: &AimSearch, tried: &[(f64, Option<f64>)]) -> Option<f64> {
    let bound = search.max_slowdown;
    // The greatest feasible price below every infeasible one.
    let is_feasible = |slowdown: Option<f64>| slowdown.is_some_and(|slowdown| slowdown <= bound);
    let infeasible = tried.iter().filter(|(_, slowdown)| !is_feasible(*slowdown));
    let above = infeasible.copied().min_by(|a, b| a.0.total_cmp(&b.0));
    let feasible = tried.iter().filter(|(price, slowdown)| {
        is_feasible(*slowdown) && above.is_none_or(|(above, _)| *price < above)
    });
    let below = feasible.copied().max_by(|a, b| a.0.total_cmp(&b.0));
    match (below, above) {
        (None, None) => Some(search.start),
        (Some((price, slowdown)), None) => {
            let close =
                slowdown.is_some_and(|slowdown| bound > 0.0 && slowdown >= search.close * bound);
            (price < search.most && !close).then(|| (price * search.factor).min(search.most))
        }
        (None, Some((price, _))) => {
            (price > search.least).then(|| (price / search.factor).max(search.least))
        }
        (Some((low, at_low)), Some((high, at_high))) => {
            let (at_low, width) = (at_low.unwrap_or(0.0), (high / low).ln());
            if at_low >= search.close * bound || width < NARROW_FACTOR.ln() {
                return None;
            }
            // Linear interpolation aims between the accepted slowdowns.
            let target = bound * f64::midpoint(search.close, 1.0);
            let share = at_high.map_or(0.5, |at_high| (target - at_low) / (at_high - at_low));
            let share = if share.is_finite() { share.clamp(MARGIN, 1.0 - MARGIN) } else { 0.5 };
            Some(low * (share * width).exp())
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Fake {
        energy_kwh: f64,
        makespan_s: f64,
        completion_s: Vec<Option<f64>>,
    }

    impl AimRun for Fake {
        fn energy_kwh(&self) -> f64 {
            self.energy_kwh
        }
        fn makespan_s(&self) -> f64 {
            self.makespan_s
        }
        fn rest_w(&self) -> f64 {
            1_000.0
        }
        fn completion_s(&self) -> &[Option<f64>] {
            &self.completion_s
        }
    }

    /// A run whose energy falls and whose completion times rise with the price.
    fn at(price: f64, sensitivity: f64) -> Fake {
        let slower = 1.0 + sensitivity * price;
        Fake {
            energy_kwh: 100.0 / (1.0 + 0.5 * (slower - 1.0)),
            makespan_s: 3_600.0,
            completion_s: vec![Some(100.0 * slower), Some(300.0 * slower)],
        }
    }

    fn search(max_slowdown: f64) -> AimSearch {
        AimSearch::within(max_slowdown, 1e-5, 1.0)
    }

    fn solve(sensitivity: f64, max_slowdown: f64) -> AimOutcome<Fake> {
        least_energy(&search(max_slowdown), |price| Ok::<_, ()>(at(price, sensitivity))).unwrap()
    }

    #[test]
    fn search_ends_close_below_the_bound() {
        for sensitivity in [0.5, 3.0, 20.0, 100.0, 400.0] {
            let aim = solve(sensitivity, 0.05);
            assert!(aim.slowdown() <= 0.05 && aim.slowdown() > 0.035, "{sensitivity}: {aim:?}");
            assert!(aim.tried.len() <= RUNS_MAX, "{aim:?}");
        }
    }

    #[test]
    fn bound_that_never_binds_gives_the_greatest_price() {
        let aim = solve(0.001, 0.05);
        assert_eq!(aim.price(), 1.0, "{aim:?}");
    }

    #[test]
    fn bound_of_zero_accepts_no_slowdown() {
        let aim = solve(10.0, 0.0);
        assert_eq!((aim.price(), aim.slowdown()), (0.0, 0.0), "{aim:?}");
        assert_eq!(aim.run(), &at(0.0, 10.0));
    }

    #[test]
    fn run_that_completes_fewer_jobs_is_not_selected() {
        let run = |price: f64| {
            let mut run = at(price, 1.0);
            if price > 0.0 {
                run.completion_s[1] = None;
                run.energy_kwh = 1.0;
            }
            Ok::<_, ()>(run)
        };
        let aim = least_energy(&search(0.5), run).unwrap();
        assert_eq!(aim.price(), 0.0);
        assert!(aim.tried[1..].iter().all(|tried| tried.slowdown.is_none()), "{aim:?}");
    }

    #[test]
    fn slowdown_is_over_jobs_that_complete_in_both_runs() {
        let of = |completion_s: &[Option<f64>]| Fake {
            completion_s: completion_s.to_vec(),
            ..at(0.0, 0.0)
        };
        let time = of(&[Some(100.0), None, Some(300.0)]);
        let run = of(&[Some(110.0), Some(9e9), Some(310.0)]);
        assert!((slowdown(&run, &time).unwrap() - 0.05).abs() < 1e-12);
        assert_eq!(slowdown(&of(&[None, None, None]), &of(&[None, None, None])), None);
    }

    #[test]
    fn shorter_run_is_charged_its_rest_until_the_longest_ends() {
        // At a price the cluster finishes an hour later for 0.5 kWh less, but rests at 1 kW before.
        let run = |price: f64| {
            let hours = if price > 0.0 { 2.0 } else { 1.0 };
            let energy_kwh = if price > 0.0 { 10.5 } else { 10.0 };
            Ok::<_, ()>(Fake { energy_kwh, makespan_s: 3_600.0 * hours, ..at(0.0, 0.0) })
        };
        let aim = least_energy(&search(0.05), run).unwrap();
        assert_eq!(aim.tried[0].energy_kwh, 11.0);
        assert!(aim.price() > 0.0, "{aim:?}");
    }

    #[test]
    fn first_error_ends_the_search() {
        let run = |price: f64| if price > 0.0 { Err(price) } else { Ok(at(0.0, 1.0)) };
        assert_eq!(least_energy(&search(0.05), run), Err(search(0.05).start));
    }

    proptest! {
        #[test]
        fn selected_run_is_feasible_and_no_feasible_run_uses_less(
            noise in prop::collection::vec((0.5_f64..1.5, 0.0_f64..0.2), RUNS_MAX),
            max_slowdown in 0.0_f64..0.2,
        ) {
            let mut made = 0;
            let run = |price: f64| {
                let (energy, slower) = if price > 0.0 { noise[made] } else { (1.0, 0.0) };
                made += 1;
                let completion_s = vec![Some(100.0 * (1.0 + slower))];
                Ok::<_, ()>(Fake { energy_kwh: 100.0 * energy, makespan_s: 1.0, completion_s })
            };
            let aim = least_energy(&search(max_slowdown), run).unwrap();
            let feasible = |tried: &&Tried| tried.slowdown.is_some_and(|s| s <= max_slowdown);
            let least = aim.tried.iter().filter(feasible).map(|tried| tried.energy_kwh);
            let least = least.fold(f64::INFINITY, f64::min);
            prop_assert!(aim.slowdown() <= max_slowdown);
            prop_assert!((aim.run().energy_kwh - least).abs() < 1e-9);
            prop_assert!(aim.tried.len() <= RUNS_MAX);
            prop_assert!(aim.tried.iter().all(|tried| tried.price <= 1.0));
        }
    }
}

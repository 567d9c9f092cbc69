//! Searches on runs whose energy and completion times are formulas of the price.
#![allow(clippy::float_cmp, reason = "exact figures are meant")]

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

/// A run as a policy that resizes jobs makes it: its jobs complete sooner at price 0 than at the highest
/// price by a factor that is a sigmoid of the logarithm of the price.
fn resized(price: f64, fastest: f64, slowest: f64) -> Fake {
    let share = price / (price + 2e-3);
    let factor = fastest + (slowest - fastest) * share;
    Fake {
        energy_kwh: 100.0 - 50.0 * share,
        makespan_s: 3_600.0,
        completion_s: vec![Some(100.0 * factor), Some(300.0 * factor)],
    }
}

fn within(max_slowdown: f64) -> AimSearch {
    AimSearch::within(max_slowdown, 1e-5, 1.0)
}

fn solve(sensitivity: f64, max_slowdown: f64) -> AimOutcome<Fake> {
    least_energy(&within(max_slowdown), None, |price| Ok::<_, ()>(at(price, sensitivity))).unwrap()
}

/// The baseline of the tests: 100 and 300 s.
fn baseline() -> Reference {
    Reference { completion_s: vec![Some(100.0), Some(300.0)], ..Reference::default() }
}

fn solve_to_baseline(
    allowed: Allowed,
    reference: &Reference,
    run: impl Fn(f64) -> Fake,
) -> AimOutcome<Fake> {
    let aim = AimSearch::to_baseline(allowed, 1e-5, 1.0);
    least_energy(&aim, Some(reference), |price| Ok::<_, ()>(run(price))).unwrap()
}

fn mean(outcome: &AimOutcome<Fake>) -> f64 {
    outcome.lateness().unwrap().mean
}

#[test]
fn search_ends_close_below_the_bound() {
    for sensitivity in [0.5, 3.0, 20.0, 100.0, 400.0] {
        let aim = solve(sensitivity, 0.05);
        assert!(mean(&aim) <= 0.05 && mean(&aim) > 0.035, "{sensitivity}: {aim:?}");
        assert!(aim.is_within && aim.runs.len() <= RUNS_MAX, "{aim:?}");
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
    assert_eq!((aim.price(), mean(&aim), aim.is_within), (0.0, 0.0, true), "{aim:?}");
    assert_eq!(aim.run(), &at(0.0, 10.0));
}

#[test]
fn search_ends_within_half_a_point_below_another_schedule() {
    for (fastest, slowest) in [(0.5, 2.0), (0.63, 1.4), (0.9, 1.2), (0.95, 2.5), (0.3, 12.0)] {
        for by in [0.0, 0.03, 0.1] {
            let aim = solve_to_baseline(Allowed::mean(by), &baseline(), |price| {
                resized(price, fastest, slowest)
            });
            let mean = mean(&aim);
            assert!(aim.is_within && mean <= by, "{fastest} {by}: {aim:?}");
            assert!(mean >= by - CLOSE_TO_BASELINE, "{fastest} {by}: {aim:?}");
            assert!(aim.runs.len() <= RUNS_MAX_TO_BASELINE, "{aim:?}");
            assert!(aim.runs[0].lateness.unwrap().mean < 0.0, "{aim:?}");
        }
    }
}

#[test]
fn search_of_few_jobs_continues_where_the_lateness_changes_in_steps() {
    // Beyond a price of 0.001 jobs complete much later, but not between 0.05 and 0.2.
    let run = |price: f64| {
        let is_late = price > 0.001 && !(0.05..0.2).contains(&price);
        let completion_s = vec![Some(if is_late { 12.0 } else { 9.0 })];
        Fake { energy_kwh: 100.0 - price, makespan_s: 3_600.0, completion_s }
    };
    let reference = Reference { completion_s: vec![Some(10.0)], ..Reference::default() };
    let aim = AimSearch::to_baseline(Allowed::mean(0.0), 1e-5, 1.0);
    let found = |aim: &AimSearch| {
        let aim = least_energy(aim, Some(&reference), |price| Ok::<_, ()>(run(price))).unwrap();
        assert!(aim.is_within);
        (aim.price(), aim.runs.len())
    };
    let (price, _) = found(&aim);
    assert!(price <= 0.001, "{price}");
    let (price, runs) = found(&aim.of_few_jobs());
    assert!((0.05..0.2).contains(&price) && runs <= RUNS_MAX_OF_FEW, "{price} {runs}");
}

#[test]
fn search_from_the_price_of_a_sample_needs_few_runs() {
    for (fastest, slowest) in [(0.5, 2.0), (0.63, 1.4), (0.9, 1.2), (0.95, 2.5)] {
        for by in [0.0, 0.03, 0.1] {
            let aim = AimSearch::to_baseline(Allowed::mean(by), 1e-5, 1.0);
            let (reference, mut runs) = (baseline(), Vec::new());
            let run = |price: f64| Ok::<_, ()>(resized(price, fastest, slowest));
            let only_zero = AimSearch { runs_max: 1, ..aim };
            search(&only_zero, Some(&reference), &mut runs, run).unwrap();
            let at_zero = runs[0].lateness.unwrap();
            let of_sample = aim.on_sample(at_zero).unwrap();
            // The sample's jobs respond by a tenth less, and are faster altogether.
            let sampled = |price: f64| {
                Ok::<_, ()>(resized(price, 0.7 * fastest, 0.7 * (0.9 * slowest + 0.1 * fastest)))
            };
            let found = least_energy(&of_sample, None, sampled).unwrap();
            let aim = aim.from_sample(&found, at_zero);
            search(&aim, Some(&reference), &mut runs, run).unwrap();
            let found = AimOutcome::select(runs, &aim);
            assert!(found.is_within && mean(&found) <= by, "{fastest} {by}: {found:?}");
            assert!(mean(&found) >= by - CLOSE_TO_BASELINE, "{fastest} {by}: {found:?}");
            assert!(found.runs.len() <= 5, "{fastest} {by}: {found:?}");
        }
    }
}

#[test]
fn sample_has_no_search_where_price_0_uses_up_the_bound() {
    let aim = AimSearch::to_baseline(Allowed::mean(0.05), 1e-5, 1.0);
    assert_eq!(aim.on_sample(Lateness { mean: 0.05, project: None }), None);
    let half = aim.on_sample(Lateness { mean: -0.5, project: None }).unwrap();
    assert!((half.allowed.mean - 1.1).abs() < 1e-12 && half.floor < half.allowed.mean, "{half:?}");
}

#[test]
fn search_ends_at_the_least_price_where_price_0_uses_up_the_bound() {
    let aim = solve_to_baseline(Allowed::mean(0.0), &baseline(), |price| resized(price, 1.0, 2.0));
    let prices: Vec<f64> = aim.runs.iter().map(|priced| priced.price).collect();
    assert_eq!((aim.is_within, prices), (true, vec![0.0, 1e-5]), "{aim:?}");
    assert_eq!(aim.price(), 0.0);
}

#[test]
fn schedule_slower_at_price_0_permits_no_saving_and_ends_the_search() {
    let aim =
        solve_to_baseline(Allowed::mean(0.05), &baseline(), |price| resized(price, 1.09, 2.0));
    assert!(!aim.is_within && !aim.is_greatest, "{aim:?}");
    assert_eq!((aim.runs.len(), aim.price()), (1, 0.0), "{aim:?}");
    assert!((mean(&aim) - 0.09).abs() < 1e-12, "{aim:?}");
}

#[test]
fn equal_completion_times_are_within_a_bound_of_0() {
    // Above this price one job is later by the least representable time.
    let run = |price: f64| {
        let later = if price > 1e-3 { f64::EPSILON * 100.0 } else { 0.0 };
        let energy_kwh = 100.0 - price;
        let completion_s = vec![Some(100.0 + later), Some(300.0)];
        Fake { energy_kwh, makespan_s: 3_600.0, completion_s }
    };
    let reference = Reference { completion_s: vec![Some(100.0)], ..Reference::default() };
    let aim = solve_to_baseline(Allowed::mean(0.0), &reference, run);
    assert!(aim.is_within && aim.price() > 0.0 && aim.price() <= 1e-3, "{aim:?}");
    assert_eq!(mean(&aim), 0.0);
    assert!(aim.runs.iter().any(|priced| priced.lateness.unwrap().mean > 0.0), "{aim:?}");
}

#[test]
fn greatest_price_is_selected_where_even_it_is_within_the_bound() {
    let aim = solve_to_baseline(Allowed::mean(0.0), &baseline(), |price| resized(price, 0.5, 0.8));
    assert_eq!((aim.price(), aim.is_within, aim.is_greatest), (1.0, true, true), "{aim:?}");
}

#[test]
fn worst_project_limits_the_price_where_its_bound_is_tighter() {
    let projects = crate::lateness::projects_of_jobs(&["large", "small"]);
    let reference = Reference { projects, ..baseline() };
    // The first project's job takes a fifth longer.
    let run = |price: f64| {
        let mut run = resized(price, 0.7, 1.6);
        run.completion_s[0] = run.completion_s[0].map(|s| s * 1.2);
        run
    };
    let mean_alone = solve_to_baseline(Allowed::mean(0.0), &reference, run);
    let allowed = Allowed { mean: 0.0, project: Some(0.02) };
    let both = solve_to_baseline(allowed, &reference, run);
    let worst = |aim: &AimOutcome<Fake>| aim.lateness().unwrap().project.unwrap();
    assert!(worst(&mean_alone).1 > 0.02, "{mean_alone:?}");
    let (project, late) = worst(&both);
    assert_eq!(reference.projects.name(project), "large");
    assert!((0.02 - CLOSE_TO_BASELINE..=0.02).contains(&late), "{both:?}");
    assert!(both.price() < mean_alone.price() && mean(&both) < 0.0);
}

#[test]
fn searches_with_several_bounds_share_their_runs() {
    let mut made = 0;
    let mut runs = Vec::new();
    for by in [0.0, 0.05, 0.1] {
        let aim = AimSearch::to_baseline(Allowed::mean(by), 1e-5, 1.0);
        let aim = AimSearch { runs_max: runs.len() + RUNS_MAX_TO_BASELINE, ..aim };
        let run = |price: f64| {
            made += 1;
            Ok::<_, ()>(resized(price, 0.8, 1.5))
        };
        search(&aim, Some(&baseline()), &mut runs, run).unwrap();
        let at = best(&runs, aim.allowed).unwrap();
        let mean = runs[at].lateness.unwrap().mean;
        assert!(mean <= by && mean >= by - CLOSE_TO_BASELINE, "{by}: {mean}");
    }
    assert_eq!(made, runs.len());
    assert!(made < 2 * RUNS_MAX_TO_BASELINE, "{made} runs");
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
    let aim = least_energy(&within(0.5), None, run).unwrap();
    assert_eq!(aim.price(), 0.0);
    assert!(aim.runs[1..].iter().all(|priced| priced.lateness.is_none()), "{aim:?}");
}

#[test]
fn shorter_run_is_charged_its_rest_until_the_longest_ends() {
    // At a price the cluster finishes an hour later for 0.5 kWh less, but rests at 1 kW before.
    let run = |price: f64| {
        let hours = if price > 0.0 { 2.0 } else { 1.0 };
        let energy_kwh = if price > 0.0 { 10.5 } else { 10.0 };
        Ok::<_, ()>(Fake { energy_kwh, makespan_s: 3_600.0 * hours, ..at(0.0, 0.0) })
    };
    let aim = least_energy(&within(0.05), None, run).unwrap();
    assert!(aim.price() > 0.0, "{aim:?}");
}

#[test]
fn first_error_ends_the_search() {
    let run = |price: f64| if price > 0.0 { Err(price) } else { Ok(at(0.0, 1.0)) };
    assert_eq!(least_energy(&within(0.05), None, run), Err(within(0.05).start));
}

proptest! {
    #[test]
    fn selected_run_is_feasible_and_no_feasible_run_uses_less(
        noise in prop::collection::vec((0.5_f64..1.5, -0.1_f64..0.2), RUNS_MAX_TO_BASELINE),
        by in 0.0_f64..0.2,
        to_baseline in any::<bool>(),
    ) {
        let mut made = 0;
        let run = |price: f64| {
            let (energy, slower) = if price > 0.0 { noise[made] } else { (1.0, 0.0) };
            made += 1;
            let completion_s = vec![Some(100.0 * (1.0 + slower)), Some(300.0 * (1.0 + slower))];
            Ok::<_, ()>(Fake { energy_kwh: 100.0 * energy, makespan_s: 1.0, completion_s })
        };
        let aim = if to_baseline {
            let aim = AimSearch::to_baseline(Allowed::mean(by), 1e-5, 1.0);
            least_energy(&aim, Some(&baseline()), run).unwrap()
        } else {
            least_energy(&within(by), None, run).unwrap()
        };
        let feasible = |priced: &&Priced<Fake>| priced.lateness.is_some_and(|of| of.mean <= by);
        let least = aim.runs.iter().filter(feasible).map(|priced| priced.run.energy_kwh);
        let least = least.fold(f64::INFINITY, f64::min);
        prop_assert!(aim.is_within && mean(&aim) <= by);
        prop_assert!((aim.run().energy_kwh - least).abs() < 1e-9);
        prop_assert!(aim.runs.len() <= RUNS_MAX_TO_BASELINE);
        prop_assert!(aim.runs.iter().all(|priced| priced.price <= 1.0));
    }
}

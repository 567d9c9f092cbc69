//! The bounds against exact solutions of small cases, and against random schedules.

use std::sync::Arc;

use proptest::prelude::*;

use super::tests_exact::{cheapest, least_cost};
use super::*;

/// Rounding, relative.
pub(super) const ROUNDING: f64 = 1e-9;

pub(super) fn option(gpus: u32, steps_per_s: f64, power_w: f64) -> BoundOption {
    BoundOption { gpus, steps_per_s, power_w }
}

pub(super) fn job(arrival_s: f64, work: f64, options: &[BoundOption]) -> BoundJob {
    BoundJob { arrival_s, work, options: options.into() }
}

/// Short buckets for jobs of some hundred seconds.
pub(super) fn fine() -> PricedSearch {
    PricedSearch { bucket_s: 5.0, steps: 60, energy_prices: 6, ..PricedSearch::default() }
}

pub(super) fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs())
}

#[test]
fn both_bounds_are_exact_for_a_single_job() {
    // Joules and seconds per step: (100, 1), (150, .5), (400, .4); the last two trade 2,500 J per
    // second.
    let options = [option(1, 1.0, 100.0), option(2, 2.0, 300.0), option(4, 2.5, 1_000.0)];
    let jobs = [job(50.0, 3_600.0, &options)];
    let alone = contention_free(&jobs, 4).unwrap();
    assert_eq!(alone.points(), [(0.1, 3_600.0), (0.15, 1_800.0), (0.4, 1_440.0)]);
    let priced = priced(&jobs, 4, &fine()).unwrap();
    for kwh in [0.1, 0.12, 0.15, 0.3, 0.4, 0.9] {
        let (a, b) = (alone.jct_s_at(kwh).unwrap(), priced.frontier.jct_s_at(kwh).unwrap());
        assert!(close(a, b, ROUNDING), "{kwh} kWh: {a} s, {b} s");
    }
    assert_eq!(priced.frontier.jct_s_at(0.099), None);
}

#[test]
fn dominated_options_are_not_corners() {
    let options = [option(1, 1.0, 100.0), option(2, 1.0, 90.0), option(2, 0.9, 300.0)];
    let bound = contention_free(&[job(0.0, 3.6e4, &options)], 4).unwrap();
    assert_eq!(bound.points(), [(0.9, 36_000.0)]);
}

#[test]
fn jobs_without_overlap_have_the_bound_without_contention() {
    let options = [option(1, 1.0, 100.0), option(2, 1.5, 300.0)];
    let jobs = [job(0.0, 100.0, &options), job(1_000.0, 300.0, &options)];
    let (alone, priced) = (contention_free(&jobs, 2).unwrap(), priced(&jobs, 2, &fine()).unwrap());
    for path in &priced.paths {
        let exact = cheapest(&jobs, path.mu_s_per_j);
        assert!(close(path.value_s, exact, ROUNDING), "{} of {exact}", path.value_s);
    }
    let (kwh, _) = alone.fastest();
    let both = (alone.jct_s_at(kwh * 0.9), priced.frontier.jct_s_at(kwh * 0.9));
    assert!(close(both.0.unwrap(), both.1.unwrap(), ROUNDING), "{both:?}");
}

#[test]
fn two_jobs_on_one_gpu_are_serialized() {
    // One option only: shortest first, 100 s and 100 + 200 s, at constant energy.
    let options = [option(1, 1.0, 360.0)];
    let jobs = [job(0.0, 100.0, &options), job(0.0, 200.0, &options)];
    let bound = priced(&jobs, 1, &fine()).unwrap().frontier;
    let bound = bound.jct_s_at(0.03).unwrap();
    assert!(bound <= 200.0 * (1.0 + ROUNDING), "{bound} s");
    // The bound without contention is 150 s.
    assert!(bound > 197.0, "{bound} s");
}

#[test]
fn the_dual_is_exact_at_a_constant_price() {
    // At a constant price a job runs at its optimal option.
    let options = [option(1, 1.0, 100.0), option(2, 1.7, 300.0), option(4, 2.5, 900.0)];
    let jobs = [job(7.0, 400.0, &options), job(33.0, 120.0, &options)];
    let (gpus, mu, nu) = (4, 1e-3, 0.3);
    let classes = classes(&jobs, gpus).unwrap();
    // 200 buckets of 10 s: both finish well before.
    let weights = weights::Weights::one(200);
    let mut dual = dual::Dual::new(&classes, gpus.into(), mu, (7.0, 10.0), &weights);
    let answer = dual.at(&dual::Paths::of(200, nu, 0.0), 4);
    let step = options
        .iter()
        .map(|o| (1.0 + mu * o.power_w + nu * f64::from(o.gpus)) / o.steps_per_s)
        .fold(f64::INFINITY, f64::min);
    let exact = step * 520.0 - f64::from(gpus) * nu * 2_000.0;
    assert!(close(answer.value_s, exact, ROUNDING), "{} of {exact}", answer.value_s);
    // The first takes 2 GPUs for 400 / 1.7 s, the second for 120 / 1.7 s.
    let gpu_seconds: f64 = answer.demand.gpus.iter().sum::<f64>() * 10.0;
    assert!(close(gpu_seconds, 2.0 * 520.0 / 1.7, 1e-6), "{gpu_seconds}");
}

#[test]
fn results_do_not_depend_on_shared_option_lists() {
    let options = [option(1, 1.0, 100.0), option(2, 1.7, 300.0)];
    let shared: Arc<[BoundOption]> = options.into();
    let times = [(0.0, 90.0), (20.0, 40.0), (30.0, 200.0)];
    let own: Vec<_> = times.iter().map(|&(at, work)| job(at, work, &options)).collect();
    let same: Vec<_> = times
        .iter()
        .map(|&(arrival_s, work)| BoundJob { arrival_s, work, options: shared.clone() })
        .collect();
    assert_eq!(priced(&own, 2, &fine()).unwrap(), priced(&same, 2, &fine()).unwrap());
}

#[test]
fn invalid_input_is_rejected_by_name() {
    let good = [option(1, 1.0, 100.0)];
    let text = |jobs: &[BoundJob], gpus| contention_free(jobs, gpus).unwrap_err().to_string();
    assert!(text(&[], 4).contains("at least one job"));
    assert!(text(&[job(0.0, 1.0, &[option(8, 1.0, 1.0)])], 4).contains("at most 4 GPUs"));
    assert!(text(&[job(f64::NAN, 1.0, &good)], 4).contains("job 0: the arrival is NaN"));
    assert!(text(&[job(0.0, 1.0, &good), job(0.0, -1.0, &good)], 4).contains("job 1: the work"));
    assert!(text(&[job(0.0, 1.0, &[option(1, 0.0, 1.0)])], 4).contains("option 0"));
    let search = PricedSearch { bucket_s: 0.0, ..fine() };
    let refused = priced(&[job(0.0, 1.0, &good)], 4, &search).unwrap_err().to_string();
    assert!(refused.contains("bucket") && refused.contains("above zero"), "{refused}");
    let search = PricedSearch { mus_s_per_j: vec![-1.0], ..fine() };
    assert!(priced(&[job(0.0, 1.0, &good)], 4, &search).is_err());
}

/// Up to three options of 1, 2 or 4 GPUs.
fn options() -> impl Strategy<Value = Arc<[BoundOption]>> {
    let option = (0_u32..3, 0.5_f64..1.2, 50.0_f64..400.0).prop_map(|(log, efficiency, watts)| {
        let gpus = 1 << log;
        let speed = f64::from(gpus).powf(0.7) * efficiency;
        BoundOption { gpus, steps_per_s: speed, power_w: watts * f64::from(gpus) }
    });
    prop::collection::vec(option, 1..4).prop_map(Into::into)
}

pub(super) fn some_jobs(most: usize) -> impl Strategy<Value = (Vec<BoundJob>, u32)> {
    let job = (0.0_f64..150.0, 20.0_f64..300.0, options())
        .prop_map(|(arrival_s, work, options)| BoundJob { arrival_s, work, options });
    (prop::collection::vec(job, 2..=most), 1_u32..=4).prop_map(|(mut jobs, gpus)| {
        // Every job has an option that fits.
        for job in &mut jobs {
            if job.options.iter().all(|option| option.gpus > gpus) {
                job.options = job.options.iter().map(|o| BoundOption { gpus: 1, ..*o }).collect();
            }
        }
        (jobs, gpus)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn never_above_the_exact_solution((jobs, gpus) in some_jobs(3)) {
        let alone = contention_free(&jobs, gpus).unwrap();
        let mus_s_per_j = vec![0.0, 3e-4, 3e-3, 3e-2];
        let bound = priced(&jobs, gpus, &PricedSearch { mus_s_per_j, ..fine() }).unwrap();
        for path in &bound.paths {
            let exact = least_cost(&jobs, gpus, path.mu_s_per_j, &[]);
            prop_assert!(path.value_s <= exact.cost_s * (1.0 + 1e-7), "{} above {exact:?}", path.value_s);
            // Convexification over finish times keeps it close.
            prop_assert!(path.value_s >= exact.cost_s * 0.8, "{} far below {exact:?}", path.value_s);
            let alone_s = cheapest(&fitting(&jobs, gpus), path.mu_s_per_j);
            prop_assert!(path.value_s >= alone_s * (1.0 - ROUNDING));
            // The exact solution is a schedule, so it is above both frontiers.
            let (kwh, jct_s) = (exact.joules / JOULES_PER_KWH, exact.flow_s / jobs.len() as f64);
            let kwh = kwh * (1.0 + 1e-7);
            for frontier in [&alone, &bound.frontier] {
                let above = frontier.above(kwh, jct_s);
                prop_assert!(above.is_some_and(|ratio| ratio >= 1.0 - 1e-6), "{above:?} of {exact:?}");
            }
        }
    }

    #[test]
    fn never_above_the_exact_solution_with_weights(
        (jobs, gpus) in some_jobs(2),
        (first_s, apart_s) in (0.0_f64..300.0, 10.0_f64..300.0),
        (high, low) in (1.0_f64..3.0, 0.2_f64..1.0),
    ) {
        let turns = [(first_s, high), (first_s + apart_s, low)];
        let weight = |from_s, until_s| least_weight(&turns, from_s, until_s);
        let mus_s_per_j = vec![0.0, 1e-3, 1e-2, 1e-1];
        // After the buckets energy has the least weight.
        let search = PricedSearch { mus_s_per_j, horizon_s: Some(1_200.0), ..fine() };
        let bound = priced_over(&jobs, gpus, &search, &weight).unwrap();
        for path in &bound.paths {
            let exact = least_cost(&jobs, gpus, path.mu_s_per_j, &turns);
            prop_assert!(path.value_s <= exact.cost_s * (1.0 + 1e-7), "{} above {exact:?}", path.value_s);
            // And not below the cost without contention, except for buckets in which the weight
            // changes.
            let alone = |job: &BoundJob| least_cost(std::slice::from_ref(job), gpus, path.mu_s_per_j, &turns);
            let alone_s: f64 = jobs.iter().map(|job| alone(job).cost_s).sum();
            prop_assert!(path.value_s >= alone_s * 0.9, "{} far below {alone_s}", path.value_s);
            let (kwh, jct_s) = (exact.joules / JOULES_PER_KWH, exact.flow_s / jobs.len() as f64);
            let above = bound.frontier.above(kwh * (1.0 + 1e-7), jct_s);
            prop_assert!(above.is_some_and(|ratio| ratio >= 1.0 - 1e-6), "{above:?} of {exact:?}");
        }
    }

    #[test]
    fn doubled_weights_double_the_energy((jobs, gpus) in some_jobs(4)) {
        let (plain, twice) = (
            priced(&jobs, gpus, &fine()).unwrap(),
            priced_over(&jobs, gpus, &fine(), &|_, _| 2.0).unwrap(),
        );
        let plain = plain.frontier;
        for i in 0..20 {
            let kwh = plain.least_energy().0 * (1.0 + 0.1 * f64::from(i));
            let (a, b) = (plain.jct_s_at(kwh).unwrap(), twice.frontier.jct_s_at(2.0 * kwh).unwrap());
            prop_assert!(close(a, b, 1e-6), "{kwh} kWh: {a} s, {b} s");
        }
    }

    #[test]
    fn random_schedules_are_above_the_bounds((jobs, gpus) in some_jobs(6), salt in any::<u64>()) {
        let alone = contention_free(&jobs, gpus).unwrap();
        let bound = priced(&jobs, gpus, &fine()).unwrap().frontier;
        let least = alone.least_energy().0;
        prop_assert!(close(least, bound.least_energy().0, ROUNDING));
        for i in 0..50 {
            let kwh = least * (1.0 + 0.1 * f64::from(i));
            let (a, b) = (alone.jct_s_at(kwh).unwrap(), bound.jct_s_at(kwh).unwrap());
            prop_assert!(a <= b * (1.0 + ROUNDING), "{kwh} kWh: {a} s alone, {b} s priced");
        }
        for round in 0..8 {
            let (kwh, jct_s) = random_schedule(&jobs, gpus.into(), salt.wrapping_add(round));
            let above = bound.above(kwh * (1.0 + ROUNDING), jct_s);
            prop_assert!(above.is_some_and(|ratio| ratio >= 1.0 - ROUNDING), "{kwh} kWh, {jct_s} s: {above:?}");
        }
    }

    #[test]
    fn frontiers_are_decreasing_and_convex((jobs, gpus) in some_jobs(6)) {
        let bound = priced(&jobs, gpus, &fine()).unwrap().frontier;
        let points = bound.points();
        for pair in points.windows(2) {
            prop_assert!(pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1, "{points:?}");
        }
        let (first, last) = (bound.least_energy(), bound.fastest());
        let middle = bound.jct_s_at(f64::midpoint(first.0, last.0)).unwrap();
        prop_assert!(middle <= f64::midpoint(first.1, last.1) * (1.0 + ROUNDING));
        prop_assert_eq!(bound.jct_s_at(last.0 * 10.0), Some(last.1));
        prop_assert_eq!(bound.jct_s_at(first.0 * 0.999), None);
    }
}

/// The least weight between two times: one, changed at each turn.
fn least_weight(turns: &[(f64, f64)], from_s: f64, until_s: f64) -> f64 {
    let starts = std::iter::once((0.0, 1.0)).chain(turns.iter().copied());
    let ends = turns.iter().map(|turn| turn.0).chain([f64::INFINITY]);
    let there = starts.zip(ends).filter(|((start, _), end)| *start < until_s && *end > from_s);
    there.map(|((_, weight), _)| weight).fold(f64::INFINITY, f64::min)
}

#[test]
fn one_job_waits_for_a_lower_weight() {
    // 100 s at 36 W: 3.6 kJ, weighted by a fifth from the 1,000th second on.
    let jobs = [job(0.0, 100.0, &[option(1, 1.0, 36.0)])];
    let turns = [(1_000.0, 0.2)];
    let weight = |from_s, until_s| least_weight(&turns, from_s, until_s);
    let mus_s_per_j = vec![0.0, 1e-3, 0.3, 1_000.0 / 2_880.0, 0.4, 1.0];
    let search = PricedSearch { mus_s_per_j, horizon_s: Some(1_500.0), ..fine() };
    let bound = priced_over(&jobs, 1, &search, &weight).unwrap();
    for path in &bound.paths {
        let mu = path.mu_s_per_j;
        // At once, or at a fifth of the weight.
        let exact = (100.0 + mu * 3_600.0).min(1_100.0 + mu * 720.0);
        assert!(close(path.value_s, exact, 1e-9), "{mu} s/J: {} of {exact}", path.value_s);
    }
    let frontier = bound.frontier;
    assert!(close(frontier.least_energy().0, 0.000_2, 1e-9), "{frontier:?}");
    assert!(close(frontier.jct_s_at(0.001).unwrap(), 100.0, 1e-9), "{frontier:?}");
    // The mean of running now and waiting.
    assert!(close(frontier.jct_s_at(0.000_6).unwrap(), 600.0, 1e-6), "{frontier:?}");
}

/// The jobs with only the options that fit.
fn fitting(jobs: &[BoundJob], gpus: u32) -> Vec<BoundJob> {
    let fits = |job: &BoundJob| job.options.iter().copied().filter(|o| o.gpus <= gpus).collect();
    jobs.iter().map(|job| BoundJob { options: fits(job), ..job.clone() }).collect()
}

/// Energy (kWh) and mean completion time (s) of a schedule that picks, each second, a random first
/// job and random options that fit.
pub(super) fn random_schedule(jobs: &[BoundJob], supply: Supply, salt: u64) -> (f64, f64) {
    let mut state = salt | 1;
    let mut draw = move |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut left: Vec<f64> = jobs.iter().map(|job| job.work).collect();
    let (mut joules, mut flow_s, mut now) = (0.0, 0.0, 0.0);
    while left.iter().any(|&work| work > 0.0) {
        let mut free = supply;
        let first = draw(jobs.len());
        for i in (0..jobs.len()).map(|i| (i + first) % jobs.len()) {
            let job = &jobs[i];
            let fits = |o: &&BoundOption| o.gpus <= free.gpus && o.power_w <= free.watts;
            let fits: Vec<_> = job.options.iter().filter(fits).collect();
            if left[i] <= 0.0 || job.arrival_s > now || fits.is_empty() {
                continue;
            }
            let option = fits[draw(fits.len())];
            let seconds = (left[i] / option.steps_per_s).min(1.0);
            joules += option.power_w * seconds;
            left[i] -= option.steps_per_s * seconds;
            free.gpus -= option.gpus;
            free.watts -= option.power_w;
            if left[i] <= 1e-12 {
                left[i] = 0.0;
                flow_s += now + seconds - job.arrival_s;
            }
        }
        now += 1.0;
    }
    (joules / JOULES_PER_KWH, flow_s / jobs.len() as f64)
}

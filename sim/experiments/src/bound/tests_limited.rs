//! The bound below a power limit against exact solutions of small cases, and against random schedules.

use proptest::prelude::*;

use super::tests::{ROUNDING, close, fine, job, option, random_schedule, some_jobs};
use super::tests_exact::least_cost;
use super::*;

/// The supply of `gpus` GPUs with a share of the power between the least at which every job can run and
/// the most that these GPUs draw.
fn limited(jobs: &[BoundJob], gpus: u32, share: f64) -> Supply {
    let least_w = jobs.iter().map(|job| job.least_w(gpus)).fold(0.0, f64::max);
    let options = jobs.iter().flat_map(|job| job.options.iter());
    let per_gpu_w = options.map(|o| o.power_w / f64::from(o.gpus)).fold(0.0, f64::max);
    let most_w = (f64::from(gpus) * per_gpu_w).max(least_w);
    Supply { gpus, watts: least_w + share * (most_w - least_w) }
}

#[test]
fn power_is_shared_like_gpus() {
    // Power for two of ten jobs of 100, 200, ... 1,000 s, shortest first: a mean of 1,250 s.
    let options = [option(1, 1.0, 100.0)];
    let jobs: Vec<_> = (1..=10).map(|k| job(0.0, 100.0 * f64::from(k), &options)).collect();
    let search = PricedSearch { bucket_s: 50.0, ..PricedSearch::default() };
    let power = over_limits(&jobs, 100, &search, &[200.0]).unwrap().jct_s_at(200.0).unwrap();
    let gpus = priced(&jobs, 2, &search).unwrap().frontier.fastest().1;
    for (what, bound) in [("power", power), ("GPUs", gpus)] {
        assert!(bound <= 1_250.0 * (1.0 + ROUNDING) && bound > 1_245.0, "{what}: {bound} s");
    }
}

#[test]
fn one_job_mixes_two_options_below_the_limit() {
    // 1 step/s at 100 W and 2 steps/s at 300 W: at most 1.5 steps/s at 200 W on average.
    let jobs = [job(0.0, 1_500.0, &[option(1, 1.0, 100.0), option(1, 2.0, 300.0)])];
    let search = PricedSearch { bucket_s: 20.0, steps: 400, ..PricedSearch::default() };
    let bound = over_limits(&jobs, 4, &search, &[200.0]).unwrap();
    let at_200 = bound.jct_s_at(200.0).unwrap();
    // A single job leaves a duality gap, as times of completion are averaged.
    assert!(at_200 <= 1_000.0 * (1.0 + ROUNDING) && at_200 > 860.0, "{at_200} s");
    assert_eq!(bound.jct_s_at(99.0), None, "no option draws less");
    assert!(close(bound.fastest().1, 750.0, ROUNDING), "{bound:?}");
}

#[test]
fn a_limit_that_leaves_a_job_no_option_is_refused() {
    let jobs = [job(0.0, 10.0, &[option(1, 1.0, 50.0)]), job(0.0, 10.0, &[option(1, 1.0, 150.0)])];
    let refused = priced(&jobs, Supply { gpus: 4, watts: 120.0 }, &fine()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "job 1 draws at least 150 W, and the limit leaves 120 W to jobs; raise the limit or leave the job out"
    );
    let refused = over_limits(&jobs, 4, &fine(), &[-1.0]).unwrap_err().to_string();
    assert!(refused.contains("power limit") && refused.contains("above zero"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn never_above_the_exact_solution_below_a_limit(
        (jobs, gpus) in some_jobs(3),
        share in 0.0_f64..1.0,
    ) {
        let supply = limited(&jobs, gpus, share);
        let mus_s_per_j = vec![0.0, 3e-3];
        let bound = priced(&jobs, supply, &PricedSearch { mus_s_per_j, ..fine() }).unwrap();
        for path in &bound.paths {
            let exact = least_cost(&jobs, supply, path.mu_s_per_j, &[]);
            prop_assert!(path.value_s <= exact.cost_s * (1.0 + 1e-7), "{} above {exact:?}", path.value_s);
            prop_assert!(path.value_s >= exact.cost_s * 0.7, "{} far below {exact:?}", path.value_s);
        }
    }

    #[test]
    fn random_schedules_are_above_the_bound_over_limits(
        (jobs, gpus) in some_jobs(6),
        shares in prop::collection::vec(0.0_f64..1.0, 1..4),
        salt in any::<u64>(),
    ) {
        let supplies: Vec<Supply> = shares.iter().map(|&share| limited(&jobs, gpus, share)).collect();
        let limits_w: Vec<f64> = supplies.iter().map(|supply| supply.watts).collect();
        let bound = over_limits(&jobs, gpus, &fine(), &limits_w).unwrap();
        for (round, &supply) in supplies.iter().cycle().take(8).enumerate() {
            let (_, jct_s) = random_schedule(&jobs, supply, salt.wrapping_add(round as u64));
            let above = bound.above(supply.watts, jct_s);
            prop_assert!(above.is_some_and(|ratio| ratio >= 1.0 - ROUNDING), "{supply:?}: {above:?}");
        }
        // A limit between the searched ones has a valid bound too.
        let between = limited(&jobs, gpus, 0.5);
        let (_, jct_s) = random_schedule(&jobs, between, salt);
        prop_assert!(bound.above(between.watts, jct_s).is_some_and(|ratio| ratio >= 1.0 - ROUNDING));
    }

    #[test]
    fn a_limit_that_does_not_bind_leaves_the_bound_without_one((jobs, gpus) in some_jobs(6)) {
        let search = PricedSearch { mus_s_per_j: vec![0.0], ..fine() };
        let supply = Supply { watts: 1e7, ..gpus.into() };
        let free = priced(&jobs, gpus, &search).unwrap();
        let loose = priced(&jobs, supply, &search).unwrap();
        prop_assert!(close(loose.paths[0].value_s, free.paths[0].value_s, ROUNDING));
        prop_assert!(loose.paths[0].power_prices.iter().all(|price| *price == 0.0));
        let over = over_limits(&jobs, gpus, &search, &[1e7]).unwrap();
        // The search continues at the limit, so it may find a little more.
        let (free_s, over_s) = (free.frontier.fastest().1, over.jct_s_at(1e7).unwrap());
        prop_assert!(over_s >= free_s * (1.0 - ROUNDING) && close(over_s, free_s, 0.05), "{over_s} s, {free_s} s");
    }
}

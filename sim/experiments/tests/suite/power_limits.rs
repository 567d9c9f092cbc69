//! Policies below power limits on small instances: none is below the bound, and what is printed of them.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wattle_experiments::bound::PricedSearch;
use wattle_experiments::compare::{
    Accounting, Case, CaseFilter, CompareError, CompareOptions, Comparer, Form, JobSequences,
    Knobs, LimitComparison, Neighbours, POWER_LIMITS, SHARES, Surfaces, Worlds, cases,
    limits_table,
};
use wattle_experiments::report::{limits_figure, limits_page};
use wattle_simulator::{Forecast, Lengths, Scenario, SimJob, Work};
use wattle_world::World;

use crate::html::{assert_self_contained, texts_of};

/// Jobs of one to eight GPUs on two nodes.
fn scenario(jobs: &[(u64, u32, usize, u64)], gpu_type: &str) -> Scenario {
    let workloads = ["eaco-resnet50", "eaco-resnet18", "eaco-vgg16"];
    let job = |(i, &(submit_s, gpus, workload, steps)): (usize, &(u64, u32, usize, u64))| {
        let id = format!("job-{i}").parse().unwrap();
        let submit = Duration::from_secs(submit_s);
        SimJob::new(id, submit, gpus, workloads[workload].parse().unwrap(), Work::Steps(steps))
    };
    let mut jobs = jobs.to_vec();
    jobs.sort_unstable();
    let jobs = jobs.iter().enumerate().map(job).collect();
    Scenario::new("test", format!("2x8:{gpu_type}").parse().unwrap(), jobs, 7)
}

fn case(scenario: Scenario, elastic: bool, accounting: Accounting) -> Case {
    let orders = vec![scenario];
    Case {
        scenario: POWER_LIMITS,
        load: 0.7,
        accounting,
        world: Neighbours::Alone,
        workload: "test",
        deadlines: false,
        jobs: Arc::new(if elastic {
            JobSequences::open(orders)
        } else {
            JobSequences::rigid(orders)
        }),
    }
}

fn compared(case: &Case, surfaces: Surfaces) -> LimitComparison {
    let worlds = Worlds::new(World::builtin());
    let bound = PricedSearch { bucket_s: 600.0, steps: 40, ..PricedSearch::default() };
    let options = CompareOptions {
        policies: Vec::new(),
        surfaces,
        lengths: Lengths::Known,
        knobs: Knobs::Full,
        forecast: Forecast::default(),
        budget: None,
        events: Vec::new(),
        bound: Some(bound),
        threads: 2,
    };
    Comparer::new(&worlds, options).compare_limits(case, &mut |_, _| ()).unwrap()
}

fn no_run_is_below_the_bound(comparison: &LimitComparison) -> Result<(), TestCaseError> {
    for run in &comparison.runs {
        let at = format!("{} at {} of the peak", run.family, run.limit_share);
        prop_assert!(run.bound_s.is_none_or(|bound_s| bound_s > 0.0), "{at}");
        prop_assert!(run.ratio.is_none_or(|ratio| ratio >= 1.0 - 1e-6), "{at}: {:?}", run.ratio);
        // A run without a ratio exceeded its limit, or had a job that cannot run below it.
        let within = run.exceeded_s == 0.0 && run.outcome.finished == run.outcome.jobs;
        prop_assert!(run.ratio.is_some() || !within, "{at}");
        prop_assert!(run.ratio.is_none() || run.exceeded_s <= 300.0, "{at}: {} s", run.exceeded_s);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_is_below_the_bound_at_any_limit(
        jobs in prop::collection::vec((0_u64..20_000, 1_u32..=8, 0_usize..3, 2_000_u64..60_000), 4..12),
        v100 in any::<bool>(),
        elastic in any::<bool>(),
        sleeps in any::<bool>(),
        exact in any::<bool>(),
    ) {
        let accounting = if sleeps { Accounting::SleepAll } else { Accounting::SleepNone };
        let surfaces = if exact { Surfaces::Oracle } else { Surfaces::Predicted };
        let case = case(scenario(&jobs, if v100 { "v100" } else { "a100" }), elastic, accounting);
        no_run_is_below_the_bound(&compared(&case, surfaces))?;
    }
}

#[test]
fn limits_are_shares_of_the_peak_and_every_policy_is_judged_at_each() {
    let jobs: Vec<_> = (0..14)
        .map(|i| (i * 900, 1 << (i % 4), i as usize % 3, 20_000 + 9_000 * (i % 5)))
        .collect();
    let comparison =
        compared(&case(scenario(&jobs, "v100"), false, Accounting::SleepAll), Surfaces::Oracle);
    no_run_is_below_the_bound(&comparison).unwrap();
    assert_eq!(comparison.runs.len(), 4 * SHARES.len());
    for at in &comparison.summary {
        assert!((at.limit_kw - at.limit_share * comparison.peak_kw).abs() < 1e-9);
    }
    // The lower the limit, the higher the bound.
    assert!(
        comparison.bound.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1)
    );
    let of = |policy: &'static str| comparison.summary.iter().filter(move |at| at.policy == policy);
    let times: Vec<f64> = of("wattle").map(|at| at.jct_s_mean.unwrap()).collect();
    assert!(times[4] > times[0], "{times:?}");
    let table = limits_table(&comparison, Form::Narrow);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    for text in [
        "powerlimit-16",
        "ratio to the lower bound",
        "100 %",
        "40 %",
        "wattle",
        "kW, the peak of fifo",
    ] {
        assert!(table.contains(text), "{text} in\n{table}");
    }
    let page = limits_page(&[comparison.clone(), comparison.clone()]);
    assert_self_contained(&page);
    assert_eq!(texts_of(&page, &["h2"]).len(), 2);
    assert!(page.contains("of the peak power jobs take on average"), "{page}");
    let figure = limits_figure(&comparison);
    let texts = texts_of(&format!("<!DOCTYPE html>{figure}"), &["text"]);
    for expected in ["lower bound", "wattle", "fifo", "Power limit, kW"] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
    }
}

#[test]
fn a_limit_below_the_draw_of_idle_nodes_is_noted() {
    let jobs = [(0, 1, 0, 20_000), (100, 1, 1, 20_000)];
    let comparison =
        compared(&case(scenario(&jobs, "a100"), false, Accounting::SleepNone), Surfaces::Oracle);
    // Two GPUs of sixteen: idle nodes draw nearly all of the peak.
    assert!(
        comparison.notes.iter().any(|note| note.contains("no schedule holds it")),
        "{:?}",
        comparison.notes
    );
    assert!(comparison.summary.iter().all(|at| at.limit_share > 0.65), "{:?}", comparison.summary);
}

#[test]
fn the_scenario_has_variants_with_and_without_files() {
    let v100 = ["v100-fixed", "v100-elastic", "v100-elastic-nonstop"].map(str::to_owned);
    let filter = CaseFilter {
        data: None,
        loads: &[],
        accountings: &[],
        worlds: &[],
        workloads: &v100,
        orders: 3,
        quick: false,
    };
    let (_, made) = cases(POWER_LIMITS, &filter).unwrap();
    let of = |case: &Case| (case.workload, case.accounting);
    let expected = |workload| [Accounting::SleepAll, Accounting::SleepNone].map(|a| (workload, a));
    assert_eq!(
        made.iter().map(of).collect::<Vec<_>>(),
        ["v100-fixed", "v100-elastic", "v100-elastic-nonstop"].map(expected).concat()
    );
    assert!(made.iter().all(|case| case.jobs.rigid.len() == 3));
    assert_eq!(made[0].jobs.elastic, made[0].jobs.rigid);
    for (case, can_stop) in [(&made[2], true), (&made[4], false)] {
        let jobs = &case.jobs.elastic[0].jobs;
        assert!(jobs.iter().all(|job| job.gpus.max >= 64 && job.can_stop == can_stop));
    }
    let all = CaseFilter { workloads: &[], ..filter };
    assert!(matches!(cases(POWER_LIMITS, &all), Err(CompareError::NoData { .. })));
}

//! Properties of every comparison, and golden ratios.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wattle_experiments::bound::PricedSearch;
use wattle_experiments::compare::{
    Accounting, Case, CaseFilter, CompareError, CompareOptions, Comparer, Comparison, EqualCarbon,
    Form, JobSequences, Knobs, Neighbours, Summary, Surfaces, Worlds, cases, to_table,
};
use wattle_experiments::frontier::{Frontier, FrontierPoint};
use wattle_simulator::{Forecast, Lengths};

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The folder of measured files; `None` with a message without one.
fn data() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("WATTLE_DATA").map_or_else(beside, PathBuf::from);
    if data.join("elasticflow").is_dir() {
        return Some(data);
    }
    let why = format!("no measurements in {}; set WATTLE_DATA", data.display());
    writeln!(std::io::stderr(), "NOT RUN, the A100 comparisons are unchecked: {why}")
        .expect("stderr is open");
    None
}

const ALL_CASES: CaseFilter<'static> = CaseFilter {
    data: None,
    loads: &[0.7],
    accountings: &[],
    worlds: &[],
    workloads: &[],
    orders: 1,
    quick: false,
};

fn options(policies: &str) -> CompareOptions {
    CompareOptions {
        forecast: Forecast::default(),
        budget: None,
        events: Vec::new(),
        policies: policies.split(',').map(str::to_owned).collect(),
        surfaces: Surfaces::Oracle,
        lengths: Lengths::Known,
        knobs: Knobs::Few,
        // Looser than by default, and as valid.
        bound: Some(PricedSearch { steps: 25, energy_prices: 6, ..PricedSearch::default() }),
        threads: 2,
    }
}

fn compared(worlds: &Worlds, cases: &[Case], options: CompareOptions) -> Vec<Comparison> {
    let mut comparer = Comparer::new(worlds, options);
    cases.iter().map(|case| comparer.compare(case, &mut |_, _| ()).unwrap()).collect()
}

fn of_eaco_28(filter: &CaseFilter<'_>, options: CompareOptions) -> Vec<Comparison> {
    let (worlds, cases) = cases("eaco-28", filter).unwrap();
    compared(&worlds, &cases, options)
}

/// The case with its first jobs; with all of them in a run of all cases.
fn first_jobs(case: &Case, count: u32) -> Case {
    let count = wattle_testkit::cases(count, u32::MAX) as usize;
    let mut jobs = JobSequences::clone(&case.jobs);
    for order in jobs.rigid.iter_mut().chain(&mut jobs.elastic) {
        order.jobs.truncate(count);
    }
    Case { jobs: Arc::new(jobs), ..case.clone() }
}

/// No run of the first order lies below the bound, and the tighter bound not below the other.
fn no_run_is_below_the_bound(comparison: &Comparison) {
    let case = format!(
        "{} {} {} {}",
        comparison.scenario,
        comparison.accounting.as_str(),
        comparison.world.as_str(),
        comparison.workload
    );
    let at = |curve: &[(f64, f64)], kwh: f64| {
        let next = curve.partition_point(|(energy, _)| *energy <= kwh);
        let (from, last) = (curve[next.checked_sub(1)?], curve.get(next));
        Some(last.map_or(from.1, |to| from.1 + (to.1 - from.1) * (kwh - from.0) / (to.0 - from.0)))
    };
    let mut seen = 0;
    for run in comparison.policies.iter().filter(|run| run.order == 0) {
        let (kwh, jct_s) = (run.counted_kwh, run.outcome.jct_s_mean.unwrap());
        let tight = at(&comparison.bounds.frontier, kwh);
        let alone = at(&comparison.bounds.alone, kwh);
        let (Some(tight), Some(alone)) = (tight, alone) else {
            panic!("{case}: {} spends {kwh} kWh, less than the bound", run.outcome.policy);
        };
        assert!(tight >= alone * (1.0 - 1e-9), "{case}: {tight} {alone}");
        assert!(
            tight <= jct_s * (1.0 + 1e-9),
            "{case}: {} takes {jct_s} s on {kwh} kWh, the bound is {tight} s",
            run.outcome.policy
        );
        seen += 1;
    }
    assert!(seen > 0, "{case}");
}

#[test]
fn no_policy_is_below_the_bound_whether_jobs_share_or_not() {
    let accountings = [Accounting::SleepAll];
    // Published in two worlds, compute-bound in one; with and without deadlines. The gate has one of the three.
    let kinds = wattle_testkit::cases(1, 3) as usize;
    let (worlds, published) = ([Neighbours::Pairs], ["published".to_owned()]);
    let filter = CaseFilter { accountings: &accountings, ..ALL_CASES };
    let one = CaseFilter { worlds: &worlds, workloads: &published, ..filter };
    let filter = if kinds == 1 { one } else { filter };
    let (worlds, cases) = cases("eaco-28", &filter).unwrap();
    // With fewer jobs none misses its deadline, so the comparison would not state that there are deadlines.
    let count = |case: &Case| if case.deadlines { 350 } else { 150 };
    let cases: Vec<_> = cases.iter().map(|case| first_jobs(case, count(case))).collect();
    let all = compared(&worlds, &cases, options("fifo,eaco,wattle"));
    assert_eq!(all.len(), kinds * 2);
    all.iter().for_each(no_run_is_below_the_bound);
    let missed = |comparison: &&Comparison| comparison.untuned.iter().any(|u| u.missed_share > 0.0);
    let deadlines: Vec<_> = all.iter().filter(missed).map(|c| c.deadlines).collect();
    assert!(!deadlines.is_empty() && deadlines.iter().all(|has| *has), "{deadlines:?}");
}

#[test]
fn distances_to_the_bound_sum_to_the_total() {
    let (only_mild, published) = ([Neighbours::Mild], ["published".to_owned()]);
    let filter = CaseFilter { worlds: &only_mild, workloads: &published, ..ALL_CASES };
    let (worlds, cases) = cases("eaco-28", &filter).unwrap();
    let case = &first_jobs(cases.iter().find(|case| !case.deadlines).unwrap(), 40);
    let errs = CompareOptions { surfaces: Surfaces::Smooth(0.2), ..options("wattle") };
    let mut comparer = Comparer::new(&worlds, errs);
    let comparison = comparer.compare(case, &mut |_, _| ()).unwrap();
    let waterfall = comparer.waterfall(case, "wattle", &mut |_, _| ()).unwrap();
    let causes = &waterfall.causes;
    assert_eq!(causes.len(), 6, "{causes:?}");
    assert!(waterfall.totals > 0);
    // Every part is a difference, and together they are the whole.
    let mut sum_s = 0.0;
    for cause in causes {
        sum_s += cause.added_s;
        assert!((sum_s - cause.jct_s).abs() < 1e-6 * sum_s, "{cause:?}");
    }
    // No run is below the bound, and the last line equals the compared policy.
    assert!(causes[1].added_s >= 0.0 && causes[2].added_s > 0.0, "{causes:?}");
    let points = comparison.policies.iter().enumerate().map(|(setting, run)| FrontierPoint {
        total: run.counted_kwh,
        jct_s: run.outcome.jct_s_mean.unwrap(),
        setting,
    });
    let frontier = Frontier::of(points).unwrap();
    let totals = frontier.compared_at();
    let times_s: Vec<f64> = totals.iter().filter_map(|kwh| frontier.jct_s_at(*kwh)).collect();
    let (least, most) =
        times_s.iter().fold((f64::MAX, 0.0_f64), |(a, b), t| (a.min(*t), b.max(*t)));
    assert!((least..=most).contains(&causes[5].jct_s), "{least} {} {most}", causes[5].jct_s);
    if waterfall.totals == times_s.len() {
        let mean_s = times_s.iter().sum::<f64>() / times_s.len() as f64;
        assert!((causes[5].jct_s - mean_s).abs() < 1e-6 * mean_s);
    }
    // Errors cost time.
    assert!(causes[5].added_s > 0.0, "{causes:?}");
}

/// Zeus chooses each job's cap or clock: there is nothing to turn, and its one point is compared.
#[test]
fn zeus_is_one_point_of_the_comparison() {
    let (only_mild, published) = ([Neighbours::Mild], ["published".to_owned()]);
    let filter = CaseFilter {
        worlds: &only_mild,
        workloads: &published,
        accountings: &[Accounting::SleepAll],
        ..ALL_CASES
    };
    let all = of_eaco_28(&filter, options("fifo,fifo+zeus"));
    let comparison = all.iter().find(|comparison| !comparison.deadlines).unwrap();
    no_run_is_below_the_bound(comparison);
    let of = |family: &'static str| comparison.policies.iter().filter(move |r| r.family == family);
    let zeus: Vec<_> = of("fifo+zeus").collect();
    assert_eq!(zeus.len(), 1);
    assert!(of("fifo").count() > 1);
    assert_eq!((zeus[0].outcome.policy.as_str(), zeus[0].knob), ("fifo+zeus", 0.0));
    let against = comparison.equal_energy.iter().filter(|at| at.baseline == "fifo+zeus");
    let against: Vec<_> = against.collect();
    assert_eq!(against.len(), 1, "{against:?}");
    let off = against[0].energy_kwh / zeus[0].counted_kwh - 1.0;
    assert!(off.abs() < 1e-9, "{against:?}");
    let narrow = to_table(comparison, Form::Narrow);
    assert!(narrow.lines().all(|line| line.len() <= 80 || line.starts_with("note: ")), "{narrow}");
    assert!(to_table(comparison, Form::Wide).contains("fifo+zeus"));
    the_keys_are_those_promised(comparison);
}

/// Names of the JSON's fields are a promise: some are added, none goes.
fn the_keys_are_those_promised(comparison: &Comparison) {
    let json = serde_json::to_value(comparison).unwrap();
    let promised = |json: &serde_json::Value, keys: &str| {
        for key in keys.split(' ') {
            assert!(json.get(key).is_some(), "no `{key}` in {json}");
        }
    };
    promised(
        &json,
        "scenario load accounting world workload deadlines seeds jobs oracle surfaces lengths \
         horizon_s bounds policies equal_energy equal_carbon summary above_bound \
         above_carbon_bound untuned notes",
    );
    promised(&json["bounds"], "energy_kwh jct_s_mean frontier alone carbon_kg carbon_frontier");
    promised(
        &json["policies"][0],
        "policy family knob order counted_kwh counted_kg budget_overrun jobs finished jct_s_mean \
         energy_kwh makespan_s notes",
    );
    promised(
        &json["equal_energy"][0],
        "policy baseline order energy_kwh jct_ratio jct_p50_ratio jct_p99_ratio",
    );
    promised(
        &json["summary"][0],
        "policy baseline spread spread_p50 spread_p99 spread_carbon totals not_reachable",
    );
    promised(&json["above_bound"][0], "policy energy_kwh ratio ratio_alone");
    promised(&json["untuned"][0], "policy baseline energy runtime jct active_nodes missed_share");
    // There is no grid here.
    let at = EqualCarbon {
        policy: String::new(),
        baseline: String::new(),
        order: 0,
        carbon_kg: 1.0,
        jct_ratio: None,
    };
    promised(&serde_json::to_value(at).unwrap(), "policy baseline order carbon_kg jct_ratio");
}

#[test]
fn sleep_follows_the_accounting() {
    let worlds = [Neighbours::Pairs];
    let published = ["published".to_owned()];
    let filter = CaseFilter { worlds: &worlds, workloads: &published, ..ALL_CASES };
    let all = of_eaco_28(&filter, options("fifo,eaco"));
    all.iter().for_each(no_run_is_below_the_bound);
    let kwh = |accounting: Accounting, policy: &str| {
        let comparison = all.iter().find(|c| c.accounting == accounting && !c.deadlines).unwrap();
        let run = comparison.policies.iter().find(|run| run.family == policy).unwrap();
        run.outcome.energy_kwh
    };
    let [all_sleep, none_sleep, packing] =
        [Accounting::SleepAll, Accounting::SleepNone, Accounting::SleepPacking];
    assert!((kwh(packing, "fifo") - kwh(none_sleep, "fifo")).abs() < 1e-6);
    assert!((kwh(packing, "eaco") - kwh(all_sleep, "eaco")).abs() < 1e-6);
    assert!(kwh(all_sleep, "fifo") < kwh(none_sleep, "fifo"));
    assert!(kwh(all_sleep, "eaco") < kwh(none_sleep, "eaco"));
}

#[test]
fn results_do_not_depend_on_threads_or_on_unused_colocation_models() {
    let published = ["published".to_owned()];
    let accountings = [Accounting::SleepAll];
    let filter =
        CaseFilter { workloads: &published, accountings: &accountings, orders: 2, ..ALL_CASES };
    let one = of_eaco_28(&filter, CompareOptions { threads: 1, ..options("fifo,eaco") });
    let three = of_eaco_28(&filter, CompareOptions { threads: 3, ..options("fifo,eaco") });
    assert_eq!(one, three);
    let runs = |world: Neighbours, family: &str| {
        let comparison = one.iter().find(|c| c.world == world && !c.deadlines).unwrap();
        let own = comparison.policies.iter().filter(|run| run.family == family);
        own.map(|run| run.outcome.clone()).collect::<Vec<_>>()
    };
    assert_eq!(runs(Neighbours::Pairs, "fifo"), runs(Neighbours::Mild, "fifo"));
    assert_ne!(runs(Neighbours::Pairs, "eaco"), runs(Neighbours::Mild, "eaco"));
}

#[test]
fn missing_input_is_named_with_the_remedy() {
    let error = |name: &str, filter: &CaseFilter<'_>| cases(name, filter).unwrap_err();
    let unknown = error("powerflow-17", &ALL_CASES);
    assert!(matches!(unknown, CompareError::Unknown { .. }));
    expect_test::expect![
        "unknown scenario `powerflow-17`; use one of powerflow-16, powerlimit-16, greenflow-16, eaco-28, eaco-64, philly, builtin"
    ]
    .assert_eq(&unknown.to_string());
    for name in ["powerflow-16", "philly"] {
        let no_data = error(name, &ALL_CASES).to_string();
        assert!(no_data.contains(name) && no_data.contains("--data"), "{no_data}");
    }
    let empty = tempfile::tempdir().unwrap();
    let filter = CaseFilter { data: Some(empty.path()), ..ALL_CASES };
    let no_file = error("philly", &filter).to_string();
    assert!(no_file.contains("philly_jobs.csv.gz") && no_file.contains("docs/"), "{no_file}");
    assert!(matches!(error("powerflow-16", &filter), CompareError::Measured(_)));
    let nowhere = CaseFilter { worlds: &[Neighbours::Alone], ..ALL_CASES };
    assert!(matches!(error("eaco-28", &nowhere), CompareError::NoCase { .. }));
    let negative = CaseFilter { loads: &[-1.0], ..ALL_CASES };
    assert!(matches!(error("eaco-64", &negative), CompareError::Load(_)));
}

/// The worlds and the case of a scenario at load 0.76.
fn at_76(scenario: &str, data: &Path, workloads: &[String]) -> (Worlds, Case) {
    let filter = CaseFilter {
        data: Some(data),
        loads: &[0.76],
        accountings: &[Accounting::AboveIdle],
        worlds: &[Neighbours::Alone],
        workloads,
        ..ALL_CASES
    };
    let (worlds, mut cases) = cases(scenario, &filter).unwrap();
    assert_eq!(cases.len(), 1);
    (worlds, cases.remove(0))
}

/// Following the grid by the price costs nothing at equal emissions; waiting for it emits less and
/// takes longer. No run is below the bound, which has perfect knowledge.
#[test]
#[ignore = "a minute of computing: tests/full ignored"]
fn price_tracking_and_deferral_are_separate_policies() {
    let Some(data) = data() else { return };
    let policies = "powerflow,greenflow,powerflow+defer";
    let (worlds, case) = at_76("greenflow-16", &data, &["CA-spring".to_owned()]);
    let comparison = compared(&worlds, &[first_jobs(&case, 300)], options(policies)).remove(0);
    assert_eq!(comparison.workload, "CA-spring");
    let of = |family: &'static str| comparison.policies.iter().filter(move |r| r.family == family);
    let least = |family| of(family).filter_map(|r| r.counted_kg).fold(f64::INFINITY, f64::min);
    assert!(of("powerflow").all(|run| run.outcome.deferred_s_mean.is_none_or(|s| s == 0.0)));
    assert!(of("powerflow+defer").all(|run| run.outcome.deferred_s_mean.unwrap() > 60.0));
    assert!(
        least("powerflow+defer") < least("powerflow") && least("greenflow") < least("powerflow")
    );
    let ratios: Vec<f64> = comparison
        .equal_carbon
        .iter()
        .filter(|at| at.policy == "greenflow" && at.baseline == "powerflow")
        .map(|at| at.jct_ratio.unwrap())
        .collect();
    assert!(ratios.len() > 8 && ratios.iter().all(|ratio| *ratio > 0.98), "{ratios:?}");
    for (blind, waits) in of("powerflow").zip(of("powerflow+defer")) {
        assert!(waits.outcome.jct_s_mean > blind.outcome.jct_s_mean);
    }
    no_run_is_below_the_bound(&comparison);
    let least_kg = comparison.bounds.carbon_kg.unwrap();
    assert!(comparison.policies.iter().all(|run| run.counted_kg.unwrap() > least_kg));
    let above: Vec<f64> =
        comparison.above_carbon_bound.iter().map(|above| above.ratio.unwrap()).collect();
    assert!(above.len() > 9 && above.iter().all(|ratio| (1.0..2.0).contains(ratio)), "{above:?}");
}

/// As measured with these few settings, one order and true surfaces; what is quoted, of all
/// settings and five orders, stands in docs/results.md.
#[test]
#[ignore = "a minute of computing: tests/full ignored"]
fn powerflow_keeps_its_lead() {
    let Some(data) = data() else { return };
    let (worlds, case) = at_76("powerflow-16", &data, &[]);
    let comparison = compared(&worlds, &[case], options("powerflow,fifo,tiresias,srtf")).remove(0);
    no_run_is_below_the_bound(&comparison);
    for (baseline, expected) in [("fifo", 2.13), ("tiresias", 1.54), ("srtf", 1.28)] {
        let of = |s: &&Summary| s.policy == "powerflow" && s.baseline == baseline;
        let summary = comparison.summary.iter().find(of).unwrap();
        assert_eq!(summary.not_reachable, 0, "{baseline}");
        let mean = summary.spread.unwrap().geometric_mean;
        assert!((mean - expected).abs() < 0.01, "{baseline}: {mean}, so far {expected}");
    }
}

#[test]
fn surface_noise_has_the_given_size_and_a_cost() {
    let Some(data) = data() else { return };
    let (worlds, case) = at_76("powerflow-16", &data, &[]);
    let case = [first_jobs(&case, 150)];
    let mape = |surfaces: Surfaces| {
        // The bound is not read here.
        let bound = Some(PricedSearch { steps: 1, energy_prices: 1, ..PricedSearch::default() });
        let one = CompareOptions { surfaces, bound, ..options("powerflow") };
        let comparison = compared(&worlds, &case, one).remove(0);
        assert_eq!(comparison.surfaces, surfaces);
        let run = &comparison.policies[0].outcome;
        (run.prediction.as_ref().unwrap().speed.mape.unwrap(), run.jct_s_mean.unwrap())
    };
    let (exact, knowing_s) = mape(Surfaces::Oracle);
    let (wrong, erring_s) = mape(Surfaces::Independent(0.1));
    // Of a normal distribution the mean deviation is 0.8 of the standard one; sizes are few.
    assert!(exact < 1e-6 && (4.0..14.0).contains(&wrong), "{exact} {wrong}");
    assert!(erring_s > knowing_s, "{erring_s} {knowing_s}");
}

/// A quick look is one case per co-location model, on few jobs.
#[test]
fn a_quick_look_has_one_load_and_accounting() {
    let quick = CaseFilter { loads: &[], quick: true, ..ALL_CASES };
    let (_, made) = cases("builtin", &quick).unwrap();
    let of = |case: &Case| (case.load, case.accounting, case.jobs.rigid[0].jobs.len());
    assert!(made.iter().all(|case| of(case) == (0.8, Accounting::AboveIdle, 500)));
    assert_eq!(made.len(), Neighbours::ALL.len());
    let selected = CaseFilter { accountings: &[Accounting::SleepAll], loads: &[0.5], ..quick };
    let (_, made) = cases("builtin", &selected).unwrap();
    assert!(made.iter().all(|case| of(case) == (0.5, Accounting::SleepAll, 500)));
}

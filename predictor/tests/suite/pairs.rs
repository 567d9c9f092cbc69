//! Measured pairs through the service's own code: a fifth of them left out, and complete jobs left out.
//!
//! Reads the Gavel throughput tables (stanford-futuredata/gavel, MIT) from the folder in `WATTLE_DATA`, or
//! `../shared/data` next to the repository; without it the tests print that they did not run, and pass.

#![allow(clippy::print_stdout, reason = "prints what was measured, or that nothing was")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::common::{class, colocated, job, one_gpu, window};
use wattle_common::rng::Stream;
use wattle_predictor::surface::Configuration;
use wattle_predictor::workload_name::WorkloadName;
use wattle_predictor::{Predictor, PredictorConfig};

/// One tenant: its exclusive steps/s, and its shared steps/s over the exclusive ones.
#[derive(Clone, Debug)]
struct Tenant {
    me: String,
    other: String,
    exclusive: f64,
    share: f64,
}

fn data() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    std::env::var_os("WATTLE_DATA").map_or_else(|| default.into(), PathBuf::from)
}

fn tenants(gpu_type: &str) -> Option<Vec<Tenant>> {
    let path = data().join("gavel/pairs.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("NOT RUN: no measured data at {}; name it in WATTLE_DATA", path.display());
        return None;
    };
    let name = |model: &str, batch: &str| match batch {
        "" => model.to_owned(),
        batch => format!("{model}-b{batch}"),
    };
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let of_kind = rows.filter(|f| f[0] == gpu_type);
    let tenants = of_kind.map(|f| Tenant {
        me: name(f[1], f[2]),
        other: name(f[4], f[5]),
        exclusive: f[7].parse().unwrap(),
        share: f[11].parse().unwrap(),
    });
    Some(tenants.collect())
}

/// Both names in order: equal for both tenants of a pair.
fn unordered(t: &Tenant) -> (&str, &str) {
    if t.me <= t.other { (&t.me, &t.other) } else { (&t.other, &t.me) }
}

/// One job of each class: first exclusive, then co-located as `known` selects.
fn taught(gpu_type: &str, all: &[Tenant], known: impl Fn(&Tenant) -> bool) -> Predictor {
    let mut p = Predictor::new(PredictorConfig::shipped());
    let mut minute = 0;
    let mut learn = |t: &Tenant, rate: f64, with: &[&str]| {
        minute += 1;
        let mut w = window(&format!("job-{}", t.me), Some(&t.me), minute);
        w.gpu_type = gpu_type.into();
        (w.steps_per_s, w.steps_per_s_error) = (Some(rate), None);
        // The tables contain throughputs only.
        (w.power_mw_gpus, w.utilization_gpu_percent) = (None, None);
        (w.utilization_memory_percent, w.memory_mib_max_job) = (None, None);
        (w.utilization_gpu_percent_job, w.cap_mw, w.energy_mj_gpus) = (None, None, None);
        p.learn(w.until_us, &colocated(w.clone(), with));
    };
    let mut exclusive = BTreeSet::new();
    for t in all {
        if exclusive.insert(&t.me) {
            learn(t, t.exclusive, &[]);
        }
    }
    for t in all.iter().filter(|t| known(t)) {
        learn(t, t.exclusive * t.share, &[&t.other]);
    }
    p.refit_pooled();
    p
}

#[derive(Default)]
struct Score {
    error: Vec<f64>,
    inside: usize,
    worth_right: usize,
}

fn score(gpu_type: &str, all: &[Tenant], out: impl Fn(&Tenant) -> bool) -> Score {
    let p = taught(gpu_type, all, |t| !out(t));
    let mut score = Score::default();
    let mut sums: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
    for t in all.iter().filter(|t| out(t)) {
        let at = Configuration { neighbours: vec![class(&t.other)], ..one_gpu() };
        let speed = p.predict(&job(&format!("job-{}", t.me)), &at).unwrap().relative_speed;
        score.error.push((speed.mean - t.share).abs());
        score.inside += usize::from(speed.low <= t.share && t.share <= speed.high);
        // Pairs of one class occur once in the table.
        let times = if t.me == t.other { 2.0 } else { 1.0 };
        let sum = sums.entry(unordered(t)).or_default();
        *sum = (sum.0 + times * speed.mean, sum.1 + times * t.share);
    }
    let right =
        sums.values().filter(|(predicted, seen)| (*predicted > 1.0) == (*seen > 1.0)).count();
    // As a share of pairs, in units of tenants.
    score.worth_right = right * score.error.len() / sums.len().max(1);
    score
}

/// Mean over the splits of the mean absolute error; over all, the share inside the 90 % interval and the
/// share of pairs with a correct decision.
fn over(gpu_type: &str, protocol: &str, scores: &[Score]) -> (f64, f64) {
    let n: usize = scores.iter().map(|s| s.error.len()).sum();
    let mean = |s: &Score| s.error.iter().sum::<f64>() / s.error.len() as f64;
    let error = scores.iter().map(mean).sum::<f64>() / scores.len() as f64;
    let worst = scores.iter().map(mean).fold(0.0, f64::max);
    let share = |of: fn(&Score) -> usize| scores.iter().map(of).sum::<usize>() as f64 / n as f64;
    let (inside, worth) = (share(|s| s.inside), share(|s| s.worth_right));
    println!(
        "{gpu_type} {protocol}: {n} tenants, off by {error:.4} (worst split {worst:.3}), inside {inside:.3}, worth pairing right {worth:.3}"
    );
    (error, worth)
}

#[test]
fn left_out_fifth_of_the_pairs_is_predicted_by_the_others() {
    for (gpu_type, error_max) in [("v100", 0.055), ("p100", 0.021)] {
        let Some(all) = tenants(gpu_type) else { return };
        let mut pairs: Vec<(&str, &str)> = all.iter().map(unordered).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut rng = Stream::new(1, "folds");
        let mut order: Vec<(u64, (&str, &str))> =
            pairs.into_iter().map(|pair| (rng.next_u64(), pair)).collect();
        order.sort_unstable();
        let fold: BTreeMap<(&str, &str), usize> =
            order.iter().enumerate().map(|(i, (_, pair))| (*pair, i % 5)).collect();
        let scores: Vec<Score> =
            (0..5).map(|k| score(gpu_type, &all, |t| fold[&unordered(t)] == k)).collect();
        let (error, worth) = over(gpu_type, "pairs-out", &scores);
        assert!(error <= error_max && worth >= 0.95, "{gpu_type}: {error:.4} {worth:.3}");
    }
}

/// Mean over jobs, so that jobs with few pairs have the same weight.
fn each_job_left_out_is_off_by_at_most(error_max: f64, gpu_type: &str) {
    let Some(all) = tenants(gpu_type) else { return };
    let jobs: BTreeSet<&str> = all.iter().map(|t| t.me.as_str()).collect();
    let of = |name: &str| score(gpu_type, &all, |t| t.me == name || t.other == name);
    let scores: Vec<Score> = jobs.iter().map(|name| of(name)).collect();
    let (error, _) = over(gpu_type, "jobs-out", &scores);
    assert!(error <= error_max, "{gpu_type}: {error:.4}");
}

#[test]
fn left_out_job_on_v100_is_predicted_by_its_rate_and_its_relatives() {
    each_job_left_out_is_off_by_at_most(0.085, "v100");
}

#[test]
fn left_out_job_on_p100_is_predicted_by_its_rate_and_its_relatives() {
    each_job_left_out_is_off_by_at_most(0.043, "p100");
}

/// For an unseen family, name and exclusive rate contain almost no information: the interval must be wide.
#[test]
fn left_out_family_has_wide_intervals() {
    for gpu_type in ["v100", "p100"] {
        let Some(all) = tenants(gpu_type) else { return };
        fn family(name: &str) -> &str {
            WorkloadName::of(name).family
        }
        let families: BTreeSet<&str> = all.iter().map(|t| family(&t.me)).collect();
        let of = |f: &str| score(gpu_type, &all, |t| family(&t.me) == f || family(&t.other) == f);
        let scores: Vec<Score> = families.iter().map(|f| of(f)).collect();
        over(gpu_type, "family-out", &scores);
        let n: usize = scores.iter().map(|s| s.error.len()).sum();
        let inside = scores.iter().map(|s| s.inside).sum::<usize>() as f64 / n as f64;
        assert!(inside > 0.75, "{gpu_type}: {inside:.3}");
    }
}

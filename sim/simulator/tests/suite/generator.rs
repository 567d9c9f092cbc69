//! The generator's jobs against the moments of the jobs it was fitted to.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use wattle_simulator::Scenario;
use wattle_simulator::generator::{fitted_moments, generate};
use wattle_simulator::trace::TraceJob;
use wattle_world::World;

const CLASSES: [std::ops::RangeInclusive<u32>; 5] = [1..=1, 2..=2, 3..=4, 5..=8, 9..=u32::MAX];

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0u32), |(sum, n), value| (sum + value, n + 1));
    sum / f64::from(n)
}

/// Whether a figure is the fitted one but for a share; campaigns make the figures of a few months
/// vary, so that many months are drawn.
fn near(what: &str, drawn: f64, fitted: f64, share: f64) {
    assert!((drawn / fitted - 1.0).abs() < share, "{what}: {drawn} drawn, {fitted} fitted");
}

#[test]
fn generated_moments_match_the_fitted_jobs() {
    let fitted = fitted_moments();
    let jobs: Vec<Vec<TraceJob>> = (1..=4).map(|seed| generate(250_000, seed).jobs).collect();
    let all = || jobs.iter().flatten();
    let last = |jobs: &Vec<TraceJob>| jobs.last().unwrap().submit.as_secs_f64();
    let days: f64 = jobs.iter().map(|jobs| last(jobs) / 86_400.0).sum();
    near("jobs a day", all().count() as f64 / days, fitted.jobs_per_day, 0.05);
    near("GPUs", mean(all().map(|job| f64::from(job.gpus))), fitted.gpus_mean, 0.05);
    let single = mean(all().map(|job| f64::from(u8::from(job.gpus == 1))));
    near("on one GPU", single, fitted.single_share, 0.02);
    let gpu_s = mean(all().map(|job| f64::from(job.gpus) * job.duration.as_secs_f64()));
    near("GPU seconds", gpu_s, fitted.gpu_seconds_mean, 0.08);
    let mut hourly = Vec::new();
    for jobs in &jobs {
        let mut counts = vec![0.0; (last(jobs) / 3_600.0) as usize];
        for job in jobs {
            if let Some(count) = counts.get_mut((job.submit.as_secs() / 3_600) as usize) {
                *count += 1.0;
            }
        }
        hourly.extend(counts);
    }
    let level = mean(hourly.iter().copied());
    let variance = mean(hourly.iter().map(|count| (count - level).powi(2)));
    near("hourly variation", variance.sqrt() / level, fitted.hourly_variation, 0.15);
    for (i, class) in CLASSES.iter().enumerate() {
        let of_class = || all().filter(|job| class.contains(&job.gpus));
        let mut seconds: Vec<f64> = of_class().map(|job| job.duration.as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        near(&format!("median on {class:?}"), median, fitted.duration_median_s[i], 0.2);
        near(
            &format!("mean on {class:?}"),
            mean(seconds.into_iter()),
            fitted.duration_mean_s[i],
            0.1,
        );
    }
}

#[test]
fn a_seed_gives_the_same_jobs_and_more_of_them_begin_alike() {
    let jobs = generate(3_000, 7);
    assert_eq!(jobs, generate(3_000, 7));
    assert_ne!(jobs.jobs, generate(3_000, 8).jobs);
    assert_eq!(jobs.jobs[..1_000], generate(1_000, 7).jobs);
    assert!(jobs.jobs.is_sorted_by_key(|job| job.submit));
    assert_eq!(jobs.jobs[0].submit, std::time::Duration::ZERO);
    assert!(generate(0, 7).jobs.is_empty());
}

/// A recurring job has one workload and similar durations.
#[test]
fn users_repeat_job_names() {
    let world = World::builtin();
    let trace = generate(5_000, 7);
    let scenario = Scenario::from_trace(&world, &trace, &"16x8:v100".parse().unwrap(), 7).unwrap();
    let mut kinds = std::collections::BTreeMap::new();
    for (job, drawn) in trace.jobs.iter().zip(&scenario.jobs) {
        let kind = kinds.entry(job.recurs_as.clone().unwrap()).or_insert_with(Vec::new);
        kind.push((job.duration.as_secs_f64().ln(), drawn.workload.clone(), job.gpus));
    }
    let several = kinds.values().filter(|kind| kind.len() > 1).map(Vec::len).sum::<usize>();
    assert!(several > 4_000, "{several} of 5,000 jobs recur");
    for kind in kinds.values() {
        assert!(kind.iter().all(|job| (&job.1, job.2) == (&kind[0].1, kind[0].2)), "{kind:?}");
    }
}

/// Runs catalog/derive.py on the measurements, where they are.
#[test]
fn derived_files_match_the_command() {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let data = std::env::var_os("WATTLE_DATA")
        .map_or_else(|| crate_dir.join("../../../shared/data"), PathBuf::from);
    if !data.join("traces/philly_jobs.csv.gz").exists() {
        let why = format!("NOT RUN: {} has no traces; set WATTLE_DATA", data.display());
        writeln!(std::io::stderr(), "{why}").unwrap();
        return;
    }
    for (what, file) in [("gavel", "gavel.csv"), ("generator", "generator.toml")] {
        let script = crate_dir.join("catalog/derive.py");
        let output = Command::new("python3").arg(script).arg(&data).arg(what).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let committed = std::fs::read_to_string(crate_dir.join("catalog").join(file)).unwrap();
        let same = committed == String::from_utf8_lossy(&output.stdout);
        assert!(same, "derive.py {what} prints something else than {file}");
    }
}

//! `wattle saving`: its totals recomputed from the jobs and nodes, and its promises on restarts and
//! sharing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use wattle_common::job::Sharing;
use wattle_saving::baseline::BaselineKind;
use wattle_saving::estimate::{
    Group, Grouping, SavingBound, SavingError, SavingEstimate, SavingInput, SavingOptions,
    SavingPoint, estimate,
};
use wattle_simulator::trace::{self, Trace};
use wattle_simulator::{PriceSeries, Restartable, Scenario};
use wattle_world::{Setting, Tenant, World};

/// Forty jobs of one to sixteen GPUs with recorded starts and ends.
pub(crate) fn recorded() -> Trace {
    let mut text = String::from("job_id,submit_s,duration_s,num_gpus,vc,start_s,end_s\n");
    let mut free_at = [0_u64; 3];
    for i in 0..40_u64 {
        let (submit, lasts, gpus) =
            (600 * i, 900 + 4_000 * (i % 7), [1, 2, 4, 8, 16][i as usize % 5]);
        // Two nodes of eight GPUs in three lanes: one node, and two halves of the other.
        let lanes: &[usize] = match gpus {
            16 => &[0, 1, 2],
            8 => &[0],
            _ => {
                if i % 2 == 0 {
                    &[1]
                } else {
                    &[2]
                }
            }
        };
        let free = lanes.iter().map(|&lane| free_at[lane]).max().unwrap();
        let start = free.max(submit + 30);
        lanes.iter().for_each(|&lane| free_at[lane] = start + lasts);
        let _ = writeln!(text, "j{i},{submit},{lasts},{gpus},x,{start},{}", start + lasts);
    }
    trace::parse("recorded.csv", text.as_bytes()).unwrap()
}

fn options(share: Sharing) -> SavingOptions {
    let bound = SavingBound::MaxSlowdown(0.05);
    SavingOptions { bound, share, seeds: 2, threads: 2, ..SavingOptions::default() }
}

fn study(trace: &Trace, restartable: &Restartable, options: SavingOptions) -> SavingEstimate {
    priced_study(trace, restartable, options, None)
}

/// The study without restarts and sharing that several tests read, of a trace that begins at 20:00.
fn plain_study() -> (Trace, &'static SavingEstimate) {
    static MADE: OnceLock<SavingEstimate> = OnceLock::new();
    let trace = Trace { origin: Some(Duration::from_secs(1_795_636_800)), ..recorded() };
    let make = || study(&trace, &Restartable::None, options(Sharing::Never));
    let made = MADE.get_or_init(make);
    (trace, made)
}

fn priced_study(
    trace: &Trace,
    restartable: &Restartable,
    options: SavingOptions,
    prices: Option<&PriceSeries>,
) -> SavingEstimate {
    let (world, cluster) = (World::builtin(), "2x8:a100".parse().unwrap());
    let (world, cluster, carbon) = (&world, &cluster, None);
    let input = SavingInput { world, trace, cluster, carbon, prices, restartable };
    let mut last = (0, 0);
    let made = estimate(&input, options, &mut |done, of| last = (done, of)).unwrap();
    assert!(last.0 <= last.1 && last.0 > 0, "{last:?}");
    made
}

/// A row of the CSV by column.
type Row = BTreeMap<String, String>;

fn rows(csv: &str, schedule: &str, kind: &str) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    reader
        .deserialize::<Row>()
        .map(Result::unwrap)
        .filter(|row| row["schedule"] == schedule && row["kind"] == kind)
        .collect()
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap()
}

fn assert_close(own: f64, other: f64, what: &str) {
    let size = own.abs().max(other.abs()).max(1e-9);
    assert!((own - other).abs() / size < 1e-3, "{what}: {own} against {other}");
}

/// Mean over the seeds of a value computed from the rows of one seed.
fn mean_of_seeds(rows: &[Row], value: impl Fn(&[&Row]) -> f64) -> f64 {
    let mut seeds: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| seeds.entry(&row["seed"]).or_default().push(row));
    seeds.values().map(|rows| value(rows)).sum::<f64>() / seeds.len() as f64
}

#[test]
fn totals_follow_from_the_jobs_and_nodes() {
    let (_, made) = plain_study();
    assert_eq!(made.baseline_kind, BaselineKind::Recorded);
    let csv = made.to_csv();
    for (schedule, totals) in [("baseline", made.baseline), ("wattle", made.wattle)] {
        let (jobs, nodes) = (rows(&csv, schedule, "job"), rows(&csv, schedule, "node"));
        let of_jobs = mean_of_seeds(&jobs, |jobs| {
            jobs.iter().map(|job| number(job, "energy_kwh")).sum::<f64>()
        });
        let of_nodes = mean_of_seeds(&nodes, |nodes| {
            let kwh = |node: &&Row| {
                (number(node, "awake_s") * number(node, "awake_w")
                    + number(node, "asleep_s") * number(node, "asleep_w"))
                    / 3.6e6
            };
            nodes.iter().map(kwh).sum::<f64>()
        });
        assert_close(of_jobs + of_nodes, totals.energy_kwh, "energy");
        let completion = |job: &&Row| number(job, "end_s") - number(job, "submit_s");
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let jct = mean_of_seeds(&jobs, |jobs| mean(jobs.iter().map(completion).collect()));
        assert_close(jct, totals.jct_s_mean, "mean completion");
        let p95 = mean_of_seeds(&jobs, |jobs| {
            let mut times: Vec<f64> = jobs.iter().map(completion).collect();
            times.sort_by(f64::total_cmp);
            times[(0.95 * times.len() as f64).ceil() as usize - 1]
        });
        assert_close(p95, totals.jct_s_p95, "95th percentile");
        let wait = mean_of_seeds(&jobs, |jobs| {
            mean(jobs.iter().map(|job| completion(job) - number(job, "on_gpus_s")).collect())
        });
        assert_close(wait, totals.wait_s_mean, "wait");
    }
    assert_close(
        made.saved.energy_kwh,
        made.baseline.energy_kwh - made.wattle.energy_kwh,
        "saved energy",
    );
    assert!(made.saved.energy_kwh_low <= made.saved.energy_kwh);
    assert!(made.saved.energy_kwh <= made.saved.energy_kwh_high);
}

#[test]
fn baseline_is_the_recorded_schedule_at_the_power_of_the_world() {
    let ((trace, made), world) = (plain_study(), World::builtin());
    let cluster = "2x8:a100".parse().unwrap();
    let seed = made.options.seed;
    let scenario = Scenario::from_trace(&world, &trace, &cluster, seed).unwrap();
    let gpu = world.gpu("a100").unwrap();
    let csv = made.to_csv();
    let own =
        rows(&csv, "baseline", "job").into_iter().filter(|row| row["seed"] == seed.to_string());
    for ((row, job), traced) in own.zip(&scenario.jobs).zip(&trace.jobs) {
        let (start, end) = (traced.started.unwrap(), traced.ended.unwrap());
        assert_close(number(&row, "start_s"), start.as_secs_f64(), "start");
        assert_close(number(&row, "end_s"), end.as_secs_f64(), "end");
        let gpus = job.gpus.min;
        let workload = world.workload(job.workload.as_str()).unwrap();
        // The recorded lanes leave no job of up to eight GPUs without room on one node.
        let tenant = Tenant { workload, gpus, nodes: gpus.div_ceil(8) };
        let power = world.gpu_state(gpu, Setting::default(), &[tenant]).power;
        let above_w = (power.as_w() - gpu.idle.as_w()) * f64::from(gpus);
        let kwh = above_w * (end - start).as_secs_f64() / 3.6e6;
        assert_close(number(&row, "energy_kwh"), kwh, job.id.as_str());
    }
}

#[test]
fn without_restarts_and_sharing_every_job_runs_once_and_exclusively() {
    let (trace, made) = plain_study();
    assert_eq!((made.parts.packing, made.parts.sizes), (0.0, 0.0));
    for (_, _, schedule) in made.schedules.iter().filter(|(name, _, _)| *name == "wattle") {
        assert_eq!(schedule.shared_starts, 0);
        for (job, traced) in schedule.detail.jobs.iter().zip(&trace.jobs) {
            assert_eq!(job.gpus, traced.gpus, "{}", job.id);
            let (start, end) = (job.start_s.unwrap(), job.end_s.unwrap());
            // One uninterrupted run, which is never faster than the recorded one.
            assert_close(end - start, job.on_gpus_s, job.id.as_str());
            assert!(job.on_gpus_s >= traced.duration.as_secs_f64() - 1e-3, "{}", job.id);
        }
    }
    assert!(made.is_within && made.slowdown <= 0.05, "{}", made.slowdown);
    assert!(made.curve.is_empty(), "{:?}", made.curve);
    // Both ends are shown, and the first is the own declaration.
    assert_close(made.ends[0].energy_kwh, made.saved.energy_kwh, "no job restartable");
    assert!(made.ends[1].energy_kwh.is_finite() && made.ends[1] != made.ends[0]);
}

#[test]
fn json_has_the_documented_shape_and_the_screen_80_columns() {
    let mut trace = recorded();
    trace.jobs.truncate(12);
    let options = SavingOptions { seeds: 1, ..options(Sharing::Any) };
    let made = study(&trace, &Restartable::All, options);
    let made = made.priced(Some(0.2), Some(400.0));
    let json: serde_json::Value = serde_json::from_str(&made.to_json(None)).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    let top = [
        "assumptions",
        "backfill",
        "baseline",
        "cluster",
        "curve",
        "is_within",
        "parts",
        "saved",
        "trace",
        "wattle",
    ];
    assert_eq!(keys(&json), top);
    let totals = ["energy_kwh", "jct_s_mean", "jct_s_p95", "wait_s_mean"];
    assert_eq!(
        (keys(&json["baseline"]), keys(&json["wattle"])),
        (totals.map(String::from).into(), totals.map(String::from).into())
    );
    assert_eq!(keys(&json["backfill"]), totals);
    let saved = ["carbon_kg", "cost", "energy_kwh", "energy_kwh_high", "energy_kwh_low"];
    assert_eq!(keys(&json["saved"]), saved);
    assert_eq!(keys(&json["parts"]), ["packing", "settings", "sizes", "sleep"]);
    let kwh = json["saved"]["energy_kwh"].as_f64().unwrap();
    assert_close(json["saved"]["cost"].as_f64().unwrap(), 0.2 * kwh, "cost");
    assert_close(json["saved"]["carbon_kg"].as_f64().unwrap(), 0.4 * kwh, "carbon");
    let screen = made.to_screen("EUR");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(screen.starts_with("Wattle would have ") && screen.contains("EUR "), "{screen}");
    assert!(screen.contains("backfill") && screen.contains("time limits drawn"), "{screen}");
    let page = wattle_saving::report::saving_page(&made, "EUR");
    assert!(page.contains("Wattle would have ") && page.contains("Assumptions"), "{page}");
    assert!(made.interval().starts_with("90 % interval: "), "{}", made.interval());
}

/// Later by this share of the baseline's mean completion time, on jobs that may be stopped, moved and resized.
fn later_study(share: f64, trace: &Trace) -> SavingEstimate {
    let bound = SavingBound::Later(share);
    study(trace, &Restartable::All, SavingOptions { bound, seeds: 1, ..options(Sharing::Any) })
}

#[test]
fn every_possible_point_of_the_curve_is_within_its_share() {
    let mut trace = recorded();
    trace.jobs.truncate(14);
    let made = later_study(0.02, &trace).priced(Some(0.5), Some(400.0));
    let allowed: Vec<f64> = made.curve.iter().map(|point| point.allowed).collect();
    assert_eq!(allowed, [0.0, 0.02, 0.05, 0.1]);
    for point in made.curve.iter().filter(|point| point.is_within) {
        assert!(point.jct_mean_change <= point.allowed + 1e-6, "{point:?}");
        assert_close(point.saved.cost.unwrap(), 0.5 * point.saved.energy_kwh, "cost");
        assert_close(point.saved.carbon_kg.unwrap(), 0.4 * point.saved.energy_kwh, "carbon");
    }
    // More time never saves less, and here some is saved.
    let saved = |point: &SavingPoint| point.energy_share;
    let shares: Vec<f64> = made.curve.iter().map(saved).collect();
    assert!(shares.is_sorted_by(|a, b| *a <= *b + 0.01), "{shares:?}");
    assert!(made.curve[3].is_within && shares[3] > 0.05, "{:?}", made.curve);
    // The details are those of the own share.
    assert_close(made.curve[1].saved.energy_kwh, made.saved.energy_kwh, "saved energy");
    assert_eq!(made.curve[1].is_within, made.is_within);
    let json: serde_json::Value = serde_json::from_str(&made.to_json(None)).unwrap();
    assert_eq!(json["curve"].as_array().unwrap().len(), 4);
    assert_close(json["curve"][1]["allowed"].as_f64().unwrap(), 0.02, "allowed");
    let screen = made.to_screen("EUR");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(screen.contains("later on average than recorded:"), "{screen}");
    let page = wattle_saving::report::saving_page(&made, "EUR");
    assert!(page.contains("Saving and completion") && page.contains("<svg"), "{page}");
}

#[test]
fn verdict_states_that_no_saving_is_possible_without_waiting() {
    let mut trace = recorded();
    trace.jobs.truncate(8);
    let mut made = later_study(0.0, &trace);
    let first = made.verdict();
    assert!(first.contains("no later on average than recorded."), "{first}");
    made.is_within = false;
    made.wattle.jct_s_mean = 1.12 * made.baseline.jct_s_mean;
    made.ends[1].jct_s_mean = made.wattle.jct_s_mean;
    for (point, is_within) in made.curve.iter_mut().zip([false, false, true]) {
        (point.is_within, point.energy_share) = (is_within, 0.083);
    }
    let verdict = made.verdict();
    let words = "No saving is possible without waiting: even with free energy, jobs complete 12 % later \
                 on average than recorded. With jobs completing at most 10 % later it would have saved 8.3 %";
    assert!(verdict.starts_with(words), "{verdict}");
    // What every job restartable would permit.
    assert!(!verdict.contains("--restartable all"), "{verdict}");
    made.ends[1].jct_s_mean = 0.9 * made.baseline.jct_s_mean;
    made.ends[1].energy_share = 0.4;
    let verdict = made.verdict();
    assert!(verdict.contains("(--restartable all), 40 % of the energy"), "{verdict}");
    let screen = made.to_screen("EUR");
    assert!(screen.starts_with("No saving is possible without waiting"), "{screen}");
    assert_eq!(screen.matches("not possible").count(), 2, "{screen}");
    assert!(!screen.contains("\n90 % interval: "), "{screen}");
    assert!(screen.contains("\nNot without waiting: "), "{screen}");
}

#[test]
fn trace_without_recorded_starts_is_compared_with_backfilling() {
    let mut trace = recorded();
    trace.jobs.truncate(8);
    for job in &mut trace.jobs {
        (job.started, job.ended) = (None, None);
    }
    let made = later_study(0.0, &trace);
    assert_eq!(made.baseline_kind, BaselineKind::Backfill);
    assert_close(made.baseline.jct_s_mean, made.backfill.jct_s_mean, "mean completion");
    let screen = made.to_screen("EUR");
    assert!(screen.contains("than under backfill") && screen.contains("EASY backfilling"));
    assert!(screen.contains("Backfill: time limits drawn"), "{screen}");
}

/// A table of hourly prices per MWh from midnight.
fn hourly(prices: &[i32]) -> PriceSeries {
    let mut text = String::from("at,chf_per_mwh\n");
    for (hour, price) in prices.iter().enumerate() {
        let _ = writeln!(text, "2026-01-{:02}T{:02}:00Z,{price}", 1 + hour / 24, hour % 24);
    }
    PriceSeries::parse("prices.csv", text.as_bytes()).unwrap()
}

#[test]
fn saved_energy_costs_the_price_of_its_hour() {
    let mut trace = recorded();
    trace.jobs.truncate(16);
    let options = SavingOptions { seeds: 1, ..options(Sharing::Never) };
    let at_prices = |prices: &PriceSeries| {
        priced_study(&trace, &Restartable::None, options, Some(prices)).priced(None, None)
    };
    // At one price at all hours the series is a constant.
    let flat = at_prices(&hourly(&[250; 4]));
    let cost = flat.saved.cost.unwrap();
    assert_close(cost, 0.25 * flat.saved.energy_kwh, "cost at one price");
    let constant = study(&trace, &Restartable::None, options).priced(Some(0.25), None);
    assert_close(cost, constant.saved.cost.unwrap(), "cost at --price-kwh");
    // Prices change no schedule.
    assert_eq!((flat.wattle.energy_kwh, flat.price), (constant.wattle.energy_kwh, constant.price));

    // The cost of all hours is that of the first half of the period and that of the second.
    let hours = flat.period_s.max(flat.schedules[0].2.makespan_s) / 3_600.0;
    let hours = hours.ceil() as usize;
    let prices: Vec<i32> = (0..hours).map(|hour| 40 + 30 * (hour as i32 % 24) - 200).collect();
    let changing = at_prices(&hourly(&prices));
    let [first, second] = [0, 1].map(|half| {
        let own = |(hour, price): (usize, &i32)| if hour * 2 / hours == half { *price } else { 0 };
        at_prices(&hourly(&prices.iter().enumerate().map(own).collect::<Vec<_>>()))
            .saved
            .cost
            .unwrap()
    });
    let cost = changing.saved.cost.unwrap();
    assert!((first + second - cost).abs() < 1e-3 * first.abs().max(second.abs()), "{cost}");
    assert!((first - second).abs() > 0.1, "both halves save the same: {first} and {second}");
    let mean = f64::from(prices.iter().sum::<i32>()) / 1e3 / hours as f64;
    let at_mean = mean * changing.saved.energy_kwh;
    assert!((cost - at_mean).abs() > 0.01 * cost.abs(), "{cost} at hours, {at_mean} at their mean");

    let screen = flat.to_screen("CHF");
    assert!(screen.contains("\ncost ") && screen.contains("CHF "), "{screen}");
    let lies = "* Electricity prices in CHF (prices.csv): the first value is at the start of the";
    assert!(screen.contains(lies) && screen.contains("the series of 4.0 h repeats"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(!changing.to_screen("CHF").contains("repeats"));
}

#[test]
fn groups_add_up_to_the_schedules() {
    let (trace, made) = plain_study();
    let above = |wanted: &str| {
        let of = made.schedules.iter().filter(|(name, _, _)| *name == wanted);
        let kwh: Vec<f64> = of.map(|(_, _, schedule)| schedule.above_idle_kwh()).collect();
        kwh.iter().sum::<f64>() / kwh.len() as f64
    };
    for by in [Grouping::Job, Grouping::Day] {
        let groups = made.groups(by);
        assert_eq!(groups.iter().map(|group| group.jobs).sum::<usize>(), trace.jobs.len());
        let sum = |of: fn(&Group) -> f64| groups.iter().map(of).sum::<f64>();
        assert_close(sum(|group| group.baseline_kwh), above("baseline"), "baseline");
        assert_close(sum(|group| group.wattle_kwh), above("wattle"), "wattle");
        let table = made.to_groups(by);
        assert_eq!(table.lines().count(), groups.len() + 2);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
    let days = made.groups(Grouping::Day);
    let names: Vec<&str> = days.iter().map(|day| day.name.as_str()).collect();
    assert_eq!(names, ["2026-11-25", "2026-11-26"], "{days:?}");
    assert_eq!(made.to_json(Some(Grouping::Day)).matches("baseline_kwh").count(), days.len());
}

#[test]
fn large_trace_is_sampled_and_its_saving_scaled() {
    let trace = recorded();
    let small = SavingOptions { jobs_max: 20, nodes_min: 1, ..options(Sharing::Never) };
    let made = study(&trace, &Restartable::None, small);
    let csv = made.to_csv();
    let energy = |schedule: &str| {
        let rows = [rows(&csv, schedule, "job"), rows(&csv, schedule, "node")].concat();
        mean_of_seeds(&rows, |rows| rows.iter().map(|row| number(row, "energy_kwh")).sum())
    };
    let (sample, all) = (energy("baseline"), energy("baseline-all"));
    assert!(sample < 0.8 * all, "{sample} of {all}");
    assert_close(made.baseline.energy_kwh, all, "baseline of all jobs");
    let scale = made.baseline.energy_kwh / sample;
    assert_close(energy("wattle") * scale, made.wattle.energy_kwh, "energy of all jobs");
    assert!(made.assumptions.iter().any(|text| text.contains("Simulated on")), "{made:?}");
}

#[test]
fn recorded_schedule_beyond_the_cluster_is_refused_with_the_remedy() {
    let (world, cluster) = (World::builtin(), "1x8:a100".parse().unwrap());
    let (trace, restartable) = (recorded(), Restartable::None);
    let input = SavingInput {
        world: &world,
        trace: &trace,
        cluster: &cluster,
        carbon: None,
        prices: None,
        restartable: &restartable,
    };
    let error = estimate(&input, options(Sharing::Never), &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, SavingError::Replay(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("1x8:a100 has 8") && text.contains("at least 16 GPUs"), "{text}");
}

/// `tests/saving/recompute.py` agrees, and finds a wrong total. Needs python3.
#[test]
fn independent_script_recomputes_the_totals() {
    let script = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/saving/recompute.py");
    let folder = tempfile::tempdir().unwrap();
    let (_, made) = plain_study();
    let (json, csv) = (folder.path().join("saving.json"), folder.path().join("jobs.csv"));
    std::fs::write(&csv, made.to_csv()).unwrap();
    let agrees = |text: &str| {
        std::fs::write(&json, text).unwrap();
        std::process::Command::new("python3").arg(&script).args([&json, &csv]).output()
    };
    let Ok(output) = agrees(&made.to_json(None)) else {
        eprintln!("NOT RUN: python3 is missing, so the independent script was not checked");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut wrong = made.clone();
    wrong.wattle.energy_kwh *= 1.01;
    assert!(!agrees(&wrong.to_json(None)).unwrap().status.success());
}

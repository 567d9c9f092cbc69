//! Measured tables through the service's own code: a few small configurations known, all others predicted,
//! with the complete tables of all other models in the history.
//!
//! Reads throughputs over GPUs and batches (pkusys/ElasticFlow) and step times over placements
//! (petuum/adaptdl, both Apache-2.0) from the folder in `WATTLE_DATA`, or `../shared/data` next to the
//! repository; without it the tests print that they did not run, and pass.

#![allow(clippy::print_stdout, reason = "prints what was measured, or that nothing was")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::{job, one_gpu, window};
use wattle_common::{NodeId, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::{Predictor, PredictorConfig};

fn data() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    std::env::var_os("WATTLE_DATA").map_or_else(|| default.into(), PathBuf::from)
}

#[derive(Clone, Debug)]
struct Reading {
    gpus: u32,
    nodes: u32,
    batch: u32,
    local: u32,
    placement: String,
    seconds: f64,
}

type Tables = BTreeMap<&'static str, Vec<Reading>>;

fn lines(path: &str) -> Option<Vec<Vec<String>>> {
    let path = data().join(path);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("NOT RUN: no measured data at {}; name it in WATTLE_DATA", path.display());
        return None;
    };
    Some(text.lines().map(|l| l.split(',').map(str::to_owned).collect()).collect())
}

/// Eight GPUs on each node; an empty cell was not measured.
fn scaling() -> Option<Tables> {
    let mut tables = Tables::new();
    for model in ["bert", "deepspeech2", "gpt2", "inception3", "resnet50"] {
        let lines = lines(&format!("elasticflow/throughputs_A100/{model}.csv"))?;
        let mut table = Vec::new();
        for row in &lines[1..] {
            let batch: u32 = row[0].parse().unwrap();
            for (gpus, cell) in lines[0][1..].iter().zip(&row[1..]) {
                let (Ok(gpus), Ok(rate)) = (gpus.parse::<u32>(), cell.parse::<f64>()) else {
                    continue;
                };
                let nodes = gpus.div_ceil(8);
                let seconds = 1.0 / rate;
                let (local, placement) = (batch / gpus, String::new());
                table.push(Reading { gpus, nodes, batch, local, placement, seconds });
            }
        }
        tables.insert(model, table);
    }
    Some(tables)
}

/// A placement is the GPUs on each node as digits.
fn placements() -> Option<Tables> {
    let mut tables = Tables::new();
    for model in ["bert", "cifar10", "deepspeech2", "imagenet"] {
        let lines = lines(&format!("pollux/{model}/placements.csv"))?;
        let table = lines[1..].iter().map(|row| {
            let gpus: u32 = row[0].chars().map(|c| c.to_digit(10).unwrap()).sum();
            let local: u32 = row[1].parse().unwrap();
            Reading {
                gpus,
                nodes: row[0].len() as u32,
                batch: local * gpus,
                local,
                placement: row[0].clone(),
                seconds: row[2].parse().unwrap(),
            }
        });
        tables.insert(model, table.collect());
    }
    Some(tables)
}

/// One reading of each configuration: placements that differ only in order are merged.
fn merged(table: &[Reading]) -> Vec<Reading> {
    let mut by_spot: BTreeMap<(u32, u32, u32), Vec<&Reading>> = BTreeMap::new();
    for r in table {
        by_spot.entry((r.gpus, r.nodes, r.batch)).or_default().push(r);
    }
    let mean = |same: Vec<&Reading>| {
        let ln: f64 = same.iter().map(|r| r.seconds.ln()).sum::<f64>() / same.len() as f64;
        Reading { seconds: ln.exp(), ..same[0].clone() }
    };
    by_spot.into_values().map(mean).collect()
}

fn teach(p: &mut Predictor, model: &str, readings: &[Reading]) {
    for (minute, r) in readings.iter().enumerate() {
        let mut w = window(model, Some(model), minute as u64);
        w.node = NodeId::new("n0").unwrap();
        (w.gpus_total, w.nodes_total, w.global_batch) = (r.gpus, r.nodes, Some(r.batch));
        w.steps_per_s = Some(1.0 / r.seconds);
        w.steps_per_s_error = None;
        p.learn(Timestamp::from_s(60 * minute as u64), &w);
    }
}

#[derive(Default)]
struct Errors {
    time: Vec<f64>,
    rate: Vec<f64>,
    inside: usize,
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

/// Errors by model with the readings that `known` selects; the other models' tables are the history.
fn left_out(
    tables: &Tables,
    known: impl Fn(&[Reading], &Reading) -> bool,
) -> BTreeMap<String, Errors> {
    let config = PredictorConfig { windows_per_job_max: 2_000, ..PredictorConfig::shipped() };
    // Each table is learned once, and its class transferred as the service stores it.
    let mut classes = Vec::new();
    for (model, table) in tables {
        let mut p = Predictor::new(config.clone());
        teach(&mut p, model, &merged(table));
        classes.extend(p.take_changed_classes().into_iter().map(|c| (*model, c)));
    }
    let mut errors = BTreeMap::new();
    for (model, table) in tables {
        let mut p = Predictor::new(config.clone());
        for (of, (gpu_type, class, stored)) in &classes {
            if of != model {
                assert!(p.restore_class(gpu_type, class.clone(), stored.clone()));
            }
        }
        let (seen, other): (Vec<Reading>, Vec<Reading>) =
            table.iter().cloned().partition(|r| known(table, r));
        teach(&mut p, model, &seen);
        let e: &mut Errors = errors.entry((*model).to_owned()).or_default();
        for r in &other {
            let at = Configuration {
                gpus: r.gpus,
                nodes: r.nodes,
                global_batch: Some(r.batch),
                ..one_gpu()
            };
            let rate = p.predict(&job(model), &at).unwrap().steps_per_s.unwrap();
            e.time.push((1.0 / (rate.mean * r.seconds) - 1.0).abs());
            e.rate.push((rate.mean * r.seconds - 1.0).abs());
            let truth = 1.0 / r.seconds;
            e.inside += usize::from(rate.low <= truth && truth <= rate.high);
        }
    }
    errors
}

/// Mean and worst over models of the mean relative error of step times. Errors of step rates are printed
/// too: they weigh the two signs of an error differently.
fn check(what: &str, errors: &BTreeMap<String, Errors>, mean_max: f64, worst_max: f64) {
    let by_model: Vec<f64> = errors.values().map(|e| mean(&e.time)).collect();
    let (all, worst) = (mean(&by_model), by_model.iter().copied().fold(0.0, f64::max));
    for (model, e) in errors {
        println!(
            "{what}: {model}: {} predictions, step time off by {:.1} %, step rate by {:.1} % (covered {:.2})",
            e.time.len(),
            100.0 * mean(&e.time),
            100.0 * mean(&e.rate),
            e.inside as f64 / e.time.len() as f64,
        );
    }
    println!("{what}: mean {:.2} %, worst {:.2} %", 100.0 * all, 100.0 * worst);
    assert!(all <= mean_max && worst <= worst_max, "{what}: mean {all:.4}, worst {worst:.4}");
}

fn is_small(table: &[Reading], r: &Reading) -> bool {
    let batches = || table.iter().map(|r| r.batch);
    r.gpus <= 4 && (Some(r.batch) == batches().min() || Some(r.batch) == batches().max())
}

#[test]
fn one_two_and_four_gpus_predict_up_to_sixty_four() {
    let Some(tables) = scaling() else { return };
    check("scaling", &left_out(&tables, is_small), 0.08, 0.16);
}

#[test]
fn one_reading_on_sixteen_gpus_reduces_the_error() {
    let Some(tables) = scaling() else { return };
    let known = |table: &[Reading], r: &Reading| {
        let smallest = table.iter().map(|r| r.batch).min();
        is_small(table, r) || (r.gpus == 16 && Some(r.batch) == smallest)
    };
    check("scaling with 16", &left_out(&tables, known), 0.065, 0.10);
}

#[test]
fn six_placements_predict_the_others() {
    let Some(tables) = placements() else { return };
    let known = |table: &[Reading], r: &Reading| {
        let mut locals: Vec<u32> = table.iter().map(|r| r.local).collect();
        locals.sort_unstable();
        locals.dedup();
        let picked = [locals[locals.len() / 4], locals[3 * locals.len() / 4]];
        picked.contains(&r.local)
            && ["1", "2", "4", "11", "22", "111"].contains(&r.placement.as_str())
    };
    check("placement", &left_out(&tables, known), 0.08, 0.10);
}

//! Scatter of single readings: the smallest error that any predictor of these files can have.
//!
//! `cargo run -p wattle-evaluation --example floor -- --data DIR` prints, for each file, the mean of
//! |expected / measured - 1| over the readings that `wattle-lab evaluate` predicts, for references with more
//! knowledge than any predictor there:
//!
//! * `scatter`: a cubic over ln y through all readings of the job, the predicted ones included, with
//!   residuals corrected for leverage (divided by the root of one minus it): about the error of an exact
//!   smooth curve.
//! * `cubic`: the same through all readings but the predicted one (residual over one minus leverage).
//! * `neighbours`: linear interpolation between the two adjacent readings, with all others known.
//! * `line`: linear interpolation between the readings that the protocol declares known.
//!
//! For caps also `disorder`: the standard deviation of a single reading, from those of the three known ones
//! that show less time or more power under a lower cap, which is pure noise: the root mean square of the
//! step, over the root of two.
//!
//! For placements, GPUs and batches, and pairs, `others`: the mean of the readings that differ in what
//! should have no effect: the order of nodes, the number of GPUs at one local batch, the partner's batch
//! doubled or halved.
//!
//! No predictor and no model of Wattle is used.

#![allow(clippy::unwrap_used, reason = "a developer's tool; it fails with what is missing")]
#![allow(clippy::print_stdout, reason = "prints its table")]

mod files;

use std::collections::BTreeMap;
use std::path::Path;

use wattle_evaluation::Format;

/// Network whose single readings are mostly noise.
const NOISY: &str = "ncf";

/// Readings of a job: (W or MHz, value), ascending.
type Curve = Vec<(f64, f64)>;

/// Rows of a file as (column, cell).
fn rows(text: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').map(str::trim).collect();
    lines
        .filter(|line| !line.is_empty())
        .map(|line| columns.iter().copied().zip(line.split(',').map(str::trim)).collect())
        .collect()
}

fn number(row: &BTreeMap<&str, &str>, column: &str) -> Option<f64> {
    row.get(column)?.parse().ok()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Residuals of ln y about a cubic, and their leverages; `None` with too few readings.
fn cubic(curve: &Curve) -> Option<Vec<(f64, f64)>> {
    if curve.len() < 6 {
        return None;
    }
    let (low, high) = (curve[0].0, curve[curve.len() - 1].0);
    let x = |at: f64| 2.0 * (at - low) / (high - low) - 1.0;
    // Orthonormal columns by Gram-Schmidt.
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for power in 0..4 {
        let mut column: Vec<f64> = curve.iter().map(|p| x(p.0).powi(power)).collect();
        for other in &columns {
            let along: f64 = column.iter().zip(other).map(|(a, b)| a * b).sum();
            column.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let length = column.iter().map(|a| a * a).sum::<f64>().sqrt();
        columns.push(column.iter().map(|a| a / length).collect());
    }
    let y: Vec<f64> = curve.iter().map(|p| p.1.ln()).collect();
    let part = |c: &Vec<f64>| -> f64 { c.iter().zip(&y).map(|(a, b)| a * b).sum() };
    let parts: Vec<f64> = columns.iter().map(part).collect();
    let one = |i: usize| {
        let fitted: f64 = columns.iter().zip(&parts).map(|(c, p)| c[i] * p).sum();
        (y[i] - fitted, columns.iter().map(|c| c[i] * c[i]).sum())
    };
    Some((0..curve.len()).map(one).collect())
}

/// Linear interpolation between two readings.
fn line(a: (f64, f64), b: (f64, f64), at: f64) -> f64 {
    a.1 + (b.1 - a.1) * (at - a.0) / (b.0 - a.0)
}

/// Errors by name over the readings not in `known`.
fn errors(curve: &Curve, known: &[usize], out: &mut BTreeMap<&'static str, Vec<f64>>) {
    let smooth = cubic(curve);
    for i in (0..curve.len()).filter(|i| !known.contains(i)) {
        let (at, seen) = curve[i];
        let mut put = |name, expected: f64| {
            out.entry(name).or_default().push((expected / seen - 1.0).abs());
        };
        if let Some((residual, leverage)) = smooth.as_ref().map(|s| s[i]) {
            put("scatter", seen * (residual / (1.0 - leverage).sqrt()).exp());
            put("cubic", seen * (residual / (1.0 - leverage)).exp());
        }
        put("neighbours", line(curve[i - 1], curve[i + 1], at));
        let right = known.iter().copied().filter(|k| *k > i).min().unwrap();
        let left = known.iter().copied().filter(|k| *k < i).max().unwrap();
        put("line", line(curve[left], curve[right], at));
    }
}

fn print(name: &str, errors: &BTreeMap<&'static str, Vec<f64>>) {
    let cell = |name: &str| {
        let found = errors.get(name).filter(|e| !e.is_empty());
        found.map_or_else(|| "-".to_owned(), |e| format!("{:.2}", 100.0 * mean(e)))
    };
    let n = errors.values().map(Vec::len).max().unwrap_or(0);
    let names = ["scatter", "cubic", "neighbours", "line", "others", "disorder"].map(cell);
    println!("| {name} | {n} | {} |", names.join(" | "));
}

/// Jobs of a file by name: curves of two quantities.
fn curves(
    text: &str,
    name: impl Fn(&BTreeMap<&str, &str>) -> String,
    columns: [&str; 3],
) -> BTreeMap<String, [Curve; 2]> {
    let mut jobs: BTreeMap<String, [Curve; 2]> = BTreeMap::new();
    for row in rows(text) {
        let [at, first, second] = columns.map(|c| number(&row, c).unwrap());
        let job = jobs.entry(name(&row)).or_default();
        job[0].push((at, first));
        job[1].push((at, second));
    }
    for curve in jobs.values_mut().flatten() {
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    jobs
}

/// Error of each reading against the mean of the others in its group.
fn others(groups: impl Iterator<Item = Vec<f64>>, relative: bool) -> Vec<f64> {
    let mut errors = Vec::new();
    for group in groups.filter(|g| g.len() > 1) {
        for (i, seen) in group.iter().enumerate() {
            let rest: Vec<f64> =
                group.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, y)| *y).collect();
            let off = (mean(&rest) - seen).abs();
            errors.push(if relative { off / seen } else { off });
        }
    }
    errors
}

fn caps(file: &str, text: &str) {
    let name = |row: &BTreeMap<&str, &str>| {
        ["network", "dataset", "batch_size", "optimizer"].map(|c| row[c]).join("-")
    };
    let jobs = curves(text, name, ["power_limit", "time_per_epoch", "average_power"]);
    for (q, quantity) in ["time", "power"].into_iter().enumerate() {
        for without in [None, Some(NOISY)] {
            let mut found = BTreeMap::new();
            let kept = jobs.iter().filter(|(n, _)| without.is_none_or(|w| !n.starts_with(w)));
            for curve in kept.map(|(_, c)| &c[q]).filter(|c| c.len() >= 5) {
                errors(curve, &[curve.len() - 1, curve.len() / 2, 0], &mut found);
            }
            found.extend(disorder(&jobs, q, without).map(|sd| ("disorder", vec![sd])));
            let without = without.map_or(String::new(), |w| format!(" without {w}"));
            print(&format!("{file} caps-3 {quantity}{without}"), &found);
        }
    }
}

/// Standard deviation of a reading, from steps between the three known caps in the wrong direction.
fn disorder(jobs: &BTreeMap<String, [Curve; 2]>, q: usize, without: Option<&str>) -> Option<f64> {
    let mut squares = Vec::new();
    let kept = jobs.iter().filter(|(n, _)| without.is_none_or(|w| !n.starts_with(w)));
    for curve in kept.map(|(_, c)| &c[q]).filter(|c| c.len() >= 5) {
        let known = [0, curve.len() / 2, curve.len() - 1].map(|i| curve[i].1.ln());
        // Time falls as the cap rises, power rises.
        let step = |pair: &[f64]| if q == 0 { pair[1] - pair[0] } else { pair[0] - pair[1] };
        squares.extend(known.windows(2).map(step).filter(|s| *s > 0.0).map(|s| s * s));
    }
    (!squares.is_empty()).then(|| (mean(&squares) / 2.0).sqrt())
}

fn clocks(file: &str, text: &str) {
    let name = |row: &BTreeMap<&str, &str>| ["stage", "instruction"].map(|c| row[c]).join("-");
    let jobs = curves(text, name, ["frequency", "time", "energy"]);
    for (q, quantity) in ["time", "energy"].into_iter().enumerate() {
        let mut found = BTreeMap::new();
        for curve in jobs.values().map(|c| &c[q]).filter(|c| c.len() > 4) {
            let place = |i: usize| (i * (curve.len() - 1)) as f64 / 3.0;
            let known: Vec<usize> = (0..4).map(|i| place(i).round() as usize).collect();
            errors(curve, &known, &mut found);
        }
        print(&format!("{file} clocks-4 {quantity}"), &found);
    }
}

fn placements(file: &str, text: &str) {
    let mut groups: BTreeMap<(Vec<char>, u64), Vec<f64>> = BTreeMap::new();
    for row in rows(text) {
        let mut shape: Vec<char> = row["placement"].chars().collect();
        shape.sort_unstable();
        let batch = number(&row, "local_bsz").unwrap() as u64;
        groups.entry((shape, batch)).or_default().extend(number(&row, "step_time"));
    }
    let found = BTreeMap::from([("others", others(groups.into_values(), true))]);
    print(&format!("{file} placement, orders of nodes"), &found);
}

fn throughputs(file: &str, text: &str) {
    let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows(text) {
        let batch = number(&row, "global_batch_size").unwrap() as u64;
        for (column, cell) in &row {
            let gpus = column.parse::<u64>().ok().filter(|g| *g > 1 && batch.is_multiple_of(*g));
            if let (Some(gpus), Ok(rate)) = (gpus, cell.parse::<f64>()) {
                groups.entry(batch / gpus).or_default().push(1.0 / rate);
            }
        }
    }
    let found = BTreeMap::from([("others", others(groups.into_values(), true))]);
    print(&format!("{file} scaling, GPUs at one local batch"), &found);
}

fn pairs(file: &str, text: &str) {
    // By GPU, tenant and the partner's family: the partner's batch, the relative speed.
    let mut lines: BTreeMap<[String; 4], Curve> = BTreeMap::new();
    for row in rows(text) {
        for (me, other) in [("a", "b"), ("b", "a")] {
            let get = |what: &str, side: &str| number(&row, &format!("{what}_{side}"));
            let (Some(batch), Some(alone)) = (get("bs", other), get("iso", me)) else { continue };
            let Some(packed) = get("packed", me).filter(|p| *p > 0.0) else { continue };
            let cell = |what: &str, side: &str| row[format!("{what}_{side}").as_str()].to_owned();
            let key =
                [row["gpu"].to_owned(), cell("model", me), cell("bs", me), cell("model", other)];
            lines.entry(key).or_default().push((batch, packed / alone));
        }
    }
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (key, mut line) in lines {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        line.dedup_by(|a, b| (a.0 - b.0).abs() < 0.5);
        for three in line.windows(3) {
            let off = (f64::midpoint(three[0].1, three[2].1) - three[1].1).abs();
            found.entry(key[0].clone()).or_default().push(off);
        }
    }
    for (gpu, errors) in found {
        let found = BTreeMap::from([("others", errors)]);
        print(&format!("{file} {gpu} pairs, partner's batch (MAE x 100)"), &found);
    }
}

fn main() {
    let data = files::option("--data").expect("--data DIR");
    println!(
        "| file, protocol, quantity | rows | scatter | cubic | neighbours | line | others | disorder |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for source in files::read(Path::new(&data), |_| true) {
        let (file, text) = (source.file.as_str(), source.text.as_str());
        match wattle_evaluation::recognise(text) {
            Some(Format::Caps) => caps(file, text),
            Some(Format::Stages) => clocks(file, text),
            Some(Format::Placements) => placements(file, text),
            Some(Format::Throughputs) => throughputs(file, text),
            Some(Format::Pairs) => pairs(file, text),
            Some(Format::Isolated) | None => {}
        }
    }
}

//! Prediction error and coverage of the 90 % intervals, in total and by group.
//!
//! `cargo run -p wattle-evaluation --example coverage -- --data DIR [--method NAME]` prints one line for
//! each protocol, GPU and quantity. A group is what was new together: a network, a model, a job, a family.
//! Rows of one group have correlated errors, so the precision of a share follows from the number of groups:
//! `give or take` is twice the standard deviation of a mean over groups.

#![allow(clippy::unwrap_used, reason = "a developer's tool; it fails with what is missing")]
#![allow(clippy::print_stdout, reason = "prints its table")]

mod files;

use std::collections::BTreeMap;
use std::path::Path;

use wattle_evaluation::Row;
use wattle_predictor::Method;

/// Protocol of a row and its group in it; `None` for a row over all.
fn place(row: &Row) -> (&str, Option<&String>) {
    (row.protocol.strip_suffix("-by-network").unwrap_or(&row.protocol), row.model.as_ref())
}

/// Figures of a row: number, error, coverage.
type Figures = (usize, f64, f64);

/// Groups of one line by name, and the row over all, if any.
#[derive(Default)]
struct Line {
    all: Option<Figures>,
    groups: Vec<(String, Figures)>,
}

impl Line {
    fn line(&self, name: &str) -> String {
        let groups = self.groups.len();
        let mean = |of: &dyn Fn(&Figures) -> f64| {
            self.groups.iter().map(|(_, g)| of(g)).sum::<f64>() / groups.max(1) as f64
        };
        let rows: usize = self.groups.iter().map(|(_, g)| g.0).sum();
        let inside: f64 = self.groups.iter().map(|(_, g)| g.0 as f64 * g.2).sum();
        let together = (rows, mean(&|g| g.1), inside / rows.max(1) as f64);
        let (n, error, share) = self.all.unwrap_or(together);
        let line = format!("| {name} | {n} | {:.2} % | {:.1} %", 100.0 * error, 100.0 * share);
        if groups < 2 {
            return format!("{line} | | | | |");
        }
        let middle = mean(&|g| g.2);
        let sure = (mean(&|g| (g.2 - middle).powi(2)) / (groups as f64 - 1.0)).sqrt();
        let error = self.groups.iter().map(|(_, g)| g.1).fold(0.0, f64::max);
        let worst = self.groups.iter().min_by(|a, b| a.1.2.total_cmp(&b.1.2)).unwrap();
        let below = self.groups.iter().filter(|(_, g)| g.2 < 0.7).count();
        format!(
            "{line} | {:.1} | {:.2} % | {} {:.1} % | {below} of {groups} |",
            200.0 * sure,
            100.0 * error,
            worst.0,
            100.0 * worst.1.2,
        )
    }
}

fn main() {
    let data = files::option("--data").expect("--data DIR");
    let method = match files::option("--method").as_deref() {
        None | Some("physical") => Method::Physical,
        Some("statistical") => Method::Statistical,
        Some(other) => panic!("--method is physical or statistical, not {other}"),
    };
    let sources = files::read(Path::new(&data), |_| true);
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for row in wattle_evaluation::run_by(&sources, method).rows {
        let (Some(inside), (protocol, group)) = (row.coverage90, place(&row)) else { continue };
        // For relative speeds the absolute error.
        let relative = row.quantity != "relative_speed";
        let error = row.mape.filter(|_| relative).unwrap_or(row.mae);
        let gpu = row.gpu.as_deref().unwrap_or("-");
        let line = lines.entry(format!("{protocol} {gpu} {}", row.quantity)).or_default();
        match group {
            Some(group) => line.groups.push((group.clone(), (row.n, error, inside))),
            None => line.all = Some((row.n, error, inside)),
        }
    }
    println!(
        "| protocol, GPU, quantity | rows | error | inside | give or take | worst group's error | worst group inside | below 70 % |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, line) in &lines {
        println!("{}", line.line(name));
    }
}

//! How far off predictions are, and what share of what was seen lies inside its 90 % interval: in all,
//! and group by group.
//!
//! `cargo run -p wattle-evaluation --example coverage -- --data DIR [--method NAME]` prints one line
//! for each protocol, card and quantity. A group is what was new together: a network, a model, a job,
//! a family. What one group's rows are off by they have in common, so the share is no surer than its
//! groups are many: `give or take` is twice the deviation of a mean over groups. It scores with
//! [`evaluate`] and changes nothing.

#![allow(clippy::unwrap_used, reason = "a developer's tool; it says what is missing by failing")]
#![allow(clippy::print_stdout, reason = "prints its table")]

mod files;

use std::collections::BTreeMap;
use std::path::Path;

use wattle_evaluation::Row;
use wattle_predictor::Method;

/// The protocol that a row belongs to, and its group there; `None` for a row of all.
fn place(row: &Row) -> (&str, Option<&String>) {
    (row.protocol.strip_suffix("-by-network").unwrap_or(&row.protocol), row.model.as_ref())
}

/// A row's figures: rows, error, share inside.
type Figures = (usize, f64, f64);

/// One line's groups by name, and the row of all, where there is one.
#[derive(Default)]
struct Line {
    all: Option<Figures>,
    groups: Vec<(String, Figures)>,
}

impl Line {
    fn told(&self, name: &str) -> String {
        let groups = self.groups.len();
        let mean = |of: &dyn Fn(&Figures) -> f64| {
            self.groups.iter().map(|(_, g)| of(g)).sum::<f64>() / groups.max(1) as f64
        };
        let rows: usize = self.groups.iter().map(|(_, g)| g.0).sum();
        let inside: f64 = self.groups.iter().map(|(_, g)| g.0 as f64 * g.2).sum();
        let together = (rows, mean(&|g| g.1), inside / rows.max(1) as f64);
        let (n, error, share) = self.all.unwrap_or(together);
        let told = format!("| {name} | {n} | {:.2} % | {:.1} %", 100.0 * error, 100.0 * share);
        if groups < 2 {
            return format!("{told} | | | | |");
        }
        let middle = mean(&|g| g.2);
        let sure = (mean(&|g| (g.2 - middle).powi(2)) / (groups as f64 - 1.0)).sqrt();
        let error = self.groups.iter().map(|(_, g)| g.1).fold(0.0, f64::max);
        let worst = self.groups.iter().min_by(|a, b| a.1.2.total_cmp(&b.1.2)).unwrap();
        let below = self.groups.iter().filter(|(_, g)| g.2 < 0.7).count();
        format!(
            "{told} | {:.1} | {:.2} % | {} {:.1} % | {below} of {groups} |",
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
        Some("neighbour") => Method::Neighbour,
        Some(other) => panic!("--method is physical, statistical or neighbour, not {other}"),
    };
    let sources = files::read(Path::new(&data), |_| true);
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for row in wattle_evaluation::run_by(&sources, method).rows {
        let (Some(inside), (protocol, group)) = (row.coverage90, place(&row)) else { continue };
        // Of speeds relative to the job alone the error is the absolute one.
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
        "| protocol, card, quantity | rows | error | inside | give or take | worst group's error | worst group inside | below 70 % |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, line) in &lines {
        println!("{}", line.told(name));
    }
}

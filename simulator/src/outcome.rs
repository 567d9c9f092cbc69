//! What came of a simulation: the figures, as JSON and as a table.
//!
//! The names of the JSON's fields are a promise: later versions add fields and rename none. For
//! the same trace, seed and policy everything but `wall_s` is the same to the byte.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::scenario::WorkloadShare;

/// What came of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The cluster, as in `28x8:v100`.
    pub cluster: String,
    /// The seed.
    pub seed: u64,
    /// One entry for each policy, in the order asked for.
    pub policies: Vec<PolicyOutcome>,
    /// Which workloads the jobs were.
    pub workloads: Vec<WorkloadShare>,
    /// What a reader should know of the input.
    pub notes: Vec<String>,
}

/// What came of one policy. Means over jobs are over those that finished, and null without any.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyOutcome {
    /// Its name.
    pub policy: String,
    /// Jobs of the trace.
    pub jobs: usize,
    /// Jobs that finished.
    pub finished: usize,
    /// Mean time from submission to completion.
    pub jct_s_mean: Option<f64>,
    /// Its median.
    pub jct_s_p50: Option<f64>,
    /// Its 95th percentile.
    pub jct_s_p95: Option<f64>,
    /// Its 99th percentile.
    pub jct_s_p99: Option<f64>,
    /// Mean time in the queue.
    pub wait_s_mean: Option<f64>,
    /// Mean time on GPUs.
    pub runtime_s_mean: Option<f64>,
    /// From the first submission to the last completion.
    pub makespan_s: f64,
    /// Whole nodes, all awake, over the makespan.
    pub energy_kwh: f64,
    /// Emissions of that energy; null without a carbon series.
    pub carbon_kg: Option<f64>,
    /// Nodes with a job, mean over the makespan.
    pub active_nodes_mean: f64,
    /// Busy share of all GPUs, 0 to 1, mean over the makespan.
    pub gpu_utilization_mean: f64,
    /// How often a job's number of GPUs was changed.
    pub rescales: usize,
    /// How often a job was stopped and placed anew.
    pub migrations: usize,
    /// How long the simulation took; measured by the caller.
    pub wall_s: f64,
    /// Jobs that no placement on this cluster could hold.
    pub rejected: usize,
    /// Jobs that were put beside another one when they started.
    pub shared_starts: usize,
    /// Placements taken back after an observation.
    pub undone: usize,
    /// Finished jobs that had a deadline and missed it.
    pub deadlines_missed: usize,
    /// What a reader should know of this run.
    pub notes: Vec<String>,
}

/// One finished job.
pub(crate) struct Finished {
    pub(crate) jct_us: u64,
    pub(crate) ran_us: u64,
}

/// The four completion times and two parts of them.
pub(crate) struct Times {
    pub(crate) mean: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) wait: Option<f64>,
    pub(crate) run: Option<f64>,
}

pub(crate) fn times(jobs: &[Finished]) -> Times {
    let mut jct: Vec<u64> = jobs.iter().map(|job| job.jct_us).collect();
    jct.sort_unstable();
    let mean = |sum: u128| (!jobs.is_empty()).then(|| seconds(sum as f64 / jobs.len() as f64));
    // Nearest rank: the smallest value that so many per cent do not exceed.
    let percentile = |p: usize| {
        let rank = (jct.len() * p).div_ceil(100).max(1);
        jct.get(rank - 1).map(|&us| seconds(us as f64))
    };
    let sum = |part: fn(&Finished) -> u64| jobs.iter().map(|job| u128::from(part(job))).sum();
    Times {
        mean: mean(sum(|job| job.jct_us)),
        p50: percentile(50),
        p95: percentile(95),
        p99: percentile(99),
        wait: mean(sum(|job| job.jct_us.saturating_sub(job.ran_us))),
        run: mean(sum(|job| job.ran_us)),
    }
}

/// Seconds from microseconds, to the microsecond.
pub(crate) fn seconds(us: f64) -> f64 {
    us.round() / 1e6
}

impl Outcome {
    /// As one JSON object with a line break at its end.
    ///
    /// # Panics
    /// Never: it is made of plain values.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain values become JSON");
        text.push('\n');
        text
    }

    /// As a table of at most 100 columns for people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = format!("{} on {}, seed {}\n\n", self.trace, self.cluster, self.seed);
        let _ = writeln!(
            text,
            "{:<13}{:>7}{:>11}{:>11}{:>11}{:>11}{:>11}{:>9}{:>7}{:>7}",
            "policy",
            "jobs",
            "mean JCT",
            "p95 JCT",
            "wait",
            "makespan",
            "energy",
            "carbon",
            "nodes",
            "busy"
        );
        for p in &self.policies {
            let jobs = if p.finished == p.jobs {
                p.jobs.to_string()
            } else {
                format!("{}/{}", p.finished, p.jobs)
            };
            let _ = writeln!(
                text,
                "{:<13}{:>7}{:>11}{:>11}{:>11}{:>11}{:>11}{:>9}{:>7.1}{:>5.0} %",
                p.policy,
                jobs,
                span(p.jct_s_mean),
                span(p.jct_s_p95),
                span(p.wait_s_mean),
                span(Some(p.makespan_s)),
                scaled(p.energy_kwh, &["kWh", "MWh", "GWh"]),
                p.carbon_kg.map_or("-".to_owned(), |kg| scaled(kg, &["kg", "t", "kt"])),
                p.active_nodes_mean,
                p.gpu_utilization_mean * 100.0,
            );
        }
        if let [first, others @ ..] = &self.policies[..]
            && !others.is_empty()
        {
            text.push('\n');
            for p in others {
                let _ = writeln!(
                    text,
                    "{}: energy {}, mean JCT {}, runtime {} against {}; {} shared, {} undone",
                    p.policy,
                    change(Some(p.energy_kwh), Some(first.energy_kwh)),
                    change(p.jct_s_mean, first.jct_s_mean),
                    change(p.runtime_s_mean, first.runtime_s_mean),
                    first.policy,
                    p.shared_starts,
                    p.undone,
                );
            }
        }
        text.push_str("\nworkloads: ");
        let shares: Vec<String> = self.workloads.iter().map(share).collect();
        text.push_str(&wrap(&shares, 100, 11));
        text.push('\n');
        // What holds under every policy is said once.
        let mut said: Vec<&String> = Vec::new();
        for note in self.notes.iter().chain(self.policies.iter().flat_map(|p| &p.notes)) {
            if !said.contains(&note) {
                let _ = writeln!(text, "note: {note}");
                said.push(note);
            }
        }
        text
    }
}

fn share(share: &WorkloadShare) -> String {
    let why = match (&share.model, share.drawn) {
        (Some(model), true) => format!(" (drawn for {model})"),
        (None, true) => " (drawn)".to_owned(),
        (_, false) => String::new(),
    };
    format!("{} x {}{why}", share.jobs, share.workload)
}

/// Joins `words` by commas into lines of at most `width`, the first of which begins at `indent`.
fn wrap(words: &[String], width: usize, indent: usize) -> String {
    let mut text = String::new();
    let mut column = indent;
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            text.push(',');
            if column + word.len() + 3 > width {
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                text.push(' ');
                column += 2;
            }
        }
        text.push_str(word);
        column += word.len();
    }
    text
}

/// `12.3 h`: a time in the unit that reads best.
fn span(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 2.0 * 3_600.0 => format!("{:.1} min", s / 60.0),
        s if s < 100.0 * 3_600.0 => format!("{:.2} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

/// A number with the first unit in which it stays below ten thousand; each is a thousand of the last.
fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut chosen = 0;
    while value >= 10_000.0 && chosen + 1 < units.len() {
        value /= 1_000.0;
        chosen += 1;
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 1_000.0) };
    format!("{value:.digits$} {}", units[chosen])
}

fn change(new: Option<f64>, old: Option<f64>) -> String {
    match (new, old) {
        (Some(new), Some(old)) if old > 0.0 => format!("{:+.1} %", (new / old - 1.0) * 100.0),
        _ => "-".to_owned(),
    }
}

/// A duration in whole microseconds, as the engine counts.
pub(crate) fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

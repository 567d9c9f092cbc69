//! What came of a simulation: the figures, as JSON and as a table.
//!
//! The names of the JSON's fields are a promise: later versions add fields and rename none. For
//! the same trace, seed and policy everything but `wall_s` is the same to the byte.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::prediction_error::Prediction;
use crate::scenario::WorkloadShare;
use crate::spending::Spending;
use crate::text::{pluralize, sanitize};

/// What came of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The cluster, as in `28x8:v100`.
    pub cluster: String,
    /// The seed.
    pub seed: u64,
    /// GPU time that the jobs ask for alone, of the cluster's from the first arrival to the last;
    /// above 1 no policy that does not pack keeps up. Null where all jobs arrive at once.
    pub load: Option<f64>,
    /// One entry for each policy, in the order asked for.
    pub policies: Vec<PolicyOutcome>,
    /// What it cost each policy not to know; empty where no oracle was asked for.
    pub prediction_regret: Vec<PredictionRegret>,
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
    /// Whether its surfaces were true ones, made from the world: the same policy once more, with
    /// nothing to learn.
    pub oracle: bool,
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
    /// Whole nodes, awake or asleep as they were, over the makespan.
    pub energy_kwh: f64,
    /// What cards drew above their idle power.
    pub energy_kwh_above_idle: f64,
    /// Emissions of that energy; null without a carbon series.
    pub carbon_kg: Option<f64>,
    /// Nodes with a job, mean over the makespan.
    pub active_nodes_mean: f64,
    /// Fragmentation: GPUs with no job on nodes that have one, mean over the makespan.
    pub fragmented_gpus_mean: f64,
    /// Nodes that were not asleep, mean over the makespan.
    pub awake_nodes_mean: f64,
    /// Busy share of all GPUs, 0 to 1, mean over the makespan.
    pub gpu_utilization_mean: f64,
    /// How often a job's number of GPUs was changed.
    pub rescales: usize,
    /// How often a job was stopped and placed anew.
    pub migrations: usize,
    /// GPU hours spent on starting jobs anew, without progress.
    pub restart_gpu_h: f64,
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
    /// Spent beyond the budget in the worst window, as a share of it; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_overrun: Option<f64>,
    /// What was spent of the budget; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spending: Option<Spending>,
    /// How long jobs waited for a cleaner grid, mean over all; absent where none may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred_s_mean: Option<f64>,
    /// What was foretold against what happened; null for a policy that reads no surfaces.
    pub prediction: Option<Prediction>,
    /// What a reader should know of this run.
    pub notes: Vec<String>,
}

/// The price of not knowing: a policy on predictions over the same policy on true surfaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionRegret {
    /// The policy.
    pub policy: String,
    /// Mean completion time, as a ratio; above 1: knowing would have been faster. Null without a
    /// finished job.
    pub jct_s_mean_ratio: Option<f64>,
    /// Energy, as a ratio; above 1: knowing would have spent less. Null without any.
    pub energy_ratio: Option<f64>,
}

impl PredictionRegret {
    /// For every policy that was run both ways.
    pub(crate) fn of(policies: &[PolicyOutcome]) -> Vec<Self> {
        let ratio = |a: f64, b: f64| (b > 0.0).then(|| (a / b * 1e6).round() / 1e6);
        let pair = |knowing: &PolicyOutcome| {
            let own = policies.iter().find(|p| !p.oracle && p.policy == knowing.policy)?;
            Some(Self {
                policy: own.policy.clone(),
                jct_s_mean_ratio: own
                    .jct_s_mean
                    .zip(knowing.jct_s_mean)
                    .and_then(|(a, b)| ratio(a, b)),
                energy_ratio: ratio(own.energy_kwh, knowing.energy_kwh),
            })
        };
        policies.iter().filter(|p| p.oracle).filter_map(pair).collect()
    }
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
        let load = self.load.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}"));
        let mut text =
            format!("{} on {}, seed {}, load {load}\n\n", self.trace, self.cluster, self.seed);
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
                p.row_name(),
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
            && others.iter().any(|p| !p.oracle)
        {
            text.push('\n');
            for p in others.iter().filter(|p| !p.oracle) {
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
                if let Some(jobs) = p.different_jobs(first) {
                    let _ = writeln!(text, "    {jobs}");
                }
            }
        }
        text.push_str(&self.spending_table());
        text.push_str(&self.foretold_table());
        text.push_str("\nworkloads: ");
        let shares: Vec<String> = self.workloads.iter().map(share).collect();
        text.push_str(&wrap(&shares, 100, 11));
        text.push('\n');
        for note in self.all_notes() {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    /// What a reader should know, of the input and of each run. What holds under every policy is said
    /// once, anything else with the names of those it holds under.
    #[must_use]
    pub fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<&String> = self.policies.iter().flat_map(|run| &run.notes).collect();
        let mut seen: Vec<&String> = self.notes.iter().collect();
        notes.retain(|note| {
            let new = !seen.contains(note);
            seen.push(note);
            new
        });
        let of_runs = notes.into_iter().map(|note| {
            let whose = self.policies.iter().filter(|run| run.notes.contains(note));
            let whose: Vec<String> = whose.map(PolicyOutcome::full_name).collect();
            let all = whose.len() == self.policies.len();
            if all { note.clone() } else { format!("{}: {note}", whose.join(", ")) }
        });
        self.notes.iter().cloned().chain(of_runs).collect()
    }
}

impl Outcome {
    /// What each policy spent of its budget, and what waiting for a cleaner grid took.
    fn spending_table(&self) -> String {
        let lines = self.policies.iter().flat_map(|p| {
            let name = p.row_name();
            p.budget_lines().into_iter().map(move |spent| format!("{name}: {spent}\n"))
        });
        let text: String = lines.collect();
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// The errors of what was foretold, and what it cost not to know; empty where no policy reads
    /// surfaces.
    fn foretold_table(&self) -> String {
        let mut text = String::new();
        if self.policies.iter().all(|p| p.prediction.is_none()) {
            return text;
        }
        let _ = writeln!(
            text,
            "\n{:<13}{:>10}{:>10}{:>12}{:>9}{:>12}{:>9}{:>12}{:>9}",
            "foretold",
            "placed",
            "on prior",
            "speed",
            "in 90 %",
            "beside",
            "in 90 %",
            "power",
            "in 90 %",
        );
        for p in &self.policies {
            let told = p.prediction.as_ref();
            let dash = || "-".to_owned();
            let placed = told.map_or_else(dash, |told| told.placements.to_string());
            let prior = told.and_then(|told| told.prior_share).map(|share| 100.0 * share);
            let prior = prior.map_or_else(dash, |share| format!("{share:.0} %"));
            let _ = write!(text, "{:<13}{placed:>10}{prior:>10}", p.row_name());
            for error in [
                told.map(|told| told.speed),
                told.map(|told| told.relative_speed),
                told.map(|told| told.power),
            ] {
                let off = error.and_then(|error| error.mape);
                let off = off.map_or_else(dash, |off| format!("{off:.1} %"));
                let covered = error.and_then(|error| error.coverage90);
                let covered = covered.map_or_else(dash, |share| format!("{:.0} %", 100.0 * share));
                let _ = write!(text, "{off:>12}{covered:>9}");
            }
            text.push('\n');
        }
        text.push_str(
            "mean errors of what was foretold as a stretch began, and how often its 90 % interval held\n",
        );
        if !self.prediction_regret.is_empty() {
            text.push('\n');
        }
        for price in &self.prediction_regret {
            let percent = |ratio: Option<f64>| change(ratio, Some(1.0));
            let _ = writeln!(
                text,
                "{}: not knowing costs {} mean JCT and {} energy against the oracle",
                price.policy,
                percent(price.jct_s_mean_ratio),
                percent(price.energy_ratio),
            );
        }
        text
    }
}

impl PolicyOutcome {
    /// What it spent of its budget, and what waiting for a cleaner grid took, a line each.
    pub fn budget_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(spending) = &self.spending {
            let mut parts = Vec::new();
            if let Some(overrun) = self.budget_overrun {
                parts.push(pluralize(spending.windows.len(), "window"));
                parts.push(format!("overrun at most {:.2} %", 100.0 * overrun));
                parts.push(format!("price {:.2} of its range", spending.price_mean));
                parts.push(format!("new jobs held back for {}", span(Some(spending.held_back_s))));
                parts.push(pluralize(spending.pauses, "pause"));
            }
            parts.push(format!("peak {:.2} kW", spending.power_kw_peak));
            if let Some(exceeded) = spending.power_exceeded_s {
                parts.push(format!("above the limit for {}", span(Some(exceeded))));
            }
            lines.push(parts.join(", "));
        }
        if self.deferred_s_mean.is_some() {
            lines.push(format!("{} waited for a cleaner grid, mean", span(self.deferred_s_mean)));
        }
        lines
    }

    /// What it is called where it stands alone.
    pub fn full_name(&self) -> String {
        if self.oracle { format!("{}, oracle", self.policy) } else { self.policy.clone() }
    }

    /// That means and totals of the two are not over the same jobs, where they need not be.
    pub fn different_jobs(&self, first: &Self) -> Option<String> {
        let all = |run: &Self| run.finished == run.jobs;
        (!all(self) || !all(first)).then(|| {
            format!(
                "not over the same jobs: {} of {} finished, {} under {}",
                self.finished, self.jobs, first.finished, first.policy
            )
        })
    }

    /// What its row begins with: the oracle's stands below its policy's own.
    fn row_name(&self) -> String {
        if self.oracle { "  oracle".to_owned() } else { self.policy.clone() }
    }
}

fn share(share: &WorkloadShare) -> String {
    let why = match (&share.model, share.drawn) {
        (Some(model), true) => format!(" (drawn for {})", sanitize(model)),
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

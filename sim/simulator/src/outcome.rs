//! The outcome of a simulation, as JSON and as a table.
//!
//! JSON field names are stable: later versions add fields and rename none. For the same trace, seed
//! and policy, all values except `wall_s` are identical.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::prediction_error::Prediction;
use crate::scenario::WorkloadShare;
use crate::spending::Spending;
use crate::text::{pluralize, sanitize};

/// The outcome of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The cluster, as in `28x8:v100`.
    pub cluster: String,
    /// The seed.
    pub seed: u64,
    /// Offered load: GPU time of the jobs without co-tenants, as a share of the cluster's from the
    /// first arrival to the last. Above 1 the queue grows unless jobs share GPUs. Null where all
    /// jobs arrive at once.
    pub load: Option<f64>,
    /// One entry per policy, in the given order.
    pub policies: Vec<PolicyOutcome>,
    /// Prediction regret of each policy; empty without oracle runs.
    pub prediction_regret: Vec<PredictionRegret>,
    /// The jobs' workloads.
    pub workloads: Vec<WorkloadShare>,
    /// Notes on the input.
    pub notes: Vec<String>,
}

/// The outcome of one policy. Means over jobs are over finished jobs, and null without any.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyOutcome {
    /// Its name.
    pub policy: String,
    /// Whether its surfaces were true ones, made from the world.
    pub oracle: bool,
    /// Number of jobs.
    pub jobs: usize,
    /// Number of finished jobs.
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
    /// Energy of whole nodes, awake or asleep, over the makespan.
    pub energy_kwh: f64,
    /// Energy of the GPUs above their idle power.
    pub energy_kwh_above_idle: f64,
    /// Emissions of that energy; null without a carbon series.
    pub carbon_kg: Option<f64>,
    /// Nodes with a job, mean over the makespan.
    pub active_nodes_mean: f64,
    /// Fragmentation: GPUs with no job on nodes that have one, mean over the makespan.
    pub fragmented_gpus_mean: f64,
    /// Awake nodes, mean over the makespan.
    pub awake_nodes_mean: f64,
    /// Busy share of all GPUs, 0 to 1, mean over the makespan.
    pub gpu_utilization_mean: f64,
    /// Changes of a job's number of GPUs.
    pub rescales: usize,
    /// Preemptions followed by a new placement.
    pub migrations: usize,
    /// GPU hours of restarts, without progress.
    pub restart_gpu_h: f64,
    /// Duration of the simulation; measured by the caller.
    pub wall_s: f64,
    /// Jobs that no placement on this cluster can hold.
    pub rejected: usize,
    /// Starts on a GPU with another job.
    pub shared_starts: usize,
    /// Co-locations undone after an observation.
    pub undone: usize,
    /// Finished jobs that missed their deadline.
    pub deadlines_missed: usize,
    /// Overrun of the budget in the worst window, as a share of the budget; absent without a
    /// budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_overrun: Option<f64>,
    /// Use of the budget; absent without a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spending: Option<Spending>,
    /// Mean carbon deferral over all jobs; absent where no job has slack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred_s_mean: Option<f64>,
    /// Prediction errors; null for a policy that reads no surfaces.
    pub prediction: Option<Prediction>,
    /// Notes on this run.
    pub notes: Vec<String>,
}

/// The cost of prediction errors: a policy on predictions relative to the same policy on true
/// surfaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionRegret {
    /// The policy.
    pub policy: String,
    /// Ratio of the mean completion times; above 1 the oracle is faster. Null without a finished
    /// job.
    pub jct_s_mean_ratio: Option<f64>,
    /// Ratio of the energies; above 1 the oracle uses less. Null without energy.
    pub energy_ratio: Option<f64>,
}

impl PredictionRegret {
    /// The regret of every policy that was run on predictions and on true surfaces.
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

/// Statistics of completion times, and their mean parts.
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
    // Nearest rank: the smallest value that is at least as large as `p` per cent of all.
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
    /// One JSON object with a line break at its end.
    ///
    /// # Panics
    /// Never: all fields are plain values.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain values become JSON");
        text.push('\n');
        text
    }

    /// A table of at most 100 columns.
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
        text.push_str(&self.prediction_table());
        text.push_str("\nworkloads: ");
        let shares: Vec<String> = self.workloads.iter().map(share).collect();
        text.push_str(&wrap(&shares, 100, 11));
        text.push('\n');
        for note in self.all_notes() {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    /// Notes on the input and on each run. A note of some policies starts with their names; a note
    /// of all policies appears once.
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
    /// Each policy's use of its budget and carbon deferral.
    fn spending_table(&self) -> String {
        let lines = self.policies.iter().flat_map(|p| {
            let name = p.row_name();
            p.budget_lines().into_iter().map(move |spent| format!("{name}: {spent}\n"))
        });
        let text: String = lines.collect();
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Prediction errors and prediction regret; empty where no policy reads surfaces.
    fn prediction_table(&self) -> String {
        let mut text = String::new();
        if self.policies.iter().all(|p| p.prediction.is_none()) {
            return text;
        }
        let _ = writeln!(
            text,
            "\nprediction error\n{:<13}{:>10}{:>10}{:>12}{:>9}{:>12}{:>9}{:>12}{:>9}",
            "policy",
            "starts",
            "on prior",
            "speed",
            "in 90 %",
            "sharing",
            "in 90 %",
            "power",
            "in 90 %",
        );
        for p in &self.policies {
            let prediction = p.prediction.as_ref();
            let dash = || "-".to_owned();
            let placed =
                prediction.map_or_else(dash, |prediction| prediction.placements.to_string());
            let prior =
                prediction.and_then(|prediction| prediction.prior_share).map(|share| 100.0 * share);
            let prior = prior.map_or_else(dash, |share| format!("{share:.0} %"));
            let _ = write!(text, "{:<13}{placed:>10}{prior:>10}", p.row_name());
            for error in [
                prediction.map(|prediction| prediction.speed),
                prediction.map(|prediction| prediction.relative_speed),
                prediction.map(|prediction| prediction.power),
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
            "mean absolute errors of predictions at the start of intervals, and coverage of 90 % intervals\n",
        );
        if !self.prediction_regret.is_empty() {
            text.push('\n');
        }
        for regret in &self.prediction_regret {
            let percent = |ratio: Option<f64>| change(ratio, Some(1.0));
            let _ = writeln!(
                text,
                "{}: prediction regret {} mean JCT and {} energy against the oracle",
                regret.policy,
                percent(regret.jct_s_mean_ratio),
                percent(regret.energy_ratio),
            );
        }
        text
    }
}

impl PolicyOutcome {
    /// Its use of its budget and its carbon deferral, one line each.
    pub fn budget_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(spending) = &self.spending {
            let mut parts = Vec::new();
            if let Some(overrun) = self.budget_overrun {
                parts.push(pluralize(spending.windows.len(), "window"));
                parts.push(format!("overrun at most {:.2} %", 100.0 * overrun));
                parts.push(format!("energy price {:.2} of its range", spending.price_mean));
                parts.push(format!(
                    "admission closed for {}",
                    span(Some(spending.admission_closed_s))
                ));
                parts.push(pluralize(spending.preemptions, "preemption"));
            }
            parts.push(format!("peak {:.2} kW", spending.power_kw_peak));
            if let Some(exceeded) = spending.power_exceeded_s {
                parts.push(format!("above the limit for {}", span(Some(exceeded))));
            }
            lines.push(parts.join(", "));
        }
        if self.deferred_s_mean.is_some() {
            lines.push(format!("carbon deferral {} mean", span(self.deferred_s_mean)));
        }
        lines
    }

    /// Its policy, marked where it is the oracle's run.
    pub fn full_name(&self) -> String {
        if self.oracle { format!("{}, oracle", self.policy) } else { self.policy.clone() }
    }

    /// A note where not all jobs finished in both runs, so that means are over different jobs.
    pub fn different_jobs(&self, first: &Self) -> Option<String> {
        let all = |run: &Self| run.finished == run.jobs;
        (!all(self) || !all(first)).then(|| {
            format!(
                "not over the same jobs: {} of {} finished, {} under {}",
                self.finished, self.jobs, first.finished, first.policy
            )
        })
    }

    /// The first cell of its row; the oracle's row follows its policy's.
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

/// A duration with a unit of its size: `12.3 h`.
fn span(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 2.0 * 3_600.0 => format!("{:.1} min", s / 60.0),
        s if s < 100.0 * 3_600.0 => format!("{:.2} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

/// A number with the first unit in which it is below ten thousand; each unit is a thousand of the
/// last.
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

//! The outcome of a simulation, as JSON; [`table`] prints it.
//!
//! JSON field names are stable: later versions add fields and rename none. For the same trace, seed
//! and policy, all values except `wall_s` are identical.

mod against;
mod expected;
mod table;
mod twin;

use std::time::Duration;

use serde::Serialize;
use wattle_common::JobId;
use wattle_common::duration::DurationUnit;

pub use against::{Against, AimHeld, Baseline, ProjectChange};
pub use expected::{ExpectedErrors, ExpectedOutcome, ExpectedRatios};
pub use twin::TwinOutcome;

use crate::events::EventsOutcome;
use crate::feeders::FeederUse;
use crate::prediction_error::Prediction;
use crate::scenario::WorkloadShare;
use crate::spending::Spending;
use crate::text::pluralize;
use crate::time_limits;

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
    /// Time from the first arrival to the last, over which the load is defined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals_s: Option<f64>,
    /// The baseline of the policies, where it is another schedule than the first policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
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
    /// The jobs that did not finish, in the order of the trace.
    #[serde(skip)]
    pub unfinished: Vec<JobId>,
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
    /// Cost of that energy in the currency of the prices; absent without prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
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
    /// Most restarts of one completed job.
    pub restarts_max: u32,
    /// Stops of completed jobs by a plan before they had run for ten times their restart cost, or within three
    /// times that cost before their end, for whatever reason; preemption counts.
    pub early_stops: u32,
    /// By how much one more kilowatt below the power limit would have shortened the mean completion time, s, by the
    /// policy's price of power; absent: the policy has none, or there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kw_saves_s: Option<f64>,
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
    /// How the targets of grid events were kept; absent without events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsOutcome>,
    /// What each feeder carried; absent without feeders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feeders: Vec<FeederUse>,
    /// Mean carbon deferral over all jobs; absent where no job has slack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred_s_mean: Option<f64>,
    /// What the twin of the run did; absent without a twin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twin: Option<TwinOutcome>,
    /// The errors of the expected starts and ends; absent where none were computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedOutcome>,
    /// Prediction errors; null for a policy that reads no surfaces.
    pub prediction: Option<Prediction>,
    /// Changes against the baseline, or against the first policy where there is none; absent for that policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// How the energy aim was held; absent where the run has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<AimHeld>,
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
    /// The unit of the durations of [`PolicyOutcome::budget_lines`].
    #[must_use]
    pub fn spending_unit(&self) -> DurationUnit {
        let durations = self.policies.iter().flat_map(|run| {
            let spending = run.spending.as_ref();
            let closed = spending.map(|spending| spending.admission_closed_s);
            let exceeded = spending.and_then(|spending| spending.power_exceeded_s);
            [closed, exceeded, run.deferred_s_mean]
        });
        DurationUnit::of_all(durations.flatten())
    }

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

impl PolicyOutcome {
    /// Where the time limits of the jobs are from, if the policy reads them; one of the run's notes.
    #[must_use]
    pub fn time_limits(&self) -> Option<&str> {
        time_limits::note_of(&self.notes)
    }

    /// Its use of its budget and its carbon deferral, one line each; durations in `unit`, that of all runs
    /// ([`Outcome::spending_unit`]).
    pub fn budget_lines(&self, unit: DurationUnit) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(spending) = &self.spending {
            let mut parts = Vec::new();
            if let Some(overrun) = self.budget_overrun {
                parts.push(pluralize(spending.windows.len(), "window"));
                parts.push(format!("overrun at most {:.2} %", 100.0 * overrun));
                parts.push(format!("energy price {:.2} of its range", spending.price_mean));
                parts.push(format!(
                    "admission closed for {}",
                    unit.format(spending.admission_closed_s)
                ));
                parts.push(pluralize(spending.preemptions, "preemption"));
            }
            parts.push(format!("peak {:.2} kW", spending.power_kw_peak));
            if let Some(exceeded) = spending.power_exceeded_s {
                parts.push(format!("above the limit for {}", unit.format(exceeded)));
            }
            if let Some(unused) = spending.power_unused_share {
                parts
                    .push(format!("{:.1} % of the limit unused while jobs waited", 100.0 * unused));
            }
            if let Some(share) = spending.rounds_enforced_share.filter(|share| *share > 0.0) {
                parts.push(format!(
                    "the limit changed the plan in {:.1} % of the rounds",
                    100.0 * share
                ));
            }
            lines.push(parts.join(", "));
        }
        lines.extend(self.events.iter().map(EventsOutcome::sentence));
        lines.extend(self.feeders.iter().map(FeederUse::words));
        if let Some(deferred) = self.deferred_s_mean {
            lines.push(format!("carbon deferral {} mean", unit.format(deferred)));
        }
        lines
    }

    /// Its policy, marked where it is the oracle's run.
    pub fn full_name(&self) -> String {
        if self.oracle { format!("{}, oracle", self.policy) } else { self.policy.clone() }
    }

    /// A note where not the same jobs finished in both runs, so that means are over different jobs.
    pub fn different_jobs(&self, first: &Self) -> Option<String> {
        (self.unfinished != first.unfinished).then(|| {
            format!(
                "means are over different jobs: {} finished {} of {}, {} finished {}",
                self.policy, self.finished, self.jobs, first.policy, first.finished
            )
        })
    }

    /// The first cell of its row; the oracle's row follows its policy's.
    pub(crate) fn row_name(&self) -> String {
        if self.oracle { "  oracle".to_owned() } else { self.policy.clone() }
    }
}

/// A duration in whole microseconds, as the engine counts.
pub(crate) fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

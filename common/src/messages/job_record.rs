//! All that is known of a job: what was asked, where it runs, why.
//!
//! * **Publisher:** placer, alone.
//! * **Listeners:** `wattle jobs`, `wattle explain`; profiler and predictor (declared workloads);
//!   the placer itself when it restarts.
//! * **How often:** at every change.
//! * **Delivery:** key-value bucket `jobs`, key = job. The last value stands.
//! * **Lost or doubled:** stored before a submission is acknowledged and before an order goes out.

use serde::{Deserialize, Serialize};

use crate::job::{CardSetting, JobPhase, JobSpec, Placement};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// Probes made of one job, at most: every cap and every clock of a surface's axes, and a little.
pub const PROBES_MAX: usize = 12;

/// Reasons kept for each job; older ones are dropped.
pub const REASONS_MAX: usize = 32;

/// All that is known of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// What was asked.
    pub spec: JobSpec,
    /// What has become of it.
    pub phase: JobPhase,
    /// Since when.
    pub phase_since_us: Timestamp,
    /// How often it has been started; 0 before the first start.
    pub attempt: u32,
    /// Its GPUs, while it has some.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// What its cards are set to, while it has some.
    #[serde(default, skip_serializing_if = "CardSetting::is_default")]
    pub setting: CardSetting,
    /// When it first ran.
    #[serde(default)]
    pub started_at_us: Option<Timestamp>,
    /// GPU time that it had had by `phase_since_us`, milliseconds: GPUs times time, the sum over its
    /// placements. Absent: it had none, or is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_time_ms: Option<u64>,
    /// How long it had had GPUs by then, however many, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_time_ms: Option<u64>,
    /// When it ended.
    #[serde(default)]
    pub ended_at_us: Option<Timestamp>,
    /// Its exit code, once it has ended by itself.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// What it becomes once it has stopped, while it is stopping: queued, failed or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_phase: Option<JobPhase>,
    /// Why it failed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Steps done, as last reported.
    #[serde(default)]
    pub step: Option<u64>,
    /// Steps after which it is done, as reported.
    #[serde(default)]
    pub steps_total: Option<u64>,
    /// How much work it was, once it has finished and where that is known: seconds alone on one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_s: Option<f64>,
    /// Epochs completed, as last reported.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Whether its newest placement is still being observed and may be undone.
    #[serde(default)]
    pub observing: bool,
    /// Where its output goes, by node rank.
    #[serde(default)]
    pub log_paths: Vec<String>,
    /// Why it is where it is, newest last.
    #[serde(default)]
    pub reasons: Vec<RecordedReason>,
    /// Probes made of it, and the one under way; what they may cost is counted from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeMade>,
}

/// A job's cards were set to another cap or clock for a while, to learn from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeMade {
    /// When it began.
    pub at_us: Timestamp,
    /// The cap of each of its cards: the one looked at, or the one that stood while a clock was.
    pub cap_mw: Power,
    /// The locked highest clock looked at; absent: a cap was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_max: Option<Frequency>,
    /// For how long, milliseconds; one that was cut short counts whole.
    pub duration_ms: u64,
    /// The most that all its cards together may have drawn under that cap.
    pub energy_mj_max: Energy,
}

/// Why something was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedReason {
    /// When.
    pub at_us: Timestamp,
    /// The policy that decided.
    pub policy: String,
    /// What was decided, for people: `placed on n0:0,1 beside job-3`.
    pub decision: String,
    /// Why, for people: moves considered, predicted ratio, the constraint that bound.
    pub reason: String,
}

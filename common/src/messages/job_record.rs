//! The placer's record of a job: specification, phase, placement, reasons.
//!
//! * **Publisher:** only the placer.
//! * **Listeners:** `wattle jobs`, `wattle explain`; profiler and predictor (declared workloads);
//!   the placer itself when it restarts.
//! * **How often:** at every change.
//! * **Delivery:** key-value bucket `jobs`, key = job; the last value of a key is current.
//! * **Lost or doubled:** stored before a submission is acknowledged and before desired state is
//!   written.

mod life;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::comparison::ComparedEnergy;
use crate::generation::is_unknown;
use crate::id::{AdmissionId, NodeId, PredictorId, SubmissionId};
use crate::job::{GpuSetting, JobPhase, JobSpec, Placement};
use crate::messages::{
    Consequence, ExpectedTimes, JobWindow, LaunchedJob, ReachedLimit, Surface, SurfacePoint,
    TwinWork,
};
use crate::time::Timestamp;
use crate::units::Energy;

pub use self::life::Late;

/// Reasons kept for each job; the oldest are dropped.
pub const REASONS_MAX: usize = 32;

/// The placer's record of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The submitted specification.
    pub spec: JobSpec,
    /// The identity of its submission, made when the placer accepted it; absent: an earlier version accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// The submission id of its request; absent: the request named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionId>,
    /// Whether the NATS server has proven the identity of `spec.user` by a key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub user_proven: bool,
    /// Number of requests that it reflects: 1 for the submission, and another for a cancellation
    /// ([`crate::generation`]).
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub generation: u64,
    /// Its phase.
    pub phase: JobPhase,
    /// When the phase began.
    pub phase_since_us: Timestamp,
    /// Number of starts; 0 before the first.
    pub attempt: u32,
    /// Number of starts that a fault of a node prevented. They do not count against the job.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_prevented: u32,
    /// Its GPUs, while some are assigned.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// The nodes of all its placements, also of those that it has left: its output is there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ran_on: BTreeSet<NodeId>,
    /// Cap and clock of its GPUs, while some are assigned.
    #[serde(default, skip_serializing_if = "GpuSetting::is_default")]
    pub setting: GpuSetting,
    /// When it first ran.
    #[serde(default)]
    pub started_at_us: Option<Timestamp>,
    /// GPU time consumed until `phase_since_us`, milliseconds: GPUs times time, summed over its
    /// placements. Absent: none, or the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_time_ms: Option<u64>,
    /// Time with any GPUs until `phase_since_us`, milliseconds, summed over its starts; the rest of its life it
    /// has waited. Absent: it has not held any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_time_ms: Option<u64>,
    /// When it ended.
    #[serde(default)]
    pub ended_at_us: Option<Timestamp>,
    /// Its exit code, if the program ended by itself.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The limit that it reached before it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ReachedLimit>,
    /// The phase that follows while it is stopping: queued, failed or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_phase: Option<JobPhase>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Last reported step.
    #[serde(default)]
    pub step: Option<u64>,
    /// Reported total number of steps.
    #[serde(default)]
    pub steps_total: Option<u64>,
    /// When `step` was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_at_us: Option<Timestamp>,
    /// Steps per second over the last reports of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_s: Option<f64>,
    /// Energy attributed to it in the energy ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj: Option<Energy>,
    /// Time of its GPUs without a meter, summed over GPUs, milliseconds: their energy is not in `energy_mj`.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub unmetered_ms: u64,
    /// End of the last ledger entry of each node that `energy_mj` counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub energy_until_us: BTreeMap<NodeId, Timestamp>,
    /// The part of `energy_mj` that is compared with the default setting; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<ComparedEnergy>,
    /// Work of a finished job, if known: seconds on one exclusive GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_s: Option<f64>,
    /// Its work at the default setting on the requested GPUs, from which the twin of the site's former scheduler is
    /// computed again; absent: it has not ended, or did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin_work: Option<Box<TwinWork>>,
    /// Last reported number of completed epochs.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Whether its newest placement is under early observation and may be undone.
    #[serde(default)]
    pub observing: bool,
    /// Paths of its output, by node rank.
    #[serde(default)]
    pub log_paths: Vec<String>,
    /// Reasons of the decisions about it, newest last.
    #[serde(default)]
    pub reasons: Vec<RecordedReason>,
    /// The last measured restarts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<RestartRecord>,
    /// Predicted cost of its next restart on its present number of GPUs, or its least, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_cost_ms: Option<u64>,
    /// Number of stops by a plan before it had run for ten times its restart cost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub early_stops: u32,
    /// Its last stops by plans, oldest first. Their number within a day is bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops_us: Vec<Timestamp>,
    /// Number of stops that it was to continue after, in which a signal ended it before it had written a
    /// checkpoint: its work since its last checkpoint was lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stops_unsaved: u32,
    /// Sizes that it had and left for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_sizes: Vec<LeftSizeRecord>,
    /// When it is expected to start and to end; absent: not known yet, or it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Box<ExpectedTimes>>,
    /// The prediction under which it was last placed or set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_placed: Option<Box<Prediction>>,
    /// The last prediction before it ended or was preempted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_last: Option<Box<Prediction>>,
}

/// Most alternatives in a [`Prediction`].
pub const ALTERNATIVES_MAX: usize = 16;

/// A job's surface, reduced to its placement and the alternatives to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// When it was current.
    pub at_us: Timestamp,
    /// The predictor.
    pub predictor: PredictorId,
    /// The GPU type of the placement.
    pub gpu_type: String,
    /// Number of the job's windows that the surface is based on.
    pub windows: u32,
    /// Its data basis, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<String>,
    /// The placement; absent: the surface does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<SurfacePoint>,
    /// Other sizes, caps, clocks and co-tenants, at most [`ALTERNATIVES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<SurfacePoint>,
}

impl JobRecord {
    /// The record of a job that was queued at `now` and has never started.
    #[must_use]
    pub const fn queued(spec: JobSpec, now: Timestamp) -> Self {
        Self {
            spec,
            admission: None,
            submission: None,
            user_proven: false,
            generation: 1,
            phase: JobPhase::Queued,
            phase_since_us: now,
            attempt: 0,
            attempts_prevented: 0,
            placement: None,
            ran_on: BTreeSet::new(),
            setting: GpuSetting::DEFAULT,
            started_at_us: None,
            gpu_time_ms: None,
            run_time_ms: None,
            ended_at_us: None,
            exit_code: None,
            limit: None,
            next_phase: None,
            error: None,
            step: None,
            steps_total: None,
            step_at_us: None,
            steps_per_s: None,
            energy_mj: None,
            unmetered_ms: 0,
            energy_until_us: BTreeMap::new(),
            compared: None,
            work_s: None,
            twin_work: None,
            epoch: None,
            observing: false,
            log_paths: Vec::new(),
            reasons: Vec::new(),
            restarts: Vec::new(),
            restart_cost_ms: None,
            early_stops: 0,
            stops_us: Vec::new(),
            stops_unsaved: 0,
            left_sizes: Vec::new(),
            expected: None,
            prediction_placed: None,
            prediction_last: None,
        }
    }

    /// Whether a run that a node reports is of this submission.
    #[must_use]
    pub fn has_run(&self, run: &LaunchedJob) -> bool {
        AdmissionId::has_run(self.admission.as_ref(), run.admission.as_ref(), run.since_us)
    }

    /// Whether a window is of this submission: the name may have been submitted before.
    #[must_use]
    pub fn has_window(&self, window: &JobWindow) -> bool {
        let of = window.admission.as_ref();
        AdmissionId::has_run(self.admission.as_ref(), of, window.until_us)
    }

    /// Whether a surface may be of this submission: not every predictor names one.
    #[must_use]
    pub fn has_surface(&self, surface: &Surface) -> bool {
        AdmissionId::may_be(self.admission.as_ref(), surface.admission.as_ref())
    }

    /// Whether it is of an earlier submission than this one, which has the same job id.
    #[must_use]
    pub fn is_before(&self, other: Option<&AdmissionId>) -> bool {
        AdmissionId::replaces(other, self.admission.as_ref())
    }

    /// The nodes on which output of the job may be. Records of an earlier version name only those of the
    /// placement and of the energy ledger.
    #[must_use]
    pub fn output_nodes(&self) -> BTreeSet<NodeId> {
        let placed = self.placement.iter().flat_map(|placement| &placement.shares);
        let placed = placed.map(|share| &share.node);
        self.ran_on.iter().chain(placed).chain(self.energy_until_us.keys()).cloned().collect()
    }

    /// Number of starts that no fault of a node prevented.
    #[must_use]
    pub const fn start_count(&self) -> u32 {
        self.attempt.saturating_sub(self.attempts_prevented)
    }

    /// Number of restarts: starts after the first.
    #[must_use]
    pub const fn restart_count(&self) -> u32 {
        self.start_count().saturating_sub(1)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_no_time(ms: &u64) -> bool {
    *ms == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A restart and its measured cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// Number of GPUs after the restart.
    pub gpus: u32,
    /// Time without progress while the job held GPUs, milliseconds.
    pub cost_ms: u64,
}

/// A size that a job left, and what was known then. The size is tried again only if that has changed
/// significantly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftSizeRecord {
    /// Number of GPUs.
    pub gpus: u32,
    /// Their type.
    pub gpu_type: String,
    /// Sizes with their predicted steps per second.
    pub rates: Vec<(u32, f64)>,
    /// The energy price, in the policy's unit.
    pub price: f64,
    /// Healthy GPUs of the cluster.
    pub gpus_healthy: u32,
}

/// A decision about a job, with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedReason {
    /// When it was decided.
    pub at_us: Timestamp,
    /// The policy in force.
    pub policy: String,
    /// The stage of the planning round that decided in place of the policy, for people: `power limits`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The decision, for people: `placed on n0:0,1`.
    pub decision: String,
    /// The reason in a sentence, for people.
    pub reason: String,
    /// What the decision changes, against what it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence: Option<Consequence>,
    /// The prices and ratios behind the reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// The decision recorded for a queued job that a stage holds back, and the first one that finds no room.
pub const WAITS: &str = "waits";
/// Beginning of a decision that sets caps and clocks.
const SET_TO: &str = "set to ";

impl RecordedReason {
    /// A decision of the policy.
    #[must_use]
    pub fn new(at_us: Timestamp, policy: &str, decision: String, reason: String) -> Self {
        let policy = policy.to_owned();
        Self { at_us, policy, stage: None, decision, reason, consequence: None, details: None }
    }

    /// The decision that sets caps and clocks.
    #[must_use]
    pub fn set_to(setting: GpuSetting) -> String {
        format!("{SET_TO}{setting}")
    }

    /// Whether it is of a decision that sets caps and clocks.
    #[must_use]
    pub fn is_of_setting(&self) -> bool {
        self.decision.starts_with(SET_TO)
    }

    /// What decided: the stage or the policy.
    #[must_use]
    pub fn decided_by(&self) -> &str {
        self.stage.as_deref().unwrap_or(&self.policy)
    }
}

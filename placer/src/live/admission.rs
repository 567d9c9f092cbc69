//! Requests of users: submissions and cancellations.

use wattle_common::bounds::{OutOfBounds, check_job};
use wattle_common::id::{IdError, ProjectId};
use wattle_common::job::{JobPhase, JobSpec, SignalError, check_signal};
use wattle_common::messages::{JobRecord, Reply, SubmitJob};
use wattle_common::{AdmissionId, JobId, WorkloadId, codec, generation, id};

use crate::JobFacts;
use crate::controller::admission::NotAdmitted;
use crate::live::job_records::JobRecords;
use crate::live::lifecycle::PLACER;
use crate::live::nodes::Nodes;
use crate::live::site_jobs::placed_by_site;
use crate::live::{LiveController, Turn};
use crate::twin::Departure;

/// The largest specification accepted, as JSON: the job's record with its reasons and predictions must
/// stay below NATS's limit of 1 MiB, and ten thousand records must fit into their bucket.
pub(super) const SPEC_LEN_MAX: usize = 32 << 10;

impl JobRecords {
    /// A user submits a job. `admission`: its identity if it is accepted. `inventory_complete`: whether every node has reported.
    pub(super) fn submit(
        &mut self,
        turn: &mut Turn<'_>,
        request: SubmitJob,
        admission: AdmissionId,
        inventory_complete: bool,
    ) -> Reply {
        let SubmitJob { mut spec, submission, user_proven } = request;
        let job = spec.job.clone();
        // Normalised as in the stored specification, so that a repeated request is equal to it.
        if let Some(Ok(signal)) = spec.checkpoint_signal.as_deref().map(check_signal) {
            spec.checkpoint_signal = Some(signal.to_owned());
        }
        if spec.flexibility.is_none() {
            let project = spec.project.as_ref().map(ProjectId::as_str);
            spec.flexibility = turn.controller.input().limits.accounts.flexibility(project);
        }
        if let Some(known) = self.get(&job) {
            let is_repeated = if submission.is_some() {
                submission == known.submission && spec.user == known.spec.user
            } else {
                spec.submitted_at_us = known.spec.submitted_at_us;
                spec == known.spec
            };
            return if is_repeated {
                // It is stored, or its storing comes before this answer.
                Reply::Accepted { job, generation: known.generation }
            } else {
                let phase = known.phase;
                Reply::Refused {
                    error: format!("job `{job}` exists already ({phase}); choose another id"),
                }
            };
        }
        spec.submitted_at_us = turn.now;
        turn.controller.events().inventory_known(inventory_complete);
        let admitted = check_spec(&spec).and_then(|()| {
            if placed_by_site(&spec) {
                return Ok(None);
            }
            let admitted = turn.controller.admit(JobFacts::from(&spec));
            admitted.map(Some).map_err(SpecError::NotAdmitted)
        });
        let key = match admitted {
            Ok(key) => key,
            Err(error) => return Reply::Refused { error: error.to_string() },
        };
        let admission = Some(admission);
        let queued = JobRecord::queued(spec, turn.now);
        let record = JobRecord { admission, submission, user_proven, ..queued };
        let generation = record.generation;
        if key.is_none() {
            turn.controller.job_waits_at_site(&JobFacts::from(&record.spec));
        }
        self.submitted(turn.now, record, key);
        turn.outbox.plan_with_predictions();
        Reply::Accepted { job, generation }
    }

    /// Forgets a submitted job whose record was not stored; its submission is refused.
    pub(super) fn not_stored(&mut self, job: &JobId, controller: &mut LiveController) {
        if let Some(key) = self.remove_submitted(job) {
            controller.job_ended(key, Departure::Cancelled);
        }
    }

    /// A user cancels a job.
    pub(super) fn cancel(&mut self, turn: &mut Turn<'_>, job: &JobId, nodes: &mut Nodes) -> Reply {
        let Some(record) = self.get(job) else {
            return Reply::Refused {
                error: format!("unknown job `{job}`; `wattle jobs` lists all jobs"),
            };
        };
        let phase = record.phase;
        if phase.is_final() && phase != JobPhase::Cancelled {
            return Reply::Refused { error: format!("job `{job}` has {phase} already") };
        }
        // A repeated request changes nothing.
        if phase == JobPhase::Cancelled || record.next_phase == Some(JobPhase::Cancelled) {
            return Reply::Accepted { job: job.clone(), generation: record.generation };
        }
        let generation = generation::next(record.generation);
        self.change(job, |record| record.generation = generation);
        if phase.has_gpus() {
            self.request_stop(turn, job, JobPhase::Cancelled);
        } else {
            self.end(turn, job, JobPhase::Cancelled, nodes);
        }
        let reason = "cancelled on request".to_owned();
        self.reason(turn.now, job, PLACER, "cancelled".to_owned(), reason);
        Reply::Accepted { job: job.clone(), generation }
    }
}

/// Why a job's specification is refused.
#[derive(Debug, thiserror::Error)]
enum SpecError {
    #[error(
        "its specification has {len} bytes and the limit is {SPEC_LEN_MAX}: put the command into \
         a script"
    )]
    TooLong { len: usize },
    #[error("invalid job: {0}")]
    OutOfBounds(#[from] OutOfBounds),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("invalid GPU type `{0}`: `wattle nodes` lists the GPU types")]
    GpuType(String),
    #[error("the command is empty: write it behind --")]
    NoCommand,
    #[error(
        "command and environment must be text without zero bytes, and a variable's name must not \
         be empty or contain `=`"
    )]
    Text,
    #[error(transparent)]
    Signal(#[from] SignalError),
    #[error(transparent)]
    NotAdmitted(NotAdmitted),
}

/// Checks what the controller does not read: the command and its environment.
fn check_spec(spec: &JobSpec) -> Result<(), SpecError> {
    let len = codec::encode_json(spec).len();
    if len > SPEC_LEN_MAX {
        return Err(SpecError::TooLong { len });
    }
    check_job(spec)?;
    if spec.site.is_none() {
        let project = spec.project.as_ref().map(ProjectId::as_str);
        let workload = spec.workload.as_ref().map(WorkloadId::as_str);
        for chosen in [spec.job.as_str()].into_iter().chain(project).chain(workload) {
            id::check_chosen(chosen)?;
        }
    }
    if let Some(kind) = spec.gpu_type.as_deref().filter(|kind| id::check(kind).is_err()) {
        return Err(SpecError::GpuType(kind.to_owned()));
    }
    // The site's scheduler has the program of its jobs.
    if spec.site.is_none() && spec.command.first().is_none_or(String::is_empty) {
        return Err(SpecError::NoCommand);
    }
    let nul = |text: &String| text.contains('\0');
    let bad_variable = |(key, value): &(String, String)| {
        key.is_empty() || key.contains('=') || nul(key) || nul(value)
    };
    if spec.command.iter().any(nul) || spec.environment.iter().any(bad_variable) {
        return Err(SpecError::Text);
    }
    if let Some(signal) = &spec.checkpoint_signal {
        check_signal(signal)?;
    }
    Ok(())
}

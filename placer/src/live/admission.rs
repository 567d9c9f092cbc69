//! Requests from people: what is taken, what is refused and why.

use wattle_common::job::{GpuSetting, JobPhase, JobSpec, check_signal};
use wattle_common::messages::{JobRecord, Reply};
use wattle_common::{JobId, Timestamp, codec, id};

use crate::JobFacts;
use crate::allocation::feasibility::infeasible;
use crate::live::lifecycle::PLACER;
use crate::live::{Placer, Tracked, has_gpus};
use crate::state::job::Job;

/// Largest specification taken, as JSON. A node's order holds the commands of all jobs there, and
/// must stay below NATS's own limit of 1 MiB.
pub(super) const SPEC_LEN_MAX: usize = 32 << 10;

impl Placer {
    pub(super) fn submitted(&mut self, now: Timestamp, mut spec: JobSpec) -> Reply {
        let job = spec.job.clone();
        // As it is stored, so that the same request is recognised when it is repeated.
        if let Some(Ok(signal)) = spec.checkpoint_signal.as_deref().map(check_signal) {
            spec.checkpoint_signal = Some(signal.to_owned());
        }
        if let Some(known) = self.jobs.get(&job) {
            let mut same = spec;
            same.submitted_at_us = known.record.spec.submitted_at_us;
            return if same == known.record.spec {
                // It is stored, or its storing comes before this answer.
                Reply::Accepted { job }
            } else {
                Reply::Refused {
                    error: format!(
                        "job `{job}` exists with another specification; choose another id"
                    ),
                }
            };
        }
        spec.submitted_at_us = now;
        if let Err(error) = self.acceptable(now, &spec) {
            return Reply::Refused { error };
        }
        let key = self.state.job_arrived(JobFacts::from(&spec));
        let record = JobRecord {
            spec,
            phase: JobPhase::Queued,
            phase_since_us: now,
            attempt: 0,
            placement: None,
            setting: GpuSetting::DEFAULT,
            started_at_us: None,
            gpu_time_ms: None,
            run_time_ms: None,
            ended_at_us: None,
            exit_code: None,
            next_phase: None,
            error: None,
            step: None,
            steps_total: None,
            work_s: None,
            epoch: None,
            observing: false,
            log_paths: Vec::new(),
            reasons: Vec::new(),
            probes: Vec::new(),
        };
        let tracked =
            Tracked { record, key: Some(key), stored_at: now, unsaved: false, refused: Vec::new() };
        self.jobs.insert(job.clone(), tracked);
        self.to_store.insert(job.clone());
        self.plan_soon(now);
        Reply::Accepted { job }
    }

    fn acceptable(&mut self, now: Timestamp, spec: &JobSpec) -> Result<(), String> {
        let len = codec::encode_json(spec).len();
        if len > SPEC_LEN_MAX {
            return Err(format!(
                "its specification has {len} bytes, at most {SPEC_LEN_MAX} are taken: put the \
                 command into a script"
            ));
        }
        if self.jobs.len() - self.ended.len() >= self.config.jobs_max {
            return Err(format!(
                "{} jobs wait or run already; wait until some have ended, or raise jobs_max",
                self.config.jobs_max
            ));
        }
        if spec.gpus.min == 0 || spec.gpus.min > spec.gpus.max {
            return Err(format!(
                "invalid number of GPUs `{}`: expected a number or a range, as in 4 or 1..8",
                spec.gpus
            ));
        }
        if let Some(kind) = spec.gpu_type.as_deref().filter(|kind| id::check(kind).is_err()) {
            return Err(format!(
                "`{kind}` is no kind of GPU; `wattle nodes` shows those there are"
            ));
        }
        if spec.command.first().is_none_or(String::is_empty) {
            return Err("the command is empty: write it behind --".to_owned());
        }
        let nul = |text: &String| text.contains('\0');
        let bad_variable = |(key, value): &(String, String)| {
            key.is_empty() || key.contains('=') || nul(key) || nul(value)
        };
        if spec.command.iter().any(nul) || spec.environment.iter().any(bad_variable) {
            return Err("command and environment are text without zero bytes, and a variable's \
                        name is not empty and has no `=`"
                .to_owned());
        }
        if let Some(deadline) = spec.deadline_at_us.filter(|deadline| *deadline <= now) {
            return Err(format!("its deadline {deadline} has passed; it is {now} now"));
        }
        if let Some(signal) = &spec.checkpoint_signal {
            check_signal(signal).map_err(|error| error.to_string())?;
        }
        self.state.inventory_known(self.inventory_complete(now));
        let alone = Job::new(JobFacts::from(spec), 0);
        infeasible(&self.state, &alone).map_or(Ok(()), |reason| Err(reason.to_string()))
    }

    pub(super) fn cancelled(&mut self, now: Timestamp, job: &JobId) -> Reply {
        let Some(tracked) = self.jobs.get(job) else {
            return Reply::Refused {
                error: format!("there is no job `{job}`; `wattle jobs` lists them"),
            };
        };
        let accepted = Reply::Accepted { job: job.clone() };
        match tracked.record.phase {
            JobPhase::Cancelled => return accepted,
            phase if phase.is_final() => {
                return Reply::Refused { error: format!("job `{job}` has {phase} already") };
            }
            phase if has_gpus(phase) => {
                if tracked.record.next_phase == Some(JobPhase::Cancelled) {
                    return accepted;
                }
                self.ask_to_stop(now, job, JobPhase::Cancelled);
            }
            _ => self.end(now, job, JobPhase::Cancelled),
        }
        let reason = "its owner took it back".to_owned();
        self.reason(now, job, PLACER, "cancelled".to_owned(), reason);
        accepted
    }
}

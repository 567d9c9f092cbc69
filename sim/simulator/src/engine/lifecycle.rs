//! Arrival, rejection and completion of simulated jobs.

use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_placer::{JobFacts, JobKey};

use crate::engine::Engine;
use crate::outcome::{Finished, us};

impl Engine<'_> {
    /// Submits a job to the controller.
    pub(super) fn arrive(&mut self, job: u32) {
        let spec = self.jobs[job].spec;
        let facts = JobFacts {
            id: spec.id.clone(),
            workload: Some(spec.workload.clone()),
            user: None,
            project: spec.project.clone(),
            request: spec.gpus,
            exclusive: spec.exclusive,
            consents_to_sharing: false,
            max_slowdown_permille: None,
            flexibility: spec.flexibility,
            priority: spec.priority,
            can_stop: spec.can_stop,
            deadline: spec.deadline.map(|at| Timestamp::from_us(us(at))),
            slack: spec.slack.filter(|_| !self.options.no_deferral),
            duration_alone: self.declared_duration(job),
            time_limit: self
                .time_limits
                .as_ref()
                .map_or(spec.time_limit, |limits| Some(limits.of(job))),
            site_priority: spec.site_priority,
            memory_mib_max: self.declared_memory(job),
            gpu_type: spec.gpu_type.as_deref().map(Arc::from),
            site: None,
            submitted_at: self.now(),
        };
        let key = match self.controller.admit(facts) {
            Ok(key) => key,
            Err(error) => {
                self.reject(job, error.to_string());
                return;
            }
        };
        self.jobs.assign(job, key);
        self.report_length(job, key);
        let now = self.now();
        if let Some(profiles) = &mut self.prediction.profiles {
            let requested = spec.gpu_type.as_deref();
            let gpu_type = requested.unwrap_or(&self.scenario.cluster.groups()[0].gpu_type);
            profiles.arrived(now, &spec.id, &spec.workload, spec.gpus, gpu_type);
        }
    }

    /// Counts a job that the controller does not admit, or rejects in a plan.
    pub(super) fn reject(&mut self, job: u32, reason: String) {
        let id = &self.jobs[job].spec.id;
        self.totals.rejected.push(format!("job {id} was rejected: {reason}"));
        if let Some(recorder) = &mut self.recorder {
            recorder.rejected(job, reason);
        }
    }

    /// Reports the energy of a job to the twin, as the ledger of a live cluster does.
    fn meter(&mut self, job: u32, key: JobKey) {
        if self.controller.twin().is_none() {
            return;
        }
        let state = self.controller.state();
        let Some(known) = state.job(key) else { return };
        let first = known.state.gpus().and_then(|on| on.by_node.first());
        let watts = first.and_then(|here| state.node(here.node).facts.watts);
        let Some(watts) = watts else { return };
        let job = &self.jobs[job];
        let energy_j = job.above_idle_mw_us / 1e9 + job.gpu_us / 1e6 * watts.gpu_idle.as_w();
        let id = job.spec.id.clone();
        self.controller.job_metered(&id, energy_j, 0.0, false);
    }

    /// Ends a completed job and frees its GPUs.
    pub(super) fn complete(&mut self, job: u32) {
        let now_us = self.now_us;
        self.record_completion(job);
        self.end_segment(job);
        if self.reports_surfaces() {
            self.report(job);
        }
        let running = &mut self.jobs[job];
        running.charge(now_us, 0.0, 0.0);
        running.ended_us = Some(now_us);
        running.version += 1;
        running.ran_us += now_us - running.started_us;
        let on = running.on.take();
        let spec = running.spec;
        if spec.deadline.is_some_and(|deadline| now_us > us(deadline)) {
            self.totals.deadlines_missed += 1;
        }
        let jct_us = now_us - us(spec.submit);
        self.totals.finished.push(Finished { jct_us, ran_us: running.ran_us });
        if let Some(progress) = &mut self.progress {
            progress(self.totals.finished.len(), self.scenario.jobs.len());
        }
        self.totals.restarts_max = self.totals.restarts_max.max(running.attempts.saturating_sub(1));
        let key = running.key.take();
        let known = key.and_then(|key| self.controller.state().job(key));
        self.totals.early_stops += known.map_or(0, |job| job.restarts.early_stops);
        if let Some(on) = &on {
            self.hardware.gpus.remove(job, on, &mut self.hardware.changed);
        }
        if let Some(key) = key {
            self.meter(job, key);
            self.controller.job_completed(key);
        }
        // Under a power limit the next plan sets every GPU.
        if let Some(on) = on.filter(|_| !self.controller.limits().is_power_limited()) {
            self.set_gpus(on.gpus());
        }
        if let Some(profiles) = &mut self.prediction.profiles {
            profiles.ended(&spec.id);
        }
    }
}

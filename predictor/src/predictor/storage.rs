//! State to be stored and restored.

use wattle_common::id::{self, JobId, WorkloadId};

use super::Predictor;
use crate::history::Class;
use crate::job::Job;

impl Predictor {
    /// State of `job`, to be stored.
    #[must_use]
    pub fn knowledge_of(&self, job: &JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    /// Restores a stored job; false where it is invalid or the job is known already.
    pub fn restore_job(&mut self, job: JobId, stored: Job) -> bool {
        let gpu_type = stored.gpu_type.clone();
        let max = self.config.windows_per_job_max as usize;
        if self.jobs.contains_key(&job) || !stored.is_sane(max) {
            return false;
        }
        if let Some(gpu_type) = gpu_type.filter(|k| id::check(k).is_ok()) {
            for window in stored.windows() {
                self.gpu_types.see(&gpu_type, window);
            }
        }
        self.enter(job.clone(), stored);
        if let Some(gpu_type) = self.jobs.get(&job).and_then(|j| j.gpu_type.clone()) {
            let gpu = self.gpu_types.spec(&gpu_type);
            self.teach(&job, &gpu_type, &gpu);
        }
        true
    }

    /// Restores a stored class; false where it is invalid.
    pub fn restore_class(&mut self, gpu_type: &str, class: WorkloadId, stored: Class) -> bool {
        let max = self.config.classes_max as usize;
        let fine = self.history.restore(gpu_type, class.clone(), stored, max);
        if fine {
            self.gpu_types.restore(gpu_type);
            if let Some(kept) = self.history.class(gpu_type, &class).cloned() {
                self.restore(gpu_type, &class, &kept);
            }
            self.pool_now(gpu_type);
        }
        fine
    }

    /// Classes changed since the last call, to be stored.
    pub fn take_changed_classes(&mut self) -> Vec<(String, WorkloadId, Class)> {
        self.history.take_changed()
    }
}

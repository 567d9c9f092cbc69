//! Learning from windows: storing them with their jobs and fitting models again.

use std::collections::BTreeSet;
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::id::JobId;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::observation::Observation;

use super::{Learned, Predictor};
use crate::gpu_types::GPU_TYPES_MAX;
use crate::job::Job;
use crate::pooled::Pooled;

/// Up to this many classes, pooled models are fitted again after each window; beyond, after every
/// [`POOL_EVERY`]th.
const POOL_EAGER: usize = 64;
const POOL_EVERY: u32 = 16;

impl Predictor {
    /// Learns a window; returns the job's new surface, or `None` where nothing was learned.
    pub fn observe(&mut self, now: Timestamp, window: &JobWindow) -> Option<Surface> {
        match self.learn(now, window) {
            Learned::Something => self.surface(now, &window.job),
            Learned::Nothing | Learned::Unusable(_) => None,
        }
    }

    /// Learns a window without computing a surface.
    pub fn learn(&mut self, now: Timestamp, window: &JobWindow) -> Learned {
        self.learn_all(now, std::slice::from_ref(window)).pop().unwrap_or(Learned::Nothing)
    }

    /// Learns windows that arrive together: all are scored with the knowledge from before them, and
    /// each job is fitted once. Returns one result for each window, in order.
    pub fn learn_all(&mut self, now: Timestamp, windows: &[JobWindow]) -> Vec<Learned> {
        self.score(windows);
        let learned: Vec<Learned> = windows.iter().map(|w| self.take_in(now, w)).collect();
        let new = windows.iter().zip(&learned).filter(|(_, l)| **l == Learned::Something);
        let jobs: BTreeSet<(&JobId, &str)> =
            new.map(|(w, _)| (&w.job, w.gpu_type.as_str())).collect();
        for (job, gpu_type) in &jobs {
            self.refit(now, job, gpu_type);
        }
        let gpu_types: BTreeSet<&str> = jobs.iter().map(|(_, gpu_type)| *gpu_type).collect();
        for gpu_type in gpu_types {
            let windows = jobs.iter().filter(|(_, k)| *k == gpu_type).count();
            self.repool(gpu_type, windows as u32);
        }
        learned
    }

    /// Stores a window with its job without fitting.
    pub(super) fn take_in(&mut self, now: Timestamp, window: &JobWindow) -> Learned {
        let observation = match Observation::of(window, |job| self.neighbour_class(job)) {
            Ok(observation) => observation,
            Err(why) => return Learned::Unusable(why),
        };
        let gpu_type = window.gpu_type.clone();
        let max = self.config.windows_per_job_max as usize;
        let request = GpuRequest::exactly(observation.gpus);
        let fresh = Job::new(now, window.workload.clone(), request, Some(gpu_type.clone()));
        self.gpu_types.see(&gpu_type, &observation);
        let job = self.enter(window.job.clone(), fresh);
        job.updated_at_us = job.updated_at_us.max(now);
        if job.gpu_type.as_ref() != Some(&gpu_type) {
            job.start_over();
            job.gpu_type = Some(gpu_type);
        }
        let named = job.workload.is_none() && window.workload.is_some();
        if named {
            job.workload.clone_from(&window.workload);
        }
        if window.admission.is_some() {
            job.admission.clone_from(&window.admission);
        }
        let added = job.add(observation, max);
        if named {
            self.count(window.workload.as_ref());
        }
        if added { Learned::Something } else { Learned::Nothing }
    }

    /// Fits a job's models again and updates its class.
    pub(super) fn refit(&mut self, now: Timestamp, id: &JobId, gpu_type: &str) {
        self.update_match(id);
        let gpu = self.gpu_types.spec(gpu_type);
        let Some(job) = self.jobs.get(id) else { return };
        let model = self.fit(id, job, gpu_type, &gpu);
        if let Some(class) = &job.workload {
            let max = self.config.classes_max as usize;
            self.history.remember(now, gpu_type, class, id, model.summary(job), max);
        }
        self.models.insert(id.clone(), model);
        self.teach(id, gpu_type, &gpu);
    }

    /// Fits all pooled models that are behind the history. Otherwise they are fitted every few
    /// windows.
    pub fn refit_pooled(&mut self) {
        self.learner.refit_all();
        let gpu_types: Vec<String> = self.pooled.keys().cloned().collect();
        for gpu_type in gpu_types {
            let behind = |(pooled, waited): &(Arc<Pooled>, u32)| {
                *waited > 0 || pooled.is_behind(&self.history, &gpu_type)
            };
            if self.pooled.get(&gpu_type).is_some_and(behind) {
                let pooled =
                    Pooled::fit(&self.history, &gpu_type, None, self.pooled_elsewhere(&gpu_type));
                self.pooled.insert(gpu_type, (Arc::new(pooled), 0));
            }
        }
    }

    pub(super) fn repool(&mut self, gpu_type: &str, news: u32) {
        let waited = self.pooled.get_mut(gpu_type).map_or(POOL_EVERY, |(_, waited)| {
            *waited += news;
            *waited
        });
        let few = self.history.len() < POOL_EAGER;
        if few || waited >= POOL_EVERY {
            self.pool_now(gpu_type);
        }
    }

    /// Pooled models of the other GPU types.
    fn pooled_elsewhere(&self, gpu_type: &str) -> impl Iterator<Item = &Pooled> {
        let others = self.pooled.iter().filter(move |(other, _)| *other != gpu_type);
        others.map(|(_, (pooled, _))| &**pooled)
    }

    pub(super) fn pool_now(&mut self, gpu_type: &str) {
        // As bounded as the GPU types.
        if self.pooled.len() >= GPU_TYPES_MAX && !self.pooled.contains_key(gpu_type) {
            return;
        }
        let before = self.pooled.get(gpu_type).map(|(pooled, _)| &**pooled);
        let others = self.pooled_elsewhere(gpu_type);
        let pooled = Pooled::fit(&self.history, gpu_type, before, others);
        self.pooled.insert(gpu_type.to_owned(), (Arc::new(pooled), 0));
    }
}

//! Events of jobs, recorded in the state of the cluster.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::{GpuSetting, Sharing};
use wattle_common::messages::Surface;

use crate::state::cluster::{ClusterState, UNDONE_SETS_MAX, one_of};
use crate::state::gpu_set::{GpuSet, JobKey, bits};
use crate::state::job::{Job, JobFacts, Mark, Progress, State, Trial};
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::{LeftSize, MeasuredRestart};

impl ClusterState {
    /// The site's rule on sharing GPUs, for jobs that arrive from now on.
    pub const fn sharing_known(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// A job was accepted. A known job keeps its key and its place in the queue.
    ///
    /// A job that the site's rule does not permit to share GPUs becomes exclusive here, for every
    /// policy.
    pub fn job_arrived(&mut self, mut facts: JobFacts) -> JobKey {
        if let Some(key) = self.job_key(&facts.id) {
            return key;
        }
        facts.exclusive |= !self.sharing.permits(facts.consents_to_sharing);
        let key = self.unused.pop().unwrap_or(JobKey(self.jobs.len() as u32));
        if key.index() == self.jobs.len() {
            self.jobs.push(None);
        }
        // Higher priority first, then earlier arrival.
        let arrival = u64::from(u8::MAX - facts.priority) << 56 | self.arrivals;
        self.arrivals += 1;
        self.competition += 1;
        Arc::make_mut(&mut self.job_keys).insert(facts.id.clone(), key);
        self.queue.insert(arrival, key);
        self.jobs[key.index()] = Some(Arc::new(Job::new(facts, arrival)));
        key
    }

    /// A queued job holds these GPUs already: its placement is restored after a restart.
    pub fn job_restored(
        &mut self,
        key: JobKey,
        on: GpuSet,
        setting: GpuSetting,
        since: Timestamp,
        observing: bool,
    ) {
        self.hold(key, on, setting, since, observing);
    }

    /// The GPU time and run time of a restored job before its present placement. Called after
    /// [`Self::job_restored`].
    pub fn job_usage_restored(&mut self, key: JobKey, gpu_time: Duration, run_time: Duration) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            (job.attained, job.ran) = (gpu_time, run_time);
        }
    }

    /// A job completed. Returns its work in seconds on one GPU, where that is known, and remembers it.
    pub fn job_finished(&mut self, key: JobKey) -> Option<f64> {
        let work_s = self.job(key).and_then(|job| {
            let work_s = job.progress?.step as f64 / job.unit_rate()?;
            (work_s.is_finite() && work_s > 0.0).then_some(work_s)
        });
        work_s.into_iter().for_each(|work_s| self.work_remembered(work_s));
        self.job_ended(key);
        work_s
    }

    /// A job ended (completed, failed or cancelled): its GPUs are free and its key may be reused.
    pub fn job_ended(&mut self, key: JobKey) {
        self.release(key);
        let Some(job) = self.jobs.get_mut(key.index()).and_then(Option::take) else { return };
        self.queue.remove(&job.arrival);
        Arc::make_mut(&mut self.job_keys).remove(&job.facts.id);
        self.competition += 1;
        self.unused.push(key);
    }

    /// A job stopped before its end (preempted, undone, or its node was lost). It returns to its
    /// place in the queue.
    pub fn job_stopped(&mut self, key: JobKey) {
        self.release(key);
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.stopped(self.now, job.progress.is_some());
            job.attained = job.gpu_time(self.now);
            job.ran = job.run_time(self.now);
            job.state = State::Queued;
            self.queue.insert(job.arrival, key);
        }
    }

    /// A job reported its progress. A report older than the last one is ignored.
    pub fn job_progressed(&mut self, key: JobKey, progress: Progress) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        let last = job.progress.unwrap_or_default();
        if progress.at < last.at {
            return;
        }
        // A value missing from this report keeps its last known value.
        job.progress = Some(Progress {
            steps_total: progress.steps_total.or(last.steps_total),
            epoch: progress.epoch.or(last.epoch),
            steps_per_epoch: progress.steps_per_epoch.or(last.steps_per_epoch),
            steps_per_s: progress.steps_per_s.or(last.steps_per_s),
            ..progress
        });
        let measured = job.restarts.progressed(progress.at, progress.step, progress.steps_per_s);
        if let Some(measured) = measured {
            let workload = job.facts.workload.as_ref();
            Arc::make_mut(&mut self.restart_costs).add(workload, &measured);
        }
        for &watched in &self.observed {
            let Some(Job { state: State::Running { trial: Some(trial), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            let since = trial.since;
            for mark in trial.marks.iter_mut().filter(|mark| mark.job == key) {
                // Until its first step the job is still starting.
                let starting = mark.from.is_none_or(|(_, step)| progress.step <= step);
                if starting && progress.at >= since {
                    mark.from = Some((progress.at, progress.step));
                }
            }
        }
    }

    /// A predictor's surface for a job arrived.
    pub fn surface_known(&mut self, key: JobKey, surface: Arc<Surface>) {
        if let Some(job) = self.job(key) {
            let mut operating_points = OperatingPoints::of_job(&surface, &job.facts);
            if self.without_locks.contains(&surface.gpu_type) {
                operating_points.remove_clocks();
            }
            if let Some(least) = self.gpu_power(&surface.gpu_type).and_then(|power| power.cap_min) {
                operating_points.remove_caps_below(least);
            }
            let operating_points = Arc::new(operating_points);
            self.surface_with_points_known(key, surface, operating_points);
        }
    }

    /// As [`Self::surface_known`], with operating points that were read before: jobs with the same
    /// surface may share them.
    pub fn surface_with_points_known(
        &mut self,
        key: JobKey,
        surface: Arc<Surface>,
        operating_points: Arc<OperatingPoints>,
    ) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        self.surface_revision += u64::from(job.state != State::Queued);
        job.surface_received(surface, operating_points);
        if !job.other_surfaces.is_empty()
            && let Some(part) = job.state.gpus().and_then(|on| on.by_node.first())
        {
            job.use_gpu_type(&self.nodes[part.node.index()].facts.gpu_type);
        }
    }

    /// A queued job was given these GPUs, with or without early trial.
    pub fn job_placed(&mut self, key: JobKey, on: GpuSet, setting: GpuSetting, observing: bool) {
        self.hold(key, on, setting, self.now, observing);
    }

    /// The caps and clocks of a running job's GPUs were changed; `by_limit`: while a power limit binds, so that the job
    /// may have the setting from before at once when it does not.
    pub fn job_set(&mut self, key: JobKey, setting: GpuSetting, by_limit: bool) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        let is_running = matches!(job.state, State::Running { .. });
        if let Some(before) = job.setting().filter(|before| *before != setting && !by_limit) {
            job.settings_left.add(before, self.now);
        }
        if let State::Running { setting: current, .. } | State::Stopping { setting: current, .. } =
            &mut job.state
        {
            *current = setting;
            self.has_settings |= !setting.is_default();
            if is_running {
                self.restart_observations_with(key);
            }
        }
    }

    /// A running job was requested to stop. It holds its GPUs until [`Self::job_stopped`].
    pub fn job_stopping(&mut self, key: JobKey) {
        self.stop(key, false);
    }

    /// An observed job was requested to stop because its placement did not hold: that set of GPUs is
    /// not tried again for it.
    pub fn job_undone(&mut self, key: JobKey) {
        self.stop(key, true);
    }

    /// A stopping job will continue at once on this many GPUs, of this type.
    pub fn job_continues_on(&mut self, key: JobKey, gpus: Option<u32>, gpu_type: Option<Arc<str>>) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            (job.next_gpus, job.next_gpu_type) = (gpus, gpu_type);
        }
    }

    /// A running job is about to leave its size for another, at this energy price.
    pub(crate) fn size_left(&mut self, key: JobKey, price: f64) {
        let Some(job) = self.job(key) else { return };
        let (Some(gpus), Some(gpu_type)) = (job.state.gpus(), self.gpu_type_of(job)) else {
            return;
        };
        let known = self.knowledge(job.operating_points_on(gpu_type), price);
        let size = LeftSize { gpus: gpus.gpu_count(), gpu_type: Arc::from(gpu_type), known };
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.left(size);
        }
    }

    /// A plan stops a job before it has run for ten times its restart cost.
    pub(crate) fn stopped_early(&mut self, key: JobKey) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.early_stops += 1;
        }
    }

    /// The measured restarts of a restored job, its stops and the sizes it left. Called after all jobs
    /// are restored.
    pub fn job_restarts_restored(
        &mut self,
        key: JobKey,
        measured: impl IntoIterator<Item = MeasuredRestart>,
        early_stops: u32,
        stops: Vec<Timestamp>,
        left_sizes: Vec<LeftSize>,
    ) {
        let competition = self.competition;
        if let Some(job) = one_of(&mut self.jobs, key) {
            measured.into_iter().for_each(|restart| job.restarts.remember(restart));
            job.restarts.early_stops = early_stops;
            job.restarts.stops = stops;
            job.restarts.left_sizes = left_sizes;
            // The jobs that compete are the restored ones.
            let left = job.restarts.left_sizes.iter_mut();
            left.for_each(|size| size.known.competition = competition);
        }
    }

    /// The observation of a job's placement ended, and the placement holds.
    pub fn trial_ended(&mut self, key: JobKey) {
        self.observed.remove(&key);
        if let Some(Job { state: State::Running { trial, .. }, .. }) = one_of(&mut self.jobs, key) {
            *trial = None;
        }
    }

    /// Restarts the observations in which `key` takes part: their measurements are of other settings.
    fn restart_observations_with(&mut self, key: JobKey) {
        for &watched in &self.observed {
            let Some(Job { state: State::Running { trial: Some(trial), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            if trial.marks.iter().any(|mark| mark.job == key) {
                trial.since = self.now;
                trial.marks.iter_mut().for_each(|mark| mark.from = None);
            }
        }
    }

    fn stop(&mut self, key: JobKey, undone: bool) {
        self.observed.remove(&key);
        self.allocation_revision += u64::from(undone);
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        job.attained = job.gpu_time(self.now);
        job.ran = job.run_time(self.now);
        (job.next_gpus, job.next_gpu_type) = (None, None);
        if let State::Running { on, setting, .. } = &mut job.state {
            let (on, setting) = (std::mem::take(on), *setting);
            job.restarts.stop_requested_at(self.now);
            if undone && job.undone_on.len() < UNDONE_SETS_MAX {
                job.undone_on.push(on.clone());
            }
            job.state = State::Stopping { on, setting };
        }
    }

    fn hold(
        &mut self,
        key: JobKey,
        on: GpuSet,
        setting: GpuSetting,
        since: Timestamp,
        observing: bool,
    ) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        self.queue.remove(&job.arrival);
        let mut marks = Vec::new();
        for part in &on.by_node {
            let node = &mut self.nodes[part.node.index()];
            node.occupied |= part.gpus;
            for gpu in bits(part.gpus) {
                let tenants = &mut Arc::make_mut(&mut node.tenants)[gpu as usize];
                if observing {
                    marks.extend(tenants.iter().map(|&job| Mark { job, from: None }));
                }
                tenants.push(key);
            }
        }
        let trial = observing.then(|| {
            marks.push(Mark { job: key, from: None });
            marks.sort_by_key(|mark| mark.job);
            marks.dedup_by_key(|mark| mark.job);
            Trial { since, marks }
        });
        self.has_settings |= !setting.is_default();
        let step = job.progress.map_or(0, |progress| progress.step);
        job.restarts.resumed(since, on.gpu_count(), step);
        (job.next_gpus, job.next_gpu_type) = (None, None);
        if !job.other_surfaces.is_empty()
            && let Some(part) = on.by_node.first()
        {
            job.use_gpu_type(&self.nodes[part.node.index()].facts.gpu_type);
        }
        job.state = State::Running { on, setting, since, trial };
        self.running.insert(key);
        if observing {
            self.observed.insert(key);
        }
    }

    fn release(&mut self, key: JobKey) {
        let Some(on) = self.job(key).and_then(|job| job.state.gpus()).cloned() else { return };
        for part in &on.by_node {
            let node = &mut self.nodes[part.node.index()];
            for gpu in bits(part.gpus) {
                let tenants = &mut Arc::make_mut(&mut node.tenants)[gpu as usize];
                tenants.retain(|&tenant| tenant != key);
                if tenants.is_empty() {
                    node.occupied &= !(1 << gpu);
                }
            }
            if node.occupied == 0 {
                node.idle_since = self.now;
            }
        }
        self.running.remove(&key);
        self.observed.remove(&key);
        for &watched in &self.observed {
            if let Some(Job { state: State::Running { trial: Some(trial), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            {
                trial.marks.retain(|mark| mark.job != key);
            }
        }
    }
}

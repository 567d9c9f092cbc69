//! Reports to the controller: progress, declared lengths, windows and surfaces.

use std::time::Duration;

use wattle_common::messages::window::Neighbour;
use wattle_common::rng::Stream;
use wattle_placer::{JobKey, Progress, Reads};
use wattle_world::GpuModel;

use crate::engine::events::Event;
use crate::engine::{Engine, node_id};
use crate::profiles::{Learned, WINDOWS_CLOSE_US, WindowInput};
use crate::scenario::Work;
use crate::simulation::Lengths;

/// Number of jobs at the head of the queue with an up-to-date prior. A plan that reaches further
/// jobs is repeated with their priors.
pub(super) const QUEUE_HEADS: usize = 4;

impl Engine<'_> {
    /// Reports the job's progress.
    pub(super) fn report(&mut self, job: u32) {
        let now = self.now();
        let lengths = self.options.lengths;
        let running = &mut self.jobs[job];
        running.catch_up(now.as_us());
        if let Some(key) = running.key {
            self.controller.events().job_progressed(key, running.progress(now, lengths));
        }
    }

    /// Reports that the job is at its checkpoint, which may be before the last reported step.
    pub(super) fn report_checkpoint(&mut self, job: u32) {
        let now = self.now();
        let lengths = self.options.lengths;
        let running = &self.jobs[job];
        if let Some(key) = running.key {
            let progress = running.progress(now, lengths);
            self.controller
                .events()
                .job_progressed(key, Progress { steps_per_s: Some(0.0), ..progress });
        }
    }

    /// Reports the length of a new job, if lengths are known from arrival on.
    pub(super) fn report_length(&mut self, job: u32, key: JobKey) {
        if !self.reports_surfaces() || self.options.lengths != Lengths::Known {
            return;
        }
        let progress = Progress {
            at: self.now(),
            steps_total: Some((self.steps_of(job) as u64).max(1)),
            steps_per_s: Some(0.0),
            ..Progress::default()
        };
        self.controller.events().job_progressed(key, progress);
    }

    /// The job's total number of steps.
    fn steps_of(&self, job: u32) -> f64 {
        match self.jobs[job].spec.work {
            Work::Steps(steps) => steps as f64,
            Work::Lasts(span) => span.as_secs_f64() * self.exclusive_steps_per_s(job),
        }
    }

    /// Adds a work history under [`Lengths::Past`]: as many completed jobs as the scenario has,
    /// each drawn from the scenario. Predictions of a job's work then use a sample of similar
    /// jobs.
    pub(super) fn add_work_history(&mut self) {
        let (true, Some(last)) =
            (self.options.lengths == Lengths::Past, self.jobs.len().checked_sub(1))
        else {
            return;
        };
        let mut draws = Stream::new(self.scenario.seed, "past");
        for _ in 0..=last {
            let job = draws.below(last as u64 + 1) as u32;
            // In the unit of `wattle_placer::OperatingPoints::unit_rate`.
            let gpus = f64::from(self.jobs[job].spec.gpus.min);
            let work_s = self.steps_of(job) * gpus / self.exclusive_steps_per_s(job);
            self.controller.events().work_remembered(work_s);
        }
    }

    /// The declared duration of the job under exclusive use of its requested GPUs; the exact one
    /// for policies that need it.
    pub(super) fn declared_duration(&self, job: u32) -> Option<Duration> {
        let spec = self.jobs[job].spec;
        if !self.controller.capabilities().needs_exact_durations {
            return spec.duration_estimate;
        }
        Some(match spec.work {
            Work::Lasts(span) => span,
            Work::Steps(steps) => {
                let seconds = steps as f64 / self.exclusive_steps_per_s(job);
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        })
    }

    /// The declared memory of the job, if it fits only some of the cluster's GPU types.
    pub(super) fn declared_memory(&self, job: u32) -> Option<u64> {
        let needed = self.jobs[job].workload.memory_mib;
        let fits = |gpu: &GpuModel| needed <= gpu.memory_mib;
        let (some, all) =
            (self.hardware.gpus.models().any(fits), self.hardware.gpus.models().all(fits));
        (some && !all).then_some(needed)
    }

    /// Step rate under exclusive use of the requested GPUs on the fewest nodes.
    fn exclusive_steps_per_s(&self, job: u32) -> f64 {
        let running = &self.jobs[job];
        let gpus = running.spec.gpus.min;
        running.workload.steps_per_s(self.hardware.gpus.first_model(), gpus, self.nodes_for(gpus))
    }

    /// The fewest nodes with this number of GPUs.
    fn nodes_for(&self, gpus: u32) -> u32 {
        let size = self.controller.state().nodes().first().map_or(1, |node| node.facts.gpus.max(1));
        gpus.div_ceil(size).max(1)
    }

    /// Closes the job's window; the predictor's new surface goes to the controller. Returns whether a plan
    /// may differ after it.
    pub(super) fn close_window(&mut self, job: u32) -> bool {
        self.report(job);
        let running = &self.jobs[job];
        let (Some(on), Some(key)) = (&running.on, running.key) else { return true };
        let Some((gpu_state, tenant)) = self.hardware.gpus.first_gpu(job, on) else { return true };
        let Some(profiles) = &mut self.prediction.profiles else { return true };
        let Some(facts) = self.controller.state().job(key).map(|job| &job.facts) else {
            return true;
        };
        let neighbours = self.hardware.gpus.neighbours(job, on);
        let node_gpus = on.by_node[0];
        let model = self.hardware.gpus.model(node_gpus.node);
        let setting = self.hardware.gpus.setting(node_gpus.node, node_gpus.gpus.trailing_zeros());
        let input = WindowInput {
            facts,
            is_left_out: running.is_left_out,
            job: &running.spec.id,
            workload: &running.spec.workload,
            node: node_id(node_gpus.node.index()),
            gpu_type: &model.gpu_type,
            attempt: running.attempts,
            from_us: running.window_from_us,
            until_us: self.now_us,
            gpus_here: wattle_placer::state::gpu_set::bits(node_gpus.gpus).collect(),
            gpus: on.gpu_count(),
            nodes: on.node_count(),
            cap: setting.cap_mw.unwrap_or(model.cap_default),
            clock_max: setting.clock_mhz_max,
            neighbours: neighbours
                .into_iter()
                .map(|other| {
                    let spec = self.jobs[other].spec;
                    Neighbour { job: spec.id.clone(), workload: Some(spec.workload.clone()) }
                })
                .collect(),
            steps_per_s: running.rate * running.steps_per_us * 1e6,
            step: running.step(),
            gpu_state,
            tenant,
        };
        match profiles.window(&input) {
            Learned::Own(surface) => {
                self.controller.events().surface_known(key, surface);
            }
            Learned::Nothing => {}
            // No further window of it is learned.
            Learned::LeftOut(surface) => {
                self.jobs[job].is_left_out = true;
                let Some((surface, points)) = surface else { return false };
                self.controller.events().surface_with_points_known(key, surface, points);
                return true;
            }
        }
        let running = &mut self.jobs[job];
        running.window_from_us = self.now_us;
        running.windows += 1;
        self.schedule_window(job);
        true
    }

    /// Schedules the end of the job's next window.
    pub(super) fn schedule_window(&mut self, job: u32) {
        let running = &self.jobs[job];
        if self.prediction.profiles.is_some()
            && let Some(after_us) = WINDOWS_CLOSE_US.get(running.windows)
        {
            let at = running.configured_us + after_us;
            self.events.schedule(at, Event::WindowClosed, job, running.version);
        }
    }

    /// Updates the priors of the first `heads` jobs of the queue. A prior is updated when its class
    /// has a quarter more windows than at the last update, as in the live predictor.
    pub(super) fn refresh_priors(&mut self, heads: usize) {
        if !self.reports_surfaces() {
            return;
        }
        let all = self.prediction.reads == Reads::All;
        let heads = if all { self.controller.state().queue_len() } else { heads };
        let mut outdated = Vec::new();
        for (key, _) in self.controller.state().queue().take(heads) {
            let job = self.jobs.of(key);
            let job = &mut self.jobs[job];
            let learned = self
                .prediction
                .profiles
                .as_ref()
                .map_or(0, |profiles| profiles.learned(&job.spec.workload));
            if job.attempts > 0 || job.prior_of.is_some_and(|then| learned * 4 <= then * 5) {
                continue;
            }
            job.prior_of = Some(learned);
            outdated.push((key, &job.spec.id, job.workload, job.spec.gpus));
        }
        let now = self.controller.state().now();
        for (key, id, workload, request) in outdated {
            if let Some(oracle) = &mut self.prediction.oracle {
                let shape = oracle.expected_shape(workload, request.min);
                for gpu in self.hardware.gpus.models() {
                    match oracle.full_surface(now, id, shape, request, gpu) {
                        Some((surface, operating_points)) => {
                            self.controller.events().surface_with_points_known(
                                key,
                                surface,
                                operating_points,
                            );
                        }
                        None => {
                            self.controller
                                .events()
                                .surface_known(key, oracle.surface(now, id, shape, gpu));
                        }
                    }
                }
            } else if let Some(profiles) = &mut self.prediction.profiles {
                let gpu_types = self.hardware.gpus.models().map(|gpu| gpu.gpu_type.as_str());
                let Some(facts) = self.controller.state().job(key).map(|job| &job.facts) else {
                    continue;
                };
                for (surface, points) in profiles.priors(now, facts, gpu_types) {
                    self.controller.events().surface_with_points_known(key, surface, points);
                }
            }
        }
    }

    /// Schedules the end of the first epoch since the start of early observation, for each of these
    /// jobs that is observed. `jobs` is sorted.
    pub(super) fn schedule_epochs(&mut self, jobs: &[u32]) {
        for (_, observed) in self.controller.state().observed() {
            let Some(trial) = observed.state.trial() else { continue };
            for mark in &trial.marks {
                let job = self.jobs.of(mark.job);
                let Some((_, step)) = mark.from else { continue };
                if jobs.binary_search(&job).is_err() {
                    continue;
                }
                let running = &self.jobs[job];
                if running.resume_us > self.now_us {
                    // The restart time does not count as trial.
                    let version = running.version;
                    self.events.schedule(running.resume_us, Event::Resumed, job, version);
                    continue;
                }
                let goal = (step + running.steps_per_epoch()) as f64 / running.steps_per_us;
                let at = running.completion_of(goal);
                self.events.schedule(at, Event::EpochCompleted, job, running.version);
            }
        }
    }
}

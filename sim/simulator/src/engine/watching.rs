//! What the placer is told while jobs run: progress, surfaces, the ends of epochs.

use std::cmp::Reverse;
use std::time::Duration;

use wattle_common::messages::window::Neighbour;
use wattle_common::rng::Stream;
use wattle_placer::{JobKey, Progress, Reads};
use wattle_world::GpuModel;

use crate::engine::{Due, Engine, node_id};
use crate::profiles::{WINDOWS_CLOSE_US, WindowInput};
use crate::scenario::Work;
use crate::simulation::Lengths;

/// Queued jobs whose prior is kept fresh. Policies work from the queue's head; a plan that got
/// further is made again once those jobs have theirs.
pub(super) const HEADS_FRESH: usize = 4;

impl Engine<'_> {
    /// The job says how far it is.
    pub(super) fn report(&mut self, job: u32) {
        let now = self.now();
        let lengths = self.options.lengths;
        let running = &mut self.jobs[job as usize];
        running.catch_up(now.as_us());
        if let Some(key) = running.key {
            self.controller.events().job_progressed(key, running.progress(now, lengths));
        }
    }

    /// The job stands at its checkpoint, and says so: what was heard before may be too far.
    pub(super) fn report_standing(&mut self, job: u32) {
        let now = self.now();
        let lengths = self.options.lengths;
        let running = &self.jobs[job as usize];
        if let Some(key) = running.key {
            let said = running.progress(now, lengths);
            self.controller
                .events()
                .job_progressed(key, Progress { steps_per_s: Some(0.0), ..said });
        }
    }

    /// A job that has just come says how long it is, where that is to be known.
    pub(super) fn say_length(&mut self, job: u32, key: JobKey) {
        if !self.is_informed() || self.options.lengths != Lengths::Known {
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

    /// The steps of its whole work.
    fn steps_of(&self, job: u32) -> f64 {
        match self.jobs[job as usize].spec.work {
            Work::Steps(steps) => steps as f64,
            Work::Lasts(span) => span.as_secs_f64() * self.steps_per_s_alone(job),
        }
    }

    /// Jobs have ended before the first comes, where the cluster is to have a past: as many as
    /// come, each drawn from them. So what is foretold of a job rests on jobs like those around it,
    /// and not on these themselves.
    pub(super) fn remember_past(&mut self) {
        let (true, Some(last)) =
            (self.options.lengths == Lengths::Past, self.jobs.len().checked_sub(1))
        else {
            return;
        };
        let mut drawn = Stream::new(self.scenario.seed, "past");
        for _ in 0..=last {
            let job = drawn.below(last as u64 + 1) as u32;
            // In the unit of `wattle_placer::OperatingPoints::unit_rate`.
            let gpus = f64::from(self.jobs[job as usize].spec.gpus.min);
            let work_s = self.steps_of(job) * gpus / self.steps_per_s_alone(job);
            self.controller.events().work_remembered(work_s);
        }
    }

    /// How long a job is said to take alone on the GPUs it asks for: the truth, where the policy
    /// must be told it.
    pub(super) fn duration_said(&self, job: u32) -> Option<Duration> {
        let spec = self.jobs[job as usize].spec;
        if !self.controller.capabilities().needs_exact_durations {
            return spec.duration_estimate;
        }
        Some(match spec.work {
            Work::Lasts(span) => span,
            Work::Steps(steps) => {
                let seconds = steps as f64 / self.steps_per_s_alone(job);
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        })
    }

    /// Where a job fits only some of the cluster's kinds of card, its owner knows what it needs.
    pub(super) fn memory_said(&self, job: u32) -> Option<u64> {
        let needed = self.jobs[job as usize].workload.memory_mib;
        let fits = |gpu: &GpuModel| needed <= gpu.memory_mib;
        let (some, all) = (self.cards.models().any(fits), self.cards.models().all(fits));
        (some && !all).then_some(needed)
    }

    /// Steps a second on the GPUs it asks for, alone and on as few nodes as may be.
    fn steps_per_s_alone(&self, job: u32) -> f64 {
        let running = &self.jobs[job as usize];
        let gpus = running.spec.gpus.min;
        running.workload.steps_per_s(self.cards.first_model(), gpus, self.nodes_for(gpus))
    }

    /// The fewest nodes that hold so many GPUs.
    fn nodes_for(&self, gpus: u32) -> u32 {
        let size = self.controller.state().nodes().first().map_or(1, |node| node.facts.gpus.max(1));
        gpus.div_ceil(size).max(1)
    }

    pub(super) fn close_window(&mut self, job: u32) {
        self.report(job);
        let running = &self.jobs[job as usize];
        let (Some(on), Some(key)) = (&running.on, running.key) else { return };
        let Some((card, place)) = self.cards.first_card(job, on) else { return };
        let Some(profiles) = &mut self.profiles else { return };
        let neighbours = self.cards.neighbours(job, on);
        let spot = on.by_node[0];
        let model = self.cards.model(spot.node);
        let setting = self.cards.setting(spot.node, spot.gpus.trailing_zeros());
        let surface = profiles.window(&WindowInput {
            job: &running.spec.id,
            workload: &running.spec.workload,
            node: node_id(spot.node.index()),
            gpu_type: &model.gpu_type,
            attempt: running.attempts,
            from_us: running.window_from_us,
            until_us: self.now_us,
            gpus_here: wattle_placer::state::gpu_set::bits(spot.gpus).collect(),
            gpus: on.gpu_count(),
            nodes: on.node_count(),
            cap: setting.cap_mw.unwrap_or(model.cap_default),
            clock_max: setting.clock_mhz_max,
            neighbours: neighbours
                .into_iter()
                .map(|other| {
                    let spec = self.jobs[other as usize].spec;
                    Neighbour { job: spec.id.clone(), workload: Some(spec.workload.clone()) }
                })
                .collect(),
            steps_per_s: running.rate * running.steps_per_us * 1e6,
            step: running.step(),
            card,
            place,
        });
        if let Some(surface) = surface {
            self.controller.events().surface_known(key, surface);
            self.consider_probe(key);
        }
        let running = &mut self.jobs[job as usize];
        running.window_from_us = self.now_us;
        running.windows += 1;
        self.expect_window(job);
    }

    pub(super) fn expect_window(&mut self, job: u32) {
        let running = &self.jobs[job as usize];
        if self.profiles.is_some()
            && let Some(after_us) = WINDOWS_CLOSE_US.get(running.windows)
        {
            let at = running.configured_us + after_us;
            self.due.push(Reverse((at, Due::WindowCloses, job, running.version)));
        }
    }

    /// Sees to it that the first `heads` jobs of the queue have the newest prior of their class. It
    /// is asked for anew when the class has a quarter more windows than when it was last, as the
    /// live predictor does.
    pub(super) fn refresh_heads(&mut self, heads: usize) {
        if !self.is_informed() {
            return;
        }
        let all = self.reads == Reads::All;
        let heads = if all { self.controller.state().queue_len() } else { heads };
        let mut fresh = Vec::new();
        for (key, _) in self.controller.state().queue().take(heads) {
            let job = &mut self.jobs[self.by_key[key.index()] as usize];
            let learned =
                self.profiles.as_ref().map_or(0, |profiles| profiles.learned(&job.spec.workload));
            if job.attempts > 0 || job.prior_of.is_some_and(|then| learned * 4 <= then * 5) {
                continue;
            }
            job.prior_of = Some(learned);
            fresh.push((key, &job.spec.id, job.workload, job.spec.gpus));
        }
        let now = self.controller.state().now();
        for (key, id, workload, request) in fresh {
            if let Some(oracle) = &mut self.oracle {
                let shape = oracle.expected_shape(workload, request.min);
                for gpu in self.cards.models() {
                    match oracle.whole(now, id, shape, request, gpu) {
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
            } else if let Some(profiles) = &self.profiles {
                let kinds = self.cards.models().map(|gpu| gpu.gpu_type.as_str());
                for surface in profiles.surfaces(now, id, kinds) {
                    self.controller.events().surface_known(key, surface);
                }
            }
        }
    }

    /// When each of `touched` will have run an epoch since an observation of it began.
    pub(super) fn expect_epochs(&mut self, touched: &[u32]) {
        for (_, observed) in self.controller.state().observed() {
            let Some(seen) = observed.state.observation() else { continue };
            for mark in &seen.marks {
                let job = self.by_key[mark.job.index()];
                let Some((_, step)) = mark.from else { continue };
                if touched.binary_search(&job).is_err() {
                    continue;
                }
                let running = &self.jobs[job as usize];
                if running.resume_us > self.now_us {
                    // What it takes to start is no speed.
                    let version = running.version;
                    self.due.push(Reverse((running.resume_us, Due::GoesOn, job, version)));
                    continue;
                }
                let goal = (step + running.steps_per_epoch()) as f64 / running.steps_per_us;
                let at = running.will_have_done(goal);
                self.due.push(Reverse((at, Due::RanAnEpoch, job, running.version)));
            }
        }
    }
}

//! Planning at one instant: plans of the controller are checked and applied until a plan is empty.

use wattle_common::Timestamp;
use wattle_placer::state::restarts::typical_cost;
use wattle_placer::{Decision, GpuSet, Plan, Reads, Reason, Round};

use crate::engine::Engine;
use crate::engine::reports::QUEUE_HEADS;
use crate::gpus::Shape;
use crate::oracle::Oracle;
use crate::outcome::us;
use crate::scenario::Work;
use crate::simulation::{Restarts, SimulationError};

/// Most planning rounds at one instant. Each round decides about at least one job, so no policy
/// needs nearly as many.
const ROUNDS_MAX: usize = 10_000;

impl Engine<'_> {
    /// Plans and applies the plans until nothing is left to do at this instant.
    pub(super) fn plan_until_stable(&mut self) -> Result<(), SimulationError> {
        for _ in 0..ROUNDS_MAX {
            let Round { plan, reports } = self.plan();
            let violations = self.controller.check(&plan);
            if !violations.is_empty() {
                return Err(SimulationError::Violation {
                    policy: self.controller.policy().name().to_owned(),
                    at: self.now(),
                    violations: self.controller.sentences(&violations),
                });
            }
            self.record_blocked(&plan);
            self.replan.at_us = plan.again_at.map(Timestamp::as_us).filter(|at| *at > self.now_us);
            self.budget.spending.add_round(reports.power_limits.has_changes());
            self.budget.deferred = reports.deferral.waiting.len() as u32;
            let blocked_by = plan.blocked.as_ref().map(|blocked| &blocked.reason);
            self.budget.admission_closed = matches!(blocked_by, Some(Reason::HeldBack { .. }));
            if plan.is_empty() {
                self.replan.idle_plans += 1;
                self.controller.apply(&plan);
                self.enforce_caps();
                self.reconfigure();
                self.controller.follow_expected(&reports);
                return Ok(());
            }
            // Decisions about nodes alone start no job.
            self.replan.idle_plans =
                if plan.decisions.is_empty() { self.replan.idle_plans + 1 } else { 0 };
            let undone = self.apply_decisions(&plan);
            self.enforce_caps();
            self.reconfigure();
            // A next plan differs only after preempted or undone jobs, or with newer priors.
            let priors_are_final =
                self.prediction.oracle.as_ref().is_some_and(Oracle::covers_all_points);
            if !undone && (priors_are_final || !self.reports_surfaces() || self.is_final(&plan)) {
                self.controller.follow_expected(&reports);
                return Ok(());
            }
        }
        Err(SimulationError::NotSettled {
            policy: self.controller.policy().name().to_owned(),
            at: self.now(),
        })
    }

    /// Whether no further plan of this instant can differ from a plan that was applied and stopped no job:
    /// no job waits, and neither node sleep, a budget nor carbon deferral plans for later.
    fn is_final(&self, plan: &Plan) -> bool {
        self.controller.state().queue_len() == 0
            && plan.nodes.is_empty()
            && !self.options.nodes_sleep
            && self.controller.budget().is_none()
            && self.scenario.carbon.is_none()
    }

    /// The controller's plan with the newest priors of all queued jobs that the plan reaches.
    fn plan(&mut self) -> Round {
        let reads_all = self.prediction.reads == Reads::All;
        let mut heads = if reads_all { usize::MAX } else { QUEUE_HEADS };
        loop {
            self.refresh_priors(heads);
            let round = self.controller.plan();
            // The jobs with a decision, and the first one without.
            let reached = round.plan.decisions.len() + 1;
            if !self.reports_surfaces()
                || reached <= heads
                || heads >= self.controller.state().queue_len()
            {
                return round;
            }
            heads = reached.max(2 * heads);
        }
    }

    /// Applies a plan to the controller's state and the hardware. Returns whether a job was
    /// preempted or undone.
    fn apply_decisions(&mut self, plan: &Plan) -> bool {
        self.record_plan(plan);
        // The key of a rejected job is void after the plan is applied.
        for decision in &plan.decisions {
            if let Decision::Reject { job, reason } = decision {
                self.reject(self.jobs.of(*job), reason.to_string());
            }
        }
        self.controller.apply(plan);
        let mut undone = false;
        for decision in &plan.decisions {
            match decision {
                Decision::Start { job, on, .. } => {
                    let job = self.jobs.of(*job);
                    if self.hardware.gpus.is_occupied(on) {
                        self.totals.shared_starts += 1;
                    }
                    self.start(job, on);
                    let now = self.now();
                    self.grid_events.iter_mut().for_each(|events| events.job_starts(now));
                }
                Decision::Stop { job: key, reason, .. } => {
                    if matches!(reason, Reason::Paused { .. }) {
                        self.budget.spending.add_preemption();
                    }
                    let job = self.jobs.of(*key);
                    self.controller.job_stopped(*key);
                    self.stop(job);
                    undone = true;
                }
                Decision::Set { job, .. } => {
                    let job = self.jobs.of(*job);
                    if let Some(on) = self.jobs[job].on.clone() {
                        self.set_gpus(on.gpus());
                        // Co-tenants start a new window too, whichever setting is the lower one.
                        self.hardware.changed.extend(self.hardware.gpus.neighbours(job, &on));
                        self.hardware.changed.push(job);
                    }
                }
                Decision::Undo { job: key, .. } => {
                    let job = self.jobs.of(*key);
                    self.controller.job_stopped(*key);
                    self.undo(job);
                    self.totals.undone += 1;
                    undone = true;
                }
                Decision::Confirm { .. } | Decision::Reject { .. } => {}
            }
        }
        self.apply_node_decisions(plan);
        undone
    }

    fn start(&mut self, job: u32, on: &GpuSet) {
        let (gpus, nodes) = (on.gpu_count(), on.node_count());
        let model = self.hardware.gpus.model(on.by_node[0].node);
        let now_us = self.now_us;
        let running = &mut self.jobs[job];
        let steps_per_us = running.workload.steps_per_s(model, gpus, nodes) / 1e6;
        if running.attempts == 0 {
            (running.steps_per_us, running.work_us) = match running.spec.work {
                // The duration refers to the requested GPU type, else to the first of the cluster.
                Work::Lasts(span) => {
                    let typed = running.spec.gpu_type.is_some();
                    let model = if typed { model } else { self.hardware.gpus.first_model() };
                    let reference = running.workload.steps_per_s(model, gpus, nodes) / 1e6;
                    (reference, us(span) as f64)
                }
                Work::Steps(steps) => (steps_per_us, steps as f64 / steps_per_us),
            };
        } else {
            self.totals.migrations += 1;
        }
        running.base = steps_per_us / running.steps_per_us;
        running.resume_us = now_us;
        if let Some(before) = running.stopped_on.take() {
            let free = match self.options.restarts {
                Restarts::Charged => false,
                Restarts::MovesFree => before == gpus,
                Restarts::Free => true,
            };
            let restart_us = if free { 0 } else { us(typical_cost(gpus)) };
            running.resume_us = now_us + restart_us;
            self.totals.restart_gpu_us += restart_us * u64::from(gpus);
            self.totals.rescales += usize::from(before != gpus);
        }
        running.attempts += 1;
        running.first_start_us.get_or_insert(now_us);
        running.gpus = gpus;
        running.charge(now_us, 0.0, 0.0);
        running.started_us = now_us;
        running.at_us = now_us;
        running.rate = 0.0;
        running.on = Some(on.clone());
        let shape: Shape = (running.workload_index, gpus, nodes);
        self.set_gpus(on.gpus());
        self.hardware.gpus.add(job, shape, on, &mut self.hardware.changed);
        self.record_prediction(job, on);
    }

    /// Stops a job after a checkpoint, without loss of work.
    fn stop(&mut self, job: u32) {
        if let Some(gpus) = self.vacate(job) {
            self.jobs[job].stopped_on = Some(gpus);
        }
        self.report_checkpoint(job);
    }

    /// Takes a job off its GPUs and returns it to the end of its last epoch.
    fn undo(&mut self, job: u32) {
        let gpus = self.vacate(job);
        let running = &mut self.jobs[job];
        let epoch = running.steps_per_epoch();
        let kept = running.step() / epoch * epoch;
        running.done_us = (kept as f64 / running.steps_per_us).min(running.done_us);
        running.stopped_on = gpus.or(running.stopped_on);
        self.report_checkpoint(job);
    }

    /// Takes a job off its GPUs; returns their number.
    fn vacate(&mut self, job: u32) -> Option<u32> {
        let now_us = self.now_us;
        self.end_segment(job);
        let running = &mut self.jobs[job];
        running.charge(now_us, 0.0, 0.0);
        running.catch_up(now_us);
        running.version += 1;
        running.ran_us += now_us - running.started_us;
        let on = running.on.take()?;
        self.hardware.gpus.remove(job, &on, &mut self.hardware.changed);
        self.set_gpus(on.gpus());
        Some(on.gpu_count())
    }
}

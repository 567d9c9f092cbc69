//! The policy is asked until it leaves nothing to do, its plans are checked and carried out.
//!
//! Nothing is decided here.

use wattle_common::Timestamp;
use wattle_placer::allocation::restart_cost::restart;
use wattle_placer::{Decision, GpuSet, Plan, Reads, Reason};

use crate::cards::Shape;
use crate::engine::Engine;
use crate::engine::watching::HEADS_FRESH;
use crate::oracle::Oracle;
use crate::outcome::us;
use crate::scenario::Work;
use crate::simulation::{Restarts, SimulationError};

/// Rounds a policy may take at one instant before it is called restless: far beyond what any plan
/// needs, since each round places or settles somebody.
const ROUNDS_MAX: usize = 10_000;

impl Engine<'_> {
    /// Asks the policy until it leaves nothing to do, and carries out what it says.
    pub(super) fn decide(&mut self) -> Result<(), SimulationError> {
        for _ in 0..ROUNDS_MAX {
            let plan = self.plan();
            let violations = self.controller.check(&plan);
            if !violations.is_empty() {
                return Err(SimulationError::Violation {
                    policy: self.controller.policy().name().to_owned(),
                    at: self.now(),
                    violations,
                });
            }
            self.record_blocked(&plan);
            self.again_us = plan.again_at.map(Timestamp::as_us).filter(|at| *at > self.now_us);
            self.deferred = plan.deferred;
            let held = plan.blocked.as_ref().map(|blocked| &blocked.reason);
            self.held_back = matches!(held, Some(Reason::HeldBack { .. }));
            if plan.is_empty() {
                self.idle_looks += 1;
                self.controller.apply(&plan);
                self.enforce_caps();
                self.reconfigure();
                return Ok(());
            }
            // Nodes that only sleep and wake bring nobody on.
            self.idle_looks = if plan.decisions.is_empty() { self.idle_looks + 1 } else { 0 };
            let undone = self.carry_out(&plan);
            self.enforce_caps();
            self.reconfigure();
            // Without undone jobs or fresh priors an applied plan leaves nothing to do.
            let stands = self.oracle.as_ref().is_some_and(Oracle::is_whole);
            if !undone && (stands || !self.is_informed()) {
                return Ok(());
            }
        }
        Err(SimulationError::Restless {
            policy: self.controller.policy().name().to_owned(),
            at: self.now(),
        })
    }

    /// What the policy says once every job of the queue that it got to has its newest prior.
    fn plan(&mut self) -> Plan {
        let reads_all = self.reads == Reads::All;
        let mut heads = if reads_all { usize::MAX } else { HEADS_FRESH };
        loop {
            self.refresh_heads(heads);
            let plan = self.controller.plan();
            // The jobs it decided on, and the one it stopped at.
            let reached = plan.decisions.len() + 1;
            if !self.is_informed()
                || reached <= heads
                || heads >= self.controller.state().queue_len()
            {
                return plan;
            }
            heads = reached.max(2 * heads);
        }
    }

    /// Applies a plan to the problem and to the cards; true where somebody was undone.
    fn carry_out(&mut self, plan: &Plan) -> bool {
        self.record_plan(plan);
        // A rejected job's key is void once the plan is applied.
        for decision in &plan.decisions {
            if let Decision::Reject { job, reason } = decision {
                let id = &self.jobs[self.by_key[job.index()] as usize].spec.id;
                self.rejected.push(format!("job {id} was rejected: {reason}"));
            }
        }
        self.controller.apply(plan);
        self.end_probes();
        let mut undone = false;
        for decision in &plan.decisions {
            match decision {
                Decision::Start { job, on, .. } => {
                    let job = self.by_key[job.index()];
                    if self.cards.is_occupied(on) {
                        self.outcome.shared_starts += 1;
                    }
                    self.start(job, on);
                }
                Decision::Stop { job: key, reason, .. } => {
                    if matches!(reason, Reason::Paused { .. }) {
                        self.watch.paused();
                    }
                    let job = self.by_key[key.index()];
                    self.controller.job_stopped(*key);
                    self.stop(job);
                    undone = true;
                }
                Decision::Set { job, .. } => {
                    let job = self.by_key[job.index()];
                    if let Some(on) = self.jobs[job as usize].on.clone() {
                        self.set_gpus(on.gpus());
                        // Co-tenants start a new window too, whichever setting is the lower one.
                        self.touched.extend(self.cards.neighbours(job, &on));
                        self.touched.push(job);
                    }
                }
                Decision::Undo { job: key, .. } => {
                    let job = self.by_key[key.index()];
                    self.controller.job_stopped(*key);
                    self.undo(job);
                    self.outcome.undone += 1;
                    undone = true;
                }
                Decision::Settle { .. } | Decision::Reject { .. } => {}
            }
        }
        self.order_nodes(plan);
        undone
    }

    fn start(&mut self, job: u32, on: &GpuSet) {
        let (gpus, nodes) = (on.gpu_count(), on.node_count());
        let model = self.cards.model(on.by_node[0].node);
        let now_us = self.now_us;
        let running = &mut self.jobs[job as usize];
        let steps_per_us = running.workload.steps_per_s(model, gpus, nodes) / 1e6;
        if running.attempts == 0 {
            (running.steps_per_us, running.work_us) = match running.spec.work {
                // So long on the kind it asks for or the cluster's first, placed like this.
                Work::Lasts(span) => {
                    let asked = running.spec.gpu_type.is_some();
                    let model = if asked { model } else { self.cards.first_model() };
                    let there = running.workload.steps_per_s(model, gpus, nodes) / 1e6;
                    (there, us(span) as f64)
                }
                Work::Steps(steps) => (steps_per_us, steps as f64 / steps_per_us),
            };
        } else {
            self.outcome.migrations += 1;
        }
        running.base = steps_per_us / running.steps_per_us;
        running.resume_us = now_us;
        if let Some(before) = running.stopped_on.take() {
            let free = match self.options.restarts {
                Restarts::Charged => false,
                Restarts::MovesFree => before == gpus,
                Restarts::Free => true,
            };
            let restart_us = if free { 0 } else { us(restart(gpus)) };
            running.resume_us = now_us + restart_us;
            self.outcome.restart_gpu_us += restart_us * u64::from(gpus);
            self.outcome.rescales += usize::from(before != gpus);
        }
        running.attempts += 1;
        running.started_us = now_us;
        running.at_us = now_us;
        running.rate = 0.0;
        running.on = Some(on.clone());
        let shape: Shape = (running.workload_index, gpus, nodes);
        self.set_gpus(on.gpus());
        self.cards.add(job, shape, on, &mut self.touched);
        self.placed(job, on);
    }

    /// It has written a checkpoint and stops: nothing is lost.
    fn stop(&mut self, job: u32) {
        if let Some(gpus) = self.leave(job) {
            self.jobs[job as usize].stopped_on = Some(gpus);
        }
        self.report_standing(job);
    }

    /// Back to the end of the last epoch: what was done since is lost.
    fn undo(&mut self, job: u32) {
        let left = self.leave(job);
        let running = &mut self.jobs[job as usize];
        let epoch = running.steps_per_epoch();
        let kept = running.step() / epoch * epoch;
        running.done_us = (kept as f64 / running.steps_per_us).min(running.done_us);
        running.stopped_on = left.or(running.stopped_on);
        self.report_standing(job);
    }

    /// It is on its GPUs no more; how many they were.
    fn leave(&mut self, job: u32) -> Option<u32> {
        let now_us = self.now_us;
        self.end_stretch(job);
        let running = &mut self.jobs[job as usize];
        running.catch_up(now_us);
        running.version += 1;
        running.ran_us += now_us - running.started_us;
        let on = running.on.take()?;
        self.cards.remove(job, &on, &mut self.touched);
        self.set_gpus(on.gpus());
        Some(on.gpu_count())
    }
}

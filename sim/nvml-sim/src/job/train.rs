//! The training loop: look how far the job is, say so, keep it, wait.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::progress::Progress;

use super::checkpoint::Checkpoint;
use super::peers::Peers;
use super::report::Reporter;
use super::signals::Signals;
use super::{JobError, Setup};
use crate::node::{Tenancy, View, wall_us};
use crate::state::{Claim, NANOSTEPS, Phase};

/// How often (wall) a job reports its steps.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// How often (wall) a job on several nodes looks at the others.
const PEER_EVERY: Duration = Duration::from_millis(20);
/// Never waits less (wall): an epoch that ends sooner is seen with the next.
const WAIT_LEAST: Duration = Duration::from_millis(2);
/// How long (wall) a missing peer is waited for, in microseconds, as a collective would time out.
const PEER_GRACE_US: u64 = 5_000_000;
/// How long (wall) a process that has ended stays to be seen by its peers, in microseconds.
const LINGER_US: u64 = 1_000_000;

/// How a job ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its steps are done.
    Done,
    /// It was told to stop and has kept how far it is.
    Checkpointed,
}

/// What the others are doing.
enum Together {
    /// All are there; this one goes on.
    Yes,
    /// Somebody is missing; this one waits.
    No,
    /// The job ends here, because it has ended elsewhere.
    Ended,
}

struct Training<'a> {
    setup: &'a Setup,
    signals: &'a Signals,
    tenancy: Tenancy,
    peers: Option<Peers>,
    /// Whether all processes have been there at once.
    met: bool,
    /// When all were last there (wall, microseconds).
    met_us: u64,
    /// Steps done by earlier starts.
    before: u64,
}

/// A line for whoever reads the job's log; a log that is gone stops no training.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Runs the prepared job.
pub(super) fn train(setup: &Setup, signals: &Signals) -> Result<Outcome, JobError> {
    let before = match &setup.checkpoint_dir {
        Some(dir) => Checkpoint::read(dir, &setup.request.workload)?.map_or(0, |kept| kept.steps),
        None => 0,
    };
    let tenancy = setup.node.claim(&setup.request)?;
    let several = setup.request.nodes > 1;
    let peers = several.then(|| Peers::new(Arc::clone(&setup.node), setup.request.clone()));
    let mut training =
        Training { setup, signals, tenancy, peers, met: false, met_us: wall_us(), before };
    training.greet();
    let outcome = if setup.request.rank == 0 { training.lead() } else { training.follow() };
    // Who fails just goes, and the others find it gone.
    let outcome = outcome?;
    training.leave()?;
    Ok(outcome)
}

impl Training<'_> {
    fn greet(&self) {
        let (request, node) = (&self.setup.request, &self.setup.node);
        let cards: Vec<_> =
            (0..64).filter(|i| request.cards & (1 << i) != 0).map(|i| i.to_string()).collect();
        say(format_args!(
            "{}: {} on {} of {} (GPU {}), rank {} of {}, step {} of {}, {} steps an epoch",
            request.job,
            request.workload,
            node.gpu().nvml_name,
            node.id(),
            cards.join(","),
            request.rank,
            request.nodes,
            self.before.min(self.setup.steps_total),
            self.setup.steps_total,
            self.setup.steps_per_epoch,
        ));
    }

    /// Rank 0: counts, reports and keeps the steps.
    fn lead(&mut self) -> Result<Outcome, JobError> {
        let setup = self.setup;
        let reporter = Reporter::new(setup.progress.clone());
        let every = setup.checkpoint_every.unwrap_or(setup.steps_per_epoch).max(1);
        let mut epoch = self.before / setup.steps_per_epoch;
        let mut kept = self.before / every;
        let mut reported_us = 0;
        let mut steps = 0;
        loop {
            let together = self.meet()?;
            let (view, claim) = self.claim()?;
            // A look beside an event may count a moment of it twice (`Node::energy_shown`).
            steps = self.steps(&view, &claim).max(steps);
            if steps >= setup.steps_total {
                self.keep(steps)?;
                reporter.send_last(&self.progress(steps), self.signals);
                say(format_args!("done: {steps} steps"));
                return Ok(Outcome::Done);
            }
            if matches!(together, Together::Ended) {
                return self.stop(&reporter);
            }
            let (epoch_now, kept_now) = (steps / setup.steps_per_epoch, steps / every);
            if kept_now > kept {
                kept = kept_now;
                if setup.checkpoint_dir.is_some() {
                    self.keep(steps)?;
                }
            }
            let due = wall_us().saturating_sub(reported_us) >= REPORT_EVERY.as_micros() as u64;
            if epoch_now > epoch || due {
                reported_us = wall_us();
                reporter.send(&self.progress(steps));
            }
            if epoch_now > epoch {
                epoch = epoch_now;
                say(format_args!(
                    "epoch {epoch} of {}: step {steps}, {:.2} steps/s",
                    setup.steps_total.div_ceil(setup.steps_per_epoch),
                    claim.rate() as f64 / NANOSTEPS,
                ));
            }
            let next = ((epoch + 1) * setup.steps_per_epoch).min((kept + 1) * every);
            let pause = self.pause(&view, &claim, next.min(setup.steps_total));
            if self.signals.wait(pause).is_some() {
                return self.stop(&reporter);
            }
        }
    }

    /// Every other rank: computes along, until rank 0 has ended.
    fn follow(&mut self) -> Result<Outcome, JobError> {
        loop {
            let together = self.meet()?;
            self.claim()?;
            if matches!(together, Together::Ended) {
                say(format_args!("rank 0 has ended"));
                return Ok(Outcome::Done);
            }
            if self.signals.wait(PEER_EVERY).is_some() {
                say(format_args!("told to stop; rank 0 keeps the steps"));
                return Ok(Outcome::Checkpointed);
            }
        }
    }

    /// Writes a checkpoint because the job was told to go.
    fn stop(&self, reporter: &Reporter) -> Result<Outcome, JobError> {
        let (view, claim) = self.claim()?;
        let steps = self.steps(&view, &claim);
        if self.setup.checkpoint_dir.is_none() {
            return Err(JobError::NotKept(steps - self.before));
        }
        self.keep(steps)?;
        reporter.send_last(&self.progress(steps), self.signals);
        say(format_args!("told to stop: checkpoint at step {steps}"));
        Ok(Outcome::Checkpointed)
    }

    /// Looks at the others and sets this process's pace by them.
    fn meet(&mut self) -> Result<Together, JobError> {
        let request = &self.setup.request;
        let own = request.cards.count_ones();
        let Some(peers) = &mut self.peers else {
            self.set(Phase::Running, own, u64::MAX)?;
            return Ok(Together::Yes);
        };
        let seen = peers.look();
        let ended = |rank_matters: &dyn Fn(u32) -> bool| {
            seen.iter().any(|peer| rank_matters(peer.rank) && peer.phase == Phase::Ended)
        };
        // Rank 0 decides; it also ends when any other was told to.
        if if request.rank == 0 { ended(&|_| true) } else { ended(&|rank| rank == 0) } {
            return Ok(Together::Ended);
        }
        if seen.len() as u32 + 1 == request.nodes && !ended(&|_| true) {
            self.met = true;
            self.met_us = wall_us();
            let total = own + seen.iter().map(|peer| peer.cards).sum::<u32>();
            let slowest = seen.iter().map(|peer| peer.rate_here).min().unwrap_or(u64::MAX);
            self.set(Phase::Running, total, slowest)?;
            return Ok(Together::Yes);
        }
        if self.met && wall_us().saturating_sub(self.met_us) > PEER_GRACE_US {
            let there = |rank: &u32| *rank == request.rank || seen.iter().any(|p| p.rank == *rank);
            let gone = (0..request.nodes).find(|rank| !there(rank)).unwrap_or(0);
            return Err(JobError::PeerGone(gone));
        }
        self.set(Phase::Waiting, own, u64::MAX)?;
        Ok(Together::No)
    }

    /// Changes the claim where it is not so already.
    fn set(&self, phase: Phase, gpus_total: u32, rate_max: u64) -> Result<(), JobError> {
        let (_, claim) = self.claim()?;
        if (claim.phase, claim.gpus_total, claim.rate_max) != (phase, gpus_total, rate_max) {
            let key = self.tenancy.key();
            self.setup.node.update(|state, physics, at| {
                state.change_claim(physics, at, key, (phase, gpus_total, rate_max))
            })?;
        }
        Ok(())
    }

    /// This process's claim, now.
    fn claim(&self) -> Result<(View, Claim), JobError> {
        let view = self.setup.node.look()?;
        let (place, serial) = self.tenancy.key();
        let claim = view.state.claims.get(place).and_then(Option::as_ref);
        let claim =
            claim.filter(|claim| claim.serial == serial).ok_or(JobError::ClaimLost)?.clone();
        if view.state.has_lost_card(&claim) {
            return Err(JobError::CardLost);
        }
        Ok((view, claim))
    }

    /// Steps of the job since its very beginning.
    fn steps(&self, view: &View, claim: &Claim) -> u64 {
        (self.before + view.state.steps(claim, view.at)).min(self.setup.steps_total)
    }

    fn progress(&self, steps: u64) -> Progress {
        Progress {
            job: self.setup.request.job.clone(),
            step: steps,
            epoch: u32::try_from(steps / self.setup.steps_per_epoch).ok(),
            steps_per_epoch: Some(self.setup.steps_per_epoch),
            steps_total: Some(self.setup.steps_total),
            global_batch: Some(self.setup.global_batch),
        }
    }

    fn keep(&self, steps: u64) -> Result<(), JobError> {
        let Some(dir) = &self.setup.checkpoint_dir else {
            return Ok(());
        };
        let request = &self.setup.request;
        Checkpoint { job: request.job.clone(), workload: request.workload.clone(), steps }
            .write(dir)
    }

    /// How long (wall) until there is something to do: at the latest the next report.
    fn pause(&self, view: &View, claim: &Claim, next: u64) -> Duration {
        let longest = if self.peers.is_some() { PEER_EVERY } else { REPORT_EVERY };
        let here = next.saturating_sub(self.before);
        let until = view.state.until_steps(claim, view.at, here);
        let until = until.map_or(longest, |span| self.setup.node.clock().wall_span(span));
        until.clamp(WAIT_LEAST, longest)
    }

    /// Stays for a moment, idle, so that the others see that this was no accident.
    fn leave(&mut self) -> Result<(), JobError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let own = self.setup.request.cards.count_ones();
        let key = self.tenancy.key();
        self.setup.node.update(|state, physics, at| {
            state.change_claim(physics, at, key, (Phase::Ended, own, u64::MAX))
        })?;
        let until = wall_us().saturating_add(LINGER_US);
        let leads = self.setup.request.rank == 0;
        while wall_us() < until {
            let seen = peers.look();
            let known = |rank0_only: bool| seen.iter().any(|p| !rank0_only || p.rank == 0);
            let awaited = if leads {
                known(false)
            } else {
                seen.iter().any(|peer| peer.rank == 0 && peer.phase != Phase::Ended)
            };
            if !awaited {
                break;
            }
            let _ = self.signals.wait(PEER_EVERY);
        }
        Ok(())
    }
}

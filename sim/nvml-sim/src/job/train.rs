//! The training loop: observe the steps, report them, write checkpoints, wait.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::progress::Progress;

use super::checkpoint::Checkpoint;
use super::peers::{Peer, Peers};
use super::report::Reporter;
use super::signals::Signals;
use super::{JobError, Setup};
use crate::node::{Snapshot, Tenancy, wall_us};
use crate::state::{Claim, NANOSTEPS, Phase};

/// Interval between progress reports (wall time while the clock is not held).
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Interval between observations of peers (wall time).
const PEER_EVERY: Duration = Duration::from_millis(20);
/// Shortest wait (wall time); epochs that end sooner are observed together.
const WAIT_MIN: Duration = Duration::from_millis(2);
/// The same while the clock is held: polling is work for which it is held.
const HELD_WAIT_MIN: Duration = Duration::from_millis(15);
/// Timeout for a missing peer (wall time while the clock is not held, microseconds), like that of a collective operation.
const PEER_GRACE_US: u64 = 5_000_000;
/// How long an ended process stays visible to its peers (wall time, microseconds).
const LINGER_US: u64 = 1_000_000;

/// How a job ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps completed.
    Done,
    /// Stopped by a signal, with a checkpoint.
    Checkpointed,
}

/// State of the peers.
enum Sync {
    /// All peers are present; the job runs.
    Ready,
    /// A peer is missing; this process waits.
    Waiting,
    /// The job has ended on a peer.
    Ended,
}

struct Training<'a> {
    setup: &'a Setup,
    signals: &'a Signals,
    tenancy: Tenancy,
    peers: Option<Peers>,
    /// Whether all processes have been present at the same time.
    synced: bool,
    /// When all were last present: wall time less that for which the clock was held, microseconds.
    synced_us: u64,
    /// Steps completed by earlier attempts.
    restored_steps: u64,
    start_up: StartUp,
    /// Steps that the node counted during the start-up. They are subtracted.
    start_up_steps: u64,
}

/// The start-up of an attempt: the GPUs draw the power of training, and no step completes.
#[derive(Clone, Copy)]
enum StartUp {
    /// Not begun: peers are missing.
    Lasts(Duration),
    /// In progress.
    Until(Timestamp),
    /// Complete, or there was none.
    Over,
}

/// Writes a log line to stdout. Errors are ignored: a closed log does not stop training.
fn log(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Runs the prepared job.
pub(super) fn train(setup: &Setup, signals: &Signals) -> Result<Outcome, JobError> {
    let checkpoint = match &setup.checkpoint_dir {
        Some(dir) => Checkpoint::read(dir, &setup.request.workload)?,
        None => None,
    };
    let resumes = checkpoint.is_some() && !setup.restart.is_zero();
    let start_up = if resumes { StartUp::Lasts(setup.restart) } else { StartUp::Over };
    let restored_steps = checkpoint.map_or(0, |checkpoint| checkpoint.steps);
    let tenancy = setup.node.claim(&setup.request)?;
    let several = setup.request.nodes > 1;
    let peers = several.then(|| Peers::new(Arc::clone(&setup.node), setup.request.clone()));
    let mut training = Training {
        setup,
        signals,
        tenancy,
        peers,
        synced: false,
        synced_us: setup.node.granted_us(),
        restored_steps,
        start_up,
        start_up_steps: 0,
    };
    training.log_start();
    let outcome =
        if setup.request.rank == 0 { training.run_leader() } else { training.run_follower() };
    // A process that fails exits at once; its peers detect the missing claim.
    let outcome = outcome?;
    training.linger()?;
    Ok(outcome)
}

impl Training<'_> {
    fn log_start(&self) {
        let (request, node) = (&self.setup.request, &self.setup.node);
        let gpus: Vec<_> =
            (0..64).filter(|i| request.gpus & (1 << i) != 0).map(|i| i.to_string()).collect();
        log(format_args!(
            "{}: {} on {} of {} (GPU {}), rank {} of {}, step {} of {}, {} steps per epoch",
            request.job,
            request.workload,
            node.model().nvml_name,
            node.id(),
            gpus.join(","),
            request.rank,
            request.nodes,
            self.restored_steps.min(self.setup.steps_total),
            self.setup.steps_total,
            self.setup.steps_per_epoch,
        ));
    }

    /// Rank 0: counts and reports the steps and writes checkpoints.
    fn run_leader(&mut self) -> Result<Outcome, JobError> {
        let setup = self.setup;
        let reporter = Reporter::new(setup.progress.clone());
        let every = setup.checkpoint_every.unwrap_or(setup.steps_per_epoch).max(1);
        let mut epoch = self.restored_steps / setup.steps_per_epoch;
        let mut saved = self.restored_steps / every;
        let mut reported_us = 0;
        let mut steps = 0;
        loop {
            let sync = self.sync()?;
            let (snapshot, claim) = self.claim()?;
            self.observe_start_up(&sync, &snapshot, &claim);
            // Observations during an event may decrease slightly (see `Node::energy_counter`).
            steps = self.steps(&snapshot, &claim).max(steps);
            if steps >= setup.steps_total {
                self.save(steps)?;
                reporter.send_last(&self.progress(steps), self.signals);
                log(format_args!("done: {steps} steps"));
                return Ok(Outcome::Done);
            }
            if matches!(sync, Sync::Ended) {
                return self.stop(&reporter);
            }
            let (epoch_now, saved_now) = (steps / setup.steps_per_epoch, steps / every);
            if saved_now > saved {
                saved = saved_now;
                if setup.checkpoint_dir.is_some() {
                    self.save(steps)?;
                }
            }
            let due = setup.node.granted_us().saturating_sub(reported_us)
                >= REPORT_EVERY.as_micros() as u64;
            let trains = matches!(self.start_up, StartUp::Over);
            if epoch_now > epoch || (due && trains) {
                reported_us = setup.node.granted_us();
                reporter.send(&self.progress(steps));
            }
            if epoch_now > epoch {
                epoch = epoch_now;
                log(format_args!(
                    "epoch {epoch} of {}: step {steps}, {:.2} steps/s",
                    setup.steps_total.div_ceil(setup.steps_per_epoch),
                    claim.rate() as f64 / NANOSTEPS,
                ));
            }
            let next = ((epoch + 1) * setup.steps_per_epoch).min((saved + 1) * every);
            let pause = self.pause(&snapshot, &claim, next.min(setup.steps_total));
            if self.signals.wait(pause).is_some() {
                return self.stop(&reporter);
            }
        }
    }

    /// Other ranks: run until rank 0 has ended.
    fn run_follower(&mut self) -> Result<Outcome, JobError> {
        loop {
            let sync = self.sync()?;
            self.claim()?;
            if matches!(sync, Sync::Ended) {
                log(format_args!("rank 0 has ended"));
                return Ok(Outcome::Done);
            }
            if self.signals.wait(PEER_EVERY).is_some() {
                log(format_args!("stopped by a signal; rank 0 writes the checkpoint"));
                return Ok(Outcome::Checkpointed);
            }
        }
    }

    /// Updates the start-up: it begins when all peers are present.
    fn observe_start_up(&mut self, sync: &Sync, snapshot: &Snapshot, claim: &Claim) {
        if let (StartUp::Lasts(span), Sync::Ready) = (self.start_up, sync) {
            self.start_up = StartUp::Until(snapshot.at + span);
        }
        if matches!(self.start_up, StartUp::Over) {
            return;
        }
        self.start_up_steps = snapshot.state.steps(claim, snapshot.at);
        if matches!(self.start_up, StartUp::Until(end) if snapshot.at >= end) {
            self.start_up = StartUp::Over;
        }
    }

    /// Stops after a signal, with a checkpoint.
    fn stop(&mut self, reporter: &Reporter) -> Result<Outcome, JobError> {
        let (snapshot, claim) = self.claim()?;
        self.observe_start_up(&Sync::Ended, &snapshot, &claim);
        let steps = self.steps(&snapshot, &claim);
        if self.setup.checkpoint_dir.is_none() {
            return Err(JobError::StepsLost(steps - self.restored_steps));
        }
        self.save(steps)?;
        reporter.send_last(&self.progress(steps), self.signals);
        log(format_args!("stopped by a signal: checkpoint at step {steps}"));
        Ok(Outcome::Checkpointed)
    }

    /// Observes the peers and sets the phase and rate of this process.
    fn sync(&mut self) -> Result<Sync, JobError> {
        let request = &self.setup.request;
        let own = request.gpus.count_ones();
        let Some(peers) = &mut self.peers else {
            self.set(Phase::Running, own, u64::MAX)?;
            return Ok(Sync::Ready);
        };
        let present = peers.observe();
        let has_ended = |peer: &Peer| peer.phase == Phase::Ended;
        let peer_ended = present.iter().any(has_ended);
        let leader_ended = present.iter().any(|peer| peer.rank == 0 && has_ended(peer));
        // Rank 0 ends if any peer has ended; other ranks end with rank 0.
        let job_ended = if request.rank == 0 { peer_ended } else { leader_ended };
        if job_ended {
            return Ok(Sync::Ended);
        }
        if present.len() as u32 + 1 == request.nodes && !peer_ended {
            self.synced = true;
            self.synced_us = self.setup.node.granted_us();
            let total = own + present.iter().map(|peer| peer.gpus).sum::<u32>();
            let slowest = present.iter().map(|peer| peer.local_rate).min().unwrap_or(u64::MAX);
            self.set(Phase::Running, total, slowest)?;
            return Ok(Sync::Ready);
        }
        let absent_us = self.setup.node.granted_us().saturating_sub(self.synced_us);
        if self.synced && absent_us > PEER_GRACE_US {
            let is_present =
                |rank: &u32| *rank == request.rank || present.iter().any(|p| p.rank == *rank);
            let missing = (0..request.nodes).find(|rank| !is_present(rank)).unwrap_or(0);
            return Err(JobError::PeerDied(missing));
        }
        self.set(Phase::Waiting, own, u64::MAX)?;
        Ok(Sync::Waiting)
    }

    /// Updates the claim if it differs.
    fn set(&self, phase: Phase, gpus_total: u32, peer_rate: u64) -> Result<(), JobError> {
        let (_, claim) = self.claim()?;
        if (claim.phase, claim.gpus_total, claim.peer_rate) != (phase, gpus_total, peer_rate) {
            let key = self.tenancy.key();
            self.setup.node.update(|state, hardware, at| {
                state.change_claim(hardware, at, key, (phase, gpus_total, peer_rate))
            })?;
        }
        Ok(())
    }

    /// The current claim of this process.
    fn claim(&self) -> Result<(Snapshot, Claim), JobError> {
        let snapshot = self.setup.node.observe()?;
        let (place, serial) = self.tenancy.key();
        let claim = snapshot.state.claims.get(place).and_then(Option::as_ref);
        let claim =
            claim.filter(|claim| claim.serial == serial).ok_or(JobError::ClaimLost)?.clone();
        if snapshot.state.has_lost_gpu(&claim) {
            return Err(JobError::GpuLost);
        }
        Ok((snapshot, claim))
    }

    /// Steps of the job over all attempts.
    fn steps(&self, snapshot: &Snapshot, claim: &Claim) -> u64 {
        let attempt = snapshot.state.steps(claim, snapshot.at).saturating_sub(self.start_up_steps);
        (self.restored_steps + attempt).min(self.setup.steps_total)
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

    fn save(&self, steps: u64) -> Result<(), JobError> {
        let Some(dir) = &self.setup.checkpoint_dir else {
            return Ok(());
        };
        let request = &self.setup.request;
        Checkpoint { job: request.job.clone(), workload: request.workload.clone(), steps }
            .write(dir)
    }

    /// Wall time until the end of the start-up or the step `next`, at most the report interval.
    fn pause(&self, snapshot: &Snapshot, claim: &Claim, next: u64) -> Duration {
        let longest = if self.peers.is_some() { PEER_EVERY } else { REPORT_EVERY };
        let until = match self.start_up {
            StartUp::Lasts(_) => None,
            StartUp::Until(end) => Some(end.since(snapshot.at)),
            StartUp::Over => {
                let remaining = next.saturating_sub(self.restored_steps) + self.start_up_steps;
                snapshot.state.until_steps(claim, snapshot.at, remaining)
            }
        };
        let until = until.map_or(longest, |span| self.setup.node.clock().wall_span(span));
        let shortest = if self.setup.node.is_held() { HELD_WAIT_MIN } else { WAIT_MIN };
        until.clamp(shortest, longest)
    }

    /// Stays visible as ended until all peers have noticed or [`LINGER_US`] has passed.
    fn linger(&mut self) -> Result<(), JobError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let own = self.setup.request.gpus.count_ones();
        let key = self.tenancy.key();
        self.setup.node.update(|state, hardware, at| {
            state.change_claim(hardware, at, key, (Phase::Ended, own, u64::MAX))
        })?;
        let until = wall_us().saturating_add(LINGER_US);
        let is_leader = self.setup.request.rank == 0;
        while wall_us() < until {
            let present = peers.observe();
            let awaited = if is_leader {
                !present.is_empty()
            } else {
                present.iter().any(|peer| peer.rank == 0 && peer.phase != Phase::Ended)
            };
            if !awaited {
                break;
            }
            let _ = self.signals.wait(PEER_EVERY);
        }
        Ok(())
    }
}

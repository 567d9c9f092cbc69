//! The machine's part of the ledger: continues an earlier run, counts energy, closes entries, saves state.

use wattle_common::comparison::{ComparedEnergy, DefaultRatio};
use wattle_common::messages::UnknownCause;
use wattle_common::units::Energy;
use wattle_common::{GpuIndex, JobId, Timestamp};

use crate::gpu_tracker::{AttributedSample, GpuIdentity, GpuTracker, unmeasured};
use crate::machine::{Action, ProfilerMachine};
use crate::resume::State;

/// Share of the ledger's interval after which an entry that was not stored is sent again: 1/10.
const RETRY_PARTS: u32 = 10;
/// Share of the ledger's interval after which the first entry ends: 1/5. An early end separates the energy of
/// the time without a profiler. No job starts below a power limit before the first entry of its node, and an entry
/// shows the power of an idle GPU from 10 s on.
const FIRST_PARTS: u32 = 5;

impl ProfilerMachine {
    pub(super) fn gpus_found(&mut self, now: Timestamp, found: Vec<GpuIdentity>) {
        self.resume(now);
        for identity in found {
            let gap_max = self.settings.gap_max;
            let tracker = self.gpus.entry(identity.gpu).or_insert_with(|| GpuTracker::new(gap_max));
            if tracker.uuid == identity.uuid {
                continue;
            }
            // The first GPU at this index, or another one.
            let mut replaced = std::mem::replace(tracker, GpuTracker::new(gap_max));
            if let Some(resumed) = &mut self.resumed {
                let gpus = &mut resumed.state.gpus;
                if let Some(at) = gpus.iter().position(|gpu| gpu.uuid == identity.uuid) {
                    tracker.resume(gpus.remove(at), resumed.cause, gap_max);
                }
            }
            tracker.uuid = identity.uuid;
            tracker.gpu_type = identity.gpu_type;
            let undecided = replaced.give_up_gap(identity.gpu);
            let unread = replaced.measure.read_at();
            let unread = unread.map(|at| unmeasured(identity.gpu, UnknownCause::GpuLost, at, now));
            for unknown in undecided.into_iter().chain(unread) {
                self.ledger.spend(identity.gpu, unknown.energy_mj);
                self.ledger.add_unknown(unknown);
            }
        }
    }

    /// Converts the state of an earlier run to this run's clock, once.
    fn resume(&mut self, now: Timestamp) {
        let Some(earlier) = self.earlier.take() else { return };
        let step_min = self.settings.clock_step_min;
        self.resumed = Some(earlier.resume(now, self.boot.as_ref(), step_min));
    }

    /// Continues the earlier run's ledger, or starts a new one with the first reading.
    pub(super) fn begin_ledger(&mut self, now: Timestamp) {
        if self.ledger.from().is_some() {
            return;
        }
        self.resume(now);
        let every = self.settings.ledger_every;
        let Some(resumed) = &mut self.resumed else {
            self.ledger.begin(now);
            self.ledger_at = now + every / FIRST_PARTS;
            return;
        };
        let until = resumed.state.until_us;
        let host_from = resumed.on_since.map_or(until, |on_since| on_since.max(until));
        match resumed.state.open.take() {
            Some(open) => self.ledger.resume(open, host_from),
            None => {
                self.ledger.begin(until);
                self.ledger.host_from(host_from);
            }
        }
        self.ledger_at = now + every / FIRST_PARTS;
    }

    /// Counts the energy of a reading.
    pub(super) fn account(&mut self, gpu: GpuIndex, sample: &AttributedSample) {
        if let Some(owned) = sample.owned {
            self.ledger.spend(gpu, owned.energy);
            let is_shared = sample.tenants.len() > 1;
            for tenant in &sample.tenants {
                let (Some(job), Some(energy)) = (&tenant.job, tenant.energy) else { continue };
                let local = self.jobs.local.get(job);
                let admission = local.and_then(|local| local.admission.as_ref());
                let declared = self.jobs.declared(job);
                let user = declared.and_then(|d| d.user.as_ref());
                let project = declared.and_then(|d| d.project.as_ref());
                let ratio = self.default_ratio(gpu, job, sample).filter(|_| !is_shared);
                let compared = ratio.map(|ratio| ComparedEnergy::new(energy, owned.span, ratio));
                self.ledger.attribute(job, admission, user, project, energy, compared);
                let by_gpu = self.attributed.entry(job.clone()).or_default();
                let spent = by_gpu.entry(gpu).or_default();
                spent.energy += energy;
                spent.span += owned.span;
            }
        }
        if let Some(unknown) = &sample.unknown {
            // Of a GPU without a reading the entry has no energy, not even none.
            let is_measured = unknown.energy_mj > Energy::ZERO || !unknown.unmeasured;
            if sample.owned.is_none() && is_measured {
                self.ledger.spend(gpu, unknown.energy_mj);
            }
            self.ledger.add_unknown(unknown.clone());
        }
    }

    /// The default setting against the one in force on a GPU of a job; `None`: no prediction compares them,
    /// or the setting in force is not known. A setting that was only advised, or is not applied yet, is not in
    /// force.
    fn default_ratio(
        &self,
        gpu: GpuIndex,
        job: &JobId,
        sample: &AttributedSample,
    ) -> Option<DefaultRatio> {
        let applied = self.applied.get(&gpu)?;
        let is_default = applied.clock_mhz_max.is_none() && sample.cap? >= applied.cap_mw_default?;
        if is_default {
            return Some(DefaultRatio::ONE);
        }
        self.jobs.declared(job).and_then(|_| self.jobs.ratios.get(job).copied())
    }

    /// Number of GPUs of an entry.
    fn gpu_count(&self) -> u32 {
        let resumed = self.resumed.iter().flat_map(|resumed| &resumed.state.gpus);
        let last = self.gpus.keys().copied().chain(resumed.map(|gpu| gpu.gpu)).max();
        last.map_or(0, |last| last + 1)
    }

    /// The state at this instant, for a later run.
    fn state(&self, now: Timestamp) -> State {
        let trackers = self.gpus.iter().filter(|(_, tracker)| !tracker.uuid.is_empty());
        let unfound = self.resumed.iter().flat_map(|resumed| &resumed.state.gpus);
        State {
            until_us: now,
            gpus: trackers
                .filter_map(|(gpu, tracker)| tracker.counter(*gpu))
                .chain(unfound.cloned())
                .collect(),
            pending: self.ledger.pending.clone(),
            open: self.ledger.open(now, self.gpu_count()),
            boot: self.boot.clone(),
        }
    }

    /// Saves the open interval.
    pub(super) fn checkpoint(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.checkpoint_at = now + self.settings.checkpoint_every;
        if self.ledger.from().is_some() {
            self.saved = self.state(now);
            out.push(Action::SaveState(self.saved.clone()));
        }
    }

    /// Adds the intervals without a known owner or measurement until now to the entry that ends now. If
    /// a GPU's energy becomes known later, a later entry contains it.
    fn complete_unknown(&mut self, now: Timestamp) {
        let Some(from) = self.ledger.from() else { return };
        let gap_max = self.settings.gap_max;
        let mut unknown = Vec::new();
        for (gpu, tracker) in &mut self.gpus {
            unknown.extend(tracker.give_up_gap(*gpu));
            unknown.extend(tracker.unread(*gpu, now, gap_max));
        }
        if let Some(resumed) = &self.resumed {
            for gpu in &resumed.state.gpus {
                let read_at = gpu.read_at_us.unwrap_or(from);
                unknown.push(unmeasured(gpu.gpu, UnknownCause::GpuLost, read_at, now));
            }
        }
        for mut unknown in unknown {
            if unknown.energy_mj > Energy::ZERO {
                self.ledger.spend(unknown.gpu, unknown.energy_mj);
            } else {
                // Earlier entries contain the time before.
                unknown.from_us = unknown.from_us.max(from);
            }
            self.ledger.add_unknown(unknown);
        }
    }

    /// Closes an entry and sends it, or sends the pending one again.
    pub(super) fn advance_ledger(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.storing {
            self.ledger_at = now + self.settings.ledger_every;
            return;
        }
        if let Some(pending) = self.ledger.pending.clone() {
            self.storing = true;
            self.ledger_at = now + self.settings.ledger_every / RETRY_PARTS;
            out.push(Action::StoreLedger(pending));
            return;
        }
        self.ledger_at = now + self.settings.ledger_every;
        if self.ledger.from().is_none_or(|from| from >= now) {
            return;
        }
        self.complete_unknown(now);
        if let Some(entry) = self.ledger.close(now, self.gpu_count()).cloned() {
            self.storing = true;
            self.checkpoint(now, out);
            out.push(Action::StoreLedger(entry));
        }
    }

    pub(super) fn ledger_stored(&mut self, from: Timestamp, stored: bool, out: &mut Vec<Action>) {
        self.storing = false;
        if stored && self.ledger.acknowledged(from) {
            // The counters stay those of the last checkpoint.
            self.saved.pending = None;
            out.push(Action::SaveState(self.saved.clone()));
        }
    }
}

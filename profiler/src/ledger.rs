//! Accounts the node's energy in ledger entries, each counted exactly once.
//!
//! The energy of a GPU belongs to jobs, to idle, or to a cause why its owner is unknown
//! ([`UnknownEnergy`]).
//!
//! An entry is written to the state file before it is published, together with the GPUs' counters
//! at its end, and is removed there once the bus has acknowledged it. A service that is killed in
//! between finds the entry at its next start and publishes it again under the same message id. The open
//! interval is written to the file more often, so that the attribution of an interval survives a kill.
//! While an entry is pending no other is closed, so that a bus that is away for a day causes one
//! long entry and no queue.

use std::collections::BTreeMap;

use wattle_common::comparison::ComparedEnergy;
use wattle_common::id::ProjectId;
use wattle_common::messages::{JobEnergy, LedgerEntry, UnknownEnergy};
use wattle_common::units::{Energy, EnergyMeter};
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, Power, Timestamp};

use crate::resume::OpenInterval;

/// Most intervals of unknown energy of one GPU in an entry; further ones are merged by cause.
const UNKNOWN_PER_GPU: usize = 16;

/// A job and its submission: the id may have had another submission within the interval.
pub(crate) type Submission = (JobId, Option<AdmissionId>);

/// A job's part of the open interval.
#[derive(Clone, Debug, Default)]
struct JobShare {
    energy: Energy,
    user: Option<String>,
    project: Option<ProjectId>,
    compared: Option<ComparedEnergy>,
}

/// The open interval.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    node: NodeId,
    host_power: Power,
    /// Start of the interval: the first reading.
    from: Option<Timestamp>,
    /// Energy of the host until `host_from`.
    host: Energy,
    host_from: Timestamp,
    gpus: BTreeMap<GpuIndex, Energy>,
    jobs: BTreeMap<Submission, JobShare>,
    unknown: Vec<UnknownEnergy>,
    pub(crate) pending: Option<LedgerEntry>,
}

impl Ledger {
    pub(crate) fn new(node: NodeId, host_power: Power) -> Self {
        Self {
            node,
            host_power,
            from: None,
            host: Energy::ZERO,
            host_from: Timestamp::EPOCH,
            gpus: BTreeMap::new(),
            jobs: BTreeMap::new(),
            unknown: Vec::new(),
            pending: None,
        }
    }

    /// Starts the first interval.
    pub(crate) const fn begin(&mut self, at: Timestamp) {
        (self.from, self.host_from) = (Some(at), at);
    }

    /// Counts the host's energy from `at` on.
    pub(crate) const fn host_from(&mut self, at: Timestamp) {
        self.host_from = at;
    }

    /// Continues an interval of an earlier run; the host's energy counts again from `host_from`.
    pub(crate) fn resume(&mut self, open: OpenInterval, host_from: Timestamp) {
        self.from = Some(open.from_us);
        (self.host, self.host_from) = (open.energy_mj_host, host_from);
        let gpus = (0..).zip(open.energy_mj_gpus);
        self.gpus = gpus.filter_map(|(gpu, energy)| Some((gpu, energy?))).collect();
        let share = |job: JobEnergy| {
            let JobEnergy { job, admission, energy_mj: energy, user, project, compared } = job;
            ((job, admission), JobShare { energy, user, project, compared })
        };
        self.jobs = open.jobs.into_iter().map(share).collect();
        self.unknown = open.unknown;
    }

    pub(crate) const fn from(&self) -> Option<Timestamp> {
        self.from
    }

    /// Adds energy of a GPU.
    pub(crate) fn spend(&mut self, gpu: GpuIndex, energy: Energy) {
        *self.gpus.entry(gpu).or_default() += energy;
    }

    /// Adds energy attributed to a job of this user and project, as far as they are known, and its comparison
    /// with the default setting, if there is one.
    pub(crate) fn attribute(
        &mut self,
        job: &JobId,
        admission: Option<&AdmissionId>,
        user: Option<&String>,
        project: Option<&ProjectId>,
        energy: Energy,
        compared: Option<ComparedEnergy>,
    ) {
        let share = self.jobs.entry((job.clone(), admission.cloned())).or_default();
        share.energy += energy;
        if let Some(compared) = compared {
            share.compared.get_or_insert_default().add(compared);
        }
        if share.user.is_none() {
            share.user = user.cloned();
        }
        if share.project.is_none() {
            share.project = project.cloned();
        }
    }

    /// Adds an interval of unknown energy, which must be part of a GPU's energy. One that continues the
    /// last one of the same GPU and cause extends it.
    pub(crate) fn add_unknown(&mut self, new: UnknownEnergy) {
        let same = |old: &UnknownEnergy| (old.gpu, old.cause) == (new.gpu, new.cause);
        let same_jobs =
            |old: &UnknownEnergy| (&old.jobs, &old.admissions) == (&new.jobs, &new.admissions);
        let of_gpu = self.unknown.iter().filter(|old| old.gpu == new.gpu).count();
        let full = of_gpu >= UNKNOWN_PER_GPU;
        let continued = self.unknown.iter_mut().rev().find(|old| {
            let joins = old.until_us == new.from_us && old.unmeasured == new.unmeasured;
            let joins = joins && old.estimate_mj.is_none() && new.estimate_mj.is_none();
            same(old) && (full || (joins && same_jobs(old)))
        });
        let Some(old) = continued else { return self.unknown.push(new) };
        old.from_us = old.from_us.min(new.from_us);
        old.until_us = old.until_us.max(new.until_us);
        for job in new.jobs {
            // Of two submissions of one name in the same interval none is known.
            if !old.jobs.contains(&job) {
                old.admissions.extend(
                    new.admissions.get_key_value(&job).map(|(job, of)| (job.clone(), of.clone())),
                );
                old.jobs.push(job);
            } else if old.admissions.get(&job) != new.admissions.get(&job) {
                old.admissions.remove(&job);
            }
        }
        old.energy_mj += new.energy_mj;
        old.unmeasured |= new.unmeasured;
        old.estimate_mj = [old.estimate_mj, new.estimate_mj]
            .into_iter()
            .flatten()
            .reduce(|all, estimate| all + estimate);
    }

    /// The submissions with energy, or with time without a meter, in the open interval.
    pub(crate) fn submissions(&self) -> impl Iterator<Item = Submission> {
        let unmetered = self.unknown.iter().flat_map(UnknownEnergy::submissions);
        self.jobs.keys().cloned().chain(unmetered.map(|(job, of)| (job.clone(), of.cloned())))
    }

    /// Energy attributed to a submission in the open interval; `None`: none was measured.
    pub(crate) fn attributed(&self, of: &Submission) -> Option<Energy> {
        self.jobs.get(of).map(|share| share.energy)
    }

    /// Time of a submission's GPUs without a meter in the open interval, milliseconds.
    pub(crate) fn unmetered_ms(&self, (job, admission): &Submission) -> u64 {
        let is_its = |unknown: &&UnknownEnergy| {
            unknown.submissions().any(|of| of == (job, admission.as_ref()))
        };
        self.unknown.iter().filter(is_its).map(UnknownEnergy::length_ms).sum()
    }

    /// The open interval as it is now; `None` before the first reading.
    pub(crate) fn open(&self, now: Timestamp, gpu_count: u32) -> Option<OpenInterval> {
        // Metered from the epoch, so that the entries sum to power x time to the millijoule.
        let host = |at: Timestamp| {
            let mut meter = EnergyMeter::default();
            meter.add(self.host_power, at.since(Timestamp::EPOCH));
            meter.total()
        };
        let job = |((job, admission), share): (&Submission, &JobShare)| JobEnergy {
            job: job.clone(),
            admission: admission.clone(),
            energy_mj: share.energy,
            user: share.user.clone(),
            project: share.project.clone(),
            compared: share.compared,
        };
        Some(OpenInterval {
            from_us: self.from?,
            energy_mj_gpus: (0..gpu_count).map(|gpu| self.gpus.get(&gpu).copied()).collect(),
            energy_mj_host: self.host + host(now).saturating_sub(host(self.host_from)),
            jobs: self.jobs.iter().map(job).collect(),
            unknown: self.unknown.clone(),
        })
    }

    /// Closes the interval and opens the next; the entry is pending until
    /// [`Ledger::acknowledged`]. `None` while another is pending, or for an empty interval.
    pub(crate) fn close(&mut self, now: Timestamp, gpu_count: u32) -> Option<&LedgerEntry> {
        if self.pending.is_some() || self.from.is_none_or(|from| from >= now) {
            return None;
        }
        let open = self.open(now, gpu_count)?;
        self.jobs.clear();
        self.unknown.clear();
        let entry = open.into_entry(self.node.clone(), now);
        self.gpus.clear();
        (self.from, self.host, self.host_from) = (Some(now), Energy::ZERO, now);
        Some(self.pending.insert(entry))
    }

    /// Removes the pending entry that begins at `from`; returns whether there was one.
    pub(crate) fn acknowledged(&mut self, from: Timestamp) -> bool {
        self.pending.take_if(|entry| entry.from_us == from).is_some()
    }
}

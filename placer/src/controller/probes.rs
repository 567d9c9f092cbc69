//! Probes: a running job's GPUs under a lower cap or clock for a while, to learn what that changes.
//!
//! A predictor proposes a probe with its surface; [`crate::probing`] judges it. A probe ends when its
//! duration has elapsed, or when the job shares its GPUs or has left them. Probes under way are not stored:
//! after a restart they have ended, and count as made.

use std::collections::BTreeMap;

use wattle_common::messages::Probe;
use wattle_common::messages::job_record::ProbeRecord;
use wattle_common::{Energy, Frequency, JobId, Power, Timestamp};

use crate::controller::{Controller, PolicyHandle};
use crate::probing::{Case, ENERGY_OVER, judge};
pub use crate::probing::{Granted, Look, ProbeConfig, Refusal};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::State;

/// Lowest and highest cap and clock that all GPUs of a job accept, where they report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRanges {
    /// Lowest and default cap.
    pub caps: Option<(Power, Power)>,
    /// Lowest and highest clock.
    pub clocks: Option<(Frequency, Frequency)>,
}

/// A probe under way.
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveProbe {
    /// The probed setting.
    pub look: Look,
    /// When it began.
    pub began: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// The GPUs under probe.
    pub on: GpuSet,
    key: JobKey,
    /// When the probed placement began.
    placed: Timestamp,
}

/// Why a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeEnd {
    /// Its duration has elapsed.
    TimeOver,
    /// The job no longer runs alone on those GPUs.
    NotAlone,
}

/// The answer to a predictor's proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeAnswer {
    /// The proposal.
    pub proposal: Probe,
    /// The granted probe, or the refusal.
    pub verdict: Result<Granted, Refusal>,
}

/// The probes of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    active: BTreeMap<JobId, ActiveProbe>,
    /// Probes of each job that has not ended.
    made: BTreeMap<JobId, Vec<ProbeRecord>>,
    /// When each probe of the last day began, and its energy at most.
    energy: Vec<(Timestamp, Energy)>,
}

impl Probes {
    pub(super) fn restore(&mut self, job: &JobId, made: &[ProbeRecord]) {
        if !made.is_empty() {
            self.made.insert(job.clone(), made.to_vec());
            self.energy.extend(made.iter().map(|made| (made.at_us, made.energy_mj_max)));
        }
    }

    pub(super) fn forget(&mut self, job: &JobId) {
        self.made.remove(job);
    }

    pub(super) fn any_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// The setting probed on this GPU.
    pub(super) fn look_at(&self, state: &ClusterState, node: NodeKey, gpu: u32) -> Option<Look> {
        if self.active.is_empty() {
            return None;
        }
        let tenants = state.node(node).tenants(gpu);
        let probe = self.active.values().find(|probe| tenants.contains(&probe.key));
        probe.map(|probe| probe.look)
    }
}

impl<P: PolicyHandle> Controller<P> {
    /// Whether proposals of probes are followed.
    #[must_use]
    pub const fn probes_enabled(&self) -> bool {
        self.config.probe.enabled
    }

    /// Judges the probe that the job's surface proposes, and begins it if it is granted. `None` where
    /// nothing new is proposed.
    pub fn consider_probe(&mut self, key: JobKey, ranges: GpuRanges) -> Option<ProbeAnswer> {
        if !self.config.probe.enabled {
            return None;
        }
        let now = self.state.now();
        let job = self.state.job(key)?;
        let State::Running { on, setting, since, .. } = &job.state else { return None };
        if self.probes.active.contains_key(&job.facts.id) {
            return None;
        }
        let surface = job.surface.as_ref()?;
        let proposal = surface.probe.clone()?;
        let made = self.probes.made.get(&job.facts.id).map_or(&[][..], Vec::as_slice);
        // Proposed before the last probe ended: without what that probe showed.
        let ended =
            |last: &ProbeRecord| last.at_us + std::time::Duration::from_millis(last.duration_ms);
        if made.last().is_some_and(|last| surface.at_us < ended(last)) {
            return None;
        }
        let current = self.config.site_setting.lower_of(*setting);
        let case = Case {
            now,
            job,
            alone: self.runs_alone(key),
            probe: &proposal,
            cap: current.cap_mw,
            clock: current.clock_mhz_max,
            limits: ranges.caps,
            clocks: ranges.clocks,
            made,
            drawn: self.probe_energy(now),
        };
        let verdict = judge(&self.config.probe, &case);
        if let Ok(granted) = &verdict {
            let (id, on, placed) = (job.facts.id.clone(), on.clone(), *since);
            self.begin_probe(now, key, id, on, placed, granted);
        }
        Some(ProbeAnswer { proposal, verdict })
    }

    fn begin_probe(
        &mut self,
        now: Timestamp,
        key: JobKey,
        job: JobId,
        on: GpuSet,
        placed: Timestamp,
        granted: &Granted,
    ) {
        let probe = granted.made(now);
        self.probes.energy.retain(|(at, _)| now.since(*at) < ENERGY_OVER);
        self.probes.energy.push((now, probe.energy_mj_max));
        self.probes.made.entry(job.clone()).or_default().push(probe);
        let (look, until) = (granted.look, now + granted.span);
        self.probes.active.insert(job, ActiveProbe { look, began: now, until, on, key, placed });
    }

    /// Ends the probes whose duration has elapsed or whose job shares its GPUs.
    pub fn end_probes(&mut self, now: Timestamp) -> Vec<(JobId, ActiveProbe, ProbeEnd)> {
        if self.probes.active.is_empty() {
            return Vec::new();
        }
        let end_of = |(job, probe): (&JobId, &ActiveProbe)| {
            let known = self.state.job(probe.key).filter(|known| known.facts.id == *job);
            let same = known.is_some_and(|known| {
                matches!(&known.state, State::Running { since, .. } if *since == probe.placed)
            });
            let end = match same && self.runs_alone(probe.key) {
                false => ProbeEnd::NotAlone,
                true if now >= probe.until => ProbeEnd::TimeOver,
                true => return None,
            };
            Some((job.clone(), end))
        };
        let over: Vec<(JobId, ProbeEnd)> = self.probes.active.iter().filter_map(end_of).collect();
        let mut ended = Vec::with_capacity(over.len());
        for (job, end) in over {
            if let Some(probe) = self.probes.active.remove(&job) {
                ended.push((job, probe, end));
            }
        }
        ended
    }

    /// When the next probe ends.
    #[must_use]
    pub fn probe_end(&self) -> Option<Timestamp> {
        self.probes.active.values().map(|probe| probe.until).min()
    }

    /// Whether a running job shares none of its GPUs.
    fn runs_alone(&self, key: JobKey) -> bool {
        let Some(State::Running { on, .. }) = self.state.job(key).map(|job| &job.state) else {
            return false;
        };
        on.gpus().all(|(node, gpu)| self.state.node(node).tenants(gpu) == [key])
    }

    /// The energy that probes of the last day may have drawn.
    fn probe_energy(&self, now: Timestamp) -> Energy {
        let recent = self.probes.energy.iter().filter(|(at, _)| now.since(*at) < ENERGY_OVER);
        recent.fold(Energy::ZERO, |sum, (_, energy)| sum + *energy)
    }
}

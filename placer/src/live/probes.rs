//! Probes under way: a job's cards under a lower cap or clock for a while, and back again.
//!
//! A probe is charged to the job's record before it is ordered, and it is under way only in memory:
//! a placer that was killed orders the cards back when it returns, and until then the order's lease
//! ends it. What is a probe and what is not is judged in [`crate::probing`].

use std::mem::{Discriminant, discriminant};

use wattle_common::job::JobPhase;
use wattle_common::messages::AppliedGpu;
use wattle_common::messages::{Probe, ProbeRecord};
use wattle_common::{Energy, Frequency, GpuIndex, JobId, NodeId, Power, Timestamp};

use crate::live::Placer;
use crate::live::lifecycle::PLACER;
use crate::probing::{Case, ENERGY_OVER, Granted, Look, Refusal, judge};
use crate::{JobKey, State};

/// A probe under way.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    look: Look,
    began: Timestamp,
    until: Timestamp,
    /// The attempt it is about.
    attempt: u32,
    /// Where.
    on: Vec<(NodeId, Vec<GpuIndex>)>,
}

/// What was refused of a job already, so that it is said once.
pub(super) type Refused = Vec<(Option<Power>, Option<Frequency>, Discriminant<Refusal>)>;

impl Placer {
    /// Looks at what the predictor proposes for `job`.
    pub(super) fn consider_probe(&mut self, now: Timestamp, job: &JobId) {
        if !self.config.probe.enabled || self.probes.contains_key(job) {
            return;
        }
        let Some(tracked) = self.jobs.get(job) else { return };
        let record = &tracked.record;
        let Some(key) = tracked.key.filter(|_| record.phase == JobPhase::Running) else { return };
        let Some(known) = self.state.job(key) else { return };
        let Some(surface) = &known.surface else { return };
        let Some(probe) = surface.probe.clone() else { return };
        // Made before the last probe ended: it does not know what that has taught.
        let last = record.probes.last();
        if last.is_some_and(|last| surface.at_us < last.at_us + ms(last.duration_ms)) {
            return;
        }
        let set = record.setting;
        let case = Case {
            now,
            job: known,
            alone: self.is_alone(key),
            probe: &probe,
            cap: self.config.gpu_cap().into_iter().chain(set.cap_mw).min(),
            clock: self.config.gpu_clock().into_iter().chain(set.clock_mhz_max).min(),
            limits: self.limits(job, |card| Some((card.cap_mw_min?, card.cap_mw_default?))),
            clocks: self.limits(job, |card| {
                Some((card.clock_mhz_supported_min?, card.clock_mhz_supported_max?))
            }),
            made: &record.probes,
            drawn: self.drawn(now),
        };
        match judge(&self.config.probe, &case) {
            Ok(granted) => self.begin_probe(now, job, &probe, granted),
            Err(refusal) => self.note_refusal(now, job, &probe, refusal),
        }
    }

    /// Looks at every job's proposal.
    pub(super) fn consider_probes(&mut self, now: Timestamp) {
        if !self.config.probe.enabled {
            return;
        }
        let proposed = |(key, job): (JobKey, &crate::Job)| {
            let proposed = job.surface.as_ref().is_some_and(|surface| surface.probe.is_some());
            proposed.then_some((key, job.facts.id.clone()))
        };
        let jobs: Vec<_> = self.state.running().filter_map(proposed).collect();
        for (_, job) in jobs {
            self.consider_probe(now, &job);
        }
    }

    fn begin_probe(&mut self, now: Timestamp, job: &JobId, probe: &Probe, granted: Granted) {
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let record = &mut tracked.record;
        let shares = record.placement.iter().flat_map(|placement| &placement.shares);
        let on: Vec<_> = shares.map(|share| (share.node.clone(), share.gpus.clone())).collect();
        record.probes.push(ProbeRecord {
            at_us: now,
            cap_mw: granted.cap,
            clock_mhz_max: match granted.look {
                Look::Cap(_) => None,
                Look::Clock(clock) => Some(clock),
            },
            duration_ms: u64::try_from(granted.span.as_millis()).unwrap_or(u64::MAX),
            energy_mj_max: granted.energy_max,
        });
        let spent: u64 = record.probes.iter().map(|made| made.duration_ms).sum();
        let attempt = record.attempt;
        self.to_order.extend(on.iter().map(|(node, _)| node.clone()));
        let until = now + granted.span;
        self.probes
            .insert(job.clone(), UnderWay { look: granted.look, began: now, until, attempt, on });
        let why = probe.reason.as_deref().unwrap_or("the predictor proposes it");
        let reason = format!(
            "{why}; probes have {} s of the job's {} s",
            spent / 1_000,
            granted.length.as_secs()
        );
        let decision = format!("probes {} for {} s", granted.look, granted.span.as_secs());
        self.reason(now, job, PLACER, decision, reason);
    }

    fn note_refusal(&mut self, now: Timestamp, job: &JobId, probe: &Probe, refusal: Refusal) {
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let what = (probe.cap_mw, probe.clock_mhz_max, discriminant(&refusal));
        // Proposals come with every surface: each refusal is said once, and a bounded number.
        const REFUSALS_MAX: usize = 16;
        if tracked.refused.contains(&what) || tracked.refused.len() >= REFUSALS_MAX {
            return;
        }
        tracked.refused.push(what);
        let named = [
            probe.cap_mw.map(|cap| cap.to_string()),
            probe.clock_mhz_max.map(|clock| clock.to_string()),
        ];
        let named: Vec<String> = named.into_iter().flatten().collect();
        let decision = match refusal {
            Refusal::OtherSize => format!("does not probe {} GPUs", probe.gpus),
            _ if named.is_empty() => "does not probe what stands".to_owned(),
            _ => format!("does not probe {}", named.join(" at ")),
        };
        self.reason(now, job, PLACER, decision, refusal.to_string());
    }

    /// Ends what is over, or must not go on: the cards get their cap back with the next orders.
    pub(super) fn end_probes(&mut self, now: Timestamp) {
        let over = |(job, probe): (&JobId, &UnderWay)| {
            let tracked = self.jobs.get(job);
            let settled = tracked.filter(|tracked| {
                tracked.record.phase == JobPhase::Running
                    && tracked.record.attempt == probe.attempt
                    && tracked.key.is_some_and(|key| self.is_alone(key))
            });
            let why = match settled {
                Some(_) if now >= probe.until => "its time is over",
                Some(_) => return None,
                None => "the job is not alone on its GPUs any more",
            };
            Some((job.clone(), why))
        };
        let over: Vec<(JobId, &str)> = self.probes.iter().filter_map(over).collect();
        for (job, why) in over {
            let Some(probe) = self.probes.remove(&job) else { continue };
            self.to_order.extend(probe.on.into_iter().map(|(node, _)| node));
            let lasted = now.since(probe.began).as_secs();
            let decision = format!("probed {} for {lasted} s", probe.look);
            self.reason(now, &job, PLACER, decision, why.to_owned());
        }
    }

    /// When the next probe ends.
    pub(super) fn probe_end(&self) -> Option<Timestamp> {
        self.probes.values().map(|probe| probe.until).min()
    }

    /// What a probe asks of this card.
    pub(super) fn probe_of(&self, node: &NodeId, gpu: GpuIndex) -> Option<Look> {
        let here =
            |probe: &&UnderWay| probe.on.iter().any(|(at, gpus)| at == node && gpus.contains(&gpu));
        self.probes.values().find(here).map(|probe| probe.look)
    }

    /// Whether nobody else is on any of the job's GPUs, and its placement stands.
    fn is_alone(&self, key: JobKey) -> bool {
        let Some(job) = self.state.job(key) else { return false };
        let State::Running { on, .. } = &job.state else { return false };
        on.gpus().all(|(node, gpu)| self.state.node(node).tenants(gpu) == [key])
    }

    /// What every card of the job takes, by each card's own lower and upper end.
    fn limits<T: Ord>(
        &self,
        job: &JobId,
        ends: impl Fn(&AppliedGpu) -> Option<(T, T)>,
    ) -> Option<(T, T)> {
        let placement = self.jobs.get(job)?.record.placement.as_ref()?;
        let mut limits: Option<(T, T)> = None;
        for share in &placement.shares {
            let (report, _) = self.nodes.get(&share.node)?.power.as_ref()?;
            for gpu in &share.gpus {
                let card = report.gpus.iter().find(|card| card.gpu == *gpu)?;
                let (low, high) = ends(card)?;
                limits = Some(match limits {
                    Some((l, h)) => (l.max(low), h.min(high)),
                    None => (low, high),
                });
            }
        }
        limits
    }

    /// What probes may have drawn over the last day, all jobs together.
    fn drawn(&self, now: Timestamp) -> Energy {
        let probes = self.jobs.values().flat_map(|tracked| &tracked.record.probes);
        probes
            .filter(|made| now.since(made.at_us) < ENERGY_OVER)
            .fold(Energy::ZERO, |sum, made| sum + made.energy_mj_max)
    }
}

const fn ms(milliseconds: u64) -> std::time::Duration {
    std::time::Duration::from_millis(milliseconds)
}

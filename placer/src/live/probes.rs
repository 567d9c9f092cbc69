//! Probes of running jobs: what the controller grants or refuses becomes a record and an order.
//!
//! A probe is charged to the job's record before it is ordered. Only the controller's memory holds a
//! probe under way: after a restart the placer orders the previous settings, and until then the
//! order's lease ends the probe. [`crate::probing`] judges the proposals.

use std::mem::{Discriminant, discriminant};

use wattle_common::job::JobPhase;
use wattle_common::messages::{AppliedGpu, Probe};
use wattle_common::{Frequency, JobId, NodeId, Power, Timestamp};

use crate::controller::probes::{GpuRanges, Granted, ProbeAnswer, ProbeEnd, Refusal};
use crate::live::Placer;
use crate::live::lifecycle::PLACER;
use crate::{GpuSet, JobKey};

/// The refusals of a job that are in its record already.
pub(super) type Refused = Vec<(Option<Power>, Option<Frequency>, Discriminant<Refusal>)>;

impl Placer {
    /// Lets the controller judge the probe that the predictor proposes for `job`.
    pub(super) fn consider_probe(&mut self, now: Timestamp, job: &JobId) {
        if !self.controller.probes_enabled() {
            return;
        }
        let Some(tracked) = self.jobs.get(job) else { return };
        let Some(key) = tracked.key.filter(|_| tracked.record.phase == JobPhase::Running) else {
            return;
        };
        let ranges = GpuRanges {
            caps: self.range(job, |gpu| Some((gpu.cap_mw_min?, gpu.cap_mw_default?))),
            clocks: self.range(job, |gpu| {
                Some((gpu.clock_mhz_supported_min?, gpu.clock_mhz_supported_max?))
            }),
        };
        match self.controller.consider_probe(key, ranges) {
            None => {}
            Some(ProbeAnswer { proposal, verdict: Ok(granted) }) => {
                self.record_probe(now, job, &proposal, granted);
            }
            Some(ProbeAnswer { proposal, verdict: Err(refusal) }) => {
                self.record_refusal(now, job, &proposal, refusal);
            }
        }
    }

    /// Lets the controller judge the proposals for all running jobs.
    pub(super) fn consider_probes(&mut self, now: Timestamp) {
        if !self.controller.probes_enabled() {
            return;
        }
        let proposed = |(_, job): (JobKey, &crate::Job)| {
            let proposed = job.surface.as_ref().is_some_and(|surface| surface.probe.is_some());
            proposed.then(|| job.facts.id.clone())
        };
        let jobs: Vec<_> = self.controller.state().running().filter_map(proposed).collect();
        for job in jobs {
            self.consider_probe(now, &job);
        }
    }

    fn record_probe(&mut self, now: Timestamp, job: &JobId, probe: &Probe, granted: Granted) {
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let record = &mut tracked.record;
        record.probes.push(granted.made(now));
        let spent: u64 = record.probes.iter().map(|made| made.duration_ms).sum();
        let shares = record.placement.iter().flat_map(|placement| &placement.shares);
        self.to_order.extend(shares.map(|share| share.node.clone()));
        let why = probe.reason.as_deref().unwrap_or("the predictor proposes it");
        let reason = format!(
            "{why}; probes use {} s of the job's {} s",
            spent / 1_000,
            granted.length.as_secs()
        );
        let decision = format!("probes {} for {} s", granted.look, granted.span.as_secs());
        self.reason(now, job, PLACER, decision, reason);
    }

    fn record_refusal(&mut self, now: Timestamp, job: &JobId, probe: &Probe, refusal: Refusal) {
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let what = (probe.cap_mw, probe.clock_mhz_max, discriminant(&refusal));
        // Proposals come with every surface: each refusal is recorded once, and a bounded number.
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
            _ if named.is_empty() => "does not probe the current setting".to_owned(),
            _ => format!("does not probe {}", named.join(" at ")),
        };
        self.reason(now, job, PLACER, decision, refusal.to_string());
    }

    /// Orders the previous settings for the probes that have ended.
    pub(super) fn end_probes(&mut self, now: Timestamp) {
        for (job, probe, end) in self.controller.end_probes(now) {
            let nodes = self.nodes_of(&probe.on);
            self.to_order.extend(nodes);
            let why = match end {
                ProbeEnd::TimeOver => "its duration has elapsed",
                ProbeEnd::NotAlone => "the job no longer runs alone on its GPUs",
            };
            let decision =
                format!("probed {} for {} s", probe.look, now.since(probe.began).as_secs());
            self.reason(now, &job, PLACER, decision, why.to_owned());
        }
    }

    fn nodes_of(&self, on: &GpuSet) -> Vec<NodeId> {
        let state = self.controller.state();
        on.by_node.iter().map(|part| state.node(part.node).facts.id.clone()).collect()
    }

    /// The range of caps or clocks that every GPU of the job accepts, from each GPU's own range.
    fn range<T: Ord>(
        &self,
        job: &JobId,
        ends: impl Fn(&AppliedGpu) -> Option<(T, T)>,
    ) -> Option<(T, T)> {
        let placement = self.jobs.get(job)?.record.placement.as_ref()?;
        let mut range: Option<(T, T)> = None;
        for share in &placement.shares {
            let (report, _) = self.nodes.get(&share.node)?.power.as_ref()?;
            if report.advise_only {
                return None;
            }
            for gpu in &share.gpus {
                let reported = report.gpus.iter().find(|reported| reported.gpu == *gpu)?;
                let (low, high) = ends(reported)?;
                range = Some(match range {
                    Some((l, h)) => (l.max(low), h.min(high)),
                    None => (low, high),
                });
            }
        }
        range
    }
}

//! What each node is ordered to do: worked out from the records, numbered, leased.

use wattle_common::job::{GpuSetting, JobPhase};
use wattle_common::messages::{DesiredGpu, DesiredJob, NodeDesired};
use wattle_common::{GpuIndex, NodeId, Timestamp};

use crate::live::{Action, Placer, has_gpus};
use crate::probing::Look;

impl Placer {
    /// Writes the node's order where it is not what the records say, or its lease is to be renewed.
    pub(super) fn order(&mut self, now: Timestamp, node: &NodeId, out: &mut Vec<Action>) {
        let (jobs, gpus) = (self.jobs_of(node), self.caps_of(node));
        let third = self.config.lease() / 3;
        let expires_at_us = now + self.config.lease();
        let state = self.node_mut(node);
        let sleep = state.sleep;
        let by_launcher = state.launch.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let by_agent = state.power.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let seen = by_launcher.max(by_agent);
        let next = match &state.desired {
            None => NodeDesired {
                node: node.clone(),
                generation: seen + 1,
                issued_at_us: now,
                expires_at_us,
                gpus,
                jobs,
                sleep,
            },
            Some(last)
                if last.jobs != jobs
                    || last.gpus != gpus
                    || last.sleep != sleep
                    || last.generation < seen =>
            {
                NodeDesired {
                    node: node.clone(),
                    generation: last.generation.max(seen) + 1,
                    issued_at_us: now.max(last.issued_at_us),
                    expires_at_us,
                    gpus,
                    jobs,
                    sleep,
                }
            }
            Some(last) if now >= last.issued_at_us + third => {
                NodeDesired { issued_at_us: now, expires_at_us, ..last.clone() }
            }
            Some(_) => return,
        };
        state.desired = Some(next.clone());
        out.push(Action::StoreDesired(next));
    }

    fn jobs_of(&self, node: &NodeId) -> Vec<DesiredJob> {
        let Some(state) = self.nodes.get(node) else { return Vec::new() };
        let mut jobs = Vec::new();
        for job in &state.jobs {
            let Some(tracked) = self.jobs.get(job) else { continue };
            let record = &tracked.record;
            let Some(placement) = &record.placement else { continue };
            if !has_gpus(record.phase) {
                continue;
            }
            for (rank, share) in (0u32..).zip(&placement.shares).filter(|(_, s)| s.node == *node) {
                jobs.push(DesiredJob {
                    job: job.clone(),
                    attempt: record.attempt,
                    gpus: share.gpus.clone(),
                    rank,
                    shares: placement.shares.clone(),
                    command: record.spec.command.clone(),
                    environment: record.spec.environment.clone(),
                    working_dir: record.spec.working_dir.clone(),
                    checkpoint_signal: record.spec.checkpoint_signal.clone(),
                    stop: record.phase == JobPhase::Stopping,
                });
            }
        }
        jobs
    }

    /// The site's cap and clock, for every card of the node; lower ones where a job on it is set so
    /// or probed.
    fn caps_of(&self, node: &NodeId) -> Vec<DesiredGpu> {
        let (cap_mw, clock_mhz_max) = (self.config.gpu_cap(), self.config.gpu_clock());
        let settings = self.settings_on(node);
        if cap_mw.is_none()
            && clock_mhz_max.is_none()
            && settings.is_empty()
            && self.probe_end().is_none()
            && self.limits.power_max.is_none()
        {
            return Vec::new();
        }
        let power = self.nodes.get(node).and_then(|state| state.power.as_ref());
        power
            .into_iter()
            .flat_map(|(report, _)| &report.gpus)
            .map(|card| {
                let (cap, clock) = match self.probe_of(node, card.gpu) {
                    Some(Look::Cap(cap)) => (Some(cap), None),
                    Some(Look::Clock(clock)) => (None, Some(clock)),
                    None => (None, None),
                };
                let set = || settings.iter().filter(|(gpus, _)| gpus.contains(&card.gpu));
                let caps = set().filter_map(|(_, setting)| setting.cap_mw);
                let clocks = set().filter_map(|(_, setting)| setting.clock_mhz_max);
                let enforced_cap = self.enforced_cap(node, card.gpu);
                let cap_mw = cap.into_iter().chain(cap_mw).chain(caps).chain(enforced_cap).min();
                let clock_mhz_max = clock.into_iter().chain(clocks).chain(clock_mhz_max).min();
                DesiredGpu { gpu: card.gpu, cap_mw, clock_mhz_max }
            })
            .filter(|card| card.cap_mw.is_some() || card.clock_mhz_max.is_some())
            .collect()
    }

    /// What the jobs of the node are set to, with their GPUs there; where jobs of one card are set
    /// differently, the lower cap and the lower clock hold.
    fn settings_on(&self, node: &NodeId) -> Vec<(Vec<GpuIndex>, GpuSetting)> {
        let Some(state) = self.nodes.get(node) else { return Vec::new() };
        let records = state.jobs.iter().filter_map(|job| self.jobs.get(job)).map(|t| &t.record);
        records
            .filter(|record| has_gpus(record.phase) && !record.setting.is_default())
            .flat_map(|record| record.placement.iter().map(|placed| (placed, record.setting)))
            .flat_map(|(placed, setting)| placed.shares.iter().map(move |s| (s, setting)))
            .filter(|(share, _)| share.node == *node)
            .map(|(share, setting)| (share.gpus.clone(), setting))
            .collect()
    }

    /// ControlOutput anew what is a third through its lease.
    pub(super) fn renew(&mut self, now: Timestamp) {
        let third = self.config.lease() / 3;
        let due = self.nodes.iter().filter(|(_, state)| {
            state.desired.as_ref().is_some_and(|desired| now >= desired.issued_at_us + third)
        });
        self.to_order.extend(due.map(|(node, _)| node.clone()));
    }

    /// When the next lease is to be renewed.
    pub(super) fn renewal(&self) -> Option<Timestamp> {
        let third = self.config.lease() / 3;
        let orders = self.nodes.values().filter_map(|state| state.desired.as_ref());
        orders.map(|desired| desired.issued_at_us + third).min()
    }
}

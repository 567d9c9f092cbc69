//! The orders of nodes: computed from the records, numbered and leased.

use wattle_common::bounds::orders::is_in_sequence;
use wattle_common::bounds::{DATE_TOLERANCE, next_generation};
use wattle_common::job::JobPhase;
use wattle_common::messages::desired::ORDER_TEXT_MAX;
use wattle_common::messages::{DesiredGpu, DesiredJob, NodeDesired};
use wattle_common::{NodeId, Timestamp};

use crate::live::power_shares::note_replaced;
use crate::live::{Action, Placer};

/// Whether an order's dates are plausible.
fn is_current(order: &NodeDesired, now: Timestamp) -> bool {
    order.issued_at_us <= now + DATE_TOLERANCE
}

/// Leaves commands and environments to the jobs' records if the order could exceed the bus's largest
/// payload with them.
fn refer_to_records(jobs: &mut [DesiredJob]) {
    let len = |job: &DesiredJob| {
        let environment = job.environment.iter().map(|(key, value)| key.len() + value.len());
        let command = job.command.iter().map(String::len);
        let texts = command.chain(environment).chain(job.working_dir.iter().map(String::len));
        texts.sum::<usize>()
    };
    if jobs.iter().map(len).sum::<usize>() > ORDER_TEXT_MAX {
        for job in jobs {
            (job.command, job.environment, job.working_dir) = (Vec::new(), Vec::new(), None);
        }
    }
}

impl Placer {
    /// Writes the orders of the nodes that have changed.
    pub(super) fn write_orders(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let mut nodes = std::mem::take(&mut self.to_order);
        nodes.append(&mut self.jobs.take_to_order());
        if nodes.is_empty() {
            return;
        }
        self.note_reductions(now);
        let raises_wait = self.raises_wait();
        for node in nodes {
            self.order(now, &node, raises_wait, out);
        }
    }

    /// Writes the node's order if it differs from the records, or its lease is due for renewal.
    fn order(&mut self, now: Timestamp, node: &NodeId, raises_wait: bool, out: &mut Vec<Action>) {
        let (jobs, starts_wait) = self.startable(node, self.jobs_of(node), raises_wait);
        let (gpus, waits) = self.orderable(node, self.caps_of(node), raises_wait);
        self.raises_pending |= waits || starts_wait;
        let power_limited = self.controller.limits().limits_power_of(node);
        let third = self.config.lease() / 3;
        let expires_at_us = now + self.config.lease();
        let state = self.node_mut(node);
        // Its jobs may be unknown: an order without them would stop them.
        if state.adopts || (state.desired.is_none() && state.launch.is_none()) {
            return;
        }
        let sleep = state.sleep;
        let due = now >= state.ordered_at + third;
        let by_launcher = state.launch.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let by_agent = state.power.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let seen = by_launcher.max(by_agent);
        let generation = next_generation(state.desired.as_ref().map(|last| last.generation), seen);
        // An order that the node refuses, such as one that another program wrote, is not continued.
        let last = state.desired.as_ref().filter(|last| is_current(last, now));
        let next = match last {
            None => NodeDesired {
                node: node.clone(),
                generation,
                issued_at_us: now,
                expires_at_us,
                gpus,
                jobs,
                power_limited,
                sleep,
            },
            Some(last)
                if last.jobs != jobs
                    || last.gpus != gpus
                    || last.sleep != sleep
                    || last.power_limited != power_limited
                    || !is_in_sequence(last.generation, seen) =>
            {
                NodeDesired {
                    node: node.clone(),
                    generation,
                    issued_at_us: now,
                    expires_at_us,
                    gpus,
                    jobs,
                    power_limited,
                    sleep,
                }
            }
            Some(last) if due => NodeDesired {
                // Agents ignore an order that is not newer: an earlier placer's clock was ahead.
                generation: last.generation + u64::from(now <= last.issued_at_us),
                issued_at_us: now,
                expires_at_us,
                ..last.clone()
            },
            Some(_) => return,
        };
        note_replaced(state, &next.gpus);
        state.ordered_at = now;
        state.desired = Some(next.clone());
        out.push(Action::StoreDesired(next));
    }

    fn jobs_of(&self, node: &NodeId) -> Vec<DesiredJob> {
        let mut jobs = Vec::new();
        for job in self.jobs.on_node(node) {
            let record = &self.jobs[job];
            let Some(placement) = &record.placement else { continue };
            for (rank, share) in (0u32..).zip(&placement.shares).filter(|(_, s)| s.node == *node) {
                jobs.push(DesiredJob {
                    job: job.clone(),
                    user: record.spec.user.clone(),
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
        refer_to_records(&mut jobs);
        jobs
    }

    /// The cap and clock of each GPU of the node that has any.
    pub(super) fn caps_of(&self, node: &NodeId) -> Vec<DesiredGpu> {
        if !self.controller.sets_gpus() {
            return Vec::new();
        }
        let key = self.controller.state().node_key(node);
        let power = self.nodes.get(node).and_then(|state| state.power.as_ref());
        let reported = power.into_iter().flat_map(|(report, _)| &report.gpus);
        let desired = reported.map(|reported| {
            let gpu = reported.gpu;
            let setting = match key {
                Some(key) => self.controller.gpu_setting(key, gpu),
                None => self.config.controller().site_setting,
            };
            DesiredGpu { gpu, cap_mw: setting.cap_mw, clock_mhz_max: setting.clock_mhz_max }
        });
        desired.filter(|gpu| gpu.cap_mw.is_some() || gpu.clock_mhz_max.is_some()).collect()
    }

    /// Writes all orders again after a report, if one of them waits for reductions.
    pub(super) fn order_raises(&mut self) {
        if std::mem::take(&mut self.raises_pending) {
            self.to_order.extend(self.nodes.keys().cloned());
        }
    }

    /// Renews the orders whose lease is more than a third over.
    pub(super) fn renew(&mut self, now: Timestamp) {
        let third = self.config.lease() / 3;
        let due = self.nodes.iter().filter(|(_, state)| {
            state.desired.is_some() && !state.adopts && now >= state.ordered_at + third
        });
        self.to_order.extend(due.map(|(node, _)| node.clone()));
    }

    /// When the next lease is to be renewed.
    pub(super) fn renewal(&self) -> Option<Timestamp> {
        let third = self.config.lease() / 3;
        let ordered = self.nodes.values().filter(|state| state.desired.is_some() && !state.adopts);
        ordered.map(|state| state.ordered_at + third).min()
    }
}

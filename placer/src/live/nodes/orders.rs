//! The orders of nodes: computed from the records, numbered and leased.

use wattle_common::bounds::orders::is_in_sequence;
use wattle_common::bounds::{DATE_TOLERANCE, next_generation};
use wattle_common::job::JobPhase;
use wattle_common::messages::desired::ORDER_TEXT_MAX;
use wattle_common::messages::{DesiredGpu, DesiredJob, NodeDesired};
use wattle_common::{NodeId, Timestamp};

use crate::live::job_records::JobRecords;
use crate::live::nodes::Nodes;
use crate::live::nodes::power_shares::note_replaced;
use crate::live::{Action, LiveController};
use crate::power::caps_ahead::CapsAhead;

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

impl Nodes {
    /// Writes the orders that have changed, of the nodes where a job or the node itself may differ.
    pub(in crate::live) fn write_orders(
        &mut self,
        now: Timestamp,
        jobs: &mut JobRecords,
        controller: &LiveController,
        out: &mut Vec<Action>,
    ) {
        let mut nodes = std::mem::take(&mut self.to_order);
        nodes.append(&mut jobs.take_to_order());
        if nodes.is_empty() {
            return;
        }
        // Whether a cap may rise depends on the reductions that the nodes have not reported.
        self.note_reductions(now, controller);
        let raises_wait = self.raises_wait(controller);
        let ahead = CapsAhead::of(controller.input());
        for node in nodes {
            self.write_order(now, &node, (raises_wait, &ahead), jobs, controller, out);
        }
    }

    /// Writes the node's order if it differs from the records, or its lease is due for renewal.
    fn write_order(
        &mut self,
        now: Timestamp,
        node: &NodeId,
        (raises_wait, ahead): (bool, &CapsAhead),
        records: &JobRecords,
        controller: &LiveController,
        out: &mut Vec<Action>,
    ) {
        let jobs = jobs_of(node, records);
        let (jobs, starts_wait) = self.startable(node, jobs, raises_wait, records, controller);
        let gpus = self.caps_of(node, controller);
        let (gpus, waits) = self.orderable(node, gpus, raises_wait, records, controller);
        self.raises_pending |= waits || starts_wait;
        let power_limited = controller.limits().limits_power_of(node);
        let key = controller.state().node_key(node);
        let (event_until_us, caps_ahead) = (ahead.event_until(key), ahead.on(key));
        let third = self.config.lease() / 3;
        let expires_at_us = now + self.config.lease();
        let state = self.state_mut(node);
        // The records may lack jobs of this node, and an order without them would stop them.
        if state.awaits_comparison || (state.desired.is_none() && state.launch.is_none()) {
            return;
        }
        let sleep = state.sleep;
        let by_launcher = state.launch.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let by_agent = state.power.as_ref().map_or(0, |(report, _)| report.observed_generation);
        let seen = by_launcher.max(by_agent);
        let generation = next_generation(state.desired.as_ref().map(|last| last.generation), seen);
        // An order that the node refuses, such as one that another program wrote, is not continued.
        let last = state.desired.as_ref().filter(|last| is_current(last, now));
        let is_unchanged = |last: &&NodeDesired| {
            last.jobs == jobs
                && last.gpus == gpus
                && last.sleep == sleep
                && last.power_limited == power_limited
                && last.event_until_us == event_until_us
                && is_in_sequence(last.generation, seen)
        };
        let next = match last.filter(is_unchanged) {
            Some(_) if now < state.ordered_at + third => return,
            Some(last) => NodeDesired {
                // Agents ignore an order that is not newer: an earlier placer's clock was ahead.
                generation: last.generation + u64::from(now <= last.issued_at_us),
                issued_at_us: now,
                expires_at_us,
                // They change with every plan, and are renewed with the lease.
                caps_ahead,
                ..last.clone()
            },
            None => NodeDesired {
                node: node.clone(),
                generation,
                issued_at_us: now,
                expires_at_us,
                gpus,
                jobs,
                power_limited,
                caps_ahead,
                event_until_us,
                sleep,
            },
        };
        note_replaced(state, &next.gpus);
        state.ordered_at = now;
        state.desired = Some(next.clone());
        out.push(Action::StoreDesired(next));
    }

    /// The cap and clock of each GPU of the node that has any.
    pub(super) fn caps_of(&self, node: &NodeId, controller: &LiveController) -> Vec<DesiredGpu> {
        if !controller.sets_gpus() {
            return Vec::new();
        }
        let key = controller.state().node_key(node);
        let power = self.states.get(node).and_then(|state| state.power.as_ref());
        let reported = power.into_iter().flat_map(|(report, _)| &report.gpus);
        let desired = reported.map(|reported| {
            let gpu = reported.gpu;
            let setting = match key {
                Some(key) => controller.gpu_setting(key, gpu),
                None => self.config.site_setting(),
            };
            DesiredGpu { gpu, cap_mw: setting.cap_mw, clock_mhz_max: setting.clock_mhz_max }
        });
        desired.filter(|gpu| gpu.cap_mw.is_some() || gpu.clock_mhz_max.is_some()).collect()
    }

    /// Writes all orders again after a report, if one of them waits for reductions.
    pub(in crate::live) fn order_raises(&mut self) {
        if std::mem::take(&mut self.raises_pending) {
            self.order_all();
        }
    }

    /// Renews the orders whose lease is more than a third over.
    pub(in crate::live) fn renew(&mut self, now: Timestamp) {
        let third = self.config.lease() / 3;
        let due = self.states.iter().filter(|(_, state)| {
            state.desired.is_some() && !state.awaits_comparison && now >= state.ordered_at + third
        });
        self.to_order.extend(due.map(|(node, _)| node.clone()));
    }

    /// When the next lease is to be renewed.
    pub(in crate::live) fn renewal(&self) -> Option<Timestamp> {
        let third = self.config.lease() / 3;
        let ordered = self
            .states
            .values()
            .filter(|state| state.desired.is_some() && !state.awaits_comparison);
        ordered.map(|state| state.ordered_at + third).min()
    }

    /// Renews the leases of all orders at the end of the event.
    pub(in crate::live) fn renew_all(&mut self) {
        for state in self.states.values_mut() {
            state.ordered_at = Timestamp::default();
        }
        self.order_all();
    }
}

/// The jobs that hold GPUs of the node, as its order names them.
fn jobs_of(node: &NodeId, records: &JobRecords) -> Vec<DesiredJob> {
    let mut jobs = Vec::new();
    for job in records.on_node(node) {
        let record = &records[job];
        let Some(placement) = &record.placement else { continue };
        for (rank, share) in (0u32..).zip(&placement.shares).filter(|(_, s)| s.node == *node) {
            jobs.push(DesiredJob {
                job: job.clone(),
                admission: record.admission.clone(),
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

//! Wake-ups of nodes under the limits: a node wakes only for a start that the limits permit once it is awake.
//!
//! The starts that wait for nodes ([`AwaitedStart`](crate::plan::AwaitedStart)) count with their floors. The last
//! ones of the plan are dropped before any start or running job gives way, with the wake-ups of the nodes that only
//! these use. An awaited start that would be alone counts with its least power, to which it is lowered then. Other
//! jobs are not lowered before it starts.

use std::collections::BTreeSet;

use crate::plan::reason::Reason;
use crate::plan::{Blocked, NodeDecision};
use crate::power::bounds::{Bound, held_back};
use crate::power::limits::item::Item;
use crate::power::limits::{LimitedPlan, fewest};
use crate::power::model::{PowerSum, baseline_w, whole_nodes};
use crate::state::gpu_set::NodeKey;

impl<'a> LimitedPlan<'a> {
    /// Drops the awaited starts that do not fit a bound. Returns whether there are any.
    pub(super) fn admit_awaited(&mut self, bound: &Bound) -> bool {
        let covered = |item: &Item<'_>| bound.covers_any(item.on);
        let in_turn: Vec<usize> =
            (0..self.awaited.len()).rev().filter(|&i| covered(&self.awaited[i])).collect();
        if in_turn.is_empty() {
            return false;
        }
        let present = || self.items.iter().filter(|item| covered(item) && self.remains(item));
        let is_known = present().all(|item| self.is_power_known(item));
        let fewest_at = |gpu_w: fn(&Item<'a>) -> f64| {
            fewest(in_turn.len(), |n| {
                is_known && self.with_awaited_w(bound, &in_turn[..n], gpu_w) <= bound.limit_w
            })
        };
        let mut count = fewest_at(Item::floor_w);
        if count == in_turn.len() && is_known && present().next().is_none() {
            count = fewest_at(Item::lowest_w).max(count.saturating_sub(1));
        }
        let Some(last) = count.checked_sub(1) else { return false };
        let power_w = self.with_awaited_w(bound, &in_turn[..last], Item::floor_w);
        self.drop_awaited(&in_turn[..count], Some(bound.hold_reason(power_w)));
        true
    }

    /// Drops the last awaited starts with which the minimum power exceeds `limit_w`, beside jobs of `jobs_w`. The first
    /// of an empty cluster counts with its mean power.
    pub(super) fn admit_awaited_new(&mut self, jobs_w: f64, is_first: bool, limit_w: f64) {
        let in_turn: Vec<usize> = (0..self.awaited.len()).rev().collect();
        let with_w =
            |dropped: &[usize]| {
                let decisions = self.decisions_without(dropped).into_iter();
                let baseline_w = baseline_w(self.input, whole_nodes(self.input), decisions);
                let kept = self.awaited[..self.awaited.len() - dropped.len()].iter().enumerate();
                let minimum_w = kept.map(|(i, item)| {
                    if is_first && i == 0 { item.minimum_expected_w } else { item.minimum_w }
                });
                baseline_w + jobs_w + minimum_w.sum::<f64>()
            };
        let count = fewest(in_turn.len(), |n| with_w(&in_turn[..n]) <= limit_w);
        if let Some(last) = count.checked_sub(1) {
            let reason = held_back(with_w(&in_turn[..last]), limit_w);
            self.drop_awaited(&in_turn[..count], Some(reason));
        }
    }

    /// Drops these awaited starts: the nodes that only they use are not woken. They are held back for the reason, if
    /// there is one.
    pub(super) fn drop_awaited(&mut self, dropped: &[usize], reason: Option<Reason>) {
        let kept = self.decisions_without(dropped);
        let is_kept = |decision: &&NodeDecision| kept.contains(decision);
        let wakes = self.plan.nodes.iter().filter(|decision| decision.is_wake());
        let not_woken: Vec<NodeKey> =
            wakes.filter(|wake| !is_kept(wake)).map(NodeDecision::node).collect();
        self.not_woken.extend(not_woken);
        let jobs: BTreeSet<_> = dropped.iter().map(|&i| self.awaited[i].key).collect();
        self.awaited.retain(|item| !jobs.contains(&item.key));
        let Some(reason) = reason else { return };
        let waiting = self.plan.blocked.as_ref().map(|blocked| blocked.job);
        if let Some(job) = waiting.filter(|job| jobs.contains(job)) {
            self.blocked = Some(Blocked { job, reason: reason.clone() });
        }
        for job in jobs {
            self.held_back.entry(job).or_insert_with(|| reason.clone());
        }
    }

    /// The awaited starts but these.
    fn awaited_without(&self, dropped: &[usize]) -> impl Iterator<Item = &Item<'a>> {
        let mut is_kept = vec![true; self.awaited.len()];
        dropped.iter().for_each(|&i| is_kept[i] = false);
        self.awaited.iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|(item, _)| item)
    }

    /// The node decisions without the wake-ups that no awaited start but these uses.
    fn decisions_without(&self, dropped: &[usize]) -> Vec<&'a NodeDecision> {
        let used: BTreeSet<NodeKey> = self
            .awaited_without(dropped)
            .flat_map(|item| item.on.by_node.iter().map(|here| here.node))
            .collect();
        let is_kept =
            |decision: &&NodeDecision| !decision.is_wake() || used.contains(&decision.node());
        self.node_decisions().filter(is_kept).collect()
    }

    /// Expected power within a bound with the awaited starts but these beside the remaining jobs, if each has this power
    /// of each GPU, watts. A node whose power is not known yet wakes to be measured: its start adds nothing.
    fn with_awaited_w(
        &self,
        bound: &Bound,
        dropped: &[usize],
        gpu_w: impl Fn(&Item<'a>) -> f64,
    ) -> f64 {
        let present = self.items.iter().filter(|item| self.remains(item));
        let kept = self.awaited_without(dropped).filter(|item| self.is_power_known(item));
        let mut sum = PowerSum::new(self.input);
        for item in present.chain(kept).filter(|item| bound.covers_any(item.on)) {
            sum.add(item.on, gpu_w(item));
        }
        sum.bounded_w(bound, self.decisions_without(dropped).into_iter())
    }

    /// The nodes of these starts, which a bound holds back, stay awake where the limit permits the starts soon.
    pub(super) fn keep_awake(&mut self, bound: &Bound, starts: &[usize], power_w: f64) {
        let limits = self.input.limits;
        let limit = match bound.target_of() {
            Some(feeder) => limits.feeders_over_time.get(feeder),
            None if bound.is_local() => None,
            None => limits.power_over_time.as_deref(),
        };
        let Some(limit) = limit else { return };
        let power_w = power_w + bound.static_w();
        let now = self.input.now();
        for &start in starts {
            for here in &self.items[start].on.by_node {
                let node = self.input.state.node(here.node);
                let until = now + self.input.limits.idle_before_sleep_of(node);
                let mut changes = limit.changes(now).take_while(|at| *at <= until);
                if changes.any(|at| limit.at(at).is_none_or(|limit| limit.as_w() >= power_w)) {
                    self.needed.insert(here.node);
                }
            }
        }
    }
}

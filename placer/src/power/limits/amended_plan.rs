//! The plan as the limits leave it, and what they changed.

use wattle_common::job::GpuSetting;

use crate::plan::reason::Reason;
use crate::plan::{Decision, NodeDecision, Plan, SettingChange};
use crate::power::bounds::Bound;
use crate::power::limits::item::{Item, Role};
use crate::power::limits::{LimitedPlan, PowerLimitsReport};
use crate::power::node_sleep::put_to_sleep;
use crate::state::gpu_set::{GpuSet, NodeGpus};
use crate::state::job::State;

impl LimitedPlan<'_> {
    /// The plan with the chosen settings, without the starts that are held back, and with the stops. `bounds`
    /// are those that the settings were lowered for.
    pub(super) fn into_plan(mut self, bounds: &[Bound]) -> (Plan, PowerLimitsReport) {
        let mut report = PowerLimitsReport::default();
        let mut plan = Plan {
            decisions: Vec::with_capacity(self.plan.decisions.len()),
            nodes: self.node_decisions().cloned().collect(),
            awaited: self.plan.awaited.clone(),
            again_at: self.plan.again_at,
            blocked: self.plan.blocked.clone(),
            price: self.plan.price,
            power_price: self.plan.power_price,
            limit_binds: self.plan.limit_binds,
            cache: self.plan.cache.clone(),
        };
        for decision in &self.plan.decisions {
            let key = decision.job();
            match decision {
                Decision::Set { .. } => {}
                Decision::Start { .. } if self.held_back.contains_key(&key) => {}
                // A co-tenant of a job that is stopped does not start.
                Decision::Start { on, .. }
                    if let Some(stopped) =
                        self.item_on(on, |item| self.stopped.contains_key(&item.key)) =>
                {
                    report.held_back.insert(key, self.stopped[&stopped.key].clone());
                }
                _ if self.stopped.contains_key(&key) => {}
                Decision::Start { on, setting, observe, reason, .. } => {
                    // The co-tenants it was to be observed with may be held back.
                    let is_present = |item: &Item<'_>| {
                        item.role == Role::Continues
                            || plan.decisions.iter().any(|earlier| earlier.job() == item.key)
                    };
                    let observe = *observe && self.item_on(on, is_present).is_some();
                    let item = self.items.iter().find(|item| item.key == key);
                    let chosen =
                        item.map_or(*setting, |item| self.choose(item, bounds, &mut report));
                    plan.decisions.push(Decision::Start {
                        job: key,
                        on: on.clone(),
                        setting: chosen,
                        observe,
                        reason: reason.clone(),
                    });
                }
                Decision::Stop { .. } | Decision::Undo { .. } => {
                    let item = self.items.iter().find(|item| item.key == key);
                    let lowered = item.and_then(|item| self.lowered(item, bounds, &mut report));
                    plan.decisions.extend(lowered);
                    plan.decisions.push(decision.clone());
                }
                _ => plan.decisions.push(decision.clone()),
            }
        }
        for item in &self.items {
            let present = match &item.job.state {
                State::Running { setting, .. } => setting,
                State::Stopping { .. } => {
                    plan.decisions.extend(self.lowered(item, bounds, &mut report));
                    continue;
                }
                State::Queued => continue,
            };
            if let Some(reason) = self.stopped.get(&item.key) {
                // Until it has stopped it draws the least power that it can.
                plan.decisions.extend(set(item, item.lowest_setting(), reason, &mut report));
                plan.decisions.push(Decision::Stop {
                    job: item.key,
                    next_gpus: None,
                    next_gpu_type: None,
                    reason: reason.clone(),
                });
                continue;
            }
            if item.role != Role::Continues || self.keep_settings.contains(&item.key) {
                continue;
            }
            let setting = self.choose(item, bounds, &mut report);
            if setting != *present {
                let reason = self.reason_to_set(item, bounds);
                plan.decisions.push(Decision::Set { job: item.key, setting, reason });
            }
        }
        let wakes_fewer = plan.nodes.len() < self.plan.nodes.len();
        if wakes_fewer {
            let planned = self.plan.nodes.iter().filter(|decision| !plan.nodes.contains(decision));
            report.not_woken = planned.map(NodeDecision::node).collect();
        }
        if self.input.limits.nodes_sleep && (!self.held_back.is_empty() || wakes_fewer) {
            // The stage of node sleep counted the nodes of these starts as used.
            report.put_to_sleep = put_to_sleep(self.input, &self.needed, &mut plan);
        }
        report.held_back.append(&mut self.held_back);
        report.stopped = self.stopped;
        report.binds = !report.held_back.is_empty()
            || !report.stopped.is_empty()
            || self.items.iter().any(|item| item.lowered_by.is_some());
        if let Some(blocked) = self.blocked {
            // A job that waits for a node to wake is in no start.
            report.held_back.entry(blocked.job).or_insert_with(|| blocked.reason.clone());
            plan.blocked = Some(blocked);
        }
        (plan, report)
    }

    /// The lower setting of a job that stops, until it has stopped.
    fn lowered(
        &self,
        item: &Item<'_>,
        bounds: &[Bound],
        report: &mut PowerLimitsReport,
    ) -> Option<Decision> {
        let reason = bounds[item.lowered_by?].stop_reason();
        set(item, item.chosen_setting(), &reason, report)
    }

    /// The chosen setting of an item. Reports it if it is not the planned one.
    fn choose(
        &self,
        item: &Item<'_>,
        bounds: &[Bound],
        report: &mut PowerLimitsReport,
    ) -> GpuSetting {
        let (from, to) = (item.planned, item.chosen_setting());
        if from != to {
            let reason = self.reason_to_change(item, bounds);
            report.settings.insert(item.key, SettingChange { from, to, reason });
        }
        to
    }

    /// Such an item that runs or starts on some of these GPUs.
    fn item_on(&self, on: &GpuSet, which: impl Fn(&Item<'_>) -> bool) -> Option<&Item<'_>> {
        let overlaps = |a: &NodeGpus, b: &NodeGpus| a.node == b.node && a.gpus & b.gpus != 0;
        self.items.iter().filter(|item| which(item)).find(|item| {
            item.on.by_node.iter().any(|own| on.by_node.iter().any(|here| overlaps(own, here)))
        })
    }

    /// The policy's own reason if it chose this setting.
    fn reason_to_set(&self, item: &Item<'_>, bounds: &[Bound]) -> Reason {
        let (key, to) = (item.key, item.chosen_setting());
        let by_policy = self.plan.decisions.iter().find(|decision| {
            matches!(decision, Decision::Set { job, setting, .. } if *job == key && *setting == to)
        });
        by_policy
            .map_or_else(|| self.reason_to_change(item, bounds), |planned| planned.reason().clone())
    }

    /// Why the chosen setting is not the planned one. A setting that a limit has lowered before rises without
    /// a reason of its own.
    fn reason_to_change(&self, item: &Item<'_>, bounds: &[Bound]) -> Reason {
        match item.lowered_by {
            Some(index) => {
                let below_floor = item.chosen > item.floor;
                match item.job.facts.max_slowdown_permille.filter(|_| below_floor) {
                    Some(permille) => {
                        let most = bounds[index].most();
                        Reason::SlowdownBoundExceeded { permille, most }
                    }
                    None => bounds[index].stop_reason(),
                }
            }
            None if self.is_priced => Reason::Priced { price: self.input.limits.price },
            None => Reason::Reset { setting: item.chosen_setting() },
        }
    }
}

/// The change of a job that stops to this setting, if it is one. Reports it.
fn set(
    item: &Item<'_>,
    to: GpuSetting,
    reason: &Reason,
    report: &mut PowerLimitsReport,
) -> Option<Decision> {
    if to == item.planned {
        return None;
    }
    let change = SettingChange { from: item.planned, to, reason: reason.clone() };
    report.settings.insert(item.key, change);
    Some(Decision::Set { job: item.key, setting: to, reason: reason.clone() })
}

//! The plan as the limits leave it.

use wattle_common::job::GpuSetting;

use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::power::limits::{Item, LimitedPlan, Role};
use crate::power::node_sleep::put_to_sleep;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus};
use crate::state::job::State;

impl LimitedPlan<'_> {
    /// The plan with the chosen settings, without the starts that are held back, and with the stops.
    pub(super) fn into_plan(self) -> Plan {
        let mut plan = Plan {
            held_back: Vec::new(),
            decisions: Vec::with_capacity(self.plan.decisions.len()),
            nodes: self.node_decisions(self.wakes).cloned().collect(),
            again_at: self.plan.again_at,
            blocked: self.plan.blocked.clone(),
            deferred: self.plan.deferred,
            price: self.plan.price,
            cache: self.plan.cache.clone(),
        };
        for decision in &self.plan.decisions {
            let key = decision.job();
            match decision {
                Decision::Set { .. } => {}
                Decision::Start { .. } if self.held_back.contains(&key) => {}
                // A co-tenant of a job that is stopped does not start.
                Decision::Start { on, .. }
                    if self.is_on(on, |item| self.stopped.contains_key(&item.key)) => {}
                _ if self.stopped.contains_key(&key) => {}
                Decision::Start { on, setting, observe, reason, .. } => {
                    // The co-tenants it was to be observed with may be held back.
                    let is_present = |item: &Item<'_>| {
                        item.role == Role::Continues
                            || plan.decisions.iter().any(|earlier| earlier.job() == item.key)
                    };
                    let observe = *observe && self.is_on(on, is_present);
                    plan.decisions.push(Decision::Start {
                        job: key,
                        on: on.clone(),
                        setting: self.chosen_setting(key).unwrap_or(*setting),
                        observe,
                        reason: reason.clone(),
                    });
                }
                _ => plan.decisions.push(decision.clone()),
            }
        }
        for item in &self.items {
            let State::Running { setting: present, .. } = &item.job.state else { continue };
            if let Some(reason) = self.stopped.get(&item.key) {
                plan.decisions.push(Decision::Stop {
                    job: item.key,
                    next_gpus: None,
                    next_gpu_type: None,
                    reason: reason.clone(),
                });
                continue;
            }
            let setting = item.ladder[item.chosen].0;
            let changes = setting != *present && !self.keep_settings.contains(&item.key);
            if item.role == Role::Continues && changes {
                let reason = self.reason_to_set(item.key, setting);
                plan.decisions.push(Decision::Set { job: item.key, setting, reason });
            }
        }
        let wakes_fewer = plan.nodes.len() < self.plan.nodes.len();
        if self.input.limits.nodes_sleep && (!self.held_back.is_empty() || wakes_fewer) {
            // The policy counted the nodes of these starts as used.
            put_to_sleep(self.input, &mut plan);
        }
        plan.blocked = self.blocked.or(plan.blocked);
        plan
    }

    fn chosen_setting(&self, key: JobKey) -> Option<GpuSetting> {
        let item = self.items.iter().find(|item| item.key == key);
        item.map(|item| item.ladder[item.chosen].0)
    }

    /// Whether such a job runs or starts on some of these GPUs.
    fn is_on(&self, on: &GpuSet, which: impl Fn(&Item<'_>) -> bool) -> bool {
        let overlaps = |a: &NodeGpus, b: &NodeGpus| a.node == b.node && a.gpus & b.gpus != 0;
        self.items.iter().filter(|item| which(item)).any(|item| {
            item.on.by_node.iter().any(|own| on.by_node.iter().any(|here| overlaps(own, here)))
        })
    }

    /// The policy's own reason if it chose this setting.
    fn reason_to_set(&self, key: JobKey, setting: GpuSetting) -> Reason {
        let by_policy = self.plan.decisions.iter().find(|decision| {
            matches!(decision, Decision::Set { job, setting: s, .. } if *job == key && *s == setting)
        });
        by_policy.map_or(Reason::Reset { setting }, |decision| decision.reason().clone())
    }
}

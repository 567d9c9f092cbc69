//! The GPU sets that EaCO may give a job, fullest first (its Algorithm 2).

use crate::policies::eaco::{Eaco, PartialPlan};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey, lowest};
use crate::state::job::Job;
use crate::state::job_forecast::profile;

/// Occupied GPUs within the thresholds.
pub(super) struct Candidate {
    pub(super) on: GpuSet,
    /// Mean summed utilisation of its GPUs, per cent.
    pub(super) utilization_percent: f64,
}

/// Some GPUs of one node that have the same tenants.
struct Group {
    tenants: Vec<JobKey>,
    gpus: u64,
    utilization_percent: f64,
}

impl Eaco {
    /// Candidates for `job`, the fullest first; of equally full ones in node order.
    pub(super) fn candidates(&self, partial: &PartialPlan<'_>, job: &Job) -> Vec<Candidate> {
        let requested = job.facts.request.min;
        let mut found = Vec::new();
        let mut larger_than_a_node = true;
        for (key, node) in partial.input.state.keyed_nodes() {
            if node.facts.gpus < requested {
                continue;
            }
            larger_than_a_node = false;
            let mut groups = self.groups(partial, job, key);
            groups.sort_by(|a, b| b.utilization_percent.total_cmp(&a.utilization_percent));
            for group in groups.iter().filter(|group| group.gpus.count_ones() >= requested) {
                found.push(Candidate {
                    on: GpuSet::on(key, lowest(group.gpus, requested)),
                    utilization_percent: group.utilization_percent,
                });
            }
            found.extend(fullest_of_all(key, &groups, requested));
        }
        if larger_than_a_node {
            found.extend(self.exact_sets(partial, job));
        }
        // Stable, so equally full ones stay in node order.
        found.sort_by(|a, b| b.utilization_percent.total_cmp(&a.utilization_percent));
        found
    }

    /// The GPUs of a node that accept `job` as a further tenant, by their tenants.
    fn groups(&self, partial: &PartialPlan<'_>, job: &Job, key: NodeKey) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let node = partial.input.state.node(key);
        // A node that is asleep or waking has no jobs, and its GPUs do not count as free.
        let taken =
            if node.is_awake() { node.facts.healthy & !partial.capacity.free(key) } else { 0 };
        for gpu in crate::state::gpu_set::bits(taken) {
            let same =
                |group: &&mut Group| partial.tenants(key, gpu).eq(group.tenants.iter().copied());
            if let Some(group) = groups.iter_mut().find(same) {
                group.gpus |= 1 << gpu;
                continue;
            }
            if let Some(utilization_percent) = self.accepts(partial, job, key, gpu) {
                let tenants = partial.tenants(key, gpu).collect();
                groups.push(Group { tenants, gpus: 1 << gpu, utilization_percent });
            }
        }
        groups
    }

    /// The utilisation of an occupied GPU, if it accepts `job` as a further tenant.
    fn accepts(&self, partial: &PartialPlan<'_>, job: &Job, key: NodeKey, gpu: u32) -> Option<f64> {
        let facts = &partial.input.state.node(key).facts;
        let newcomer = profile(job, &facts.gpu_type)?;
        let (mut utilization_percent, mut memory_mib, mut tenants) = (0.0, 0, 0);
        for other_key in partial.tenants(key, gpu) {
            let other = partial.input.state.job(other_key)?;
            if other.facts.exclusive || partial.watched.contains(&other_key) {
                return None;
            }
            let known = profile(other, &facts.gpu_type)?;
            utilization_percent += known.utilization_percent;
            memory_mib += known.memory_mib;
            tenants += 1;
        }
        let tenants_max = partial.input.limits.tenants_max;
        let memory_mib_limit = facts.memory_mib? as f64 * self.config.memory_percent_max / 100.0;
        let accepts = tenants < tenants_max
            && utilization_percent <= self.config.utilization_percent_max
            && memory_mib as f64 <= memory_mib_limit
            && facts.holds(memory_mib + newcomer.memory_mib);
        accepts.then_some(utilization_percent)
    }

    /// For a job larger than a node, the sets of running jobs of its size.
    fn exact_sets(&self, partial: &PartialPlan<'_>, job: &Job) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let running = partial.input.state.running().filter_map(|(_, other)| other.state.gpus());
        for on in running.chain(partial.placed.values()) {
            if on.gpu_count() != job.facts.request.min || found.iter().any(|seen| seen.on == *on) {
                continue;
            }
            let healthy = |(node, gpu): (NodeKey, u32)| {
                partial.input.state.node(node).facts.healthy >> gpu & 1 == 1
            };
            if !on.gpus().all(healthy) {
                continue;
            }
            let each: Option<Vec<f64>> =
                on.gpus().map(|(node, gpu)| self.accepts(partial, job, node, gpu)).collect();
            if let Some(each) = each {
                let utilization_percent = each.iter().sum::<f64>() / each.len() as f64;
                found.push(Candidate { on: on.clone(), utilization_percent });
            }
        }
        found
    }
}

/// The fullest GPUs of a node over all its groups; `None` if one group has enough.
fn fullest_of_all(node: NodeKey, groups: &[Group], requested: u32) -> Option<Candidate> {
    if groups.first().is_none_or(|group| group.gpus.count_ones() >= requested) {
        return None;
    }
    let (mut gpus, mut left, mut sum) = (0, requested, 0.0);
    for group in groups {
        let taken = lowest(group.gpus, left);
        gpus |= taken;
        left -= taken.count_ones();
        sum += group.utilization_percent * f64::from(taken.count_ones());
    }
    let utilization_percent = sum / f64::from(requested);
    (left == 0).then(|| Candidate { on: GpuSet::on(node, gpus), utilization_percent })
}

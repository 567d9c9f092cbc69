//! The GPUs of a target: a free block, and among several one whose feeders and node leave the power that it needs.

use wattle_common::job::GpuSetting;

use crate::allocation::buddy::{BlockRequest, allocate, allocate_where};
use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::transition::{Target, Transition};
use crate::power::model::{JobGpus, idle_w};
use crate::state::gpu_set::{GpuSet, NodeKey};
use crate::state::node::Node;

impl<'a> Transition<'a> {
    /// The block that a target requests; `None` if it and its jobs name different GPU types.
    fn request<'t>(&'t self, target: &'t Target) -> Option<BlockRequest<'t>> {
        let jobs = || target.jobs.iter().filter_map(|&job| self.input.state.job(job));
        let memory_mib = jobs().filter_map(|job| job.facts.memory_mib_max).sum();
        let by_job = jobs().find_map(|job| job.facts.gpu_type.as_deref());
        let by_target = Some(target.gpu_type.as_str()).filter(|gpu_type| !gpu_type.is_empty());
        let differ = by_target.zip(by_job).is_some_and(|(one, other)| one != other);
        let gpu_type = by_target.or(by_job);
        (!differ).then_some(BlockRequest { gpus: target.gpus, gpu_type, memory_mib })
    }

    /// The nodes with the GPU type and memory that a target requests.
    pub(super) fn suitable_nodes<'t>(
        &'t self,
        target: &'t Target,
    ) -> impl Iterator<Item = (NodeKey, &'a Node)> + use<'a, 't> {
        let request = self.request(target);
        self.input.state.keyed_nodes().filter(move |(_, node)| {
            request.is_some_and(|request| {
                request.gpu_type.is_none_or(|gpu_type| node.facts.gpu_type == gpu_type)
                    && node.facts.may_hold(request.memory_mib)
            })
        })
    }

    /// The free GPUs for a target. Those whose limits leave it the power of its setting come first; then such GPUs of
    /// nodes that are not awake, for which it waits; then those that leave it the power of its next lower settings, and
    /// at last any.
    pub(super) fn block_for(&mut self, target: &Target) -> Option<GpuSet> {
        let request = self.request(target)?;
        let Some(headroom) = &self.headroom else { return allocate(&self.capacity, request) };
        let powers = self.gpu_powers_w(target);
        let gpu_w = *powers.first()?;
        let fitting = |capacity: &FreeCapacity<'_>, gpu_w: f64| {
            allocate_where(capacity, request, &|on| headroom.fits(on, gpu_w))
        };
        let mut chosen = fitting(&self.capacity, gpu_w);
        if chosen.is_none() {
            let mut later = self.capacity.with_scope(Scope::IdleOrAsleep);
            self.reserved.values().for_each(|on| later.take(on));
            if let Some(on) = fitting(&later, gpu_w) {
                let job = self.first_queued(target)?;
                self.take_power(&on, gpu_w);
                self.reserved.insert(job, on);
                return None;
            }
            let lower = powers[1..].iter();
            chosen = lower.copied().find_map(|gpu_w| fitting(&self.capacity, gpu_w));
        }
        let on = chosen.or_else(|| allocate(&self.capacity, request))?;
        self.take_power(&on, gpu_w);
        Some(on)
    }

    fn take_power(&mut self, on: &GpuSet, gpu_w: f64) {
        if let Some(headroom) = &mut self.headroom {
            headroom.take(on, gpu_w);
        }
    }

    /// The power of each GPU of a target at its setting, and at lower ones, descending, watts.
    fn gpu_powers_w(&self, target: &Target) -> Vec<f64> {
        let nodes = || self.suitable_nodes(target).map(|(_, node)| node);
        let Some(node) = nodes().find(|node| node.facts.gpus >= target.gpus).or(nodes().next())
        else {
            return Vec::new();
        };
        let idle_w = idle_w(self.input, node);
        let jobs = || target.jobs.iter().filter_map(|&job| self.input.state.job(job));
        let at = |setting: GpuSetting| {
            let above_idle = jobs().map(|job| {
                let gpus = JobGpus::of(node, job, target.gpus);
                (gpus.expected_w(self.input, setting) - idle_w).max(0.0)
            });
            idle_w + above_idle.sum::<f64>()
        };
        let points = jobs().next().and_then(|job| job.operating_points_on(&node.facts.gpu_type));
        let points = points.map_or(&[][..], |points| points.with_gpus(target.gpus));
        let mut lower: Vec<f64> = points.iter().map(|point| at(point.setting)).collect();
        lower.sort_by(|a, b| b.total_cmp(a));
        let mut powers = vec![at(target.setting)];
        for watts in lower {
            if powers.last().is_some_and(|last| watts < *last) {
                powers.push(watts);
            }
        }
        powers
    }
}

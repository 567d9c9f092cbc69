//! Which GPU type a job gets from a policy that serves jobs one after the other.
//!
//! A job is bound to the type that its owner names, on which it runs or to which it is being moved; it
//! is served from that type only. Any other job gets the type with the most GPUs beyond those that
//! jobs bound to it still request, among the types that suit it; a type with enough awake GPUs comes
//! first. On a cluster with one type this is counting.

use crate::allocation::capacity::TypeCounts;
use crate::allocation::feasibility::suits;
use crate::state::cluster::ClusterState;
use crate::state::job::Job;

impl<'a> TypeCounts<'a> {
    /// The job will be served in its turn: if it is bound to a type, its GPUs are spared for it.
    pub fn expect(&mut self, state: &ClusterState, job: &Job, gpus: u32) {
        if self.has_several_types()
            && let Some(index) = self.bound(state, job)
        {
            self.types[index].expected += gpus;
        }
    }

    /// Takes the GPUs that a job keeps, as far as they are free.
    pub fn take_kept(&mut self, state: &ClusterState, job: &Job, gpus: u32) {
        if let Some(index) = self.bound(state, job) {
            self.types[index].subtract(gpus);
        }
    }

    /// Whether one type has this many GPUs for the job.
    #[must_use]
    pub fn fits(&self, state: &ClusterState, job: &Job, gpus: u32) -> bool {
        self.choose(state, job, gpus, self.bound(state, job)).is_some()
    }

    /// Takes GPUs of one type for a job and returns the type, which is empty where there is only one.
    /// `None` if no type has enough.
    pub fn take_for(&mut self, state: &ClusterState, job: &Job, gpus: u32) -> Option<&'a str> {
        let bound = self.bound(state, job);
        if let Some(index) = bound {
            let expected = &mut self.types[index].expected;
            *expected = expected.saturating_sub(gpus);
        }
        let index = self.choose(state, job, gpus, bound)?;
        self.types[index].subtract(gpus);
        Some(if self.has_several_types() { self.types[index].name } else { "" })
    }

    /// The type that a job is bound to.
    fn bound(&self, state: &ClusterState, job: &Job) -> Option<usize> {
        if !self.has_several_types() {
            return (!self.types.is_empty()).then_some(0);
        }
        let named = job.facts.gpu_type.as_deref().or(job.next_gpu_type.as_deref());
        let name = named.or_else(|| state.gpu_type_of(job))?;
        self.types.iter().position(|known| known.name == name)
    }

    /// The type that serves a job.
    fn choose(
        &self,
        state: &ClusterState,
        job: &Job,
        gpus: u32,
        bound: Option<usize>,
    ) -> Option<usize> {
        let enough = |index: &usize| self.types[*index].gpus >= gpus;
        if let Some(index) = bound {
            return Some(index).filter(enough);
        }
        // A job that one node can hold is never spread over several.
        let suitable = || state.nodes().iter().filter(|node| suits(&node.facts, job));
        let fits_a_node = suitable().any(|node| node.facts.gpus >= gpus);
        let possible = |index: &usize| {
            let name = self.types[*index].name;
            let mut nodes = suitable().filter(|node| node.facts.gpu_type == name);
            nodes.any(|node| !fits_a_node || node.facts.gpus >= gpus)
        };
        let spare = |index: &usize| {
            let known = &self.types[*index];
            let awake = known.awake.saturating_sub(known.expected) >= gpus;
            (awake, i64::from(known.gpus) - i64::from(known.expected))
        };
        (0..self.types.len()).filter(enough).filter(possible).max_by_key(spare)
    }
}

//! Checks a plan against the rules of the site's scheduler, independently of the stage that applies them.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::job::NodeNeeds;

use crate::plan::check::Violation;
use crate::plan::input::PlanningInput;
use crate::plan::{Decision, Plan};
use crate::state::gpu_set::{JobKey, NodeKey};

/// CPUs and memory that jobs need of one node.
#[derive(Default)]
struct Needed {
    jobs: BTreeSet<JobKey>,
    starts: Vec<JobKey>,
    cpus: u64,
    memory_mib: u64,
}

impl Needed {
    fn add(&mut self, job: JobKey, needs: &NodeNeeds, gpus: u32) {
        if self.jobs.insert(job) {
            self.cpus += u64::from(needs.cpus_with(gpus));
            self.memory_mib += u64::from(needs.memory_mib_with(gpus));
        }
    }
}

/// Adds the violations by starts of jobs that the site's scheduler runs.
pub(super) fn check_site(input: PlanningInput<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let state = input.state;
    let mut needed: BTreeMap<NodeKey, Needed> = BTreeMap::new();
    for decision in &plan.decisions {
        let Decision::Start { job, on, .. } = decision else { continue };
        let Some(rules) = state.job(*job).and_then(|job| job.facts.site.as_ref()) else { continue };
        let indices: BTreeSet<u64> = on.by_node.iter().map(|here| here.gpus).collect();
        if on.by_node.len() != rules.nodes as usize || indices.len() != 1 {
            found.push(Violation::WrongNodes(*job));
        }
        for here in on.by_node.iter().filter(|here| state.nodes().len() > here.node.index()) {
            let partitions = &state.node(here.node).facts.partitions;
            if rules.partition.as_deref().is_some_and(|name| !partitions.iter().any(|p| p == name))
            {
                found.push(Violation::WrongNodes(*job));
            }
            let needed = needed.entry(here.node).or_default();
            needed.add(*job, &rules.needs, here.gpus.count_ones());
            needed.starts.push(*job);
        }
    }
    for (node, mut needed) in needed {
        let facts = &state.node(node).facts;
        let Some(host) = facts.host else { continue };
        for job in (0..facts.gpus).flat_map(|gpu| state.node(node).tenants(gpu)) {
            let Some(tenant) = state.job(*job) else { continue };
            let gpus = tenant.state.gpus().into_iter().flat_map(|on| &on.by_node);
            let gpus =
                gpus.filter(|here| here.node == node).map(|here| here.gpus.count_ones()).sum();
            let needs = tenant.facts.site.as_ref().map(|rules| rules.needs).unwrap_or_default();
            needed.add(*job, &needs, gpus);
        }
        if needed.cpus > u64::from(host.cpus) || needed.memory_mib > u64::from(host.memory_mib) {
            let exceeds = |job: &JobKey| Violation::HostExceeded { job: *job, node };
            found.extend(needed.starts.iter().map(exceeds));
        }
    }
}

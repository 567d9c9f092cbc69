//! Rules of the site's scheduler about where a job may run: its partition, CPUs and memory of the nodes, and
//! the same GPU indices on each node of a job.
//!
//! A policy places jobs by their GPUs. This stage checks the starts in its plan against these rules. A start
//! that breaks a rule is moved to other free GPUs, with as many GPUs on each node; if there are none, the job
//! waits.
//!
//! Only jobs that the site's scheduler runs have such rules; without them the plan passes unchanged.

use std::collections::BTreeMap;

use wattle_common::job::NodeNeeds;

use crate::allocation::buddy::gpus_in_node;
use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::suits;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, ones};
use crate::state::job::{Job, SiteFacts};
use crate::state::node::HostCapacity;

/// What the rules changed in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteRulesReport {
    /// Jobs that start on other GPUs than planned, with the planned ones.
    pub moved: BTreeMap<JobKey, GpuSet>,
    /// Jobs that do not start.
    pub held_back: BTreeMap<JobKey, Reason>,
}

/// Moves or removes the starts in `plan` that break a rule.
pub(crate) fn apply(input: PlanningInput<'_>, plan: &mut Plan) -> SiteRulesReport {
    let mut report = SiteRulesReport::default();
    let state = input.state;
    let rules =
        |decision: &Decision| state.job(decision.job()).and_then(|job| job.facts.site.as_ref());
    let is_start = |decision: &Decision| matches!(decision, Decision::Start { .. });
    if !plan.decisions.iter().any(|decision| is_start(decision) && rules(decision).is_some()) {
        return report;
    }
    let mut hosts = Hosts::of(state);
    let mut planned = BTreeMap::new();
    for decision in &plan.decisions {
        if let Decision::Start { job, on, .. } = decision {
            planned.insert(*job, on.clone());
        }
    }
    let mut blocked = None;
    plan.decisions.retain_mut(|decision| {
        let Some(rules) = rules(decision) else { return true };
        let Decision::Start { job, on, observe, reason, .. } = decision else { return true };
        let Some(facts) = state.job(*job) else { return true };
        if has_shape(rules, on) && is_in_partition(state, rules, on) && hosts.fits(&rules.needs, on)
        {
            hosts.take(&rules.needs, on);
            return true;
        }
        planned.remove(job);
        let mut free = FreeCapacity::new(state, Scope::Idle);
        planned.values().for_each(|on| free.take(on));
        let Some(moved) = place(&free, &hosts, facts, rules, on) else {
            let reason = Reason::NoHostRoom { nodes: rules.nodes, gpus: on.gpu_count() };
            blocked = blocked.take().or(Some(Blocked { job: *job, reason: reason.clone() }));
            report.held_back.insert(*job, reason);
            return false;
        };
        hosts.take(&rules.needs, &moved);
        planned.insert(*job, moved.clone());
        report.moved.insert(*job, std::mem::replace(on, moved));
        (*observe, *reason) = (false, Reason::SiteRules { nodes: rules.nodes });
        true
    });
    if plan.blocked.is_none() {
        plan.blocked = blocked;
    }
    report
}

/// Whether the job has its number of nodes, with the same GPU indices on each.
fn has_shape(rules: &SiteFacts, on: &GpuSet) -> bool {
    let mut gpus = on.by_node.iter().map(|here| here.gpus);
    let first = gpus.next();
    on.node_count() == rules.nodes && gpus.all(|here| Some(here) == first)
}

/// Whether the job's nodes are in its partition.
fn is_in_partition(state: &ClusterState, rules: &SiteFacts, on: &GpuSet) -> bool {
    on.by_node.iter().all(|here| has_partition(state, rules, here.node))
}

fn has_partition(state: &ClusterState, rules: &SiteFacts, node: NodeKey) -> bool {
    let partitions = &state.node(node).facts.partitions;
    rules.partition.as_deref().is_none_or(|name| partitions.iter().any(|known| known == name))
}

/// Other free GPUs for a start: as many as planned, or the next smaller number that its nodes share evenly.
fn place(
    free: &FreeCapacity<'_>,
    hosts: &Hosts,
    job: &Job,
    rules: &SiteFacts,
    planned: &GpuSet,
) -> Option<GpuSet> {
    let state = free.state();
    let gpu_type = &state.node(planned.by_node.first()?.node).facts.gpu_type;
    let count = (planned.gpu_count() / rules.nodes).max(1);
    if count * rules.nodes < job.facts.request.min || count * rules.nodes > job.facts.request.max {
        return None;
    }
    let candidates: Vec<(NodeKey, u64)> = state
        .keyed_nodes()
        .filter(|(key, node)| {
            let facts = &node.facts;
            facts.gpu_type == *gpu_type
                && suits(facts, job)
                && has_partition(state, rules, *key)
                && hosts.has_room(*key, &rules.needs, count)
        })
        .map(|(key, _)| (key, free.free(key)))
        .filter(|(_, free)| free.count_ones() >= count)
        .collect();
    // The fullest nodes first, so that others stay entire.
    let mut seeds = candidates.clone();
    seeds.sort_by_key(|(key, free)| (free.count_ones(), *key));
    seeds.iter().find_map(|(key, free)| {
        let facts = state.node(*key);
        let block = gpus_in_node(*free, count, facts.facts.gpus, facts.gpus_per_board, true)?;
        let mut nodes: Vec<NodeKey> =
            seeds.iter().filter(|(_, free)| free & block == block).map(|(key, _)| *key).collect();
        nodes.truncate(rules.nodes as usize);
        nodes.sort_unstable();
        let by_node: Vec<NodeGpus> =
            nodes.into_iter().map(|node| NodeGpus { node, gpus: block }).collect();
        (by_node.len() == rules.nodes as usize).then_some(GpuSet { by_node })
    })
}

/// The CPUs and the memory of each node that no job holds; absent: not limited.
struct Hosts {
    free: Vec<Option<HostCapacity>>,
}

impl Hosts {
    fn of(state: &ClusterState) -> Self {
        Self { free: state.keyed_nodes().map(|(key, _)| free_on(state, key)).collect() }
    }

    fn has_room(&self, node: NodeKey, needs: &NodeNeeds, gpus: u32) -> bool {
        self.free[node.index()].is_none_or(|free| {
            needs.cpus_with(gpus) <= free.cpus && needs.memory_mib_with(gpus) <= free.memory_mib
        })
    }

    fn fits(&self, needs: &NodeNeeds, on: &GpuSet) -> bool {
        on.by_node.iter().all(|here| self.has_room(here.node, needs, here.gpus.count_ones()))
    }

    fn take(&mut self, needs: &NodeNeeds, on: &GpuSet) {
        for here in &on.by_node {
            if let Some(free) = &mut self.free[here.node.index()] {
                free.take(needs, here.gpus.count_ones());
            }
        }
    }
}

/// CPUs and memory of a node that its jobs do not hold; `None`: not limited.
fn free_on(state: &ClusterState, key: NodeKey) -> Option<HostCapacity> {
    let node = state.node(key);
    let mut free = node.facts.host?;
    let mut counted = Vec::new();
    for gpu in 0..node.facts.gpus {
        for &tenant in node.tenants(gpu) {
            if counted.contains(&tenant) {
                continue;
            }
            counted.push(tenant);
            let Some(job) = state.job(tenant) else { continue };
            let (Some(rules), Some(on)) = (&job.facts.site, job.state.gpus()) else { continue };
            let here = on.by_node.iter().find(|here| here.node == key);
            free.take(&rules.needs, here.map_or(0, |here| (here.gpus & ones(64)).count_ones()));
        }
    }
    Some(free)
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::job::{GpuRequest, GpuSetting};

    use super::*;
    use crate::allocation::test_cluster;
    use crate::plan::input::PlanningLimits;
    use crate::state::job::JobFacts;
    use crate::state::node::NodeFacts;

    fn cluster(hosts: &[(u32, u32)]) -> ClusterState {
        let mut state = test_cluster(&vec![4; hosts.len()]);
        for (i, (cpus, memory_mib)) in hosts.iter().enumerate() {
            let facts = (*state.node(NodeKey(i as u32)).facts).clone();
            let host = Some(HostCapacity { cpus: *cpus, memory_mib: *memory_mib });
            state.node_known(NodeFacts { host, ..facts });
        }
        state
    }

    fn arrives(state: &mut ClusterState, id: &str, gpus: GpuRequest, site: SiteFacts) -> JobKey {
        state.job_arrived(JobFacts { site: Some(site), ..JobFacts::new(id.parse().unwrap(), gpus) })
    }

    fn rules(nodes: u32, needs: NodeNeeds) -> SiteFacts {
        SiteFacts { nodes, partition: None, needs }
    }

    fn needs(cpus_per_gpu: u32, memory_mib: u32) -> NodeNeeds {
        NodeNeeds { cpus_per_gpu, memory_mib, ..NodeNeeds::default() }
    }

    fn starts(
        state: &ClusterState,
        planned: &[(JobKey, GpuSet)],
    ) -> (Vec<String>, Option<Blocked>) {
        let limits = PlanningLimits::default();
        let input = PlanningInput::new(state, &limits);
        let mut plan = Plan::default();
        let start =
            |(job, on): &(JobKey, GpuSet)| Decision::start(*job, on.clone(), Reason::FirstFit);
        plan.decisions.extend(planned.iter().map(start));
        apply(input, &mut plan);
        let on = |decision: &Decision| match decision {
            Decision::Start { on, .. } => state.placement(on).to_string(),
            _ => unreachable!("only starts"),
        };
        (plan.decisions.iter().map(on).collect(), plan.blocked)
    }

    #[test]
    fn a_start_moves_to_a_node_with_enough_cpus_and_memory() {
        let mut state = cluster(&[(8, 1_000), (32, 500), (32, 1_000)]);
        let site = rules(1, needs(8, 800));
        let job = arrives(&mut state, "a", GpuRequest::exactly(2), site);
        let (placed, _) = starts(&state, &[(job, GpuSet::on(NodeKey(0), 0b11))]);
        assert_eq!(placed, ["n2:0,1"]);
        // A start that fits stays.
        let (placed, _) = starts(&state, &[(job, GpuSet::on(NodeKey(2), 0b1100))]);
        assert_eq!(placed, ["n2:2,3"]);
    }

    #[test]
    fn cpus_of_running_and_of_planned_jobs_count_once() {
        let mut state = cluster(&[(16, 1_000), (16, 1_000)]);
        let site = rules(1, needs(4, 0));
        let running = arrives(&mut state, "r", GpuRequest::exactly(2), site.clone());
        state.job_restored(
            running,
            GpuSet::on(NodeKey(0), 0b11),
            GpuSetting::DEFAULT,
            Timestamp::EPOCH,
            false,
        );
        assert_eq!(free_on(&state, NodeKey(0)).map(|free| free.cpus), Some(8));
        let job =
            |state: &mut ClusterState, id| arrives(state, id, GpuRequest::exactly(2), site.clone());
        let (a, b) = (job(&mut state, "a"), job(&mut state, "b"));
        let wide = rules(1, needs(12, 0));
        let c = arrives(&mut state, "c", GpuRequest::exactly(1), wide);
        let planned = [
            (a, GpuSet::on(NodeKey(0), 0b1100)),
            (b, GpuSet::on(NodeKey(1), 0b11)),
            (c, GpuSet::on(NodeKey(1), 0b100)),
        ];
        let (placed, blocked) = starts(&state, &planned);
        assert_eq!(placed, ["n0:2,3", "n1:0,1"]);
        let blocked = blocked.unwrap();
        assert_eq!(blocked.job, c);
        assert!(blocked.reason.to_string().contains("CPUs"), "{}", blocked.reason);
    }

    #[test]
    fn a_start_moves_to_a_node_of_its_partition() {
        let mut state = cluster(&[(64, 9_000); 2]);
        let facts = (*state.node(NodeKey(1)).facts).clone();
        state.node_known(NodeFacts { partitions: vec!["debug".into(), "gpu".into()], ..facts });
        let site = SiteFacts { partition: Some("gpu".into()), ..rules(1, NodeNeeds::default()) };
        let job = arrives(&mut state, "a", GpuRequest::exactly(1), site);
        let (placed, _) = starts(&state, &[(job, GpuSet::on(NodeKey(0), 1))]);
        assert_eq!(placed, ["n1:0"]);
        let site = SiteFacts { partition: Some("cpu".into()), ..rules(1, NodeNeeds::default()) };
        let job = arrives(&mut state, "b", GpuRequest::exactly(1), site);
        let (placed, blocked) = starts(&state, &[(job, GpuSet::on(NodeKey(0), 1))]);
        assert!(placed.is_empty());
        assert!(blocked.unwrap().reason.to_string().contains("partition"));
    }

    #[test]
    fn nodes_of_one_job_get_the_same_indices() {
        let mut state = cluster(&[(64, 9_000); 4]);
        let pair = rules(2, NodeNeeds::default());
        let job = arrives(&mut state, "a", GpuRequest { min: 2, max: 4 }, pair);
        let blocker = rules(1, NodeNeeds::default());
        let other = arrives(&mut state, "b", GpuRequest::exactly(1), blocker);
        state.job_restored(
            other,
            GpuSet::on(NodeKey(0), 0b1),
            GpuSetting::DEFAULT,
            Timestamp::EPOCH,
            false,
        );
        // Four GPUs of one node, as a policy places them.
        let (placed, _) = starts(&state, &[(job, GpuSet::on(NodeKey(1), 0b1111))]);
        assert_eq!(placed, ["n0:2,3 n1:2,3"]);
        // Three cannot be shared evenly: two are left.
        let (placed, _) = starts(&state, &[(job, GpuSet::on(NodeKey(1), 0b111))]);
        assert_eq!(placed, ["n0:1 n1:1"]);
        let same = GpuSet {
            by_node: vec![
                NodeGpus { node: NodeKey(2), gpus: 0b100 },
                NodeGpus { node: NodeKey(3), gpus: 0b100 },
            ],
        };
        assert_eq!(starts(&state, &[(job, same)]).0, ["n2:2 n3:2"]);
    }
}

//! What the limits of feeders and nodes leave: to the whole site, and to the jobs that a plan starts.
//!
//! A policy that shares out the power of the site counts with [`total_w`]. Placement then prefers GPUs whose limits
//! leave the power that a job needs ([`Headroom`]). The enforcement of the limits ([`crate::power::limits`]) changes
//! what does not fit nevertheless.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;

use crate::plan::input::PlanningInput;
use crate::plan::{Decision, Plan};
use crate::power::bounds::{Bound, Counted};
use crate::power::model::{JobGpus, PowerSum, awake_w, idle_w, least_counted_w};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::State;
use crate::state::node::{Node, Wakefulness};

/// The power that all limits together leave to the nodes, watts: the site's limit, or less where those of feeders and
/// nodes add up to less. `None` where they leave no less than the nodes can draw.
///
/// It bounds the power of every plan within the limits, and is the least such bound where each feeder carries all
/// power of its nodes: limits are added up along the tree, each as the lesser of its own and the sum of those below.
pub(crate) fn total_w(input: PlanningInput<'_>) -> Option<f64> {
    let site = input.limits.power_max.map(Power::as_w);
    if input.limits.power_bounds.is_empty() {
        return site;
    }
    // Parts of the site with the most that each can draw.
    let most = |node: &Node| {
        let limits = input.state.gpu_power(&node.facts.gpu_type);
        let gpu_w = limits.map_or(f64::INFINITY, |power| power.most.as_w() - idle_w(input, node));
        awake_w(input, node) + f64::from(node.facts.gpus) * gpu_w
    };
    let mut parts: Vec<(f64, usize)> =
        input.state.nodes().iter().map(|node| (most(node), 1)).collect();
    let mut part_of: Vec<usize> = (0..parts.len()).collect();
    let unlimited_w: f64 = parts.iter().map(|(watts, _)| watts).sum();
    let mut bounds: Vec<(Vec<NodeKey>, f64)> = Vec::new();
    for bound in Bound::all(input).iter().filter(|bound| bound.is_local()) {
        let shares: Vec<(NodeKey, f64)> = bound.shares(input.state).collect();
        let least = shares.iter().map(|(_, share)| *share).fold(1.0, f64::min);
        let nodes: Vec<NodeKey> = shares.into_iter().map(|(node, _)| node).collect();
        let watts = match bound.counted {
            Counted::Nodes => bound.limit_w / least,
            Counted::Caps => {
                let idle = |node: &NodeKey| {
                    let node = input.state.node(*node);
                    awake_w(input, node) - f64::from(node.facts.gpus) * idle_w(input, node)
                };
                bound.limit_w + nodes.iter().map(idle).sum::<f64>()
            }
        };
        bounds.push((nodes, watts));
    }
    bounds.sort_by_key(|(nodes, _)| nodes.len());
    for (nodes, watts) in bounds {
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        nodes.iter().for_each(|node| *found.entry(part_of[node.index()]).or_default() += 1);
        found.retain(|part, count| parts[*part].1 == *count);
        if watts >= found.keys().map(|part| parts[*part].0).sum() {
            continue;
        }
        let count = found.values().sum();
        for node in nodes {
            let part = &mut part_of[node.index()];
            if found.contains_key(part) {
                *part = parts.len();
            }
        }
        found.keys().for_each(|part| parts[*part] = (0.0, 0));
        parts.push((watts, count));
    }
    let total_w: f64 = parts.iter().map(|(watts, _)| watts).sum();
    let by_feeders = (total_w < unlimited_w).then_some(total_w);
    site.into_iter().chain(by_feeders).reduce(f64::min)
}

/// What the limits of feeders and nodes leave while a plan places jobs.
pub(crate) struct Headroom<'a> {
    input: PlanningInput<'a>,
    limits: Vec<Limit>,
    /// The limits of each node, with the part of its power that counts.
    of_node: Vec<Vec<(usize, f64)>>,
    /// Sleeping nodes that wake for jobs of the plan.
    woken: BTreeSet<NodeKey>,
}

struct Limit {
    counted: Counted,
    left_w: f64,
}

impl<'a> Headroom<'a> {
    /// What the running jobs leave once this plan is carried out, apart from its wake-ups. A job that stops draws power
    /// until it has stopped. `None` without limits of feeders and nodes.
    pub(crate) fn after(input: PlanningInput<'a>, plan: &Plan) -> Option<Self> {
        if input.limits.power_bounds.is_empty() {
            return None;
        }
        let mut settings = BTreeMap::new();
        let mut started: Vec<(JobKey, &GpuSet)> = Vec::new();
        for decision in &plan.decisions {
            match decision {
                Decision::Set { job, setting, .. } => _ = settings.insert(*job, *setting),
                Decision::Start { job, on, setting, .. } => {
                    settings.insert(*job, *setting);
                    started.push((*job, on));
                }
                _ => {}
            }
        }
        let mut drawn = PowerSum::new(input);
        let running = input.state.running().filter_map(|(key, job)| Some((key, job.state.gpus()?)));
        for (key, on) in running.chain(started) {
            let Some((job, here)) = input.state.job(key).zip(on.by_node.first()) else { continue };
            let present = match &job.state {
                State::Running { setting, .. } | State::Stopping { setting, .. } => Some(*setting),
                State::Queued => None,
            };
            let setting = settings.get(&key).copied().or(present).unwrap_or_default();
            let gpu_type = &input.state.node(here.node).facts.gpu_type;
            drawn.add(on, JobGpus::on(input, job, gpu_type, on).expected_w(input, setting));
        }
        let bounds = Bound::all(input).into_iter().filter(Bound::is_local);
        let mut of_node = vec![Vec::new(); input.state.nodes().len()];
        let limits = bounds.enumerate().map(|(index, bound)| {
            for (node, share) in bound.shares(input.state) {
                of_node[node.index()].push((index, share));
            }
            let left_w = bound.limit_w - drawn.bounded_w(&bound, std::iter::empty());
            Limit { counted: bound.counted, left_w }
        });
        let limits = limits.collect();
        Some(Self { input, limits, of_node, woken: BTreeSet::new() })
    }

    /// Whether the limits leave these GPUs this power each.
    pub(crate) fn fits(&self, on: &GpuSet, gpu_w: f64) -> bool {
        self.added_w(on, gpu_w).into_iter().all(|(limit, watts)| {
            let left_w = self.limits[limit].left_w;
            watts <= left_w + 1e-6
        })
    }

    /// A job starts on these GPUs, at once or once their nodes are awake, and draws this power of each.
    pub(crate) fn take(&mut self, on: &GpuSet, gpu_w: f64) {
        for (limit, watts) in self.added_w(on, gpu_w) {
            self.limits[limit].left_w -= watts;
        }
        let nodes = on.by_node.iter().map(|here| here.node);
        let woken: Vec<NodeKey> = nodes.filter(|node| self.wakes(*node)).collect();
        self.woken.extend(woken);
    }

    /// Whether a node sleeps and nothing wakes it yet.
    fn wakes(&self, node: NodeKey) -> bool {
        self.input.state.node(node).wakefulness == Wakefulness::Asleep
            && !self.woken.contains(&node)
    }

    /// What counts more within each limit if these GPUs draw this power each, watts.
    fn added_w(&self, on: &GpuSet, gpu_w: f64) -> BTreeMap<usize, f64> {
        let mut added = BTreeMap::new();
        for here in &on.by_node {
            let node = self.input.state.node(here.node);
            let gpus = f64::from(here.gpus.count_ones());
            for &(limit, share) in &self.of_node[here.node.index()] {
                let least_w = least_counted_w(self.input, node, self.limits[limit].counted);
                let mut watts = gpus * (gpu_w - least_w).max(0.0);
                if self.limits[limit].counted == Counted::Nodes && self.wakes(here.node) {
                    let asleep_w = node.facts.watts.map_or(0.0, |watts| watts.asleep.as_w());
                    watts += (awake_w(self.input, node) - asleep_w).max(0.0);
                }
                *added.entry(limit).or_insert(0.0) += share * watts;
            }
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::allocation::test_cluster;
    use crate::plan::input::PlanningLimits;
    use crate::power::bounds::PowerBound;
    use crate::state::cluster::ClusterState;
    use crate::state::node::GpuPower;
    use wattle_common::feeders::FeederLimit;
    use wattle_common::{FeederId, NodeId};

    const HOST_W: f64 = 300.0;
    const IDLE_W: f64 = 40.0;
    const MOST_W: f64 = 250.0;

    /// Four nodes of two GPUs.
    fn cluster() -> ClusterState {
        let mut state = test_cluster(&[2; 4]);
        let w = Power::from_w_f64;
        let draw =
            GpuPower { idle: w(IDLE_W), most: w(MOST_W), cap_min: Some(w(100.0)), host: w(HOST_W) };
        state.gpu_power_known([("v100".to_owned(), draw)].into());
        state
    }

    fn node(index: usize) -> NodeId {
        format!("n{index}").parse().expect("an id")
    }

    /// A feeder that carries this part of the power of these nodes.
    fn feeder(nodes: &[usize], share: f64, limit_w: u64) -> PowerBound {
        PowerBound::Feeder(Arc::new(FeederLimit {
            feeder: FeederId::new("pdu").expect("a name"),
            lost: None,
            limit: Power::from_w(limit_w),
            static_load: Power::from_w(100),
            shares: nodes.iter().map(|index| (node(*index), share)).collect(),
        }))
    }

    fn limits(site_w: Option<u64>, bounds: Vec<PowerBound>) -> PlanningLimits {
        PlanningLimits {
            power_max: site_w.map(Power::from_w),
            power_bounds: Arc::new(bounds.into()),
            ..PlanningLimits::default()
        }
    }

    #[test]
    fn the_limits_of_a_site_add_up_along_its_feeders() {
        let state = cluster();
        let total = |site_w, bounds: Vec<PowerBound>| {
            let limits = limits(site_w, bounds);
            total_w(PlanningInput::new(&state, &limits))
        };
        let close = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-6), "{found:?}");
        };
        // A node draws 800 W at most.
        assert_eq!(total(None, vec![]), None);
        assert_eq!(total(Some(2_000), vec![]), Some(2_000.0));
        assert_eq!(total(None, vec![feeder(&[0, 1], 1.0, 1_700)]), None, "it cannot bind");
        close(total(None, vec![feeder(&[0, 1], 1.0, 1_300)]), 1_200.0 + 2.0 * 800.0);
        close(total(Some(2_500), vec![feeder(&[0, 1], 1.0, 1_300)]), 2_500.0);
        // A feeder above two others, then one that leaves more than these.
        let two = || vec![feeder(&[0, 1], 1.0, 1_300), feeder(&[2, 3], 1.0, 1_100)];
        let with = |limit_w| [two(), vec![feeder(&[0, 1, 2, 3], 1.0, limit_w)]].concat();
        close(total(None, two()), 2_200.0);
        close(total(None, with(1_900)), 1_800.0);
        close(total(None, with(2_900)), 2_200.0);
        // Half of the power of each node.
        close(total(None, vec![feeder(&[0, 1, 2, 3], 0.5, 1_000)]), 1_800.0);
        // Both GPUs of a node are capped to 150 W, less one each for entire watts.
        close(
            total(None, vec![PowerBound::Node(node(3), Power::from_w(302))]),
            HOST_W + 300.0 + 3.0 * 800.0,
        );
    }

    #[test]
    fn jobs_take_what_the_limits_of_their_nodes_leave() {
        let mut state = cluster();
        let (first, second) = (NodeKey::at(0), NodeKey::at(1));
        let asleep = Power::from_w(30);
        let watts = crate::state::node::NodeWatts {
            gpu_idle: Power::from_w_f64(IDLE_W),
            host: Power::from_w_f64(HOST_W),
            asleep,
            wakes_in: std::time::Duration::from_secs(60),
        };
        let facts = state.node(second).facts.clone();
        state.node_known(crate::state::node::NodeFacts { watts: Some(watts), ..(*facts).clone() });
        state.wakefulness_changed(second, Wakefulness::Asleep);
        // 100 W static load, an awake node of 380 W, a sleeping one of 30 W, and 200 W above idle.
        let limits = limits(None, vec![feeder(&[0, 1], 1.0, 100 + 380 + 30 + 200)]);
        let input = PlanningInput::new(&state, &limits);
        let mut headroom = Headroom::after(input, &Plan::default()).expect("a limit");
        let on = |node, gpus| GpuSet::on(node, gpus);
        assert!(headroom.fits(&on(first, 0b1), 240.0));
        assert!(!headroom.fits(&on(first, 0b11), 150.0));
        assert!(!headroom.fits(&on(second, 0b1), 100.0), "350 W more, awake");
        assert!(headroom.fits(&on(NodeKey::at(2), 0b11), 250.0), "no limit");
        headroom.take(&on(first, 0b1), 140.0);
        assert!(headroom.fits(&on(first, 0b10), 140.0));
        assert!(!headroom.fits(&on(first, 0b10), 141.0));
        let none = PlanningLimits::default();
        let input = PlanningInput::new(&state, &none);
        assert!(Headroom::after(input, &Plan::default()).is_none());
    }
}

//! Feeders of a simulated cluster: what each carries, whole and with each single feeder lost.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::NodeId;
use wattle_common::feeders::{FeederError, FeederLimit, FeederTree, Place};
use wattle_placer::NodeKey;
use wattle_world::World;

use crate::engine::node_id;
use crate::gpus::Gpus;
use crate::scenario::Scenario;

/// What a feeder carried during a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeederUse {
    /// Its name.
    pub name: String,
    /// Its limit.
    pub limit_kw: f64,
    /// The highest power with every feeder in operation.
    pub power_kw_peak: f64,
    /// The highest power with every feeder in operation or any single one lost.
    pub power_kw_peak_worst: f64,
    /// The lost feeder of that power; absent: no loss raises it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Time during which its limit was exceeded, or would have been with a single feeder lost.
    pub power_exceeded_s: f64,
}

impl Scenario {
    /// Puts the nodes on feeders.
    ///
    /// # Errors
    /// Where a node is on no feeder, or a limit is below what the nodes on it draw without jobs.
    pub fn set_feeders(&mut self, world: &World, tree: FeederTree) -> Result<(), FeederError> {
        let mut idle = BTreeMap::new();
        for (at, (gpus, gpu_type)) in self.cluster.nodes().enumerate() {
            let id = node_id(at);
            if !tree.feeds(&id) {
                let last = Place::Connection(tree.connections().len().saturating_sub(1));
                let problem = format!(
                    "node {id} of the simulated cluster is on no feeder; its nodes are n0, n1 and so on: name each \
                     of them in a table [[node]]"
                );
                return Err(FeederError { place: last, problem });
            }
            if let Some(gpu) = world.gpu(gpu_type) {
                let gpus_idle = gpu.idle.scale(f64::from(gpus));
                idle.insert(id, world.host_power_of(gpu, gpus) + gpus_idle);
            }
        }
        tree.check_idle(|node| idle.get(node).copied())?;
        self.feeders = tree;
        Ok(())
    }
}

/// What a feeder carries of the power of a simulated cluster.
pub(crate) struct CarriedPower {
    /// The nodes as keys with their shares.
    shares: Vec<(NodeKey, f64)>,
    static_w: f64,
}

impl CarriedPower {
    pub(crate) fn new(scenario: &Scenario, limit: &FeederLimit) -> Self {
        let ids = (0..scenario.cluster.node_count()).map(node_id);
        let keys: BTreeMap<NodeId, NodeKey> = ids.zip((0..).map(NodeKey::at)).collect();
        let shares = limit.shares.iter();
        let shares = shares.filter_map(|(node, share)| Some((*keys.get(node)?, *share)));
        Self { shares: shares.collect(), static_w: limit.static_load.as_w() }
    }

    /// Its power if each node draws this much, watts.
    pub(crate) fn power_w(&self, node_w: impl Fn(NodeKey) -> f64) -> f64 {
        self.static_w + self.shares.iter().map(|(node, share)| share * node_w(*node)).sum::<f64>()
    }
}

/// One limit with its measured highest power.
struct Metered {
    limit: FeederLimit,
    carried: CarriedPower,
    peak_w: f64,
}

/// Accumulates [`FeederUse`].
pub(crate) struct FeederMeter {
    /// The limits of each feeder: with every feeder in operation first.
    by_feeder: Vec<(Vec<Metered>, u64)>,
}

impl FeederMeter {
    /// `None` for a cluster without feeders.
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let tree = &scenario.feeders;
        let metered = |limit: FeederLimit| Metered {
            carried: CarriedPower::new(scenario, &limit),
            limit,
            peak_w: 0.0,
        };
        let limits = tree.limits();
        let by_feeder = tree.feeders().iter().zip(tree.wholes()).filter_map(|(feeder, whole)| {
            let whole = whole?;
            let lost = limits.iter().filter(|limit| limit.feeder == feeder.name);
            let lost = lost.filter(|limit| limit.lost.is_some()).cloned();
            Some(([whole].into_iter().chain(lost).map(metered).collect(), 0))
        });
        (!tree.is_empty()).then(|| Self { by_feeder: by_feeder.collect() })
    }

    /// Adds an interval in which the state of the GPUs was constant.
    pub(crate) fn add(&mut self, gpus: &Gpus<'_>, span_us: u64) {
        if span_us == 0 {
            return;
        }
        for (limits, exceeded_us) in &mut self.by_feeder {
            let mut is_exceeded = false;
            for metered in limits {
                let power_w = metered.carried.power_w(|node| gpus.node_mw(node) as f64 / 1e3);
                metered.peak_w = metered.peak_w.max(power_w);
                // To the milliwatt, as powers are.
                is_exceeded |= power_w > metered.limit.limit.as_w() + 1e-3;
            }
            *exceeded_us += if is_exceeded { span_us } else { 0 };
        }
    }

    /// What each feeder carried.
    pub(crate) fn outcome(&self) -> Vec<FeederUse> {
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        let of =
            |(limits, exceeded_us): &(Vec<Metered>, u64)| {
                let whole = limits.first()?;
                let worst = limits.iter().fold(whole, |worst, limit| {
                    if limit.peak_w > worst.peak_w { limit } else { worst }
                });
                Some(FeederUse {
                    name: whole.limit.feeder.to_string(),
                    limit_kw: rounded(whole.limit.limit.as_w() / 1e3),
                    power_kw_peak: rounded(whole.peak_w / 1e3),
                    power_kw_peak_worst: rounded(worst.peak_w / 1e3),
                    lost: worst.limit.lost.as_ref().map(ToString::to_string),
                    power_exceeded_s: rounded(*exceeded_us as f64 / 1e6),
                })
            };
        self.by_feeder.iter().filter_map(of).collect()
    }
}

impl FeederUse {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { name, limit_kw, power_kw_peak, power_kw_peak_worst, lost, power_exceeded_s } =
            self;
        let if_lost = lost.as_ref().map_or_else(String::new, |lost| {
            format!(", {power_kw_peak_worst:.2} kW if {lost} were lost")
        });
        format!(
            "feeder {name}: peak {power_kw_peak:.2} of {limit_kw:.2} kW{if_lost}, above the limit for \
             {power_exceeded_s:.0} s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_the_lost_feeder() {
        let used = FeederUse {
            name: "pdu-a".to_owned(),
            limit_kw: 4.0,
            power_kw_peak: 2.1,
            power_kw_peak_worst: 3.95,
            lost: Some("pdu-b".to_owned()),
            power_exceeded_s: 0.0,
        };
        let words = "feeder pdu-a: peak 2.10 of 4.00 kW, 3.95 kW if pdu-b were lost, above the limit for 0 s";
        assert_eq!(used.words(), words);
    }
}

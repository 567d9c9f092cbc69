//! Placement: which GPUs of which nodes each job gets, and the decisions that lead from one allocation
//! to the next.

mod buddy;
pub mod capacity;
pub mod feasibility;
pub mod first_fit;
mod network;
pub mod restart_rules;
pub mod settling;
pub(crate) mod site_rules;
pub mod transition;
mod type_choice;

/// A cluster of V100 nodes with these GPU counts, for tests.
#[cfg(test)]
pub(crate) fn test_cluster(sizes: &[u32]) -> crate::state::cluster::ClusterState {
    let mut state = crate::state::cluster::ClusterState::new();
    for (i, &gpus) in sizes.iter().enumerate() {
        state.node_known(crate::state::node::NodeFacts {
            id: format!("n{i}").parse().expect("an id"),
            gpu_type: "v100".to_owned(),
            gpus,
            memory_mib: Some(16_384),
            healthy: u64::MAX,
            watts: None,
            host: None,
            partitions: Vec::new(),
        });
    }
    state
}

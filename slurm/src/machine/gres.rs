//! The generic resources that a placement becomes in Slurm.

use std::collections::BTreeSet;

use wattle_common::job::NodeShare;
use wattle_common::{GpuIndex, NodeId};
use wattle_site::Level;

use crate::view::{SlurmJob, SlurmState, SlurmView};

/// Why a placement cannot be expressed in Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Slurm gives a job the same GPU indices, or at level `start` the same number of GPUs, on each of its nodes"
)]
pub(super) struct Inexpressible;

/// The resources for each node: `gpu:2`, or `gpu:g1:1,guest:g3:1` where another job holds GPU 3 as `gpu`.
pub(super) fn text(
    level: Level,
    shares: &[NodeShare],
    held: &BTreeSet<(NodeId, GpuIndex)>,
) -> Result<String, Inexpressible> {
    let first = shares.first().ok_or(Inexpressible)?;
    if level < Level::Exact {
        let is_even = shares.iter().all(|share| share.gpus.len() == first.gpus.len());
        return if is_even { Ok(format!("gpu:{}", first.gpus.len())) } else { Err(Inexpressible) };
    }
    let gpus: BTreeSet<GpuIndex> = first.gpus.iter().copied().collect();
    let is_same = |share: &NodeShare| share.gpus.iter().copied().collect::<BTreeSet<_>>() == gpus;
    if gpus.is_empty() || !shares.iter().all(is_same) {
        return Err(Inexpressible);
    }
    let is_guest = |gpu: GpuIndex| {
        level >= Level::Share
            && shares.iter().any(|share| held.contains(&(share.node.clone(), gpu)))
    };
    let (guests, firsts): (Vec<GpuIndex>, Vec<GpuIndex>) =
        gpus.into_iter().partition(|gpu| is_guest(*gpu));
    let items = |name: &'static str, gpus: Vec<GpuIndex>| {
        gpus.into_iter().map(move |gpu| format!("{name}:g{gpu}:1"))
    };
    let all: Vec<String> = items("gpu", firsts).chain(items("guest", guests)).collect();
    Ok(all.join(","))
}

/// The GPUs that a request names with this resource name: `gpu:g1:1,guest:g3:1`.
fn named(gres: &str, name: &str) -> BTreeSet<GpuIndex> {
    let index = |item: &str| {
        let rest = item.strip_prefix(name)?.strip_prefix(":g")?;
        rest.split(':').next()?.parse().ok()
    };
    gres.split(',').filter_map(index).collect()
}

/// The GPUs that jobs other than `id` hold as `gpu`, or will when they start: released jobs with named GPUs.
pub(super) fn held_by_others(view: &SlurmView, id: u32) -> BTreeSet<(NodeId, GpuIndex)> {
    let mut held = BTreeSet::new();
    for job in view.jobs.values().filter(|job| job.id != id && !job.state.is_final()) {
        let guests = named(&job.gres, "guest");
        for share in &job.on {
            let gpus = share.gpus.iter().filter(|gpu| !guests.contains(gpu));
            held.extend(gpus.map(|gpu| (share.node.clone(), *gpu)));
        }
        if is_released(job) {
            let gpus = named(&job.gres, "gpu");
            let nodes = job.required_nodes.iter();
            held.extend(nodes.flat_map(|node| gpus.iter().map(|gpu| (node.clone(), *gpu))));
        }
    }
    held
}

const fn is_released(job: &SlurmJob) -> bool {
    matches!(job.state, SlurmState::Pending) && !job.held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(node: &str, gpus: &[GpuIndex]) -> NodeShare {
        NodeShare { node: node.parse().unwrap(), gpus: gpus.to_vec() }
    }

    #[test]
    fn text_depends_on_the_level_and_on_what_others_hold() {
        let shares = [share("a", &[1, 3]), share("b", &[1, 3])];
        let held = BTreeSet::from([("b".parse().unwrap(), 3), ("c".parse().unwrap(), 1)]);
        assert_eq!(text(Level::Start, &shares, &held), Ok("gpu:2".to_owned()));
        assert_eq!(text(Level::Exact, &shares, &held), Ok("gpu:g1:1,gpu:g3:1".to_owned()));
        assert_eq!(text(Level::Share, &shares, &held), Ok("gpu:g1:1,guest:g3:1".to_owned()));
        let uneven = [share("a", &[1, 3]), share("b", &[1])];
        let other = [share("a", &[1]), share("b", &[2])];
        assert_eq!(text(Level::Start, &uneven, &held), Err(Inexpressible));
        assert_eq!(text(Level::Start, &other, &held), Ok("gpu:1".to_owned()));
        assert_eq!(text(Level::Exact, &other, &held), Err(Inexpressible));
        assert_eq!(text(Level::Exact, &[], &held), Err(Inexpressible));
        assert_eq!(named("gpu:g1:1,guest:g12:1,gpu:2", "guest"), BTreeSet::from([12]));
    }
}

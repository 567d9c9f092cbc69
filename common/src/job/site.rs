//! Jobs that the site's scheduler runs, such as Slurm's, and the resources that they need of a node.

use serde::{Deserialize, Serialize};

/// A job in the site's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteJob {
    /// Its id there: `42`, or `11_2` for a task of an array.
    pub id: String,
    /// Whether the site's scheduler chooses its start and its GPUs. Only its caps and clocks are then
    /// Wattle's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub placed_by_site: bool,
    /// Number of nodes, each with the same GPU indices; absent: one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The partition whose nodes it may use; absent: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// CPUs and memory that the job needs on each node.
    #[serde(default, skip_serializing_if = "NodeNeeds::is_none")]
    pub needs: NodeNeeds,
}

/// CPUs and memory that a job needs of each of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNeeds {
    /// CPUs, whatever its number of GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpus: u32,
    /// CPUs for each of its GPUs there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpus_per_gpu: u32,
    /// Memory, MiB, whatever its number of GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mib: u32,
    /// Memory for each of its GPUs there, MiB.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mib_per_gpu: u32,
}

impl NodeNeeds {
    /// Whether it needs nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// CPUs on a node where it has this many GPUs.
    #[must_use]
    pub fn cpus_with(&self, gpus: u32) -> u32 {
        self.cpus.max(self.cpus_per_gpu.saturating_mul(gpus))
    }

    /// Memory on a node where it has this many GPUs, MiB.
    #[must_use]
    pub fn memory_mib_with(&self, gpus: u32) -> u32 {
        self.memory_mib.max(self.memory_mib_per_gpu.saturating_mul(gpus))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

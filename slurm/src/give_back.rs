//! Giving jobs back to Slurm: the request that a job was submitted with, from its tag.

use crate::tag::Tag;
use crate::text::gres::{GresList, index_of_type};
use crate::view::{SlurmJob, SlurmState};

/// A pending job that is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The job.
    pub id: u32,
    /// Its administrator's comment, which it must still have.
    pub admin_comment: String,
    /// Number of nodes as submitted.
    pub nodes: u32,
    /// Generic resources of each node as submitted; absent: the job still has them.
    pub gres: Option<String>,
    /// The submitted number of GPUs as a request with types, for Slurm 22.05: there a job that has had types
    /// cannot lose them.
    pub typed_gres: String,
    /// Whether it has to be released; otherwise its owner holds it.
    pub release: bool,
}

/// What gives a job back; `None` for a job without tag and one that is not pending.
#[must_use]
pub fn give_back(job: &SlurmJob) -> Option<GiveBack> {
    let tag = Tag::parse(&job.admin_comment)?;
    if job.state != SlurmState::Pending {
        return None;
    }
    let submitted = format!("gpu:{}", tag.gpus_per_node);
    let now = GresList::parse(&job.gres).unwrap_or_default();
    let types: Vec<&str> = now.types("gpu").map(|(kind, _)| kind).collect();
    let keeps_types = now.count("gpu") == u64::from(tag.gpus_per_node)
        && types.iter().all(|kind| index_of_type(kind).is_some());
    let typed_gres = if keeps_types {
        now.to_string()
    } else {
        (0..tag.gpus_per_node).map(|gpu| format!("gpu:g{gpu}:1")).collect::<Vec<_>>().join(",")
    };
    // Its owner's hold is the only one of the reason JobHeldUser, unless the intake held it, too.
    let is_owners = tag.held_by_owner && job.reason == "JobHeldUser";
    Some(GiveBack {
        id: job.id,
        admin_comment: job.admin_comment.clone(),
        nodes: tag.nodes,
        gres: (now.to_string() != submitted).then_some(submitted),
        typed_gres,
        release: job.held && !is_owners,
    })
}

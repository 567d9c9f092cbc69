//! From a job in Slurm to its specification in Wattle.

use wattle_common::bounds::DURATION_MAX;
use wattle_common::id::UserId;
use wattle_common::job::{GpuRequest, JobSpec, SiteJob};
use wattle_common::{JobId, Timestamp};
use wattle_site::Terms;

use crate::tag::Tag;
use crate::view::SlurmJob;

/// The first part of the id of every job that is Slurm's.
const PREFIX: &str = "slurm-";

/// Longest name of a job, characters.
const NAME_LEN_MAX: usize = 200;

/// The id of a job with this tag, or that was first seen with this submission time.
#[must_use]
pub fn job_id(slurm_id: u32, tag: Option<&Tag>, submitted_at: Timestamp) -> Option<JobId> {
    let suffix =
        tag.map_or_else(|| format!("{:x}", submitted_at.as_us() / 1_000_000), |tag| tag.id.clone());
    JobId::new(&format!("{PREFIX}{slurm_id}-{suffix}")).ok()
}

/// Slurm's job id in the id of a job; `None` for a job that is not Slurm's.
#[must_use]
pub fn slurm_id(job: &JobId) -> Option<u32> {
    job.as_str().strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// The part of a job's id after Slurm's job id: its tag, if it has one.
#[must_use]
pub fn suffix(job: &JobId) -> Option<&str> {
    Some(job.as_str().strip_prefix(PREFIX)?.split_once('-')?.1)
}

/// The user of a job in Wattle.
#[must_use]
pub fn user_of(job: &SlurmJob) -> UserId {
    UserId::of_local(&job.user)
}

/// The specification of a job in Slurm.
///
/// `gpu_types` are the node features that name a GPU type. Slurm's time limit is a bound and no estimate, so
/// the duration stays unknown; the policy `backfill` reads the limit. Without a tag Slurm places the job.
#[must_use]
pub fn spec(
    id: JobId,
    job: &SlurmJob,
    tag: Option<&Tag>,
    terms: &Terms,
    gpu_types: &[String],
) -> JobSpec {
    let placed_by_site = tag.is_none();
    let held = job.on.iter().map(|share| share.gpus.len() as u32).sum::<u32>();
    let (nodes, total) = match tag {
        Some(tag) => (tag.nodes, tag.nodes.saturating_mul(tag.gpus_per_node)),
        None if held > 0 => (job.on.len() as u32, held),
        None => (job.nodes.max(1), job.nodes.max(1).saturating_mul(job.gpus_per_node.max(1))),
    };
    let gpus = match terms.gpus {
        Some(range) if !placed_by_site => in_multiples(range, nodes, total),
        _ => GpuRequest::exactly(total),
    };
    let may_restart = !placed_by_site && job.requeue && job.is_batch;
    let gpu_type = gpu_types.iter().find(|known| known.eq_ignore_ascii_case(&job.features));
    JobSpec {
        job: id,
        name: job.name.chars().filter(|c| !c.is_control()).take(NAME_LEN_MAX).collect(),
        user: Some(user_of(job).as_str().to_owned()),
        project: terms.project.clone(),
        workload: terms.workload.clone(),
        gpus,
        // The intake leaves jobs with whole nodes to Slurm; Slurm 26.05 shows others like them.
        exclusive: terms.exclusive || (placed_by_site && job.whole_nodes),
        consents_to_sharing: terms.share,
        max_slowdown_permille: terms.max_slowdown_permille,
        flexibility: terms.flexibility,
        priority: 0,
        deadline_at_us: terms.deadline,
        slack_ms: terms.slack_ms,
        duration_ms_estimate: None,
        time_limit_ms: job.time_limit.map(|limit| limit.min(DURATION_MAX).as_millis() as u64),
        memory_mib_max: None,
        gpu_type: gpu_type.map(|known| known.to_ascii_lowercase()),
        checkpoint_signal: terms.checkpoint_signal.filter(|_| may_restart).map(str::to_owned),
        command: Vec::new(),
        environment: Vec::new(),
        working_dir: None,
        site: Some(SiteJob {
            id: job.array.clone().unwrap_or_else(|| job.id.to_string()),
            placed_by_site,
            nodes: (nodes > 1).then_some(nodes),
            partition: Some(job.partition.clone()),
            needs: job.needs,
        }),
        submitted_at_us: job.submitted_at,
    }
}

/// The part of a range that consists of multiples of `nodes`; the submitted number if there is none.
fn in_multiples(range: GpuRequest, nodes: u32, submitted: u32) -> GpuRequest {
    let nodes = nodes.max(1);
    let min = range.min.div_ceil(nodes) * nodes;
    let max = range.max / nodes * nodes;
    if min == 0 || min > max { GpuRequest::exactly(submitted) } else { GpuRequest { min, max } }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::SlurmState;
    use wattle_common::job::{NodeNeeds, NodeShare};

    fn job() -> SlurmJob {
        SlurmJob {
            id: 42,
            array: None,
            unsplit_tasks: Vec::new(),
            name: "train\nx".to_owned(),
            user: "ada.l".to_owned(),
            uid: 1_000,
            account: "lab".to_owned(),
            partition: "gpu".to_owned(),
            state: SlurmState::Pending,
            reason: "JobHeldAdmin".to_owned(),
            held: true,
            is_batch: true,
            requeue: true,
            restarts: 0,
            submitted_at: Timestamp::from_s(0x1234),
            started_at: None,
            ended_at: None,
            time_limit: None,
            waits: false,
            nodes: 2,
            gpus_per_node: 2,
            needs: NodeNeeds { cpus: 4, ..NodeNeeds::default() },
            features: "V100".to_owned(),
            gres: "gpu:2".to_owned(),
            required_nodes: Vec::new(),
            whole_nodes: false,
            is_special: false,
            on: Vec::new(),
            exit: None,
            comment: String::new(),
            admin_comment: String::new(),
            output: String::new(),
        }
    }

    fn tag() -> Tag {
        Tag { id: "ab1".to_owned(), nodes: 2, gpus_per_node: 2, held_by_owner: false }
    }

    #[test]
    fn ids_are_parsed_back() {
        let tagged = job_id(42, Some(&tag()), Timestamp::EPOCH).unwrap();
        assert_eq!((tagged.as_str(), slurm_id(&tagged)), ("slurm-42-ab1", Some(42)));
        assert_eq!(suffix(&tagged), Some("ab1"));
        let seen = job_id(42, None, Timestamp::from_s(0x1234)).unwrap();
        assert_eq!(seen.as_str(), "slurm-42-1234");
        for other in ["slurm-42", "slurm-x-1", "train-42-1"] {
            assert_eq!(slurm_id(&JobId::new(other).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn tagged_job_is_placed_by_wattle() {
        let terms = Terms::parse("wattle: gpus=3..9 signal=USR1 share", 0).unwrap();
        let id = JobId::new("slurm-42-ab1").unwrap();
        let types = ["v100".to_owned()];
        let limited = SlurmJob { time_limit: Some(Duration::from_secs(7_200)), ..job() };
        let spec = spec(id.clone(), &limited, Some(&tag()), &terms, &types);
        assert_eq!(spec.time_limit_ms, Some(7_200_000));
        assert_eq!(spec.gpus, GpuRequest { min: 4, max: 8 }, "the same number on both nodes");
        assert_eq!(spec.user.as_deref(), Some("ada-l"));
        assert_eq!(spec.name, "trainx");
        assert_eq!(spec.gpu_type.as_deref(), Some("v100"));
        assert_eq!(spec.checkpoint_signal.as_deref(), Some("SIGUSR1"));
        assert!(spec.consents_to_sharing && spec.command.is_empty());
        let site = spec.site.unwrap();
        assert_eq!((site.id.as_str(), site.nodes, site.placed_by_site), ("42", Some(2), false));
        let fixed = SlurmJob { requeue: false, ..job() };
        let spec = super::spec(id, &fixed, Some(&tag()), &terms, &types);
        assert_eq!(spec.checkpoint_signal, None, "no consent to a requeue");
    }

    #[test]
    fn a_range_has_multiples_of_the_nodes_or_the_submitted_number() {
        let range = |min, max, nodes| {
            let gpus = in_multiples(GpuRequest { min, max }, nodes, 6);
            (gpus.min, gpus.max)
        };
        assert_eq!(range(3, 9, 1), (3, 9));
        assert_eq!(range(3, 9, 3), (3, 9));
        assert_eq!(range(2, 8, 3), (3, 6));
        assert_eq!(range(4, 5, 3), (6, 6), "none between");
        assert_eq!(range(0, 9, 3), (6, 6));
        assert_eq!(range(6, 6, 3), (6, 6));
        assert_eq!(range(3, 3, 3), (3, 3));
    }

    #[test]
    fn job_without_a_tag_is_placed_by_slurm_on_the_gpus_it_holds() {
        let share = NodeShare { node: "n1".parse().unwrap(), gpus: vec![0, 3] };
        let running = SlurmJob { on: vec![share], features: "fast".to_owned(), ..job() };
        let terms = Terms::parse("wattle: gpus=1..4 signal=USR1", 0).unwrap();
        let id = JobId::new("slurm-42-1234").unwrap();
        let spec = spec(id, &running, None, &terms, &["v100".to_owned()]);
        assert_eq!(spec.gpus, GpuRequest::exactly(2));
        assert_eq!((spec.checkpoint_signal, spec.gpu_type), (None, None));
        assert!(spec.site.unwrap().placed_by_site);
        assert!(!spec.exclusive);
        // One that waits has the number of its request, and one with whole nodes shares them with none.
        let waits = SlurmJob { whole_nodes: true, ..job() };
        let spec = super::spec(spec.job, &waits, None, &Terms::default(), &[]);
        assert_eq!(spec.gpus, GpuRequest::exactly(4));
        assert_eq!(spec.site.unwrap().nodes, Some(2));
        assert!(spec.exclusive);
        let one = SlurmJob { nodes: 1, whole_nodes: true, ..job() };
        let spec = super::spec(spec.job, &one, Some(&tag()), &Terms::default(), &[]);
        assert!(!spec.exclusive, "the intake leaves jobs with whole nodes to Slurm");
        let spec = super::spec(spec.job, &one, None, &Terms::default(), &[]);
        assert_eq!(spec.site.unwrap().nodes, None);
    }
}

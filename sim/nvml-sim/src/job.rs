//! `wattle-simjob`: a simulated training job. It claims simulated GPUs as a CUDA process uses real
//! ones, advances at the rate of the world, and reports progress and writes checkpoints like a
//! training script.
//!
//! Steps follow from the node's time and the rate in its state, not from sleeps, so a slow machine
//! delays reports but does not slow training. An attempt that resumes from a checkpoint loads its GPUs
//! for the time of a restart before its first step. A first start and the writing of a checkpoint take
//! no time, and a stopped process (SIGSTOP) continues to train: its load ends with the process.

mod checkpoint;
mod peers;
mod report;
mod signals;
mod train;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::id::IdError;
use wattle_common::{JobId, WorkloadId, env};

use crate::node::{Node, NodeError, world};
use crate::nvml::uuid_of;
use crate::state::ClaimRequest;

pub(crate) use signals::Signals;
pub use train::Outcome;

/// Command-line arguments of the job.
#[derive(Clone, Debug)]
pub struct JobArgs {
    /// Workload.
    pub workload: WorkloadId,
    /// Total steps; `None`: those of the workload.
    pub steps: Option<u64>,
    /// Steps per epoch; `None`: those of the workload.
    pub steps_per_epoch: Option<u64>,
    /// Steps between checkpoints; `None`: one epoch.
    pub checkpoint_every: Option<u64>,
    /// Time from the start of a resumed attempt to its first step.
    pub restart: Duration,
}

/// Why a job fails.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A required environment variable is not set.
    #[error("{name} is not set; {remedy}")]
    NotSet {
        /// The variable.
        name: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// An invalid environment variable.
    #[error("{name}={value}: {reason}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The problem.
        reason: String,
    },
    /// The catalog lacks the workload.
    #[error("unknown workload `{requested}`: the catalog has {known}")]
    NoWorkload {
        /// The requested workload.
        requested: WorkloadId,
        /// The workloads of the catalog.
        known: String,
    },
    /// An error of the node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A GPU of the job was lost.
    #[error("CUDA error: a GPU of this job is lost")]
    GpuLost,
    /// The claim no longer exists.
    #[error("the node has no claim of this process; it may have been recreated")]
    ClaimLost,
    /// Another process of the job died.
    #[error("rank {0} of this job has died")]
    PeerDied(u32),
    /// Stopped by a signal without a checkpoint directory.
    #[error("stopped by a signal with {0} steps lost: set WATTLE_CHECKPOINT_DIR to keep them")]
    StepsLost(u64),
    /// A checkpoint cannot be read or written.
    #[error("{0}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        reason: String,
    },
}

/// A validated job.
#[derive(Debug)]
struct Setup {
    node: Arc<Node>,
    request: ClaimRequest,
    steps_total: u64,
    steps_per_epoch: u64,
    global_batch: u32,
    checkpoint_every: Option<u64>,
    restart: Duration,
    progress: Option<PathBuf>,
    checkpoint_dir: Option<PathBuf>,
}

/// Runs a job until it completes or a signal stops it.
///
/// # Errors
/// If it cannot start, or a GPU or a peer fails.
pub fn run(args: &JobArgs) -> Result<Outcome, JobError> {
    // First, because an earlier signal would kill the process.
    let signals = signals::Signals::block();
    train::train(&prepare(args)?, &signals)
}

fn variable(name: &'static str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &'static str) -> Result<Option<u32>, JobError> {
    let wrong = |value: &str| JobError::Environment {
        name,
        value: value.to_owned(),
        reason: "not a whole number".to_owned(),
    };
    variable(name).map(|value| value.parse().map_err(|_| wrong(&value))).transpose()
}

fn prepare(args: &JobArgs) -> Result<Setup, JobError> {
    let path = variable(env::SIM_NODE).ok_or(JobError::NotSet {
        name: env::SIM_NODE,
        remedy: "set it to a state file created by wattle-simnode create",
    })?;
    let node = Arc::new(Node::open(PathBuf::from(path).as_path())?);
    let workload = world().workload(args.workload.as_str()).ok_or_else(|| {
        let known = world().workloads().map(|workload| workload.id.as_str().to_owned());
        let known = known.collect::<Vec<_>>().join(", ");
        JobError::NoWorkload { requested: args.workload.clone(), known }
    })?;
    let job = match variable(env::JOB) {
        Some(value) => JobId::new(&value).map_err(|error: IdError| JobError::Environment {
            name: env::JOB,
            value,
            reason: error.to_string(),
        })?,
        // Started manually.
        None => JobId::new(&format!("simjob-{}", std::process::id())).expect("digits make an id"),
    };
    let devices = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let gpus = gpus(devices.as_deref(), &node).map_err(|reason| JobError::Environment {
        name: CUDA_VISIBLE_DEVICES,
        value: devices.clone().unwrap_or_default(),
        reason,
    })?;
    // The environment variables of torchrun arguments.
    let nodes = number("PET_NNODES")?.unwrap_or(1).max(1);
    let rank = number("PET_NODE_RANK")?.unwrap_or(0);
    if rank >= nodes {
        return Err(JobError::Environment {
            name: "PET_NODE_RANK",
            value: rank.to_string(),
            reason: format!("a job of {nodes} nodes has ranks 0 to {}", nodes - 1),
        });
    }
    let steps_per_epoch = args.steps_per_epoch.unwrap_or(workload.steps_per_epoch).max(1);
    let all = || workload.steps_per_epoch * u64::from(workload.epochs);
    Ok(Setup {
        request: ClaimRequest {
            pid: std::process::id(),
            job,
            workload: args.workload.clone(),
            attempt: number(env::ATTEMPT)?.unwrap_or(1),
            rank,
            nodes,
            gpus,
        },
        steps_total: args.steps.unwrap_or_else(all),
        steps_per_epoch,
        global_batch: workload.batch_size,
        checkpoint_every: args.checkpoint_every,
        restart: args.restart,
        progress: variable(env::PROGRESS).map(PathBuf::from),
        checkpoint_dir: variable(env::CHECKPOINT_DIR).map(PathBuf::from),
        node,
    })
}

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// GPUs named by the variable, by index or UUID; all if it is not set.
fn gpus(devices: Option<&str>, node: &Node) -> Result<u64, String> {
    let count = node.gpu_count();
    let Some(devices) = devices else {
        return Ok((0..count).fold(0, |gpus, index| gpus | 1 << index));
    };
    let mut gpus = 0;
    for name in devices.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let index = if name.starts_with("GPU-") {
            (0..count).find(|index| uuid_of(node, *index) == name)
        } else {
            name.parse().ok().filter(|index| *index < count)
        };
        let index =
            index.ok_or_else(|| format!("unknown GPU `{name}`: the node has {count} GPUs"))?;
        if gpus & (1 << index) != 0 {
            return Err(format!("duplicate GPU `{name}`"));
        }
        gpus |= 1 << index;
    }
    if gpus == 0 { Err("no visible GPU: name at least one".to_owned()) } else { Ok(gpus) }
}

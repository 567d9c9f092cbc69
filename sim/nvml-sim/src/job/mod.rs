//! `wattle-simjob`: a training job in numbers. It takes simulated cards as a CUDA process takes
//! real ones, advances as fast as the world lets it, reports and checkpoints like any job.
//!
//! What it does not do: starting takes no time, a checkpoint costs none, and a process that is
//! stopped (SIGSTOP) goes on training, for its load ends only with the process.
//!
//! It never counts its own sleeps: its steps follow from the node's time and the rate in the node's
//! state, so a slow or busy machine makes it report later, not train slower.

mod checkpoint;
mod peers;
mod report;
mod signals;
mod train;

use std::path::PathBuf;
use std::sync::Arc;

use wattle_common::id::IdError;
use wattle_common::{JobId, WorkloadId, env};

use crate::node::{Node, NodeError, world};
use crate::nvml::uuid_of;
use crate::state::ClaimRequest;

pub use train::Outcome;

/// What the job is told on its command line.
#[derive(Clone, Debug)]
pub struct JobArgs {
    /// What kind of job it is.
    pub workload: WorkloadId,
    /// Steps in all; `None`: as many as the workload has.
    pub steps: Option<u64>,
    /// Steps in one epoch; `None`: as many as the workload has.
    pub steps_per_epoch: Option<u64>,
    /// Steps between checkpoints; `None`: at each epoch's end.
    pub checkpoint_every: Option<u64>,
}

/// Why a job fails.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The environment lacks something.
    #[error("{name} is not set; {remedy}")]
    NotSet {
        /// The variable.
        name: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The environment has something that cannot be.
    #[error("{name}={value}: {reason}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The catalog does not have the workload.
    #[error("the catalog has no workload `{asked}`; it has {known}")]
    NoWorkload {
        /// What was asked for.
        asked: WorkloadId,
        /// What there is.
        known: String,
    },
    /// The node refuses.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A card fell off the bus under the job.
    #[error("CUDA error: a GPU of this job is lost")]
    CardLost,
    /// The claim vanished under the job.
    #[error("the node does not know this process any more; was it created anew?")]
    ClaimLost,
    /// Another process of the job died.
    #[error("rank {0} of this job is gone")]
    PeerGone(u32),
    /// Told to stop, with nowhere to keep what was done.
    #[error("told to stop, and {0} steps are lost: WATTLE_CHECKPOINT_DIR is not set")]
    NotKept(u64),
    /// A checkpoint cannot be read or written.
    #[error("{0}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// A job that has everything it needs to take its cards.
#[derive(Debug)]
struct Setup {
    node: Arc<Node>,
    request: ClaimRequest,
    steps_total: u64,
    steps_per_epoch: u64,
    global_batch: u32,
    checkpoint_every: Option<u64>,
    progress: Option<PathBuf>,
    checkpoint_dir: Option<PathBuf>,
}

/// Runs a job to its end, or until it is told to stop.
///
/// # Errors
/// Where it cannot start, or its hardware or its peers fail it.
pub fn run(args: &JobArgs) -> Result<Outcome, JobError> {
    // First of all: a signal that comes before this would kill the process.
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
        remedy: "name the state file that wattle-simnode create has made",
    })?;
    let node = Arc::new(Node::open(PathBuf::from(path).as_path())?);
    let workload = world().workload(args.workload.as_str()).ok_or_else(|| {
        let known = world().workloads().map(|workload| workload.id.as_str().to_owned());
        let known = known.collect::<Vec<_>>().join(", ");
        JobError::NoWorkload { asked: args.workload.clone(), known }
    })?;
    let job = match variable(env::JOB) {
        Some(value) => JobId::new(&value).map_err(|error: IdError| JobError::Environment {
            name: env::JOB,
            value,
            reason: error.to_string(),
        })?,
        // Started by hand.
        None => JobId::new(&format!("simjob-{}", std::process::id())).expect("digits make an id"),
    };
    let devices = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let cards = cards(devices.as_deref(), &node).map_err(|reason| JobError::Environment {
        name: CUDA_VISIBLE_DEVICES,
        value: devices.clone().unwrap_or_default(),
        reason,
    })?;
    // The names under which torchrun takes its own arguments from the environment.
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
            cards,
        },
        steps_total: args.steps.unwrap_or_else(all),
        steps_per_epoch,
        global_batch: workload.batch_size,
        checkpoint_every: args.checkpoint_every,
        progress: variable(env::PROGRESS).map(PathBuf::from),
        checkpoint_dir: variable(env::CHECKPOINT_DIR).map(PathBuf::from),
        node,
    })
}

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Which cards the variable names, by index or by UUID; all of them where it is not set.
fn cards(devices: Option<&str>, node: &Node) -> Result<u64, String> {
    let count = node.gpu_count();
    let Some(devices) = devices else {
        return Ok((0..count).fold(0, |cards, index| cards | 1 << index));
    };
    let mut cards = 0;
    for name in devices.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let index = if name.starts_with("GPU-") {
            (0..count).find(|index| uuid_of(node, *index) == name)
        } else {
            name.parse().ok().filter(|index| *index < count)
        };
        let index = index.ok_or_else(|| format!("`{name}` is none of the {count} cards"))?;
        if cards & (1 << index) != 0 {
            return Err(format!("`{name}` is named twice"));
        }
        cards |= 1 << index;
    }
    if cards == 0 { Err("no card is visible; name at least one".to_owned()) } else { Ok(cards) }
}

//! One run of one job on one node in full: command, environment, folders, log file.
//!
//! A spec follows from the desired state and the node's configuration alone. Engines store it
//! before they start anything, so that a restarted launcher knows the runs to start.

use serde::{Deserialize, Serialize};
use wattle_common::hash::fnv1a;
use wattle_common::job::NodeShare;
use wattle_common::messages::DesiredJob;
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, env};

use crate::config::{JobLimits, JobUser};
use crate::{Config, Run, log};

/// One run of one job on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The node.
    pub node: NodeId,
    /// The job.
    pub job: JobId,
    /// The submission; absent: an earlier version accepted or started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// The job's attempt, from 1.
    pub attempt: u32,
    /// The job's GPUs on this node.
    pub gpus: Vec<GpuIndex>,
    /// The job's shares of all nodes, by rank: an engine of many nodes starts them together.
    pub shares: Vec<NodeShare>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The variables that are added to the inherited environment.
    pub environment: Vec<(String, String)>,
    /// The folder the program starts in; absent: its checkpoint folder.
    pub working_dir: Option<String>,
    /// The submission's own folder, which outlives every attempt.
    pub checkpoint_dir: String,
    /// The signal that requests a checkpoint and an exit.
    pub checkpoint_signal: Option<String>,
    /// The file for the run's output, if the engine can choose it.
    pub log_path: String,
    /// Largest size of that file, bytes.
    pub log_bytes_max: u64,
    /// The account of the run's processes; absent: that of the launcher.
    pub account: Option<AccountSpec>,
    /// The cgroup of the run's processes; absent: that of the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupSpec>,
}

/// The cgroup of a run and its limits. An absent limit is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupSpec {
    /// The cgroup in which it is created: its path from the root of the cgroups.
    pub parent: String,
    /// Its name there.
    pub name: String,
    /// Memory, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// CPU time, thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Number of processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl CgroupSpec {
    /// The cgroup `name` with the limits of a job of `gpus` GPUs; `None` if jobs have no cgroups.
    #[must_use]
    pub fn new(limits: &JobLimits, name: String, gpus: usize) -> Option<Self> {
        let gpus = u64::try_from(gpus).unwrap_or(u64::MAX);
        let per_gpu = |amount: u64, unit: u64| amount.saturating_mul(unit).saturating_mul(gpus);
        limits.uses_cgroups().then(|| Self {
            parent: limits.parent().to_owned(),
            name,
            memory_mib: limits.memory_gib_per_gpu.map(|gib| per_gpu(gib, 1_024)),
            // Between 0.01 and 65,536 by the configuration's check.
            cpu_milli: limits.cpus_per_gpu.map(|cpus| per_gpu((cpus * 1e3).round() as u64, 1)),
            processes: limits.processes_max,
        })
    }

    /// The cgroup `name` below `parent`, without limits.
    #[must_use]
    pub fn unlimited(parent: &str, name: &str) -> Self {
        let (parent, name) = (parent.to_owned(), name.to_owned());
        Self { parent, name, memory_mib: None, cpu_milli: None, processes: None }
    }

    /// The name of a run's cgroup: ids contain no dot.
    #[must_use]
    pub fn name_of(run: &Run) -> String {
        let submission = AdmissionId::name_of(&run.job, run.admission.as_ref());
        format!("{}.{submission}.{}", run.node, run.attempt)
    }
}

/// The account under which a run's processes run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountSpec {
    /// The user's name.
    pub name: String,
    /// The least user id that is permitted.
    pub uid_min: u32,
}

/// Why a desired job cannot be run on this node, for the job's owner.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No program is given.
    #[error("the command is empty: submit the job with a program to run")]
    EmptyCommand,
    /// The desired state assigns no GPU.
    #[error("no GPU of {0} is assigned to it")]
    NoGpu(NodeId),
    /// The checkpoint signal is not allowed.
    #[error("{0}")]
    Signal(String),
    /// Rank and shares do not agree.
    #[error("rank {rank} of the job's nodes is not {node}")]
    Rank {
        /// The rank.
        rank: usize,
        /// This node.
        node: NodeId,
    },
    /// The node runs jobs as their owners, and the job has none.
    #[error("jobs run as their owners on this node, and it has none: submit it as a user")]
    NoOwner,
    /// A text cannot be passed to a process.
    #[error(
        "command, folder and environment must not contain zero bytes, and a variable's name must \
         not be empty or contain `=`"
    )]
    Text,
}

/// Variables that the placement sets and a job's owner cannot.
const RESERVED: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// The prefix of all other reserved variables.
const RESERVED_PREFIX: &str = "WATTLE_";

impl RunSpec {
    /// The run of `desired` on this node.
    ///
    /// # Errors
    /// [`SpecError`] if it cannot be run here.
    pub fn new(desired: &DesiredJob, node: &NodeId, config: &Config) -> Result<Self, SpecError> {
        if desired.command.first().is_none_or(String::is_empty) {
            return Err(SpecError::EmptyCommand);
        }
        if desired.gpus.is_empty() {
            return Err(SpecError::NoGpu(node.clone()));
        }
        let signal = desired.checkpoint_signal.as_deref();
        let checkpoint_signal = signal
            .map(wattle_common::job::check_signal)
            .transpose()
            .map_err(|error| SpecError::Signal(error.to_string()))?
            .map(str::to_owned);
        let rank = desired.rank as usize;
        if desired.shares.get(rank).is_none_or(|share| share.node != *node) {
            return Err(SpecError::Rank { rank, node: node.clone() });
        }
        let nul = |text: &String| text.contains('\0');
        let bad_name = |key: &String| key.is_empty() || key.contains('=') || nul(key);
        if desired.command.iter().any(nul)
            || desired.working_dir.as_ref().is_some_and(nul)
            || desired.environment.iter().any(|(key, value)| bad_name(key) || nul(value))
        {
            return Err(SpecError::Text);
        }
        let name = match &config.job_user {
            JobUser::Service => None,
            JobUser::Owner => Some(desired.user.clone().ok_or(SpecError::NoOwner)?),
            JobUser::Named(name) => Some(name.clone()),
        };
        let admission = desired.admission.clone();
        let submission = AdmissionId::name_of(&desired.job, admission.as_ref());
        let run = Run {
            node: node.clone(),
            job: desired.job.clone(),
            admission: admission.clone(),
            attempt: desired.attempt,
        };
        let cgroup =
            CgroupSpec::new(&config.job_limits, CgroupSpec::name_of(&run), desired.gpus.len());
        let checkpoint_dir = config.checkpoint_dir.join(submission).display().to_string();
        let log = log::file_name(&desired.job, admission.as_ref(), node);
        Ok(Self {
            node: node.clone(),
            job: desired.job.clone(),
            admission,
            attempt: desired.attempt,
            gpus: desired.gpus.clone(),
            shares: desired.shares.clone(),
            command: desired.command.clone(),
            environment: environment(desired, config, &checkpoint_dir),
            working_dir: desired.working_dir.clone(),
            checkpoint_signal,
            log_path: config.log_dir.join(log).display().to_string(),
            checkpoint_dir,
            log_bytes_max: config.log_mib_max.saturating_mul(1 << 20),
            account: name.map(|name| AccountSpec { name, uid_min: config.job_uid_min }),
            cgroup,
        })
    }
}

/// The variables by which the processes of a run differ from those of every other run.
const OF_RUN: [&str; 4] = [env::JOB, env::ATTEMPT, env::CHECKPOINT_DIR, "NODE_RANK"];

impl RunSpec {
    /// The variables that only processes of this run have, as `KEY=VALUE`.
    #[must_use]
    pub fn variables(&self) -> Vec<String> {
        let of_run = |(key, _): &&(String, String)| OF_RUN.contains(&key.as_str());
        let own = self.environment.iter().filter(of_run);
        own.map(|(key, value)| format!("{key}={value}")).collect()
    }
}

/// The port at which a job's processes meet, which every node derives from the job's id.
///
/// Two jobs may get the same port. They collide only if their first node is the same.
#[must_use]
pub fn master_port(job: &JobId, min: u16, max: u16) -> u16 {
    let hash = fnv1a(job.as_str().as_bytes());
    let span = u64::from(max.saturating_sub(min)) + 1;
    // The remainder is below `span`, which is at most 65,536 - min.
    min + u16::try_from(hash % span).unwrap_or(0)
}

/// The number of threads of each process under a limit of CPU time, for one process per GPU. Libraries
/// count the CPUs of the node and not those of the limit.
fn threads(config: &Config) -> Option<(String, String)> {
    let cpus = config.job_limits.cpus_per_gpu?;
    Some(("OMP_NUM_THREADS".to_owned(), (cpus.floor() as u64).max(1).to_string()))
}

/// Variables of the site, the job's owner and the placement; a later one replaces an earlier one.
fn environment(
    desired: &DesiredJob,
    config: &Config,
    checkpoint_dir: &str,
) -> Vec<(String, String)> {
    let first = &desired.shares[0];
    let address = config
        .node_addresses
        .get(first.node.as_str())
        .map_or("127.0.0.1", String::as_str)
        .to_owned();
    let port = master_port(&desired.job, config.master_port_min, config.master_port_max);
    let gpus: Vec<String> = desired.gpus.iter().map(ToString::to_string).collect();
    let gpu_count = desired.gpus.len().to_string();
    let placement = [
        // The order of NVML's indices; by default CUDA counts the fastest GPU first.
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("CUDA_VISIBLE_DEVICES", gpus.join(",")),
        // torchrun reads options that are not on its command line from PET_*.
        ("PET_NNODES", desired.shares.len().to_string()),
        ("PET_NODE_RANK", desired.rank.to_string()),
        ("PET_NPROC_PER_NODE", gpu_count),
        ("PET_MASTER_ADDR", address.clone()),
        ("PET_MASTER_PORT", port.to_string()),
        ("MASTER_ADDR", address),
        ("MASTER_PORT", port.to_string()),
        // torchrun sets WORLD_SIZE and RANK for its workers. Set here, they would make a script of
        // one process wait for peers.
        ("NODE_RANK", desired.rank.to_string()),
        (env::JOB, desired.job.to_string()),
        (env::ATTEMPT, desired.attempt.to_string()),
        (env::PROGRESS, config.progress_socket.display().to_string()),
        (env::CHECKPOINT_DIR, checkpoint_dir.to_owned()),
    ];
    let owner = desired
        .environment
        .iter()
        .filter(|(key, _)| !key.starts_with(RESERVED_PREFIX) && !RESERVED.contains(&key.as_str()));
    let mut all: Vec<(String, String)> = Vec::new();
    let site = config.job_environment.iter();
    for (key, value) in threads(config)
        .into_iter()
        .chain(site.map(|(key, value)| (key.clone(), value.clone())))
        .chain(owner.cloned())
        .chain(placement.map(|(key, value)| (key.to_owned(), value)))
    {
        match all.iter_mut().find(|(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => all.push((key, value)),
        }
    }
    all
}

//! One start of one job on one node, worked out in full: program, environment, log.
//!
//! An order is made from what the placer desires and this node's configuration, and is stored
//! before anything is started, so that a launcher that comes back knows what was meant. It must
//! not depend on anything but its inputs: the same desire gives the same order.

use serde::{Deserialize, Serialize};
use wattle_common::messages::DesiredJob;
use wattle_common::{GpuIndex, JobId, NodeId, env};

use crate::Config;

/// One start of one job on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The job.
    pub job: JobId,
    /// Which start of it, from 1.
    pub attempt: u32,
    /// Its GPUs here.
    pub gpus: Vec<GpuIndex>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What is set in its environment, beside what it inherits.
    pub environment: Vec<(String, String)>,
    /// The folder it starts in; absent: its checkpoint folder.
    pub working_dir: Option<String>,
    /// The folder of its own that outlives a stop.
    pub checkpoint_dir: String,
    /// The signal that asks it to checkpoint and exit.
    pub checkpoint_signal: Option<String>,
    /// Where its output goes.
    pub log_path: String,
}

/// Variables that a job's owner cannot set: they say where the job is, and that is not theirs.
const OURS: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// What every variable of ours begins with.
const PREFIX: &str = "WATTLE_";

impl Order {
    /// The order that makes `desired` true on this node.
    ///
    /// # Errors
    /// What is wrong with it, and what to do, for the job's owner to read.
    pub fn new(desired: &DesiredJob, node: &NodeId, config: &Config) -> Result<Self, String> {
        if desired.command.first().is_none_or(String::is_empty) {
            return Err("the command is empty: submit the job with a program to run".to_owned());
        }
        if desired.gpus.is_empty() {
            return Err(format!("no GPU of {node} is assigned to it"));
        }
        let signal = desired.checkpoint_signal.as_deref();
        let checkpoint_signal =
            signal.map(wattle_common::job::check_signal).transpose()?.map(str::to_owned);
        let rank = desired.rank as usize;
        if desired.shares.get(rank).is_none_or(|share| share.node != *node) {
            return Err(format!("rank {rank} of the job's nodes is not {node}"));
        }
        let nul = |text: &String| text.contains('\0');
        let bad_name = |key: &String| key.is_empty() || key.contains('=') || nul(key);
        if desired.command.iter().any(nul)
            || desired.working_dir.as_ref().is_some_and(nul)
            || desired.environment.iter().any(|(key, value)| bad_name(key) || nul(value))
        {
            return Err("command, folder and environment are text without zero bytes, and a \
                        variable's name is not empty and has no `=`"
                .to_owned());
        }
        let checkpoint_dir = config.checkpoint_dir.join(desired.job.as_str()).display().to_string();
        Ok(Self {
            job: desired.job.clone(),
            attempt: desired.attempt,
            gpus: desired.gpus.clone(),
            command: desired.command.clone(),
            environment: environment(desired, config, &checkpoint_dir),
            working_dir: desired.working_dir.clone(),
            checkpoint_signal,
            log_path: config.log_dir.join(format!("{}.log", desired.job)).display().to_string(),
            checkpoint_dir,
        })
    }
}

/// The port a job's processes meet on: the same on every node, without asking anyone.
///
/// Two jobs may fall on the same port; that matters only if their first nodes are the same one.
#[must_use]
pub fn master_port(job: &JobId, min: u16, max: u16) -> u16 {
    // FNV-1a, whose result is the same everywhere and in every release.
    let hash = job.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let span = u64::from(max.saturating_sub(min)) + 1;
    // The remainder is below `span`, which is at most 65,536 - min.
    min + u16::try_from(hash % span).unwrap_or(0)
}

/// Site first, then the job's owner, then ours: later ones win.
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
    let here = desired.gpus.len().to_string();
    let ours = [
        // Without it CUDA counts the fastest card first, and NVML counts by bus.
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("CUDA_VISIBLE_DEVICES", gpus.join(",")),
        // torchrun reads its options from PET_*, where they are not on its command line.
        ("PET_NNODES", desired.shares.len().to_string()),
        ("PET_NODE_RANK", desired.rank.to_string()),
        ("PET_NPROC_PER_NODE", here),
        ("PET_MASTER_ADDR", address.clone()),
        ("PET_MASTER_PORT", port.to_string()),
        ("MASTER_ADDR", address),
        ("MASTER_PORT", port.to_string()),
        // WORLD_SIZE and RANK are the workers', and torchrun's to set: a script of one process that
        // finds the one without the other would wait for peers that never come.
        ("NODE_RANK", desired.rank.to_string()),
        (env::JOB, desired.job.to_string()),
        (env::ATTEMPT, desired.attempt.to_string()),
        (env::PROGRESS, config.progress_socket.display().to_string()),
        (env::CHECKPOINT_DIR, checkpoint_dir.to_owned()),
    ];
    let owner = desired
        .environment
        .iter()
        .filter(|(key, _)| !key.starts_with(PREFIX) && !OURS.contains(&key.as_str()));
    let mut all: Vec<(String, String)> = Vec::new();
    let site = config.job_environment.iter();
    for (key, value) in site
        .map(|(key, value)| (key.clone(), value.clone()))
        .chain(owner.cloned())
        .chain(ours.map(|(key, value)| (key.to_owned(), value)))
    {
        match all.iter_mut().find(|(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => all.push((key, value)),
        }
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use wattle_common::job::NodeShare;

    /// A configuration whose folders need not exist: the machine touches none of them.
    pub(crate) fn config() -> Config {
        Config {
            cluster: wattle_common::ClusterId::new("main").unwrap(),
            node: NodeId::new("n0").unwrap(),
            #[cfg(feature = "service")]
            nats: wattle_runtime::bus::BusConfig::at("nats://127.0.0.1:4222"),
            state_dir: PathBuf::from("/s"),
            log_dir: PathBuf::from("/l"),
            checkpoint_dir: PathBuf::from("/c"),
            progress_socket: PathBuf::from("/p.sock"),
            checkpoint_grace_ms: 10_000,
            terminate_grace_ms: 5_000,
            heartbeat_ms: 5_000,
            master_port_min: 29_500,
            master_port_max: 29_599,
            node_addresses: [("n0".to_owned(), "10.0.0.1".to_owned())].into(),
            job_environment: [
                ("WATTLE_SIM_NODE".to_owned(), "/dev/shm/n1".to_owned()),
                ("NCCL_DEBUG".to_owned(), "WARN".to_owned()),
            ]
            .into(),
            ended_kept: 4,
            stop_jobs_at_exit: false,
        }
    }

    pub(crate) fn desired_job(job: &str, attempt: u32, node: &str) -> DesiredJob {
        let node = NodeId::new(node).unwrap();
        DesiredJob {
            job: JobId::new(job).unwrap(),
            attempt,
            gpus: vec![0, 1],
            rank: 0,
            shares: vec![NodeShare { node, gpus: vec![0, 1] }],
            command: vec!["train".to_owned()],
            environment: vec![],
            working_dir: None,
            checkpoint_signal: Some("SIGUSR1".to_owned()),
            stop: false,
        }
    }

    #[test]
    fn the_environment_is_what_torchrun_reads() {
        let mut desired = desired_job("a", 2, "n1");
        desired.rank = 1;
        desired.gpus = vec![4, 5];
        desired.shares = vec![
            NodeShare { node: NodeId::new("n0").unwrap(), gpus: vec![0, 1] },
            NodeShare { node: NodeId::new("n1").unwrap(), gpus: vec![4, 5] },
        ];
        desired.environment = vec![
            ("NCCL_DEBUG".to_owned(), "INFO".to_owned()),
            ("WATTLE_SIM_NODE".to_owned(), "/etc/other".to_owned()),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "0,1,2,3".to_owned()),
        ];
        let order = Order::new(&desired, &NodeId::new("n1").unwrap(), &config()).unwrap();
        let text: Vec<String> =
            order.environment.iter().map(|(key, value)| format!("{key}={value}")).collect();
        expect_test::expect![[r#"
            NCCL_DEBUG=INFO
            WATTLE_SIM_NODE=/dev/shm/n1
            CUDA_DEVICE_ORDER=PCI_BUS_ID
            CUDA_VISIBLE_DEVICES=4,5
            PET_NNODES=2
            PET_NODE_RANK=1
            PET_NPROC_PER_NODE=2
            PET_MASTER_ADDR=10.0.0.1
            PET_MASTER_PORT=29596
            MASTER_ADDR=10.0.0.1
            MASTER_PORT=29596
            NODE_RANK=1
            WATTLE_JOB=a
            WATTLE_ATTEMPT=2
            WATTLE_PROGRESS=/p.sock
            WATTLE_CHECKPOINT_DIR=/c/a
        "#]]
        .assert_eq(&(text.join("\n") + "\n"));
        assert_eq!((order.log_path.as_str(), order.attempt), ("/l/a.log", 2));
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        let node = NodeId::new("n0").unwrap();
        let refused = |change: &dyn Fn(&mut DesiredJob)| {
            let mut desired = desired_job("a", 1, "n0");
            change(&mut desired);
            Order::new(&desired, &node, &config()).unwrap_err()
        };
        assert!(refused(&|job| job.command.clear()).contains("command is empty"));
        assert!(refused(&|job| job.gpus.clear()).contains("no GPU of n0"));
        assert!(refused(&|job| job.rank = 3).contains("rank 3"));
        assert!(refused(&|job| job.shares.clear()).contains("rank 0"));
        assert!(refused(&|job| job.command.push("a\0b".to_owned())).contains("zero bytes"));
        let wrong_signal = refused(&|job| job.checkpoint_signal = Some("SIGKILL".to_owned()));
        assert!(wrong_signal.contains("SIGUSR2"), "{wrong_signal}");
    }

    #[test]
    fn ports_stay_in_their_range() {
        for job in ["a", "b", "resnet-1", "0"] {
            let job = JobId::new(job).unwrap();
            assert!((29_500..=29_510).contains(&master_port(&job, 29_500, 29_510)));
            assert_eq!(master_port(&job, 7, 7), 7);
            assert!(master_port(&job, 0, u16::MAX) == master_port(&job, 0, u16::MAX));
        }
    }
}

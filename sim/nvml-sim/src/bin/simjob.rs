//! `wattle-simjob`: a simulated training job on the GPUs of a simulated node.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nvml_sim::job::{self, JobArgs, JobError};
use wattle_common::WorkloadId;

/// A simulated training job on the GPUs of a simulated node. Like a training script it uses the
/// GPUs of CUDA_VISIBLE_DEVICES, reports its steps to the socket WATTLE_PROGRESS, writes checkpoints
/// to WATTLE_CHECKPOINT_DIR, stops with a checkpoint on SIGUSR1 and resumes from it when restarted.
#[derive(Parser)]
#[command(
    name = "wattle-simjob",
    version,
    after_help = "Example:\n  WATTLE_SIM_NODE=/tmp/n0.node CUDA_VISIBLE_DEVICES=0,1 WATTLE_CHECKPOINT_DIR=/tmp/job-1 \\\n    wattle-simjob --workload resnet50-imagenet-b256 --steps 2000 --steps-per-epoch 400\n\n\
Environment:\n  WATTLE_SIM_NODE        state file of the simulated node (wattle-simnode create)\n  CUDA_VISIBLE_DEVICES   GPUs by index or UUID; default: all\n  WATTLE_JOB             id of the job\n  WATTLE_ATTEMPT         attempt number of the job\n  WATTLE_PROGRESS        Unix datagram socket for progress reports\n  WATTLE_CHECKPOINT_DIR  directory of the checkpoint\n  PET_NNODES, PET_NODE_RANK   number of nodes of the job, and rank of this node"
)]
struct Cli {
    /// Workload of the catalog.
    #[arg(long)]
    workload: WorkloadId,
    /// Total steps over all attempts; default: those of the workload.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Steps per epoch; default: those of the workload.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps_per_epoch: Option<u64>,
    /// Steps between checkpoints; default: one epoch.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// Seconds from the start of a resumed attempt to its first step, at the power of training.
    #[arg(long, default_value_t = 0)]
    restart_s: u32,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let args = JobArgs {
        workload: cli.workload,
        steps: cli.steps,
        steps_per_epoch: cli.steps_per_epoch,
        checkpoint_every: cli.checkpoint_every,
        restart: Duration::from_secs(cli.restart_s.into()),
    };
    let Err(error) = job::run(&args) else { return ExitCode::SUCCESS };
    // stderr may be closed; the exit code also reports the error.
    let _ = writeln!(std::io::stderr(), "error: {error}");
    match error {
        JobError::NoWorkload { .. } | JobError::NotSet { .. } | JobError::Environment { .. } => {
            ExitCode::from(2)
        }
        _ => ExitCode::FAILURE,
    }
}

//! `wattle-simjob`: trains in numbers on the cards of a simulated node.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use nvml_sim::job::{self, JobArgs, JobError};
use wattle_common::WorkloadId;

/// Trains in numbers on the cards of a simulated node, like any training script: it takes the
/// cards of CUDA_VISIBLE_DEVICES, reports its steps to the socket WATTLE_PROGRESS, writes
/// checkpoints to WATTLE_CHECKPOINT_DIR, stops with a checkpoint on SIGUSR1 and goes on from it
/// when it is started again.
#[derive(Parser)]
#[command(
    name = "wattle-simjob",
    version,
    after_help = "Example:\n  WATTLE_SIM_NODE=/tmp/n0.node CUDA_VISIBLE_DEVICES=0,1 WATTLE_CHECKPOINT_DIR=/tmp/job-1 \\\n    wattle-simjob --workload resnet50-imagenet-b256 --steps 2000 --steps-per-epoch 400\n\n\
Environment:\n  WATTLE_SIM_NODE        state file of the simulated node (wattle-simnode create)\n  CUDA_VISIBLE_DEVICES   the cards, by index or UUID; all where it is not set\n  WATTLE_JOB             the job's id\n  WATTLE_ATTEMPT         which start of the job this is\n  WATTLE_PROGRESS        Unix datagram socket for its steps\n  WATTLE_CHECKPOINT_DIR  folder for its checkpoint\n  PET_NNODES, PET_NODE_RANK   nodes of the job, and which of them this is"
)]
struct Cli {
    /// What kind of job it is, as in the catalog.
    #[arg(long)]
    workload: WorkloadId,
    /// Steps in all, over every start of the job; as many as the workload has where it is not said.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Steps in one epoch; the workload's own where it is not said.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps_per_epoch: Option<u64>,
    /// Steps between checkpoints; one at each epoch's end where it is not said.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let args = JobArgs {
        workload: cli.workload,
        steps: cli.steps,
        steps_per_epoch: cli.steps_per_epoch,
        checkpoint_every: cli.checkpoint_every,
    };
    let Err(error) = job::run(&args) else { return ExitCode::SUCCESS };
    // Nobody may be reading; the exit code says it as well.
    let _ = writeln!(std::io::stderr(), "error: {error}");
    match error {
        JobError::NoWorkload { .. } | JobError::NotSet { .. } | JobError::Environment { .. } => {
            ExitCode::from(2)
        }
        _ => ExitCode::FAILURE,
    }
}

//! `wattle-gpu-suite`: measures a card under real training, and writes the record of it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to whoever runs it")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use wattle_runtime::clock;
use wattle_tests::gpu_suite::{Plan, perform};

/// Trains small models on a card, alone and in pairs, with the profiler watching, and writes what
/// its sensors are worth and what the jobs do to each other. It reads the card and never sets a cap
/// or a clock.
#[derive(Parser)]
#[command(
    name = "wattle-gpu-suite",
    after_help = "Example, on a machine with a GPU and PyTorch:\n  wattle-gpu-suite --train 'python3 train.py --model {model}' --out docs/measurements"
)]
struct Cli {
    /// The training command, words separated by spaces; `{model}` stands for the model. It finds
    /// WATTLE_JOB, WATTLE_PROGRESS and CUDA_VISIBLE_DEVICES in its environment, and must report.
    #[arg(
        long,
        env = "GPU_SUITE_TRAIN",
        default_value = "python3 tests/gpu/train.py --model {model}"
    )]
    train: String,
    /// The models, each trained alone.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "mlp-b4096,cnn-b256,resnet18-b128,transformer-b32,resnet18-b512-accumulated"
    )]
    models: Vec<String>,
    /// Pairs trained together, as in `a+b,a+c`; `all`: each with each other, `none`.
    #[arg(long, default_value = "all")]
    pairs: String,
    /// Seconds each is measured.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Seconds each runs before that, from its first report.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3600))]
    settle: u64,
    /// The card.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// The NVML library, where it is not the system's.
    #[arg(long, env = wattle_gpu::LIBRARY_ENV)]
    nvml_library: Option<PathBuf>,
    /// The folder of the record.
    #[arg(long, env = "GPU_SUITE_OUT")]
    out: PathBuf,
    /// What the record is named after; the card's kind where it is not said.
    #[arg(long)]
    name: Option<String>,
}

fn pairs(text: &str, models: &[String]) -> Result<Vec<(String, String)>> {
    let each = || {
        let others = |at: usize| models.iter().skip(at + 1);
        let pair = |(at, one): (usize, &String)| {
            others(at).map(|other| (one.clone(), other.clone())).collect::<Vec<_>>()
        };
        models.iter().enumerate().flat_map(pair).collect()
    };
    match text {
        "all" => Ok(each()),
        "none" => Ok(Vec::new()),
        text => text.split(',').map(|pair| named(pair, models)).collect(),
    }
}

fn named(pair: &str, models: &[String]) -> Result<(String, String)> {
    let Some((one, other)) = pair.split_once('+') else {
        bail!("--pairs {pair}: not of the form one+other");
    };
    for model in [one, other] {
        if !models.iter().any(|known| known == model) {
            bail!("--pairs {pair}: {model} is none of --models, so its speed alone is not known");
        }
    }
    Ok((one.to_owned(), other.to_owned()))
}

fn plan(cli: Cli) -> Result<Plan> {
    let train: Vec<String> = cli.train.split_whitespace().map(str::to_owned).collect();
    if !train.iter().any(|word| word.contains("{model}")) {
        bail!("--train `{}`: the word {{model}} is not in it", cli.train);
    }
    Ok(Plan {
        library: cli.nvml_library,
        gpu: cli.gpu,
        train,
        pairs: pairs(&cli.pairs, &cli.models)?,
        models: cli.models,
        seconds: cli.seconds,
        settle: cli.settle,
        out: cli.out,
        name: cli.name,
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    wattle_runtime::shell::start_logging();
    let plan = match clock::init().map_err(anyhow::Error::from).and_then(|_| plan(Cli::parse())) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    match perform(&plan).await {
        Ok((record, files)) => {
            for file in files {
                println!("{}", file.display());
            }
            let failed = record.runs.iter().filter(|run| run.failed.is_some()).count();
            if failed > 0 {
                eprintln!(
                    "error: {failed} of {} runs failed; the record says why",
                    record.runs.len()
                );
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

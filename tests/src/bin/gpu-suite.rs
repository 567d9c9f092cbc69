//! `wattle-gpu-suite`: measures a GPU under real training and writes a record.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "command-line output")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use wattle_runtime::clock;
use wattle_tests::gpu_suite::{Plan, perform};

/// Trains small models on a GPU, exclusively and in co-located pairs, under the profiler. Writes a
/// record of sensor accuracy, speed, power and interference. Never sets a cap or a clock.
#[derive(Parser)]
#[command(
    name = "wattle-gpu-suite",
    after_help = "Example, on a machine with a GPU and PyTorch:\n  wattle-gpu-suite --train 'python3 train.py --model {model}' --out docs/measurements"
)]
struct Cli {
    /// Training command, words separated by spaces, with the placeholder `{model}`. Its environment
    /// contains WATTLE_JOB, WATTLE_PROGRESS and CUDA_VISIBLE_DEVICES; it must report progress.
    #[arg(
        long,
        env = "GPU_SUITE_TRAIN",
        default_value = "python3 tests/gpu/train.py --model {model}"
    )]
    train: String,
    /// Models, each trained exclusively.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "mlp-b4096,cnn-b256,resnet18-b128,transformer-b32,resnet18-b512-accumulated"
    )]
    models: Vec<String>,
    /// Co-located pairs, as in `a+b,a+c`; or `all`, or `none`.
    #[arg(long, default_value = "all")]
    pairs: String,
    /// Duration of each measurement, seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Settling time before it, from the first report, seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3600))]
    settle: u64,
    /// GPU index.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// NVML library; default: the system's.
    #[arg(long, env = wattle_gpu::LIBRARY_ENV)]
    nvml_library: Option<PathBuf>,
    /// Output directory.
    #[arg(long, env = "GPU_SUITE_OUT")]
    out: PathBuf,
    /// Name of the record; default: the GPU type.
    #[arg(long)]
    name: Option<String>,
}

fn pairs(text: &str, models: &[String]) -> Result<Vec<(String, String)>> {
    let all = || {
        let others = |at: usize| models.iter().skip(at + 1);
        let pair = |(at, one): (usize, &String)| {
            others(at).map(|other| (one.clone(), other.clone())).collect::<Vec<_>>()
        };
        models.iter().enumerate().flat_map(pair).collect()
    };
    match text {
        "all" => Ok(all()),
        "none" => Ok(Vec::new()),
        text => text.split(',').map(|pair| named(pair, models)).collect(),
    }
}

fn named(pair: &str, models: &[String]) -> Result<(String, String)> {
    let Some((one, other)) = pair.split_once('+') else {
        bail!("invalid --pairs {pair}: expected first+second");
    };
    for model in [one, other] {
        if !models.iter().any(|known| known == model) {
            bail!(
                "invalid --pairs {pair}: {model} is not in --models, which its exclusive speed requires"
            );
        }
    }
    Ok((one.to_owned(), other.to_owned()))
}

fn plan(cli: Cli) -> Result<Plan> {
    let train: Vec<String> = cli.train.split_whitespace().map(str::to_owned).collect();
    if !train.iter().any(|word| word.contains("{model}")) {
        bail!("invalid --train `{}`: missing {{model}}", cli.train);
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
                eprintln!("error: {failed} of {} runs failed; see the record", record.runs.len());
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

//! `wattle-fuzz TARGET --runs N --seed S`: runs a fuzz target on mutated seeds.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_fuzz::{Fault, Target, folder, fuzz, run, target, targets};

/// Runs fuzz targets on mutated seeds. Inputs with a fault are written to tests/fuzz/regressions.
#[derive(Parser)]
#[command(after_help = "Example:\n  wattle-fuzz messages --runs 1000000")]
struct Arguments {
    /// The target, or `all`
    target: String,
    /// Number of inputs
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// Seed of the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this file only, to reproduce a fault
    #[arg(long)]
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    match work(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::from(2)
        }
    }
}

fn work(arguments: &Arguments) -> anyhow::Result<bool> {
    let all: Vec<&Target> = match arguments.target.as_str() {
        "all" => targets::ALL.iter().collect(),
        name => vec![target(name).ok_or_else(|| {
            let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
            anyhow::anyhow!("no target `{name}`: expected all, {}", names.join(", "))
        })?],
    };
    // The message of a fault contains the panic's text; the trace is printed for a single input only.
    if arguments.input.is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let mut out = std::io::stdout();
    let mut good = true;
    for target in all {
        let faults = match &arguments.input {
            Some(path) => run(target, &std::fs::read(path)?).err().into_iter().collect(),
            None => fuzz(target, arguments.seed, arguments.runs, 10),
        };
        let runs = if arguments.input.is_some() { 1 } else { arguments.runs };
        writeln!(out, "{}: {runs} inputs, {} faults", target.name, faults.len())?;
        for fault in &faults {
            good = false;
            let path = write(target, fault)?;
            writeln!(out, "  {}: {}", path.display(), fault.message)?;
        }
    }
    Ok(good)
}

fn write(target: &Target, fault: &Fault) -> anyhow::Result<PathBuf> {
    let folder = folder().join("regressions").join(target.name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{:016x}", wattle_common::hash::fnv1a(fault.input.iter())));
    std::fs::write(&path, &fault.input)?;
    Ok(path)
}

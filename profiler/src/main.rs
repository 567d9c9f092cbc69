//! `wattle-profiler`: the service.

use std::process::ExitCode;

use wattle_profiler::shell;
use wattle_runtime::service::{Program, Threads};

fn main() -> ExitCode {
    let about = "Samples this node's GPUs and jobs: telemetry, windows and the energy ledger";
    Program { name: "wattle-profiler", about, threads: Threads::One }.main(shell::load, shell::run)
}

//! `wattle-web`: the service that serves the web page of a cluster.

use std::process::ExitCode;

use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};
use wattle_web::{Config, run};

/// Decoding messages and computing pages allocate many small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let about =
        "Serves the web page of a cluster: power, jobs, budgets, energy and the health of services";
    Program { name: "wattle-web", about, threads: Threads::One }
        .main(|file| config::load_checked(file, Config::check), run)
}

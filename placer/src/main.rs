//! `wattle-placer`: the service.

use std::process::ExitCode;

use wattle_placer::{Config, service};
use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};

/// Planning allocates many small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let about = "Places jobs on the cluster's GPUs within its energy, carbon and power budget";
    Program { name: "wattle-placer", about, threads: Threads::Two }
        .main(|file| config::load_located(file, Config::check), service::run)
}

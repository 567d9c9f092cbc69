//! `wattle-slurm`: the service.

use std::process::ExitCode;

use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};
use wattle_slurm::{Config, shell};

fn main() -> ExitCode {
    let about = "Connects a cluster with its Slurm: makes Slurm start, move and cancel jobs, and reports them";
    Program { name: "wattle-slurm", about, threads: Threads::Two }
        .main(|file| config::load_checked(file, Config::check), shell::run)
}

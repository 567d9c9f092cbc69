//! `wattle-launcher`: the service, and the processes that it starts for each job.

use std::process::ExitCode;

use wattle_launcher::engine::local::{program, supervisor};
use wattle_launcher::{Config, shell};
use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};

fn main() -> ExitCode {
    if let Some(folder) = program::requested_folder() {
        return program::run(folder);
    }
    // Without logging and runtime: each job has a supervisor, which must stay small.
    if let Some(folder) = supervisor::requested_folder() {
        return if supervisor::run(folder).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let about = "Starts, checkpoints and stops the processes of jobs on one node";
    Program { name: "wattle-launcher", about, threads: Threads::Two }
        .main(|file| config::load_checked(file, Config::check), shell::run)
}

//! `wattle-predictor`: the service.

use std::process::ExitCode;

use wattle_predictor::shell;
use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};

fn main() -> ExitCode {
    let about = "Learns from the windows of running jobs and publishes predicted rates and power \
                 of other configurations";
    Program { name: "wattle-predictor", about, threads: Threads::One }
        .main(config::load, shell::run)
}

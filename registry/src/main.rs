//! `wattle-registry`: the service that compares predictors.

use std::process::ExitCode;

use wattle_registry::service;
use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};

fn main() -> ExitCode {
    let about = "Serves the champion predictor's surfaces to the placer and scores every predictor \
                 against later measurements";
    Program { name: "wattle-registry", about, threads: Threads::One }
        .main(config::load, service::run)
}

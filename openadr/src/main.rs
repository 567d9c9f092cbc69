//! `wattle-openadr`: the service.

use std::process::ExitCode;

use wattle_openadr::{Config, shell};
use wattle_runtime::config;
use wattle_runtime::service::{Program, Threads};

fn main() -> ExitCode {
    let about =
        "Follows the events of an OpenADR server: announces them to the placer and sends reports";
    Program { name: "wattle-openadr", about, threads: Threads::One }
        .main(|file| config::load_checked(file, Config::check), shell::run)
}

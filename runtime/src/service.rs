//! The common part of every service's `main`: logs, configuration, signals, exit code.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::shell::{Shutdown, start_logging};

/// Exit code for wrong usage or configuration, as in clap.
const EXIT_USAGE: u8 = 2;

/// Threads of a service's async runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread; blocking work has its own thread.
    One,
    /// Two threads, so that a long decision does not block the bus.
    Two,
}

/// Loads the configuration and runs the service until shutdown; errors are logged here, once.
pub fn main<C, F>(
    threads: Threads,
    load: impl FnOnce() -> anyhow::Result<C>,
    serve: impl FnOnce(C, Shutdown) -> F,
) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    start_logging();
    let config = match load() {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "invalid configuration");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(threads, config, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "service failed");
            ExitCode::FAILURE
        }
    }
}

fn run<C, F>(
    threads: Threads,
    config: C,
    serve: impl FnOnce(C, Shutdown) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Two => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads == Threads::Two {
        builder.worker_threads(2);
    }
    let runtime = builder.enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let shutdown = Shutdown::listen().context("cannot listen for signals")?;
        serve(config, shutdown).await
    })
}

//! What every service's `main` does once its arguments are read: logs, configuration, signals, the
//! service, and the exit code that says how it went.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::shell::{Shutdown, start_logging};

/// Wrong usage or a wrong configuration, as clap has it.
const EXIT_USAGE: u8 = 2;

/// How many threads wait for a service's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One is enough: what blocks has a thread of its own.
    One,
    /// Two, where a decision may take so long that the bus must not wait for it.
    Two,
}

/// Loads the configuration and serves until asked to stop; what goes wrong is logged here, once.
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
            tracing::error!(error = %format!("{error:#}"), "wrong configuration");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(threads, config, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "the service cannot go on");
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
    let runtime = builder.enable_all().build().context("no threads can be started")?;
    runtime.block_on(async {
        let shutdown = Shutdown::listen().context("signals cannot be listened for")?;
        serve(config, shutdown).await
    })
}

//! The common part of every service's `main`: command line, logs, configuration, signals, exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, Subcommand, value_parser};

use crate::log_limit;
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

/// The program of a service: `NAME --config FILE`.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the binary, `wattle-` and the service.
    pub name: &'static str,
    /// Purpose of the service, for `--help`.
    pub about: &'static str,
    /// Threads of its runtime.
    pub threads: Threads,
}

impl Program {
    /// Loads the configuration and runs the service until shutdown; errors are logged here, once.
    pub fn main<C, L, E>(
        self,
        load: impl FnOnce(&Path) -> Result<C, L>,
        serve: impl AsyncFnOnce(C, &Shutdown) -> Result<(), E>,
    ) -> ExitCode
    where
        L: Into<anyhow::Error>,
        E: Into<anyhow::Error>,
    {
        self.start(&self.command().get_matches(), load, serve)
    }

    /// As [`Program::main`], for a program with subcommands; `serve` receives the subcommand, if one
    /// is given.
    pub fn main_with<T, C, L, E>(
        self,
        load: impl FnOnce(&Path) -> Result<C, L>,
        serve: impl AsyncFnOnce(C, Option<T>, &Shutdown) -> Result<(), E>,
    ) -> ExitCode
    where
        T: Subcommand,
        L: Into<anyhow::Error>,
        E: Into<anyhow::Error>,
    {
        let matches = T::augment_subcommands(self.command()).get_matches();
        let task = T::from_arg_matches(&matches).ok();
        self.start(&matches, load, async |config, shutdown: &Shutdown| {
            serve(config, task, shutdown).await
        })
    }

    fn command(self) -> Command {
        let file = format!("{}.toml", self.name.trim_start_matches("wattle-"));
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .required(true)
            .help(format!("The configuration file; deploy/{file} explains every key"));
        Command::new(self.name)
            .about(self.about)
            .version(env!("CARGO_PKG_VERSION"))
            .after_help(format!("Example:\n  {} --config /etc/wattle/{file}", self.name))
            .arg(config)
    }

    fn start<C, L, E>(
        self,
        matches: &ArgMatches,
        load: impl FnOnce(&Path) -> Result<C, L>,
        serve: impl AsyncFnOnce(C, &Shutdown) -> Result<(), E>,
    ) -> ExitCode
    where
        L: Into<anyhow::Error>,
        E: Into<anyhow::Error>,
    {
        start_logging();
        end_at_panic();
        let file: &PathBuf = matches.get_one("config").expect("a required argument");
        let config = match load(file) {
            Ok(config) => config,
            Err(error) => {
                let error: anyhow::Error = error.into();
                tracing::error!(error = %format!("{error:#}"), "invalid configuration");
                return ExitCode::from(EXIT_USAGE);
            }
        };
        match run(self.threads, config, serve) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(error = %format!("{error:#}"), "service failed");
                ExitCode::FAILURE
            }
        }
    }
}

/// A panic ends the process, in whichever thread or task it is. Otherwise the service would continue without this
/// task, for example without the bus. It is started again as after a kill.
fn end_at_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        tracing::error!(%panic, "panic: this process ends; report it with the lines before");
        std::process::abort();
    }));
}

fn run<C, E: Into<anyhow::Error>>(
    threads: Threads,
    config: C,
    serve: impl AsyncFnOnce(C, &Shutdown) -> Result<(), E>,
) -> anyhow::Result<()> {
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
        tokio::spawn(crate::clock::report_steps());
        tokio::spawn(log_limit::report_regularly());
        let served = serve(config, &shutdown).await;
        log_limit::report_suppressed();
        served.map_err(Into::into)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Runs in a process of its own, which the test below starts.
    #[test]
    #[ignore = "ends its process"]
    fn service_with_a_task_that_panics() {
        let program =
            Program { name: "wattle-example", about: "An example", threads: Threads::One };
        let matches = program.command().get_matches_from(["wattle-example", "--config", "none"]);
        let load = |_: &Path| Ok::<_, anyhow::Error>(());
        let serve = async |(), shutdown: &Shutdown| {
            tokio::spawn(async { panic!("a task has failed") });
            shutdown.wait().await;
            Ok::<_, anyhow::Error>(())
        };
        program.start(&matches, load, serve);
    }

    #[test]
    fn a_panic_in_a_task_ends_the_process() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--nocapture", "service_with_a_task_that_panics"]);
        let ended = child.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{text}");
        assert!(text.contains("a task has failed") && text.contains("this process ends"), "{text}");
    }

    #[test]
    fn command_line_requires_a_configuration_file() {
        let program =
            Program { name: "wattle-example", about: "An example", threads: Threads::One };
        program.command().debug_assert();
        let error = program.command().try_get_matches_from(["wattle-example"]).unwrap_err();
        assert!(error.to_string().contains("--config <FILE>"), "{error}");
        let help = program.command().render_help().to_string();
        assert!(help.contains("deploy/example.toml"), "{help}");
    }
}

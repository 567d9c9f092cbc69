//! `wattle`: the command line of the energy- and carbon-aware scheduler for GPU training.
//!
//! It is a library so that the laboratory's program has the command [`simulate`] too, and the same tables,
//! notes and exit codes.
//!
//! Each command is one file in `commands`. Data goes to stdout, messages to stderr. The exit code is
//! 2 for wrong usage and 1 for any other failure; a command that waits has further ones (`wait`). The commands make no scheduling decision: they send
//! requests to the services or run the simulator, and print the result.

mod aim;
pub mod atomic_file;
mod backup_folder;
pub mod budget;
mod cluster_file;
mod commands;
mod connection;
mod date;
pub mod event_file;
mod feeders_file;
mod inputs;
mod job_end;
mod job_name;
mod job_records;
mod nats_context;
pub mod output;
mod policies;
mod private_folder;
mod progress;
mod quantity;
mod sacct;
mod summaries;
mod takeover;
mod trace_options;
mod verdict;
mod wait;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use wattle_placer::policies::POLICIES;

pub use commands::simulate;

use crate::output::{Exit, UsageError};

/// Energy- and carbon-aware scheduler for GPU training.
#[derive(Parser)]
#[command(
    name = "wattle",
    version,
    propagate_version = true,
    after_help = "Examples:\n  wattle up --simulated 2x4:v100 --rate 60\n  wattle submit --gpus 2 -- python3 train.py\n  wattle simulate --trace trace.csv --cluster 28x8:v100 --policy fifo,eaco"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole system on this machine.
    Up(commands::up::Up),
    /// Submit a job.
    Submit(commands::submit::Submit),
    /// List the jobs.
    Jobs(commands::jobs::Jobs),
    /// Cancel a job.
    Cancel(commands::cancel::Cancel),
    /// List the nodes and their GPUs.
    Nodes(commands::nodes::Nodes),
    /// List the processes of the services, and which of them are active.
    Services(commands::services::Services),
    /// Check this host and the cluster, with a remedy for each problem.
    Doctor(commands::doctor::Doctor),
    /// List the predictors with their errors, or promote one.
    Predictors(commands::predictors::Predictors),
    /// Show or set the energy, carbon and power budget.
    Budget(commands::budget::BudgetCommand),
    /// Announce, list, change, cancel or decline grid events.
    Event(commands::event::EventCommand),
    /// Explain the placement of a job: predictions, measurements, alternatives, decisions.
    Explain(commands::explain::Explain),
    /// Report the energy of jobs, users, nodes or days from the ledger.
    Energy(commands::energy::EnergyCommand),
    /// Show what was saved against the site's former scheduler.
    Saved(commands::saved::SavedCommand),
    /// Print the output of a job.
    Logs(commands::logs::Logs),
    /// Show power, nodes and jobs in the terminal, updated every second.
    Top(commands::top::Top),
    /// Print an address of the web page that signs one browser in.
    Page(commands::page::Page),
    /// Print the measured history of workloads as CSV.
    History(commands::history::History),
    /// Create, rotate, revoke and list the keys of services and people.
    Keys(commands::keys::Keys),
    /// List the orders of people, and whether they were accepted.
    Audit(commands::audit::Audit),
    /// Copy the stored state of the cluster into a folder.
    Backup(commands::backup::Backup),
    /// Restore the stored state of the cluster from a backup.
    Restore(commands::restore::Restore),
    /// Print every message on the bus, decoded, one per line.
    Tap(commands::tap::Tap),
    /// Check a site's Slurm, print the lines that it needs, give its jobs back.
    Slurm(commands::slurm::SlurmCommand),
    /// Simulate a trace under one or more policies, without server or GPU.
    Simulate(commands::simulate::Simulate),
    /// Estimate what Wattle would have saved on the jobs of a trace.
    Saving(commands::saving::Saving),
    /// Estimate how many nodes fit below a power limit, and how small the limit may be.
    Capacity(commands::capacity::Capacity),
    /// Print a shell completion script.
    Completions(commands::completions::Completions),
    /// Write the manual pages.
    Man(commands::man::Man),
    /// Moved to the laboratory.
    #[command(hide = true, after_help = "Example: wattle-lab compare eaco-28")]
    Compare(Moved),
    /// Moved to the laboratory.
    #[command(hide = true, after_help = "Example: wattle-lab evaluate --data DIR")]
    Evaluate(Moved),
    /// Run a program that is terminated together with `wattle up`.
    #[command(hide = true, name = commands::up::CHILD, after_help = "Example: used by `wattle up` only")]
    Child(commands::up::Child),
    /// Suspend or resume the services of a simulated node.
    #[command(hide = true, name = commands::up::SIMULATED_SLEEP, after_help = "Example: used by `wattle up` only")]
    SimulatedSleep(commands::up::SimulatedSleep),
}

/// The arguments of a command that is the laboratory's.
#[derive(clap::Args)]
struct Moved {
    /// Any arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<String>,
}

fn moved(command: &str) -> anyhow::Error {
    output::usage(format!(
        "`wattle {command}` is a command of the laboratory: wattle-lab {command}"
    ))
}

/// The command line.
pub(crate) fn command_line() -> clap::Command {
    allow_negative_numbers(Cli::command())
}

/// A command line that parses a negative number after an option as its value, so that the error names the
/// option and not an unknown flag `-5`.
#[must_use]
pub fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |arg: clap::Arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        if is_option { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(allow).mut_subcommands(allow_negative_numbers)
}

/// Runs `wattle` with the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::from_arg_matches(&command_line().get_matches())
        .unwrap_or_else(|error| error.format(&mut command_line()).exit());
    let result = match cli.command {
        Command::Up(command) => commands::up::run(command),
        Command::Submit(command) => commands::submit::run(command),
        Command::Jobs(command) => commands::jobs::run(command),
        Command::Cancel(command) => commands::cancel::run(command),
        Command::Nodes(command) => commands::nodes::run(command),
        Command::Services(command) => commands::services::run(&command),
        Command::Doctor(command) => commands::doctor::run(&command),
        Command::Predictors(command) => commands::predictors::run(command),
        Command::Budget(command) => commands::budget::run(command),
        Command::Event(command) => commands::event::run(command),
        Command::Explain(command) => commands::explain::run(command),
        Command::Energy(command) => commands::energy::run(&command),
        Command::Saved(command) => commands::saved::run(&command),
        Command::Logs(command) => commands::logs::run(&command),
        Command::Top(command) => commands::top::run(&command),
        Command::Page(command) => commands::page::run(&command),
        Command::History(command) => commands::history::run(command),
        Command::Keys(command) => commands::keys::run(command),
        Command::Audit(command) => commands::audit::run(&command),
        Command::Backup(command) => commands::backup::run(&command),
        Command::Restore(command) => commands::restore::run(&command),
        Command::Tap(command) => commands::tap::run(command),
        Command::Slurm(command) => commands::slurm::run(command),
        Command::Simulate(command) => commands::simulate::run(command, &POLICIES, Some(LABORATORY)),
        Command::Saving(command) => commands::saving::run(command),
        Command::Capacity(command) => commands::capacity::run(&command),
        Command::Compare(_) => Err(moved("compare")),
        Command::Evaluate(_) => Err(moved("evaluate")),
        Command::Child(command) => commands::up::become_child(&command),
        Command::SimulatedSleep(command) => commands::up::set_simulated_sleep(&command),
        Command::Completions(command) => commands::completions::run(&command),
        Command::Man(command) => commands::man::run(&command),
    };
    exit_code(result)
}

/// Where the policies are that no site runs.
const LABORATORY: &str = "`wattle-lab simulate` has those of comparisons too";

/// The exit code of a command's result; an error is printed.
#[must_use]
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if output::is_broken_pipe(&error) {
        // The reader of stdout closed the pipe, as in `wattle jobs | head -1`.
        return ExitCode::SUCCESS;
    }
    if let Some(Exit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    output::print_error(&error);
    if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// Why a command line is refused, for tests of the commands in the documentation; `None` if it prints its help
/// or version.
#[doc(hidden)]
#[must_use]
pub fn refusal(error: clap::Error) -> Option<(String, bool)> {
    use clap::error::ErrorKind;
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return None;
    }
    let text = error.to_string();
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) || text.contains("none was supplied");
    Some((text, is_incomplete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        command_line().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_of_itself() {
        fn look(path: &str, command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "`{path}` has no example");
            let names_itself = help.contains(&format!("  {path}")) || command.is_hide_set();
            assert!(names_itself, "the example of `{path}` shows another command: {help}");
            for inner in command.get_subcommands() {
                look(&format!("{path} {}", inner.get_name()), inner);
            }
        }
        look("wattle", &command_line());
    }

    /// Every `wattle` command of the documentation is one of this command line, with existing options and
    /// valid values.
    #[test]
    fn documented_commands_parse() {
        let refused = wattle_testkit::documentation::refused("wattle", |words| {
            command_line().try_get_matches_from(words).map(|_| ()).map_err(refusal)
        });
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }

    #[test]
    fn negative_number_is_refused_with_the_name_of_its_option() {
        let parsed = |args: &[&str]| {
            let words = ["wattle"].iter().chain(args).copied();
            command_line().try_get_matches_from(words).map_err(|error| error.to_string())
        };
        for (args, expected) in [
            (&["simulate", "--jobs", "-1"][..], "'-1' for '--jobs <N>'"),
            (&["simulate", "--seeds", "-1"], "'-1' for '--seeds <N>'"),
            (&["budget", "set", "--energy-kwh", "abc"], "'abc' for '--energy-kwh <KWH>'"),
            (&["up", "--rate", "-1"], "-1 is not in 1..=10000"),
            (
                &["submit", "--priority", "-1", "--", "true"],
                "invalid priority `-1`: expected a number from 0 to 100",
            ),
        ] {
            let error = parsed(args).expect_err("out of range");
            assert!(error.contains(expected), "{args:?}: {error}");
        }
        // The commands check these bounds themselves.
        for args in [
            &["simulate", "--load", "-1"][..],
            &["simulate", "--price", "-1"],
            &["up", "--power-kw", "-1"],
            &["budget", "set", "--energy-kwh", "-5"],
        ] {
            assert!(parsed(args).is_ok(), "{args:?}");
        }
        // Arguments after the program belong to the program.
        assert!(parsed(&["submit", "--", "train", "-5"]).is_ok());
    }
}

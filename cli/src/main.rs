//! `wattle`: run deep-learning training by the joule and the gram.
//!
//! One file per command below `commands`. Data goes to stdout, everything else to stderr; wrong
//! usage ends with exit code 2, anything else that fails with 1. No decision is made here: the
//! commands ask the services, or the simulator, and show the answer.

mod budget;
mod cluster_file;
mod commands;
mod connection;
mod late_file;
mod output;
mod progress;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::UsageError;

/// Plans are made of many small pieces.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Trains on GPU clusters by the joule and the gram.
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
    /// Hand in a job.
    Submit(commands::submit::Submit),
    /// List the jobs.
    Jobs(commands::jobs::Jobs),
    /// Take a job back.
    Cancel(commands::cancel::Cancel),
    /// List the nodes and their GPUs.
    Nodes(commands::nodes::Nodes),
    /// List the predictors and how well each one foretells, or let another one serve.
    Predictors(commands::predictors::Predictors),
    /// Show or set what may be spent.
    Budget(commands::budget::BudgetCommand),
    /// Say why a job is where it is.
    Explain(commands::explain::Explain),
    /// Print what was learned of workloads that ran here, as CSV.
    History(commands::history::History),
    /// Show every message on the bus, decoded, one line each.
    Tap(commands::tap::Tap),
    /// Replay a trace under one or more policies; needs no server and no GPU.
    Simulate(commands::simulate::Simulate),
    /// Compare policies at equal energy on a fixed scenario; needs no server and no GPU.
    Compare(commands::compare::Compare),
    /// Measure the predictor on files of measured runs; needs no server and no GPU.
    Evaluate(commands::evaluate::Evaluate),
    /// Become a program that ends with `wattle up`, however that ends.
    #[command(hide = true, name = commands::up::CHILD, after_help = "Example: for `wattle up` alone")]
    Child(commands::up::Child),
    /// A simulated node falls asleep or wakes
    #[command(hide = true, name = commands::up::NAP, after_help = "Example: for `wattle up` alone")]
    Nap(commands::up::NapOfUp),
}

/// The command line. A negative number after an option is its value, so that whoever refuses it names
/// the option, and not a flag `-5` that does not exist.
fn command_line() -> clap::Command {
    fn take_negative_numbers(command: clap::Command) -> clap::Command {
        let takes = |arg: clap::Arg| {
            let is_option = !arg.is_positional() && arg.get_action().takes_values();
            if is_option { arg.allow_negative_numbers(true) } else { arg }
        };
        command.mut_args(takes).mut_subcommands(take_negative_numbers)
    }
    take_negative_numbers(Cli::command())
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command_line().get_matches())
        .unwrap_or_else(|error| error.format(&mut command_line()).exit());
    let result = match cli.command {
        Command::Up(command) => commands::up::run(command),
        Command::Submit(command) => commands::submit::run(command),
        Command::Jobs(command) => commands::jobs::run(command),
        Command::Cancel(command) => commands::cancel::run(command),
        Command::Nodes(command) => commands::nodes::run(command),
        Command::Predictors(command) => commands::predictors::run(command),
        Command::Budget(command) => commands::budget::run(command),
        Command::Explain(command) => commands::explain::run(command),
        Command::History(command) => commands::history::run(command),
        Command::Tap(command) => commands::tap::run(command),
        Command::Simulate(command) => commands::simulate::run(command),
        Command::Compare(command) => commands::compare::run(&command),
        Command::Evaluate(command) => commands::evaluate::run(command),
        Command::Child(command) => commands::up::become_child(&command),
        Command::Nap(command) => commands::up::nap(&command),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    if output::is_broken_pipe(&error) {
        // Somebody read the first lines and left; that is no failure.
        return ExitCode::SUCCESS;
    }
    output::complain(&error);
    if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }

    /// Every command shows how it is used: it, and not another one.
    #[test]
    fn every_command_has_an_example() {
        fn look(path: &str, command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "`{path}` has no example");
            let of_itself = help.contains(&format!("  {path}")) || command.is_hide_set();
            assert!(of_itself, "`{path}` has the example of another: {help}");
            for inner in command.get_subcommands() {
                look(&format!("{path} {}", inner.get_name()), inner);
            }
        }
        look("wattle", &command_line());
    }

    #[test]
    fn a_negative_number_is_refused_by_the_option_that_it_was_given_to() {
        let parsed = |args: &[&str]| {
            let words = ["wattle"].iter().chain(args).copied();
            command_line().try_get_matches_from(words).map_err(|error| error.to_string())
        };
        for (args, says) in [
            (&["simulate", "--jobs", "-1"][..], "'-1' for '--jobs <N>'"),
            (&["simulate", "--seeds", "-1"], "'-1' for '--seeds <N>'"),
            (&["budget", "set", "--energy-kwh", "abc"], "'abc' for '--energy-kwh <KWH>'"),
            (&["up", "--rate", "-1"], "-1 is not in 1..=10000"),
            (&["submit", "--priority", "-1", "--", "true"], "-1 is not in 0..=100"),
        ] {
            let error = parsed(args).expect_err("it is none");
            assert!(error.contains(says), "{args:?}: {error}");
        }
        // These are refused by what knows the bound.
        for args in [
            &["simulate", "--load", "-1"][..],
            &["simulate", "--price", "-1"],
            &["compare", "eaco-28", "--load", "-0.5"],
            &["up", "--power-kw", "-1"],
            &["budget", "set", "--energy-kwh", "-5"],
        ] {
            assert!(parsed(args).is_ok(), "{args:?}");
        }
        // What follows a program is its own.
        assert!(parsed(&["submit", "--", "train", "-5"]).is_ok());
    }
}

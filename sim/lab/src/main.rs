//! `wattle-lab`: the laboratory's program. It compares policies with each other and with lower bounds, and
//! measures the predictors. No site needs it, and its policies are not all live ones.
//!
//! Each command is one file; `simulate` is that of `wattle` with the baselines beside the placer's policies.
//! Output and exit codes are those of `wattle`.

mod compare;
mod evaluate;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use wattle_baselines::POLICIES;
use wattle_cli::{allow_negative_numbers, exit_code, simulate};

/// Planning allocates many small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Comparisons of policies and evaluation of predictors, without server or GPU.
#[derive(Parser)]
#[command(
    name = "wattle-lab",
    version,
    propagate_version = true,
    after_help = "Example:\n  wattle-lab compare builtin --quick --policy fifo,eaco,wattle"
)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate a trace under one or more policies, those of the laboratory too.
    Simulate(simulate::Simulate),
    /// Compare policies at equal energy on a fixed scenario.
    Compare(compare::Compare),
    /// Measure the predictors on files of measured runs.
    Evaluate(evaluate::Evaluate),
}

fn command_line() -> clap::Command {
    let describe = |command| simulate::describe(command, "wattle-lab", &POLICIES);
    allow_negative_numbers(Lab::command().mut_subcommand("simulate", describe))
}

fn main() -> ExitCode {
    let lab = Lab::from_arg_matches(&command_line().get_matches())
        .unwrap_or_else(|error| error.format(&mut command_line()).exit());
    exit_code(match lab.command {
        Command::Simulate(command) => simulate::run(command, &POLICIES, None),
        Command::Compare(command) => compare::run(&command),
        Command::Evaluate(command) => evaluate::run(command),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent_and_each_command_has_an_example() {
        command_line().debug_assert();
        for command in command_line().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("  wattle-lab {}", command.get_name());
            assert!(help.contains("Example") && help.contains(&example), "{help}");
        }
    }

    #[test]
    fn documented_commands_parse() {
        let refused = wattle_testkit::documentation::refused("wattle-lab", |words| {
            command_line().try_get_matches_from(words).map(|_| ()).map_err(wattle_cli::refusal)
        });
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }

    #[test]
    fn simulate_has_the_baselines() {
        let command = command_line();
        let simulate = command.find_subcommand("simulate").unwrap();
        let help = simulate.clone().render_long_help().to_string();
        for text in ["srtf", "tiresias:NUMBER", "NAME+zeus", "wattle-lab simulate --report"] {
            assert!(help.contains(text), "{text}: {help}");
        }
    }

    #[test]
    fn a_negative_load_is_refused_by_the_command_itself() {
        let words = ["wattle-lab", "compare", "eaco-28", "--load", "-0.5"];
        assert!(command_line().try_get_matches_from(words).is_ok());
    }
}

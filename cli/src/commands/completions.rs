//! `wattle completions`: a completion script for a shell, generated from the command line.

use clap::Args;
use clap_complete::{Shell, generate};

use crate::output::print;

/// Print a shell completion script.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle completions bash > /etc/bash_completion.d/wattle\n  wattle completions zsh > ~/.zfunc/_wattle\n  wattle completions fish > ~/.config/fish/completions/wattle.fish"
)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(command: &Completions) -> anyhow::Result<()> {
    let mut script = Vec::new();
    generate(command.shell, &mut crate::command_line(), "wattle", &mut script);
    print(&String::from_utf8(script)?)
}

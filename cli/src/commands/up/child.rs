//! The wrapper of every process of `wattle up`: the process receives SIGTERM when `wattle up` ends,
//! even by SIGKILL.
//!
//! Otherwise orphaned services would continue, and the next `wattle up` in the same folder would start
//! a second set of services for the same jobs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The hidden command's name.
pub(crate) const CHILD: &str = "child-of-up";

/// Run a program that is terminated together with `wattle up`.
#[derive(Args)]
pub(crate) struct Child {
    /// The process id of `wattle up`
    #[arg(long)]
    parent: i32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The arguments with which `wattle` executes `program` as a child of process `parent`.
pub(super) fn arguments(parent: u32, program: OsString) -> [OsString; 5] {
    [CHILD.into(), "--parent".into(), parent.to_string().into(), "--".into(), program]
}

/// Executes the program in this process; returns only on failure.
pub(crate) fn become_child(child: &Child) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot watch the parent")?;
    // The parent may have ended before the signal was set.
    anyhow::ensure!(getppid() == Pid::from_raw(child.parent), "wattle up has ended");
    let (program, args) = child.command.split_first().context("no program")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

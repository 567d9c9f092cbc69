//! What a process of `wattle up` is started through: it ends when `wattle up` does, even by SIGKILL.
//!
//! Otherwise services without their parent would go on, and the next `wattle up` in the same folder
//! would be the second master of the same jobs. The kernel sends the signal; whoever gets it ends
//! in order.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The hidden command's name.
pub(crate) const CHILD: &str = "child-of-up";

/// Become a program that ends with `wattle up`.
#[derive(Args)]
pub(crate) struct Child {
    /// The process id of `wattle up`
    #[arg(long)]
    parent: i32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The arguments that make `wattle` become `program` under process `parent`.
pub(super) fn arguments(parent: u32, program: OsString) -> [OsString; 5] {
    [CHILD.into(), "--parent".into(), parent.to_string().into(), "--".into(), program]
}

/// Becomes the program; returns only if that fails.
pub(crate) fn become_child(child: &Child) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot watch the parent")?;
    // It may have ended before the kernel was asked to watch.
    anyhow::ensure!(getppid() == Pid::from_raw(child.parent), "wattle up has ended");
    let (program, args) = child.command.split_first().context("no program")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

//! The child processes that the launcher has started itself. Every other child is a process of a job.
//!
//! A supervisor adopts the orphaned processes of its job. If it is killed, which a job under the launcher's account
//! can do, the launcher adopts them in its place, whatever session and environment they have, and ends them.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::event::{Timespec, poll};

use super::process;

/// Rounds of killing: an orphan's children become orphans with its end. Some of them may hang in the kernel.
const ROUNDS_MAX: u32 = 100;
/// Pause between two rounds, wall time.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The numbers of the launcher's own children.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnChildren {
    numbers: Arc<Mutex<BTreeSet<u32>>>,
    adopts: bool,
}

impl OwnChildren {
    /// From now on this process, which has no other children, adopts the orphans of its supervisors.
    pub(super) fn adopting() -> Self {
        let me = rustix::process::getpid();
        let adopts = rustix::process::set_child_subreaper(Some(me)).is_ok();
        Self { adopts, ..Self::default() }
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a child; `start` returns it with its number.
    pub(super) fn start<C>(
        &self,
        start: impl FnOnce() -> io::Result<(C, Option<u32>)>,
    ) -> io::Result<C> {
        // Locked until it is known, because it would count as an orphan.
        let mut numbers = self.numbers();
        let (child, number) = start()?;
        numbers.extend(number);
        Ok(child)
    }

    /// A child has ended and was waited for.
    pub(super) fn ended(&self, number: Option<u32>) {
        if let Some(number) = number {
            self.numbers().remove(&number);
        }
    }

    /// Kills and reaps adopted processes. No child is started meanwhile, a tenth of a second at most.
    pub(super) fn end_orphans(&self) {
        if !self.adopts {
            return;
        }
        let own = self.numbers();
        for _ in 0..ROUNDS_MAX {
            let children = process::children(std::process::id());
            let orphans = children.into_iter().filter(|child| !own.contains(child));
            let orphans: Vec<Pid> =
                orphans.filter_map(|child| i32::try_from(child).ok()).map(Pid::from_raw).collect();
            if orphans.is_empty() {
                return;
            }
            for orphan in orphans {
                // A child keeps its number until it is reaped here, so no other process can have it.
                let _ = kill(orphan, Signal::SIGKILL);
                let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
            }
            let _ = poll(&mut [], Some(&PAUSE));
        }
    }
}

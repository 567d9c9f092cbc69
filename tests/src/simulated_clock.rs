//! The clock of simulated nodes that a test runs without `wattle up`: it waits for their services.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use wattle_common::{Timestamp, env};
use wattle_runtime::clock::FileClock;

use crate::program;

/// The process that grants the time of simulated nodes; it ends with this value.
#[derive(Debug)]
pub struct SimulatedClock {
    granter: Child,
    clock: FileClock,
}

impl SimulatedClock {
    /// Grants the time of the nodes with these state files. The clock waits for all processes with
    /// [`environment`] of one of them.
    ///
    /// # Panics
    /// If a file is no state of a node.
    #[must_use]
    pub fn start(states: &[PathBuf]) -> Self {
        let mut command = Command::new(program("wattle-simnode"));
        command.arg("clock").stdin(Stdio::null());
        for state in states {
            command.arg("--state").arg(state);
        }
        let granter = command.spawn().expect("wattle-simnode starts");
        let clock = FileClock::open(&states[0]).expect("a node's state begins with its clock");
        // Services that start from now on are waited for.
        while !clock.is_granted() {
            crate::pause();
        }
        Self { granter, clock }
    }

    /// The system time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Stops the clock (`STOP`), or continues it (`CONT`).
    pub fn signal(&self, signal: &str) {
        crate::kill(self.granter.id(), signal);
    }
}

impl Drop for SimulatedClock {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.granter.kill();
        let _ = self.granter.wait();
    }
}

/// The environment of a process that reads the clock of this node, and for which the clock waits.
#[must_use]
pub fn environment(state: &Path) -> (&'static str, PathBuf) {
    (env::CLOCK, state.to_owned())
}

//! The clock of simulated nodes that a test runs without `wattle up`: it waits for their services. Of this one and of
//! that of `wattle up` a test can hold the time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::{Timestamp, env};
use wattle_runtime::clock::FileClock;

use crate::{descendants, kill, kill_if_running, pause, program};

/// Difference of two readings of a time that is held: the readings are rounded, and a rate multiplies that.
const SAME: Duration = Duration::from_millis(1);

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
            pause();
        }
        Self { granter, clock }
    }

    /// The system time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Holds the time.
    pub fn hold(&self) -> Held {
        Held::of(self.granter.id())
    }
}

impl Drop for SimulatedClock {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.granter.kill();
        let _ = self.granter.wait();
    }
}

/// Simulated time is held while this value lives, however long the machine takes meanwhile.
///
/// Messages are handled, and processes start and end. No timer of the system's time expires: a job makes no step, no
/// lease ends, no planning round begins. A test holds the time for its looks and commands, and drops this value where
/// it waits for progress. One such value of a clock lives at a time.
#[derive(Debug)]
#[must_use = "the time continues when this value is dropped"]
pub struct Held {
    granter: u32,
}

impl Held {
    /// Holds the time that this process grants, a `wattle-simnode clock`; returns when the time stands.
    ///
    /// # Panics
    /// If the process does not run.
    pub fn of(granter: u32) -> Self {
        let state = state_of(granter).expect("the process grants the time of a node");
        let clock = FileClock::open(&state).expect("a node's state begins with its clock");
        kill(granter, "STOP");
        let held = Self { granter };
        // What was granted before still passes.
        let mut last = clock.now();
        loop {
            pause();
            let now = clock.now();
            if now.since(last) < SAME {
                return held;
            }
            last = now;
        }
    }

    /// Holds the time of a `wattle up` with simulated nodes.
    ///
    /// # Panics
    /// If it has none.
    pub fn of_up(up: u32) -> Self {
        let mut found = descendants(up, "wattle-simnode").into_iter();
        let clock = found.find(|(_, command)| command.as_deref() == Some("clock"));
        Self::of(clock.expect("a system of simulated nodes has a clock").0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Its system may have ended.
        kill_if_running(self.granter, "CONT");
    }
}

/// The state of the first node whose time a process grants.
fn state_of(granter: u32) -> Option<PathBuf> {
    let command = std::fs::read(format!("/proc/{granter}/cmdline")).ok()?;
    let mut words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.find(|word| word == "--state")?;
    words.next().map(|state| PathBuf::from(state.into_owned()))
}

/// The environment of a process that reads the clock of this node, and for which the clock waits.
#[must_use]
pub fn environment(state: &Path) -> (&'static str, PathBuf) {
    (env::CLOCK, state.to_owned())
}

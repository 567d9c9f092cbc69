//! The schedule that a site had, with which policies are compared: backfilling, FIFO, or as recorded.
//!
//! All have the requested numbers of GPUs, exclusive GPUs, default caps and clocks, no power limit but those of
//! feeders, no deferral and nodes that stay awake.

use std::fmt;
use std::str::FromStr;

use wattle_simulator::replay::{ReplayError, is_recorded, replay};
use wattle_simulator::trace::Trace;
use wattle_simulator::{Baseline, RunOptions, Scenario, SimulationError};
use wattle_world::World;

use crate::aim_run::run_completed;
use crate::lateness::{Projects, Reference};
use crate::schedule::Schedule;

/// Which schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineKind {
    /// EASY backfilling, the policy `backfill`.
    Backfill,
    /// First come, first served, the policy `fifo`.
    Fifo,
    /// The starts and ends that the trace records.
    Recorded,
}

impl fmt::Display for BaselineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backfill => "backfill",
            Self::Fifo => "fifo",
            Self::Recorded => "recorded",
        })
    }
}

impl BaselineKind {
    /// The words after "no later than": `under backfill`, `as recorded`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Backfill => "under backfill",
            Self::Fifo => "under fifo",
            Self::Recorded => "recorded",
        }
    }
}

/// An unknown name of a baseline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no baseline `{0}`: give backfill, fifo or recorded")]
pub struct UnknownBaseline(String);

impl FromStr for BaselineKind {
    type Err = UnknownBaseline;

    fn from_str(text: &str) -> Result<Self, UnknownBaseline> {
        let all = [Self::Backfill, Self::Fifo, Self::Recorded];
        let known = all.into_iter().find(|kind| kind.to_string() == text);
        known.ok_or_else(|| UnknownBaseline(text.to_owned()))
    }
}

/// Why a baseline cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The trace lacks recorded starts or ends.
    #[error(
        "{trace} does not record the start and the end of every job; give a trace that does, such as an export of \
         `sacct` with the columns Start and End, or compare with backfill"
    )]
    NotRecorded {
        /// The trace's name.
        trace: String,
    },
    /// The recorded schedule cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// Neither policy exists under its name.
    #[error(transparent)]
    Policy(#[from] wattle_placer::UnknownPolicy),
}

/// The baseline of the jobs of `scenario`, which are those of `trace` in its order, and its completion times.
/// `progress` receives the numbers of ended jobs and of all jobs.
///
/// # Errors
/// If the trace records no schedule or one that exceeds the cluster, and if a simulation fails.
pub fn baseline(
    kind: BaselineKind,
    world: &World,
    scenario: &Scenario,
    trace: &Trace,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Baseline, Reference), BaselineError> {
    let (energy_kwh, completion_s) = if kind == BaselineKind::Recorded {
        if !is_recorded(trace) {
            return Err(BaselineError::NotRecorded { trace: trace.name.clone() });
        }
        let schedule = Schedule::recorded(replay(world, scenario, trace)?);
        (schedule.energy_kwh, schedule.completion_s)
    } else {
        let policy = wattle_placer::policy(&kind.to_string())?;
        let options = RunOptions { no_deferral: true, ..RunOptions::default() };
        let run = run_completed(world, scenario, policy.as_ref(), &options, progress)?;
        (run.outcome.energy_kwh, run.completion_s)
    };
    let completed = || completion_s.iter().flatten();
    let count = completed().count();
    let mean_s = completed().sum::<f64>() / count.max(1) as f64;
    let baseline = Baseline {
        schedule: kind.to_string(),
        jct_s_mean: (count > 0).then(|| (mean_s * 1e6).round() / 1e6),
        energy_kwh,
    };
    Ok((baseline, Reference { completion_s, projects: Projects::of(trace) }))
}

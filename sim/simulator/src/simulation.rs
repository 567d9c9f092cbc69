//! A scenario, ready to be run under one policy after another.

use wattle_common::{Budget, JobId, Timestamp, WorkloadId};
use wattle_placer::controller::probes::ProbeConfig;
use wattle_placer::{Policy, Reads, UnknownPolicy, Violation, policy};
use wattle_world::World;

use crate::engine::Engine;
use crate::engine::recording::Recording;
use crate::outcome::{Outcome, PolicyOutcome, PredictionRegret};
use crate::scenario::{Scenario, ScenarioError};
use crate::surface_noise::SurfaceNoise;

/// Why a simulation did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The scenario names what the catalog does not have.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A job's workload is not in the catalog.
    #[error("job {job}: no workload `{workload}` in the catalog")]
    UnknownWorkload {
        /// The job.
        job: JobId,
        /// What it names.
        workload: WorkloadId,
    },
    /// A policy made a plan that breaks a rule: our own mistake.
    #[error("{policy} made a plan at {at} that breaks rules: {violations:?}; please report it")]
    Violation {
        /// The policy.
        policy: String,
        /// When.
        at: Timestamp,
        /// What the checker found.
        violations: Vec<Violation>,
    },
    /// The run would go on for longer than time is counted.
    #[error("{policy}: the run would last over 100,000 years; are the trace's times in seconds?")]
    TooLong {
        /// The policy.
        policy: String,
    },
    /// A policy does not come to rest: our own mistake.
    #[error("{policy} does not come to rest at {at}; please report it")]
    Restless {
        /// The policy.
        policy: String,
        /// When.
        at: Timestamp,
    },
}

/// From when on the length of a job is known to the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lengths {
    /// From its arrival on.
    Known,
    /// From its first report on, as jobs that say their number of steps do.
    #[default]
    Reported,
    /// Never: only how far it is.
    Unknown,
    /// Never, but the cluster has a past: as many jobs as come, each drawn from those that come,
    /// have ended before the first does.
    Past,
}

impl Lengths {
    /// Whether a job ever says how long it is.
    #[must_use]
    pub const fn are_told(self) -> bool {
        matches!(self, Self::Known | Self::Reported)
    }
}

/// What is expected of the grid's carbon intensity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forecast {
    /// The last day again.
    #[default]
    Persistence,
    /// What [`Scenario::day_ahead`] says; without it, the last day again.
    DayAhead,
    /// What will be: no real one can; it shows what being wrong costs.
    Perfect,
}

/// Which restarts take time ([`wattle_placer::allocation::restart_cost`]). Policies reckon with all
/// of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// All.
    #[default]
    Charged,
    /// Those that change how many GPUs a job has; who only moves to others goes on at once.
    MovesFree,
    /// None, as in simulators that charge nothing for them.
    Free,
}

/// What a run is besides its scenario and its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// Whether surfaces are true ones, made from the world.
    pub oracle: bool,
    /// How far they are from true, where they are made from the world and err.
    pub surface_noise: Option<SurfaceNoise>,
    /// What a joule is worth to the policy, in its own unit; 0: nothing.
    pub price: f64,
    /// Whether nodes may sleep.
    pub nodes_sleep: bool,
    /// From when on the length of a job is known.
    pub lengths: Lengths,
    /// Most jobs on one GPU; the placer's default where it is not set.
    pub tenants_max: Option<u32>,
    /// What a job pays that was stopped and starts again.
    pub restarts: Restarts,
    /// What may be spent, in windows from the first submission on.
    pub budget: Option<Budget>,
    /// What is expected of the grid.
    pub forecast: Forecast,
    /// Whether no job waits for a cleaner grid, whatever slack it declares.
    pub no_deferral: bool,
    /// Whether running jobs are probed, and what that may cost; off by default, as live.
    pub probe: ProbeConfig,
}

/// Runs `scenario` under `policy`.
///
/// # Errors
/// Where a workload is not known, or the policy breaks a rule.
pub fn run_with(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
) -> Result<PolicyOutcome, SimulationError> {
    Engine::new(world, scenario, policy, options)?.run()
}

/// Runs `scenario` under `policy` as [`run_with`] does, with the same outcome. `progress` hears how
/// many jobs have ended, and of how many, whenever one has.
///
/// # Errors
/// Where a workload is not known, or the policy breaks a rule.
pub fn run_with_progress(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<PolicyOutcome, SimulationError> {
    Engine::new(world, scenario, policy, options)?.with_progress(progress).run()
}

/// Runs `scenario` under `policy` as [`run_with`] does, with the same outcome, and records the run.
/// `progress` receives the numbers of ended jobs and of all jobs whenever a job ends.
///
/// # Errors
/// Where a workload is not known, or the policy breaks a rule.
pub fn run_recorded(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(PolicyOutcome, Recording), SimulationError> {
    Engine::new(world, scenario, policy, options)?.with_progress(progress).run_recorded()
}

/// Runs `scenario` under one policy. Its `wall_s` is 0: this library takes no clock, the caller may
/// fill it in.
///
/// # Errors
/// Where the policy or a workload is not known.
pub fn run_policy(
    world: &World,
    scenario: &Scenario,
    name: &str,
) -> Result<PolicyOutcome, SimulationError> {
    let policy = policy(name)?;
    Engine::new(world, scenario, policy.as_ref(), &RunOptions::default())?.run()
}

/// Runs `scenario` under one policy whose surfaces are true: the world's own answers, known from a
/// job's arrival on. `None` for a policy that reads no surfaces, which nothing would change.
///
/// # Errors
/// Where the policy or a workload is not known.
pub fn run_oracle(
    world: &World,
    scenario: &Scenario,
    name: &str,
) -> Result<Option<PolicyOutcome>, SimulationError> {
    let policy = policy(name)?;
    if policy.capabilities().reads == Reads::Nothing {
        return Ok(None);
    }
    let options = RunOptions { oracle: true, ..RunOptions::default() };
    Engine::new(world, scenario, policy.as_ref(), &options)?.run().map(Some)
}

/// The outcome of runs that the caller made one by one with [`run_policy`] and [`run_oracle`], the
/// oracle's beside or after the policy's own.
#[must_use]
pub fn gather(scenario: &Scenario, policies: Vec<PolicyOutcome>) -> Outcome {
    let mut notes = scenario.notes.clone();
    if let Some(series) = scenario.carbon.as_ref().filter(|series| series.cells_filled > 0) {
        notes.push(format!(
            "{} empty cells of {} were filled from their neighbours",
            series.cells_filled, series.name
        ));
    }
    let prediction_regret = PredictionRegret::of(&policies);
    Outcome {
        trace: scenario.trace.clone(),
        cluster: scenario.cluster.to_string(),
        seed: scenario.seed,
        load: scenario.load.map(|load| (load * 1e6).round() / 1e6),
        policies,
        prediction_regret,
        workloads: scenario.workloads.clone(),
        notes,
    }
}

/// Runs `scenario` under each of `policies`.
///
/// # Errors
/// Where a policy or a workload is not known.
pub fn run<S: AsRef<str>>(
    world: &World,
    scenario: &Scenario,
    policies: &[S],
) -> Result<Outcome, SimulationError> {
    let runs: Result<Vec<_>, _> =
        policies.iter().map(|name| run_policy(world, scenario, name.as_ref())).collect();
    Ok(gather(scenario, runs?))
}

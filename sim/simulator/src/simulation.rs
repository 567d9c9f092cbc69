//! Runs of a scenario under one or more policies.

use wattle_common::aim::{AimBound, Baseline};
use wattle_common::job::Sharing;
use wattle_common::{Budget, JobId, Timestamp, WorkloadId};
use wattle_placer::{Policy, UnknownPolicy};
use wattle_world::World;

use crate::detail::Detail;
use crate::engine::Engine;
use crate::engine::recording::Recording;
use crate::events::PlannedEvent;
use crate::outcome::{Outcome, PolicyOutcome, PredictionRegret};
use crate::scenario::{Scenario, ScenarioError};
use crate::surface_noise::SurfaceNoise;

/// Failure of a simulation.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// Unknown policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The scenario refers to an entry that the catalog does not have.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// Unknown workload.
    #[error("job {job}: no workload `{workload}` in the catalog")]
    UnknownWorkload {
        /// The job.
        job: JobId,
        /// Its workload.
        workload: WorkloadId,
    },
    /// A policy's plan violates a rule. This is a bug of the policy.
    #[error("{policy}: the plan at {at} violates rules: {violations}; please report this bug")]
    Violation {
        /// The policy.
        policy: String,
        /// Time in the simulation.
        at: Timestamp,
        /// The checker's findings, as sentences.
        violations: String,
    },
    /// The run exceeds the longest supported duration.
    #[error("{policy}: the run would last over 100,000 years; are the trace's times in seconds?")]
    TooLong {
        /// The policy.
        policy: String,
    },
    /// A policy keeps changing its plan at one instant. This is a bug of the policy.
    #[error("{policy}: planning does not converge at {at}; please report this bug")]
    NotSettled {
        /// The policy.
        policy: String,
        /// Time in the simulation.
        at: Timestamp,
    },
}

/// When a policy learns the length of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lengths {
    /// At its arrival.
    Known,
    /// With its first progress report, as for jobs that report their number of steps.
    #[default]
    Reported,
    /// Never; the policy receives progress only.
    Unknown,
    /// Never, but there is a work history of as many completed jobs as the scenario has, each drawn
    /// from the scenario.
    Past,
}

impl Lengths {
    /// Whether jobs report their length.
    #[must_use]
    pub const fn are_reported(self) -> bool {
        matches!(self, Self::Known | Self::Reported)
    }
}

/// Source of the carbon intensity forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forecast {
    /// The last day repeats.
    #[default]
    Persistence,
    /// [`Scenario::day_ahead`]; without it, persistence.
    DayAhead,
    /// The actual intensity, which gives the cost of forecast errors.
    Perfect,
}

/// Which restarts take time ([`wattle_placer::state::restarts::typical_cost`]). Policies account for all
/// of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// All.
    #[default]
    Charged,
    /// Only those that change the number of GPUs.
    MovesFree,
    /// None, as in simulators without restart costs.
    Free,
}

/// The jobs whose windows the predictor learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learning {
    /// All in scenarios of up to [`EVERY_JOB_MAX`] jobs, otherwise a sample.
    #[default]
    BySize,
    /// All.
    Every,
    /// A sample; the others share its surfaces ([`crate::sampled`]).
    Sampled,
}

/// In scenarios of up to this many jobs the predictor learns the windows of every job by default.
pub const EVERY_JOB_MAX: usize = 10_000;

impl Learning {
    pub(crate) fn is_sampled(self, jobs: usize) -> bool {
        self == Self::Sampled || (self == Self::BySize && jobs > EVERY_JOB_MAX)
    }
}

/// Options of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// Whether the oracle provides true surfaces.
    pub oracle: bool,
    /// Whether the oracle's settings are caps in place of clocks: where the world has measured caps alone.
    pub oracle_caps: bool,
    /// Errors of the oracle's surfaces.
    pub surface_noise: Option<SurfaceNoise>,
    /// Energy price, in the policy's unit.
    pub price: f64,
    /// The bound on mean completion time that the controller of the energy aim holds; `None`: the price is
    /// constant.
    pub aim: Option<AimBound>,
    /// The twin that runs beside the policy, if any, also without an aim that refers to it.
    pub twin: Option<Baseline>,
    /// Whether expected starts and ends of jobs are computed as in a live placer, and their errors reported. Then
    /// surfaces are reported under policies that read none, too.
    pub expected_times: bool,
    /// Whether nodes may sleep.
    pub nodes_sleep: bool,
    /// When the policy learns the length of a job.
    pub lengths: Lengths,
    /// Maximum number of jobs on one GPU; `None` is the placer's default.
    pub tenants_max: Option<u32>,
    /// Most stops of a job by plans within a day, above 32 no bound; `None`: the placer's defaults.
    pub restarts_per_day_max: Option<u32>,
    /// Which jobs may share a GPU. No job of a trace declares consent.
    pub share: Sharing,
    /// Which restarts take time.
    pub restarts: Restarts,
    /// Budget, in windows from the first submission on.
    pub budget: Option<Budget>,
    /// Grid events; their times count from the first submission.
    pub events: Vec<PlannedEvent>,
    /// Whether what can be delivered during each event is planned at its notice, as `wattle event plan` does. Expected
    /// times are to be computed, too.
    pub plans_events: bool,
    /// Source of the carbon intensity forecast.
    pub forecast: Forecast,
    /// Whether the caps of all GPUs are fixed at the default: plans count each used GPU with its cap within a
    /// power limit, as where no cap can be set. The policy should choose no settings then.
    pub fixed_caps: bool,
    /// Whether carbon deferral is off, whatever slack jobs declare.
    pub no_deferral: bool,
    /// The jobs whose windows the predictor learns.
    pub learning: Learning,
}

/// Runs `scenario` under `policy`.
///
/// # Errors
/// On an unknown workload, and if the policy violates a rule.
pub fn run_with(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
) -> Result<PolicyOutcome, SimulationError> {
    Engine::new(world, scenario, policy, options)?.run()
}

/// Runs `scenario` under `policy` as [`run_with`] does, with the same outcome. `progress`
/// receives the numbers of ended jobs and of all jobs whenever a job ends.
///
/// # Errors
/// On an unknown workload, and if the policy violates a rule.
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
/// On an unknown workload, and if the policy violates a rule.
pub fn run_recorded(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(PolicyOutcome, Recording), SimulationError> {
    Engine::new(world, scenario, policy, options)?.with_progress(progress).run_recorded()
}

/// Runs `scenario` under `policy` as [`run_with`] does, with the same outcome, and returns its jobs
/// and nodes. `progress` receives the numbers of ended jobs and of all jobs whenever a job ends.
///
/// # Errors
/// On an unknown workload, and if the policy violates a rule.
pub fn run_detailed(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(PolicyOutcome, Detail), SimulationError> {
    Engine::new(world, scenario, policy, options)?.with_progress(progress).run_detailed()
}

/// The outcome of separate runs of `scenario`. A run with exact predictions follows its policy's run.
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
        arrivals_s: scenario.arrivals().map(|span| span.as_secs_f64()),
        baseline: None,
        policies,
        prediction_regret,
        workloads: scenario.workloads.clone(),
        notes,
    }
}

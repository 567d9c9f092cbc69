//! The jobs of an estimate as each seed draws them, and their baselines.

use wattle_simulator::replay::replay;
use wattle_simulator::{NodeOutcome, Restartable, Scenario};
use wattle_world::World;

use super::runs::{Jobs, Runner};
use super::sample::Sample;
use super::{SavingError, SavingInput};
use crate::baseline::BaselineKind;
use crate::schedule::Schedule;

/// The jobs with the workloads and the noise of one seed, and their baseline.
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) scenario: Scenario,
    pub(super) baseline: Schedule,
}

/// What draws the jobs of each seed.
pub(super) struct Draws<'a> {
    pub(super) input: &'a SavingInput<'a>,
    pub(super) all: Jobs<'a>,
    /// The baseline.
    pub(super) baseline: BaselineKind,
    /// Largest number of simulated jobs.
    pub(super) jobs_max: usize,
    pub(super) runner: &'a Runner<'a>,
}

impl Draws<'_> {
    /// The sample of a seed; `None` where all jobs are simulated.
    pub(super) fn sample(&self, seed: u64) -> Option<Sample> {
        let nodes_min = self.runner.options.nodes_min;
        Sample::of(self.all.trace, self.all.cluster, self.jobs_max, nodes_min, seed)
    }

    /// The baseline of all jobs.
    pub(super) fn baseline_all(&self, seed: u64) -> Result<Schedule, SavingError> {
        let scenario = self.all.scenario(self.input.restartable, seed)?;
        if self.baseline == BaselineKind::Recorded {
            return Ok(Schedule::recorded(replay(self.all.world, &scenario, self.all.trace)?));
        }
        Ok(self.runner.baseline(&scenario, self.baseline)?)
    }

    /// The simulated jobs of a seed.
    pub(super) fn draw(&self, seed: u64) -> Result<Draw, SavingError> {
        let sample = self.sample(seed);
        let jobs = self.all.of(sample.as_ref());
        let scenario = jobs.scenario(self.input.restartable, seed)?;
        let baseline = if self.baseline == BaselineKind::Recorded {
            // The recorded nodes of a sample's jobs are those of the complete cluster.
            let cluster = self.all.cluster.clone();
            let complete = Scenario { cluster, ..scenario.clone() };
            let recorded = Schedule::recorded(replay(self.all.world, &complete, jobs.trace)?);
            if sample.is_some() { on_sample(recorded, &scenario, self.all.world) } else { recorded }
        } else {
            self.runner.baseline(&scenario, self.baseline)?
        };
        Ok(Draw { seed, scenario, baseline })
    }

    /// The scenarios of the draws with another declaration of restartable jobs.
    pub(super) fn redeclared(
        &self,
        draws: &[Draw],
        restartable: &Restartable,
    ) -> Result<Vec<Scenario>, SavingError> {
        let redeclare = |draw: &Draw| {
            let sample = self.sample(draw.seed);
            self.all.of(sample.as_ref()).scenario(restartable, draw.seed)
        };
        draws.iter().map(redeclare).collect()
    }

    /// Energy of the baseline less that of a schedule of the same jobs, kWh.
    pub(super) fn saved_kwh(&self, draw: &Draw, schedule: &Schedule) -> f64 {
        let (before, after) = self.one_period(draw, schedule);
        before.energy_kwh - after.energy_kwh
    }

    /// Both schedules counted until the last completion of either. Nodes of the baseline are awake.
    pub(super) fn one_period(&self, draw: &Draw, schedule: &Schedule) -> (Schedule, Schedule) {
        let period_s = draw.baseline.makespan_s.max(schedule.makespan_s);
        let before = draw.baseline.clone().over(period_s, false, &draw.scenario);
        let sleeps = self.runner.options.sleep;
        (before, schedule.clone().over(period_s, sleeps, &draw.scenario))
    }
}

/// The recorded schedule of a sample's jobs with the idle power of the sample's nodes in place of that of
/// the complete cluster.
fn on_sample(recorded: Schedule, scenario: &Scenario, world: &World) -> Schedule {
    let complete = &recorded.detail.nodes;
    let sampled = scenario.cluster.nodes().enumerate();
    let nodes: Vec<NodeOutcome> = sampled
        .filter_map(|(i, (gpus, gpu_type))| {
            let known = complete.iter().find(|node| node.gpu_type == gpu_type)?;
            Some(NodeOutcome {
                id: complete.get(i).unwrap_or(known).id.clone(),
                gpu_type: gpu_type.to_owned(),
                gpus,
                awake_s: recorded.makespan_s,
                asleep_s: 0.0,
                awake_w: known.awake_w,
                asleep_w: world.gpu(gpu_type).map_or(0.0, |gpu| gpu.sleep.power.as_w()),
            })
        })
        .collect();
    let idle_kwh: f64 = nodes.iter().map(NodeOutcome::energy_kwh).sum();
    let energy_kwh = idle_kwh + recorded.above_idle_kwh();
    // The mean intensity and price of the recorded schedule.
    let share = energy_kwh / recorded.energy_kwh.max(f64::MIN_POSITIVE);
    let mut schedule = Schedule {
        energy_kwh,
        carbon_kg: recorded.carbon_kg.map(|kg| kg * share),
        cost: recorded.cost.map(|cost| cost * share),
        rest_w: nodes.iter().map(|node| node.awake_w).sum(),
        ..recorded
    };
    schedule.detail.nodes = nodes;
    schedule
}

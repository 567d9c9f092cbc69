//! The tasks of a study: searches, runs and further seeds, which run in parallel.

use wattle_simulator::{Restartable, Scenario};

use super::draw::{Draw, Draws};
use super::parts::{Part, leave_one_out};
use super::runs::{Features, Found, PREDICTED_COST, runs_of};
use super::{SavingBound, SavingError, SavingInput, SavingOptions};
use crate::baseline::BaselineKind;
use crate::lateness::Reference;
use crate::parallel::in_parallel;
use crate::schedule::Schedule;

/// An independent part of a study.
pub(super) enum Task<'a> {
    /// Price searches with these bounds on exact surfaces.
    Search(&'a [Scenario], &'a [SavingBound]),
    /// A run at a price.
    Run(&'a Scenario, Features, f64),
    /// The saving under a further seed at a price, on exact surfaces.
    Seed(u64, f64),
}

enum Done {
    Search(Found),
    Run(Box<Schedule>),
    Seed(f64),
}

/// The results of tasks, each kind in the order of the tasks.
#[derive(Default)]
pub(super) struct Results {
    pub(super) searches: Vec<Found>,
    pub(super) runs: Vec<Schedule>,
    pub(super) saved_kwh: Vec<f64>,
}

/// What is simulated: how many jobs, with which seeds, and which parts.
pub(super) struct Design {
    pub(super) features: Features,
    pub(super) parts: Vec<(Part, Features)>,
    /// Seeds of the totals.
    pub(super) seeds: Vec<u64>,
    /// Further seeds of the interval.
    pub(super) further: Vec<u64>,
    /// The declarations of restartable jobs besides that of the input, with their places in
    /// [`SavingEstimate::ends`].
    pub(super) others: Vec<(usize, Restartable)>,
    /// The bounds of the points, ascending.
    pub(super) bounds: Vec<SavingBound>,
    /// The place of the bound whose schedule is shown in detail.
    pub(super) shown: usize,
    /// Whether every seed gives the same runs on exact surfaces.
    pub(super) seeds_are_equal: bool,
}

pub(super) struct Study<'a> {
    pub(super) draws: Draws<'a>,
    pub(super) design: Design,
    /// The baseline of the draws, where a bound relates to it.
    pub(super) reference: Option<Reference>,
}

impl Study<'_> {
    fn work(&self, task: &Task<'_>) -> Result<Done, SavingError> {
        let (runner, features) = (self.draws.runner, self.design.features);
        Ok(match *task {
            Task::Search(scenarios, bounds) => {
                let reference = self.reference.as_ref();
                Done::Search(runner.searches(scenarios, features, bounds, reference)?)
            }
            Task::Run(scenario, features, price) => {
                Done::Run(Box::new(runner.run(scenario, features, price)?))
            }
            Task::Seed(seed, price) => {
                let draw = self.draws.draw(seed)?;
                let after = runner.run(&draw.scenario, features, price)?;
                Done::Seed(self.draws.saved_kwh(&draw, &after))
            }
        })
    }

    pub(super) fn solve(&self, tasks: &[Task<'_>]) -> Result<Results, SavingError> {
        let threads = self.draws.runner.options.threads;
        let mut results = Results::default();
        for done in in_parallel(tasks, threads, |task| self.work(task), &mut |_| ())? {
            match done {
                Done::Search(found) => results.searches.push(found),
                Done::Run(schedule) => results.runs.push(*schedule),
                Done::Seed(saved_kwh) => results.saved_kwh.push(saved_kwh),
            }
        }
        Ok(results)
    }

    /// Runs on predictions of all draws at a price.
    pub(super) fn predicted<'d>(
        &self,
        draws: &'d [Draw],
        price: f64,
    ) -> impl Iterator<Item = Task<'d>> {
        let features = Features { exact: false, ..self.design.features };
        draws.iter().map(move |draw| Task::Run(&draw.scenario, features, price))
    }

    /// Announces the simulation steps to the progress.
    pub(super) fn expect(&self, jobs: usize, all_jobs: usize) {
        let Design { parts, seeds, further, others, bounds, shown, .. } = &self.design;
        let baselines = usize::from(self.draws.baseline != BaselineKind::Recorded);
        // One of backfilling.
        let plain = 1 + parts.len();
        let searched = runs_of(bounds) + others.len() * runs_of(&bounds[*shown..=*shown]);
        let of_seed = searched + (1 + bounds.len()) * PREDICTED_COST + plain;
        let of_further = bounds.len() * (1 + baselines);
        self.draws.runner.progress.expect(
            jobs * (seeds.len() * of_seed + further.len() * of_further) + baselines * all_jobs,
        );
    }
}

/// Designs a study of `jobs` simulated jobs. `scenario` has all jobs of the trace.
pub(super) fn design(
    input: &SavingInput<'_>,
    options: &SavingOptions,
    scenario: &Scenario,
    jobs: usize,
    jobs_max: usize,
) -> Design {
    let features = Features::all(options);
    let drawn = scenario.workloads.iter().any(|share| share.drawn);
    let by_seed = matches!(input.restartable, Restartable::Share(_));
    let seeds_are_equal = !drawn && !by_seed && jobs == scenario.jobs.len();
    // Small traces are simulated with several seeds, since the times of few jobs depend on chance.
    let fitting = (jobs_max as f64 / jobs.max(1) as f64).round() as u64;
    let count = if seeds_are_equal { 1 } else { fitting.clamp(1, options.seeds.max(1)) };
    let mut seeds = (0..options.seeds.max(1)).map(|more| options.seed.wrapping_add(more));
    let totals: Vec<u64> = seeds.by_ref().take(count as usize).collect();
    let further = if seeds_are_equal { Vec::new() } else { seeds.collect() };
    let declares = |end: &Restartable| {
        let mut pairs = scenario.jobs.iter().zip(&input.trace.jobs);
        pairs.all(|(job, traced)| {
            end.permits(&job.id, traced.can_checkpoint, options.seed) == job.can_stop
        })
    };
    let ends = [Restartable::None, Restartable::All];
    let own = ends.iter().position(declares);
    let others = ends.into_iter().enumerate().filter(|(i, _)| own != Some(*i)).collect();
    let parts = leave_one_out(features, scenario);
    let bounds = options.bound.points();
    let shown = bounds.iter().position(|bound| *bound == options.bound).unwrap_or(0);
    let seeds = totals;
    Design { features, parts, seeds, further, others, bounds, shown, seeds_are_equal }
}

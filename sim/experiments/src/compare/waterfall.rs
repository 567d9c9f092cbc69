//! What keeps a policy from the bound, one cause after another.
//!
//! The lowest line is the bound of jobs that have the cluster to themselves; the next the tighter
//! bound, in which GPUs are scarce. Then the policy itself is run over its knob, first with the truth
//! known and restarts that take no time, and each following line takes one such ease away, until
//! it runs under the comparison's own conditions. All are read at the same energies, those of the last
//! line's frontier that every line reaches, so what each cause adds is a difference at equal energy,
//! and the differences add up to the whole distance.
//!
//! What a cause adds hangs on the order in which they are taken; this is the one order there is. A
//! policy reckons with the time of restarts even where they take none: what its restraint costs
//! stands in the line of its decisions. Whole GPUs on real nodes are in that line, too; of
//! fragmentation only the moves that make room have a line of their own.

use serde::Serialize;

use super::limits::Limits;
use super::options::Surfaces;
use super::parallel::in_parallel;
use super::run::{Comparer, Run, bounded, run_of, swept_run};
use super::scenarios::Case;
use super::{Swept, Waterfall};
use crate::frontier::{Frontier, FrontierPoint, RatioSpread};
use wattle_simulator::PolicyOutcome;
use wattle_simulator::{Lengths, Restarts, RunOptions, SimulationError};

/// One cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// What it is.
    pub what: &'static str,
    /// Mean completion time with it and all before it, seconds: over the compared energies and the
    /// orders.
    pub jct_s: f64,
    /// How much of that it adds, seconds.
    pub added_s: f64,
    /// Completion time with it over that without, at equal energy; the first against nothing.
    pub ratio: Option<RatioSpread>,
}

/// A set of conditions that a policy is run under.
struct Rung {
    what: &'static str,
    options: RunOptions,
}

/// What a line of the waterfall is at an energy.
enum Line<'a> {
    Alone(&'a Limits),
    Scarce(&'a Limits),
    Ran(Frontier),
}

impl Line<'_> {
    fn jct_s_at(&self, kwh: f64) -> Option<f64> {
        match self {
            Self::Alone(limits) => limits.alone.jct_s_at(kwh),
            // Never below the line before it, not even by a rounding.
            Self::Scarce(limits) => {
                let alone_s = limits.alone.jct_s_at(kwh)?;
                limits.tight.jct_s_at(kwh).map(|tight_s| tight_s.max(alone_s))
            }
            Self::Ran(frontier) => frontier.jct_s_at(kwh),
        }
    }
}

/// What there is to compute of it.
enum Task {
    Bound(usize),
    Run { order: usize, rung: usize, setting: usize },
}
enum Done {
    Bound(Box<Limits>),
    Run(Box<PolicyOutcome>),
}

impl Comparer<'_> {
    /// What keeps `family` from the bound in a case. `progress` hears how many of its computations
    /// are done, and of how many.
    ///
    /// # Errors
    /// Where the policy or a workload is not known.
    pub fn waterfall(
        &self,
        case: &Case,
        family: &str,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Waterfall, SimulationError> {
        let settings = self.settings(case, family)?;
        let orders = case.jobs.rigid.len();
        let runs: Vec<Vec<Run>> = (0..orders)
            .map(|order| settings.iter().map(|s| run_of(case, order, family, s)).collect())
            .collect();
        let rungs = |run: &Run| self.rungs(self.options_of(run));
        let rung_count = rungs(&runs[0][0]).len();
        let mut tasks: Vec<Task> = (0..orders).map(Task::Bound).collect();
        for order in 0..orders {
            for rung in 0..rung_count {
                tasks.extend((0..settings.len()).map(|setting| Task::Run { order, rung, setting }));
            }
        }
        let work = |task: &Task| -> Result<Done, SimulationError> {
            match *task {
                Task::Bound(order) => {
                    let limits = self.limits(&case.jobs.elastic[order], bounded(case));
                    Ok(Done::Bound(Box::new(limits)))
                }
                Task::Run { order, rung, setting } => {
                    let run = &runs[order][setting];
                    let outcome = self.run_as(&case.jobs, run, &rungs(run)[rung].options)?;
                    Ok(Done::Run(Box::new(outcome)))
                }
            }
        };
        let of = tasks.len();
        let done =
            in_parallel(&tasks, self.options.threads, work, &mut |count| progress(count, of))?;
        let mut limits = Vec::new();
        let mut ran: Vec<Vec<Swept>> = vec![Vec::new(); orders];
        for (task, done) in tasks.iter().zip(done) {
            match (task, done) {
                (Task::Run { order, rung, setting }, Done::Run(outcome)) => {
                    let options = rungs(&runs[*order][*setting])[*rung].options;
                    let run = swept_run(family, &settings[*setting], *order, *outcome, options);
                    ran[*order].push(run);
                }
                (_, Done::Bound(bound)) => limits.push(*bound),
                (Task::Bound(_), Done::Run(_)) => {}
            }
        }
        let causes: Vec<&'static str> =
            rungs(&runs[0][0]).into_iter().map(|rung| rung.what).collect();
        let mut sums = Sums::new(&causes);
        for (order, runs) in ran.iter_mut().enumerate() {
            let horizon_s = self.count(case, &case.jobs.rigid[order], runs);
            let floor = self.floor(case, &case.jobs.rigid[order], horizon_s);
            let limits = limits[order].shifted(floor.0, floor.1);
            let mut lines = vec![Line::Alone(&limits), Line::Scarce(&limits)];
            // Rung after rung, as they were asked for.
            for runs in runs.chunks(settings.len()) {
                lines.extend(frontier(runs).map(Line::Ran));
            }
            if lines.len() == sums.causes.len() {
                sums.add(&lines);
            }
        }
        Ok(Waterfall { policy: family.to_owned(), totals: sums.totals, causes: sums.into_causes() })
    }

    /// The conditions, from the easiest to the comparison's own.
    fn rungs(&self, own: RunOptions) -> Vec<Rung> {
        let known =
            RunOptions { oracle: true, surface_noise: None, lengths: Lengths::Known, ..own };
        let mut rungs = vec![
            Rung {
                what: "deciding, not knowing who comes, in whole GPUs of whole nodes",
                options: RunOptions { restarts: Restarts::Free, ..known },
            },
            Rung {
                what: "starting anew at other sizes",
                options: RunOptions { restarts: Restarts::MovesFree, ..known },
            },
            Rung { what: "moving to make room (fragmentation)", options: known },
        ];
        if self.options.surfaces != Surfaces::Oracle {
            let options = RunOptions { lengths: Lengths::Known, ..own };
            rungs.push(Rung { what: "speeds and powers not known, or wrong", options });
        }
        if own.lengths != Lengths::Known {
            rungs.push(Rung { what: "lengths not known", options: own });
        }
        rungs
    }
}

/// The frontier of the runs that finished all jobs.
fn frontier(runs: &[Swept]) -> Option<Frontier> {
    let finished = |run: &&Swept| run.outcome.finished == run.outcome.jobs;
    Frontier::of(runs.iter().filter(finished).enumerate().filter_map(|(setting, run)| {
        Some(FrontierPoint { total: run.counted_kwh, jct_s: run.outcome.jct_s_mean?, setting })
    }))
}

/// Completion times line by line, gathered over energies and orders.
struct Sums {
    causes: Vec<&'static str>,
    jct_s: Vec<f64>,
    ratios: Vec<Vec<f64>>,
    totals: usize,
}

impl Sums {
    fn new(rungs: &[&'static str]) -> Self {
        let mut causes =
            vec!["running, with the cluster to itself (bound)", "GPUs are scarce (bound)"];
        causes.extend(rungs);
        let lines = causes.len();
        Self { causes, jct_s: vec![0.0; lines], ratios: vec![Vec::new(); lines], totals: 0 }
    }

    /// The energies of the last line that every line reaches.
    fn add(&mut self, lines: &[Line<'_>]) {
        let Some(Line::Ran(last)) = lines.last() else { return };
        for kwh in last.compared_at() {
            let times: Option<Vec<f64>> = lines.iter().map(|line| line.jct_s_at(kwh)).collect();
            let Some(times) = times else { continue };
            self.totals += 1;
            for (line, &jct_s) in times.iter().enumerate() {
                self.jct_s[line] += jct_s;
                if line > 0 {
                    self.ratios[line].push(jct_s / times[line - 1]);
                }
            }
        }
    }

    fn into_causes(self) -> Vec<Cause> {
        if self.totals == 0 {
            return Vec::new();
        }
        let mean_s = |line: usize| self.jct_s[line] / self.totals as f64;
        let before_s = |line: usize| line.checked_sub(1).map_or(0.0, mean_s);
        (self.causes.iter().enumerate())
            .map(|(line, &what)| Cause {
                what,
                jct_s: mean_s(line),
                added_s: mean_s(line) - before_s(line),
                ratio: RatioSpread::of(self.ratios[line].iter().copied()),
            })
            .collect()
    }
}

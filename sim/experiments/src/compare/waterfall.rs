//! Decomposition of a policy's distance to the lower bound by cause.
//!
//! The first line is the bound without contention, the second the tighter bound with a limited
//! number of GPUs. The following lines are the policy's own runs over its tuning parameter, first
//! with true surfaces, known lengths and free restarts; each line removes one of these
//! idealizations, and the last has the comparison's own conditions. All lines are read at the same
//! energies: those of the last line's frontier that every line reaches. The added times are
//! therefore differences at equal energy, and their sum is the total distance.
//!
//! The result depends on the order of the causes, which is fixed. A policy accounts for restart
//! times even where restarts are free, so the cost of that restraint is in the line of its
//! decisions, as are whole GPUs on real nodes. Of fragmentation, only moves that make room have a
//! line of their own.

use serde::Serialize;

use super::limits::Limits;
use super::options::Surfaces;
use super::run::{Comparer, Run, bounded, run_of, swept_run};
use super::scenarios::Case;
use super::{Swept, Waterfall};
use crate::frontier::{Frontier, FrontierPoint};
use wattle_saving::parallel::in_parallel;
use wattle_saving::spread::RatioSpread;
use wattle_simulator::PolicyOutcome;
use wattle_simulator::{Lengths, Restarts, RunOptions, SimulationError};

/// A cause of the distance to the bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Its description.
    pub what: &'static str,
    /// Mean completion time with this and all previous causes, over the energies and orders,
    /// seconds.
    pub jct_s: f64,
    /// The time it adds, seconds.
    pub added_s: f64,
    /// Ratio of the completion times with and without it at equal energy; absent for the first
    /// line.
    pub ratio: Option<RatioSpread>,
}

/// The conditions of one line.
struct Conditions {
    what: &'static str,
    options: RunOptions,
}

/// A line of the waterfall, as completion time over energy.
enum Line<'a> {
    Alone(&'a Limits),
    Scarce(&'a Limits),
    Ran(Frontier),
}

impl Line<'_> {
    fn jct_s_at(&self, kwh: f64) -> Option<f64> {
        match self {
            Self::Alone(limits) => limits.alone.jct_s_at(kwh),
            // Not below the previous line, despite rounding.
            Self::Scarce(limits) => {
                let alone_s = limits.alone.jct_s_at(kwh)?;
                limits.tight.jct_s_at(kwh).map(|tight_s| tight_s.max(alone_s))
            }
            Self::Ran(frontier) => frontier.jct_s_at(kwh),
        }
    }
}

/// A computation.
enum Task {
    Bound(usize),
    Run { order: usize, rung: usize, setting: usize },
}
enum Done {
    Bound(Box<Limits>),
    Run(Box<PolicyOutcome>),
}

impl Comparer<'_> {
    /// The causes of the distance of `family` to the bound in a case. `progress` receives the
    /// numbers of finished and of all computations.
    ///
    /// # Errors
    /// Where the policy or a workload is unknown.
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
        let lines = |run: &Run| self.lines(self.options_of(run));
        let rung_count = lines(&runs[0][0]).len();
        let mut tasks: Vec<Task> = (0..orders).map(Task::Bound).collect();
        for order in 0..orders {
            for rung in 0..rung_count {
                tasks.extend((0..settings.len()).map(|setting| Task::Run { order, rung, setting }));
            }
        }
        let work = |task: &Task| -> Result<Done, SimulationError> {
            match *task {
                Task::Bound(order) => {
                    let limits = self.limits(case, &case.jobs.elastic[order], bounded(case));
                    Ok(Done::Bound(Box::new(limits)))
                }
                Task::Run { order, rung, setting } => {
                    let run = &runs[order][setting];
                    let outcome = self.run_as(&case.jobs, run, &lines(run)[rung].options)?;
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
                    let options = lines(&runs[*order][*setting])[*rung].options.clone();
                    let run = swept_run(family, &settings[*setting], *order, *outcome, options);
                    ran[*order].push(run);
                }
                (_, Done::Bound(bound)) => limits.push(*bound),
                (Task::Bound(_), Done::Run(_)) => {}
            }
        }
        let causes: Vec<&'static str> =
            lines(&runs[0][0]).into_iter().map(|rung| rung.what).collect();
        let mut sums = Sums::new(&causes);
        for (order, runs) in ran.iter_mut().enumerate() {
            let horizon_s = self.count(case, &case.jobs.rigid[order], runs);
            let floor = self.floor(case, &case.jobs.rigid[order], horizon_s);
            let limits = limits[order].shifted(floor.0, floor.1);
            let mut lines = vec![Line::Alone(&limits), Line::Scarce(&limits)];
            // In the order of the lines.
            for runs in runs.chunks(settings.len()) {
                lines.extend(frontier(runs).map(Line::Ran));
            }
            if lines.len() == sums.causes.len() {
                sums.add(&lines);
            }
        }
        Ok(Waterfall { policy: family.to_owned(), totals: sums.totals, causes: sums.into_causes() })
    }

    /// The conditions, from the most idealized to the comparison's own.
    fn lines(&self, own: RunOptions) -> Vec<Conditions> {
        let known = RunOptions {
            oracle: true,
            surface_noise: None,
            lengths: Lengths::Known,
            ..own.clone()
        };
        let mut lines = vec![
            Conditions {
                what: "online decisions, whole GPUs on nodes",
                options: RunOptions { restarts: Restarts::Free, ..known.clone() },
            },
            Conditions {
                what: "restarts at other GPU counts",
                options: RunOptions { restarts: Restarts::MovesFree, ..known.clone() },
            },
            Conditions { what: "moves that make room (fragmentation)", options: known },
        ];
        if self.options.surfaces != Surfaces::Oracle {
            let options = RunOptions { lengths: Lengths::Known, ..own.clone() };
            lines.push(Conditions { what: "prediction errors of speed and power", options });
        }
        if own.lengths != Lengths::Known {
            lines.push(Conditions { what: "unknown lengths", options: own });
        }
        lines
    }
}

/// The frontier of runs that finished all jobs.
fn frontier(runs: &[Swept]) -> Option<Frontier> {
    let finished = |run: &&Swept| run.outcome.finished == run.outcome.jobs;
    Frontier::of(runs.iter().filter(finished).enumerate().filter_map(|(setting, run)| {
        Some(FrontierPoint { total: run.counted_kwh, jct_s: run.outcome.jct_s_mean?, setting })
    }))
}

/// Completion times per line, summed over energies and orders.
struct Sums {
    causes: Vec<&'static str>,
    jct_s: Vec<f64>,
    ratios: Vec<Vec<f64>>,
    totals: usize,
}

impl Sums {
    fn new(lines: &[&'static str]) -> Self {
        let mut causes = vec!["bound without contention", "limited number of GPUs (bound)"];
        causes.extend(lines);
        let lines = causes.len();
        Self { causes, jct_s: vec![0.0; lines], ratios: vec![Vec::new(); lines], totals: 0 }
    }

    /// The last line's energies that every line reaches.
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

//! The runs of `wattle simulate` on the jobs of one seed: the baseline, each policy at its price, and recordings.

use wattle_placer::policies::PolicySet;
use wattle_placer::{Policy, Reads};
use wattle_runtime::shell::chain;
use wattle_saving::aim::AimOutcome;
use wattle_saving::aim_run::{
    Bound, CompletedRun, SearchedJobs, run_completed, run_with_energy_aim,
};
use wattle_saving::baseline::baseline;
use wattle_saving::lateness::{Lateness, Projects, Reference};
use wattle_saving::report::Recorded;
use wattle_simulator::trace::Trace;
use wattle_simulator::{
    Against, AimHeld, Baseline, PolicyOutcome, ProjectChange, RunOptions, Scenario, SimulationError,
};
use wattle_world::World;

use super::Simulate;
use crate::aim::{SimulationBound, percent};
use crate::output::{usage, usage_chain};
use crate::progress::Progress;

/// What the runs of one seed have in common.
pub(super) struct Runs<'a> {
    pub(super) known: &'a PolicySet,
    pub(super) world: &'a World,
    pub(super) trace: &'a Trace,
    pub(super) scenario: &'a Scenario,
    /// A sample of the jobs on a part of the nodes, where these are many.
    pub(super) sample: Option<&'a Scenario>,
    /// The same jobs and sample for policies that change sizes, where sizes are open.
    open: Option<(Scenario, Option<Scenario>)>,
}

impl<'a> Runs<'a> {
    pub(super) fn new(
        (known, world): (&'a PolicySet, &'a World),
        trace: &'a Trace,
        scenario: &'a Scenario,
        sample: Option<&'a Scenario>,
        opens_sizes: bool,
    ) -> Self {
        let opened = |scenario: &Scenario| {
            let mut open = scenario.clone();
            open.open_sizes();
            open
        };
        let open = opens_sizes.then(|| (opened(scenario), sample.map(opened)));
        Self { known, world, trace, scenario, sample, open }
    }

    /// The jobs, and a sample of them, as a policy may place them.
    fn jobs_for(&self, policy: &dyn Policy) -> (&Scenario, Option<&Scenario>) {
        match &self.open {
            Some((open, sample)) if policy.capabilities().is_elastic => (open, sample.as_ref()),
            _ => (self.scenario, self.sample),
        }
    }
}

/// The runs of one seed.
pub(super) struct Ran {
    /// The outcome of each policy; one with exact predictions follows its policy's.
    pub(super) policies: Vec<PolicyOutcome>,
    /// The baseline, where it is another schedule than the first policy's.
    pub(super) baseline: Option<Baseline>,
    /// The recordings of the runs under predictions.
    pub(super) recorded: Vec<Recorded>,
}

/// A run, with how long it took, s.
pub(super) fn timed<T>(
    run: impl FnOnce() -> Result<T, SimulationError>,
) -> anyhow::Result<(T, f64)> {
    let began = wattle_runtime::clock::wall_now();
    let made = run().map_err(usage_chain)?;
    Ok((made, wattle_runtime::clock::wall_now().since(began).as_secs_f64()))
}

impl Simulate {
    /// Runs the policies, with `oracle` also under exact predictions, with `record` also for their recordings.
    pub(super) fn runs(&self, of: &Runs<'_>, oracle: bool, record: bool) -> anyhow::Result<Ran> {
        let options = self.options()?;
        let bound = self.bound()?.filter(|_| !self.aim_by_controller);
        let projects = Projects::of(of.trace);
        if self.no_later.bounds_projects() && projects.is_empty() {
            let name = &of.trace.name;
            return Err(usage(format!(
                "--no-project-later-than: {name} names neither accounts nor users; export the column Account or User"
            )));
        }
        let known = self.policy.iter().map(|name| of.known.policy(name));
        let prices = known.flatten().any(|policy| policy.capabilities().prices.is_some());
        let site =
            match bound.filter(|_| prices) {
                Some(SimulationBound::NoLaterThan(kind, _)) => {
                    let mut progress = Progress::start(kind.to_string(), "jobs have ended");
                    let mut report = |ended, of| progress.update(ended, of);
                    let made = baseline(kind, of.world, of.scenario, of.trace, &mut report);
                    Some(made.map_err(|error| {
                        usage(format!("--no-later-than {kind}: {}", chain(&error)))
                    })?)
                }
                _ => None,
            };
        let (baseline, bounding) = site.unzip();
        // The schedule of the default bound is not the one that policies are compared with.
        let is_compared = self.no_later.is_given();
        let baseline = baseline.filter(|_| is_compared);
        let mut reference = bounding.clone().filter(|_| is_compared);
        let mut against = baseline.clone();
        let (mut policies, mut recorded) = (Vec::new(), Vec::new());
        for (slot, name) in self.policy.iter().enumerate() {
            let policy = of.known.policy(name).map_err(usage_chain)?;
            let policy = policy.as_ref();
            let mut number = format!("{} of {}", slot + 1, self.policy.len());
            if self.seeds > 1 {
                number = format!("{number}, seed {}", of.scenario.seed);
            }
            let reads = policy.capabilities().reads != Reads::Nothing || options.budget.is_some();
            for oracle in [false, true].into_iter().filter(|exact| !exact || (oracle && reads)) {
                let options = RunOptions { oracle, ..options.clone() };
                let exact = if oracle { "exact predictions, " } else { "" };
                let one = PolicyRun { of, policy, label: format!("{name}, {exact}{number}") };
                let found = one.at_bound(&options, bound, bounding.as_ref())?;
                let mut recording = None;
                let mut run = if record && !oracle {
                    // A recording is larger than an outcome, so the runs of a search have none.
                    let price = found.as_ref().and_then(|run| run.outcome.aim.as_ref());
                    let price = price.map_or(options.price, |aim| aim.price);
                    let made = one.recorded(slot, &RunOptions { price, ..options })?;
                    let run = found.unwrap_or_else(|| made.to_completed());
                    recording = Some(made);
                    run
                } else if let Some(found) = found {
                    found
                } else {
                    one.run(&options, &one.label)?
                };
                match (&against, &reference) {
                    (Some(baseline), Some(reference)) => {
                        run.outcome.against = Some(changes(baseline, reference, &run));
                    }
                    _ => {
                        // The first policy is the baseline of the others.
                        against = Some(Baseline {
                            schedule: run.outcome.policy.clone(),
                            jct_s_mean: run.outcome.jct_s_mean,
                            energy_kwh: run.outcome.energy_kwh,
                        });
                        reference = Some(Reference {
                            completion_s: run.completion_s,
                            projects: projects.clone(),
                        });
                    }
                }
                recorded.extend(
                    recording.map(|made| Recorded { outcome: run.outcome.clone(), ..made }),
                );
                policies.push(run.outcome);
            }
        }
        Ok(Ran { policies, baseline, recorded })
    }
}

/// A policy on the jobs of one seed.
struct PolicyRun<'a> {
    of: &'a Runs<'a>,
    policy: &'a dyn Policy,
    /// The name of its progress.
    label: String,
}

impl PolicyRun<'_> {
    fn run(&self, options: &RunOptions, label: &str) -> anyhow::Result<CompletedRun> {
        self.run_of(self.of.jobs_for(self.policy).0, options, label)
    }

    fn run_of(
        &self,
        scenario: &Scenario,
        options: &RunOptions,
        label: &str,
    ) -> anyhow::Result<CompletedRun> {
        let Self { of, policy, .. } = *self;
        let mut progress = Progress::start(label.to_owned(), "jobs have ended");
        let mut report = |ended, of| progress.update(ended, of);
        let made = || run_completed(of.world, scenario, policy, options, &mut report);
        let (mut run, wall_s) = timed(made)?;
        run.outcome.wall_s = wall_s;
        Ok(run)
    }

    /// The run with its recording.
    fn recorded(&self, slot: usize, options: &RunOptions) -> anyhow::Result<Recorded> {
        let Self { of, policy, .. } = *self;
        let mut progress = Progress::start(self.label.clone(), "jobs have ended");
        let mut report = |ended, of| progress.update(ended, of);
        let made =
            || Recorded::run(of.world, of.jobs_for(policy).0, policy, slot, options, &mut report);
        let (mut run, wall_s) = timed(made)?;
        run.outcome.wall_s = wall_s;
        Ok(run)
    }

    /// The run of least energy within the bound; `None` without a bound, and for a policy that reads no price.
    fn at_bound(
        &self,
        options: &RunOptions,
        bound: Option<SimulationBound>,
        site: Option<&Reference>,
    ) -> anyhow::Result<Option<CompletedRun>> {
        let Some(bound) = bound else { return Ok(None) };
        let within = match (bound, site) {
            (SimulationBound::NoLaterThan(_, allowed), Some(site)) => {
                Bound::Schedule(site, allowed)
            }
            (bound, _) => Bound::OwnFastest(bound.allowed().mean),
        };
        let (mut made, mut of_sample) = (0, 0);
        let (_, sample) = self.of.jobs_for(self.policy);
        let at_price = |options: &RunOptions, jobs| match (jobs, sample) {
            (SearchedJobs::Sample, Some(sample)) => {
                of_sample += 1;
                let label = format!("{}: price {of_sample} of a sample", self.label);
                // Relative to its own run at price 0, which errors of predictions hardly change.
                self.run_of(sample, &RunOptions { oracle: true, ..options.clone() }, &label)
            }
            _ => {
                made += 1;
                self.run(options, &format!("{}: price {made}", self.label))
            }
        };
        let found = run_with_energy_aim(self.policy, options, within, sample.is_some(), at_price)?;
        Ok(found.map(|found| held(found, bound)))
    }
}

/// The selected run, with how its aim was held.
fn held(found: AimOutcome<CompletedRun>, bound: SimulationBound) -> CompletedRun {
    let allowed = bound.allowed();
    let lateness = found.lateness();
    let aim = AimHeld {
        reference: bound.reference(),
        allowed: allowed.mean,
        allowed_project: allowed.project,
        completion_mean: lateness.map(|of| rounded(of.mean)),
        price: found.price(),
        is_within: found.is_within,
    };
    let note = note_on(&aim, bound, lateness, found.is_greatest);
    let mut run = found.into_run();
    run.outcome.aim = Some(aim);
    run.outcome.notes.push(note);
    run
}

/// How the aim was held, in words.
fn note_on(
    aim: &AimHeld,
    bound: SimulationBound,
    lateness: Option<Lateness>,
    is_greatest: bool,
) -> String {
    let mean =
        lateness.map_or("no lateness, because fewer jobs complete".to_owned(), |of| later(of.mean));
    match bound {
        SimulationBound::MaxSlowdown(share) => format!(
            "least energy within {} of its own mean completion time with free energy: {mean}",
            percent(share)
        ),
        SimulationBound::NoLaterThan(kind, allowed) if !aim.is_within => {
            let over = lateness.is_some_and(|of| of.mean <= allowed.mean);
            let projects =
                if over { ", but those of one project later than permitted" } else { "" };
            let (words, limit) = (kind.words(), percent(allowed.mean));
            let what = if allowed.mean > 0.0 {
                format!(
                    "no saving is possible with jobs completing at most {limit} later on average than {words}"
                )
            } else {
                format!(
                    "no saving is possible without jobs completing later on average than {words}"
                )
            };
            format!("{what}: even with free energy they complete {mean}{projects}")
        }
        SimulationBound::NoLaterThan(..) => {
            let most = if is_greatest { "; this is the greatest energy price" } else { "" };
            format!("{bound}: {mean}{most}")
        }
    }
}

/// A change of the mean completion time in words.
fn later(change: f64) -> String {
    match format!("{:.1}", 100.0 * change.abs()).as_str() {
        "0.0" if change <= 0.0 => "as soon".to_owned(),
        share if change > 0.0 => format!("{share} % later"),
        share => format!("{share} % sooner"),
    }
}

fn changes(baseline: &Baseline, reference: &Reference, run: &CompletedRun) -> Against {
    let lateness = reference.lateness(&run.completion_s);
    let energy = run.outcome.energy_kwh;
    let before = baseline.energy_kwh;
    Against {
        baseline: baseline.schedule.clone(),
        energy: (before > 0.0).then(|| rounded(energy / before - 1.0)),
        completion_mean: lateness.map(|of| rounded(of.mean)),
        project_worst: lateness.and_then(|of| of.project).map(|(project, worst)| ProjectChange {
            project: reference.projects.name(project).to_owned(),
            completion_mean: rounded(worst),
        }),
    }
}

/// Rounds to a millionth, which removes rounding errors from the output.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

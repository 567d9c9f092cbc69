//! The energy aim relative to the schedule of a site, in complete simulations.

use wattle_common::topology::ClusterShape;
use wattle_placer::policy;
use wattle_saving::aim::{AimOutcome, CLOSE_TO_BASELINE};
use wattle_saving::aim_run::{Bound, CompletedRun, run_completed, run_with_energy_aim};
use wattle_saving::baseline::{BaselineError, BaselineKind, baseline};
use wattle_saving::lateness::{Allowed, Reference};
use wattle_simulator::trace::Trace;
use wattle_simulator::{Baseline, RunOptions, Scenario, generator};
use wattle_world::World;

struct Jobs {
    world: World,
    trace: Trace,
    scenario: Scenario,
}

/// Generated jobs on a cluster that they load fully, so that some wait.
fn jobs() -> Jobs {
    let (world, trace) = (World::builtin(), generator::generate(120, 3));
    let cluster: ClusterShape = "2x8:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(&world, &trace, &cluster, 3).unwrap();
    scenario.set_load(&world, 1.1).unwrap();
    Jobs { world, trace, scenario }
}

impl Jobs {
    fn baseline(&self, kind: BaselineKind) -> (Baseline, Reference) {
        baseline(kind, &self.world, &self.scenario, &self.trace, &mut |_, _| ()).unwrap()
    }

    /// The policy `wattle` on exact predictions within a bound.
    fn wattle(&self, reference: &Reference, allowed: Allowed) -> AimOutcome<CompletedRun> {
        let policy = policy("wattle").unwrap();
        let policy = policy.as_ref();
        let options = RunOptions { oracle: true, nodes_sleep: true, ..RunOptions::default() };
        let run = |options: &RunOptions, _| {
            run_completed(&self.world, &self.scenario, policy, options, &mut |_, _| ())
        };
        let bound = Bound::Schedule(reference, allowed);
        run_with_energy_aim(policy, &options, bound, false, run).unwrap().unwrap()
    }
}

#[test]
fn jobs_complete_no_later_on_average_than_under_backfilling() {
    let jobs = jobs();
    let (site, reference) = jobs.baseline(BaselineKind::Backfill);
    let found = jobs.wattle(&reference, Allowed::mean(0.0));
    assert!(found.is_within, "{:?}", found.lateness());
    let own = &found.run().outcome;
    assert_eq!(own.finished, reference.completion_s.iter().flatten().count());
    assert!(own.jct_s_mean.unwrap() <= site.jct_s_mean.unwrap(), "{own:?}");
    assert!(own.energy_kwh < site.energy_kwh, "{} of {} kWh", own.energy_kwh, site.energy_kwh);
    // The run of the search is the run at its price.
    let policy = policy("wattle").unwrap();
    let options = RunOptions { oracle: true, nodes_sleep: true, ..RunOptions::default() };
    let options = RunOptions { price: found.price(), ..options };
    let (world, scenario) = (&jobs.world, &jobs.scenario);
    let again = run_completed(world, scenario, policy.as_ref(), &options, &mut |_, _| ()).unwrap();
    assert_eq!(&again, found.run());
}

#[test]
fn a_share_later_saves_at_least_as_much_and_is_held() {
    let jobs = jobs();
    let (_, reference) = jobs.baseline(BaselineKind::Fifo);
    let mut last_kwh = f64::INFINITY;
    for by in [0.0, 0.05] {
        let found = jobs.wattle(&reference, Allowed::mean(by));
        let mean = found.lateness().unwrap().mean;
        assert!(found.is_within && mean <= by, "{by}: {mean}");
        let energy_kwh = found.run().outcome.energy_kwh;
        assert!(energy_kwh <= last_kwh, "{by}: {energy_kwh} after {last_kwh} kWh");
        last_kwh = energy_kwh;
    }
}

#[test]
fn bound_on_projects_is_held_for_each_user() {
    let jobs = jobs();
    let (_, reference) = jobs.baseline(BaselineKind::Backfill);
    let worst = |allowed: Allowed| {
        let found = jobs.wattle(&reference, allowed);
        (found.is_within, found.lateness().unwrap().project.unwrap().1)
    };
    let (_, free) = worst(Allowed::mean(0.2));
    let share = free / 2.0;
    assert!(share > CLOSE_TO_BASELINE, "{free}");
    let (is_within, bounded) = worst(Allowed { mean: 0.2, project: Some(share) });
    assert!(!is_within || bounded <= share, "{bounded} of {share}");
    assert!(bounded < free, "{bounded} of {free}");
}

#[test]
fn recorded_baseline_needs_recorded_starts_and_ends() {
    let jobs = jobs();
    let (world, kind) = (&jobs.world, BaselineKind::Recorded);
    let made = baseline(kind, world, &jobs.scenario, &jobs.trace, &mut |_, _| ());
    let error = made.unwrap_err();
    assert!(matches!(error, BaselineError::NotRecorded { .. }), "{error:?}");
    assert!(error.to_string().contains("compare with backfill"), "{error}");

    let trace = super::estimate::recorded();
    let cluster = "2x8:a100".parse().unwrap();
    let scenario = Scenario::from_trace(world, &trace, &cluster, 7).unwrap();
    let (site, reference) = baseline(kind, world, &scenario, &trace, &mut |_, _| ()).unwrap();
    let spans = trace.jobs.iter().map(|job| (job.ended.unwrap() - job.submit).as_secs_f64());
    let spans: Vec<Option<f64>> = spans.map(Some).collect();
    assert_eq!(reference.completion_s, spans);
    let mean_s = spans.iter().flatten().sum::<f64>() / spans.len() as f64;
    assert!((site.jct_s_mean.unwrap() - mean_s).abs() < 1e-3, "{site:?}");
}

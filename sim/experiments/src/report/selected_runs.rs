//! Selection of the runs that a page shows in detail: one per policy, at about the same total.
//!
//! Runs of a comparison are not recorded; the selected ones are simulated again with a recording
//! and give the same results.

use wattle_baselines::policy;
use wattle_saving::report::Recorded;
use wattle_saving::report::format::{Unit, number};
use wattle_simulator::SimulationError;
use wattle_world::World;

use crate::compare::{Case, Comparison, Swept};
use crate::frontier::{Frontier, FrontierPoint};

/// The policies of a comparison without their settings, in order.
pub(super) fn families(comparison: &Comparison) -> Vec<&str> {
    let mut families: Vec<&str> = Vec::new();
    for run in &comparison.policies {
        if !families.contains(&run.family.as_str()) {
            families.push(&run.family);
        }
    }
    families
}

/// A policy's frontier over `total` on one order of jobs; settings are indices into the
/// comparison's runs.
pub(super) fn frontier(
    comparison: &Comparison,
    family: &str,
    order: u64,
    total: fn(&Swept) -> Option<f64>,
) -> Option<Frontier> {
    let runs = comparison.policies.iter().enumerate().filter(|(_, run)| {
        run.family == family && run.order == order && run.outcome.finished == run.outcome.jobs
    });
    Frontier::of(runs.filter_map(|(setting, run)| {
        Some(FrontierPoint { total: total(run)?, jct_s: run.outcome.jct_s_mean?, setting })
    }))
}

/// A run's counted energy, kWh.
pub(super) fn counted_kwh(run: &Swept) -> Option<f64> {
    Some(run.counted_kwh)
}

/// The selected runs, as indices into the comparison's runs: of each policy the frontier point
/// nearest to the middle of the energies that all policies reach, on the first order.
pub(super) fn selected(comparison: &Comparison) -> Vec<usize> {
    let order = comparison.seeds.first().copied().unwrap_or(0);
    let frontiers: Vec<Frontier> = families(comparison)
        .iter()
        .filter_map(|family| frontier(comparison, family, order, counted_kwh))
        .collect();
    let from = frontiers.iter().map(Frontier::least).fold(0.0, f64::max);
    let to = frontiers.iter().map(Frontier::largest).fold(f64::INFINITY, f64::min);
    let middle = (from * to.max(f64::MIN_POSITIVE)).sqrt();
    let nearest = |frontier: &Frontier| {
        let distance = |point: &FrontierPoint| (point.total / middle).ln().abs();
        let points = frontier.points().iter();
        points.min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|point| point.setting)
    };
    frontiers.iter().filter_map(nearest).collect()
}

/// A run's policy and setting: `powerflow at price 0.65`, `fifo@1080 MHz`.
pub(super) fn setting(run: &Swept) -> String {
    let name = &run.outcome.policy;
    if *name == run.family && run.options.price > 0.0 {
        return format!("{name} at price {}", number(run.options.price));
    }
    if name.contains('@') { format!("{name} MHz") } else { name.clone() }
}

/// A run's setting, total and mean completion time.
pub(super) fn caption(run: &Swept, total: f64, unit: Unit) -> String {
    let jct = run.outcome.jct_s_mean.unwrap_or(0.0);
    format!("{}: {}, {}", setting(run), unit.format(total), Unit::hours(jct).format(jct))
}

/// Simulates the selected runs of a comparison again, with recordings.
///
/// # Errors
/// As the first run.
pub fn record(
    world: &World,
    case: &Case,
    comparison: &Comparison,
) -> Result<Vec<Recorded>, SimulationError> {
    let families = families(comparison);
    let mut runs = Vec::new();
    for index in selected(comparison) {
        let run = &comparison.policies[index];
        let policy = policy(&run.outcome.policy)?;
        let elastic = policy.capabilities().is_elastic;
        let scenario = if elastic { case.elastic(run.order) } else { case.rigid(run.order) };
        let slot = families.iter().position(|family| *family == run.family).unwrap_or(0);
        let recorded =
            Recorded::run(world, scenario, policy.as_ref(), slot, &run.options, &mut |_, _| ())?;
        runs.push(Recorded { name: setting(run), family: run.family.clone(), ..recorded });
    }
    Ok(runs)
}

//! Which runs are looked at closely: one of each policy, at about the same total.
//!
//! Runs of a comparison keep no recording; the chosen ones are run once more, and the engine gives
//! the same again.

use wattle_placer::policy;
use wattle_world::World;

use super::markup::{Unit, figure};
use crate::compare::{Case, Comparison, Swept};
use crate::engine::Engine;
use crate::engine::recording::Recording;
use crate::frontier::{Frontier, FrontierPoint};
use crate::outcome::PolicyOutcome;
use crate::scenario::Scenario;
use crate::simulation::{RunOptions, SimulationError, run_recorded};

/// A run with what happened in it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its policy and setting, as a person says them.
    pub name: String,
    /// The policy without its setting.
    pub family: String,
    /// The policy's place among those of the page, which gives it its colour.
    pub slot: usize,
    /// What came of it.
    pub outcome: PolicyOutcome,
    /// What happened.
    pub recording: Recording,
}

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

/// A policy's frontier on one order of jobs, of what `total` says was spent; settings are indices
/// into the comparison's runs.
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

/// What a run counts as spent, kWh.
pub(super) fn counted(run: &Swept) -> Option<f64> {
    Some(run.counted_kwh)
}

/// The runs to look at: of each policy the frontier point nearest the middle of the totals that all
/// of them reach, on the first order; as indices into the comparison's runs.
pub(super) fn chosen(comparison: &Comparison) -> Vec<usize> {
    let order = comparison.seeds.first().copied().unwrap_or(0);
    let families = families(comparison);
    let frontiers: Vec<Frontier> =
        families.iter().filter_map(|family| frontier(comparison, family, order, counted)).collect();
    let from = frontiers.iter().map(Frontier::least).fold(0.0, f64::max);
    let to = frontiers.iter().map(Frontier::largest).fold(f64::INFINITY, f64::min);
    let middle = (from * to.max(f64::MIN_POSITIVE)).sqrt();
    let nearest = |frontier: &Frontier| {
        let off = |point: &FrontierPoint| (point.total / middle).ln().abs();
        let points = frontier.points().iter();
        points.min_by(|a, b| off(a).total_cmp(&off(b))).map(|point| point.setting)
    };
    frontiers.iter().filter_map(nearest).collect()
}

/// A run's setting as a person says it: `powerflow at price 0.65`, `fifo@1080`.
pub(super) fn setting(run: &Swept) -> String {
    let spelled = &run.outcome.policy;
    if *spelled == run.family && run.options.price > 0.0 {
        return format!("{spelled} at price {}", figure(run.options.price));
    }
    if spelled.contains('@') { format!("{spelled} MHz") } else { spelled.clone() }
}

/// A run and what it reached, in one line.
pub(super) fn said(run: &Swept, total: f64, unit: Unit) -> String {
    let jct = run.outcome.jct_s_mean.unwrap_or(0.0);
    format!("{}: {}, {}", setting(run), unit.said(total), Unit::hours(jct).said(jct))
}

/// Runs the chosen points of a comparison once more, with everything kept.
///
/// # Errors
/// As the first time.
pub fn record(
    world: &World,
    case: &Case,
    comparison: &Comparison,
) -> Result<Vec<Recorded>, SimulationError> {
    let families = families(comparison);
    let mut runs = Vec::new();
    for index in chosen(comparison) {
        let run = &comparison.policies[index];
        let policy = policy(&run.outcome.policy)?;
        let elastic = policy.is_elastic();
        let scenario = if elastic { case.elastic(run.order) } else { case.rigid(run.order) };
        let (outcome, recording) = run_recorded(world, scenario, policy.as_ref(), &run.options)?;
        let slot = families.iter().position(|family| *family == run.family).unwrap_or(0);
        let (name, family) = (setting(run), run.family.clone());
        runs.push(Recorded { name, family, slot, outcome, recording });
    }
    Ok(runs)
}

impl Recorded {
    /// Runs `scenario` under a policy with everything kept; `slot` is its place among the page's.
    /// `progress` hears how many jobs have ended, and of how many, whenever one has.
    ///
    /// # Errors
    /// Where the policy or a workload is not known.
    pub fn run(
        world: &World,
        scenario: &Scenario,
        name: &str,
        slot: usize,
        options: &RunOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, SimulationError> {
        let policy = policy(name)?;
        let engine = Engine::new(world, scenario, policy.as_ref(), options)?;
        let (outcome, recording) = engine.heard_by(progress).run_recorded()?;
        let family = name.to_owned();
        Ok(Self { name: family.clone(), family, slot, outcome, recording })
    }
}

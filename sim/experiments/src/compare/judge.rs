//! Frontiers of the runs, and ratios between policies at equal totals.

use std::collections::{BTreeMap, BTreeSet};

use super::limits::Limits;
use super::options::CompareOptions;
use super::scenarios::Case;
use super::{
    AboveBound, AboveCarbonBound, Comparison, EqualCarbon, EqualEnergy, Neighbours, Summary, Swept,
    Untuned,
};
use crate::frontier::{Frontier, FrontierPoint, compare};
use wattle_saving::spread::ChangeSpread;
use wattle_saving::spread::RatioSpread;
use wattle_simulator::PolicyOutcome;

/// All runs; frontiers use those that finished all jobs.
struct Field<'a> {
    runs: &'a [Swept],
    orders: u64,
}

impl Field<'_> {
    fn frontier(
        &self,
        family: &str,
        order: u64,
        total: fn(&Swept) -> Option<f64>,
    ) -> Option<Frontier> {
        let points = self.runs.iter().enumerate().filter(|(_, run)| {
            run.family == family && run.order == order && run.outcome.finished == run.outcome.jobs
        });
        Frontier::of(points.filter_map(|(setting, run)| {
            Some(FrontierPoint { total: total(run)?, jct_s: run.outcome.jct_s_mean?, setting })
        }))
    }

    /// Another quantity along a frontier, interpolated at a total.
    fn along(
        &self,
        frontier: &Frontier,
        total: f64,
        of: fn(&PolicyOutcome) -> Option<f64>,
    ) -> Option<f64> {
        let points = frontier.points();
        let next = points.partition_point(|point| point.total <= total);
        let from = points.get(next.checked_sub(1)?)?;
        let value = |point: &FrontierPoint| of(&self.runs[point.setting].outcome);
        let Some(to) = points.get(next) else { return value(from) };
        let share = (total - from.total) / (to.total - from.total);
        Some(value(from)? + share * (value(to)? - value(from)?))
    }

    fn at_equal_energy(&self, ours: &str, theirs: &str, order: u64) -> Vec<EqualEnergy> {
        let energy = |run: &Swept| Some(run.counted_kwh);
        let frontiers =
            self.frontier(ours, order, energy).zip(self.frontier(theirs, order, energy));
        let Some((policy, baseline)) = frontiers else { return Vec::new() };
        let ratio_of = |total: f64, of: fn(&PolicyOutcome) -> Option<f64>| {
            let theirs = self.along(&baseline, total, of)?;
            Some(theirs / self.along(&policy, total, of)?)
        };
        let matched = compare(&policy, &baseline);
        let one = |total: f64, jct_ratio: Option<f64>| EqualEnergy {
            policy: ours.to_owned(),
            baseline: theirs.to_owned(),
            order,
            energy_kwh: total,
            jct_ratio,
            jct_p50_ratio: ratio_of(total, |outcome| outcome.jct_s_p50),
            jct_p99_ratio: ratio_of(total, |outcome| outcome.jct_s_p99),
        };
        matched.ratios.iter().map(|matched| one(matched.total, matched.ratio)).collect()
    }

    fn at_equal_carbon(&self, ours: &str, theirs: &str, order: u64) -> Vec<EqualCarbon> {
        let carbon = |run: &Swept| run.counted_kg;
        let frontiers =
            self.frontier(ours, order, carbon).zip(self.frontier(theirs, order, carbon));
        let Some((policy, baseline)) = frontiers else { return Vec::new() };
        let one = |total: f64, jct_ratio: Option<f64>| EqualCarbon {
            policy: ours.to_owned(),
            baseline: theirs.to_owned(),
            order,
            carbon_kg: total,
            jct_ratio,
        };
        let matched = compare(&policy, &baseline);
        matched.ratios.iter().map(|matched| one(matched.total, matched.ratio)).collect()
    }

    fn above_bound(&self, family: &str, limits: &Limits) -> Vec<AboveBound> {
        let Some(frontier) = self.frontier(family, 0, |run| Some(run.counted_kwh)) else {
            return Vec::new();
        };
        let (tight, alone) =
            (frontier.above_bound(&limits.tight), frontier.above_bound(&limits.alone));
        let both = tight.into_iter().zip(alone);
        let one = |((energy_kwh, ratio), (_, ratio_alone)): ((f64, _), (f64, _))| AboveBound {
            policy: family.to_owned(),
            energy_kwh,
            ratio,
            ratio_alone,
        };
        both.map(one).collect()
    }

    fn above_carbon_bound(&self, family: &str, limits: &Limits) -> Vec<AboveCarbonBound> {
        let frontier = self.frontier(family, 0, |run| run.counted_kg);
        let Some((frontier, bound)) = frontier.zip(limits.carbon.as_ref()) else {
            return Vec::new();
        };
        let one =
            |(carbon_kg, ratio)| AboveCarbonBound { policy: family.to_owned(), carbon_kg, ratio };
        frontier.above_bound(bound).into_iter().map(one).collect()
    }

    /// Untuned policies: those swept over clocks, at their first setting, the top clock.
    fn untuned(&self, families: &[String]) -> Vec<Untuned> {
        let plain = |family: &str, order: u64| {
            let own = |run: &&Swept| run.family == family && run.order == order;
            let first = self.runs.iter().find(own)?;
            first.outcome.policy.contains('@').then_some(first)
        };
        let Some(baseline) = families.iter().find(|family| plain(family, 0).is_some()) else {
            return Vec::new();
        };
        let changes = |family: &str, of: fn(&Swept) -> Option<f64>| {
            let one = |order| {
                let (ours, theirs) = (of(plain(family, order)?)?, of(plain(baseline, order)?)?);
                (theirs > 0.0).then(|| ours / theirs - 1.0)
            };
            ChangeSpread::of(&(0..self.orders).map(one).collect::<Vec<_>>())
        };
        let missed = |family: &str| {
            let of = |run: &Swept| run.outcome.deadlines_missed as f64 / run.outcome.jobs as f64;
            let all = (0..self.orders).filter_map(|order| plain(family, order)).map(of);
            all.sum::<f64>() / self.orders as f64
        };
        let with = families.iter().filter(|family| plain(family, 0).is_some());
        with.map(|family| Untuned {
            policy: family.clone(),
            baseline: baseline.clone(),
            energy: changes(family, |run| Some(run.counted_kwh)),
            runtime: changes(family, |run| run.outcome.runtime_s_mean),
            jct: changes(family, |run| run.outcome.jct_s_mean),
            active_nodes: changes(family, |run| Some(run.outcome.active_nodes_mean)),
            missed_share: missed(family),
        })
        .collect()
    }
}

/// Compares the policies of a case.
pub(super) fn judge(
    case: &Case,
    options: &CompareOptions,
    families: &[String],
    runs: Vec<Swept>,
    limits: &Limits,
    horizon_s: f64,
) -> Comparison {
    let orders = case.jobs.rigid.len() as u64;
    let field = Field { runs: &runs, orders };
    let (mut equal_energy, mut equal_carbon) = (Vec::new(), Vec::new());
    let (mut summary, mut above_bound) = (Vec::new(), Vec::new());
    let mut above_carbon_bound = Vec::new();
    for ours in families {
        for theirs in families.iter().filter(|theirs| *theirs != ours) {
            let energy: Vec<EqualEnergy> =
                (0..orders).flat_map(|order| field.at_equal_energy(ours, theirs, order)).collect();
            let carbon: Vec<EqualCarbon> =
                (0..orders).flat_map(|order| field.at_equal_carbon(ours, theirs, order)).collect();
            let spread =
                |of: fn(&EqualEnergy) -> Option<f64>| RatioSpread::of(energy.iter().filter_map(of));
            summary.push(Summary {
                policy: ours.clone(),
                baseline: theirs.clone(),
                spread: spread(|at| at.jct_ratio),
                spread_p50: spread(|at| at.jct_p50_ratio),
                spread_p99: spread(|at| at.jct_p99_ratio),
                spread_carbon: RatioSpread::of(carbon.iter().filter_map(|at| at.jct_ratio)),
                totals: energy.len(),
                not_reachable: energy.iter().filter(|at| at.jct_ratio.is_none()).count(),
            });
            equal_energy.extend(energy);
            equal_carbon.extend(carbon);
        }
        above_bound.extend(field.above_bound(ours, limits));
        above_carbon_bound.extend(field.above_carbon_bound(ours, limits));
    }
    let untuned = field.untuned(families);
    let notes = notes(case, &runs);
    Comparison {
        scenario: case.scenario,
        load: case.jobs.rigid[0].load.unwrap_or(case.load),
        accounting: case.accounting,
        world: case.world,
        workload: case.workload,
        deadlines: case.deadlines,
        seeds: (0..orders).collect(),
        jobs: case.jobs.rigid[0].jobs.len(),
        oracle: options.surfaces.are_of_the_world(),
        surfaces: options.surfaces,
        lengths: options.lengths_name(),
        horizon_s,
        bounds: limits.bounds(),
        policies: runs,
        equal_energy,
        equal_carbon,
        summary,
        above_bound,
        above_carbon_bound,
        untuned,
        waterfalls: Vec::new(),
        notes,
    }
}

/// Where the time limits of each family of runs are from, if it reads them; of the first of its runs.
pub(super) fn time_limits<'r>(
    runs: impl Iterator<Item = (&'r str, &'r PolicyOutcome)>,
) -> Vec<String> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for (family, outcome) in runs {
        if let Some(note) = outcome.time_limits() {
            first.entry(family).or_insert(note);
        }
    }
    first.into_iter().map(|(family, note)| format!("{family}: {note}")).collect()
}

/// How the runs of each policy kept the targets of grid events; `None` without events.
fn events_kept(runs: &[Swept]) -> Option<String> {
    let families: BTreeSet<&str> = runs.iter().map(|run| run.family.as_str()).collect();
    let above = families.into_iter().filter_map(|family| {
        let of_it = runs.iter().filter(|run| run.family == family);
        let most =
            of_it.filter_map(|run| Some(run.outcome.events.as_ref()?.minutes_above)).max()?;
        Some(format!("{family} {most}"))
    });
    let above: Vec<String> = above.collect();
    (!above.is_empty())
        .then(|| format!("most minutes above the target of grid events: {}", above.join(", ")))
}

fn notes(case: &Case, runs: &[Swept]) -> Vec<String> {
    let mut notes = Vec::new();
    let unfinished = runs.iter().filter(|run| run.outcome.finished < run.outcome.jobs).count();
    if unfinished > 0 {
        notes.push(format!(
            "{unfinished} of {} runs did not finish all jobs and are on no frontier",
            runs.len()
        ));
    }
    let families: BTreeSet<&str> = runs.iter().map(|run| run.family.as_str()).collect();
    let overruns = families.into_iter().filter_map(|family| {
        let of_it = runs.iter().filter(|run| run.family == family);
        let most = of_it.filter_map(|run| run.budget_overrun).reduce(f64::max)?;
        Some(format!("{family} {:.2} %", 100.0 * most))
    });
    let overruns: Vec<String> = overruns.collect();
    if !overruns.is_empty() {
        notes.push(format!("largest overrun of a budget window: {}", overruns.join(", ")));
    }
    notes.extend(events_kept(runs));
    notes.extend(time_limits(runs.iter().map(|run| (run.family.as_str(), &run.outcome))));
    if case.world != Neighbours::Alone {
        notes.push(
            "the bounds give every job its best co-tenant, which makes them looser".to_owned(),
        );
    }
    notes
}

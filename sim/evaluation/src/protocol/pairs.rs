//! pairs-out, jobs-out, families-out: relative speed of co-located jobs.
//!
//! A cell is one tenant of one pair; its normalised throughput (steps/s shared over steps/s exclusive) is
//! predicted. Every job's exclusive speed is known.
//!
//! * pairs-out: a seeded shuffle assigns the unordered pairs to five folds; each fold is predicted with
//!   the other four known.
//! * jobs-out, families-out: one job, or all batches of one model, is left out of every cell, as tenant
//!   and as partner; its cells are predicted with the others known. There is one row over all, and one
//!   for each job or family left out.
//!
//! Intervals are calibrated on the other sets of cells in turn, each predicted without it and without the
//! evaluated set.
//!
//! A pair is worth sharing if its two normalised throughputs add up to more than 1.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::messages::Estimate;
use wattle_common::numerics::statistics::quantile_linear;
use wattle_common::rng::Stream;

use wattle_predictor::calibration::Calibration;
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;

use super::{Of, Outcome};
use crate::baselines::Additive;
use crate::metrics::{Measure, Sample};
use crate::trial::{Shown, Trial, alone};
use wattle_measurements::reader::pairs::{PairJob, Pairs};

const FOLDS: usize = 5;
/// Number of groups in which the other sets are left out for the scores.
const INNER: usize = 7;
/// The seed is fixed, so that folds cannot be chosen by the result.
const SEED: u64 = 7;

/// (tenant, partner)
type Cell = (usize, usize);

pub(crate) fn run(pairs: &Pairs, method: Method, out: &mut Outcome) {
    let folds: Vec<_> = folds(pairs).into_iter().map(|cells| (None, cells)).collect();
    rows(pairs, method, "pairs-out", &folds, out);
    let each = (0..pairs.jobs.len()).map(|i| (pairs.jobs[i].class.as_str(), BTreeSet::from([i])));
    rows(pairs, method, "jobs-out", &without(pairs, each), out);
    let mut families: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (i, job) in pairs.jobs.iter().enumerate() {
        families.entry(&job.family).or_default().insert(i);
    }
    rows(pairs, method, "families-out", &without(pairs, families.into_iter()), out);
}

/// Folds of cells; both tenants of a pair are in the same one.
fn folds(pairs: &Pairs) -> Vec<BTreeSet<Cell>> {
    let mut all: Vec<Cell> = pairs.cells.keys().copied().filter(|(i, j)| i <= j).collect();
    // Sorted by name, so that folds do not depend on the order of a file's rows.
    all.sort_by_key(|(i, j)| {
        let mut names = [&pairs.jobs[*i].class, &pairs.jobs[*j].class];
        names.sort();
        names
    });
    let mut rng = Stream::new(SEED, "pairs-out");
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut folds = vec![BTreeSet::new(); FOLDS];
    for (k, (i, j)) in all.into_iter().enumerate() {
        folds[k % FOLDS].extend([(i, j), (j, i)]);
    }
    folds.retain(|fold| !fold.is_empty() && fold.len() < pairs.cells.len());
    folds
}

/// Cells of each group, by its name.
fn without<'a>(
    pairs: &Pairs,
    groups: impl Iterator<Item = (&'a str, BTreeSet<usize>)>,
) -> Vec<(Option<&'a str>, BTreeSet<Cell>)> {
    let cells = |group: BTreeSet<usize>| -> BTreeSet<Cell> {
        let has = |c: &&Cell| group.contains(&c.0) || group.contains(&c.1);
        pairs.cells.keys().filter(has).copied().collect()
    };
    let unknown = groups.map(|(name, group)| (Some(name), cells(group)));
    unknown.filter(|(_, c)| !c.is_empty() && c.len() < pairs.cells.len()).collect()
}

/// A row for each named set of cells, and one over all.
fn rows(
    pairs: &Pairs,
    method: Method,
    protocol: &'static str,
    unknown: &[(Option<&str>, BTreeSet<Cell>)],
    out: &mut Outcome,
) {
    let (mut speeds, mut worth) = (Vec::new(), Vec::new());
    let why = "two groups of pairs or more are needed";
    let of = |model, quantity| Of { file_gpu: &pairs.file_gpu, model, protocol, quantity };
    let cells: Vec<&BTreeSet<Cell>> = unknown.iter().map(|(_, cells)| cells).collect();
    for (me, (name, _)) in unknown.iter().enumerate() {
        let (own_speeds, own_worth) =
            one(pairs, method, cells[me], &scores(pairs, method, &cells, me));
        if name.is_some() {
            out.add(of(*name, "relative_speed"), Measure::Absolute, &own_speeds, why);
        }
        speeds.extend(own_speeds);
        worth.extend(own_worth);
    }
    out.add(of(None, "relative_speed"), Measure::Absolute, &speeds, why);
    out.add(of(None, "worth_pairing"), Measure::Decision, &worth, why);
}

fn beside(job: &PairJob) -> Configuration {
    Configuration { neighbours: vec![job.class.clone()], ..alone() }
}

fn shown(job: &PairJob, at: Configuration, rate: f64) -> Shown<'_> {
    let at = Configuration { global_batch: job.batch, ..at };
    Shown { class: &job.class, at, rate: Some(rate), gpu_power_w: None }
}

/// A predictor that knows every job with an exclusive GPU, and the cells that are not `hidden`.
fn trial(pairs: &Pairs, method: Method, hidden: &dyn Fn(&Cell) -> bool) -> Trial {
    let mut rows: Vec<Shown<'_>> = Vec::new();
    for (i, job) in pairs.jobs.iter().enumerate() {
        rows.push(shown(job, alone(), job.alone));
        let own = pairs.cells.iter().filter(|(c, _)| c.0 == i && !hidden(c));
        rows.extend(own.map(|((_, partner), speed)| {
            shown(job, beside(&pairs.jobs[*partner]), speed * job.alone)
        }));
    }
    let mut trial = Trial::new(&pairs.file_gpu, method);
    trial.learn(&rows, true);
    trial
}

/// Scores of predictions of the other sets of cells, without them and without the evaluated set `me`. Many
/// sets are left out in [`INNER`] seeded groups, which is slightly harder than leaving out each one.
fn scores(
    pairs: &Pairs,
    method: Method,
    unknown: &[&BTreeSet<Cell>],
    me: usize,
) -> Vec<Calibration> {
    let mut others: Vec<usize> = (0..unknown.len()).filter(|i| *i != me).collect();
    let mut rng = Stream::new(SEED, "scores");
    for i in (1..others.len()).rev() {
        others.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let groups = INNER.min(others.len());
    let group = |g: usize| others.iter().skip(g).step_by(groups.max(1)).map(|i| unknown[*i]);
    (0..groups)
        .map(|g| {
            let hidden = |c: &Cell| unknown[me].contains(c) || group(g).any(|set| set.contains(c));
            let rows: Vec<Shown<'_>> = pairs
                .cells
                .iter()
                .filter(|(c, _)| !unknown[me].contains(c))
                // Cells of exactly one set: two unknown jobs are harder than what is evaluated.
                .filter(|(c, _)| group(g).filter(|set| set.contains(c)).count() == 1)
                .map(|((i, j), speed)| {
                    let job = &pairs.jobs[*i];
                    shown(job, beside(&pairs.jobs[*j]), speed * job.alone)
                })
                .collect();
            trial(pairs, method, &hidden).scores(&rows)
        })
        .collect()
}

/// Predicts `cells` with all others known and intervals calibrated on `scores`: relative speeds, and
/// whether pairs are worth sharing.
fn one(
    pairs: &Pairs,
    method: Method,
    cells: &BTreeSet<Cell>,
    scores: &[Calibration],
) -> (Vec<Sample>, Vec<Sample>) {
    let known: Vec<(Cell, f64)> =
        pairs.cells.iter().filter(|(c, _)| !cells.contains(c)).map(|(c, y)| (*c, *y)).collect();
    let mut trial = trial(pairs, method, &|c| cells.contains(c));
    trial.calibrate(scores.iter());
    let simple = Simple::new(pairs, &known);
    let mut predicted: BTreeMap<Cell, Sample> = BTreeMap::new();
    let mut worth = Vec::new();
    for (i, j) in cells {
        let at = Configuration { global_batch: pairs.jobs[*i].batch, ..beside(&pairs.jobs[*j]) };
        let Some(point) = trial.predict(&pairs.jobs[*i].class, &at) else { continue };
        let sample = Sample {
            seen: pairs.cells[&(*i, *j)],
            predicted: point.relative_speed,
            simple: simple.at(*i, *j),
        };
        predicted.insert((*i, *j), sample);
    }
    for ((i, j), a) in predicted.iter().filter(|((i, j), _)| i <= j) {
        let Some(b) = predicted.get(&(*j, *i)) else { continue };
        let decides = |a: f64, b: f64| f64::from(u8::from(a + b > 1.0));
        let share = decides(a.predicted.mean, b.predicted.mean);
        worth.push(Sample {
            seen: decides(a.seen, b.seen),
            predicted: Estimate { mean: share, low: share, high: share },
            simple: a.simple.iter().zip(&b.simple).map(|(a, b)| (a.0, decides(a.1, b.1))).collect(),
        });
    }
    (predicted.into_values().collect(), worth)
}

/// The simple predictors over pairs.
struct Simple<'a> {
    pairs: &'a Pairs,
    known: &'a [(Cell, f64)],
    median: f64,
    additive: Additive,
}

impl<'a> Simple<'a> {
    fn new(pairs: &'a Pairs, known: &'a [(Cell, f64)]) -> Self {
        let mut values: Vec<f64> = known.iter().map(|(_, y)| *y).collect();
        let median = quantile_linear(&mut values, 0.5).unwrap_or(1.0);
        Self { pairs, known, median, additive: Additive::fit(pairs.jobs.len(), known) }
    }

    /// The median of all; the pair of the most similar jobs; the additive model.
    fn at(&self, me: usize, partner: usize) -> Vec<(&'static str, f64)> {
        let far = |(i, j): &Cell| self.far(*i, me) + self.far(*j, partner);
        let near = self.known.iter().min_by(|a, b| far(&a.0).total_cmp(&far(&b.0)));
        vec![
            ("constant", self.median),
            ("nearest", near.map_or(self.median, |(_, y)| *y)),
            ("linear", self.additive.at(me, partner)),
        ]
    }

    /// Distance of two jobs: in one family the doublings of batch size; else the distance of exclusive
    /// speeds, and larger than any batch distance.
    fn far(&self, a: usize, b: usize) -> f64 {
        let (a, b) = (&self.pairs.jobs[a], &self.pairs.jobs[b]);
        let size = |j: &PairJob| f64::from(j.batch.unwrap_or(1)).log2();
        if a.family == b.family {
            (size(a) - size(b)).abs()
        } else {
            40.0 + (a.alone / b.alone).ln().abs()
        }
    }
}

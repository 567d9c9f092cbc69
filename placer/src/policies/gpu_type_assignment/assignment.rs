//! The assignment of jobs to GPU types with the greatest sum of values.
//!
//! All jobs on a type get the same share of its GPUs, within the sizes each may have. The sum over all
//! types of the values at those shares is raised by greedy admission, then by moves of one job and
//! swaps of two.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::policies::gpu_type_assignment::value_curve::ValueCurve;

/// The least gain of a change: less is rounding.
const GAIN_MIN: f64 = 1e-6;
/// Bisections for the common share.
const BISECTIONS: u32 = 24;

/// One job, with its value curve on each type.
pub(super) struct Candidate {
    pub(super) curves: Vec<Option<Rc<ValueCurve>>>,
    /// The type on which it runs or to which it is being moved.
    pub(super) home: Option<usize>,
    /// Whether it may leave its home.
    pub(super) may_move: bool,
    /// The cost of leaving its home.
    pub(super) move_cost: f64,
    /// The type it is assigned to.
    pub(super) at: Option<usize>,
}

impl Candidate {
    pub(super) fn on(&self, gpu_type: usize) -> Option<&ValueCurve> {
        self.curves.get(gpu_type)?.as_deref()
    }
    /// The cost of being on a type.
    fn cost_on(&self, gpu_type: usize) -> f64 {
        if self.home.is_some_and(|home| home != gpu_type) { self.move_cost } else { 0.0 }
    }
}

/// An assignment of jobs to types.
pub(super) struct Assignment {
    /// GPUs of each type.
    pub(super) gpus: Vec<u32>,
    /// The jobs in order of precedence.
    pub(super) candidates: Vec<Candidate>,
    /// Whether a type may have more jobs than GPUs, which then take turns.
    pub(super) by_turns: bool,
}

/// The jobs on one type at their common share.
struct TypeShare<'s> {
    /// Curves, each with the number of jobs that have it.
    jobs: Vec<(&'s ValueCurve, f64)>,
    gpus: u32,
    /// Sum of the least sizes.
    least_total: u32,
    by_turns: bool,
    share: f64,
    value: f64,
}

impl<'s> TypeShare<'s> {
    fn of(curves: impl Iterator<Item = &'s ValueCurve>, gpus: u32, by_turns: bool) -> Self {
        let mut least_total = 0;
        let mut jobs: Vec<(&ValueCurve, f64)> = Vec::new();
        // Looked up by address and kept in order of appearance, so that addresses decide nothing.
        let mut known: BTreeMap<*const ValueCurve, usize> = BTreeMap::new();
        for curve in curves {
            least_total += curve.least;
            let index = *known.entry(std::ptr::from_ref(curve)).or_insert(jobs.len());
            match jobs.get_mut(index) {
                Some((_, count)) => *count += 1.0,
                None => jobs.push((curve, 1.0)),
            }
        }
        let mut shared = Self { jobs, gpus, least_total, by_turns, share: 0.0, value: 0.0 };
        (shared.share, shared.value) = shared.with_change(None, None);
        shared
    }

    /// The common share, and the sum of values, once one job has come and one has gone.
    fn with_change(&self, come: Option<&ValueCurve>, gone: Option<&ValueCurve>) -> (f64, f64) {
        let sum = |of: &dyn Fn(&ValueCurve) -> f64| {
            let all: f64 = self.jobs.iter().map(|(curve, count)| count * of(curve)).sum();
            all + come.map_or(0.0, of) - gone.map_or(0.0, of)
        };
        let gpus = f64::from(self.gpus);
        let (mut low, mut high) = (0.0, gpus);
        for _ in 0..BISECTIONS {
            let middle = 0.5 * (low + high);
            if sum(&|curve| self.granted(curve, middle)) > gpus {
                high = middle;
            } else {
                low = middle;
            }
        }
        (low, sum(&|curve| curve.at(self.granted(curve, low))))
    }

    /// The GPUs of a job at a common share.
    fn granted(&self, curve: &ValueCurve, share: f64) -> f64 {
        let least = if self.by_turns { 0.0 } else { f64::from(curve.least) };
        share.clamp(least, f64::from(curve.most))
    }

    /// Whether a job's least size fits; where jobs take turns, whether it fits alone.
    fn has_room_for(&self, curve: &ValueCurve) -> bool {
        let used = if self.by_turns { 0 } else { self.least_total };
        used + curve.least <= self.gpus
    }

    /// The value to a job of the present common share.
    fn value_to(&self, curve: &ValueCurve) -> f64 {
        curve.at(self.granted(curve, self.share))
    }
}

enum Change {
    Move { job: usize, to: usize },
    Swap { a: usize, b: usize },
}

impl Assignment {
    fn type_share(&self, gpu_type: usize) -> TypeShare<'_> {
        let there = self.candidates.iter().filter(|candidate| candidate.at == Some(gpu_type));
        let curves = there.filter_map(|candidate| candidate.on(gpu_type));
        TypeShare::of(curves, self.gpus[gpu_type], self.by_turns)
    }

    fn type_shares(&self) -> Vec<TypeShare<'_>> {
        (0..self.gpus.len()).map(|gpu_type| self.type_share(gpu_type)).collect()
    }

    /// Assigns the jobs in order to types with room for their least size. GPUs of later jobs on their
    /// home types are spared where another type has room.
    pub(super) fn admit(&mut self) {
        let types = 0..self.gpus.len();
        let mut free = self.gpus.clone();
        let mut spared = vec![0; self.gpus.len()];
        let at_home =
            |candidate: &Candidate| Some((candidate.home?, candidate.on(candidate.home?)?.least));
        for (home, least) in self.candidates.iter().filter_map(at_home) {
            spared[home] += least;
        }
        for index in 0..self.candidates.len() {
            let candidate = &self.candidates[index];
            if let Some((home, least)) = at_home(candidate) {
                spared[home] -= least.min(spared[home]);
            }
            let fits = |gpu_type: usize, spared: u32| {
                let room = if self.by_turns { self.gpus[gpu_type] } else { free[gpu_type] };
                let spared = if self.by_turns { 0 } else { spared };
                candidate.on(gpu_type).is_some_and(|curve| curve.least + spared <= room)
            };
            let chosen = candidate.home.filter(|&home| fits(home, 0)).or_else(|| {
                let unspared: Vec<usize> = types.clone().filter(|&k| fits(k, spared[k])).collect();
                let any = || types.clone().filter(|&k| fits(k, 0)).collect();
                let open: Vec<usize> = if unspared.is_empty() { any() } else { unspared };
                // The job's own value is part of the gain: only differences between types count.
                let gain = |&gpu_type: &usize| {
                    let shared = self.type_share(gpu_type);
                    shared.with_change(candidate.on(gpu_type), None).1 - shared.value
                };
                let gains = open.iter().map(|gpu_type| (gain(gpu_type), *gpu_type));
                // Of equal gains the first type.
                gains.reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, gpu_type)| gpu_type)
            });
            let least = chosen.and_then(|k| candidate.on(k)).map_or(0, |curve| curve.least);
            if let Some(gpu_type) = chosen {
                free[gpu_type] = free[gpu_type].saturating_sub(least);
            }
            self.candidates[index].at = chosen;
        }
    }

    /// The GPUs of each type beyond the least sizes of its jobs.
    pub(super) fn spare(&self) -> Vec<u32> {
        let spare = |shared: TypeShare<'_>| shared.gpus.saturating_sub(shared.least_total);
        self.type_shares().into_iter().map(spare).collect()
    }

    /// Makes the best move or swap as long as the sum of values grows.
    pub(super) fn improve(&mut self) {
        for _ in 0..2 * self.candidates.len() {
            match self.best_change() {
                Some(Change::Move { job, to }) => self.candidates[job].at = Some(to),
                Some(Change::Swap { a, b }) => {
                    let (at, other) = (self.candidates[a].at, self.candidates[b].at);
                    (self.candidates[a].at, self.candidates[b].at) = (other, at);
                }
                None => return,
            }
        }
    }

    fn best_change(&self) -> Option<Change> {
        let shares = self.type_shares();
        let mut best: Option<(f64, Change)> = None;
        let mut offer = |gain: f64, change: Change| {
            if gain > GAIN_MIN && best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, change));
            }
        };
        // Jobs with the same curve change a type's value alike.
        let mut known: BTreeMap<(usize, *const ValueCurve, bool), f64> = BTreeMap::new();
        // By pair of types and least size: the job that gains most at the present shares.
        let mut best_by_pair: BTreeMap<(usize, usize, u32), (f64, usize)> = BTreeMap::new();
        let movable = self.candidates.iter().enumerate().filter(|(_, c)| c.may_move);
        for (job, candidate) in movable {
            let Some(from) = candidate.at else { continue };
            let Some(here) = candidate.on(from) else { continue };
            for to in (0..self.gpus.len()).filter(|&to| to != from) {
                let Some(there) = candidate.on(to) else { continue };
                let cost = candidate.cost_on(to) - candidate.cost_on(from);
                let (a, b) = (&shares[from], &shares[to]);
                if b.has_room_for(there) {
                    let leaving = *known
                        .entry((from, std::ptr::from_ref(here), false))
                        .or_insert_with(|| a.with_change(None, Some(here)).1 - a.value);
                    let coming = *known
                        .entry((to, std::ptr::from_ref(there), true))
                        .or_insert_with(|| b.with_change(Some(there), None).1 - b.value);
                    offer(leaving + coming - cost, Change::Move { job, to });
                }
                if here.least == there.least {
                    let gain = b.value_to(there) - a.value_to(here) - cost;
                    let most = best_by_pair.entry((from, to, here.least)).or_insert((gain, job));
                    if gain > most.0 {
                        *most = (gain, job);
                    }
                }
            }
        }
        for (&(from, to, least), &(gain, a)) in &best_by_pair {
            if from < to
                && let Some(&(back, b)) = best_by_pair.get(&(to, from, least))
            {
                offer(gain + back, Change::Swap { a, b });
            }
        }
        best.map(|(_, change)| change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, f64)]) -> Rc<ValueCurve> {
        let values = points.iter().map(|&(gpus, speed)| (gpus, speed.ln()));
        Rc::new(ValueCurve::from_values(values).unwrap())
    }

    /// A queued job, or one at home on a type with a cost of leaving it.
    fn candidate(curves: Vec<Rc<ValueCurve>>, home: Option<usize>, move_cost: f64) -> Candidate {
        let curves = curves.into_iter().map(Some).collect();
        Candidate { curves, home, may_move: true, move_cost, at: None }
    }

    fn assigned(gpus: &[u32], candidates: Vec<Candidate>, by_turns: bool) -> Vec<usize> {
        let mut assignment = Assignment { gpus: gpus.to_vec(), candidates, by_turns };
        assignment.admit();
        assignment.improve();
        assignment.candidates.iter().map(|job| job.at.unwrap_or(usize::MAX)).collect()
    }

    #[test]
    fn fast_gpus_go_to_the_job_that_gains_most_unless_a_move_costs_more() {
        let one = |speed: f64| curve(&[(1, speed)]);
        let slight = |home, cost| candidate(vec![one(1.2), one(1.0)], home, cost);
        let much = || candidate(vec![one(4.0), one(1.0)], None, 0.0);
        assert_eq!(assigned(&[1, 1], vec![slight(None, 0.0), much()], false), [1, 0]);
        // The job that runs there leaves for a gain of 4 / 1.2, if its restart costs less.
        assert_eq!(assigned(&[1, 1], vec![slight(Some(0), 0.1), much()], false), [1, 0]);
        assert_eq!(assigned(&[1, 1], vec![slight(Some(0), 1.3), much()], false), [0, 1]);
        // Where jobs take turns, a type must be able to hold the job alone.
        let wide = candidate(vec![curve(&[(4, 1.0)]), curve(&[(4, 9.0)])], None, 0.0);
        assert_eq!(assigned(&[4, 2], vec![wide], true), [0]);
        // Without room the later job waits.
        assert_eq!(assigned(&[1, 0], vec![slight(None, 0.0), much()], false), [0, usize::MAX]);
    }

    #[test]
    fn jobs_that_take_turns_are_spread_by_the_length_of_both_queues() {
        let one = |speed: f64| curve(&[(1, speed)]);
        let jobs = (0..8).map(|_| candidate(vec![one(3.0), one(1.0)], None, 0.0)).collect();
        // Two GPUs serve the queue better than one, however much faster one of them is.
        let fast = assigned(&[1, 1], jobs, true).iter().filter(|&&at| at == 0).count();
        assert!((4..8).contains(&fast), "{fast}");
    }

    #[test]
    fn jobs_do_not_crowd_onto_fast_gpus_while_others_are_idle() {
        let scales = |speed: f64| curve(&[(1, speed), (2, 1.9 * speed), (4, 3.6 * speed)]);
        let job = || candidate(vec![scales(1.5), scales(1.0)], None, 0.0);
        let placed = assigned(&[4, 4], vec![job(), job(), job()], false);
        assert_eq!(placed.iter().filter(|&&gpu_type| gpu_type == 0).count(), 2, "{placed:?}");
        // Jobs that do not scale use one GPU each and fit on the fast type.
        let flat = |speed: f64| curve(&[(1, speed)]);
        let job = || candidate(vec![flat(1.5), flat(1.0)], None, 0.0);
        assert_eq!(assigned(&[4, 4], vec![job(), job(), job()], false), [0, 0, 0]);
    }
}

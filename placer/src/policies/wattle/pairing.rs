//! Phase 3, first part: which jobs could share GPUs, matched by surplus at the present price.
//!
//! The surplus of a pair is the value of both jobs' work on the same GPUs, less energy and the price of the
//! GPUs, less the surplus of the two exclusive jobs. Pairs are matched greedily, the greatest surplus first;
//! optimal matchings save hardly more. Co-tenants stay together unless other pairs gain clearly more
//! ([`KEEP_BONUS`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::policies::colocation_trial::{may_share, were_parted};
use crate::policies::wattle::Supply;
use crate::policies::wattle::bidders::{Bidder, change_cost, unserved};
use crate::policies::wattle::joint_curve::{JointCurve, JointCurves, JointSize};
use crate::policies::wattle::knapsack::{ChangeCost, Choice, Item};
use crate::policies::wattle::market::{Bid, Demand, Market};
use crate::policies::wattle::power_knapsack;
use crate::policies::wattle::prices::{JoulePrices, Prices};
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::relative_speed_max;

/// Up to this many jobs are matched one by one, more in groups of equal operating points and similar work.
const ONE_BY_ONE_MAX: usize = 200;
/// The greatest number of groups.
const GROUPS_MAX: usize = 256;
/// The value of staying together, s/s.
const KEEP_BONUS: f64 = 0.1;

/// Two jobs that are to share GPUs.
pub(super) struct Pair {
    /// Indices of the bidders; the first has the lower operating curve.
    pub(super) a: usize,
    pub(super) b: usize,
    curve: Arc<JointCurve>,
    /// The value of staying together, s/s; infinite for a pair that must.
    keep: f64,
}

impl Pair {
    /// The size that both keep, because one of them has not settled.
    pub(super) fn held(&self, bidders: &[Bidder<'_>]) -> Option<u32> {
        bidders[self.a].held.or(bidders[self.b].held)
    }
}

/// The better option of a pair at given prices: sharing, or two exclusive jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairBid {
    /// The gain of sharing, s/s.
    pub(super) surplus: f64,
    pub(super) together: Demand,
    pub(super) apart: Demand,
}

impl PairBid {
    pub(super) fn shares(&self) -> bool {
        self.surplus > 0.0
    }

    /// What it demands.
    pub(super) fn demand(&self) -> Demand {
        if self.shares() { self.together } else { self.apart }
    }
}

/// The pairs for one GPU type.
pub(super) struct Pairing {
    pub(super) pairs: Vec<Pair>,
    /// The largest set of GPUs that one job could get.
    largest_set: u32,
    /// The energy price at the grid's present carbon intensity, s/J.
    energy: f64,
}

/// A possible pair and its surplus.
struct Candidate {
    surplus: f64,
    keep: f64,
    a: usize,
    b: usize,
    curve: Arc<JointCurve>,
    kind: CandidateKind,
}

#[derive(Clone, Copy)]
enum CandidateKind {
    /// Two co-tenants.
    CoTenants,
    /// Any job of one group with any of another.
    Groups(usize, usize),
}

/// An upper bound of the value of a bidder's work on shared GPUs.
struct ShareBound {
    /// With its greatest speeds, and without the cost of energy and GPUs. Its part of the value of any pair is
    /// computed in the same order, so rounding preserves the bound.
    value_max: f64,
    /// That bound less its surplus as an exclusive job, rounded up. A pair has a positive surplus only if the
    /// sum of both margins is positive.
    margin: f64,
}

impl ShareBound {
    /// Relative rounding errors of the margin are smaller.
    const ROUNDING: f64 = 1e-9;

    fn of(bidder: &Bidder<'_>, market: &Market<'_>, bids: &[Bid], gpu_type: &str) -> Self {
        let (curve, bid) = (&market.curves[bidder.curve], &bids[bidder.class]);
        let rates = curve.known.points().iter().map(|point| point.steps_per_s);
        let rate = rates.fold(0.0, f64::max);
        let relative = relative_speed_max(bidder.job, gpu_type);
        let value_max = bid.work_price * (relative * rate / curve.unit);
        let rounding = Self::ROUNDING * (value_max.abs() + bid.surplus.abs());
        let margin = value_max - bid.surplus + rounding;
        Self { value_max, margin: if margin.is_nan() { f64::INFINITY } else { margin } }
    }
}

/// Inputs of the evaluation of pairs, with the joint curves.
struct Evaluation<'e, 'a> {
    supply: &'e Supply<'a>,
    market: &'e Market<'a>,
    bidders: &'e [Bidder<'a>],
    bids: &'e [Bid],
    prices: Prices,
    joule: JoulePrices,
    /// By bidder.
    bounds: &'e [ShareBound],
    curves: MutexGuard<'e, JointCurves>,
    largest_set: u32,
}

impl Evaluation<'_, '_> {
    /// The candidate of two jobs, if it has a positive surplus.
    fn candidate(
        &mut self,
        a: usize,
        b: usize,
        keep: f64,
        kind: CandidateKind,
    ) -> Option<Candidate> {
        let (a, b) = ordered(a, b, self.bidders);
        let (one, two) = (&self.bidders[a], &self.bidders[b]);
        let keep = if held_together(one, two) { f64::INFINITY } else { keep };
        let bids = [&self.bids[one.class], &self.bids[two.class]];
        let apart = bids[0].surplus + bids[1].surplus;
        let value_max = self.bounds[a].value_max + self.bounds[b].value_max;
        if keep <= 0.0 && value_max <= apart {
            return None;
        }
        let both_held = one.held.is_some() && two.held.is_some();
        if were_parted(one.job, two.job) || (both_held && run_on_different_gpus(one.job, two.job)) {
            return None;
        }
        let memory_mib = one.job.memory_mib_max()? + two.job.memory_mib_max()?;
        if self.supply.memory_mib.is_none_or(|least| memory_mib > least) {
            return None;
        }
        let curves = [&self.market.curves[one.curve], &self.market.curves[two.curve]];
        let curve = self.curves.of(curves, [one.job, two.job])?;
        let sizes = || curve.sizes.iter().filter(|size| size.gpus <= self.largest_set);
        sizes().next()?;
        let permitted = permitted_sizes(one, two);
        let mut together = apart;
        for size in sizes().filter(|size| permitted(size.gpus)) {
            let rent = self.prices.gpu * f64::from(size.gpus);
            // The bound saves the evaluation of sizes that cannot be better.
            if size.value_bound(bids, self.joule) - rent > together
                && let Some((_, value)) =
                    size.best_point(bids, self.joule, [one.speed_min, two.speed_min])
            {
                together = together.max(value - rent);
            }
        }
        let surplus = if keep.is_infinite() { keep } else { together - apart + keep };
        let is_valid = (apart.is_finite() || keep.is_infinite()) && surplus > 0.0;
        is_valid.then_some(Candidate { surplus, keep, a, b, curve, kind })
    }
}

impl Pairing {
    /// The pairs at these prices, given the bids of all classes as exclusive jobs. Pairs of `moved` jobs are
    /// not kept together.
    pub(super) fn of(
        input: PlanningInput<'_>,
        supply: &Supply<'_>,
        market: &Market<'_>,
        bidders: &[Bidder<'_>],
        moved: &BTreeSet<JobKey>,
        bids: &[Bid],
        prices: Prices,
    ) -> Self {
        let energy = input.limits.price_now();
        let largest_set = supply.nodes.largest_set();
        if input.limits.tenants_max < 2 {
            return Self { pairs: Vec::new(), largest_set, energy };
        }
        let mut curves = supply.joint_curves.lock().unwrap_or_else(PoisonError::into_inner);
        curves.begin_round(supply.charge, supply.gpu_w_max);
        let bound = |bidder: &Bidder<'_>| ShareBound::of(bidder, market, bids, supply.gpu_type);
        let bounds: &[ShareBound] = &bidders.iter().map(bound).collect::<Vec<_>>();
        let joule = JoulePrices { energy, power: prices.power };
        let mut evaluation = Evaluation {
            supply,
            market,
            bidders,
            bids,
            prices,
            joule,
            bounds,
            curves,
            largest_set,
        };
        // Where power is scarce no new pairs are formed: see the README.
        let groups = if prices.power > 0.0 { Vec::new() } else { groups(bidders) };
        let mut candidates: Vec<Candidate> = Vec::new();
        for (a, b) in co_tenants(bidders, moved) {
            candidates.extend(evaluation.candidate(a, b, KEEP_BONUS, CandidateKind::CoTenants));
        }
        for (i, group) in groups.iter().enumerate() {
            if let [a, b, ..] = group[..] {
                candidates.extend(evaluation.candidate(a, b, 0.0, CandidateKind::Groups(i, i)));
            }
        }
        // Co-tenants that have not settled stay together at any surplus.
        let margin = |group: usize| match bidders[groups[group][0]].held {
            Some(_) => f64::INFINITY,
            None => bounds[groups[group][0]].margin,
        };
        let mut by_margin: Vec<(f64, usize)> = (0..groups.len()).map(|i| (margin(i), i)).collect();
        by_margin.sort_by(|x, y| y.0.total_cmp(&x.0));
        for (at, &(one, i)) in by_margin.iter().enumerate() {
            for &(_, j) in by_margin[at + 1..].iter().take_while(|(two, _)| one + two > 0.0) {
                let (i, j) = (i.min(j), i.max(j));
                let kind = CandidateKind::Groups(i, j);
                candidates.extend(evaluation.candidate(groups[i][0], groups[j][0], 0.0, kind));
            }
        }
        let by_surplus = |x: &Candidate, y: &Candidate| {
            y.surplus.total_cmp(&x.surplus).then((x.a, x.b).cmp(&(y.a, y.b)))
        };
        candidates.sort_by(by_surplus);
        let pairs = match_greedily(&candidates, &groups, bidders);
        Self { pairs, largest_set, energy }
    }

    /// The bidders that are in a pair.
    pub(super) fn paired(&self) -> impl Iterator<Item = usize> {
        self.pairs.iter().flat_map(|pair| [pair.a, pair.b])
    }

    /// The bid of a pair at these prices.
    pub(super) fn bid(
        &self,
        pair: usize,
        market: &Market<'_>,
        bidders: &[Bidder<'_>],
        prices: Prices,
    ) -> PairBid {
        let pair = &self.pairs[pair];
        let (a, b) = (&bidders[pair.a], &bidders[pair.b]);
        let bids = [a, b].map(|bidder| market.bid(&market.classes[bidder.class], prices));
        let gpus_min = a.gpus_min.max(b.gpus_min);
        let mut best = (Demand::default(), if gpus_min > 0 { f64::NEG_INFINITY } else { 0.0 });
        let joule = self.joule(prices);
        for size in self.sizes(pair, a, b) {
            let speeds_min = [a.speed_min, b.speed_min];
            let Some((point, value)) = size.best_point([&bids[0], &bids[1]], joule, speeds_min)
            else {
                continue;
            };
            let gain = value - prices.gpu * f64::from(size.gpus);
            if gain > best.1 {
                best = (Demand { gpus: size.gpus.into(), watts: point.drawn_w }, gain);
            }
        }
        let gain = best.1 - bids[0].surplus - bids[1].surplus;
        let gpus = bids.iter().map(|bid| u64::from(bid.gpus)).sum();
        PairBid {
            // A pair that must stay together does so at any loss.
            surplus: if pair.keep.is_infinite() { pair.keep } else { gain + pair.keep },
            together: best.0,
            apart: Demand { gpus, watts: bids.iter().map(|bid| bid.watts).sum() },
        }
    }

    fn joule(&self, prices: Prices) -> JoulePrices {
        JoulePrices { energy: self.energy, power: prices.power }
    }

    /// The sizes that a pair may have.
    fn sizes<'p>(
        &self,
        pair: &'p Pair,
        a: &Bidder<'_>,
        b: &Bidder<'_>,
    ) -> impl Iterator<Item = &'p JointSize> {
        let permitted = permitted_sizes(a, b);
        let fits = move |size: &&JointSize| size.gpus <= self.largest_set && permitted(size.gpus);
        pair.curve.sizes.iter().filter(fits)
    }

    /// The value of each number of GPUs to a pair, and the cost of changes.
    pub(super) fn knapsack_item(
        &self,
        pair: &Pair,
        bidders: &[Bidder<'_>],
        bids: &[Bid],
        prices: Prices,
    ) -> Item {
        let both = [&bidders[pair.a], &bidders[pair.b]];
        let bids = both.map(|bidder| &bids[bidder.class]);
        let gpus_min = both[0].gpus_min.max(both[1].gpus_min);
        let speeds_min = both.map(|bidder| bidder.speed_min);
        let joule = self.joule(prices);
        let mut choices = vec![Choice { gpus: 0, value: unserved(gpus_min, prices) }];
        let mut changes =
            both.map(|bidder| ChangeCost { costs: vec![0.0], has_run: bidder.has_run() });
        for size in self.sizes(pair, both[0], both[1]) {
            let Some((point, _)) = size.best_point(bids, joule, speeds_min) else { continue };
            let value = point.value(bids, JoulePrices { power: 0.0, ..joule });
            choices.push(Choice { gpus: size.gpus, value });
            for (k, change) in changes.iter_mut().enumerate() {
                let earnings = bids[k].work_price * point.speeds[k];
                let restart_s = both[k].restart_s(size.restart_s);
                change.costs.push(change_cost(earnings, restart_s, bids[k].done_in_s));
            }
        }
        let present = both.map(|bidder| {
            let meant = bidder.job.intended_gpus().unwrap_or(0);
            choices.iter().position(|choice| choice.gpus == meant).unwrap_or(0)
        });
        let run_apart = run_on_different_gpus(both[0].job, both[1].job);
        let cost_from_now = |to: usize| {
            let each: f64 = (0..2).map(|k| changes[k].between(present[k], to)).sum();
            // Both have this size already, but on different GPUs: one of them moves.
            let one_moves = if run_apart && present == [to; 2] && to > 0 {
                changes[0].costs[to].min(changes[1].costs[to])
            } else {
                0.0
            };
            each + one_moves
        };
        let cost_from_now: Vec<f64> = (0..choices.len()).map(cost_from_now).collect();
        let closest = (0..choices.len())
            .min_by(|&x, &y| cost_from_now[x].total_cmp(&cost_from_now[y]))
            .unwrap_or(0);
        Item { choices, cost_from_now, present: closest, changes: changes.into() }
    }

    /// The same within a power limit: each size with each of its settings, less the cost of the change to it.
    /// With `kept` it has that size alone.
    pub(super) fn power_item(
        &self,
        pair: &Pair,
        bidders: &[Bidder<'_>],
        bids: &[Bid],
        prices: Prices,
        kept: Option<u32>,
    ) -> power_knapsack::Item {
        let both = [&bidders[pair.a], &bidders[pair.b]];
        let of_size = self.knapsack_item(pair, bidders, bids, prices);
        let cost = |gpus: u32| {
            let at = of_size.choices.iter().position(|choice| choice.gpus == gpus);
            at.map_or(0.0, |at| of_size.cost_from_now[at])
        };
        let bids = both.map(|bidder| &bids[bidder.class]);
        let speeds_min = both.map(|bidder| bidder.speed_min);
        let energy = JoulePrices { energy: self.energy, power: 0.0 };
        let mut item = power_knapsack::Item::default();
        for size in self.sizes(pair, both[0], both[1]) {
            if kept.is_some_and(|kept| kept != size.gpus) {
                continue;
            }
            let from = item.choices.len();
            let change = cost(size.gpus);
            item.choices.extend(size.fast_enough(speeds_min).map(|point| power_knapsack::Choice {
                gpus: size.gpus,
                watts: point.drawn_w,
                value: point.value(bids, energy) - change,
                setting: point.setting,
            }));
            item.choices[from..].sort_by(|a, b| a.watts.total_cmp(&b.watts));
        }
        let present = of_size.choices[of_size.present].gpus;
        let setting = match &both[0].job.state {
            State::Running { setting, .. } => Some(*setting),
            State::Queued | State::Stopping { .. } => None,
        };
        let same = item.choices.iter().enumerate().filter(|(_, choice)| choice.gpus == present);
        let exact = same.clone().find(|(_, choice)| Some(choice.setting) == setting);
        item.present = exact.or_else(|| same.clone().next()).map(|(at, _)| at);
        let none = of_size.choices[0].value - of_size.cost_from_now[0];
        item.none = kept.is_none().then_some(none);
        item
    }

    /// The best setting of a pair on this many GPUs, its value, and the power that counts, watts.
    pub(super) fn setting(
        &self,
        pair: &Pair,
        bidders: &[Bidder<'_>],
        bids: &[Bid],
        gpus: u32,
    ) -> Option<(GpuSetting, f64, f64)> {
        let (a, b) = (&bidders[pair.a], &bidders[pair.b]);
        let size = pair.curve.sizes.iter().find(|size| size.gpus == gpus)?;
        let bids = [&bids[a.class], &bids[b.class]];
        let joule = JoulePrices { energy: self.energy, power: 0.0 };
        let (point, value) = size.best_point(bids, joule, [a.speed_min, b.speed_min])?;
        Some((point.setting, value, point.drawn_w))
    }
}

/// The bidder with the lower operating curve first.
fn ordered(a: usize, b: usize, bidders: &[Bidder<'_>]) -> (usize, usize) {
    if bidders[a].curve <= bidders[b].curve { (a, b) } else { (b, a) }
}

/// The bidders that may share, by arrival, in groups of equal ones; few bidders each in their own group.
fn groups(bidders: &[Bidder<'_>]) -> Vec<Vec<usize>> {
    let one_by_one = bidders.len() <= ONE_BY_ONE_MAX;
    let mut numbers: BTreeMap<(usize, i64, u64), usize> = BTreeMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, bidder) in bidders.iter().enumerate() {
        let memory_mib = bidder.job.memory_mib_max();
        let has_bounds = bidder.gpus_min > 0 || bidder.speed_min > 0.0;
        // A pair of which one job cannot stop could not be undone.
        let may_share = !bidder.job.facts.exclusive
            && bidder.job.facts.can_stop
            && may_share(bidder.job)
            && memory_mib.is_some();
        if !may_share || (has_bounds && !one_by_one) {
            continue;
        }
        let key = if one_by_one {
            (index, 0, 0)
        } else {
            (bidder.curve, bidder.work.ln().round() as i64, memory_mib.unwrap_or(0))
        };
        if !numbers.contains_key(&key) && groups.len() >= GROUPS_MAX {
            continue;
        }
        let group = *numbers.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    groups
}

/// Pairs that run on the same GPUs and stay there, or that are being moved from there with their sizes.
fn co_tenants(bidders: &[Bidder<'_>], moved: &BTreeSet<JobKey>) -> Vec<(usize, usize)> {
    let mut first_on: BTreeMap<&GpuSet, usize> = BTreeMap::new();
    let mut pairs = Vec::new();
    for (index, bidder) in bidders.iter().enumerate() {
        if bidder.job.facts.can_stop
            && !bidder.job.facts.exclusive
            && !moved.contains(&bidder.key)
            && let Some(set) = bidder.job.state.gpus()
            && bidder.job.intended_gpus() == Some(set.gpu_count())
            && let Some(first) = first_on.insert(set, index)
        {
            pairs.push((first, index));
        }
    }
    pairs
}

/// The sizes that a pair may have: that of a job that has not settled, or any.
fn permitted_sizes(a: &Bidder<'_>, b: &Bidder<'_>) -> impl Fn(u32) -> bool + use<> {
    let (least, most) = (a.gpus_min.max(b.gpus_min), a.gpus_max.min(b.gpus_max));
    let held = a.held.or(b.held);
    move |gpus| (least..=most).contains(&gpus) && held.is_none_or(|size| size == gpus)
}

/// Whether two jobs are co-tenants of which one has not settled. They stay together.
fn held_together(a: &Bidder<'_>, b: &Bidder<'_>) -> bool {
    (a.held.is_some() || b.held.is_some())
        && a.job.state.gpus().is_some()
        && a.job.state.gpus() == b.job.state.gpus()
}

fn run_on_different_gpus(a: &Job, b: &Job) -> bool {
    match (&a.state, &b.state) {
        (State::Running { on, .. }, State::Running { on: other, .. }) => on != other,
        _ => false,
    }
}

/// Takes candidates in order; each bidder is in at most one pair.
fn match_greedily(
    candidates: &[Candidate],
    groups: &[Vec<usize>],
    bidders: &[Bidder<'_>],
) -> Vec<Pair> {
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut pairs = Vec::new();
    let mut add = |a: usize, b: usize, candidate: &Candidate, taken: &mut BTreeSet<usize>| {
        // A group was evaluated by its first member only.
        if were_parted(bidders[a].job, bidders[b].job) {
            return;
        }
        taken.extend([a, b]);
        let (a, b) = ordered(a, b, bidders);
        pairs.push(Pair { a, b, curve: Arc::clone(&candidate.curve), keep: candidate.keep });
    };
    for candidate in candidates {
        match candidate.kind {
            CandidateKind::CoTenants => {
                if !taken.contains(&candidate.a) && !taken.contains(&candidate.b) {
                    add(candidate.a, candidate.b, candidate, &mut taken);
                }
            }
            CandidateKind::Groups(i, j) => {
                let free = |group: &[usize], taken: &BTreeSet<usize>| -> Vec<usize> {
                    group.iter().filter(|member| !taken.contains(member)).copied().collect()
                };
                let one = free(&groups[i], &taken);
                if i == j {
                    for two in one.chunks_exact(2) {
                        add(two[0], two[1], candidate, &mut taken);
                    }
                } else {
                    for (a, b) in one.into_iter().zip(free(&groups[j], &taken)) {
                        add(a, b, candidate, &mut taken);
                    }
                }
            }
        }
    }
    pairs
}

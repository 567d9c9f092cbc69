//! Who shares GPUs with whom: the pairs that save most at the present price of a GPU-second.
//!
//! A pair's surplus is what both earn on the same GPUs, less energy and the price of the GPUs, less
//! what each would gain on its own. Pairs are made by surplus, the greatest first; matchings that are
//! truly the best save hardly more. Mates are kept unless others save clearly more ([`KEEP`]).
//!
//! Both get the same GPUs and setting. Surfaces say how fast each runs beside the other as the site
//! sets the cards; at another clock it is slowed by its clock and by its neighbour, each as if the
//! other were not there, and the pair's power above idle falls as theirs alone does.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::policies::colocation_trial::{may_share, were_parted};
use crate::policies::wattle::Supply;
use crate::policies::wattle::bidders::{Trader, change};
use crate::policies::wattle::knapsack::{MUST, Moves, Opt, Wish};
use crate::policies::wattle::market::{Bid, Market};
use crate::policies::wattle::upper_envelope::Shape;
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::expected_on;
use crate::state::operating_points::OperatingPoint;

/// Up to so many jobs are paired one by one; more are taken by kind and by work left.
const ONE_BY_ONE_MAX: usize = 200;
/// So many groups of jobs are looked at, at most.
const GROUPS_MAX: usize = 256;
/// What staying together counts for, s/s.
const KEEP: f64 = 0.1;
/// Two that run no faster together than in turns, by the sum of their relative speeds, never share.
const SUM_MIN: f64 = 1.0;

/// Two that share.
pub(super) struct Pair {
    /// Traders; the first is of the lower shape.
    pub(super) a: usize,
    pub(super) b: usize,
    joint: usize,
    /// What staying together counts for, s/s.
    keep: f64,
}

/// What two do at a price of a GPU-second: together, or each for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stance {
    /// What being together gains over being apart, s/s.
    pub(super) surplus: f64,
    /// GPUs that they take together, and apart.
    pub(super) together: u64,
    pub(super) apart: u64,
}

impl Stance {
    pub(super) fn share(&self) -> bool {
        self.surplus > 0.0
    }

    /// GPUs that they take the better way.
    pub(super) fn wanted(&self) -> u64 {
        if self.share() { self.together } else { self.apart }
    }
}

impl Pair {
    /// The size that both keep: they were put together at this very instant.
    pub(super) fn fresh(&self, traders: &[Trader<'_>]) -> Option<u32> {
        traders[self.a].fresh.or(traders[self.b].fresh)
    }
}

/// What two shapes do together.
struct Joint {
    sizes: Vec<JointSize>,
}

struct JointSize {
    gpus: u32,
    restart_s: f64,
    ways: Vec<Together>,
    /// The greatest speeds of any way, and the least cost.
    fastest: [f64; 2],
    cheapest: f64,
}

struct Together {
    speeds: [f64; 2],
    cost: f64,
    setting: GpuSetting,
}

/// All pairs.
pub(super) struct Pairing {
    pub(super) pairs: Vec<Pair>,
    joints: Vec<Joint>,
}

/// Jobs that are paired alike.
struct Group {
    /// Traders, by arrival.
    members: Vec<usize>,
}

impl Pairing {
    /// The pairs for the present price, where `bids` are what every lot would do alone.
    pub(super) fn of(
        input: PlanningInput<'_>,
        supply: &Supply<'_>,
        market: &Market<'_>,
        traders: &[Trader<'_>],
        moved: &BTreeSet<JobKey>,
        bids: &[Bid],
        price: f64,
    ) -> Self {
        let mut pairing = Self { pairs: Vec::new(), joints: Vec::new() };
        if input.limits.tenants_max < 2 {
            return pairing;
        }
        let groups = groups(traders);
        let mut known: BTreeMap<(usize, usize), Option<usize>> = BTreeMap::new();
        let mut offers: Vec<Offer> = Vec::new();
        let mut offer = |a: usize, b: usize, keep: f64, joints: &mut Vec<Joint>| -> Option<Offer> {
            let (a, b) = if traders[a].shape <= traders[b].shape { (a, b) } else { (b, a) };
            let (one, two) = (&traders[a], &traders[b]);
            if were_parted(one.job, two.job) {
                return None;
            }
            let memory = one.job.memory_mib_max()? + two.job.memory_mib_max()?;
            if memory > supply.memory_mib {
                return None;
            }
            let joint = (*known.entry((one.shape, two.shape)).or_insert_with(|| {
                let shapes = [&market.shapes[one.shape], &market.shapes[two.shape]];
                let most = supply.blocks.largest_set();
                let joint = joint(
                    shapes,
                    [one.job, two.job],
                    supply.charge,
                    input.limits.price_now(),
                    most,
                );
                joints.push(joint?);
                Some(joints.len() - 1)
            }))?;
            let both = [&bids[one.lot], &bids[two.lot]];
            let alone = both[0].surplus + both[1].surplus;
            let floor = one.floor.max(two.floor);
            // The most that any size gains; only one that could be better yet is looked into.
            let mut together = alone;
            for size in joints[joint].sizes.iter().filter(|size| size.gpus >= floor) {
                let rent = price * f64::from(size.gpus);
                if size.worth_at_most(both) - rent > together
                    && let Some((_, worth)) = size.best(both, [one.need, two.need])
                {
                    together = together.max(worth - rent);
                }
            }
            let keep = if are_fresh(one, two) { f64::INFINITY } else { keep };
            let surplus = if keep.is_infinite() { keep } else { together - alone + keep };
            let sound = (alone.is_finite() || keep.is_infinite()) && surplus > 0.0;
            sound.then_some(Offer { surplus, keep, a, b, joint, who: Who::Mates })
        };
        let joints = &mut pairing.joints;
        for (a, b) in mates(traders, moved) {
            offers.extend(offer(a, b, KEEP, joints));
        }
        for (i, one) in groups.iter().enumerate() {
            for (j, two) in groups.iter().enumerate().skip(i) {
                let a = one.members[0];
                let b = two.members[usize::from(i == j).min(two.members.len() - 1)];
                if a != b
                    && let Some(found) = offer(a, b, 0.0, joints)
                {
                    offers.push(Offer { who: Who::Groups(i, j), ..found });
                }
            }
        }
        offers.sort_by(|x, y| y.surplus.total_cmp(&x.surplus).then((x.a, x.b).cmp(&(y.a, y.b))));
        pairing.pairs = matched(&offers, &groups, traders);
        pairing
    }

    /// The traders that share.
    pub(super) fn paired(&self) -> impl Iterator<Item = usize> {
        self.pairs.iter().flat_map(|pair| [pair.a, pair.b])
    }

    /// What two would do at that price.
    pub(super) fn stance(
        &self,
        pair: usize,
        market: &Market<'_>,
        traders: &[Trader<'_>],
        price: f64,
    ) -> Stance {
        let pair = &self.pairs[pair];
        let (a, b) = (&traders[pair.a], &traders[pair.b]);
        let bids = [a, b].map(|trader| market.bid(&market.lots[trader.lot], price));
        let floor = a.floor.max(b.floor);
        let mut best = (0, if floor > 0 { f64::NEG_INFINITY } else { 0.0 });
        for size in self.joints[pair.joint].sizes.iter().filter(|size| size.gpus >= floor) {
            let Some((_, worth)) = size.best([&bids[0], &bids[1]], [a.need, b.need]) else {
                continue;
            };
            let gain = worth - price * f64::from(size.gpus);
            if gain > best.1 {
                best = (size.gpus, gain);
            }
        }
        let gains = best.1 - bids[0].surplus - bids[1].surplus;
        Stance {
            // Whatever they lose by it, where neither has anything to gain.
            surplus: if pair.keep.is_infinite() { pair.keep } else { gains + pair.keep },
            together: u64::from(best.0),
            apart: u64::from(bids[0].gpus) + u64::from(bids[1].gpus),
        }
    }

    /// What each number of GPUs is worth to a pair, and what changes cost.
    pub(super) fn wish(
        &self,
        pair: &Pair,
        traders: &[Trader<'_>],
        bids: &[Bid],
        price: f64,
    ) -> Wish {
        let both = [&traders[pair.a], &traders[pair.b]];
        let floor = both[0].floor.max(both[1].floor);
        let none = if floor > 0 { -MUST * (1.0 + price) } else { 0.0 };
        let mut item = vec![Opt { gpus: 0, worth: none }];
        let bid = both.map(|trader| &bids[trader.lot]);
        let mut moves = both.map(|trader| Moves { cost: vec![0.0], has_run: trader.has_run() });
        for size in self.joints[pair.joint].sizes.iter().filter(|size| size.gpus >= floor) {
            let need = both.map(|trader| trader.need);
            let Some((way, worth)) = size.best(bid, need) else { continue };
            item.push(Opt { gpus: size.gpus, worth });
            for (k, moves) in moves.iter_mut().enumerate() {
                let earned = bid[k].work_price * way.speeds[k];
                moves.cost.push(change(earned, size.restart_s, bid[k].done_in_s));
            }
        }
        let has = both.map(|trader| {
            let meant = trader.job.gpus_meant().unwrap_or(0);
            item.iter().position(|option| option.gpus == meant).unwrap_or(0)
        });
        let apart = are_apart(both[0].job, both[1].job);
        let from_now: Vec<f64> = (0..item.len())
            .map(|to| {
                let each: f64 = (0..2).map(|k| moves[k].between(has[k], to)).sum();
                // Both have it already, but elsewhere: one of them moves.
                let one = if apart && has == [to; 2] && to > 0 {
                    moves[0].cost[to].min(moves[1].cost[to])
                } else {
                    0.0
                };
                each + one
            })
            .collect();
        let stay =
            (0..item.len()).min_by(|&x, &y| from_now[x].total_cmp(&from_now[y])).unwrap_or(0);
        Wish { item, from_now, stay, moves: moves.into() }
    }

    /// The best setting of a pair on so many GPUs, and what it is worth.
    pub(super) fn setting(
        &self,
        pair: &Pair,
        traders: &[Trader<'_>],
        bids: &[Bid],
        gpus: u32,
    ) -> Option<(GpuSetting, f64)> {
        let (a, b) = (&traders[pair.a], &traders[pair.b]);
        let size = self.joints[pair.joint].sizes.iter().find(|size| size.gpus == gpus)?;
        let best = size.best([&bids[a.lot], &bids[b.lot]], [a.need, b.need])?;
        Some((best.0.setting, best.1))
    }
}

impl JointSize {
    fn new(gpus: u32, restart_s: f64, ways: Vec<Together>) -> Self {
        let fastest = [0, 1].map(|k| ways.iter().map(|way| way.speeds[k]).fold(0.0, f64::max));
        let cheapest = ways.iter().map(|way| way.cost).fold(f64::INFINITY, f64::min);
        Self { gpus, restart_s, ways, fastest, cheapest }
    }

    /// No way is worth more, at the prices of both jobs' work.
    fn worth_at_most(&self, bids: [&Bid; 2]) -> f64 {
        let earned: f64 = (0..2).map(|k| bids[k].work_price * self.fastest[k]).sum();
        earned - self.cheapest
    }

    /// The way that is worth most, at the prices of both jobs' work.
    fn best(&self, bids: [&Bid; 2], need: [f64; 2]) -> Option<(&Together, f64)> {
        let enough = |way: &&Together| way.speeds[0] >= need[0] && way.speeds[1] >= need[1];
        let worth = |way: &Together| {
            bids[0].work_price * way.speeds[0] + bids[1].work_price * way.speeds[1] - way.cost
        };
        let worths = self.ways.iter().filter(enough).map(|way| (way, worth(way)));
        worths.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

/// Two that could share, and what that saves.
struct Offer {
    surplus: f64,
    /// What of it is that they stay together.
    keep: f64,
    a: usize,
    b: usize,
    joint: usize,
    who: Who,
}

#[derive(Clone, Copy)]
enum Who {
    /// Two that share already.
    Mates,
    /// Any of one group with any of another.
    Groups(usize, usize),
}

/// Who may share, in groups of alike ones, or each for itself where there are few.
fn groups(traders: &[Trader<'_>]) -> Vec<Group> {
    let one_by_one = traders.len() <= ONE_BY_ONE_MAX;
    let mut numbers: BTreeMap<(usize, i64, u64), usize> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (index, trader) in traders.iter().enumerate() {
        let memory = trader.job.memory_mib_max();
        let bound = trader.floor > 0 || trader.need > 0.0;
        // Who cannot stop could not be parted again.
        let may = !trader.job.facts.exclusive
            && trader.job.facts.can_stop
            && trader.fresh.is_none()
            && may_share(trader.job)
            && memory.is_some();
        if !may || (bound && !one_by_one) {
            continue;
        }
        let key = if one_by_one {
            (index, 0, 0)
        } else {
            (trader.shape, trader.work.ln().round() as i64, memory.unwrap_or(0))
        };
        if !numbers.contains_key(&key) && groups.len() >= GROUPS_MAX {
            continue;
        }
        let group = *numbers.entry(key).or_insert_with(|| {
            groups.push(Group { members: Vec::new() });
            groups.len() - 1
        });
        groups[group].members.push(index);
    }
    groups
}

/// Those that run on the very same GPUs and stay there, two and two; or that are being moved from
/// there with the sizes they have: on their way they are still who they were.
fn mates(traders: &[Trader<'_>], moved: &BTreeSet<JobKey>) -> Vec<(usize, usize)> {
    let mut on: BTreeMap<&crate::state::gpu_set::GpuSet, usize> = BTreeMap::new();
    let mut mates = Vec::new();
    for (index, trader) in traders.iter().enumerate() {
        if trader.job.facts.can_stop
            && !trader.job.facts.exclusive
            && !moved.contains(&trader.key)
            && let Some(set) = trader.job.state.gpus()
            && trader.job.gpus_meant() == Some(set.gpu_count())
            && let Some(first) = on.insert(set, index)
        {
            mates.push((first, index));
        }
    }
    mates
}

/// Mates that were put together at this very instant: they stay so.
fn are_fresh(a: &Trader<'_>, b: &Trader<'_>) -> bool {
    (a.fresh.is_some() || b.fresh.is_some()) && a.job.state.gpus() == b.job.state.gpus()
}

/// Both run, and not on the same GPUs.
fn are_apart(a: &Job, b: &Job) -> bool {
    match (&a.state, &b.state) {
        (State::Running { on, .. }, State::Running { on: other, .. }) => on != other,
        _ => false,
    }
}

/// The best offers first, nobody twice.
fn matched(offers: &[Offer], groups: &[Group], traders: &[Trader<'_>]) -> Vec<Pair> {
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut pairs = Vec::new();
    let mut pair = |a: usize, b: usize, offer: &Offer, taken: &mut BTreeSet<usize>| {
        // A group has been asked about by one of it.
        if were_parted(traders[a].job, traders[b].job) {
            return;
        }
        taken.extend([a, b]);
        let (a, b) = if traders[a].shape <= traders[b].shape { (a, b) } else { (b, a) };
        pairs.push(Pair { a, b, joint: offer.joint, keep: offer.keep });
    };
    for offer in offers {
        match offer.who {
            Who::Mates => {
                if !taken.contains(&offer.a) && !taken.contains(&offer.b) {
                    pair(offer.a, offer.b, offer, &mut taken);
                }
            }
            Who::Groups(i, j) => {
                let free = |group: &Group, taken: &BTreeSet<usize>| -> Vec<usize> {
                    group.members.iter().filter(|m| !taken.contains(m)).copied().collect()
                };
                let one = free(&groups[i], &taken);
                if i == j {
                    for two in one.chunks_exact(2) {
                        pair(two[0], two[1], offer, &mut taken);
                    }
                } else {
                    for (a, b) in one.into_iter().zip(free(&groups[j], &taken)) {
                        pair(a, b, offer, &mut taken);
                    }
                }
            }
        }
    }
    pairs
}

/// What two jobs do together on every size that both may have; `None` where none is known to pay.
fn joint(
    shapes: [&Shape<'_>; 2],
    jobs: [&Job; 2],
    charge: Charge,
    joule: f64,
    most: u32,
) -> Option<Joint> {
    let mut sizes = Vec::new();
    let kind = &shapes[0].menu.gpu_type;
    for size in shapes[0].sizes.iter().filter(|size| size.gpus <= most) {
        let gpus = size.gpus;
        let choices = shapes.map(|shape| shape.menu.with_gpus(gpus));
        let Some(nodes) = choices[0].first().map(|choice| choice.nodes) else { continue };
        let beside = [(jobs[0], jobs[1]), (jobs[1], jobs[0])]
            .map(|(job, other)| expected_on(job, kind, gpus, nodes, &[other]));
        let [Some(a), Some(b)] = beside else { continue };
        let slowed = [a.relative_speed.mean, b.relative_speed.mean];
        let power_w = f64::midpoint(a.gpu_power_w.mean, b.gpu_power_w.mean);
        let sound = slowed.iter().all(|s| s.is_finite() && *s > 0.0) && power_w.is_finite();
        if !sound || slowed[0] + slowed[1] <= SUM_MIN {
            continue;
        }
        let usual = shapes.map(|shape| shape.menu.choice(gpus, GpuSetting::DEFAULT));
        let [Some(usual_a), Some(usual_b)] = usual else { continue };
        let above = |choice: &OperatingPoint| (choice.gpu_power_w - charge.idle_w()).max(1.0);
        let mut ways = Vec::new();
        for one in choices[0] {
            let Some(two) = shapes[1].menu.choice(gpus, one.setting) else { continue };
            let falls = f64::midpoint(above(one) / above(usual_a), above(two) / above(usual_b));
            let gpu_power_w = charge.idle_w() + (power_w - charge.idle_w()) * falls;
            let speeds = [
                slowed[0] * one.steps_per_s / shapes[0].unit,
                slowed[1] * two.steps_per_s / shapes[1].unit,
            ];
            let cost = joule * charge.watts(&OperatingPoint { gpu_power_w, ..*one });
            ways.push(Together { speeds, cost, setting: one.setting });
        }
        if !ways.is_empty() {
            sizes.push(JointSize::new(gpus, size.restart_s, ways));
        }
    }
    (!sizes.is_empty()).then_some(Joint { sizes })
}

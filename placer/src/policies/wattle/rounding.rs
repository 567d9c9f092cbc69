//! Rounding to blocks: the sizes and settings of all jobs and pairs, and the targets that follow from them.

use std::collections::BTreeMap;

use wattle_common::job::GpuSetting;

use crate::allocation::transition::Target;
use crate::plan::reason::Reason;
use crate::policies::wattle::bidders::{Bidder, knapsack_item, power_item};
use crate::policies::wattle::knapsack::{UnusedGpuCost, solve};
use crate::policies::wattle::local_limits::LocalLimits;
use crate::policies::wattle::market::{Bid, Market};
use crate::policies::wattle::pairing::{Pair, Pairing};
use crate::policies::wattle::power_knapsack;
use crate::policies::wattle::power_supply::PowerSupply;
use crate::policies::wattle::prices::Prices;
use crate::policies::wattle::upper_envelope::{CurvePoint, SizeCurve};
use crate::policies::wattle::{Supply, stated_power_price};
use crate::state::job::State;
use crate::state::job_forecast::is_unmeasured;

/// A job's setting is kept if the best one is worth no more than this share more.
const SETTING_TOLERANCE: f64 = 0.001;

/// The cleared market of one GPU type, to be rounded.
pub(super) struct Rounding<'t, 'a> {
    pub(super) supply: &'t Supply<'a>,
    pub(super) bidders: &'t [Bidder<'a>],
    pub(super) market: &'t Market<'a>,
    pub(super) pairing: &'t Pairing,
    pub(super) bids: &'t [Bid],
    pub(super) prices: Prices,
    /// The limits of feeders and nodes, where there are any.
    pub(super) local: Option<&'t LocalLimits>,
}

/// What one job or pair gets.
#[derive(Clone, Copy, Debug)]
struct Allotted {
    /// Its index among bidders or pairs.
    index: usize,
    gpus: u32,
    setting: GpuSetting,
    /// The value of its work less the cost of energy, s/s.
    value: f64,
    /// The charge that counts within a power limit, watts.
    watts: f64,
}

/// What jobs and pairs get.
#[derive(Default)]
pub(super) struct Allotment {
    exclusive: Vec<Allotted>,
    pairs: Vec<Allotted>,
}

impl Allotment {
    /// Whether a job that has not settled gets another size.
    fn moves_held(&self, bidders: &[Bidder<'_>], pairs: &[Pair]) -> bool {
        let sizes = |count: usize, all: &[Allotted]| {
            let mut sizes = vec![0; count];
            all.iter().for_each(|each| sizes[each.index] = each.gpus);
            sizes
        };
        let moves = |held: Option<u32>, gpus: u32| held.is_some_and(|size| size != gpus);
        let mut alone = sizes(bidders.len(), &self.exclusive);
        let together = sizes(pairs.len(), &self.pairs);
        for (pair, &gpus) in pairs.iter().zip(&together) {
            (alone[pair.a], alone[pair.b]) = (gpus, gpus);
        }
        bidders.iter().zip(alone).any(|(bidder, gpus)| moves(bidder.held, gpus))
    }

    fn fits(&self, rounding: &Rounding<'_, '_>, power: &PowerSupply) -> bool {
        let all = || self.exclusive.iter().chain(&self.pairs);
        power.fits(all().map(|each| each.gpus).sum(), all().map(|each| each.watts).sum())
            && self.fits_local(rounding, power.share_w())
    }

    /// Whether the jobs that keep their GPUs are within the limits of feeders and nodes.
    fn fits_local(&self, rounding: &Rounding<'_, '_>, share_w: f64) -> bool {
        let Some(local) = rounding.local else { return true };
        let mut left_w = local.left_w.clone();
        let exclusive = self.exclusive.iter().map(|each| (each.index, each));
        let pairs = self.pairs.iter().map(|each| (rounding.pairing.pairs[each.index].a, each));
        for (bidder, each) in exclusive.chain(pairs) {
            let parts = local.parts_of(rounding.bidders[bidder].key);
            let above_idle_w = each.watts - f64::from(each.gpus) * share_w;
            for (limit, part) in parts.of.into_iter().filter(|_| parts.gpus == each.gpus) {
                left_w[limit] -= part * above_idle_w;
            }
        }
        left_w.iter().all(|left_w| *left_w >= -1e-6)
    }
}

impl Rounding<'_, '_> {
    /// What every job and pair gets. A job that has not settled is not moved.
    pub(super) fn round_to_blocks(&self) -> Allotment {
        let not_moving = |round: &dyn Fn(bool) -> Allotment| {
            let allotment = round(false);
            if allotment.moves_held(self.bidders, &self.pairing.pairs) {
                return round(true);
            }
            allotment
        };
        let Some(power) = self.supply.power else { return not_moving(&|kept| self.round(kept)) };
        if self.prices.power <= 0.0 {
            let allotment = not_moving(&|kept| self.round(kept));
            if allotment.fits(self, &power) {
                return allotment;
            }
        }
        not_moving(&|kept| self.round_within(&power, kept))
    }

    /// The bidders that are not in a pair.
    fn unpaired(&self) -> Vec<usize> {
        let mut is_paired = vec![false; self.bidders.len()];
        self.pairing.paired().for_each(|index| is_paired[index] = true);
        (0..self.bidders.len()).filter(|&index| !is_paired[index]).collect()
    }

    /// Sizes without regard to power, each at the setting with the greatest surplus. Jobs that cannot stop keep
    /// their size; with `keep_held` so do jobs that have not settled.
    fn round(&self, keep_held: bool) -> Allotment {
        let Self { bidders, pairing, bids, prices, .. } = *self;
        let (mut exclusive, mut pairs) = (Vec::new(), Vec::new());
        let mut items = Vec::with_capacity(bidders.len());
        let mut open = Vec::with_capacity(bidders.len());
        for index in self.unpaired() {
            let bidder = &bidders[index];
            match bidder.fixed_size.or(bidder.held.filter(|_| keep_held)) {
                Some(gpus) => exclusive.push((index, gpus)),
                None => {
                    let curve = &self.market.curves[bidder.curve];
                    items.push(knapsack_item(bidder, curve, &bids[bidder.class], prices));
                    open.push(index);
                }
            }
        }
        let mut open_pairs = Vec::new();
        for (index, pair) in pairing.pairs.iter().enumerate() {
            match pair.held(bidders).filter(|_| keep_held) {
                Some(gpus) => pairs.push((index, gpus)),
                None => {
                    items.push(pairing.knapsack_item(pair, bidders, bids, prices));
                    open_pairs.push(index);
                }
            }
        }
        let kept = || exclusive.iter().chain(&pairs).map(|(_, gpus)| *gpus);
        let mut nodes = self.supply.nodes.clone();
        nodes.take_sets(kept());
        let gpus = self.supply.free.saturating_sub(kept().sum());
        let taken = self.supply.fixed + kept().sum::<u32>();
        let unused = self.supply.unused.map(|unused| UnusedGpuCost { taken, ..unused });
        let chosen = solve(&items, gpus, &nodes, unused);
        let mut sizes = items.iter().zip(&chosen).map(|(item, &choice)| item.choices[choice].gpus);
        exclusive.extend(open.into_iter().zip(sizes.by_ref()));
        pairs.extend(open_pairs.into_iter().zip(sizes));
        Allotment {
            exclusive: exclusive.into_iter().filter_map(|each| self.exclusive(each)).collect(),
            pairs: pairs.into_iter().filter_map(|each| self.pair(each)).collect(),
        }
    }

    /// A job with this many GPUs at its best setting. `None` for no GPUs.
    fn exclusive(&self, (index, gpus): (usize, u32)) -> Option<Allotted> {
        let bidder = &self.bidders[index];
        let curve = &self.market.curves[bidder.curve];
        let size = curve.sizes.iter().find(|size| size.gpus == gpus)?;
        let (work_price, energy) =
            (self.bids[bidder.class].work_price, curve.joule(self.prices).energy);
        let best = size.best_point(work_price, energy, bidder.speed_min)?;
        let point = setting_to_use(size, best, (work_price, energy), bidder);
        let (value, watts) = (best.value(work_price, energy), point.watts);
        Some(Allotted { index, gpus, setting: point.setting, value, watts })
    }

    /// A pair with this many GPUs at its best setting. `None` for no GPUs.
    fn pair(&self, (index, gpus): (usize, u32)) -> Option<Allotted> {
        let pair = &self.pairing.pairs[index];
        let (setting, value, watts) = self.pairing.setting(pair, self.bidders, self.bids, gpus)?;
        Some(Allotted { index, gpus, setting, value, watts })
    }

    /// Sizes and settings within the power. Jobs that cannot stop keep their size; with `keep_held` so do jobs
    /// that have not settled.
    fn round_within(&self, power: &PowerSupply, keep_held: bool) -> Allotment {
        let Self { bidders, pairing, bids, prices, .. } = *self;
        let unpaired = self.unpaired();
        let parts_of = |index: usize| {
            self.local.map(|local| local.parts_of(bidders[index].key)).unwrap_or_default()
        };
        let mut items = power_knapsack::Items::default();
        // The jobs of a class that wait for their first start have the same choices.
        let mut waiting: BTreeMap<(usize, bool), usize> = BTreeMap::new();
        for &index in &unpaired {
            let bidder = &bidders[index];
            let kept = bidder.fixed_size.or(bidder.held.filter(|_| keep_held));
            let kind = (bidder.class, is_unmeasured(bidder.job));
            let may_share = kept.is_none() && bidder.awaits_first_start();
            if let Some(&known) = waiting.get(&kind).filter(|_| may_share) {
                items.add_another(known);
                continue;
            }
            let curve = &self.market.curves[bidder.curve];
            let item = power_item(bidder, curve, &bids[bidder.class], prices, kept);
            let added = items.add(power_knapsack::Item { parts: parts_of(index), ..item });
            if may_share {
                waiting.insert(kind, added);
            }
        }
        for pair in &pairing.pairs {
            let kept = pair.held(bidders).filter(|_| keep_held);
            let item = pairing.power_item(pair, bidders, bids, prices, kept);
            items.add(power_knapsack::Item { parts: parts_of(pair.a), ..item });
        }
        let (gpus, nodes) = (self.supply.free, &self.supply.nodes);
        let left_w = self.local.map_or(&[][..], |local| &local.left_w);
        let chosen = power_knapsack::solve(&items, gpus, nodes, (power, left_w), prices);
        let mut allotted = items.iter().zip(&chosen).map(|(item, &choice)| {
            let power_knapsack::Choice { gpus, watts, value, setting } = item.choices[choice?];
            Some(Allotted { index: 0, gpus, setting, value, watts })
        });
        let exclusive = unpaired.iter().zip(allotted.by_ref());
        let exclusive = exclusive.filter_map(|(&index, each)| Some(Allotted { index, ..each? }));
        let exclusive = exclusive.collect();
        let pairs = allotted.enumerate();
        let pairs = pairs.filter_map(|(index, each)| Some(Allotted { index, ..each? })).collect();
        Allotment { exclusive, pairs }
    }

    /// The targets of these sizes and settings.
    pub(super) fn emit_targets(&self, allotment: &Allotment) -> Vec<Target> {
        let target = |bidders: &[usize], each: &Allotted| {
            let Allotted { gpus, setting, value, .. } = *each;
            let gpu_price = self.prices.gpu;
            let shared_w = self.supply.power.map_or(0.0, |power| power.charged_w());
            let power_price = stated_power_price(self.prices.power, self.bidders.len(), shared_w);
            let of = bidders.iter().map(|&index| &self.bidders[index]);
            let is_only_size = of.clone().all(|bidder| bidder.job.facts.request.is_one_size());
            let reason = Reason::Market { gpus, is_only_size, value, gpu_price, power_price };
            let jobs = of.map(|bidder| bidder.key).collect();
            Target { jobs, gpus, gpu_type: self.supply.gpu_type.to_owned(), setting, reason }
        };
        let exclusive = allotment.exclusive.iter().map(|each| target(&[each.index], each));
        let paired = allotment.pairs.iter().map(|each| {
            let pair = &self.pairing.pairs[each.index];
            target(&[pair.a, pair.b], each)
        });
        exclusive.chain(paired).collect()
    }
}

/// The best setting, or the job's present one if the best is hardly better at these values of work and prices of
/// a joule.
fn setting_to_use(
    size: &SizeCurve,
    best: CurvePoint,
    (work_price, joule): (f64, f64),
    bidder: &Bidder<'_>,
) -> CurvePoint {
    let State::Running { setting, .. } = &bidder.job.state else { return best };
    let value = |point: CurvePoint| point.value(work_price, joule);
    let mut fast_enough = size.points().filter(|point| point.speed >= bidder.speed_min);
    match fast_enough.find(|point| point.setting == *setting) {
        Some(present) if value(best) - value(present) <= SETTING_TOLERANCE * value(best).abs() => {
            present
        }
        _ => best,
    }
}

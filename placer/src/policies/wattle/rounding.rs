//! Rounding to blocks: the sizes of all jobs and pairs, and the targets that follow from them.

use wattle_common::job::GpuSetting;

use crate::allocation::transition::Target;
use crate::plan::reason::Reason;
use crate::policies::wattle::Supply;
use crate::policies::wattle::bidders::{Bidder, knapsack_item};
use crate::policies::wattle::knapsack::{UnusedGpuCost, solve};
use crate::policies::wattle::market::{Bid, Market};
use crate::policies::wattle::pairing::{Pair, Pairing};
use crate::policies::wattle::upper_envelope::Line;
use crate::state::job::State;

/// A job's setting is kept if the best one is worth no more than this share more.
const SETTING_TOLERANCE: f64 = 0.001;

/// The cleared market of one GPU type, to be rounded.
pub(super) struct Rounding<'t, 'a> {
    pub(super) supply: &'t Supply<'a>,
    pub(super) bidders: &'t [Bidder<'a>],
    pub(super) market: &'t Market<'a>,
    pub(super) pairing: &'t Pairing,
    pub(super) bids: &'t [Bid],
    pub(super) price: f64,
}

/// The numbers of GPUs of jobs and pairs, by index.
pub(super) struct Allotment {
    exclusive: Vec<(usize, u32)>,
    pairs: Vec<(usize, u32)>,
}

impl Allotment {
    /// Whether a job that has not settled gets another size.
    fn moves_held(&self, bidders: &[Bidder<'_>], pairs: &[Pair]) -> bool {
        let moves = |held: Option<u32>, gpus: u32| held.is_some_and(|size| size != gpus);
        self.exclusive.iter().any(|&(index, gpus)| moves(bidders[index].held, gpus))
            || self.pairs.iter().any(|&(index, gpus)| moves(pairs[index].held(bidders), gpus))
    }
}

impl Rounding<'_, '_> {
    /// The number of GPUs of every job and pair. A job that has not settled is not moved.
    pub(super) fn round_to_blocks(&self) -> Allotment {
        let allotment = self.round(false);
        if allotment.moves_held(self.bidders, &self.pairing.pairs) {
            return self.round(true);
        }
        allotment
    }

    /// Jobs that cannot stop keep their size; with `keep_held` so do jobs that have not
    /// settled.
    fn round(&self, keep_held: bool) -> Allotment {
        let Self { bidders, pairing, bids, price, .. } = *self;
        let mut is_paired = vec![false; bidders.len()];
        pairing.paired().for_each(|index| is_paired[index] = true);
        let mut allotment = Allotment { exclusive: Vec::new(), pairs: Vec::new() };
        let mut items = Vec::with_capacity(bidders.len());
        let mut open = Vec::with_capacity(bidders.len());
        for index in (0..bidders.len()).filter(|&index| !is_paired[index]) {
            let bidder = &bidders[index];
            match bidder.fixed_size.or(bidder.held.filter(|_| keep_held)) {
                Some(gpus) => allotment.exclusive.push((index, gpus)),
                None => {
                    let curve = &self.market.curves[bidder.curve];
                    items.push(knapsack_item(bidder, curve, &bids[bidder.class], price));
                    open.push(index);
                }
            }
        }
        let mut open_pairs = Vec::new();
        for (index, pair) in pairing.pairs.iter().enumerate() {
            match pair.held(bidders).filter(|_| keep_held) {
                Some(gpus) => allotment.pairs.push((index, gpus)),
                None => {
                    items.push(pairing.knapsack_item(pair, bidders, bids, price));
                    open_pairs.push(index);
                }
            }
        }
        let kept = || allotment.exclusive.iter().chain(&allotment.pairs).map(|(_, gpus)| *gpus);
        let mut nodes = self.supply.nodes.clone();
        nodes.take_sets(kept());
        let gpus = self.supply.free.saturating_sub(kept().sum());
        let taken = self.supply.fixed + kept().sum::<u32>();
        let unused = self.supply.unused.map(|unused| UnusedGpuCost { taken, ..unused });
        let chosen = solve(&items, gpus, &nodes, unused);
        let mut sizes = items.iter().zip(&chosen).map(|(item, &choice)| item.choices[choice].gpus);
        allotment.exclusive.extend(open.into_iter().zip(sizes.by_ref()));
        allotment.pairs.extend(open_pairs.into_iter().zip(sizes));
        allotment
    }

    /// The targets of these sizes, each at the setting with the greatest surplus.
    pub(super) fn emit_targets(&self, allotment: &Allotment) -> Vec<Target> {
        let gpu_price = self.price;
        let gpu_type = || self.supply.gpu_type.to_owned();
        let exclusive = allotment.exclusive.iter().filter_map(|&(index, gpus)| {
            let bidder = &self.bidders[index];
            let sizes = &self.market.curves[bidder.curve].sizes;
            let size = sizes.iter().find(|size| size.gpus == gpus)?;
            let work_price = self.bids[bidder.class].work_price;
            let best = size.best_point(work_price, bidder.speed_min)?;
            let setting = setting_to_use(&size.points, best, work_price, bidder);
            let reason = Reason::Market { gpus, value: best.at(work_price), gpu_price };
            Some(Target { jobs: vec![bidder.key], gpus, gpu_type: gpu_type(), setting, reason })
        });
        let paired = allotment.pairs.iter().filter_map(|&(index, gpus)| {
            let pair = &self.pairing.pairs[index];
            let (setting, value) = self.pairing.setting(pair, self.bidders, self.bids, gpus)?;
            let jobs = vec![self.bidders[pair.a].key, self.bidders[pair.b].key];
            let reason = Reason::Market { gpus, value, gpu_price };
            Some(Target { jobs, gpus, gpu_type: gpu_type(), setting, reason })
        });
        exclusive.chain(paired).collect()
    }
}

/// The best setting, or the job's present one if the best is hardly better.
fn setting_to_use(
    points: &[Line<GpuSetting>],
    best: &Line<GpuSetting>,
    work_price: f64,
    bidder: &Bidder<'_>,
) -> GpuSetting {
    let State::Running { setting, .. } = &bidder.job.state else { return best.label };
    let mut fast_enough = points.iter().filter(|point| point.slope >= bidder.speed_min);
    match fast_enough.find(|point| point.label == *setting) {
        Some(present)
            if best.at(work_price) - present.at(work_price)
                <= SETTING_TOLERANCE * best.at(work_price).abs() =>
        {
            present.label
        }
        _ => best.label,
    }
}

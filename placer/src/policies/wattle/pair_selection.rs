//! Phase 3, second part: which pairs remain once the market has cleared with them.
//!
//! Pairs are matched at the price that clears without pairs. Each pair frees GPUs, so the price falls and
//! further pairs gain less. Here every pair bids at every price either together or as two exclusive jobs,
//! whichever has the greater surplus, and the price is the least at which demand does not exceed supply.
//!
//! Identical pairs flip together at one price. Of the pairs that are indifferent at the clearing price,
//! those with the least surplus are split as long as GPUs are free; otherwise a cluster that is one job
//! short would be half empty.

use crate::policies::wattle::bidders::Bidder;
use crate::policies::wattle::market::{Market, PRICE_TOLERANCE, clear};
use crate::policies::wattle::pairing::{PairBid, Pairing};

/// A pair is indifferent if it would not share at a price lower by this share.
const INDIFFERENCE: f64 = 4.0 * PRICE_TOLERANCE;

impl Pairing {
    /// Keeps the pairs that gain at the clearing price and returns that price. Their jobs are subtracted
    /// from their classes in the market.
    pub(super) fn select_pairs(
        &mut self,
        market: &mut Market<'_>,
        bidders: &[Bidder<'_>],
        gpus: u32,
    ) -> f64 {
        for bidder in self.paired() {
            market.classes[bidders[bidder].class].jobs -= 1;
        }
        let classes = market.classes.len();
        let price = clear(gpus, classes + self.pairs.len(), |bidder, price| {
            match bidder.checked_sub(classes) {
                Some(pair) => self.bid(pair, market, bidders, price).demand(),
                None => market.demand(bidder, price),
            }
        });
        let bids: Vec<PairBid> =
            (0..self.pairs.len()).map(|pair| self.bid(pair, market, bidders, price)).collect();
        let by_classes: u64 = (0..classes).map(|class| market.demand(class, price)).sum();
        let demand = by_classes + bids.iter().map(PairBid::demand).sum::<u64>();
        let mut free = u64::from(gpus).saturating_sub(demand);
        let mut shares: Vec<bool> = bids.iter().map(PairBid::shares).collect();
        let just_below = price * (1.0 - INDIFFERENCE);
        let mut indifferent: Vec<usize> = (0..bids.len())
            .filter(|&pair| shares[pair])
            .filter(|&pair| !self.bid(pair, market, bidders, just_below).shares())
            .collect();
        indifferent.sort_by(|&x, &y| bids[x].surplus.total_cmp(&bids[y].surplus));
        for pair in indifferent {
            let added = bids[pair].gpus_apart.saturating_sub(bids[pair].gpus_together);
            if added <= free {
                free -= added;
                shares[pair] = false;
            }
        }
        let split = self.pairs.iter().zip(&shares).filter(|(_, shares)| !**shares);
        for bidder in split.flat_map(|(pair, _)| [pair.a, pair.b]) {
            market.classes[bidders[bidder].class].jobs += 1;
        }
        let mut shares = shares.into_iter();
        self.pairs.retain(|_| shares.next().unwrap_or(true));
        price
    }
}

//! Phase 3, second part: which pairs remain once the market has cleared with them.
//!
//! Pairs are matched at the price that clears without pairs. Each pair frees GPUs, so the price falls and
//! further pairs gain less. Here every pair bids at every price either together or as two exclusive jobs,
//! whichever has the greater surplus, and the prices are the least at which demand does not exceed supply.
//!
//! Identical pairs flip together at one price. Of the pairs that are indifferent at the clearing price,
//! those with the least surplus are split as long as GPUs are free; otherwise a cluster that is one job
//! short would be half empty.

use crate::policies::wattle::bidders::Bidder;
use crate::policies::wattle::clearing::{PRICE_TOLERANCE, clear};
use crate::policies::wattle::market::{Demand, Market, MarketSupply};
use crate::policies::wattle::pairing::{PairBid, Pairing};
use crate::policies::wattle::prices::Prices;

/// A pair is indifferent if it would not share at a price lower by this share.
const INDIFFERENCE: f64 = 4.0 * PRICE_TOLERANCE;

impl Pairing {
    /// Keeps the pairs that gain at the clearing prices and returns those prices. Their jobs are subtracted
    /// from their classes in the market. `last`: the prices to search from.
    pub(super) fn select_pairs(
        &mut self,
        market: &mut Market<'_>,
        bidders: &[Bidder<'_>],
        supply: MarketSupply,
        last: Prices,
    ) -> Prices {
        for bidder in self.paired() {
            market.classes[bidders[bidder].class].jobs -= 1;
        }
        let classes = market.classes.len();
        let demand = |bidder: usize, prices: Prices| match bidder.checked_sub(classes) {
            Some(pair) => self.bid(pair, market, bidders, prices).demand(),
            None => market.demand(bidder, prices),
        };
        let prices = clear(supply, last, classes + self.pairs.len(), demand);
        let bids: Vec<PairBid> =
            (0..self.pairs.len()).map(|pair| self.bid(pair, market, bidders, prices)).collect();
        let by_classes = (0..classes).map(|class| market.demand(class, prices));
        let demanded = by_classes.chain(bids.iter().map(PairBid::demand));
        let demanded = demanded.fold(Demand::default(), Demand::plus);
        let mut left = MarketSupply {
            gpus: u64::from(supply.gpus).saturating_sub(demanded.gpus) as u32,
            watts: supply.watts.map(|watts| (watts - demanded.watts).max(0.0)),
        };
        let mut shares: Vec<bool> = bids.iter().map(PairBid::shares).collect();
        let lower = |price: f64| price * (1.0 - INDIFFERENCE);
        let just_below = Prices { gpu: lower(prices.gpu), power: lower(prices.power) };
        let mut indifferent: Vec<usize> = (0..bids.len())
            .filter(|&pair| shares[pair])
            .filter(|&pair| !self.bid(pair, market, bidders, just_below).shares())
            .collect();
        indifferent.sort_by(|&x, &y| bids[x].surplus.total_cmp(&bids[y].surplus));
        for pair in indifferent {
            let (apart, together) = (bids[pair].apart, bids[pair].together);
            let added = apart.gpus.saturating_sub(together.gpus);
            if left.take(u32::try_from(added).unwrap_or(u32::MAX), apart.watts - together.watts) {
                shares[pair] = false;
            }
        }
        let split = self.pairs.iter().zip(&shares).filter(|(_, shares)| !**shares);
        for bidder in split.flat_map(|(pair, _)| [pair.a, pair.b]) {
            market.classes[bidders[bidder].class].jobs += 1;
        }
        let mut shares = shares.into_iter();
        self.pairs.retain(|_| shares.next().unwrap_or(true));
        prices
    }
}

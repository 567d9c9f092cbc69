//! Which of the pairs share after all: pairs are sought at the price that clears where nobody shares,
//! and every one that is made leaves GPUs to others, so that the price falls and the next saves less.
//!
//! So each pair is asked at every price whether it is still better than its two apart, and the price
//! is the least at which no more GPUs are wanted than there are. Pairs of like jobs change their mind
//! all at once: of those to whom it is all the same there, the ones that save least are parted as far
//! as there is room. Otherwise a cluster that is one job short would be half empty.

use crate::policies::wattle::bidders::Trader;
use crate::policies::wattle::market::{CLOSE, Market, clear};
use crate::policies::wattle::pairing::{Pairing, Stance};

/// To whom it is all the same at a price, it is so within a few times what the price is found to.
const ALL_THE_SAME: f64 = 4.0 * CLOSE;

impl Pairing {
    /// Keeps the pairs that are worth it at the price that clears, and says that price. In the market
    /// their jobs are counted off their lots.
    pub(super) fn settle(
        &mut self,
        market: &mut Market<'_>,
        traders: &[Trader<'_>],
        room: u32,
    ) -> f64 {
        for trader in self.paired() {
            market.lots[traders[trader].lot].jobs -= 1;
        }
        let lots = market.lots.len();
        let price =
            clear(room, lots + self.pairs.len(), |who, price| match who.checked_sub(lots) {
                Some(pair) => self.stance(pair, market, traders, price).wanted(),
                None => market.wanted(who, price),
            });
        let stances: Vec<Stance> =
            (0..self.pairs.len()).map(|pair| self.stance(pair, market, traders, price)).collect();
        let singles: u64 = (0..lots).map(|lot| market.wanted(lot, price)).sum();
        let wanted = singles + stances.iter().map(Stance::wanted).sum::<u64>();
        let mut left = u64::from(room).saturating_sub(wanted);
        let mut share: Vec<bool> = stances.iter().map(Stance::share).collect();
        let just_below = price * (1.0 - ALL_THE_SAME);
        let mut by_surplus: Vec<usize> = (0..stances.len())
            .filter(|&pair| share[pair])
            .filter(|&pair| !self.stance(pair, market, traders, just_below).share())
            .collect();
        by_surplus.sort_by(|&x, &y| stances[x].surplus.total_cmp(&stances[y].surplus));
        for pair in by_surplus {
            let more = stances[pair].apart.saturating_sub(stances[pair].together);
            if more <= left {
                left -= more;
                share[pair] = false;
            }
        }
        let parted = self.pairs.iter().zip(&share).filter(|(_, share)| !**share);
        for trader in parted.flat_map(|(pair, _)| [pair.a, pair.b]) {
            market.lots[traders[trader].lot].jobs += 1;
        }
        let mut share = share.into_iter();
        self.pairs.retain(|_| share.next().unwrap_or(true));
        price
    }
}

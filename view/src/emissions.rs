//! Emissions and cost of energy, with their source and the share of it that rests on a static value.

use wattle_common::messages::{GridStatus, IntensitySeries, LedgerEntry, Origin, PriceSeries};
use wattle_common::{Carbon, Energy, Timestamp};

use crate::intensity::mean_intensity;

/// Carbon intensity and electricity price of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Carbon intensity.
    pub intensity: Option<IntensitySeries>,
    /// Electricity price.
    pub prices: Option<PriceSeries>,
    /// Where the price comes from.
    pub price_source: Option<String>,
}

impl Rates {
    /// The rates of the budget's series and the status of the grid.
    #[must_use]
    pub fn new(intensity: Option<IntensitySeries>, grid: Option<GridStatus>) -> Self {
        let price_source = grid.as_ref().and_then(|grid| Some(grid.price.as_ref()?.source()));
        Self { intensity, prices: grid.and_then(|grid| grid.prices), price_source }
    }
}

/// Emissions and cost of an amount of energy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Emissions {
    /// Emissions of the energy whose intensity is known; absent: of none.
    pub carbon: Option<Carbon>,
    /// Energy whose intensity is known.
    pub carbon_energy: Energy,
    /// Part of it with the static value of the configuration, because no provider had one.
    pub static_energy: Energy,
    /// Cost of the energy whose price is known, in the currency; absent: of none.
    pub cost: Option<f64>,
}

/// The share of an interval in which a provider's series has the static value.
#[must_use]
pub fn static_share(series: &IntensitySeries, from: Timestamp, until: Timestamp) -> f64 {
    let second = |at: Timestamp| at.since(series.starts_at_us).as_secs_f64();
    let (from, until) = (second(from), second(until));
    if until <= from {
        return 0.0;
    }
    let ends = series.origins.iter().skip(1).map(|(at, _)| *at as f64).chain([f64::INFINITY]);
    let parts =
        series.origins.iter().zip(ends).filter(|((_, origin), _)| *origin == Origin::Static);
    let inside = |begin: f64, end: f64| (end.min(until) - begin.max(from)).max(0.0);
    parts.map(|((begin, _), end)| inside(*begin as f64, end)).sum::<f64>() / (until - from)
}

impl Emissions {
    /// Adds the part of an entry after `since`.
    pub fn add(&mut self, entry: &LedgerEntry, since: Timestamp, rates: &Rates) {
        let (from, until) = (entry.from_us.max(since), entry.until_us);
        let length = until.since(entry.from_us).as_secs_f64();
        if until <= from || length <= 0.0 {
            return;
        }
        let all = entry.gpus() + entry.energy_mj_host;
        let energy = all.scale(until.since(from).as_secs_f64() / length);
        let series = rates.intensity.as_ref();
        if let Some((series, mean)) =
            series.and_then(|s| Some((s, mean_intensity(s, from, until)?)))
        {
            self.carbon = Some(self.carbon.unwrap_or_default() + energy.carbon(mean));
            self.carbon_energy += energy;
            self.static_energy += energy.scale(static_share(series, from, until));
        }
        if let Some(price) = rates.prices.as_ref().and_then(|prices| prices.mean(from, until)) {
            self.cost = Some(self.cost.unwrap_or_default() + energy.as_kwh() * price);
        }
    }

    /// Share of the known emissions' energy with the static value.
    #[must_use]
    pub fn static_share(&self) -> f64 {
        if self.carbon_energy == Energy::ZERO {
            0.0
        } else {
            self.static_energy.ratio(self.carbon_energy)
        }
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::CarbonIntensity;
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn carbon_cost_and_the_static_share_are_by_time() {
        let at = Timestamp::from_s;
        let grams = CarbonIntensity::from_g_per_kwh;
        let intensity = IntensitySeries {
            name: "x".to_owned(),
            starts_at_us: at(0),
            steps: vec![(0, grams(100.0)), (1_800, grams(400.0))],
            period_s: 1_000_000,
            origins: vec![(0, Origin::Measured), (1_800, Origin::Static)],
        };
        let prices = PriceSeries { currency: "EUR".into(), steps: vec![(at(1_800), 200_000)] };
        let rates =
            Rates { intensity: Some(intensity.clone()), prices: Some(prices), price_source: None };
        let mut entry = testkit::ledger_entry("n0", at(0), at(3_600), Energy::from_j(3_600_000));
        entry.energy_mj_gpus.clear();
        let mut sum = Emissions::default();
        sum.add(&entry, at(0), &rates);
        assert_eq!(sum.carbon.map(|carbon| carbon.as_g().round() as u64), Some(250));
        assert!((sum.static_share() - 0.5).abs() < 1e-9, "{sum:?}");
        // The price is known for the second half only, whose mean counts.
        assert!((sum.cost.unwrap() - 0.2).abs() < 1e-9, "{sum:?}");
        assert!((static_share(&intensity, at(900), at(1_800))).abs() < 1e-9);
        let mut late = Emissions::default();
        late.add(&entry, at(1_800), &rates);
        assert_eq!(late.carbon.map(|carbon| carbon.as_g().round() as u64), Some(200));
    }
}

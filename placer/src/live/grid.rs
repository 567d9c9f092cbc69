//! Carbon intensity and electricity price of the configured providers, live.
//!
//! A read arrives as an event, like a report of a node. Its values become the series of the budget's record, so
//! budgets, carbon deferral, reports and pages use them as they use a file of the user. The series ends with the
//! constant of the configuration: a provider that is silent needs no event. The reads themselves run on threads
//! of their own ([`wattle_grid::poller`]).

use std::time::Duration;

use wattle_common::messages::budget::STEPS_MAX;
use wattle_common::messages::{
    GridStatus, IntensitySeries, Origin, Price, PriceSeries, SignalStatus,
};
use wattle_common::{CarbonIntensity, Timestamp};
use wattle_grid::config::{CarbonProvider, GridConfig};
use wattle_grid::{Chain, ChainConfig, Interval, Signal, SignalSeries};

use crate::live::{Action, Turn};
use crate::power::budget::{ForecastSource, Series};

/// The period of the series: it ends with a constant, which holds for ten years.
const PERIOD: Duration = Duration::from_secs(10 * 366 * 86_400);
const DAY_US: u64 = 86_400_000_000;
/// Step of the part of a day beyond a forecast.
const FILL_US: u64 = 1_800_000_000;

/// The signals with their sources.
pub(super) struct GridSignals {
    carbon: Option<Chain>,
    price: Option<Chain>,
    currency: String,
    /// Whether the status is to be stored.
    store: bool,
    /// When a source or an alarm may change without a read.
    look_at: Option<Timestamp>,
}

/// The chains of a configuration: of the carbon intensity, and of the price.
fn chains(config: &GridConfig) -> (Option<ChainConfig>, Option<ChainConfig>) {
    let label = |is_constant: bool, label: String| {
        if is_constant { "configuration".to_owned() } else { label }
    };
    let carbon = config.carbon.as_ref().map(|carbon| {
        let is_constant = carbon.provider == CarbonProvider::Static;
        ChainConfig {
            provider: label(is_constant, carbon.label()),
            accounting: carbon.accounting(),
            fallback: carbon.fallback_g_per_kwh,
            is_constant,
            alarm_after: Duration::from_secs(carbon.alarm_after_s),
        }
    });
    let price = config.price.as_ref().map(|price| ChainConfig {
        provider: label(price.file.is_none(), price.label()),
        accounting: None,
        fallback: price.fallback_per_kwh,
        is_constant: price.file.is_none(),
        alarm_after: Duration::from_secs(price.alarm_after_s),
    });
    (carbon, price)
}

/// The values of a stored series without those of the configuration; none if they are invalid.
fn known(series: &IntensitySeries) -> Vec<Interval> {
    let at = |s: u64| series.starts_at_us + Duration::from_secs(s);
    let ends = series.steps.iter().skip(1).map(|(from, _)| *from).chain([series.period_s]);
    let steps = series.steps.iter().zip(ends);
    let mut intervals = Vec::new();
    for ((from, intensity), until) in steps {
        let after = series.origins.partition_point(|(at, _)| at <= from);
        let origin = after.checked_sub(1).and_then(|i| series.origins.get(i));
        let Some(&(_, origin)) = origin.filter(|(_, origin)| *origin != Origin::Static) else {
            continue;
        };
        // One step may stand for many equal values.
        let (mut begin, value) = (*from, intensity.as_g_per_kwh());
        while begin < until && intervals.len() < STEPS_MAX {
            let end = until.min(begin.saturating_add(DAY_US / 1_000_000));
            intervals.push(Interval { from: at(begin), until: at(end), value, origin });
            begin = end;
        }
    }
    SignalSeries::new(Signal::Carbon, intervals).map(|series| series.intervals).unwrap_or_default()
}

/// The steps of a chain as the series of a budget.
fn series(name: String, chain: &Chain) -> IntensitySeries {
    let steps = chain.steps();
    let starts_at_us = steps.first().map_or(Timestamp::EPOCH, |step| step.from);
    let after = |at: Timestamp| at.since(starts_at_us).as_secs();
    let mut origins: Vec<(u64, Origin)> = Vec::new();
    for step in &steps {
        if origins.last().is_none_or(|(_, origin)| *origin != step.origin) {
            origins.push((after(step.from), step.origin));
        }
    }
    let last = steps.last().map_or(0, |step| after(step.from));
    let steps =
        steps.iter().map(|step| (after(step.from), CarbonIntensity::from_g_per_kwh(step.value)));
    let period_s = last + PERIOD.as_secs();
    IntensitySeries { name, starts_at_us, steps: steps.collect(), period_s, origins }
}

/// The forecast of a provider's series, else persistence. Beyond the forecast, the day before repeats.
pub(super) fn forecast(message: &IntensitySeries, actual: &Series) -> ForecastSource {
    let [.., (begins, Origin::Forecast), (ends, Origin::Static)] = message.origins[..] else {
        return ForecastSource::Persistence;
    };
    let us = |s: u64| s.saturating_mul(1_000_000);
    let from = message.starts_at_us + Duration::from_secs(begins);
    let length = us(ends.saturating_sub(begins));
    // A step before the forecast may hold into it.
    let ahead = message.steps.iter().filter(|(at, _)| *at > begins && *at < ends);
    let mut steps = vec![(0, actual.at(from))];
    steps.extend(ahead.map(|(at, value)| (us(at - begins), value.as_g_per_kwh())));
    let period = if length >= DAY_US {
        length / DAY_US * DAY_US
    } else {
        let before =
            |offset: u64| from + Duration::from_micros(offset) - Duration::from_micros(DAY_US);
        let mut offset = length.max(1);
        while offset < DAY_US {
            steps.push((offset, actual.at(before(offset))));
            offset = (offset / FILL_US + 1) * FILL_US;
        }
        DAY_US
    };
    steps.retain(|(at, _)| *at < period);
    Series::new(from, steps, period).map_or(ForecastSource::Persistence, ForecastSource::DayAhead)
}

impl GridSignals {
    pub(super) fn new(config: &GridConfig, now: Timestamp) -> Self {
        let (carbon, price) = chains(config);
        let chain = |config: ChainConfig| Chain::new(config, Vec::new(), None, now);
        let (carbon, price) = (carbon.map(chain), price.map(chain));
        let currency = config.price.as_ref().map(|price| price.currency.clone());
        let store = carbon.is_some() || price.is_some();
        let look_at = store.then_some(now);
        Self { carbon, price, currency: currency.unwrap_or_default(), store, look_at }
    }

    /// The provider of the carbon intensity, if one is configured.
    pub(super) fn carbon_provider(&self) -> Option<String> {
        self.carbon.as_ref().map(|chain| chain.status().provider)
    }

    /// When [`Self::look`] is due.
    pub(super) const fn look_at(&self) -> Option<Timestamp> {
        self.look_at
    }

    pub(super) fn store_again(&mut self) {
        self.store = self.carbon.is_some() || self.price.is_some();
    }

    /// Continues with the values that an earlier process has read: of its status, and of the intensity of its
    /// budget. Prices are in a file, which is read again at once.
    pub(super) fn restore(
        &mut self,
        turn: &mut Turn<'_>,
        config: &GridConfig,
        status: Option<&GridStatus>,
        stored: Option<&IntensitySeries>,
    ) {
        let (carbon, _) = chains(config);
        match carbon {
            Some(config) => {
                let before = status.and_then(|status| status.carbon.as_ref());
                // Values of another provider or zone are not continued.
                let before = before.filter(|before| before.provider == config.provider);
                let known = before.and(stored).map(known).unwrap_or_default();
                let read_at = before.and_then(|before| before.read_at_us).filter(|at| *at <= turn.now);
                self.carbon = Some(Chain::new(config, known, read_at, turn.now));
            }
            None if stored.is_some_and(|series| !series.origins.is_empty()) => turn.outbox.alarm(
                "the configuration has no [grid.carbon] any more: the last static carbon intensity of its \
                 provider stays in use; set another with `wattle budget set --carbon FILE`"
                    .to_owned(),
            ),
            None => {}
        }
    }

    /// A read of a provider has ended. Returns whether the carbon intensity may differ.
    pub(super) fn read(
        &mut self,
        now: Timestamp,
        signal: Signal,
        result: Result<Box<SignalSeries>, String>,
    ) -> bool {
        let chain = match signal {
            Signal::Carbon => &mut self.carbon,
            Signal::Price => &mut self.price,
        };
        let Some(chain) = chain else { return false };
        chain.read(now, result.map(|series| *series));
        self.store = true;
        self.look_at = Some(now);
        signal == Signal::Carbon
    }

    /// Follows values that end, and raises alarms, where they are due. Returns whether the carbon intensity
    /// differs.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.look_at.is_none_or(|at| turn.now < at) {
            return false;
        }
        let carbon_changed = self.carbon.as_mut().is_some_and(|chain| chain.look(turn.now));
        let price_changed = self.price.as_mut().is_some_and(|chain| chain.look(turn.now));
        self.store |= carbon_changed || price_changed;
        for alarm in self.chains().filter_map(|chain| chain.alarm(turn.now)) {
            turn.outbox.alarm(alarm);
        }
        self.look_at = self.chains().map(|chain| chain.changes_after(turn.now)).min();
        carbon_changed
    }

    /// The carbon intensity of the provider as the series of a budget; `None`: no provider is configured.
    pub(super) fn carbon_series(&self) -> Option<IntensitySeries> {
        let chain = self.carbon.as_ref()?;
        Some(series(chain.status().source(), chain))
    }

    /// Stores the sources of the signals where they have changed, beside the generation of the budget.
    pub(super) fn store(&mut self, now: Timestamp, generation: u64, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.store)
            && let Some(status) = self.status(now)
        {
            let status = GridStatus { observed_generation: generation, ..status };
            out.push(Action::StoreGridStatus(Box::new(status)));
        }
    }

    fn chains(&mut self) -> impl Iterator<Item = &mut Chain> {
        self.carbon.iter_mut().chain(self.price.iter_mut())
    }

    /// The state of both signals; absent: none is configured.
    pub(super) fn status(&self, now: Timestamp) -> Option<GridStatus> {
        if self.carbon.is_none() && self.price.is_none() {
            return None;
        }
        let status = |chain: &Option<Chain>| chain.as_ref().map(Chain::status);
        let prices = self.price.as_ref().map(|chain| PriceSeries {
            currency: self.currency.clone(),
            steps: chain.steps().iter().map(|step| (step.from, micros(step.value))).collect(),
        });
        Some(GridStatus {
            at_us: now,
            observed_generation: 0,
            carbon: status(&self.carbon),
            price: status(&self.price),
            prices,
        })
    }

    /// The price of electricity now; `None`: none is configured.
    pub(super) fn price(&self, now: Timestamp) -> Option<Price> {
        let chain = self.price.as_ref()?;
        let currency = self.currency.clone();
        Some(Price { micros_per_kwh: micros(chain.value(now)), currency })
    }

    /// The state of each signal, and the price with its currency, for metrics.
    pub(super) fn measures(&self, now: Timestamp) -> GridMeasures {
        let status = |chain: &Option<Chain>| chain.as_ref().map(Chain::status);
        GridMeasures {
            carbon: status(&self.carbon),
            price: status(&self.price),
            per_kwh: self.price.as_ref().map(|chain| (chain.value(now), self.currency.clone())),
        }
    }
}

/// Sources of the signals, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridMeasures {
    /// Carbon intensity.
    pub carbon: Option<SignalStatus>,
    /// Electricity price.
    pub price: Option<SignalStatus>,
    /// The price per kWh now, and its currency.
    pub per_kwh: Option<(f64, String)>,
}

/// Millionths of a currency.
fn micros(price: f64) -> i64 {
    (price * 1e6).round() as i64
}

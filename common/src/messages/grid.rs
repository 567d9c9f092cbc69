//! State of the grid's signals: where carbon intensity and electricity price come from now.
//!
//! * **Publisher:** the active placer, if its configuration has a table `[grid]`.
//! * **Listeners:** `wattle budget show`, `wattle energy`, `wattle doctor`, the web page.
//! * **How often:** after each read of a provider, and when the source in use changes.
//! * **Delivery:** key-value bucket `budget`, key `grid`; the last value is current.
//! * **Lost or doubled:** the status is complete; the next read of a provider replaces it.
//!
//! The series of the carbon intensity is that of the budget ([`super::BudgetRecord`]).

use serde::{Deserialize, Serialize};

use crate::generation::is_unknown;
use crate::time::Timestamp;

/// How a provider obtained a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// From measured generation; of a price, published.
    Measured,
    /// Modelled by the provider, because measurements were not available yet.
    Estimated,
    /// Forecast by the provider.
    Forecast,
    /// The constant of the configuration: no provider had a value.
    Static,
}

impl Origin {
    /// As in text: `measured`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::Forecast => "forecast",
            Self::Static => "static",
        }
    }
}

/// What a carbon intensity accounts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// Emissions of all generation, divided by all energy.
    Average,
    /// Emissions of the power plants that follow a small change of the load.
    Marginal,
}

/// The link of the fallback chain that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InUse {
    /// Values of the last read, which succeeded.
    Live,
    /// Values of an earlier read, still valid: the last read failed.
    LastKnown,
    /// The constant of the configuration.
    Static,
}

impl InUse {
    /// As in text: `last-known`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::LastKnown => "last-known",
            Self::Static => "static",
        }
    }
}

/// State of the signals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// The budget that has the carbon intensity of this source; it is stored before this status.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub observed_generation: u64,
    /// Carbon intensity; absent: no provider is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carbon: Option<SignalStatus>,
    /// Electricity price; absent: none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<SignalStatus>,
    /// The electricity prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceSeries>,
}

/// State of one signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalStatus {
    /// The provider and its zone or file: `electricity-maps DE`.
    pub provider: String,
    /// What the intensity accounts for; absent: not stated by the provider, or a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// The link of the fallback chain in use.
    pub in_use: InUse,
    /// Since when it has been in use.
    pub since_us: Timestamp,
    /// How the value in use was obtained.
    pub origin: Origin,
    /// The last read that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at_us: Option<Timestamp>,
    /// End of the known values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until_us: Option<Timestamp>,
    /// Why the last read failed; absent: it succeeded, or none has ended yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl SignalStatus {
    /// The source in use in one line: `electricity-maps DE, average, measured`.
    #[must_use]
    pub fn source(&self) -> String {
        let provider = &self.provider;
        let mut text = match self.in_use {
            InUse::Live => provider.clone(),
            InUse::LastKnown => format!("last known values of {provider}"),
            InUse::Static => return format!("static value, no current value of {provider}"),
        };
        match self.accounting {
            Some(Accounting::Average) => text.push_str(", average"),
            Some(Accounting::Marginal) => text.push_str(", marginal"),
            None => {}
        }
        format!("{text}, {}", self.origin.name())
    }

    /// Whether a fallback is in use.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.in_use != InUse::Live
    }
}

/// Electricity prices over time: a step function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceSeries {
    /// The currency, as `EUR`.
    pub currency: String,
    /// Start of each step, ascending, and the price from then on in millionths of the currency per kWh
    /// (thousandths per MWh). A price may be negative.
    pub steps: Vec<(Timestamp, i64)>,
}

impl PriceSeries {
    /// The price at `at` in the currency per kWh; `None` before the first step.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<f64> {
        let after = self.steps.partition_point(|(from, _)| *from <= at);
        let (_, price) = self.steps.get(after.checked_sub(1)?)?;
        Some(*price as f64 / 1e6)
    }

    /// The mean price from `from` until `until` in the currency per kWh, without the part before the first
    /// step; `None` if all of it is before, or the interval is empty.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> Option<f64> {
        let begin = from.max(self.steps.first()?.0);
        if until <= begin {
            return None;
        }
        let (mut sum, mut at) = (0.0, begin);
        while at < until {
            let after = self.steps.partition_point(|(from, _)| *from <= at);
            let end = self.steps.get(after).map_or(until, |(from, _)| (*from).min(until));
            sum += self.at(at)? * end.since(at).as_secs_f64();
            at = end;
        }
        Some(sum / until.since(begin).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> Timestamp {
        Timestamp::from_s(hours * 3_600)
    }

    #[test]
    fn mean_price_is_weighted_by_time() {
        let steps = vec![(at(1), 100_000), (at(2), -20_000), (at(4), 300_000)];
        let series = PriceSeries { currency: "EUR".into(), steps };
        let rounded = |mean: Option<f64>| mean.map(|mean| (mean * 1e6).round() as i64);
        assert_eq!(rounded(series.mean(at(1), at(4))), Some(20_000));
        assert_eq!(rounded(series.mean(at(0), at(2))), Some(100_000), "nothing known before");
        assert_eq!(rounded(series.mean(at(5), at(9))), Some(300_000));
        assert_eq!((series.mean(at(0), at(1)), series.mean(at(3), at(3))), (None, None));
        assert_eq!((rounded(series.at(at(3))), series.at(at(0))), (Some(-20_000), None));
    }

    #[test]
    fn source_names_a_fallback() {
        let mut status = SignalStatus {
            provider: "electricity-maps DE".into(),
            accounting: Some(Accounting::Average),
            in_use: InUse::Live,
            since_us: at(1),
            origin: Origin::Measured,
            read_at_us: None,
            valid_until_us: None,
            error: None,
        };
        assert_eq!(status.source(), "electricity-maps DE, average, measured");
        status.in_use = InUse::LastKnown;
        status.origin = Origin::Forecast;
        assert_eq!(status.source(), "last known values of electricity-maps DE, average, forecast");
        status.in_use = InUse::Static;
        assert_eq!(status.source(), "static value, no current value of electricity-maps DE");
    }
}

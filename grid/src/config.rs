//! The table `[grid]` of the placer's configuration: `deploy/placer.toml` with comments.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::config::non_zero;
use wattle_common::messages::Accounting;

use crate::series::Signal;
use crate::{electricity_maps, watttime};

/// The providers of the grid's signals.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridConfig {
    /// Carbon intensity; absent: from `wattle budget set --carbon`.
    #[serde(default)]
    pub carbon: Option<CarbonConfig>,
    /// Electricity price; absent: unknown.
    #[serde(default)]
    pub price: Option<PriceConfig>,
}

/// A provider of carbon intensities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CarbonProvider {
    /// [`crate::electricity_maps`].
    ElectricityMaps,
    /// [`crate::watttime`].
    Watttime,
    /// [`crate::carbon_aware_sdk`].
    CarbonAwareSdk,
    /// A dated table, which another program writes: [`crate::table`].
    File,
    /// The constant alone.
    Static,
}

impl CarbonProvider {
    /// As in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ElectricityMaps => "electricity-maps",
            Self::Watttime => "watttime",
            Self::CarbonAwareSdk => "carbon-aware-sdk",
            Self::File => "file",
            Self::Static => "static",
        }
    }
}

/// The source of the carbon intensity.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarbonConfig {
    /// The provider.
    pub provider: CarbonProvider,
    /// Its zone, region or location.
    #[serde(default)]
    pub zone: Option<String>,
    /// Its address; by default the public one.
    #[serde(default)]
    pub url: Option<String>,
    /// File with the token, or with `NAME:PASSWORD`.
    #[serde(default)]
    pub credential_file: Option<PathBuf>,
    /// The table of `provider = "file"`.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// WattTime's signal.
    #[serde(default = "signal_default")]
    pub signal_type: String,
    /// Of a service or file that does not state it: average or marginal.
    #[serde(default)]
    pub accounting: Option<Accounting>,
    /// The constant where no provider has a value, g/kWh.
    pub fallback_g_per_kwh: f64,
    /// Time between two reads, wall time.
    #[serde(default = "poll_s_default", deserialize_with = "non_zero")]
    pub poll_s: u64,
    /// Longest time of one request, wall time.
    #[serde(default = "timeout_ms_default", deserialize_with = "non_zero")]
    pub timeout_ms: u64,
    /// Time after its hour for which a value without a successor counts.
    #[serde(default = "hold_s_default")]
    pub hold_s: u64,
    /// Time of a fallback after which an alarm is raised.
    #[serde(default = "alarm_after_s_default", deserialize_with = "non_zero")]
    pub alarm_after_s: u64,
}

/// The source of the electricity price.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceConfig {
    /// A file of ENTSO-E's day-ahead prices (XML) or a table; absent: the constant alone.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The currency of the constant, which the file must have too.
    #[serde(default = "currency_default")]
    pub currency: String,
    /// The constant where the file has no price, per kWh.
    pub fallback_per_kwh: f64,
    /// Time between two reads of the file, wall time.
    #[serde(default = "poll_s_default", deserialize_with = "non_zero")]
    pub poll_s: u64,
    /// Time of a fallback after which an alarm is raised.
    #[serde(default = "alarm_after_s_default", deserialize_with = "non_zero")]
    pub alarm_after_s: u64,
}

fn signal_default() -> String {
    "co2_moer".to_owned()
}
fn currency_default() -> String {
    "EUR".to_owned()
}
const fn poll_s_default() -> u64 {
    900
}
const fn timeout_ms_default() -> u64 {
    10_000
}
/// A provider publishes the value of an hour during the hour or soon after it.
const fn hold_s_default() -> u64 {
    7_200
}
const fn alarm_after_s_default() -> u64 {
    3_600
}

/// Whether every character may be in a URL's query without encoding.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 100 && text.bytes().all(plain)
}

/// Whether a URL's host is this machine.
#[must_use]
pub fn is_loopback(url: &str) -> bool {
    let host = url.trim_start_matches("http://").split('/').next().unwrap_or("");
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
}

impl GridConfig {
    /// Checks the values, and values that depend on each other.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if let Some(carbon) = &self.carbon {
            carbon.check().map_err(|error| format!("grid.carbon.{error}"))?;
        }
        if let Some(price) = &self.price {
            price.check().map_err(|error| format!("grid.price.{error}"))?;
        }
        Ok(())
    }
}

impl CarbonConfig {
    /// The address of the provider.
    #[must_use]
    pub fn url(&self) -> &str {
        let default = match self.provider {
            CarbonProvider::ElectricityMaps => electricity_maps::URL,
            CarbonProvider::Watttime => watttime::URL,
            CarbonProvider::CarbonAwareSdk | CarbonProvider::File | CarbonProvider::Static => "",
        };
        self.url.as_deref().unwrap_or(default).trim_end_matches('/')
    }

    /// The zone, or an empty text.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zone.as_deref().unwrap_or("")
    }

    /// Provider and zone for people: `electricity-maps DE`.
    #[must_use]
    pub fn label(&self) -> String {
        match (self.provider, &self.file) {
            (CarbonProvider::File, Some(file)) => file.display().to_string(),
            _ => format!("{} {}", self.provider.name(), self.zone()).trim_end().to_owned(),
        }
    }

    /// What the intensity accounts for.
    #[must_use]
    pub fn accounting(&self) -> Option<Accounting> {
        match self.provider {
            CarbonProvider::ElectricityMaps => Some(Accounting::Average),
            CarbonProvider::Watttime if self.signal_type == "co2_aoer" => Some(Accounting::Average),
            CarbonProvider::Watttime => Some(Accounting::Marginal),
            _ => self.accounting,
        }
    }

    /// Longest time of one request.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    fn check(&self) -> Result<(), String> {
        Signal::Carbon
            .check(self.fallback_g_per_kwh)
            .map_err(|error| format!("fallback_g_per_kwh: {error}"))?;
        if self.timeout_ms > 120_000 {
            return Err("timeout_ms must be at most 120_000".to_owned());
        }
        if self.poll_s < 10 && !is_loopback(self.url()) {
            return Err("poll_s must be at least 10".to_owned());
        }
        let name = self.provider.name();
        let is_http = match self.provider {
            CarbonProvider::ElectricityMaps
            | CarbonProvider::Watttime
            | CarbonProvider::CarbonAwareSdk => true,
            CarbonProvider::File if self.file.is_none() => {
                return Err("file is missing: name the table".to_owned());
            }
            CarbonProvider::File | CarbonProvider::Static => false,
        };
        if !is_http {
            return Ok(());
        }
        if !is_plain(self.zone()) {
            return Err(format!("zone = \"{}\": give the zone of {name}, as DE", self.zone()));
        }
        if self.provider == CarbonProvider::Watttime && !is_plain(&self.signal_type) {
            return Err("signal_type: give co2_moer or co2_aoer".to_owned());
        }
        let url = self.url();
        let is_open = url.starts_with("http://");
        if !is_open && !url.starts_with("https://") {
            return Err(format!("url = \"{url}\": give the address, as https://HOST"));
        }
        if is_open && self.credential_file.is_some() && !is_loopback(url) {
            return Err(format!(
                "url = \"{url}\" would send the credential unencrypted: use https"
            ));
        }
        if self.credential_file.is_none() && self.provider != CarbonProvider::CarbonAwareSdk {
            return Err(format!("credential_file is missing: {name} needs one"));
        }
        Ok(())
    }
}

impl PriceConfig {
    /// The source for people.
    #[must_use]
    pub fn label(&self) -> String {
        self.file.as_ref().map_or_else(|| "static".to_owned(), |file| file.display().to_string())
    }

    fn check(&self) -> Result<(), String> {
        Signal::Price
            .check(self.fallback_per_kwh)
            .map_err(|error| format!("fallback_per_kwh: {error}"))?;
        let code = &self.currency;
        if code.len() != 3 || !code.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(format!("currency = \"{code}\": give three capital letters, as EUR"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let config: GridConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check()
    }

    #[test]
    fn wrong_values_name_the_key() {
        let maps = "[carbon]\nprovider = \"electricity-maps\"\nfallback_g_per_kwh = 380\n";
        let good = format!("{maps}zone = \"DE\"\ncredential_file = \"/etc/wattle/token\"\n");
        assert_eq!(check(&good), Ok(()));
        for (text, part) in [
            (format!("{maps}credential_file = \"/t\""), "grid.carbon.zone"),
            (format!("{maps}zone = \"D E&x\""), "grid.carbon.zone"),
            (format!("{maps}zone = \"DE\""), "credential_file is missing"),
            (format!("{good}url = \"http://grid.example\""), "unencrypted"),
            (format!("{good}url = \"ftp://x\""), "grid.carbon.url"),
            (format!("{good}poll_s = 5"), "poll_s"),
            (format!("{good}colour = 5"), "colour"),
            (good.replace("380", "-1"), "fallback_g_per_kwh"),
            (good.replace("fallback_g_per_kwh = 380\n", ""), "fallback_g_per_kwh"),
            (
                "[price]\nfallback_per_kwh = 0.2\ncurrency = \"euro\"".to_owned(),
                "grid.price.currency",
            ),
            ("[carbon]\nprovider = \"file\"\nfallback_g_per_kwh = 1".to_owned(), "file is missing"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        for fine in [
            format!("{good}url = \"http://127.0.0.1:80\"\npoll_s = 1"),
            "[carbon]\nprovider = \"static\"\nfallback_g_per_kwh = 380".to_owned(),
            "[carbon]\nprovider = \"carbon-aware-sdk\"\nzone = \"eastus\"\nurl = \"http://casdk:8090\"\n\
             fallback_g_per_kwh = 380"
                .to_owned(),
            "[price]\nfallback_per_kwh = 0.2".to_owned(),
        ] {
            assert_eq!(check(&fine), Ok(()), "{fine}");
        }
    }
}

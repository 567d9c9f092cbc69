//! Reads one signal from its provider: the requests, then the checks of what they returned.
//!
//! Of several requests, one that fails does not matter while the others have the current value: an account
//! without a subscription has no forecast.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wattle_common::Timestamp;

use crate::config::{CarbonConfig, CarbonProvider, PriceConfig};
use crate::credential::Credential;
use crate::http::{Header, Http, ReadError};
use crate::parse_error::ParseError;
use crate::series::SignalSeries;
use crate::{carbon_aware_sdk, electricity_maps, instant, table, watttime};

/// Part of the past that is read, so that a forecast by persistence is possible at once.
const PAST: Duration = Duration::from_secs(86_400);
/// Largest file, bytes: a year of quarter hours in ENTSO-E's XML.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads the carbon intensity.
#[derive(Debug)]
pub struct CarbonClient {
    config: CarbonConfig,
    http: Http,
    /// WattTime's token and when it was issued, wall time.
    token: Option<(String, Timestamp)>,
}

fn parsed(
    source: &str,
    result: Result<SignalSeries, ParseError>,
) -> Result<SignalSeries, ReadError> {
    result.map_err(|error| ReadError::Parse { source_name: source.to_owned(), error })
}

/// The first success with the later ones added; the first error if all failed.
fn combined(
    results: impl IntoIterator<Item = Result<SignalSeries, ReadError>>,
) -> Result<SignalSeries, ReadError> {
    let mut all: Option<Result<SignalSeries, ReadError>> = None;
    for result in results {
        all = Some(match (all, result) {
            (Some(Ok(before)), Ok(next)) => Ok(before.with(next)),
            (Some(Ok(before)), Err(_)) => Ok(before),
            (Some(Err(_)) | None, Ok(next)) => Ok(next),
            (Some(Err(first)), Err(_)) => Err(first),
            (None, Err(error)) => Err(error),
        });
    }
    all.unwrap_or(Err(ReadError::Parse { source_name: String::new(), error: ParseError::Empty }))
}

/// Refuses a series without a value now or later. The last value holds for `hold` more.
fn current(
    source: &str,
    mut series: SignalSeries,
    now: Timestamp,
    hold: Duration,
) -> Result<SignalSeries, ReadError> {
    let is_current = |series: &SignalSeries| series.at(now).is_some();
    if !is_current(&series) {
        // The value of the past hour holds until its provider has the next one.
        let before = series.intervals.iter().rposition(|interval| interval.until <= now);
        let next = before.and_then(|i| series.intervals.get(i + 1)).map(|next| next.from);
        if let Some(last) = before.and_then(|i| series.intervals.get_mut(i)) {
            let held = last.until + hold;
            if now < held {
                last.until = next.map_or(held, |next| next.min(held));
                series.is_end_assumed |= next.is_none();
            }
        }
    }
    if is_current(&series) {
        return Ok(series);
    }
    let ended = instant::shown(series.until());
    Err(ReadError::Stale { source_name: source.to_owned(), ended })
}

fn file(path: &Path) -> Result<Vec<u8>, ReadError> {
    let shown = path.display().to_string();
    let failed = |source| ReadError::File { path: shown.clone(), source };
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path).map_err(failed)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge { url: shown });
    }
    Ok(bytes)
}

impl CarbonClient {
    /// A client of the configured provider.
    #[must_use]
    pub fn new(config: CarbonConfig) -> Self {
        let http = Http::new(config.timeout());
        Self { config, http, token: None }
    }

    /// Reads the intensities around `now`, the system's time; `wall` is the wall time, for the age of a token.
    ///
    /// # Errors
    /// [`ReadError`] names provider and remedy.
    pub fn read(&mut self, now: Timestamp, wall: Timestamp) -> Result<SignalSeries, ReadError> {
        let series = match self.config.provider {
            CarbonProvider::ElectricityMaps => self.electricity_maps()?,
            CarbonProvider::Watttime => self.watttime(now, wall)?,
            CarbonProvider::CarbonAwareSdk => self.carbon_aware_sdk(now)?,
            CarbonProvider::File => {
                let path = self.config.file.clone().unwrap_or_default();
                parsed(&path.display().to_string(), table::intensities(&file(&path)?))?
            }
            CarbonProvider::Static => SignalSeries::default(),
        };
        if self.config.provider == CarbonProvider::Static {
            return Ok(series);
        }
        let hold = Duration::from_secs(self.config.hold_s);
        current(&self.config.label(), series, now, hold)
    }

    fn credential(&self, expected: &'static str) -> Result<Option<Credential>, ReadError> {
        let path = self.config.credential_file.as_deref();
        Ok(path.map(|path| Credential::read(path, expected)).transpose()?)
    }

    fn get(
        &self,
        path: &str,
        headers: &[Header<'_>],
        parse: impl FnOnce(&[u8]) -> Result<SignalSeries, ParseError>,
    ) -> Result<SignalSeries, ReadError> {
        let url = format!("{}{path}", self.config.url());
        let body = self.http.get(&url, headers)?;
        parsed(path.split('?').next().unwrap_or(path), parse(&body))
    }

    fn electricity_maps(&self) -> Result<SignalSeries, ReadError> {
        let token = self.credential("token of Electricity Maps")?;
        let headers: Vec<Header<'_>> =
            token.iter().map(|token| ("auth-token", token.secret().to_owned())).collect();
        let zone = self.config.zone();
        let get = |endpoint: &str, parse: fn(&str, &[u8]) -> Result<SignalSeries, ParseError>| {
            let path = electricity_maps::path(endpoint, zone);
            self.get(&path, &headers, |body| parse(zone, body))
        };
        // A refused token or zone refuses all: no second request.
        let mut latest = get("latest", electricity_maps::latest)?;
        let forecast = get("forecast", electricity_maps::forecast);
        // An account may have a forecast in steps of less than an hour.
        if let (Some(now), Ok(ahead)) = (latest.intervals.last_mut(), &forecast) {
            let next = ahead.intervals.iter().map(|ahead| ahead.from).find(|from| *from > now.from);
            now.until = next.map_or(now.until, |next| next.min(now.until));
        }
        let is_end_assumed = forecast.is_err();
        let history = get("history", electricity_maps::history);
        // Measured values count before forecast ones of the same hour.
        let all = combined([forecast, history, Ok(latest)])?;
        Ok(SignalSeries { is_end_assumed, ..all })
    }

    fn watttime(&mut self, now: Timestamp, wall: Timestamp) -> Result<SignalSeries, ReadError> {
        let issued = self.token.as_ref().map(|(_, issued)| *issued);
        if issued.is_none_or(|issued| wall < issued || wall.since(issued) >= watttime::TOKEN_FOR) {
            self.token = None;
        }
        let was_logged_in = self.token.is_some();
        match self.watttime_once(now, wall) {
            // The token may have been revoked.
            Err(ReadError::Unauthorized { .. }) if was_logged_in => {
                self.token = None;
                self.watttime_once(now, wall)
            }
            result => result,
        }
    }

    fn watttime_once(
        &mut self,
        now: Timestamp,
        wall: Timestamp,
    ) -> Result<SignalSeries, ReadError> {
        let token = match &self.token {
            Some((token, _)) => token.clone(),
            None => self.watttime_login(wall)?,
        };
        let headers = [("authorization", format!("Bearer {token}"))];
        let (zone, signal) = (self.config.zone(), self.config.signal_type.as_str());
        let path = watttime::forecast_path(zone, signal);
        let forecast = self.get(&path, &headers, |body| watttime::series(zone, body, true));
        if let Err(error @ ReadError::Unauthorized { .. }) = forecast {
            return Err(error);
        }
        let path = watttime::historical_path(zone, signal, now - PAST, now);
        let past = self.get(&path, &headers, |body| watttime::series(zone, body, false));
        combined([forecast, past])
    }

    fn watttime_login(&mut self, wall: Timestamp) -> Result<String, ReadError> {
        let user = self.credential("user of WattTime as NAME:PASSWORD")?;
        let basic = STANDARD.encode(user.as_ref().map_or("", Credential::secret));
        let url = format!("{}{}", self.config.url(), watttime::LOGIN);
        let body = self.http.get(&url, &[("authorization", format!("Basic {basic}"))])?;
        let token = watttime::token(&body)
            .map_err(|error| ReadError::Parse { source_name: watttime::LOGIN.to_owned(), error })?;
        self.token = Some((token.clone(), wall));
        Ok(token)
    }

    fn carbon_aware_sdk(&self, now: Timestamp) -> Result<SignalSeries, ReadError> {
        let token = self.credential("token of the Carbon Aware SDK's service")?;
        let headers: Vec<Header<'_>> = token
            .iter()
            .map(|token| ("authorization", format!("Bearer {}", token.secret())))
            .collect();
        let zone = self.config.zone();
        let path = carbon_aware_sdk::forecast_path(zone);
        let forecast = self.get(&path, &headers, |body| carbon_aware_sdk::forecast(zone, body));
        let path = carbon_aware_sdk::observed_path(zone, now - PAST, now);
        let past = self.get(&path, &headers, carbon_aware_sdk::observed);
        combined([forecast, past])
    }
}

/// Reads the electricity prices.
///
/// # Errors
/// [`ReadError`] names the file and what is wrong.
pub fn read_prices(config: &PriceConfig, now: Timestamp) -> Result<SignalSeries, ReadError> {
    let Some(path) = &config.file else { return Ok(SignalSeries::default()) };
    let shown = path.display().to_string();
    let series = parsed(&shown, table::prices(&file(path)?))?;
    let given = series.currency.clone().unwrap_or_default();
    if given != config.currency {
        let error = ParseError::Unit { given, expected: "the configured currency" };
        return Err(ReadError::Parse { source_name: shown, error });
    }
    current(&shown, series, now, Duration::ZERO)
}

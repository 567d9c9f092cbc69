//! The service's configuration, as in `deploy/openadr.toml`.
//!
//! Durations are in system time (`wattle_common::time::TimeScale`), except those with `wall` in their names.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::ClusterId;
use wattle_common::config::{non_zero, service_lease, service_lease_default};
use wattle_grid::config::is_loopback;

use crate::translate::Site;
use crate::wire::TEXT_LEN_MAX;

/// Most programs, and most targets.
const NAMES_MAX: usize = 50;
/// Shortest interval of polls of a server on another machine.
const POLL_MIN: Duration = Duration::from_secs(1);
/// Longest interval of polls.
const POLL_MAX: Duration = Duration::from_secs(3_600);

/// The configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// The address of the OpenADR server.
    pub url: String,
    /// The names of the programs whose events are followed.
    pub programs: Vec<String>,
    /// The name of this client.
    pub ven_name: String,
    /// The name of the site as a resource; absent: that of the client.
    #[serde(default)]
    pub resource_name: Option<String>,
    /// Labels by which events are addressed to this site.
    #[serde(default)]
    pub targets: Vec<String>,
    /// The id of this client at the token endpoint; absent: no token.
    #[serde(default)]
    pub client_id: Option<String>,
    /// File with its secret.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    /// The token endpoint; absent: `auth/token` of the server.
    #[serde(default)]
    pub token_url: Option<String>,
    /// The scopes of the token; absent: as the endpoint chooses.
    #[serde(default)]
    pub scope: Option<String>,
    /// Reduction at the levels 1, 2 and 3 of SIMPLE, per cent.
    pub simple_reduce_percent: [f64; 3],
    /// Interval of polls.
    #[serde(default = "poll_ms_default", deserialize_with = "non_zero")]
    pub poll_ms: u64,
    /// Longest time of one request to the server, wall time.
    #[serde(default = "request_wall_ms_default", deserialize_with = "non_zero")]
    pub request_wall_ms: u64,
    /// Length of the lease by which one of several services is active, wall time.
    #[serde(default = "service_lease_default", deserialize_with = "service_lease")]
    pub service_lease_wall_ms: u64,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
}

/// An event is then requested of the placer well within 30 s.
const fn poll_ms_default() -> u64 {
    15_000
}
const fn request_wall_ms_default() -> u64 {
    10_000
}

fn check_name(key: &str, name: &str) -> Result<(), String> {
    let length = name.chars().count();
    if !(1..=TEXT_LEN_MAX).contains(&length) || name.chars().any(char::is_control) {
        return Err(format!(
            "{key}: a name has 1 to {TEXT_LEN_MAX} characters without control characters"
        ));
    }
    Ok(())
}

fn check_url(key: &str, url: &str, has_secret: bool) -> Result<(), String> {
    let is_open = url.starts_with("http://");
    if !is_open && !url.starts_with("https://") {
        return Err(format!("{key} = \"{url}\": give the address, as https://HOST/openadr3/3.1.0"));
    }
    if url.contains(['?', '#', ' ', '@']) {
        return Err(format!("{key}: give the address without a query, a fragment and a password"));
    }
    if is_open && has_secret && !is_loopback(url) {
        return Err(format!("{key} = \"{url}\" would send the secret unencrypted: use https"));
    }
    Ok(())
}

impl Config {
    /// Checks the values, and values that depend on each other.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        let has_secret = self.client_id.is_some();
        check_url("url", &self.url, has_secret)?;
        check_url("token_url", &self.token_url(), has_secret)?;
        if has_secret != self.client_secret_file.is_some() {
            return Err(
                "client_id and client_secret_file: give both, or none for a server without tokens"
                    .to_owned(),
            );
        }
        if self.programs.is_empty() {
            return Err(
                "programs = [] has no program: name those whose events are followed".to_owned()
            );
        }
        for (key, names) in [("programs", &self.programs), ("targets", &self.targets)] {
            if names.len() > NAMES_MAX {
                return Err(format!("{key}: at most {NAMES_MAX} names"));
            }
            names.iter().try_for_each(|name| check_name(key, name))?;
        }
        check_name("ven_name", &self.ven_name)?;
        let optional = [
            ("resource_name", &self.resource_name),
            ("client_id", &self.client_id),
            ("scope", &self.scope),
        ];
        for (key, name) in optional {
            name.iter().try_for_each(|name| check_name(key, name))?;
        }
        let [one, two, three] = self.simple_reduce_percent;
        if !(one > 0.0 && one <= two && two <= three && three < 100.0) {
            return Err(format!(
                "simple_reduce_percent = [{one}, {two}, {three}]: give ascending shares above 0 and below 100"
            ));
        }
        let poll = Duration::from_millis(self.poll_ms);
        if poll > POLL_MAX || (poll < POLL_MIN && !is_loopback(&self.url)) {
            return Err("poll_ms must be from 1_000 to 3_600_000".to_owned());
        }
        if self.request_wall_ms > 120_000 {
            return Err("request_wall_ms must be at most 120_000".to_owned());
        }
        Ok(())
    }

    /// The address of the server, without a slash at its end.
    #[must_use]
    pub fn base(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    /// The address of the token endpoint.
    #[must_use]
    pub fn token_url(&self) -> String {
        self.token_url.clone().unwrap_or_else(|| format!("{}/auth/token", self.base()))
    }

    /// What it states about events.
    #[must_use]
    pub fn site(&self) -> Site {
        Site {
            ven_name: self.ven_name.clone(),
            resource_name: self.resource_name.clone().unwrap_or_else(|| self.ven_name.clone()),
            targets: self.targets.clone(),
            levels: self.simple_reduce_percent,
        }
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::*;

    const GOOD: &str = "cluster = \"main\"\nurl = \"https://vtn.example/openadr3/3.1.0/\"\nprograms = [\"shed\"]\n\
        ven_name = \"site-a\"\nclient_id = \"c\"\nclient_secret_file = \"/s\"\nsimple_reduce_percent = [10, 25, 40]\n";

    fn check(text: &str) -> Result<Config, String> {
        let text = format!("{text}[nats]\nurl = \"nats://127.0.0.1:4222\"\n");
        let config: Config = toml::from_str(&text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn wrong_values_name_the_key() {
        let config = check(GOOD).unwrap();
        assert_eq!(config.token_url(), "https://vtn.example/openadr3/3.1.0/auth/token");
        assert_eq!((config.site().resource_name.as_str(), config.poll_ms), ("site-a", 15_000));
        for (right, wrong, part) in [
            ("https://vtn", "http://vtn", "unencrypted"),
            ("https://vtn", "ftp://vtn", "url = "),
            ("https://vtn", "https://u:p@vtn", "password"),
            ("[\"shed\"]", "[]", "programs = []"),
            ("client_id = \"c\"\n", "", "give both"),
            ("\"site-a\"", "\"\"", "ven_name"),
            ("[10, 25, 40]", "[10, 5, 40]", "ascending"),
            ("[10, 25, 40]", "[10, 25, 100]", "below 100"),
            ("[10, 25, 40]", "[10, 25, 40]\npoll_ms = 500", "poll_ms"),
            ("[10, 25, 40]", "[10, 25, 40]\ncolour = 5", "colour"),
        ] {
            let error = check(&GOOD.replace(right, wrong)).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
        let local = GOOD.replace("https://vtn.example", "http://127.0.0.1:80");
        assert!(check(&format!("{local}poll_ms = 100\n")).is_ok());
    }
}

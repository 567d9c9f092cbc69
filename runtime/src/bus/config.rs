//! The `[nats]` table of every service's configuration.

use std::path::PathBuf;

use serde::Deserialize;
use wattle_common::env;

/// How to reach the NATS server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusConfig {
    /// Its address, `nats://127.0.0.1:4222`; several are joined by commas. `WATTLE_NATS_URL` in the
    /// environment overrides it.
    pub url: String,
    /// File with this service's nkey seed, if the server requires an identity.
    #[serde(default)]
    pub nkey_seed_file: Option<PathBuf>,
    /// File with the trusted certificates; enables TLS.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl BusConfig {
    /// A server at `url` without authentication.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self { url: url.to_owned(), nkey_seed_file: None, ca_file: None }
    }

    /// The address in use: from the environment, or this configuration.
    #[must_use]
    pub fn url_in_force(&self) -> String {
        std::env::var(env::NATS_URL)
            .ok()
            .filter(|url| !url.is_empty())
            .unwrap_or_else(|| self.url.clone())
    }
}

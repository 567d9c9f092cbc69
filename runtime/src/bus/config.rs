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
    /// File with the nkey seed of this process, as `wattle keys` writes it. `WATTLE_CREDENTIALS` in the
    /// environment overrides it.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// File with the trusted certificates; enables TLS. `WATTLE_CA` in the environment overrides it.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// File with the certificate of this process, if the server requires one.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// File with the private key of that certificate.
    #[serde(default)]
    pub certificate_key_file: Option<PathBuf>,
    /// Permits a server that is not on loopback without a key or without TLS.
    #[serde(default)]
    pub permit_insecure: bool,
    /// Number of servers that keep each bucket and stream: 1, 3 or 5. The placer sets it, also for existing
    /// ones. Absent: 1 for new buckets and streams, existing ones unchanged.
    #[serde(default, deserialize_with = "replicas")]
    pub replicas: Option<usize>,
    /// Whether the environment overrides nothing, because address and files belong together.
    #[serde(skip)]
    pub exact: bool,
}

fn replicas<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let value = usize::deserialize(deserializer)?;
    if [1, 3, 5].contains(&value) {
        return Ok(Some(value));
    }
    Err(serde::de::Error::custom(format!("invalid replicas {value}: expected 1, 3 or 5")))
}

impl BusConfig {
    /// A server at `url` without authentication.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            credentials_file: None,
            ca_file: None,
            certificate_file: None,
            certificate_key_file: None,
            permit_insecure: false,
            replicas: None,
            exact: false,
        }
    }

    /// This configuration with the addresses and files that the environment names.
    #[must_use]
    pub fn in_force(&self) -> Self {
        if self.exact {
            return self.clone();
        }
        let file =
            |key: &str| std::env::var_os(key).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self {
            url: self.url_in_force(),
            credentials_file: file(env::CREDENTIALS).or_else(|| self.credentials_file.clone()),
            ca_file: file(env::CA).or_else(|| self.ca_file.clone()),
            ..self.clone()
        }
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

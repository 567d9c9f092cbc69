//! The configuration of the service.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use wattle_common::ClusterId;
use wattle_common::config::{MetricsConfig, non_zero};
use wattle_runtime::bus::BusConfig;

/// The configuration; `deploy/web.toml` explains every key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// Address and port of the page.
    pub listen: SocketAddr,
    /// Names under which browsers may reach the page, besides loopback and `listen`.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Permits an address that is not on loopback, without TLS.
    #[serde(default)]
    pub permit_insecure: bool,
    /// Shows pages only after signing in.
    #[serde(default)]
    pub require_sign_in: bool,
    /// File with the address that signs one browser in, with the rights of this service's connection.
    #[serde(default)]
    pub sign_in_file: Option<PathBuf>,
    /// Most viewers at a time.
    #[serde(deserialize_with = "non_zero")]
    pub viewers_max: u64,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: MetricsConfig,
    /// The bus.
    pub nats: BusConfig,
}

impl Config {
    /// Compares values with each other.
    ///
    /// # Errors
    /// Names the keys and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if !self.listen.ip().is_loopback() && !self.permit_insecure {
            return Err(format!(
                "listen = \"{}\" is not on loopback, and the page has no TLS of its own: listen on \
                 127.0.0.1 behind a proxy with TLS, or set permit_insecure = true",
                self.listen
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn an_address_that_is_not_on_loopback_needs_a_permission() {
        let parse = |listen: &str, more: &str| {
            let text = format!(
                "cluster = \"main\"\nlisten = \"{listen}\"\nviewers_max = 5\n{more}\n[nats]\nurl = \"nats://x\""
            );
            wattle_runtime::config::parse::<Config>(&text, Path::new("web.toml")).unwrap().check()
        };
        assert_eq!(parse("127.0.0.1:8620", ""), Ok(()));
        assert_eq!(parse("[::1]:8620", ""), Ok(()));
        assert!(parse("0.0.0.0:8620", "").unwrap_err().contains("permit_insecure"));
        assert_eq!(parse("0.0.0.0:8620", "permit_insecure = true"), Ok(()));
    }
}

//! Configuration files of every service: read, or an error with file and line.

use std::path::Path;

use serde::de::DeserializeOwned;
use wattle_runtime::config::{ConfigError, parse};

/// Rates of the system's time: wall time, and the fastest.
const RATES: [u32; 2] = [1, u32::MAX];

fn read<C: DeserializeOwned>(text: &str) -> Option<C> {
    let path = Path::new("service.toml");
    match parse(text, path) {
        Ok(config) => Some(config),
        Err(error) => {
            let message = error.to_string();
            let is_located =
                matches!(error, ConfigError::Syntax { .. } | ConfigError::Value { .. });
            assert!(is_located && message.starts_with("service.toml:"), "{message}");
            None
        }
    }
}

/// Durations and limits that a service derives from its configuration.
pub(super) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(config) = read::<wattle_placer::Config>(&text) {
        let _ = config.check();
    }
    if let Some(config) = read::<wattle_profiler::shell::ServiceConfig>(&text) {
        for rate in RATES {
            let _ = (config.settings().at_rate(rate), config.sample_every(rate));
        }
    }
    let _ = read::<wattle_registry::service::ServiceConfig>(&text);
    let _ = read::<wattle_predictor::shell::ServiceConfig>(&text);
    if let Some(config) = read::<wattle_power_agent::shell::ServiceConfig>(&text) {
        let _ = config.settings();
    }
    let _ = read::<wattle_launcher::Config>(&text);
    if let Some(config) = read::<wattle_openadr::Config>(&text) {
        let _ = config.check();
    }
}

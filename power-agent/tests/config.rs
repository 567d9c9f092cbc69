//! The example configuration is one, and its mistakes are told by key and line.

#![cfg(feature = "service")]

use std::path::Path;

use wattle_runtime::config::{ConfigError, parse};

use wattle_common::Power;
use wattle_power_agent::Settings;
use wattle_power_agent::shell::{ServiceConfig, load};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/power-agent.toml");

#[test]
fn the_example_holds_the_defaults() {
    let config = load(Path::new(EXAMPLE)).unwrap();
    assert_eq!(config.settings(), Settings::default());
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("# safe_cap_w", "safe_cap_w");
    let config: ServiceConfig = parse(&text, Path::new("power-agent.toml")).unwrap();
    assert_eq!(config.settings().safe_cap, Some(Power::from_w(250)));
}

#[test]
fn a_wrong_value_is_named() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let text = text.replace("heartbeat_ms = 10_000", "heartbeat_ms = 0");
    let error = parse::<ServiceConfig>(&text, Path::new("power-agent.toml")).unwrap_err();
    assert!(matches!(&error, ConfigError::Value { key, .. } if key == "heartbeat_ms"), "{error}");
}

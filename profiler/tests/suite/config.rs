//! The example configuration is valid, and errors name key and line.

#![cfg(feature = "service")]

use std::path::Path;

use wattle_runtime::config::{ConfigError, parse};

use wattle_profiler::Settings;
use wattle_profiler::shell::{ServiceConfig, load};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/profiler.toml");

#[test]
fn the_example_states_the_defaults() {
    let config = load(Path::new(EXAMPLE)).unwrap();
    assert_eq!(config.settings(), Settings::default());
    assert_eq!(config.sample_every(1).as_millis(), 100);
    // At most 100 samples per wall second: every 600 ms of system time at 60 times the rate.
    assert_eq!(config.sample_every(60).as_millis(), 600);
    let short = "cluster = \"c\"\nnode = \"n\"\n[nats]\nurl = \"nats://127.0.0.1\"\n";
    let config: ServiceConfig = parse(short, Path::new("short.toml")).unwrap();
    assert_eq!(config.settings(), Settings::default());
}

#[test]
fn a_fast_clock_makes_messages_larger_and_not_more_frequent() {
    let settings = Settings::default().at_rate(60);
    assert_eq!(settings.batch_every.as_millis(), 3_000);
    assert_eq!(settings.summary_every.as_millis(), 6_000);
    assert_eq!(settings.ledger_every, Settings::default().ledger_every);
    assert_eq!(Settings::default().at_rate(1), Settings::default());
}

#[test]
fn a_wrong_key_is_named() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("ledger_ms", "ledger_s");
    let error = parse::<ServiceConfig>(&text, Path::new("profiler.toml")).unwrap_err();
    assert!(matches!(&error, ConfigError::Value { .. }), "{error}");
    assert!(error.to_string().contains("ledger_s"), "{error}");
}

//! The example configuration is valid, and errors name key and line.

#![cfg(feature = "service")]

use std::path::Path;

use wattle_runtime::config::{ConfigError, parse};

use wattle_common::Power;
use wattle_power_agent::shell::{ServiceConfig, load};
use wattle_power_agent::{Control, Settings};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/power-agent.toml");

#[test]
fn the_example_states_the_defaults() {
    let config = load(Path::new(EXAMPLE)).unwrap();
    assert_eq!(config.settings(), Settings::default());
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("# safe_cap_w", "safe_cap_w");
    let text = text.replace("# node_limit_w", "node_limit_w");
    let config: ServiceConfig = parse(&text, Path::new("power-agent.toml")).unwrap();
    assert_eq!(config.settings().safe_cap, Some(Power::from_w(250)));
    assert_eq!(config.settings().node_limit, Some(Power::from_w(1_600)));
    assert_eq!((config.switch, config.gpus_per_board), (None, None));
    let text =
        text.replace("# switch =", "switch =").replace("# gpus_per_board =", "gpus_per_board =");
    let config: ServiceConfig = parse(&text, Path::new("power-agent.toml")).unwrap();
    let settings = config.settings();
    assert_eq!((settings.switch.unwrap().as_str(), settings.gpus_per_board), ("leaf-0", Some(4)));
}

#[test]
fn a_wrong_value_is_named() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    for (right, wrong, named, detail) in [
        ("heartbeat_ms = 10_000", "heartbeat_ms = 0", "heartbeat_ms", "greater than 0"),
        ("# node_limit_w = 1_600", "node_limit_w = 0", "node_limit_w", "greater than 0"),
        ("# gpus_per_board = 4", "gpus_per_board = 3", "gpus_per_board", "1, 2, 4, 8"),
        ("# switch = \"leaf-0\"", "switch = \"leaf 0\"", "switch", "use letters"),
    ] {
        let text = text.replace(right, wrong);
        let error = parse::<ServiceConfig>(&text, Path::new("power-agent.toml")).unwrap_err();
        assert!(matches!(&error, ConfigError::Value { key, .. } if key == named), "{error}");
        assert!(error.to_string().contains(detail), "{error}");
    }
}

#[test]
fn the_way_of_setting_caps_is_selected() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let with = |line: &str| {
        let path = folder.path().join("power-agent.toml");
        std::fs::write(&path, text.replace("control = \"nvml\"", line)).unwrap();
        load(&path)
    };
    assert_eq!(with("control = \"nvml\"").unwrap().control, Control::Nvml);
    assert_eq!(with("control = \"zeusd\"").unwrap().control, Control::Zeusd);
    let advised = with("control = \"advise\"").unwrap();
    assert!(advised.control == Control::Advise && advised.settings().advise_only);
    for (line, named) in [
        ("control = \"none\"", "unknown variant"),
        ("zeusd_address = \"10.0.0.7:4938\"", "not on loopback"),
        ("zeusd_address = \"localhost\"", "zeusd_address"),
        ("zeusd_socket = \"/a\"\nzeusd_address = \"127.0.0.1:4938\"", "keep one of the two"),
    ] {
        let error = with(line).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("power-agent.toml"), "{error}");
    }
}

//! A cluster described by a file: groups of equal nodes with their GPUs, boards and leaf switches.
//!
//! ```toml
//! [[nodes]]
//! count = 16
//! gpus = 8
//! gpus_per_board = 4   # GPUs on one board, a power of two; optional
//! gpu_type = "a100"
//! per_switch = 4       # nodes below each leaf switch; optional
//! ```
//!
//! This example equals `16x2x4:a100/4`. Groups may differ in GPU type and size.

use std::path::Path;

use serde::Deserialize;
use wattle_common::topology::{ClusterShape, NodeGroup};
use wattle_simulator::input_file::{self, InputError};

/// Largest accepted file, bytes.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    count: u32,
    gpus: u32,
    gpus_per_board: Option<u32>,
    gpu_type: String,
    per_switch: Option<u32>,
}

/// Parses the cluster argument of the command line: a shape, or the name of a `.toml` file.
///
/// # Errors
/// A sentence that names the fault and its place.
pub(crate) fn cluster(text: &str) -> Result<ClusterShape, String> {
    let path = Path::new(text);
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
        return text.parse().map_err(|error| format!("{error}; or name a .toml file"));
    }
    let file = input_file::read(path, BYTES_MAX).map_err(|error| match error {
        InputError::TooLarge(_) => {
            format!("{text} is larger than 1 MiB; a cluster file is a few lines")
        }
        error => format!("{text} cannot be read: {error}"),
    })?;
    parse_toml(&String::from_utf8_lossy(&file)).map_err(|error| format!("{text}: {error}"))
}

fn parse_toml(text: &str) -> Result<ClusterShape, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let group = |group: Group| NodeGroup {
        nodes: group.count,
        gpus_per_node: group.gpus,
        gpus_per_board: group.gpus_per_board,
        gpu_type: group.gpu_type.to_ascii_lowercase(),
        nodes_per_switch: group.per_switch,
    };
    ClusterShape::of(file.nodes.into_iter().map(group).collect()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_equals_its_text_form() {
        let example = include_str!("../../deploy/demo/cluster.toml");
        let shape = parse_toml(example).unwrap();
        assert_eq!(shape, cluster("8x2x4:a100/4,4x4:v100").unwrap());
        assert_eq!(shape.to_string(), "8x2x4:a100/4,4x4:v100");
        let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo/cluster.toml");
        assert_eq!(cluster(name).unwrap(), shape);
    }

    #[test]
    fn errors_name_the_fault() {
        for (text, expected) in [
            ("", "nodes"),
            ("nodes = []", "expected NODESxGPUS:TYPE"),
            ("[[nodes]]\ncount = 0\ngpus = 8\ngpu_type = \"v100\"", "0x8:v100"),
            ("[[nodes]]\ncount = 1\ngpus = 8\ngpu_type = \"v100\"\nper_swich = 4", "per_swich"),
            (
                "[[nodes]]\ncount = 1\ngpus = 6\ngpu_type = \"v100\"\ngpus_per_board = 3",
                "boards of 3 GPUs: the size must be 1, 2, 4, 8, ...",
            ),
            (
                "[[nodes]]\ncount = 1\ngpus = 6\ngpu_type = \"v100\"\ngpus_per_board = 4",
                "6 GPUs are not a multiple of the board size 4",
            ),
        ] {
            let error = parse_toml(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(cluster("no/such.toml").unwrap_err().contains("no/such.toml cannot be read"));
        assert!(cluster("8x8").unwrap_err().contains(".toml"));
    }
}

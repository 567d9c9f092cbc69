//! Feeders for a simulation: the tables `[[feeder]]` and `[[node]]` of a file, such as `placer.toml`.

use std::path::Path;

use wattle_common::config::Problem;
use wattle_placer::config::feeders::Feeders;
use wattle_runtime::config::parse_located;
use wattle_simulator::Scenario;
use wattle_simulator::input_file::{self, InputError};
use wattle_world::World;

use crate::output::{usage, usage_chain};

/// Largest accepted file, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Puts the nodes of a scenario on the feeders of the file at `path`.
///
/// # Errors
/// Names the file, the line and the remedy.
pub(crate) fn read(path: &Path, world: &World, scenario: &mut Scenario) -> anyhow::Result<()> {
    let name = path.display();
    let file = input_file::read(path, BYTES_MAX).map_err(|error| match error {
        InputError::TooLarge(_) => usage(format!("--feeders {name} is larger than 1 MiB")),
        error => usage(format!("--feeders {name} cannot be read: {error}")),
    })?;
    let set = |feeders: &Feeders| {
        let tree = feeders.tree()?;
        if tree.is_empty() {
            return Err(Problem::from(
                "it has no table [[feeder]]; add one for each feeder".to_owned(),
            ));
        }
        let wrong = |error: wattle_common::feeders::FeederError| Problem {
            at: feeders.at(error.place),
            text: error.problem,
        };
        scenario.set_feeders(world, tree).map_err(wrong)
    };
    parse_located(&String::from_utf8_lossy(&file), path, set).map_err(usage_chain)?;
    Ok(())
}

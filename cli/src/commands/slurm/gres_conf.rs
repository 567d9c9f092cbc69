//! `wattle slurm gres-conf`: this node's lines of gres.conf and slurm.conf.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use wattle_slurm::gres_conf::{Information, cards, lines};

use crate::output::{print, usage};

/// Print this node's lines of gres.conf and slurm.conf.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle slurm gres-conf\n  wattle slurm gres-conf --node gpu07 --guests 0"
)]
pub(super) struct GresConf {
    /// NodeName in slurm.conf [default: the host name up to its first dot]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Number of jobs beside the first that may share each GPU: 0 without the level share
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=7))]
    guests: u32,
    /// Folder in which the NVIDIA driver lists its GPUs
    #[arg(long, value_name = "DIR", default_value = "/proc/driver/nvidia/gpus", hide = true)]
    gpus: PathBuf,
}

/// Runs the command.
pub(super) fn run(command: &GresConf) -> anyhow::Result<()> {
    let found = read(&command.gpus)?;
    let node = match &command.node {
        Some(node) => node.clone(),
        None => host_name().context("the host name is not known: give --node")?,
    };
    print(lines(&node, &cards(found, &[]), command.guests).trim_end())
}

fn read(folder: &Path) -> anyhow::Result<Vec<Information>> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        usage(format!(
            "the NVIDIA driver lists no GPUs in {} ({error}): run the command on a node with GPUs",
            folder.display()
        ))
    })?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path().join("information");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let information = Information::parse(&text);
        found.push(information.with_context(|| format!("no Device Minor in {}", path.display()))?);
    }
    anyhow::ensure!(!found.is_empty(), "no GPU is in {}", folder.display());
    Ok(found)
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    name.split('.').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_from_the_drivers_folder() {
        let folder = tempfile::tempdir().unwrap();
        for (bus, minor) in [("0000:d8:00.0", 0), ("0000:3b:00.0", 1)] {
            std::fs::create_dir(folder.path().join(bus)).unwrap();
            let text = format!("Model: Tesla V100\nBus Location: {bus}\nDevice Minor: {minor}\n");
            std::fs::write(folder.path().join(bus).join("information"), text).unwrap();
        }
        let mut found = read(folder.path()).unwrap();
        found.sort_by_key(|information| information.minor);
        assert_eq!(found[1].bus, "0000:3b:00.0");
        let missing = read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("on a node with GPUs"), "{missing}");
    }
}

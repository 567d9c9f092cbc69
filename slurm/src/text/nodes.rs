//! Nodes as `scontrol show node` prints them. Only administrators control their texts.

use std::collections::BTreeMap;

use wattle_common::NodeId;
use wattle_common::id::GpuIndex;

use super::TextError;
use super::gres::{GresList, held_indices, index_of_type, split_outside_parentheses};
use crate::view::SlurmNode;

/// State flags of a node that starts no jobs. A node that is powered down wakes up for one.
const UNAVAILABLE: [&str; 16] = [
    "DOWN",
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "NOT_RESPONDING",
    "NO_RESPOND",
    "INVAL",
    "INVALID_REG",
    "MAINT",
    "MAINTENANCE",
    "UNKNOWN",
    "FUTURE",
    "BLOCKED",
    "POWERING_DOWN",
];
/// State flags of a node that power saving has switched off, or boots.
const ASLEEP: [&str; 4] = ["POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN", "POWERING_UP"];

/// A node as the program prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownNode {
    /// Its name in Slurm, which need not be a [`NodeId`].
    pub name: String,
    /// Its configured generic resources.
    pub gres: GresList,
    /// Version of its slurmd; empty before it has registered.
    pub version: String,
    /// State and flags: `MIXED+DRAIN`.
    pub state: String,
    /// Partitions.
    pub partitions: Vec<String>,
    /// The node.
    pub node: SlurmNode,
}

/// The nodes of the output, in its order.
///
/// # Errors
/// If a number is none.
pub fn nodes(output: &str) -> Result<Vec<ShownNode>, TextError> {
    let mut records: Vec<Vec<&str>> = Vec::new();
    for line in output.lines() {
        if line.starts_with("NodeName=") {
            records.push(vec![line]);
        } else if let Some(record) = records.last_mut() {
            record.push(line.trim_start());
        }
    }
    records.iter().map(|lines| node(lines)).collect()
}

/// The nodes with GPUs whose names are ids.
#[must_use]
pub fn with_gpus(nodes: &[ShownNode]) -> BTreeMap<NodeId, SlurmNode> {
    let with_gpus = nodes.iter().filter(|shown| !shown.node.gpus.is_empty());
    with_gpus
        .filter_map(|shown| Some((NodeId::new(&shown.name).ok()?, shown.node.clone())))
        .collect()
}

fn node(lines: &[&str]) -> Result<ShownNode, TextError> {
    let get = |name: &str| -> &str {
        let values = lines.iter().filter(|line| !is_free(line)).flat_map(|line| line.split(' '));
        values
            .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .next()
            .unwrap_or_default()
    };
    let number = |name: &str| first_number(get(name));
    let reason = lines.iter().find_map(|line| line.strip_prefix("Reason=")).unwrap_or_default();
    let gres = GresList::parse(get("Gres"))?;
    let list = |name| {
        let items = get(name).split(',').filter(|item| !super::gres::is_absent(item));
        items.map(str::to_owned).collect::<Vec<_>>()
    };
    let cpus = number("CPUEfctv").or_else(|| number("CPUTot"));
    let memory = number("RealMemory");
    let (Some(cpus), Some(memory)) = (cpus, memory) else {
        return Err(TextError::new("node without CPUs or memory", &lines.join(" ")));
    };
    let state = get("State");
    Ok(ShownNode {
        name: get("NodeName").to_owned(),
        node: SlurmNode {
            unavailable: unavailable(state, reason),
            asleep: is_asleep(state),
            cpus,
            memory_mib: memory.saturating_sub(number("MemSpecLimit").unwrap_or(0)),
            cpus_allocated: number("CPUAlloc").unwrap_or(0),
            memory_mib_allocated: number("AllocMem").unwrap_or(0),
            gpus: gpus(&gres),
            gpus_used: used(get("GresUsed"))?,
            partitions: list("Partitions"),
            features: list("ActiveFeatures"),
        },
        gres,
        version: get("Version").to_owned(),
        state: state.to_owned(),
        partitions: list("Partitions"),
    })
}

/// Whether the rest of the line is the text of a person or of the operating system.
fn is_free(line: &str) -> bool {
    ["Reason=", "Comment=", "Extra=", "OS="].iter().any(|name| line.starts_with(name))
}

/// The indices of the types `g<index>`; otherwise one for each GPU, from 0.
fn gpus(gres: &GresList) -> Vec<GpuIndex> {
    let typed: Option<Vec<GpuIndex>> =
        gres.types("gpu").map(|(kind, _)| index_of_type(kind)).collect();
    match typed {
        Some(mut indices) => {
            indices.sort_unstable();
            indices
        }
        None => (0..u32::try_from(gres.count("gpu")).unwrap_or(0).min(1024)).collect(),
    }
}

/// The indices of `gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),shard:0`, without shards and guests.
fn used(text: &str) -> Result<Vec<GpuIndex>, TextError> {
    let items = split_outside_parentheses(text).into_iter();
    let gpus: Vec<&str> = items.filter(|item| item.starts_with("gpu:")).collect();
    held_indices(&gpus.join(","))
}

/// `drain: bad DIMM` of the state `IDLE+DRAIN` and the reason `bad DIMM [root@1795581184]`.
fn unavailable(state: &str, reason: &str) -> Option<String> {
    // `*` marks a node that does not answer; other characters mark power states.
    let is_silent = state.contains('*') && !is_asleep(state);
    let flag = flags(state).find(|flag| UNAVAILABLE.contains(flag));
    let flag = flag.or(is_silent.then_some("NOT_RESPONDING"))?;
    let reason = reason.rsplit_once(" [").map_or(reason, |(text, _)| text).trim();
    let flag = flag.to_ascii_lowercase().replace('_', " ");
    Some(if reason.is_empty() { flag } else { format!("{flag}: {reason}") })
}

/// Whether power saving has switched the node off, or boots it.
fn is_asleep(state: &str) -> bool {
    flags(state).any(|flag| ASLEEP.contains(&flag))
}

fn flags(state: &str) -> impl Iterator<Item = &str> {
    state.split('+').map(|flag| flag.trim_end_matches(|c: char| !c.is_ascii_alphabetic()))
}

fn first_number(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_slurm_22_05() {
        let shown = nodes(include_str!("../../tests/slurm-22.05/show-node.txt")).unwrap();
        let names: Vec<&str> = shown.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["tx1", "tx2", "tx3"]);
        let drained = &shown[2];
        assert_eq!(drained.node.unavailable.as_deref(), Some("drain: bad DIMM State=IDLE"));
        assert_eq!(drained.state, "IDLE+DRAIN");
        assert_eq!(shown[0].node.unavailable, None);
        assert_eq!(shown[0].node.gpus, [0, 1, 2, 3]);
        assert_eq!((shown[0].node.cpus, shown[0].node.memory_mib), (16, 64_000));
        assert_eq!((shown[0].node.cpus_allocated, shown[0].node.memory_mib_allocated), (7, 3548));
        assert_eq!(shown[0].node.features, ["v100"]);
        assert_eq!(shown[0].version, "22.05.8");
        assert_eq!(shown[0].partitions, ["gpu"]);
        assert_eq!(with_gpus(&shown).len(), 3);
    }

    #[test]
    fn a_sleeping_node_is_available_and_a_silent_one_is_not() {
        assert_eq!(unavailable("IDLE+CLOUD+POWERED_DOWN", ""), None);
        assert_eq!(unavailable("MIXED+PLANNED", ""), None);
        assert_eq!(unavailable("IDLE~", ""), None);
        assert_eq!(unavailable("IDLE*+POWERED_DOWN", ""), None);
        assert_eq!(unavailable("IDLE+POWERING_DOWN", "").as_deref(), Some("powering down"));
        assert_eq!(unavailable("IDLE*", "").as_deref(), Some("not responding"));
        assert_eq!(unavailable("DOWN*+DRAIN", "x [a@1]").as_deref(), Some("down: x"));
    }

    #[test]
    fn used_gpus_are_read() {
        let read = |text| used(text).unwrap();
        assert_eq!(read("gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),shard:g0:0(IDX:N/A)"), [0]);
        assert_eq!(read("gpu:v100:3(IDX:0-1,3),guest:g2:1(IDX:2)"), [0, 1, 3]);
        assert_eq!(read("gpu:2(IDX:1-2)"), [1, 2]);
        assert_eq!(read("gpu:g0:1,gpu:g1:1,shard:0"), [0, 1], "while slurmctld starts");
        assert_eq!(read(""), Vec::<GpuIndex>::new());
    }

    #[test]
    fn power_saving_is_read() {
        assert!(
            ["IDLE+CLOUD+POWERED_DOWN", "MIXED+POWERING_UP", "IDLE+POWERING_DOWN"]
                .iter()
                .all(|s| is_asleep(s))
        );
        assert!(!["IDLE", "IDLE+PLANNED", "DOWN*"].iter().any(|s| is_asleep(s)));
    }

    #[test]
    fn gpus_without_index_types_are_counted() {
        let of = |text| gpus(&GresList::parse(text).unwrap());
        assert_eq!(of("gpu:v100:2,gpu:a100:1"), [0, 1, 2]);
        assert_eq!(of("gpu:g2:1,gpu:g0:1"), [0, 2]);
        assert_eq!(of("(null)"), Vec::<u32>::new());
    }
}

//! Lines of gres.conf and slurm.conf that let Slurm assign GPUs by their index.
//!
//! Slurm has no request for an index. A type for each GPU, `g<index>`, serves as one. The generic resource
//! `guest` has the same device files, so that a job can hold a place on a GPU beside another job.

use std::fmt::Write as _;

use wattle_common::gpu_type::gpu_type_of;
use wattle_common::id::GpuIndex;

/// A GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its index, as in NVML.
    pub index: GpuIndex,
    /// Its minor number: the device file is `/dev/nvidia<minor>`, which may differ from the index.
    pub minor: u32,
    /// Its address on the PCI bus.
    pub bus: String,
    /// Its name: `Tesla V100-SXM2-16GB`.
    pub model: String,
}

/// What the NVIDIA driver writes about a GPU, in the file `information` of its folder below
/// `/proc/driver/nvidia/gpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Information {
    /// Its address on the PCI bus: `0000:3b:00.0`.
    pub bus: String,
    /// UUID; unknown digits are question marks before the GPU's first use.
    pub uuid: String,
    /// Minor number.
    pub minor: u32,
    /// Name.
    pub model: String,
}

impl Information {
    /// The content of the file; `None` without a minor number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        Some(Self {
            minor: value("Device Minor")?.parse().ok()?,
            bus: value("Bus Location").unwrap_or_default(),
            uuid: value("GPU UUID").unwrap_or_default(),
            model: value("Model").unwrap_or_default(),
        })
    }
}

/// The GPUs with their indices. `uuids` are those that NVML lists, in the order of its indices; without
/// them the order is that of the PCI addresses, which is NVML's, too.
#[must_use]
pub fn cards(mut found: Vec<Information>, uuids: &[String]) -> Vec<Card> {
    found.sort_by_key(|found| found.bus.to_ascii_lowercase());
    let by_uuid: Option<Vec<&Information>> =
        uuids.iter().map(|uuid| found.iter().find(|info| info.uuid == *uuid)).collect();
    let ordered =
        by_uuid.filter(|cards| !cards.is_empty()).unwrap_or_else(|| found.iter().collect());
    let card = |(index, info): (GpuIndex, &Information)| Card {
        index,
        minor: info.minor,
        bus: info.bus.clone(),
        model: info.model.clone(),
    };
    (0..).zip(ordered).map(card).collect()
}

/// The lines for a node. `guests`: how many jobs besides the first may hold a place on each GPU.
#[must_use]
pub fn lines(node: &str, cards: &[Card], guests: u32) -> String {
    let names = names(guests);
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(text, "# gres.conf: replaces the lines of {node}; AutoDetect must be off");
    for name in &names {
        for Card { index, minor, bus, model } in cards {
            let comment = if name == "gpu" { format!("  # {bus} {model}") } else { String::new() };
            let _ = writeln!(
                text,
                "NodeName={node} Name={name} Type=g{index} File=/dev/nvidia{minor}{comment}"
            );
        }
    }
    let of = |name: &String| {
        cards.iter().map(|card| format!("{name}:g{}:1", card.index)).collect::<Vec<_>>().join(",")
    };
    let gres: Vec<String> = names.iter().map(of).collect();
    let mut types: Vec<String> = cards.iter().map(|card| gpu_type_of(&card.model)).collect();
    types.sort();
    types.dedup();
    let tres: Vec<String> = names.iter().map(|name| format!("gres/{name}")).collect();
    let _ = writeln!(text, "\n# slurm.conf: add to the lines that are there");
    let _ = writeln!(text, "GresTypes={}", names.join(","));
    let _ = writeln!(text, "AccountingStorageTRES={}", tres.join(","));
    let _ = writeln!(text, "NodeName={node} Gres={} Feature={}", gres.join(","), types.join(","));
    text
}

/// `gpu`, `guest`, `guest2`, ...
fn names(guests: u32) -> Vec<String> {
    let guest = |n: u32| if n == 1 { "guest".to_owned() } else { format!("guest{n}") };
    std::iter::once("gpu".to_owned()).chain((1..=guests).map(guest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn information(bus: &str, uuid: &str, minor: u32) -> Information {
        // The form of the driver's file.
        let text = format!(
            "Model: \t\t Tesla V100-SXM2-16GB\nIRQ:   \t\t 73\nGPU UUID: \t {uuid}\n\
             Video BIOS: \t 88.00.4f.00.09\nBus Type: \t PCIe\nBus Location: \t {bus}\n\
             Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        );
        Information::parse(&text).unwrap()
    }

    #[test]
    fn minor_numbers_are_found_by_uuid_or_bus() {
        let found = || {
            vec![information("0000:d8:00.0", "GPU-b", 0), information("0000:3B:00.0", "GPU-a", 1)]
        };
        let minors = |uuids: &[&str]| {
            let uuids: Vec<String> = uuids.iter().map(|&uuid| uuid.to_owned()).collect();
            cards(found(), &uuids).iter().map(|card| (card.index, card.minor)).collect::<Vec<_>>()
        };
        assert_eq!(minors(&[]), [(0, 1), (1, 0)]);
        assert_eq!(minors(&["GPU-b", "GPU-a"]), [(0, 0), (1, 1)]);
        // A GPU that NVML does not list.
        assert_eq!(minors(&["GPU-b"]), [(0, 0)]);
        // A UUID that the driver does not know: the order of the bus.
        assert_eq!(minors(&["GPU-c"]), [(0, 1), (1, 0)]);
        assert_eq!(Information::parse("Model: x\n"), None);
    }

    #[test]
    fn lines_of_a_node() {
        let found =
            vec![information("0000:3b:00.0", "GPU-a", 1), information("0000:d8:00.0", "GPU-b", 0)];
        expect![[r"
            # gres.conf: replaces the lines of n1; AutoDetect must be off
            NodeName=n1 Name=gpu Type=g0 File=/dev/nvidia1  # 0000:3b:00.0 Tesla V100-SXM2-16GB
            NodeName=n1 Name=gpu Type=g1 File=/dev/nvidia0  # 0000:d8:00.0 Tesla V100-SXM2-16GB
            NodeName=n1 Name=guest Type=g0 File=/dev/nvidia1
            NodeName=n1 Name=guest Type=g1 File=/dev/nvidia0

            # slurm.conf: add to the lines that are there
            GresTypes=gpu,guest
            AccountingStorageTRES=gres/gpu,gres/guest
            NodeName=n1 Gres=gpu:g0:1,gpu:g1:1,guest:g0:1,guest:g1:1 Feature=v100
        "]]
        .assert_eq(&lines("n1", &cards(found, &[]), 1));
        assert_eq!(names(2), ["gpu", "guest", "guest2"]);
    }
}

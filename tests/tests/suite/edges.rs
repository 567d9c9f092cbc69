//! Dependencies between crates: `cargo metadata` against the table of ARCHITECTURE.md.
//!
//! Reads what the manifests declare and fails on any edge the table does not have. Features count:
//! a service's library may use less than its binary, and only `gpu` may name the NVML wrapper, only
//! `runtime` the NATS client.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// (package, what its library may use, what its `service` feature may add)
const TABLE: &[(&str, &[&str], &[&str])] = &[
    ("common", &[], &[]),
    ("runtime", &["common"], &[]),
    ("gpu", &["common"], &[]),
    // For tests only: no row names it, and dev-dependencies are not edges.
    ("testkit", &["common"], &[]),
    // The fuzz targets read what every service reads.
    (
        "fuzz",
        &[
            "common",
            "runtime",
            "profiler",
            "predictor",
            "registry",
            "placer",
            "power-agent",
            "launcher",
            "web",
            "openadr",
            "simulator",
            "testkit",
        ],
        &[],
    ),
    ("world", &["common"], &[]),
    ("nvml-sim", &["common", "world"], &[]),
    ("profiler", &["common", "gpu"], &["runtime"]),
    ("predictor", &["common"], &["runtime"]),
    ("registry", &["common"], &["runtime"]),
    ("grid", &["common"], &[]),
    ("openadr", &["common", "grid"], &["runtime"]),
    ("placer", &["common", "grid"], &["runtime"]),
    ("power-agent", &["common", "gpu"], &["runtime"]),
    ("launcher", &["common"], &["runtime"]),
    ("site", &["common"], &["runtime"]),
    ("slurm", &["common", "site"], &["runtime"]),
    ("view", &["common", "placer"], &[]),
    ("web", &["common", "view"], &["runtime"]),
    ("measurements", &["common"], &[]),
    ("evaluation", &["common", "predictor", "measurements"], &[]),
    ("baselines", &["common", "placer"], &[]),
    (
        "simulator",
        &["common", "world", "grid", "predictor", "placer", "slurm", "measurements"],
        &[],
    ),
    ("saving", &["common", "world", "placer", "simulator", "view"], &[]),
    ("experiments", &["common", "world", "placer", "baselines", "simulator", "saving"], &[]),
    ("lab", &["cli", "predictor", "simulator", "baselines", "experiments", "evaluation"], &[]),
    (
        "cli",
        &[
            "common",
            "runtime",
            "gpu",
            "world",
            "placer",
            "predictor",
            "launcher",
            "slurm",
            "view",
            "simulator",
            "saving",
        ],
        &[],
    ),
];

/// External packages that only some crates may use.
const FOREIGN: &[(&str, &[&str])] = &[
    ("async-nats", &["runtime"]),
    // nvml-sim's own tests load it through the unchanged wrapper; its library does not.
    ("nvml-wrapper", &["gpu"]),
    // Requests to providers, and to the collector of spans.
    ("ureq", &["grid", "runtime"]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

struct Package {
    room: String,
    /// Dependency name -> whether it is optional; dev-dependencies are left out.
    uses: BTreeMap<String, bool>,
    /// Feature -> what it switches on.
    features: BTreeMap<String, Vec<String>>,
    manifest: PathBuf,
}

fn packages() -> Vec<Package> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    metadata()["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| Package {
            room: text(&p["name"]).trim_start_matches("wattle-").to_owned(),
            uses: p["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|d| d["kind"] != "dev")
                .map(|d| (text(&d["name"]), d["optional"].as_bool().unwrap()))
                .collect(),
            features: serde_json::from_value(p["features"].clone()).unwrap(),
            manifest: PathBuf::from(text(&p["manifest_path"])),
        })
        .collect()
}

#[test]
fn every_edge_is_in_the_table() {
    let packages = packages();
    let rooms: BTreeSet<&str> = packages.iter().map(|p| p.room.as_str()).collect();
    let known: BTreeSet<&str> = TABLE.iter().map(|(room, ..)| *room).chain(["tests"]).collect();
    assert_eq!(rooms, known, "a room that the table does not have, or the other way round");

    for package in packages.iter().filter(|p| p.room != "tests") {
        let (_, library, service) =
            TABLE.iter().find(|(room, ..)| *room == package.room).expect("compared above");
        for (name, optional) in &package.uses {
            let Some(used) = name.strip_prefix("wattle-") else { continue };
            let in_library = library.contains(&used);
            let in_service = service.contains(&used) && *optional;
            assert!(
                in_library || in_service,
                "{} uses {used}{}: the table does not have that edge",
                package.room,
                if *optional { "" } else { " in its library" },
            );
        }
    }
}

#[test]
fn a_service_shell_is_a_feature_that_the_simulator_does_without() {
    for package in packages() {
        let has_shell = TABLE.iter().any(|(room, _, s)| *room == package.room && !s.is_empty());
        if !has_shell {
            continue;
        }
        let service = package.features.get("service").expect("a service has the feature `service`");
        assert!(service.contains(&"dep:wattle-runtime".to_owned()), "{}", package.room);
        for tool in ["tokio", "anyhow", "clap"] {
            let optional = package.uses.get(tool).copied();
            assert_ne!(optional, Some(false), "{}'s library names {tool}", package.room);
        }
    }
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let rooms = ["profiler", "predictor", "registry", "placer", "power-agent", "launcher", "slurm"];
    for room in rooms.into_iter().chain(["gpu", "site"]) {
        let line = workspace.lines().find(|l| l.starts_with(&format!("wattle-{room} = "))).unwrap();
        assert!(line.contains("default-features = false"), "{line}");
    }
    let simulator = packages().into_iter().find(|p| p.room == "simulator").unwrap();
    assert!(!simulator.uses.contains_key("tokio") && !simulator.uses.contains_key("async-nats"));
}

#[test]
fn bus_and_driver_are_each_known_to_one_room() {
    for package in packages() {
        for (name, allowed) in FOREIGN {
            let named = package.uses.contains_key(*name);
            assert!(
                !named || allowed.contains(&package.room.as_str()),
                "{} names {name}",
                package.room
            );
        }
    }
}

/// The judge is never the player: no path of edges leads from these to `world`.
#[test]
fn players_do_not_reach_the_judge() {
    let packages = packages();
    for player in ["predictor", "registry", "placer", "profiler", "power-agent"] {
        let mut reached = BTreeSet::from([player.to_owned()]);
        let mut todo = vec![player.to_owned()];
        while let Some(room) = todo.pop() {
            let package = packages.iter().find(|p| p.room == room).unwrap();
            for used in package.uses.keys().filter_map(|name| name.strip_prefix("wattle-")) {
                if reached.insert(used.to_owned()) {
                    todo.push(used.to_owned());
                }
            }
        }
        assert!(!reached.contains("world"), "{player} reaches world: {reached:?}");
    }
}

/// What a site runs builds without the laboratory: no path of edges leads from the default members to it.
#[test]
fn a_site_builds_without_the_laboratory() {
    const LABORATORY: [&str; 4] = ["baselines", "experiments", "evaluation", "lab"];
    let (packages, metadata) = (packages(), metadata());
    let ids = metadata["workspace_default_members"].as_array().unwrap();
    let names = metadata["packages"].as_array().unwrap().iter();
    let is_default = |package: &&Value| ids.contains(&package["id"]);
    let name = |package: &Value| package["name"].as_str().unwrap().to_owned();
    let mut todo: Vec<String> = names.filter(is_default).map(name).collect();
    assert!(todo.len() > 10 && todo.len() < packages.len(), "{todo:?}");
    for program in ["wattle-cli", "wattle-placer", "wattle-slurm", "wattle-nvml-sim"] {
        assert!(todo.iter().any(|known| known == program), "{program} is no default member");
    }
    let mut reached = BTreeSet::new();
    while let Some(name) = todo.pop() {
        let Some(room) = name.strip_prefix("wattle-") else { continue };
        if reached.insert(room.to_owned()) {
            let package = packages.iter().find(|package| package.room == room).unwrap();
            todo.extend(package.uses.keys().cloned());
        }
    }
    let built: Vec<_> = LABORATORY.iter().filter(|room| reached.contains(**room)).collect();
    assert!(built.is_empty(), "a site builds {built:?}");
}

#[test]
fn every_room_takes_the_workspaces_lints() {
    for package in packages() {
        let manifest = std::fs::read_to_string(&package.manifest).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", package.room);
    }
}

//! `docs/messages.md` compared with the code: both must have the same subjects, buckets and streams.

use std::collections::BTreeSet;

use wattle_common::ClusterId;
use wattle_common::subject::{Bucket, LeaseKey, PredictorKey, Reporter, StreamName, Topic};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/messages.md");
    std::fs::read_to_string(path).expect("docs/messages.md is part of the repository")
}

/// The first cell of every table row under `heading`, without its backticks.
fn first_cells(heading: &str) -> BTreeSet<String> {
    let page = page();
    let section = page.split("\n## ").find(|s| s.starts_with(heading)).expect(heading);
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(cell, _)| cell.to_owned())
        .collect()
}

/// A name with the cluster written as in the page.
fn marked(name: &str) -> String {
    name.replace("CLUSTER", "<cluster>")
}

#[test]
fn tables_have_exactly_the_subjects() {
    let ours: BTreeSet<String> = Topic::ALL.iter().map(|topic| topic.form()).collect();
    assert_eq!(first_cells("Subjects"), ours);
}

#[test]
fn tables_have_exactly_the_buckets_and_streams() {
    let cluster = ClusterId::new("CLUSTER").unwrap();
    let buckets: BTreeSet<String> =
        Bucket::ALL.iter().map(|bucket| marked(&bucket.name(&cluster))).collect();
    assert_eq!(first_cells("Key-value buckets"), buckets);
    let streams: BTreeSet<String> =
        StreamName::ALL.iter().map(|stream| marked(&stream.name(&cluster))).collect();
    assert_eq!(first_cells("Streams"), streams);
    for stream in StreamName::ALL {
        assert!(page().contains(&format!("`{}`", stream.topic().form())));
    }
}

#[test]
fn payloads_and_keys_are_documented() {
    let page = page();
    let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/src/messages.rs");
    let source = std::fs::read_to_string(modules).unwrap();
    // Each message type in a table must exist in the code.
    for cell in page.lines().filter(|l| l.starts_with("| `wattle")).flat_map(|l| l.split('|')) {
        let name = cell.trim().split('`').nth(1).unwrap_or_default();
        let is_type = name.starts_with(char::is_uppercase);
        assert!(!is_type || source.contains(name), "{name} is documented but not in the code");
    }
    let node = wattle_common::NodeId::new("NODE").unwrap();
    for reporter in [Reporter::Launcher, Reporter::Power] {
        let key = reporter.key(&node).replace("NODE", "<node>");
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
    let named = wattle_common::id::PredictorId::new("NAME").unwrap();
    let keys = [PredictorKey::Status(named.clone()), PredictorKey::Scores(named.clone())];
    let champion = [PredictorKey::Champion];
    let leases = [
        LeaseKey::Placer,
        LeaseKey::Registry,
        LeaseKey::Slurm,
        LeaseKey::OpenAdr,
        LeaseKey::Predictor(named),
    ];
    let of_node = [LeaseKey::Profiler(node.clone()), LeaseKey::Power(node)];
    let keys = keys.iter().chain(&champion).map(ToString::to_string);
    for key in keys.chain(leases.iter().chain(&of_node).map(ToString::to_string)) {
        let key = key.replace("NAME", "<predictor>").replace("NODE", "<node>");
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
}

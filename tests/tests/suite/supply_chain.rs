//! The dependencies against `deny.toml`: licences, sources and duplicates, without cargo-deny.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rules() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

fn strings(list: &toml::Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// All packages that a build for Linux uses.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--locked"])
        .args(["--filter-platform", TARGET])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether a licence expression is satisfied by allowed licences. The older `/` means OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let plain = expression.replace('/', " OR ");
    let alternatives = |part: &str| {
        let part = part.trim().trim_start_matches('(').trim_end_matches(')').to_owned();
        part.split(" OR ").any(|licence| allowed.contains(licence.trim()))
    };
    plain.split(" AND ").all(alternatives)
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT", "Unicode-3.0"].map(str::to_owned).into();
    for fine in ["MIT", "MIT/X", "GPL-3.0 OR MIT", "(MIT OR X) AND Unicode-3.0"] {
        assert!(is_allowed(fine, &allowed), "{fine}");
    }
    for wrong in ["GPL-3.0", "MIT AND GPL-3.0", "(X OR Y) AND MIT"] {
        assert!(!is_allowed(wrong, &allowed), "{wrong}");
    }
}

#[test]
fn licences_and_sources_are_allowed() {
    let rules = rules();
    let allowed = strings(&rules["licenses"]["allow"]);
    let sources: BTreeSet<String> = strings(&rules["sources"]["allow-registry"])
        .into_iter()
        .map(|index| format!("registry+{index}"))
        .collect();
    let banned: BTreeSet<&str> = rules["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ban| ban["crate"].as_str().unwrap())
        .collect();
    let packages = packages();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in &packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        if !is_allowed(text("license"), &allowed) {
            wrong.push(format!("{name}: licence `{}`", text("license")));
        }
        // The workspace's own packages have no source.
        if !package["source"].is_null() && !sources.contains(text("source")) {
            wrong.push(format!("{name}: source `{}`", text("source")));
        }
        if banned.contains(text("name")) {
            wrong.push(format!("{name}: banned"));
        }
    }
    assert!(wrong.is_empty(), "deny.toml does not allow:\n{}", wrong.join("\n"));
}

#[test]
fn duplicates_are_listed_with_a_reason() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let text = |key: &str| package[key].as_str().unwrap().to_owned();
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    let number = |version: &String| -> Vec<u64> {
        version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
    };
    let older: BTreeSet<String> = versions
        .iter()
        .flat_map(|(name, versions)| {
            let newest = versions.iter().max_by_key(|version| number(version));
            let older = versions.iter().filter(move |version| Some(*version) != newest);
            older.map(move |version| format!("{name}@{version}"))
        })
        .collect();
    let rules = rules();
    let skip = rules["bans"]["skip"].as_array().unwrap();
    let listed: BTreeSet<String> =
        skip.iter().map(|item| item["crate"].as_str().unwrap().to_owned()).collect();
    assert_eq!(older, listed, "`skip` of deny.toml must list the older versions");
    assert!(skip.iter().all(|item| item["reason"].as_str().is_some_and(|why| !why.is_empty())));
}

//! Paths in the documentation exist: every relative link, and every file named in backticks.

use std::path::Path;

use crate::tidy::{files, root, shown};

/// Endings that mark a text in backticks as a path of the repository.
const FILE_ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".py", ".sh", ".conf", ".svg"];

/// The relative link targets of a page, without fragments.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        let is_path = !target.is_empty()
            && !target.contains("::")
            && !target.contains("://")
            && !target.contains(' ');
        is_path.then_some(target)
    })
}

/// The texts in backticks that name a file of a folder: `placer/src/pipeline.rs`.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with("```")).flat_map(|line| {
        line.split('`').skip(1).step_by(2).filter(|name| {
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            is_plain && name.contains('/') && FILE_ENDINGS.iter().any(|end| name.ends_with(end))
        })
    })
}

#[test]
fn links_and_named_files_exist() {
    let mut missing = Vec::new();
    for page in files(".md") {
        let text = std::fs::read_to_string(&page).unwrap();
        let folder = page.parent().unwrap();
        for link in links(&text) {
            if !folder.join(link).exists() {
                missing.push(format!("{}: link {link}", shown(&page)));
            }
        }
        for name in named_files(&text) {
            let is_absolute = name.starts_with('/') || name.starts_with("./");
            if !is_absolute && !root().join(name).exists() && !folder.join(name).exists() {
                missing.push(format!("{}: file {name}", shown(&page)));
            }
        }
    }
    assert!(missing.is_empty(), "{} missing:\n{}", missing.len(), missing.join("\n"));
}

/// The three walks of ARCHITECTURE.md name the files they pass.
#[test]
fn architecture_walks_name_existing_files() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for walk in [
        "One power sample to one decision",
        "One submission to one process",
        "One budget to one cap",
    ] {
        let rest = text.split(walk).nth(1).unwrap_or_else(|| panic!("no walk `{walk}`"));
        let section = rest.split("\n#").next().unwrap();
        let files: Vec<&str> = named_files(section).collect();
        assert!(files.len() >= 5, "{walk}: {files:?}");
        for file in files {
            assert!(Path::new(&root().join(file)).is_file(), "{walk}: no file {file}");
        }
    }
}

/// docs/policies.md has one row per policy, in the order of the table in the placer.
#[test]
fn policies_page_has_every_policy() {
    let text = std::fs::read_to_string(root().join("docs/policies.md")).unwrap();
    let rows: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split('`').next())
        .collect();
    assert_eq!(rows, policies());
}

/// The comment in deploy/placer.toml has one line per policy, in the same order.
#[test]
fn placer_toml_documents_every_policy() {
    let text = std::fs::read_to_string(root().join("deploy/placer.toml")).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("# Scheduling policy"));
    let listed = lines.skip(1).map_while(|line| line.strip_prefix("#   "));
    let names: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, policies());
}

/// The names of all policies, in the order of the table in the placer.
fn policies() -> Vec<String> {
    let source = std::fs::read_to_string(root().join("placer/src/policies/mod.rs")).unwrap();
    let table = source.split("pub const POLICIES").nth(1).and_then(|rest| rest.split("];").next());
    let names: Vec<String> = table
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_suffix("::ENTRY,"))
        .map(|module| module.replace('_', "-"))
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    names
}

//! Paths in the documentation exist: every relative link, every file named in backticks, and every file
//! that a comment names.

use std::path::Path;

use wattle_placer::policies::NAMES;

use crate::tidy::{files, root, shown};

/// Endings that mark a text in backticks as a path of the repository.
const FILE_ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".py", ".sh", ".conf", ".svg"];

/// The relative link targets of a page, with the fragment after `#`, which may be empty.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("](").skip(1).filter_map(|rest| {
        let link = rest.split(')').next()?;
        let (target, fragment) = link.split_once('#').unwrap_or((link, ""));
        let is_path = !link.is_empty()
            && !target.contains("::")
            && !target.contains("://")
            && !target.contains(' ');
        is_path.then_some((target, fragment))
    })
}

/// The fragments by which GitHub links to the headings of a page.
fn anchors(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
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
        for (link, fragment) in links(&text) {
            // docs/build generates these pages (`book.rs` checks them).
            if link.starts_with("reference/") && shown(&page) == "docs/SUMMARY.md" {
                continue;
            }
            let target = if link.is_empty() { page.clone() } else { folder.join(link) };
            if !target.exists() {
                missing.push(format!("{}: link {link}", shown(&page)));
            } else if !fragment.is_empty() && !anchors(&target).contains(&fragment.to_owned()) {
                missing.push(format!("{}: heading #{fragment} in {link}", shown(&page)));
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

/// Whether a text has a date such as 2026-11-26.
fn has_date(text: &str) -> bool {
    let is_date = |word: &str| {
        let parts: Vec<&str> = word.split('-').collect();
        let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        matches!(parts[..], [year, month, day] if (year.len(), month.len(), day.len()) == (4, 2, 2))
            && parts.iter().all(is_number)
    };
    text.split(|c: char| !c.is_ascii_digit() && c != '-').any(is_date)
}

/// The output of a command that no test of the gate runs has the date of its run in the line before it.
#[test]
fn outputs_that_differ_between_runs_have_a_date() {
    let (mut undated, mut seen) = (Vec::new(), 0);
    for page in files(".md") {
        let text = std::fs::read_to_string(&page).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (number, _) in lines.iter().enumerate().filter(|(_, line)| {
            ["```console slow", "```console session dated"].iter().any(|b| line.starts_with(b))
        }) {
            let block = lines[number + 1..].iter().take_while(|line| !line.starts_with("```"));
            let is_output = |line: &&str| !line.starts_with("$ ") && !line.starts_with("    -");
            if !block.copied().any(|line| is_output(&line)) {
                continue;
            }
            seen += 1;
            let before = lines[..number].iter().rev().find(|line| !line.is_empty());
            if !before.is_some_and(|line| has_date(line)) {
                undated.push(format!("{}:{}", shown(&page), number + 1));
            }
        }
    }
    assert!(undated.is_empty(), "without a date: {}", undated.join(", "));
    assert!(seen > 3, "{seen} outputs");
}

/// The comments of a source file: those of the ends `.rs` and `.toml`.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let line = line.trim_start();
        let start = ["//", "#"].into_iter().find(|start| line.starts_with(start))?;
        (!line.starts_with("#[") && !line.starts_with("#!"))
            .then(|| (number + 1, &line[start.len()..]))
    })
}

/// The words of a comment that name a file or folder of the repository: they begin with one of its
/// folders. A line number, a function or a pattern after the path is not part of it.
fn named_paths<'a>(comment: &'a str, folders: &'a [String]) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    comment.split(move |c: char| !is_part(c)).map(|word| word.trim_end_matches('.')).filter(
        |word| {
            let (first, rest) = word.split_once('/').unwrap_or((word, ""));
            !rest.is_empty()
                && folders.iter().any(|folder| folder == first)
                && FILE_ENDINGS.iter().any(|end| word.ends_with(end))
        },
    )
}

/// Files that comments of the code and of configurations name exist.
#[test]
fn files_named_in_comments_exist() {
    let folders: Vec<String> = std::fs::read_dir(root())
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir() && entry.file_name() != "target")
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let (mut missing, mut seen) = (Vec::new(), 0);
    for path in [".rs", ".toml"].into_iter().flat_map(files) {
        let text = std::fs::read_to_string(&path).unwrap();
        // A path may begin in the folder of its package.
        let package = path.ancestors().find(|folder| folder.join("Cargo.toml").is_file()).unwrap();
        for (line, comment) in comments(&text) {
            for name in named_paths(comment, &folders) {
                seen += 1;
                if !root().join(name).exists() && !package.join(name).exists() {
                    missing.push(format!("{}:{line}: {name}", shown(&path)));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{} missing:\n{}", missing.len(), missing.join("\n"));
    assert!(seen > 20, "{seen} paths in comments");
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

/// docs/policies.md has one row per policy, in the order of the tables: those of the placer, then the baselines.
#[test]
fn policies_page_has_every_policy() {
    let text = std::fs::read_to_string(root().join("docs/policies.md")).unwrap();
    let rows: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split('`').next())
        .collect();
    let baselines = wattle_baselines::NAMES.into_iter().filter(|name| !NAMES.contains(name));
    assert_eq!(rows, NAMES.into_iter().chain(baselines).collect::<Vec<_>>());
}

/// The comment in deploy/placer.toml has one line per policy, in the same order.
#[test]
fn placer_toml_documents_every_policy() {
    let text = std::fs::read_to_string(root().join("deploy/placer.toml")).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("# Scheduling policy"));
    let listed = lines.skip(1).map_while(|line| line.strip_prefix("#   "));
    let names: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, NAMES);
}

/// The screens of the pages that show them are whole, with the day of their capture or of a print.
#[test]
fn screens_are_complete_and_dated() {
    for page in ["docs/operating.md", "docs/start.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let cut = (1..).zip(text.lines()).filter(|(_, line)| line.trim() == "...");
        let cut: Vec<usize> = cut.map(|(number, _)| number).collect();
        assert_eq!(cut, [0; 0], "{page}: lines that stand for left-out output");
        let is_captured = text.contains("screens.py) on 20");
        assert!(is_captured || text.contains("```console session dated"), "{page}: a date");
    }
}

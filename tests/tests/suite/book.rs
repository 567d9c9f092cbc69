//! The book (`docs/build`): it has every page, its generated reference is complete, and every link and
//! anchor of its HTML resolves without another host.
//!
//! Without Python or mdBook the tests of the HTML print SKIPPED.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use wattle_runtime::testing::skipped;
use wattle_tests::{program, repository};

use crate::tidy::{files, root, shown};

/// The built book, and whether it has HTML; `None` without Python.
fn build() -> Option<(TempDir, bool)> {
    let folder = tempfile::tempdir().unwrap();
    let programs = program("wattle");
    let output = Command::new("python3")
        .arg(repository("docs/build"))
        .arg("--programs")
        .arg(programs.parent().unwrap())
        .arg("--to")
        .arg(folder.path().join("book"))
        .output();
    let Ok(output) = output else {
        skipped("the book: no python3");
        return None;
    };
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => Some((folder, true)),
        Some(3) => {
            skipped(&format!("a part of the book: {error}"));
            Some((folder, false))
        }
        _ => panic!("docs/build: {}: {error}", output.status),
    }
}

/// The pages of the summary, relative to the repository.
fn chapters() -> BTreeSet<String> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links
        .map(|link| match link.strip_prefix("../") {
            Some(outside) => outside.to_owned(),
            None => format!("docs/{link}"),
        })
        .collect()
}

#[test]
fn summary_has_every_page() {
    let chapters = chapters();
    // Texts of a source folder: rustdoc, and the origin of test data.
    let other = ["docs/SUMMARY.md", "placer/src/policies/wattle/README.md"];
    for page in files(".md") {
        let name = shown(&page);
        let is_page = !other.contains(&name.as_str()) && !name.contains("/tests/");
        assert!(!is_page || chapters.contains(&name), "docs/SUMMARY.md has no line for {name}");
    }
}

/// The values of an attribute in HTML.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    html.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The HTML files below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "html") {
            found.push(path);
        }
    }
}

/// The problems of the links of all pages below a folder, and the number of links.
fn broken_links(book: &Path) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    pages(book, &mut found);
    let texts: BTreeMap<PathBuf, String> = found
        .into_iter()
        .map(|page| (page.clone(), std::fs::read_to_string(&page).unwrap()))
        .collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        texts.iter().map(|(page, html)| (page, values(html, "id").into_iter().collect())).collect();
    let (mut problems, mut links) = (Vec::new(), 0);
    // The page for missing pages has absolute links of an unknown site.
    for (page, html) in texts.iter().filter(|(page, _)| !page.ends_with("404.html")) {
        let place = page.strip_prefix(book).unwrap().display();
        for part in ["src", "srcset", "data"] {
            for value in values(html, part).into_iter().filter(|value| value.contains("//")) {
                problems.push(format!("{place}: {part} of another host: {value}"));
            }
        }
        for tag in html.split("<link ").skip(1).filter_map(|rest| rest.split('>').next()) {
            if tag.contains("//") {
                problems.push(format!("{place}: a linked resource of another host: {tag}"));
            }
        }
        for value in ["href", "src"].into_iter().flat_map(|name| values(html, name)) {
            if value.contains("://") || value.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, fragment) = value.split_once('#').unwrap_or((value, ""));
            let target =
                if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let Ok(target) = target.canonicalize() else {
                problems.push(format!("{place}: nothing at {value}"));
                continue;
            };
            let ids = anchors.get(&target);
            if !fragment.is_empty() && !ids.is_some_and(|ids| ids.contains(fragment)) {
                problems.push(format!("{place}: no anchor {value}"));
            }
        }
    }
    (problems, links)
}

#[test]
fn every_link_of_the_book_resolves() {
    let Some((folder, true)) = build() else { return };
    let book = folder.path().join("book").canonicalize().unwrap();
    let (problems, links) = broken_links(&book);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(links > 1_000, "{links} links");
    // Styles and scripts load nothing from elsewhere.
    for folder in [book.clone(), book.join("css"), book.join("fonts")] {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == "css") {
                let text = std::fs::read_to_string(&path).unwrap();
                let loads = ["url(http", "url('http", "url(\"http", "@import"];
                assert!(!loads.iter().any(|word| text.contains(word)), "{}", path.display());
            }
        }
    }
}

#[test]
fn broken_links_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().canonicalize().unwrap();
    let page = r##"<a href="b.html#there">x</a> <a href="b.html#gone">x</a> <a href="c.html">x</a>
        <img src="https://example.org/x.png"> <link rel="x" href="//example.org/y.css">"##;
    std::fs::write(book.join("a.html"), page).unwrap();
    std::fs::write(book.join("b.html"), r#"<h2 id="there">x</h2>"#).unwrap();
    let (problems, _) = broken_links(&book);
    let all = problems.join("\n");
    for expected in ["no anchor b.html#gone", "nothing at c.html", "src of another", "y.css"] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    assert!(!all.contains("#there"), "{all}");
}

/// The long names of options in a help text.
fn options(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split(' ').take(2));
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn reference_has_every_option_and_key() {
    let Some((folder, _)) = build() else { return };
    let sources = folder.path().join("book-src/src/docs/reference");
    let page = std::fs::read_to_string(sources.join("commands.md")).unwrap();
    let help = |words: &[&str]| {
        let output = Command::new(program("wattle")).args(words).arg("--help").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&[]);
    let listed = all.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let section = page.split(&format!("\n### wattle {name}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("the reference has no {name}"));
        let section = section.split("\n### wattle ").next().unwrap();
        for option in options(&help(&[name])) {
            let is_common = ["--help", "--version"].contains(&option.as_str());
            let row = section.lines().any(|line| line.starts_with("| `") && line.contains(&option));
            assert!(is_common || row, "{name}: the reference has no {option}");
        }
    }
    for file in std::fs::read_dir(root().join("deploy")).unwrap().flatten() {
        let path = file.path();
        if path.extension().is_none_or(|kind| kind != "toml") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let page = sources.join(format!("configuration/{name}.md"));
        let page = std::fs::read_to_string(page).unwrap();
        let table: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for (key, value) in &table {
            let heading = if value.is_table() { format!("## `[{key}") } else { format!("`{key}`") };
            assert!(page.contains(&heading), "{name}: the reference has no {heading}");
            for key in value.as_table().into_iter().flat_map(toml::Table::keys) {
                assert!(page.contains(&format!("`{key}`")), "{name}: no {key}");
            }
        }
    }
}

/// The figures of the page on concepts are drawn with the options below them; each has the jobs of a run.
#[test]
fn figures_are_drawn_from_runs() {
    let page = std::fs::read_to_string(root().join("docs/concepts.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["blocks", "limit", "undo"] {
        let report = format!(" --report docs/figures/{name}.svg`");
        let before = page.split(&report).next().filter(|before| before.len() < page.len());
        let options = before.and_then(|before| before.rsplit('`').next());
        let options = options.unwrap_or_else(|| panic!("{name}: no options"));
        assert!(page.contains(&format!("](figures/{name}.svg)")), "{name}");
        let file = folder.path().join(format!("{name}.svg"));
        let output = Command::new(program("wattle"))
            .arg("simulate")
            .args(options.split(' '))
            .arg("--report")
            .arg(&file)
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let drawn = std::fs::read_to_string(&file).unwrap();
        let title = |svg: &str| values(svg, "aria-label").first().map(ToString::to_string);
        let kept =
            std::fs::read_to_string(root().join(format!("docs/figures/{name}.svg"))).unwrap();
        assert_eq!(title(&drawn), title(&kept), "{name}");
        // A job's rectangle has its title.
        let jobs = drawn.matches("<title>").count();
        assert!(jobs >= 4 && kept.matches("<title>").count() >= 4, "{name}: {jobs} placements");
        assert!(name != "limit" || drawn.contains("limit 1.40\u{a0}kW"), "{name}");
    }
}

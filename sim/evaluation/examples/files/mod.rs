//! Reads the folder of measured files given by `--data`, for the examples.

use std::path::{Path, PathBuf};

use wattle_evaluation::{Format, Source};

/// Value of `--NAME` on the command line.
pub(crate) fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|a| a != name);
    args.nth(1)
}

/// Files of known formats below `root` that `keep` selects.
pub(crate) fn read(root: &Path, keep: impl Fn(Format) -> bool) -> Vec<Source> {
    let mut out = Vec::new();
    walk(root, root, &keep, &mut out);
    out
}

fn walk(root: &Path, dir: &Path, keep: &dyn Fn(Format) -> bool, out: &mut Vec<Source>) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            walk(root, &path, keep, out);
        } else if path.extension().is_some_and(|e| e == "csv") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let file = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if wattle_evaluation::recognise(&text).is_some_and(keep) {
                out.push(Source { file, place: path.to_string_lossy().into_owned(), text });
            }
        }
    }
}

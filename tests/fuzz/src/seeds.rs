//! Seeds and regressions of the targets.

use std::path::{Path, PathBuf};

use crate::Target;

/// The folder of this package.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, std::fs::read(path).ok()?))
    };
    paths.into_iter().filter_map(read).collect()
}

/// Inputs that once failed.
#[must_use]
pub fn regressions(target: &Target) -> Vec<(String, Vec<u8>)> {
    files(&folder().join("regressions").join(target.name))
}

/// The seeds of a target: its corpus, the regressions, and the examples that the repository has.
#[must_use]
pub fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let root = folder().join("../..");
    let mut seeds = files(&folder().join("corpus").join(target.name));
    seeds.extend(regressions(target));
    match target.name {
        "codec" | "messages" => seeds.extend(files(&root.join("common/tests/golden/v1"))),
        "machines" => {
            let examples = files(&root.join("common/tests/golden/v1"));
            seeds.extend(examples.into_iter().filter_map(|(name, bytes)| {
                let kind = crate::targets::machines::kind_of(&name)?;
                let value: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
                Some((name, format!("{kind} {value}\n").into_bytes()))
            }));
        }
        "config" => {
            let examples = files(&root.join("deploy"));
            seeds.extend(examples.into_iter().filter(|(name, _)| name.ends_with(".toml")));
        }
        _ => {}
    }
    seeds.into_iter().map(|(_, bytes)| bytes).collect()
}

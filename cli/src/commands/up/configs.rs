//! The configuration files of the services of `wattle up`.
//!
//! They are the shipped examples (`deploy/*.toml`) with overrides, so every run also tests the examples.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use toml::{Table, Value};
use wattle_runtime::files::{self, Access};

/// The example files, by service.
const EXAMPLES: [(&str, &str); 8] = [
    ("placer", include_str!("../../../../deploy/placer.toml")),
    ("predictor", include_str!("../../../../deploy/predictor.toml")),
    ("predictor-statistical", include_str!("../../../../deploy/predictor-statistical.toml")),
    ("registry", include_str!("../../../../deploy/registry.toml")),
    ("web", include_str!("../../../../deploy/web.toml")),
    ("profiler", include_str!("../../../../deploy/profiler.toml")),
    ("power-agent", include_str!("../../../../deploy/power-agent.toml")),
    ("launcher", include_str!("../../../../deploy/launcher.toml")),
];

/// Overrides of an example: dotted key and value.
pub(crate) type Overrides = Vec<(&'static str, Value)>;

/// A path as a TOML value.
pub(crate) fn path(path: &Path) -> Value {
    Value::String(path.to_string_lossy().into_owned())
}

/// Writes the configuration `name` of `service` into `folder` and returns its path.
pub(crate) fn write(
    folder: &Path,
    service: &str,
    name: &str,
    overrides: Overrides,
) -> anyhow::Result<PathBuf> {
    let (_, example) = EXAMPLES
        .iter()
        .find(|(known, _)| *known == service)
        .with_context(|| format!("no example configuration of {service}"))?;
    let mut table: Table = example.parse().context("an example in deploy/ is invalid TOML")?;
    for (key, value) in overrides {
        put(&mut table, key, value);
    }
    let file = folder.join(format!("{name}.toml"));
    let text = toml::to_string(&table).context("cannot write TOML")?;
    files::replace(&file, text.as_bytes(), Access::Owner)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn put(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((head, rest)) => {
            let inner = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
            if !inner.is_table() {
                *inner = Value::Table(Table::new());
            }
            put(inner.as_table_mut().expect("made a table above"), rest, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_keys_address_tables() {
        let mut table: Table = "a = 1\n[nats]\nurl = \"x\"\nkeep = true".parse().unwrap();
        put(&mut table, "nats.url", Value::from("y"));
        put(&mut table, "a", Value::from(2));
        put(&mut table, "new.deep.key", Value::from(3));
        assert_eq!(table["nats"]["url"].as_str(), Some("y"));
        assert_eq!(table["nats"]["keep"].as_bool(), Some(true));
        assert_eq!(table["new"]["deep"]["key"].as_integer(), Some(3));
    }
}

//! Reads a service's TOML configuration.
//!
//! A service has one file; unknown keys are errors (`deny_unknown_fields` in the services' types), so
//! a misspelt key does not become a default. Errors name the file, line, key and remedy. Credentials
//! and addresses may also come from the environment.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use wattle_common::config::Problem;

use crate::clock::{self, ClockError};

/// Most bytes of a configuration.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Why a configuration cannot be used. A service ends with exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}; name another with --config FILE", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}:{column}: not TOML: {message}; the line reads `{text}`", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's error.
        message: String,
        /// The line.
        text: String,
    },
    /// A key is missing, unknown, or has a wrong value.
    #[error("{}:{line}:{column}: {}: {message}; {remedy}", path.display(), place(key))]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The key with its tables, `nats.url`; empty at the top of the file.
        key: String,
        /// The problem.
        message: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Values contradict each other.
    #[error("{}{}: {problem}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, from 1; absent: not one line.
        line: Option<usize>,
        /// The keys and the remedy.
        problem: String,
    },
    /// The clock that the environment names is invalid.
    #[error(transparent)]
    Clock(#[from] ClockError),
}

fn place(key: &str) -> String {
    if key.is_empty() { "top of the file".to_owned() } else { format!("key `{key}`") }
}

/// Reads the configuration in the file at `path`, and the clock that the environment names.
///
/// # Errors
/// [`ConfigError`] names the file, line, key and remedy.
pub fn load<C: DeserializeOwned>(path: &Path) -> Result<C, ConfigError> {
    clock::init()?;
    parse(&read(path)?, path)
}

/// The text of the file at `path`.
fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let len = std::fs::metadata(path).map_err(unreadable)?.len();
    if len > FILE_LEN_MAX {
        let message = format!("{len} bytes are too large for a configuration");
        return Err(unreadable(std::io::Error::other(message)));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// [`load`], then `check`, which compares values with each other.
///
/// # Errors
/// As [`load`], or the error of `check` with the file.
pub fn load_checked<C: DeserializeOwned, E: std::fmt::Display>(
    path: &Path,
    check: impl FnOnce(&C) -> Result<(), E>,
) -> Result<C, ConfigError> {
    load_located(path, |config| check(config).map_err(|error| Problem::from(error.to_string())))
}

/// [`load`], then `check`, whose errors may name the place in the file.
///
/// # Errors
/// As [`load`], or the error of `check` with the file and the line.
pub fn load_located<C: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&C) -> Result<(), Problem>,
) -> Result<C, ConfigError> {
    clock::init()?;
    parse_located(&read(path)?, path, check)
}

/// [`parse`], then `check`, whose errors may name the place in `text`.
///
/// # Errors
/// As [`load_located`].
pub fn parse_located<C: DeserializeOwned>(
    text: &str,
    path: &Path,
    check: impl FnOnce(&C) -> Result<(), Problem>,
) -> Result<C, ConfigError> {
    let config = parse(text, path)?;
    check(&config).map_err(|Problem { at, text: problem }| ConfigError::Invalid {
        path: path.to_owned(),
        line: at.map(|at| position(text, at).0),
        problem,
    })?;
    Ok(config)
}

/// Parses a configuration from `text`; errors name `path`.
///
/// # Errors
/// As [`load`].
pub fn parse<C: DeserializeOwned>(text: &str, path: &Path) -> Result<C, ConfigError> {
    // Syntax first: a later error is then about keys or values.
    if let Err(error) = text.parse::<toml::Table>() {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        return Err(ConfigError::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: error.message().trim_end().to_owned(),
            text: text.lines().nth(line - 1).unwrap_or_default().trim().to_owned(),
        });
    }
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let (line, column) = position(text, span.start);
        let message = error.message().trim_end().to_owned();
        ConfigError::Value {
            path: path.to_owned(),
            line,
            column,
            key: key_at(text, &span),
            remedy: remedy(&message),
            message,
        }
    })
}

fn remedy(message: &str) -> &'static str {
    if message.starts_with("missing field") {
        "add the key; the example in deploy/ explains it"
    } else if message.starts_with("unknown field") {
        "remove or respell the key; keys carry their unit, as in lease_ms"
    } else if message.starts_with("invalid type") {
        "write text in quotes, numbers and true or false without"
    } else {
        "correct the value; the example in deploy/ explains it"
    }
}

/// Line and column of byte `at`, from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The dotted key that `span` lies in. The parser gives bytes only, so the key is read off the lines:
/// the last table header before it, and the text before the `=` of its line.
fn key_at(text: &str, span: &Range<usize>) -> String {
    let line_end = text
        .get(span.start..)
        .map_or(text.len(), |rest| span.start + rest.find('\n').unwrap_or(rest.len()));
    let mut table = "";
    let mut own = "";
    for line in text[..line_end].lines().map(str::trim) {
        if line.starts_with('[') {
            table = line.trim_start_matches('[').split(']').next().unwrap_or_default();
            own = "";
        } else if let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            own = key.trim();
        }
    }
    // A span that starts at a header, or at the very top, is about the table as a whole.
    let header = text[..line_end].lines().last().is_some_and(|line| line.trim().starts_with('['));
    let whole = header || (span.start == 0 && span.end >= text.trim_end().len());
    match (table, if whole { "" } else { own }) {
        ("", own) => own.to_owned(),
        (table, "") => {
            if header {
                table.to_owned()
            } else {
                String::new()
            }
        }
        (table, own) => format!("{table}.{own}"),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use wattle_common::{ClusterId, NodeId};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example {
        cluster: ClusterId,
        node: NodeId,
        #[serde(deserialize_with = "wattle_common::config::non_zero")]
        lease_ms: u64,
        nats: Nats,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nats {
        url: String,
    }

    const GOOD: &str = "\
# An example.
cluster = \"main\"
node = \"n0\"
lease_ms = 60_000

[nats]
url = \"nats://127.0.0.1:4222\"
";

    fn read(text: &str) -> Result<Example, ConfigError> {
        parse(text, Path::new("power.toml"))
    }

    #[test]
    fn valid_file_is_parsed() {
        let example = read(GOOD).unwrap();
        assert_eq!((example.cluster.as_str(), example.node.as_str()), ("main", "n0"));
        assert_eq!(
            (example.lease_ms, example.nats.url.as_str()),
            (60_000, "nats://127.0.0.1:4222")
        );
    }

    /// For each mistake: replaced text, replacement, start of the error, text it contains.
    #[test]
    fn errors_name_place_and_remedy() {
        for (right, wrong, starts, names) in [
            (
                "lease_ms = 60_000",
                "lease_ms = 60_000\nleese = 1",
                "power.toml:5:1: key `leese`",
                "respell",
            ),
            ("url =", "uri =", "power.toml:7:1: key `nats.uri`", "unknown field"),
            ("lease_ms = 60_000", "lease_ms = \"60\"", "power.toml:4:12: key `lease_ms`", "quotes"),
            (
                "lease_ms = 60_000",
                "lease_ms = 0",
                "power.toml:4:12: key `lease_ms`",
                "greater than 0",
            ),
            (
                "lease_ms = 60_000",
                "lease_ms = -5",
                "power.toml:4:12: key `lease_ms`",
                "invalid value",
            ),
            ("\"main\"", "\"ma in\"", "power.toml:2:11: key `cluster`", "use letters, digits"),
            ("node = \"n0\"\n", "", "power.toml:1:1: top of the file", "missing field `node`"),
            (
                "url = \"nats://127.0.0.1:4222\"\n",
                "",
                "power.toml:6:1: key `nats`",
                "missing field `url`",
            ),
            ("[nats]\nurl", "nats", "power.toml:6:8: key `nats`", "invalid type"),
            ("\"n0\"", "\"n0", "power.toml:3:", "not TOML"),
            ("node = \"n0\"", "node", "power.toml:3:", "the line reads `node`"),
            ("node = \"n0\"", "cluster = \"n0\"", "power.toml:3:", "duplicate key"),
        ] {
            assert!(GOOD.contains(right), "{right}");
            let error = read(&GOOD.replacen(right, wrong, 1)).unwrap_err().to_string();
            assert!(error.starts_with(starts) && error.contains(names), "{wrong}:\n{error}");
        }
    }

    #[test]
    fn missing_file_error_names_the_option() {
        let error = load::<Example>(Path::new("/nowhere/power.toml")).unwrap_err();
        assert!(matches!(error, ConfigError::Unreadable { .. }));
        assert!(error.to_string().contains("--config"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placer.toml");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(load::<Example>(&path).unwrap().lease_ms, 60_000);
        let error = load_checked(&path, |_: &Example| Err("too long")).unwrap_err().to_string();
        assert_eq!(error, format!("{}: too long", path.display()));
        let at = GOOD.find("lease_ms");
        let check = |_: &Example| Err(Problem { at, text: "too long".to_owned() });
        let error = load_located(&path, check).unwrap_err().to_string();
        assert_eq!(error, format!("{}:4: too long", path.display()));
        std::fs::write(&path, [0xff; 10]).unwrap();
        assert!(matches!(load::<Example>(&path), Err(ConfigError::Unreadable { .. })));
    }
}

//! Conventions of the source tree, checked by reading it.

use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every tracked source file with this ending.
pub(crate) fn files(ending: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    walk(&path, ending, found);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), ending, &mut found);
    assert!(!found.is_empty(), "no {ending} file below {}", root().display());
    found
}

pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn every_source_file_starts_with_a_definition() {
    for path in files(".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with("#!"));
        assert!(
            first.is_some_and(|l| l.starts_with("//!")),
            "{} does not start with a `//!` comment that defines it",
            shown(&path)
        );
    }
}

/// A longer file is split by idea.
#[test]
fn source_files_are_short() {
    const LINES_MAX: usize = 700;
    for path in files(".rs") {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", shown(&path));
    }
}

/// The NATS client, the NVML wrapper, the subjects and the replacement of files are each in one place.
#[test]
fn external_interfaces_are_used_in_one_place() {
    let rules: [(&str, &[&str]); 4] = [
        ("async_nats", &["runtime/"]),
        ("nvml_wrapper", &["gpu/src/nvml.rs", "gpu/src/nvml/", "sim/nvml-sim/tests/"]),
        ("\"wattle.v1", &["common/src/subject.rs", "common/src/subject/"]),
        // A file is replaced so that it survives a power failure. A simulated job stands for a user's program.
        ("fs::rename(", &["runtime/src/files.rs", "sim/nvml-sim/src/job/checkpoint.rs"]),
    ];
    for path in files(".rs") {
        let name = shown(&path);
        if name == "tests/tests/suite/tidy.rs" {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code: String = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        for (word, places) in rules {
            let allowed = places.iter().any(|place| name.starts_with(place));
            let in_test = name.contains("/tests/") && word.starts_with('"');
            assert!(allowed || in_test || !code.contains(word), "{name} names {word}");
        }
        if code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe extern")
        {
            assert!(
                name.starts_with("sim/nvml-sim/"),
                "{name} has unsafe code; it lives in sim/nvml-sim"
            );
        }
    }
}

/// How long real processes take depends on the machine, so no test asserts it: durations are asserted on virtual
/// time, by the state machines' own tests. What is listed measures on request, or generates load and faults.
#[test]
fn tests_measure_no_wall_time() {
    const MEASURE: [&str; 10] = [
        "tests/src/chaos",
        "tests/src/load/",
        "tests/src/gpu_suite/",
        "tests/benches/",
        "tests/tests/suite/slurm_faults.rs",
        "tests/tests/suite/overload.rs",
        "tests/tests/suite/web_load.rs",
        // Prints how long a takeover takes.
        "placer/tests/suite/failover.rs",
        "sim/experiments/tests/suite/bounds.rs",
        // The documentation's slow commands, with a limit for each.
        "tests/tests/suite/commands.rs",
    ];
    for path in files(".rs") {
        let name = shown(&path);
        let is_test = name.starts_with("tests/") || name.contains("/tests/");
        let measures = MEASURE.iter().any(|place| name.starts_with(place));
        if !is_test || measures || name == "tests/tests/suite/tidy.rs" {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for (i, line) in text.lines().enumerate() {
            for word in ["monotonic()", "Instant::now()", ".elapsed()"] {
                let place = format!("{name}:{}", i + 1);
                assert!(!line.contains(word), "{place} measures wall time with {word}");
            }
        }
    }
}

/// Every exception to a lint states a reason.
#[test]
fn lint_exceptions_have_a_reason() {
    for path in files(".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        for (i, line) in text.lines().enumerate() {
            let bare = line.contains("allow(clippy::disallowed") && !text.contains("reason");
            assert!(!bare, "{}:{} allows a lint without a reason", shown(&path), i + 1);
        }
    }
}

/// Tests repeat a command by this text.
#[test]
fn a_command_without_an_answer_prints_what_tests_look_for() {
    let source = std::fs::read_to_string(root().join("cli/src/connection.rs")).unwrap();
    assert!(source.contains(wattle_tests::UNANSWERED));
}

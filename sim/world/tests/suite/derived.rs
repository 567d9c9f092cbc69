//! The committed catalog equals the output of catalog/derive.py.
//!
//! Runs the script on the measurements (directory `WATTLE_DATA`, default `../shared/data` next to the
//! workspace). Without them or Python the tests print NOT RUN and pass.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use wattle_world::World;

fn derive(what: &str) -> Option<String> {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let data = std::env::var_os("WATTLE_DATA")
        .map_or_else(|| crate_dir.join("../../../shared/data"), PathBuf::from);
    if !data.join("zeus").is_dir() {
        return not_run(&format!("no measurements in {}; set WATTLE_DATA", data.display()));
    }
    let script = crate_dir.join("catalog/derive.py");
    let output = match Command::new("python3").arg(script).arg(data).arg(what).output() {
        Ok(output) => output,
        Err(error) => {
            return not_run(&format!("cannot start python3 ({error})"));
        }
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "derive.py {what}: {stderr}");
    Some(String::from_utf8(output.stdout).expect("derive.py prints ASCII"))
}

/// Bypasses the test harness, which hides the output of passing tests.
fn not_run(reason: &str) -> Option<String> {
    writeln!(std::io::stderr(), "NOT RUN, catalog/ is not verified: {reason}")
        .expect("stderr is open");
    None
}

fn committed(file: &str) -> &'static str {
    let found = World::builtin_files().iter().find(|(name, _)| *name == file);
    found.expect("a built-in file").1
}

#[test]
fn zeus_pairs_scaling_and_llm_are_derived() {
    for what in ["zeus", "pairs", "scaling", "llm"] {
        let Some(derived) = derive(what) else { return };
        let committed = committed(&format!("{what}.toml"));
        let differs = derived.lines().zip(committed.lines()).find(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}.toml: derived, committed");
        assert_eq!(derived.len(), committed.len(), "{what}.toml");
    }
}

#[test]
fn throttle_and_clock_curves_are_derived() {
    let Some(derived) = derive("curves") else { return };
    assert_eq!(derived.lines().count(), 6);
    for line in derived.lines() {
        assert!(committed("gpus.toml").lines().any(|l| l == line), "gpus.toml lacks: {line}");
    }
}

//! Short runs of every fuzz target: seeds, inputs that once failed, and some mutations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use wattle_fuzz::{Target, fuzz, regressions, run, seeds, target};

fn short(name: &str, runs: u64) {
    let target: &Target = target(name).unwrap();
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for (file, input) in regressions(target) {
        assert_eq!(run(target, &input), Ok(()), "regressions/{name}/{file}");
    }
    for input in &seeds {
        assert_eq!(run(target, input), Ok(()), "{}", String::from_utf8_lossy(input));
    }
    let faults = fuzz(target, 1, runs, 1);
    let shown = |fault: &wattle_fuzz::Fault| {
        format!("{}\n{}", fault.message, String::from_utf8_lossy(&fault.input))
    };
    assert!(faults.is_empty(), "{}", shown(&faults[0]));
}

#[test]
fn codec() {
    short("codec", 3_000);
}

#[test]
fn subjects() {
    short("subjects", 10_000);
}

#[test]
fn messages() {
    short("messages", 2_000);
}

#[test]
fn machines() {
    short("machines", 2_000);
}

#[test]
fn traces() {
    short("traces", 1_000);
}

#[test]
fn sacct() {
    short("sacct", 1_000);
}

#[test]
fn openadr() {
    short("openadr", 1_000);
}

#[test]
fn config() {
    short("config", 500);
}

#[test]
fn progress() {
    short("progress", 10_000);
}

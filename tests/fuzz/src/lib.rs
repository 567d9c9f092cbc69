//! Fuzz targets of everything that Wattle reads from outside, and a mutation fuzzer for them.
//!
//! A target is a function of bytes that must not panic and must end soon. Its seeds are in
//! `tests/fuzz/corpus`, inputs that once failed in `tests/fuzz/regressions`. The fuzzer ([`fuzz`]) is
//! deterministic: target, seed and number name an input. The same functions serve `cargo fuzz` (the
//! folder `fuzz`), which also learns from coverage.

mod mutation;
mod seeds;
pub mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use wattle_common::rng::Stream;

pub use seeds::{folder, regressions, seeds};

/// Longest input that the fuzzer makes, bytes.
pub const INPUT_LEN_MAX: usize = 16 << 10;

/// Time within which a target must handle an input in a debug build: a hundred times the usual, so that a
/// busy machine raises no alarm.
pub const TIME_MAX: Duration = Duration::from_secs(5);

/// A function that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Handles an input; a panic is a fault.
    pub run: fn(&[u8]),
    /// Words of its format.
    pub words: &'static [&'static str],
}

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}

/// An input with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The input.
    pub input: Vec<u8>,
    /// The panic's message, or the time that the input took.
    pub message: String,
}

/// Runs a target on an input.
///
/// # Errors
/// Its fault.
pub fn run(target: &Target, input: &[u8]) -> Result<(), Fault> {
    let fault = |message| Fault { input: input.to_vec(), message };
    let began = wattle_runtime::clock::now();
    match catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        Ok(()) => {}
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(fault(format!("panic: {}", text.unwrap_or("without a message"))));
        }
    }
    let took = wattle_runtime::clock::now().since(began);
    if took > TIME_MAX {
        return Err(fault(format!("{:.1} s", took.as_secs_f64())));
    }
    Ok(())
}

/// Runs a target on `runs` mutated seeds. Returns at most `faults_max` faults.
#[must_use]
pub fn fuzz(target: &Target, seed: u64, runs: u64, faults_max: usize) -> Vec<Fault> {
    let seeds = seeds(target);
    let mut faults = Vec::new();
    for number in 0..runs {
        let mut rng = Stream::new(seed.wrapping_add(number), target.name);
        let input = mutation::input(&mut rng, &seeds, target.words);
        faults.extend(run(target, &input).err());
        if faults.len() >= faults_max {
            break;
        }
    }
    faults
}

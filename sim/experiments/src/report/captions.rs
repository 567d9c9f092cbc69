//! The heading and the description of a comparison.

use crate::compare::{Accounting, Comparison, Neighbours, Surfaces};
use wattle_saving::report::format::percent;

/// The heading: scenario, load, accounting and variants.
pub(super) fn heading(comparison: &Comparison) -> String {
    let energy = match comparison.accounting {
        Accounting::AboveIdle => "energy above idle",
        Accounting::SleepAll => "energy of whole nodes, unused ones asleep",
        Accounting::SleepNone => "energy of whole nodes, always awake",
        Accounting::SleepPacking => {
            "energy of whole nodes, asleep when unused under packing policies only"
        }
    };
    let neighbours = match comparison.world {
        Neighbours::Alone => "",
        Neighbours::Pairs => ", co-location as measured on pairs",
        Neighbours::Mild => ", mild co-location",
    };
    let over = if comparison.load > 1.0 { " (over-subscribed)" } else { "" };
    let deadlines = if comparison.deadlines { ", with deadlines" } else { "" };
    let jobs = match comparison.workload {
        "" => String::new(),
        workload => format!(", {workload} jobs"),
    };
    let (scenario, load) = (comparison.scenario, comparison.load);
    format!("{scenario}: load {load:.2}{over}, {energy}{jobs}{neighbours}{deadlines}")
}

/// The policies' inputs: surfaces and job lengths.
pub(super) fn inputs(comparison: &Comparison) -> String {
    surfaces_and_lengths(comparison.surfaces, comparison.lengths)
}

/// The same of any comparison.
pub(super) fn surfaces_and_lengths(surfaces: Surfaces, lengths: &str) -> String {
    let noisy = |share: f64, how: &str| {
        format!("true speeds and powers with errors of {}, {how}", percent(share))
    };
    let surfaces = match surfaces {
        Surfaces::Oracle => "true speeds and powers".to_owned(),
        Surfaces::Predicted => "predicted speeds and powers".to_owned(),
        Surfaces::Independent(share) => noisy(share, "independent for each number of GPUs"),
        Surfaces::Smooth(share) => noisy(share, "smooth over the number of GPUs"),
    };
    let lengths = match lengths {
        "known" => "each job's length from its arrival on",
        "reported" => "each job's length from its first report on",
        "past" => "each job's progress and the lengths of past jobs, not its own length",
        _ => "each job's progress, not its length",
    };
    format!("Policies receive {surfaces}, and {lengths}.")
}

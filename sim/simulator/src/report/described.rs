//! A comparison in words: which case it is, and what its policies know.

use super::markup::percent;
use crate::compare::{Accounting, Comparison, Neighbours, Surfaces};

/// Which case it is.
pub(super) fn heading(comparison: &Comparison) -> String {
    let energy = match comparison.accounting {
        Accounting::AboveIdle => "energy above idle",
        Accounting::SleepAll => "energy of whole nodes, unused ones asleep",
        Accounting::SleepNone => "energy of whole nodes, always awake",
        Accounting::SleepOurs => {
            "energy of whole nodes, those of packing policies asleep when unused"
        }
    };
    let neighbours = match comparison.world {
        Neighbours::Alone => "",
        Neighbours::Pairs => ", neighbours as pairs were measured",
        Neighbours::Mild => ", mild neighbours",
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

/// What its policies see of speeds, powers and lengths.
pub(super) fn known(comparison: &Comparison) -> String {
    let err = |share: f64, how: &str| {
        let share = percent(share);
        format!("the world's own speeds and powers with errors of {share}, {how}")
    };
    let sees = match comparison.surfaces {
        Surfaces::Oracle => "the world's own speeds and powers".to_owned(),
        Surfaces::Predicted => "the speeds and powers that the predictor learns".to_owned(),
        Surfaces::Independent(share) => err(share, "for each number of GPUs another"),
        Surfaces::Smooth(share) => err(share, "smooth over the number of GPUs"),
    };
    let lengths = match comparison.lengths {
        "known" => "how long each job is from its arrival on",
        "reported" => "how long each job is from its first report on",
        "past" => "how far each job is, not how long, and how long jobs like these were",
        _ => "how far each job is, not how long",
    };
    format!("Policies see {sees}, and know {lengths}.")
}

//! Stage profiles of the Perseus data: time and energy of a pipeline stage by locked clock.
//!
//! Columns: stage, instruction (forward or backward), frequency (MHz), time (s), energy (J). A job
//! is one direction of one stage.

use std::collections::BTreeMap;

use super::{Context, FileGpu};
use crate::names;
use crate::table::{Table, unique};
use wattle_common::id::WorkloadId;

pub(crate) const COLUMNS: &[&str] = &["stage", "instruction", "frequency", "time", "energy"];

/// Contents of one file.
#[derive(Debug)]
pub struct Stages {
    /// The file.
    pub file_gpu: FileGpu,
    /// The stages in both directions.
    pub jobs: Vec<StageJob>,
}

/// One direction of one stage.
#[derive(Debug)]
pub struct StageJob {
    /// Its class as in windows.
    pub class: WorkloadId,
    /// By clock, ascending.
    pub readings: Vec<ClockReading>,
}

/// Time and energy at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReading {
    /// Locked clock, MHz.
    pub mhz: u32,
    /// Time, s.
    pub time_s: f64,
    /// Energy, J.
    pub energy_j: f64,
}

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Stages {
    let rows = table.rows(|row| {
        let job = (row.name("stage")?.to_owned(), row.name("instruction")?.to_owned());
        let reading = ClockReading {
            mhz: row.count("frequency")?,
            time_s: row.positive("time")?,
            energy_j: row.positive("energy")?,
        };
        Ok(Some((job, reading)))
    });
    let rows = unique(table, rows, |(job, reading)| (job.clone(), reading.mhz));
    let mut jobs: BTreeMap<(String, String), Vec<ClockReading>> = BTreeMap::new();
    for (job, reading) in rows {
        jobs.entry(job).or_default().push(reading);
    }
    let model = names::stem(context.place).split('+').next().unwrap_or_default();
    let jobs = jobs.into_iter().map(|((stage, instruction), mut readings)| {
        readings.sort_by_key(|r| r.mhz);
        let stage = format!("stage{stage}");
        StageJob { class: names::class(&[model, &stage, &instruction]), readings }
    });
    Stages { file_gpu: context.file_gpu(), jobs: jobs.collect() }
}

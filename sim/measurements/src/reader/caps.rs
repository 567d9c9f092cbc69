//! `summary_power_*.csv` of the Zeus traces: time of an epoch and mean power by power cap.
//!
//! Columns: dataset, network, batch_size, optimizer, power_limit (W), time_per_epoch (s), average_power
//! (W). One row is one reading. A job is one (network, dataset, batch, optimizer).

use std::collections::BTreeMap;

use super::{Context, FileGpu};
use crate::names;
use crate::table::{Table, unique};
use wattle_common::id::WorkloadId;

pub(crate) const COLUMNS: &[&str] =
    &["network", "batch_size", "power_limit", "time_per_epoch", "average_power"];

/// Contents of one file.
#[derive(Debug)]
pub struct Caps {
    /// The file.
    pub file_gpu: FileGpu,
    /// The networks at each batch size.
    pub jobs: Vec<CapJob>,
}

/// One configuration of one network.
#[derive(Debug)]
pub struct CapJob {
    /// The network.
    pub network: String,
    /// Its class as in windows.
    pub class: WorkloadId,
    /// Batch size.
    pub batch: Option<u32>,
    /// By cap, ascending.
    pub readings: Vec<CapReading>,
}

/// Time and power under one cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapReading {
    /// Power cap, W.
    pub cap_w: f64,
    /// Time of an epoch, s.
    pub time_s: f64,
    /// Mean power, W.
    pub power_w: f64,
}

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Caps {
    let rows = table.rows(|row| {
        let job = (
            row.text("dataset").to_owned(),
            row.name("network")?.to_owned(),
            row.text("batch_size").to_owned(),
            row.text("optimizer").to_owned(),
        );
        let reading = CapReading {
            cap_w: row.positive("power_limit")?,
            time_s: row.positive("time_per_epoch")?,
            power_w: row.positive("average_power")?,
        };
        Ok(Some((job, reading)))
    });
    let rows = unique(table, rows, |(job, reading)| (job.clone(), reading.cap_w.to_bits()));
    let mut jobs: BTreeMap<(String, String, String, String), Vec<CapReading>> = BTreeMap::new();
    for (job, reading) in rows {
        jobs.entry(job).or_default().push(reading);
    }
    let jobs = jobs.into_iter().map(|((dataset, network, batch, optimizer), mut readings)| {
        readings.sort_by(|a, b| a.cap_w.total_cmp(&b.cap_w));
        let size = if batch.is_empty() { String::new() } else { format!("b{batch}") };
        CapJob {
            class: names::class(&[&dataset, &network, &size, &optimizer]),
            batch: batch.parse().ok(),
            network,
            readings,
        }
    });
    Caps { file_gpu: context.file_gpu(), jobs: jobs.collect() }
}

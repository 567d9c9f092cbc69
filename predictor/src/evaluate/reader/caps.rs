//! `summary_power_*.csv` of the Zeus traces: time for an epoch and mean power by power cap.
//!
//! Columns: dataset, network, batch_size, optimizer, power_limit (W), time_per_epoch (s),
//! average_power (W). One row is one reading. A job is one (network, dataset, batch, optimizer).

use std::collections::BTreeMap;

use super::super::names;
use super::super::table::{Table, unique};
use super::{Context, FileGpu};
use wattle_common::id::WorkloadId;

pub(in super::super) const COLUMNS: &[&str] =
    &["network", "batch_size", "power_limit", "time_per_epoch", "average_power"];

/// All of one file.
pub(in super::super) struct Caps {
    pub(in super::super) card: FileGpu,
    pub(in super::super) jobs: Vec<CapJob>,
}

/// One configuration of one network.
pub(in super::super) struct CapJob {
    pub(in super::super) network: String,
    pub(in super::super) class: WorkloadId,
    pub(in super::super) batch: Option<u32>,
    /// By cap, ascending.
    pub(in super::super) readings: Vec<CapReading>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct CapReading {
    pub(in super::super) cap_w: f64,
    pub(in super::super) time_s: f64,
    pub(in super::super) power_w: f64,
}

pub(in super::super) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Caps {
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
    Caps { card: context.card(), jobs: jobs.collect() }
}

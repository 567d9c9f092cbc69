//! `wattle history`: the measured history of workloads as CSV.
//!
//! Predictors store it in the bucket `knowledge`. Entries in a format of an external predictor are
//! counted and skipped.

use std::collections::BTreeSet;

use clap::Args;
use wattle_common::id::PredictorId;
use wattle_common::subject::Bucket;
use wattle_predictor::export;
use wattle_predictor::history::Class;
use wattle_runtime::bus::Bus;

use super::predictors::statuses;
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{note, print, usage};

/// Print the measured history of workloads as CSV.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle history > history.csv\n  wattle history --predictor physical | head -1 | tr , '\\n'\n\nOne row per class, GPU type, job and configuration; an empty field is unknown.\nCo-tenants are joined by `+`. A deviation (`_sd`) is of the value, or of its logarithm in per cent."
)]
pub(crate) struct History {
    /// Only the history of this predictor [default: all]
    #[arg(long, value_name = "NAME")]
    predictor: Option<PredictorId>,
    #[command(flatten)]
    connection: Connection,
}

/// Refuses a name that no predictor of the cluster has.
async fn check_known(bus: &Bus, wanted: &PredictorId, keys: &[String]) -> anyhow::Result<()> {
    let reported = statuses(bus).await?.into_iter().map(|status| status.name);
    let with_history = keys.iter().filter_map(|key| Some(export::parse_key(key)?.0));
    let known: BTreeSet<PredictorId> = reported.chain(with_history).collect();
    if known.contains(wanted) {
        return Ok(());
    }
    let known: Vec<&str> = known.iter().map(PredictorId::as_str).collect();
    let known = if known.is_empty() { "none has reported".to_owned() } else { known.join(", ") };
    Err(usage(format!("unknown predictor `{wanted}`; predictors of this cluster: {known}")))
}

/// Runs the command.
pub(crate) fn run(command: History) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "history")?;
        let bucket = bus.bucket(Bucket::Knowledge).await?;
        let mut keys = bucket.keys().await?;
        keys.sort();
        if let Some(wanted) = &command.predictor {
            check_known(&bus, wanted, &keys).await?;
        }
        print(&export::header())?;
        let (mut read, mut unreadable) = (0, 0);
        for key in keys {
            let Some((predictor, kind, class)) = export::parse_key(&key) else { continue };
            if command.predictor.as_ref().is_some_and(|wanted| *wanted != predictor) {
                continue;
            }
            match bucket.get::<Class>(&key).await {
                Ok(Some((kept, _))) => {
                    read += 1;
                    let rows = export::rows(&predictor, kind, &class, &kept);
                    if !rows.is_empty() {
                        print(&rows.join("\n"))?;
                    }
                }
                // Deleted since the listing.
                Ok(None) => {}
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(_) => unreadable += 1,
            }
        }
        if unreadable > 0 {
            note(&format!("{unreadable} classes in an unknown format were skipped"));
        } else if read == 0 {
            note("no history yet; it grows while jobs with a workload class run");
        }
        Ok(())
    })
}

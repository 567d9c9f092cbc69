//! `wattle history`: what was learned of workloads that ran here, as CSV.
//!
//! It reads the bucket `knowledge`, where predictors keep it. A predictor may keep it in a form of
//! its own; what cannot be read is counted and left out. Nothing is computed here.

use clap::Args;
use wattle_common::id::PredictorId;
use wattle_common::subject::Bucket;
use wattle_predictor::export;
use wattle_predictor::history::Class;

use crate::connection::{Connection, block_on};
use crate::output::{note, print};

/// Print what was learned of workloads that ran here, as CSV.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle history > history.csv\n  wattle history --predictor physical | head -1 | tr , '\\n'\n\nOne row for each class, GPU kind, job and configuration; an empty field is not known.\nNeighbours are joined by `+`. A deviation (`_sd`) is of the value, or of its logarithm in per cent."
)]
pub(crate) struct History {
    /// Only what this predictor has learned [default: all of them]
    #[arg(long, value_name = "NAME")]
    predictor: Option<PredictorId>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub(crate) fn run(command: History) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let bucket = bus.bucket(Bucket::Knowledge).await?;
        let mut keys = bucket.keys().await?;
        keys.sort();
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
                // Removed in between.
                Ok(None) => {}
                Err(error) if error.may_pass() => return Err(error.into()),
                Err(_) => unreadable += 1,
            }
        }
        if unreadable > 0 {
            note(&format!("{unreadable} classes are kept in a form of their own, and left out"));
        } else if read == 0 {
            note("nothing was learned yet; a job with a workload class teaches it as it runs");
        }
        Ok(())
    })
}

//! `wattle explain`: the decisions about a job with their reasons, oldest first.

use anyhow::Context as _;
use clap::Args;
use wattle_common::JobId;
use wattle_common::messages::{JobRecord, Surface};
use wattle_common::subject::Bucket;

use crate::connection::{Connection, block_on};
use crate::output::{print, print_json, span, usage};

/// Explain the placement of a job.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle explain train-18f2c")]
pub(crate) struct Explain {
    /// The job id, as in `wattle jobs`
    job: JobId,
    #[command(flatten)]
    connection: Connection,
    /// Print the job's record and surface as JSON
    #[arg(long)]
    json: bool,
}

fn describe(record: &JobRecord, surface: Option<&Surface>) -> String {
    let spec = &record.spec;
    let mut text = format!("{} is {}", spec.job, record.phase);
    if let Some(placement) = record.placement.as_ref().filter(|p| !p.shares.is_empty()) {
        text.push_str(&format!(" on {placement}"));
    }
    if record.observing {
        text.push_str(", under observation: the placement may still be undone");
    }
    text.push_str(&format!(
        "\nrequests {} GPU{}",
        spec.gpus,
        if spec.gpus.max == 1 { "" } else { "s" }
    ));
    if let Some(kind) = &spec.gpu_type {
        text.push_str(&format!(" of type {kind}"));
    }
    if spec.exclusive {
        text.push_str(", exclusively");
    }
    if spec.priority > 0 {
        text.push_str(&format!(", at priority {}", spec.priority));
    }
    if let Some(deadline) = spec.deadline_at_us {
        let allowed = deadline.since(spec.submitted_at_us).as_secs_f64();
        text.push_str(&format!(", deadline {} after submission", span(allowed)));
    }
    match surface {
        Some(Surface { predictor, basis: Some(basis), .. }) => {
            text.push_str(&format!("\npredicted by {predictor}: {basis}"));
        }
        Some(surface) if surface.windows > 0 => text.push_str(&format!(
            "\npredicted by {} from {} windows of this job",
            surface.predictor, surface.windows
        )),
        Some(surface) => text.push_str(&format!(
            "\npredicted by {} from its workload class; no window of this job yet",
            surface.predictor
        )),
        None => text.push_str("\nno prediction yet"),
    }
    let others = surface.iter().flat_map(|surface| &surface.other_gpu_types);
    for other in others.filter(|other| spec.gpu_type.is_none() || other.windows > 0) {
        let basis = other.basis.as_deref().unwrap_or("no details");
        text.push_str(&format!("\non {}: {basis}", other.gpu_type));
    }
    for reason in &record.reasons {
        let after = reason.at_us.since(spec.submitted_at_us).as_secs_f64();
        text.push_str(&format!(
            "\n\n+{}  {}\n    {}: {}",
            span(after),
            reason.decision,
            reason.policy,
            reason.reason
        ));
    }
    // Several nodes may report the same path.
    let paths: std::collections::BTreeSet<&String> = record.log_paths.iter().collect();
    for path in paths {
        text.push_str(&format!("\n\noutput: {path}"));
    }
    text
}

/// Runs the command.
pub(crate) fn run(command: Explain) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let jobs = bus.bucket(Bucket::Jobs).await?;
        let (record, _) = jobs
            .get::<JobRecord>(command.job.as_str())
            .await
            .context("the job's record cannot be read")?
            .ok_or_else(|| {
                usage(format!("no job {}; `wattle jobs --all` lists them", command.job))
            })?;
        let surfaces = bus.bucket(Bucket::Surfaces).await?;
        let surface = surfaces.get::<Surface>(command.job.as_str()).await.ok().flatten();
        let surface = surface.map(|(surface, _)| surface);
        if command.json {
            let both = serde_json::json!({ "record": record, "surface": surface });
            return print_json(&both);
        }
        print(&describe(&record, surface.as_ref()))
    })
}

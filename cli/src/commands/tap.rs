//! `wattle tap`: prints every message on the bus, decoded, one per line.
//!
//! Unlike `nats sub` it also decodes binary telemetry. A payload that cannot be decoded is printed with
//! its error.

use clap::Args;
use serde_json::{Value, json};
use wattle_common::ClusterId;
use wattle_common::codec::{self, MAGIC};
use wattle_common::subject::{Bucket, Subject, Topic};
use wattle_runtime::shell::chain;

use crate::connection::{Connection, block_on};
use crate::output::{colour, print, usage};

/// Print every message on the bus, decoded, one per line.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle tap\n  wattle tap gpu.sampled --count 1 --json\n  wattle tap 'wattle.v1.local.job.>'"
)]
pub(crate) struct Tap {
    /// A topic (gpu.sampled), a bucket (jobs) or a NATS subject [default: all of the cluster]
    subject: Option<String>,
    /// Stop after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object per line: {"subject", "message"} or {"subject", "error"}
    #[arg(long)]
    json: bool,
}

/// The subject of the changes of a bucket.
fn bucket_pattern(bucket: Bucket, cluster: &ClusterId) -> String {
    format!("$KV.{}.>", bucket.name(cluster))
}

/// The subscription patterns for the argument.
fn patterns(argument: Option<&str>, cluster: &ClusterId) -> anyhow::Result<Vec<String>> {
    let Some(argument) = argument else {
        let buckets = Bucket::ALL.into_iter().map(|bucket| bucket_pattern(bucket, cluster));
        return Ok([Subject::everything(cluster)].into_iter().chain(buckets).collect());
    };
    if let Some(topic) = Topic::ALL.into_iter().find(|topic| topic.token() == argument) {
        return Ok(vec![topic.pattern(cluster)]);
    }
    if let Some(bucket) = Bucket::ALL.into_iter().find(|bucket| bucket.token() == argument) {
        return Ok(vec![bucket_pattern(bucket, cluster)]);
    }
    let parts_ok = argument.split('.').all(|part| !part.is_empty());
    if !parts_ok || argument.contains(char::is_whitespace) {
        return Err(usage(format!("invalid NATS subject `{argument}`: empty part or white space")));
    }
    if !argument.contains(['.', '>', '*']) {
        let topics = Topic::ALL.map(Topic::token).join(", ");
        let buckets = Bucket::ALL.map(Bucket::token).join(", ");
        return Err(usage(format!(
            "unknown subject `{argument}`: expected a topic ({topics}), a bucket ({buckets}) or a NATS \
             subject with a `.`"
        )));
    }
    Ok(vec![argument.to_owned()])
}

/// Decodes a payload to JSON.
fn decode(payload: &[u8]) -> Result<Value, String> {
    if payload.is_empty() {
        return Ok(Value::Null);
    }
    if payload.first() == Some(&MAGIC) {
        let batch = codec::decode_telemetry(payload).map_err(|error| chain(&error))?;
        return Ok(json!(batch));
    }
    codec::decode_json(payload).map_err(|error| chain(&error))
}

fn line(subject: &str, payload: &[u8], json: bool, colour: bool) -> String {
    let decoded = decode(payload);
    if json {
        return match decoded {
            Ok(message) => json!({ "subject": subject, "message": message }).to_string(),
            Err(error) => json!({ "subject": subject, "error": error }).to_string(),
        };
    }
    let (dim, plain) = if colour { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
    match decoded {
        Ok(Value::Null) => format!("{dim}{subject}{plain} (removed)"),
        Ok(message) => format!("{dim}{subject}{plain} {message}"),
        Err(error) => {
            format!("{dim}{subject}{plain} cannot be decoded ({} bytes): {error}", payload.len())
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: Tap) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let (sender, mut lines) = tokio::sync::mpsc::channel(1_024);
        let colour = colour(&std::io::stdout());
        for pattern in patterns(command.subject.as_deref(), bus.cluster())? {
            let mut subscription = bus.subscribe(&pattern).await?;
            let (sender, json) = (sender.clone(), command.json);
            tokio::spawn(async move {
                while let Some(delivery) = subscription.next().await {
                    let line = line(&delivery.subject, &delivery.payload, json, colour);
                    if sender.send(line).await.is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut left = command.count.unwrap_or(u64::MAX);
        while left > 0
            && let Some(line) = lines.recv().await
        {
            print(&line)?;
            left -= 1;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_buckets_are_expanded() {
        let cluster = ClusterId::new("c").unwrap();
        let patterns_of = |argument: &str| patterns(Some(argument), &cluster);
        assert_eq!(patterns_of("gpu.sampled").unwrap(), [Topic::GpuSampled.pattern(&cluster)]);
        assert_eq!(patterns_of("jobs").unwrap(), ["$KV.wattle-v1-c-jobs.>"]);
        assert_eq!(patterns_of("other.>").unwrap(), ["other.>"]);
        assert!(patterns_of("gpus").unwrap_err().to_string().contains("gpu.sampled"));
        assert!(patterns_of("a..b").is_err());
        assert_eq!(patterns(None, &cluster).unwrap().len(), 1 + Bucket::ALL.len());
    }

    #[test]
    fn corrupt_payload_is_reported() {
        let shown = line("s", &[MAGIC, 1, 1, 0, 255], false, false);
        assert!(shown.starts_with("s cannot be decoded (5 bytes): corrupt telemetry"), "{shown}");
        assert_eq!(line("s", b"", false, false), "s (removed)");
        assert_eq!(line("s", b"{\"a\":1}", true, false), r#"{"message":{"a":1},"subject":"s"}"#);
    }
}

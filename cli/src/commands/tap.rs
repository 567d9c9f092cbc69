//! `wattle tap`: prints the messages on the bus, decoded, one per line.
//!
//! Unlike `nats sub` it also decodes binary telemetry. A payload that cannot be decoded is printed with
//! its error. The short form ([`short`]) fits a terminal; `--full` and `--json` print whole payloads.

mod short;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wattle_common::codec::{self, MAGIC};
use wattle_common::subject::roles::TELEMETRY;
use wattle_common::subject::{Bucket, Rank, Subject, Topic};
use wattle_common::text::{shown, shown_but, shown_json};
use wattle_common::{ClusterId, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock::wall_now;
use wattle_runtime::shell::chain;

use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{colour, print_styled, usage};

/// Print the messages on the bus, decoded, one per line.
///
/// By default a line has at most 80 columns, telemetry (gpu.sampled) is hidden, and a node's repeated
/// reports are shown every ten seconds.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle tap\n  wattle tap --full\n  wattle tap gpu.sampled --count 1 --json\n  wattle tap 'wattle.v1.local.job.>'"
)]
pub(crate) struct Tap {
    /// A topic (gpu.sampled), a bucket (jobs) or a NATS subject [default: all of the cluster]
    subject: Option<String>,
    /// Stop after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print every message in full
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    connection: Connection,
    /// Print every message in full as one JSON object per line: {"subject", "message"} or {"subject", "error"}
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

/// The patterns that a monitor may subscribe to.
fn telemetry(bus: &Bus) -> anyhow::Result<Vec<String>> {
    if bus.requester().rank != Rank::Monitor {
        return Err(usage("`wattle tap` needs the key of an operator or a monitor"));
    }
    Ok(TELEMETRY.map(|topic| topic.pattern(bus.cluster())).into())
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

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Short,
    Full,
    Json,
}

/// Interval at which the short form repeats the reports of a node, wall time.
const REPEAT_EVERY: Duration = Duration::from_secs(10);

/// Which messages the short form leaves out.
#[derive(Default)]
struct Sparse {
    shown: BTreeMap<String, Timestamp>,
}

impl Sparse {
    /// Whether a message is shown at `now`. Requests, changes of jobs and measurements always are.
    fn shows(&mut self, subject: &str, now: Timestamp) -> bool {
        let is_of = |topic: Topic| subject.contains(&format!(".{}.", topic.token()));
        if is_of(Topic::GpuSampled) {
            return false;
        }
        let repeats = [Bucket::Actual, Bucket::Desired, Bucket::Predictors, Bucket::Budget];
        let repeated = is_of(Topic::NodeSummarized)
            || repeats.iter().any(|bucket| subject.contains(&format!("-{}.", bucket.token())));
        if !repeated {
            return true;
        }
        let due = self.shown.get(subject).is_none_or(|last| now.since(*last) >= REPEAT_EVERY);
        if due {
            self.shown.insert(subject.to_owned(), now);
        }
        due
    }
}

fn line(subject: &str, payload: &[u8], form: Form, colour: bool) -> String {
    let decoded = decode(payload);
    if form == Form::Json {
        return match decoded {
            Ok(message) => {
                shown_json(&json!({ "subject": subject, "message": message }).to_string())
                    .into_owned()
            }
            Err(error) => {
                shown_json(&json!({ "subject": subject, "error": error }).to_string()).into_owned()
            }
        };
    }
    // The subject and the message are text of others.
    let (subject, one_line) =
        (shown(subject), |text: &str| shown_but(text, |_| false).into_owned());
    let (dim, plain) = if colour { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
    match decoded {
        Ok(Value::Null) => format!("{dim}{subject}{plain} (removed)"),
        Ok(message) if form == Form::Short => {
            let (name, text) = short::of(&subject, &message);
            format!("{dim}{name}{plain} {}", one_line(&text))
        }
        Ok(message) => format!("{dim}{subject}{plain} {}", one_line(&message.to_string())),
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
        let form = match (command.json, command.full) {
            (true, _) => Form::Json,
            (false, true) => Form::Full,
            (false, false) => Form::Short,
        };
        // A named subject is shown without gaps.
        let is_sparse = form == Form::Short && command.subject.is_none();
        let patterns = match command.subject.as_deref() {
            None if !job_records::reads_storage(&bus) => telemetry(&bus)?,
            subject => patterns(subject, bus.cluster())?,
        };
        for pattern in patterns {
            let mut subscription = bus.subscribe(&pattern).await?;
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut sparse = Sparse::default();
                while let Some(delivery) = subscription.next().await {
                    if is_sparse && !sparse.shows(&delivery.subject, wall_now()) {
                        continue;
                    }
                    let line = line(&delivery.subject, &delivery.payload, form, colour);
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
            print_styled(&line)?;
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
        let shown = line("s", &[MAGIC, 1, 1, 0, 255], Form::Full, false);
        assert!(shown.starts_with("s cannot be decoded (5 bytes): corrupt telemetry"), "{shown}");
        assert_eq!(line("s", b"", Form::Short, false), "s (removed)");
        assert_eq!(
            line("s", b"{\"a\":1}", Form::Json, false),
            r#"{"message":{"a":1},"subject":"s"}"#
        );
    }

    #[test]
    fn the_short_form_hides_telemetry_and_repeated_reports() {
        let cluster = ClusterId::new("c").unwrap();
        let mut sparse = Sparse::default();
        let at = |s: u64| Timestamp::from_s(s);
        let subject = |topic: Topic| topic.pattern(&cluster).replace('*', "n0");
        assert!(!sparse.shows(&subject(Topic::GpuSampled), at(0)));
        let summary = subject(Topic::NodeSummarized);
        let shown: Vec<u64> = (0..25).filter(|s| sparse.shows(&summary, at(*s))).collect();
        assert_eq!(shown, [0, 10, 20]);
        let record = format!("$KV.{}.train", Bucket::Jobs.name(&cluster));
        assert!((0..5).all(|s| sparse.shows(&record, at(s))), "each change of a job is shown");
    }
}

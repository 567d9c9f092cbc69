//! Every role tries every subject and key.
//!
//! The table states for each action which roles the server permits. It is written independently of the
//! role table in `common/src/subject/roles.rs`; the server judges.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use wattle_common::ClusterId;
use wattle_common::subject::{Bucket, StreamName, Topic};

use super::Site;

/// The roles, each with its letter in the table.
const ROLES: [(char, &str); 12] = [
    ('P', "placer"),
    ('R', "registry"),
    ('Q', "predictor-physical"),
    ('0', "node-n0"),
    ('1', "node-n1"),
    ('S', "slurm"),
    ('V', "openadr"),
    ('W', "web"),
    ('a', "user-ada"),
    ('b', "user-bob"),
    ('o', "operator-olga"),
    ('m', "monitor-mona"),
];

/// Subjects to publish to: without `$` they begin with `wattle.v1.main.`, and `$KV.BUCKET` stands for
/// the bucket's subjects. The second column has the letters of the permitted roles.
const PUBLISH: &[(&str, &str)] = &[
    ("gpu.sampled.n0", "0"),
    ("gpu.sampled.n1", "1"),
    ("node.summarized.n0", "0"),
    ("window.closed.n0.j", "0"),
    ("window.closed.n1.j", "1"),
    ("job.progressed.n0.j", "0"),
    ("job.progressed.n1.j", "1"),
    ("energy.metered.n0", "0"),
    ("energy.metered.n1", "1"),
    ("job.submitted.user.ada", "aS"),
    ("job.submitted.user.bob", "bS"),
    ("job.submitted.operator.olga", "o"),
    ("job.submitted.operator.ada", ""),
    ("job.submitted.monitor.mona", ""),
    ("job.submitted.local.ada", ""),
    ("job.submitted", ""),
    ("job.cancelled.user.ada", "aS"),
    ("job.cancelled.user.bob", "bS"),
    ("job.cancelled.operator.olga", "o"),
    ("job.cancelled.local.ada", ""),
    ("job.requested.user.ada", "a"),
    ("job.requested.user.bob", "b"),
    ("job.requested.operator.olga", "o"),
    ("job.requested.monitor.mona", "m"),
    ("budget.set.operator.olga", "o"),
    ("budget.set.user.ada", ""),
    ("budget.set.local.ada", ""),
    ("event.set.operator.olga", "o"),
    ("event.set.operator.openadr", "V"),
    ("event.set.user.ada", ""),
    ("event.set.local.ada", ""),
    ("event.planned.operator.olga", "o"),
    ("event.planned.operator.openadr", ""),
    ("event.planned.user.ada", ""),
    ("event.planned.monitor.mona", ""),
    ("predictor.promoted.operator.olga", "o"),
    ("predictor.promoted.user.ada", ""),
    ("surface.proposed.physical.j", "Q"),
    ("surface.proposed.other.j", ""),
    ("summary.requested.n0", "om"),
    ("output.requested.n0.user.ada", "a"),
    ("output.requested.n0.user.bob", "b"),
    ("output.requested.n0.operator.olga", "o"),
    ("order.recorded", "PR"),
    ("site.metered", "P"),
    ("$KV.jobs.j", "P"),
    ("$KV.desired.n0", "P"),
    ("$KV.desired.n1", "P"),
    ("$KV.actual.launcher.n0", "0S"),
    ("$KV.actual.power.n0", "0"),
    ("$KV.actual.launcher.n1", "1S"),
    ("$KV.actual.power.n1", "1"),
    ("$KV.surfaces.j", "R"),
    ("$KV.knowledge.physical.job.j", "Q"),
    ("$KV.knowledge.other.job.j", ""),
    ("$KV.predictors.champion", "R"),
    ("$KV.leases.placer", "P"),
    ("$KV.leases.registry", "R"),
    ("$KV.leases.slurm", "S"),
    ("$KV.leases.openadr", "V"),
    ("$KV.leases.predictor.physical", "Q"),
    ("$KV.leases.predictor.other", ""),
    ("$KV.leases.profiler.n0", "0"),
    ("$KV.leases.power.n0", "0"),
    ("$KV.leases.power.n1", "1"),
    ("$KV.predictors.status.physical", "R"),
    ("$KV.predictors.scores.physical", "R"),
    ("$KV.budget.set", "P"),
    ("$KV.budget.status", "P"),
    ("$KV.budget.aim", "P"),
    ("$KV.budget.restored", "P"),
    ("$KV.budget.events", "P"),
    ("$SRV.PING.wattle-predictor", "Ro"),
    ("$SRV.PING.wattle-placer", "Po"),
    ("$SRV.PING.wattle-registry", "Po"),
    ("$SRV.PING", "oW"),
    ("_INBOX.other.x", "PRQ01SVW"),
    // A user or monitor has no access to JetStream at all; a node reads its own order only.
    ("$JS.API.STREAM.INFO.KV_BUCKET_desired", "P01SoW"),
    ("$JS.API.STREAM.INFO.KV_BUCKET_jobs", "PRQ01SoW"),
    ("$JS.API.STREAM.NAMES", "o"),
    ("$JS.API.STREAM.LIST", "o"),
    ("$JS.API.INFO", "o"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_desired", ""),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_desired.x", ""),
    ("$JS.API.CONSUMER.DURABLE.CREATE.KV_BUCKET_desired.x", ""),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_desired.x.$KV.desired.n0", "P0SoW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_desired.x.$KV.desired.n1", "P1SoW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_desired.x.$KV.desired.>", "PSoW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_jobs.x.$KV.jobs.>", "PRQ01SoW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_actual.x.$KV.actual.launcher.n0", "PQoW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_budget.x.$KV.budget.events", "PoVW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_budget.x.$KV.budget.set", "PoW"),
    ("$JS.API.CONSUMER.CREATE.STREAM_ledger.x.wattle.v1.main.energy.metered.*", "PoW"),
    ("$JS.API.CONSUMER.CREATE.STREAM_site.x.wattle.v1.main.site.metered", "PoVW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_knowledge.x.$KV.knowledge.physical.>", "Qo"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_knowledge.x.$KV.knowledge.>", "o"),
    ("$JS.API.DIRECT.GET.KV_BUCKET_actual.$KV.actual.launcher.n0", "PQoW"),
    ("$JS.API.DIRECT.GET.KV_BUCKET_desired.$KV.desired.n0", "P0SoW"),
    ("$JS.API.DIRECT.GET.KV_BUCKET_jobs", ""),
    ("$JS.API.STREAM.MSG.GET.KV_BUCKET_desired", ""),
    ("$JS.API.STREAM.MSG.GET.KV_BUCKET_jobs", ""),
    ("$JS.API.STREAM.MSG.GET.KV_BUCKET_actual", "01"),
    ("$JS.API.STREAM.MSG.GET.KV_BUCKET_leases", "PRQ01SV"),
    ("$JS.API.STREAM.MSG.GET.STREAM_ledger", "o"),
    ("$JS.API.DIRECT.GET.KV_BUCKET_leases.$KV.leases.power.n0", "oW"),
    ("$JS.API.CONSUMER.CREATE.KV_BUCKET_leases.x.$KV.leases.power.n0", "oW"),
    ("$JS.API.CONSUMER.MSG.NEXT.STREAM_ledger.wattle-placer", "P"),
    ("$JS.API.CONSUMER.MSG.NEXT.STREAM_windows.predictor-physical", "Q"),
    ("$JS.API.CONSUMER.DELETE.STREAM_ledger.wattle-placer", "Po"),
    ("$JS.API.CONSUMER.DELETE.STREAM_windows.predictor-physical", "Qo"),
    ("$JS.SNAPSHOT.ACK.KV_BUCKET_jobs.x.1", "o"),
    ("$JS.SNAPSHOT.ACK.KV_BUCKET_leases.x.1", ""),
    ("$JS.SNAPSHOT.RESTORE.KV_BUCKET_jobs.x", "P"),
    ("$JS.SNAPSHOT.RESTORE.KV_BUCKET_leases.x", ""),
    ("$JS.ACK.STREAM_ledger.wattle-placer.1.1.1.1.0", "P"),
    ("$JS.ACK.STREAM_windows.predictor-physical.1.1.1.1.0", "Q"),
];

/// Subjects to subscribe to, with a queue group after a space.
const SUBSCRIBE: &[(&str, &str)] = &[
    // A queue group of requests is the placer's, the registry's or the node's: no other process may
    // swallow them.
    ("job.submitted.*.* q", "P"),
    ("job.submitted.user.ada q", "P"),
    ("job.submitted.*.*", "Po"),
    ("job.cancelled.*.* q", "P"),
    ("job.requested.*.* q", "P"),
    ("budget.set.*.* q", "P"),
    ("event.set.*.* q", "P"),
    ("event.planned.*.* q", "P"),
    ("predictor.promoted.*.* q", "R"),
    ("summary.requested.n0 q", "0"),
    ("summary.requested.* q", ""),
    ("output.requested.n0.*.* q", "0"),
    ("output.requested.n1.*.* q", "1"),
    ("output.requested.n0.*.*", "0o"),
    ("> q", ""),
    (">", "o"),
    ("$ALL", ""),
    ("$ALL q", ""),
    ("gpu.sampled.*", "om"),
    ("node.summarized.*", "PomW"),
    ("node.summarized.* q", "P"),
    ("window.closed.*.*", "Rom"),
    ("window.closed.*.* q", "R"),
    ("job.progressed.*.*", "Pom"),
    ("energy.metered.*", "omW"),
    ("surface.proposed.*.*", "Rom"),
    ("order.recorded", "o"),
    ("$KV.jobs.>", "o"),
    ("$KV.jobs.> q", ""),
    ("$KV.desired.>", "o"),
    ("$KV.desired.n0", "o"),
    ("$KV.actual.launcher.n0", "0o"),
    ("$KV.actual.launcher.n1", "1o"),
    ("$KV.surfaces.>", "o"),
    ("$KV.knowledge.>", "o"),
    ("$KV.predictors.>", "o"),
    ("$KV.budget.>", "o"),
    ("$KV.leases.>", "o"),
    ("$KV.leases.placer", "Po"),
    ("$KV.leases.slurm", "So"),
    ("$KV.leases.openadr", "Vo"),
    ("$KV.leases.power.n0", "0o"),
    ("$SRV.PING", "PRQ01SVW"),
    ("$SRV.PING.wattle-placer", "P"),
    ("$SRV.PING.wattle-registry", "R"),
    ("$SRV.PING.wattle-predictor", "Q"),
    ("$SRV.PING.wattle-launcher", "01"),
    ("$SRV.PING.wattle-slurm", "S"),
    ("$SRV.PING.wattle-openadr", "V"),
    ("$SRV.PING.wattle-web", "W"),
    ("_INBOX.>", ""),
    ("_INBOX.*", ""),
    ("$JS.>", ""),
    ("$SYS.>", ""),
];

fn cluster() -> ClusterId {
    ClusterId::new("main").unwrap()
}

/// The subject of a table's row.
fn subject(row: &str) -> String {
    let mut text = row.to_owned();
    for bucket in Bucket::ALL {
        let token = bucket.token();
        text = text.replace(&format!("$KV.{token}."), &bucket.subject(&cluster(), ""));
        text = text.replace(&format!("KV_BUCKET_{token}"), &bucket.stream(&cluster()));
    }
    text = text.replace("STREAM_", "wattle-v1-main-");
    if let Some(queue) = text.strip_prefix("$ALL") {
        return format!(">{queue}");
    }
    if text.starts_with(['$', '_']) {
        return text;
    }
    format!("wattle.v1.main.{text}")
}

/// A client that speaks the protocol, with a key.
struct Client {
    stream: BufReader<TcpStream>,
    public: String,
}

impl Client {
    async fn connect(site: &Site, role: &str) -> Self {
        let file = std::fs::read_to_string(site.seed(role)).unwrap();
        let pair = KeyPair::from_seed(file.lines().last().unwrap()).unwrap();
        let address = ("127.0.0.1", site.server.port());
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let mut greeting = String::new();
        stream.read_line(&mut greeting).await.unwrap();
        let info: Value = serde_json::from_str(greeting.strip_prefix("INFO ").unwrap()).unwrap();
        let signed = pair.sign(info["nonce"].as_str().unwrap().as_bytes()).unwrap();
        let hello = serde_json::json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "nkey": pair.public_key(), "sig": URL_SAFE_NO_PAD.encode(signed),
        });
        let mut client = Self { stream, public: pair.public_key() };
        client.send(&format!("CONNECT {hello}\r\n")).await;
        client
    }

    async fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    /// Sends commands and returns the server's errors until it has processed all.
    async fn errors(&mut self, commands: &str) -> Vec<String> {
        let mut lines = self.lines(commands).await;
        lines.retain(|line| line.starts_with("-ERR"));
        lines
    }

    /// Sends commands and returns the server's lines until it has processed all.
    async fn lines(&mut self, commands: &str) -> Vec<String> {
        self.send(&format!("{commands}PING\r\n")).await;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let bytes = self.stream.read_line(&mut line).await.unwrap();
            assert!(bytes > 0, "the server closed the connection: {lines:?}");
            match line.trim() {
                "PONG" => return lines,
                line => lines.push(line.to_owned()),
            }
        }
    }
}

#[tokio::test]
async fn every_role_is_held_to_the_table() {
    let site = Site::new(false).await;
    let mut wrong = Vec::new();
    for (letter, role) in ROLES {
        let mut client = Client::connect(&site, role).await;
        let mut judge = |verb: &str, row: &str, permitted: &str, errors: Vec<String>| {
            let violation = format!("Permissions Violation for {verb}");
            let refused = errors.iter().any(|error| error.contains(&violation));
            if refused == permitted.contains(letter) {
                let done = if refused { "refused" } else { "permitted" };
                wrong.push(format!("{role}: {verb} {row} is {done} {errors:?}"));
            }
        };
        for (row, permitted) in PUBLISH {
            // The payload is no message of any kind.
            let errors = client.errors(&format!("PUB {} 1\r\nx\r\n", subject(row))).await;
            judge("Publish", row, permitted, errors);
        }
        for (id, (row, permitted)) in SUBSCRIBE.iter().enumerate() {
            let errors =
                client.errors(&format!("SUB {} {id}\r\nUNSUB {id}\r\n", subject(row))).await;
            judge("Subscription", row, permitted, errors);
        }
        // Each has its own replies.
        let errors = client.errors(&format!("SUB _INBOX.{}.> 900\r\n", client.public)).await;
        judge("Subscription", "own replies", "PRQ01SVWabom", errors);
        // Only the placer creates storage; no role deletes or empties any.
        for name in Bucket::ALL
            .map(|bucket| bucket.stream(&cluster()))
            .into_iter()
            .chain(StreamName::ALL.map(|stream| stream.name(&cluster())))
        {
            // Leases are not part of backups.
            let backed_up = name != Bucket::Leases.stream(&cluster());
            for (verb, permitted) in [
                ("SNAPSHOT", if backed_up { "o" } else { "" }),
                ("RESTORE", if backed_up { "P" } else { "" }),
                ("CREATE", "P"),
                ("UPDATE", "P"),
                ("DELETE", ""),
                ("PURGE", ""),
                ("MSG.DELETE", ""),
            ] {
                let row = format!("$JS.API.STREAM.{verb}.{name}");
                let errors = client.errors(&format!("PUB {row} 2\r\n{{}}\r\n")).await;
                judge("Publish", &row, permitted, errors);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_every_topic_and_bucket() {
    let rows: BTreeSet<String> = PUBLISH.iter().map(|(row, _)| subject(row)).collect();
    let has = |begin: &str| rows.iter().any(|row| row.starts_with(begin));
    for topic in Topic::ALL {
        assert!(has(&format!("wattle.v1.main.{}", topic.token())), "{}", topic.token());
    }
    for bucket in Bucket::ALL {
        assert!(has(&bucket.subject(&cluster(), "")), "{}", bucket.token());
    }
}

/// A stored value cannot be sent to another subject by a process that wrote it: a reply of the server
/// goes to any subject that the request names.
#[tokio::test]
async fn node_cannot_turn_its_report_into_an_order() {
    let site = Site::new(false).await;
    let mut placer = Client::connect(&site, "placer").await;
    let mut create = String::new();
    for bucket in [Bucket::Actual, Bucket::Desired] {
        let config = serde_json::json!({
            "name": bucket.stream(&cluster()), "subjects": [bucket.subject(&cluster(), ">")],
            "storage": "memory", "max_msgs_per_subject": 1, "allow_direct": true,
        });
        let (name, config) = (bucket.stream(&cluster()), config.to_string());
        create += &format!("PUB $JS.API.STREAM.CREATE.{name} {}\r\n{config}\r\n", config.len());
    }
    assert_eq!(placer.errors(&create).await, Vec::<String>::new());
    let mut node = Client::connect(&site, "node-n0").await;
    let own = Bucket::Actual.subject(&cluster(), "launcher.n0");
    let other = Bucket::Desired.subject(&cluster(), "n1");
    let stream = Bucket::Actual.stream(&cluster());
    let forged = r#"{"node":"n1","generation":99,"issued_at_us":0,"expires_at_us":0}"#;
    let written = node.errors(&format!("PUB {own} {}\r\n{forged}\r\n", forged.len())).await;
    assert_eq!(written, Vec::<String>::new());
    // By direct reading, by a consumer, and in the envelope, which is permitted and is no order.
    let direct = format!("PUB $JS.API.DIRECT.GET.{stream}.{own} {other} 0\r\n\r\n");
    assert_eq!(node.errors(&direct).await.len(), 1);
    let consumer = format!("PUB $JS.API.CONSUMER.CREATE.{stream}.x.{own} {other} 2\r\n{{}}\r\n");
    assert_eq!(node.errors(&consumer).await.len(), 1);
    let body = serde_json::json!({ "last_by_subj": own }).to_string();
    let get = format!("PUB $JS.API.STREAM.MSG.GET.{stream} {other} {}\r\n{body}\r\n", body.len());
    assert_eq!(node.errors(&get).await, Vec::<String>::new());
    let inbox = format!("_INBOX.{}", placer.public);
    let order = Bucket::Desired.stream(&cluster());
    let read =
        format!("SUB {inbox}.> 1\r\nPUB $JS.API.DIRECT.GET.{order}.{other} {inbox}.1 0\r\n\r\n");
    let mut stored = placer.lines(&read).await;
    let answered = wattle_tests::until("the value is read", async || {
        stored.extend(placer.lines("").await);
        stored.iter().any(|line| line.contains("HMSG")).then_some(())
    });
    answered.await;
    stored.extend(placer.lines("").await);
    let stored = stored.join("\n");
    assert!(!stored.contains(&forged[..12]), "{stored}");
}

//! Spans of a job at a collector for OpenTelemetry, and a collector that is away.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use wattle_common::job::JobPhase;
use wattle_tests::services::Services;
use wattle_tests::until;

type Spans = Arc<Mutex<Vec<Value>>>;

/// Keeps the spans of each request of a connection.
async fn receive(stream: TcpStream, spans: Spans) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        let mut first = String::new();
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let body: Value = serde_json::from_slice(&body).unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "wattle-placer");
        let received = resource["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        spans.lock().unwrap().extend(received);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
    }
}

fn nanoseconds(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_job_is_a_trace_from_its_submission_to_its_caps_and_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let spans = Spans::default();
    let kept = Arc::clone(&spans);
    let collector = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(receive(stream, Arc::clone(&kept)));
        }
    });
    let settings = format!("[traces]\notlp_url = \"{url}\"\n").parse().unwrap();
    let services = Services::start_with(1, settings).await;
    let job = services.submit("traced", "eaco-alexnet", 300);
    services.until_job(&job, "it has finished", |r| r.phase == JobPhase::Finished).await;
    let all = until("the complete job is at the collector", async || {
        let spans = spans.lock().unwrap().clone();
        spans.iter().any(|span| span["name"] == "job").then_some(spans)
    })
    .await;
    let one = |name: &str| {
        let mut found = all.iter().filter(|span| span["name"] == name);
        let span = found.next().unwrap_or_else(|| panic!("{name} is missing: {all:#?}"));
        assert!(found.next().is_none(), "{name}: {all:#?}");
        span
    };
    let whole = one("job");
    for name in ["queued", "starting", "caps", "running"] {
        let span = one(name);
        assert_eq!(span["traceId"], whole["traceId"], "{name}");
        assert_eq!(span["parentSpanId"], whole["spanId"], "{name}");
        for key in ["startTimeUnixNano", "endTimeUnixNano"] {
            let at = nanoseconds(span, key);
            assert!(at >= nanoseconds(whole, "startTimeUnixNano"), "{name}: {all:#?}");
            assert!(at <= nanoseconds(whole, "endTimeUnixNano"), "{name}: {all:#?}");
        }
    }
    let decided = nanoseconds(one("queued"), "endTimeUnixNano");
    assert_eq!(decided, nanoseconds(one("starting"), "startTimeUnixNano"));
    let caps = one("caps");
    assert!(nanoseconds(caps, "startTimeUnixNano") >= decided, "{all:#?}");
    assert!(caps["attributes"].to_string().contains("wattle.cap_applied_w"), "{caps}");

    // Jobs run on without the collector.
    collector.abort();
    let _ = collector.await;
    let job = services.submit("untraced", "eaco-alexnet", 300);
    services.until_job(&job, "it has finished", |r| r.phase == JobPhase::Finished).await;
}

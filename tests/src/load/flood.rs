//! Messages faster than their receivers process them, over plain connections without flow control.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;
use wattle_common::codec;
use wattle_common::messages::{Reply, SubmitJob};

/// Replies to requests that were all sent at once.
#[derive(Debug, Default)]
pub struct Replies {
    /// Accepted jobs.
    pub accepted: usize,
    /// Refusals by their text.
    pub refused: BTreeMap<String, usize>,
    /// Time until all requests were written to the connection.
    pub sent: Duration,
    /// Time until the last reply.
    pub answered: Duration,
}

impl Replies {
    /// Number of replies.
    #[must_use]
    pub fn count(&self) -> usize {
        self.accepted + self.refused.values().sum::<usize>()
    }
}

async fn connect(url: &str) -> TcpStream {
    let address = url.trim_start_matches("nats://");
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let hello = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n";
    stream.write_all(hello).await.expect("the server reads");
    stream
}

/// Sends all submissions over one connection without waiting, and collects the replies until all have
/// come or none has come for `patience`.
pub async fn submit_at_once(
    url: &str,
    subject: &str,
    jobs: impl Iterator<Item = SubmitJob>,
    patience: Duration,
) -> Replies {
    let start = Instant::now();
    let (reader, mut writer) = connect(url).await.into_split();
    writer.write_all(b"SUB _INBOX.flood.* 1\r\n").await.expect("the server reads");
    let mut frames = Vec::new();
    let mut count = 0;
    for job in jobs {
        let body = codec::encode_json(&job);
        frames.extend(format!("PUB {subject} _INBOX.flood.{count} {}\r\n", body.len()).bytes());
        frames.extend(body);
        frames.extend(b"\r\n");
        count += 1;
    }
    let write = tokio::spawn(async move {
        writer.write_all(&frames).await.expect("the server reads");
        (Instant::now(), writer)
    });
    let mut replies = Replies::default();
    let mut reader = BufReader::new(reader);
    let (mut line, mut body) = (String::new(), Vec::new());
    while replies.count() < count {
        line.clear();
        let read = tokio::time::timeout(patience, reader.read_line(&mut line)).await;
        if !matches!(read, Ok(Ok(1..))) {
            break;
        }
        let mut words = line.split_whitespace();
        if !matches!(words.next(), Some("MSG" | "HMSG")) {
            continue;
        }
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<usize>().ok());
        let len = number(words.next_back()).expect("the length of the message");
        let headers = if line.starts_with('H') { number(words.next_back()) } else { None };
        body.resize(len + 2, 0);
        reader.read_exact(&mut body).await.expect("the server sends what it announced");
        let (headers, reply) = body[..len].split_at(headers.unwrap_or(0));
        if let Some(error) = error_of(&String::from_utf8_lossy(headers)) {
            *replies.refused.entry(error).or_default() += 1;
            replies.answered = start.elapsed();
            continue;
        }
        match codec::decode_json::<Reply>(reply) {
            Ok(Reply::Accepted { .. }) => replies.accepted += 1,
            Ok(Reply::Refused { error }) => *replies.refused.entry(error).or_default() += 1,
            Err(error) => *replies.refused.entry(error.to_string()).or_default() += 1,
        }
        replies.answered = start.elapsed();
    }
    let (sent, _writer) = write.await.expect("it does not panic");
    replies.sent = sent - start;
    replies
}

/// The error in the headers of a reply.
fn error_of(headers: &str) -> Option<String> {
    let line = headers.lines().find_map(|line| line.strip_prefix("Nats-Service-Error:"));
    line.map(|text| text.trim().to_owned())
}

/// A client that subscribes to everything and reads nothing.
pub async fn never_reads(url: &str) -> TcpStream {
    let mut stream = connect(url).await;
    stream.write_all(b"SUB > 1\r\n").await.expect("the server reads");
    stream
}

/// Publishes `payload` at `rate` per second until it is aborted.
pub async fn publish_at(url: String, subject: String, payload: Vec<u8>, rate: f64) {
    let mut stream = connect(&url).await;
    let mut frame = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
    frame.extend(payload);
    frame.extend(b"\r\n");
    let start = Instant::now();
    let mut sent = 0_u64;
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let due = (start.elapsed().as_secs_f64() * rate) as u64;
        let frames = frame.repeat((due - sent) as usize);
        sent = due;
        if stream.write_all(&frames).await.is_err() {
            return;
        }
    }
}

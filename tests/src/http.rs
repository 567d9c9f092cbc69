//! One HTTP request of a test, without a client library.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its status line and headers, as sent.
    pub head: String,
    /// Its body.
    pub body: String,
}

/// Sends one request to a port of this machine. `headers` may replace the host.
///
/// # Errors
/// If the connection fails.
pub async fn http(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head += &format!("Host: 127.0.0.1:{port}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes()).await?;
    // A server may keep the connection open, so the length counts.
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let len = stream.read(&mut buffer).await?;
        answer.extend_from_slice(&buffer[..len]);
        if len == 0 || is_complete(&answer) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status: {head}")))?;
    Ok(Response { status, head: head.replace("\r\n", "\n"), body: body.to_owned() })
}

/// Whether a response has as many bytes as its header states.
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

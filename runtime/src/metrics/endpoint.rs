//! The HTTP endpoint of a service's metrics: `/metrics` for Prometheus, `/` with a list of the families.
//!
//! The service works without it: an address in use is a warning, and is tried again. It only reads, and has
//! no authentication, so it listens on loopback unless the configuration names another address.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Metrics;
use crate::files::{self, Access};

/// Most connections; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// Pause before an address in use is tried again: wall time.
const RETRY: Duration = Duration::from_secs(5);
/// Prometheus's text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the metrics at `address` for as long as the process runs.
pub(super) async fn serve(metrics: Metrics, address: SocketAddr, targets_file: Option<PathBuf>) {
    let listener = bind(address).await;
    match listener.local_addr() {
        Ok(bound) => {
            tracing::info!(url = %format!("http://{bound}/metrics"), "metrics");
            if let Some(file) = targets_file
                && let Err(error) = write_targets(&file, bound)
            {
                tracing::warn!(file = %file.display(), %error, "targets_file not written");
            }
        }
        Err(error) => tracing::warn!(%error, "address of the metrics not known"),
    }
    let at_metrics = metrics.clone();
    let router = Router::new()
        .route("/metrics", get(async move || ([(CONTENT_TYPE, TEXT_FORMAT)], at_metrics.text())))
        .route("/", get(async move || list(&metrics)));
    if let Err(error) = axum::serve(Limited::new(listener), router).await {
        tracing::warn!(%error, "metrics are no longer served");
    }
}

async fn bind(address: SocketAddr) -> TcpListener {
    let mut warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !std::mem::replace(&mut warned, true) => {
                tracing::warn!(
                    %address, %error,
                    "metrics not served; retrying: name a free address in `listen` of [metrics]"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Writes a target for Prometheus's `file_sd_configs`, complete at any instant.
fn write_targets(file: &Path, bound: SocketAddr) -> io::Result<()> {
    let text = format!("[{{\"targets\": [\"{bound}\"]}}]\n");
    files::replace(file, text.as_bytes(), Access::Unchanged)
}

/// Name, kind, labels and meaning of each family, one a line.
fn list(metrics: &Metrics) -> String {
    let mut text = String::from("The samples are at /metrics.\n\n");
    for family in metrics.families() {
        let labels = family.labels.join(",");
        let (name, kind, help) = (family.name, family.kind.as_str(), family.help);
        text.push_str(&format!("{name}{{{labels}}} {kind}: {help}\n"));
    }
    text
}

/// A listener that accepts no further connection while the most are open.
struct Limited {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Limited {
    fn new(listener: TcpListener) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        // Errors of single connections are ignored, with a pause where the process has no free files.
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection { stream, _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, which counts until it is closed.
struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use wattle_common::ClusterId;

    use super::*;

    /// The address in a targets file, once it is there.
    async fn address(file: &Path) -> String {
        let wait = async {
            loop {
                if let Ok(text) = std::fs::read_to_string(file) {
                    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                    return value[0]["targets"][0].as_str().unwrap().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap()
    }

    async fn read(address: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_and_their_list_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("example.json");
        let metrics = Metrics::new("example", &ClusterId::new("main").unwrap(), None);
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        tokio::spawn(serve(metrics, any, Some(file.clone())));
        let address = address(&file).await;
        let text = read(&address, "/metrics").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("\n# TYPE wattle_build_info gauge\n"), "{text}");
        let text = read(&address, "/").await;
        assert!(text.contains("wattle_log_lines_total{level} counter: Log lines"), "{text}");
        assert!(read(&address, "/other").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn connections_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut limited = Limited::new(listener);
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let client = TcpStream::connect(address).await.unwrap();
            open.push((limited.accept().await, client));
        }
        let _client = TcpStream::connect(address).await.unwrap();
        let brief = Duration::from_millis(50);
        assert!(tokio::time::timeout(brief, limited.accept()).await.is_err(), "one too many");
        open.pop();
        let long = Duration::from_secs(20);
        assert!(tokio::time::timeout(long, limited.accept()).await.is_ok(), "one has left");
    }
}

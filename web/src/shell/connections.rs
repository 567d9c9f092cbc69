//! Accepts connections within bounds, and ends those that do not make progress.
//!
//! A connection that sends no complete request head within a time limit ends, so an idle one does too, and
//! one whose client does not read. While the most connections are open, a further one displaces that which
//! was silent for the longest time, so no number of idle connections makes the page unreachable.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};
use wattle_runtime::clock;

/// Time in which a connection sends the head of its next request, wall time.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(15);
/// Time in which a client reads what waits for it, wall time.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// Most connections of one address that is not on loopback, where proxies and tunnels connect from.
const PER_ADDRESS_MAX: usize = 64;

/// When a connection was last used, and for what.
#[derive(Debug)]
pub(super) struct Activity {
    /// When it last read or wrote, milliseconds since the machine started.
    used_ms: AtomicU64,
    /// Whether it carries a stream of events, which is bounded otherwise.
    follows: AtomicBool,
}

impl Activity {
    fn new() -> Self {
        Self { used_ms: AtomicU64::new(started_ms()), follows: AtomicBool::new(false) }
    }

    fn touch(&self) {
        self.used_ms.store(started_ms(), Ordering::Relaxed);
    }

    /// Notes that the connection carries a stream of events from now on.
    pub(super) fn follows(&self) {
        self.follows.store(true, Ordering::Relaxed);
    }
}

fn started_ms() -> u64 {
    clock::work_time().as_millis() as u64
}

/// One open connection.
struct Open {
    address: IpAddr,
    activity: Arc<Activity>,
    task: Option<AbortHandle>,
}

/// The open connections.
struct Table {
    open: BTreeMap<u64, Open>,
    next: u64,
    connections_max: usize,
}

impl Table {
    const fn new(connections_max: usize) -> Self {
        Self { open: BTreeMap::new(), next: 0, connections_max }
    }

    /// Adds a connection from an address, for which another may have to end. `None`: there is no room.
    fn admit(&mut self, address: IpAddr) -> Option<(u64, Arc<Activity>)> {
        let own = |open: &&Open| open.address == address;
        let is_own_full =
            !address.is_loopback() && self.open.values().filter(own).count() >= PER_ADDRESS_MAX;
        if is_own_full || self.open.len() >= self.connections_max {
            let displaceable = self.open.iter().filter(|(_, open)| {
                !open.activity.follows.load(Ordering::Relaxed)
                    && (!is_own_full || open.address == address)
            });
            let used = |open: &Open| open.activity.used_ms.load(Ordering::Relaxed);
            let silent = displaceable.min_by_key(|(id, open)| (used(open), **id));
            let id = *silent?.0;
            if let Some(task) = self.open.remove(&id).and_then(|open| open.task) {
                task.abort();
            }
        }
        let (id, activity) = (self.next, Arc::new(Activity::new()));
        self.next += 1;
        self.open.insert(id, Open { address, activity: Arc::clone(&activity), task: None });
        Some((id, activity))
    }
}

/// Removes a connection from the table when its task ends.
struct Entry {
    table: Arc<Mutex<Table>>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.table).open.remove(&self.id);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the routes to at most this number of connections, for as long as the service runs.
pub(super) async fn serve(
    mut listener: TcpListener,
    router: Router,
    connections_max: usize,
    head_within: Duration,
) {
    let table = Arc::new(Mutex::new(Table::new(connections_max)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_within);
    loop {
        // Errors of single connections are ignored, with a pause where the process has no free files.
        let (stream, peer): (TcpStream, SocketAddr) = Listener::accept(&mut listener).await;
        let Some((id, activity)) = lock(&table).admit(peer.ip()) else {
            tracing::debug!(%peer, "connection refused: too many are open");
            continue;
        };
        let entry = Entry { table: Arc::clone(&table), id };
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
        let router = router.clone().layer(Extension(ConnectInfo(peer))).layer(Extension(activity));
        let connection = http.serve_connection(io, TowerToHyperService::new(router));
        let task = tokio::spawn(async move {
            let _entry = entry;
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
        if let Some(open) = lock(&table).open.get_mut(&id) {
            open.task = Some(task.abort_handle());
        }
    }
}

/// A connection whose use is noted, and which fails when its client does not read for too long.
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
    /// The time limit of the present wait for the client to read; absent: it reads.
    unread: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    const fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream, activity, unread: None }
    }

    /// Notes the progress of a write, or its time limit.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.unread = None;
            self.activity.touch();
            return result;
        }
        let limit = || Box::pin(tokio::time::sleep_until(Instant::now() + READ_WITHIN));
        match self.unread.get_or_insert_with(limit).as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if result.is_ready() {
            self.activity.touch();
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.written(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn the_connection_that_was_silent_longest_ends_for_a_new_one() {
        let mut table = Table::new(3);
        let ids: Vec<u64> = (0..3).map(|n| table.admit(address(n)).unwrap().0).collect();
        for (id, used_ms) in ids.iter().zip([30, 10, 20]) {
            table.open[id].activity.used_ms.store(used_ms, Ordering::Relaxed);
        }
        // It carries a stream of events.
        table.open[&ids[1]].activity.follows();
        let (new, _) = table.admit(address(9)).unwrap();
        assert_eq!(table.open.keys().copied().collect::<Vec<_>>(), [ids[0], ids[1], new]);
        table.open.values().for_each(|open| open.activity.follows());
        assert!(table.admit(address(9)).is_none(), "streams are not displaced");
    }

    #[test]
    fn one_address_has_a_bounded_number_of_connections_and_displaces_only_its_own() {
        let mut table = Table::new(1_000);
        let (other, _) = table.admit(address(2)).unwrap();
        for _ in 0..5 * PER_ADDRESS_MAX {
            table.admit(address(1)).unwrap();
        }
        let of = |n| table.open.values().filter(|open| open.address == address(n)).count();
        assert_eq!((of(1), of(2)), (PER_ADDRESS_MAX, 1));
        assert!(table.open.contains_key(&other));
        let mut local = Table::new(1_000);
        for _ in 0..500 {
            local.admit(IpAddr::from([127, 0, 0, 1])).unwrap();
        }
        assert_eq!(local.open.len(), 500, "a proxy's clients have one address");
    }

    async fn page(connections_max: usize, head_within: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(async || "here"));
        tokio::spawn(serve(listener, router, connections_max, head_within));
        at
    }

    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn idle_connections_do_not_keep_others_out() {
        let at = page(4, Duration::from_secs(600)).await;
        let mut idle = Vec::new();
        for _ in 0..20 {
            idle.push(TcpStream::connect(at).await.unwrap());
        }
        let mut one = TcpStream::connect(at).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        one.write_all(request).await.unwrap();
        let text = answer(&mut one).await;
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("here"), "{text}");
        // The displaced ones are closed.
        assert_eq!(idle[0].read(&mut [0; 8]).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_connection_without_a_request_ends() {
        let at = page(4, Duration::from_millis(50)).await;
        let mut idle = TcpStream::connect(at).await.unwrap();
        assert_eq!(answer(&mut idle).await, "");
        let mut slow = TcpStream::connect(at).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").await.unwrap();
        let text = answer(&mut slow).await;
        assert!(!text.contains("200 OK"), "{text}");
    }
}

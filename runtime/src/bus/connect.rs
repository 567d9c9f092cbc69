//! Connection to the server.
//!
//! A service waits for its server at the start and reconnects indefinitely, with log messages. The
//! client's defaults detect a half-open connection after minutes and wait ten seconds for a reply;
//! this is too long for a power agent, so pings are seconds apart.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{ClientError, ConnectOptions, Event, ServerAddr, jetstream};
use tokio::sync::watch;
use wattle_common::ClusterId;
use wattle_common::subject::StreamName;

use super::bounded::{Answers, Bounded};
use super::credentials::{self, Credentials};
use super::{ANSWER_WITHIN, Bus, BusConfig, BusError, Shared};
use crate::shell::chain;

/// Interval of pings; two without a reply end the connection, within six seconds.
const PING_EVERY: Duration = Duration::from_secs(3);
/// Longest pause between two connection attempts.
const RETRY_EVERY_MAX: Duration = Duration::from_secs(2);
/// Attempts of a session's connection to return, with pauses that double to [`SESSION_RETRY_EVERY_MAX`]: some
/// four minutes.
const SESSION_TRIES: usize = 16;
/// Longest pause between two attempts of a session's connection.
const SESSION_RETRY_EVERY_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts of a session's connection whose key the server refuses.
const REFUSED_RETRY_EVERY: Duration = Duration::from_millis(100);
/// Interval of log messages while waiting for the server.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Length of the client's command queue; when it is full, sending returns [`BusError::Busy`].
const COMMANDS_MAX: usize = 2_048;
/// Most unread messages of a subscription; later ones are dropped. Full of submissions of about 1 kB it
/// needs 130 MB.
const UNREAD_MAX: usize = 131_072;
/// Most stored messages with a pending acknowledgement.
const ACKS_MAX: usize = 1_024;
/// Attempts before a server counts as without JetStream: five seconds, because a starting server accepts
/// connections before JetStream is ready.
const JETSTREAM_TRIES: u32 = 20;
/// Attempts between two log messages.
const LOG_TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);
/// Longest time in which an interactive command opens a bucket, wall time; a service waits indefinitely.
pub(super) const OPENED_WITHIN: Duration = Duration::from_secs(10);

impl Bus {
    /// Connects; while the server is away it retries indefinitely and logs. Drop the future to cancel
    /// (`tokio::select!` with a shutdown).
    ///
    /// # Errors
    /// If the configuration is invalid: no address, an unreadable file.
    pub async fn connect(
        config: &BusConfig,
        cluster: ClusterId,
        client_name: &str,
    ) -> Result<Self, BusError> {
        let bus = Self::prepare(config, cluster, client_name, None).await?;
        bus.wait_connected().await;
        Ok(bus)
    }

    /// As [`Self::connect_within`], with the text of a key file in place of the configured key, which may be
    /// another identity's. The text is kept in memory only. The connection does not return without limit: it
    /// ends seconds after the server has refused the key, and after minutes without a server
    /// ([`Self::has_ended`]).
    ///
    /// # Errors
    /// As [`Self::connect_within`], and if the text is not that of a key file.
    pub async fn connect_with_key(
        config: &BusConfig,
        key: &str,
        cluster: ClusterId,
        client_name: &str,
        patience: Duration,
    ) -> Result<Self, BusError> {
        let key =
            Credentials::parse(key).map_err(|problem| BusError::refused("use the key", problem))?;
        let bus = Self::prepare(config, cluster, client_name, Some(key)).await?;
        match tokio::time::timeout(patience, bus.wait_connected()).await {
            Ok(()) => Ok(bus),
            Err(_) => Err(bus.not_connected()),
        }
    }

    /// As [`Self::connect`], for interactive use: gives up after `patience` of wall time. Buckets are opened
    /// within ten seconds of wall time or not at all.
    ///
    /// # Errors
    /// As [`Self::connect`], and [`BusError::Disconnected`].
    pub async fn connect_within(
        config: &BusConfig,
        cluster: ClusterId,
        client_name: &str,
        patience: Duration,
    ) -> Result<Self, BusError> {
        let bus = Self::prepare(config, cluster, client_name, None).await?;
        bus.shared.gives_up.store(true, Ordering::Relaxed);
        match tokio::time::timeout(patience, bus.wait_connected()).await {
            Ok(()) => Ok(bus),
            Err(_) => Err(bus.not_connected()),
        }
    }

    pub(super) fn not_connected(&self) -> BusError {
        let url = self.shared.url.clone();
        if !self.shared.refused.load(Ordering::Relaxed) {
            return BusError::Disconnected { url };
        }
        let reason = if self.shared.key.is_some() {
            "it does not know the key; add it to the server's configuration (`wattle keys`) and reload \
             the server"
        } else {
            "it requires a key: name the key file with --credentials, WATTLE_CREDENTIALS or \
             credentials_file; a server of `wattle up` accepts the user that started it, and root with \
             the key in its state folder"
        };
        BusError::Unauthorized { url, reason }
    }

    async fn prepare(
        config: &BusConfig,
        cluster: ClusterId,
        client_name: &str,
        key: Option<Credentials>,
    ) -> Result<Self, BusError> {
        let config = &config.in_force();
        let url = config.url.clone();
        let addresses: Vec<ServerAddr> = url
            .split(',')
            .map(|address| address.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|source: std::io::Error| BusError::Address {
                url: shown(&url),
                source: source.into(),
            })?;
        let url = shown(&url);
        let is_session = key.is_some();
        let credentials = match key {
            Some(key) => Some(key),
            None => config.credentials_file.as_deref().map(Credentials::read).transpose()?,
        };
        credentials::check(config, &addresses, &url, credentials.is_some())?;
        let (sender, reached) = watch::channel(0);
        let (refused, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let forbidden = Arc::<AtomicBool>::default();
        let noted = Noted {
            url: url.clone(),
            reached: sender,
            refused: Arc::clone(&refused),
            forbidden: Arc::clone(&forbidden),
            ended: Arc::clone(&ended),
        };
        let mut options = Self::options(config, client_name, noted)?;
        if is_session {
            options = Self::session_options(options, &refused);
        }
        let options = match &credentials {
            Some(credentials) => credentials.apply(options),
            None => options,
        };
        let client = options
            .connect(addresses)
            .await
            .map_err(|source| BusError::refused(format!("connect to {url}"), source))?;
        let jetstream = jetstream::ContextBuilder::new()
            .timeout(ANSWER_WITHIN)
            .ack_timeout(ANSWER_WITHIN)
            .max_ack_inflight(ACKS_MAX)
            .build(client.clone());
        let answers = Arc::new(Answers::default());
        let client = Bounded::new(client, Arc::clone(&answers));
        let jetstream = client.with(jetstream);
        let streams_ready = [const { AtomicBool::new(false) }; StreamName::ALL.len()];
        let key = credentials.as_ref().map(|credentials| credentials.public.clone());
        let has_role = credentials.as_ref().is_some_and(Credentials::has_role);
        let requester = credentials
            .and_then(|credentials| credentials.requester())
            .unwrap_or_else(credentials::local_requester);
        Ok(Self {
            shared: Arc::new(Shared {
                client,
                jetstream,
                answers,
                cluster,
                url,
                requester,
                key,
                has_role,
                refused,
                forbidden,
                ended,
                reached,
                streams_ready,
                replicas: config.replicas,
                gives_up: AtomicBool::new(false),
            }),
        })
    }

    fn options(
        config: &BusConfig,
        client_name: &str,
        noted: Noted,
    ) -> Result<ConnectOptions, BusError> {
        let noted = Arc::new(noted);
        let mut options = ConnectOptions::new()
            .name(client_name)
            .retry_on_initial_connect()
            .ping_interval(PING_EVERY)
            .connection_timeout(ANSWER_WITHIN)
            .request_timeout(Some(ANSWER_WITHIN))
            .client_capacity(COMMANDS_MAX)
            .subscription_capacity(UNREAD_MAX)
            .reconnect_delay_callback(|tries| {
                // 20 ms, 40 ms, 80 ms and so on: a restarted server is found at once.
                let exponent = u32::try_from(tries).unwrap_or(u32::MAX).min(8);
                Duration::from_millis(10 << exponent).min(RETRY_EVERY_MAX)
            })
            .event_callback(move |event| {
                noted.note(&event);
                std::future::ready(())
            });
        // The client reads the files when it connects, and does not report an error.
        let readable = |path: &PathBuf| {
            std::fs::read(path).map(|_| path.clone()).map_err(|source| BusError::file(path, source))
        };
        if let Some(path) = &config.ca_file {
            options = options.add_root_certificates(readable(path)?).require_tls(true);
        }
        match (&config.certificate_file, &config.certificate_key_file) {
            (Some(certificate), Some(key)) => {
                let files = (readable(certificate)?, readable(key)?);
                options = options.add_client_certificate(files.0, files.1).require_tls(true);
            }
            (None, None) => {}
            (Some(path), None) | (None, Some(path)) => {
                let both = "certificate_file and certificate_key_file are used together";
                return Err(BusError::file(path, both));
            }
        }
        Ok(options)
    }

    /// The options of a session's connection, which ends at some time.
    fn session_options(options: ConnectOptions, refused: &Arc<AtomicBool>) -> ConnectOptions {
        let refused = Arc::clone(refused);
        options.max_reconnects(SESSION_TRIES).reconnect_delay_callback(move |tries| {
            if refused.load(Ordering::Relaxed) {
                return REFUSED_RETRY_EVERY;
            }
            let exponent = u32::try_from(tries).unwrap_or(u32::MAX).min(SESSION_TRIES as u32);
            Duration::from_millis(10 << exponent).min(SESSION_RETRY_EVERY_MAX)
        })
    }

    /// Returns when the server is connected; logs while it is not.
    pub(super) async fn wait_connected(&self) {
        let mut reached = self.shared.reached.clone();
        let connected = async {
            while !self.is_connected() {
                // A change may come between the check and the wait, so the wait is short.
                let _ = tokio::time::timeout(PAUSE, reached.changed()).await;
            }
        };
        tokio::pin!(connected);
        let mut patience = ANSWER_WITHIN;
        while tokio::time::timeout(patience, &mut connected).await.is_err() {
            tracing::warn!(url = %self.shared.url, "nats server not connected; retrying");
            patience = LOG_EVERY;
        }
    }

    /// Repeats `work` while its error is transient, such as while the server is away or starting.
    pub(super) async fn retry_until_done<T, F: Future<Output = Result<T, BusError>>>(
        &self,
        what: &str,
        work: impl Fn() -> F,
    ) -> Result<T, BusError> {
        let (mut tries, mut without_jetstream) = (0_u32, 0);
        loop {
            self.wait_connected().await;
            let error = match work().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            without_jetstream += u32::from(matches!(error, BusError::NoJetStream { .. }));
            if without_jetstream >= JETSTREAM_TRIES || !error.is_transient() {
                return Err(error);
            }
            tries += 1;
            if tries.is_multiple_of(LOG_TRIES) {
                // A server also does not reply if it denies permission.
                let error = chain(&error);
                tracing::warn!(what, %error, tries, "nats server does not complete the operation; retrying");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// `url` without user and password, for display.
fn shown(url: &str) -> String {
    let address = |address: &str| match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => address.to_owned(),
    };
    url.split(',').map(|one| address(one.trim())).collect::<Vec<_>>().join(",")
}

/// What is noted of the events of a connection.
struct Noted {
    url: String,
    reached: watch::Sender<u64>,
    refused: Arc<AtomicBool>,
    forbidden: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Noted {
    fn note(&self, event: &Event) {
        let url = self.url.as_str();
        // The client has no events of its own for a refused connection and a refused message.
        if matches!(event, Event::ServerError(_) | Event::ClientError(_)) {
            let text = event.to_string().to_lowercase();
            if text.contains("permissions violation for publish") {
                self.forbidden.store(true, Ordering::Relaxed);
            }
            if text.contains("authorization") && self.refused.swap(true, Ordering::Relaxed) {
                // Each attempt is refused; the first was logged.
                return tracing::debug!(url, %event, "refused by nats server");
            }
        }
        match event {
            Event::Connected => {
                self.refused.store(false, Ordering::Relaxed);
                self.reached.send_modify(|count| *count += 1);
                tracing::info!(url, "connected to nats server");
            }
            Event::ClientError(ClientError::MaxReconnects) | Event::Closed => {
                self.ended.store(true, Ordering::Relaxed);
                tracing::debug!(url, %event, "nats client ended");
            }
            event => log(url, event),
        }
    }
}

fn log(url: &str, event: &Event) {
    match event {
        Event::Disconnected => tracing::warn!(url, "disconnected from nats server; retrying"),
        Event::LameDuckMode => tracing::warn!(url, "nats server will stop"),
        Event::SlowConsumer(subscription) => {
            tracing::warn!(subscription, "messages dropped: this service is too slow");
        }
        Event::ServerError(error) => tracing::warn!(url, %error, "nats server error"),
        Event::ClientError(error) => tracing::warn!(url, %error, "nats client error"),
        Event::Draining | Event::Closed | Event::Connected => {
            tracing::debug!(url, %event, "nats client");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, expected) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://me:p@ss@host:4222, tls://b", "nats://host:4222,tls://b"),
            ("me:secret@host", "host"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}

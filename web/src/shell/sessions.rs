//! Sessions: the connection of each signed-in person to the bus, under the own key of that person.
//!
//! What a person may do is enforced by the NATS server, which also proves whose key it is: the file only
//! claims it. Sessions are in memory only: they end with the service, after a time without use, when the
//! person signs out, and when the server refuses the key.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use wattle_common::subject::Rank;
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::clock;

use super::Shared;
use crate::config::Config;

/// Most sessions; of more, further sign-ins are refused.
pub(super) const SESSIONS_MAX: usize = 512;
/// Most sessions of one person; of more, the person's least recently used one ends.
const PER_PERSON_MAX: usize = 8;
/// Time without use after which a session ends, wall time.
const IDLE_MAX: Duration = Duration::from_secs(8 * 3_600);
/// Time limit of a connection, wall time.
const PATIENCE: Duration = Duration::from_secs(4);
/// Sign-ins under way at a time.
const SIGN_INS_MAX: usize = 4;
/// Longest wait for the sign-ins under way, wall time.
const TURN_WITHIN: Duration = Duration::from_secs(8);
/// Pause after a failed sign-in, wall time.
const WRONG_KEY_PAUSE: Duration = Duration::from_millis(250);
/// Interval in which sessions are checked, wall time.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Random bytes of a token.
const TOKEN_LEN: usize = 32;

struct Session {
    /// The public key, which the server has proven; the name in a key file is only declared.
    key: String,
    bus: Bus,
    used: Duration,
    /// Dropped with the session, which its streams of events notice.
    alive: watch::Sender<()>,
}

/// The person of a request.
#[derive(Clone)]
pub(super) struct Person {
    /// The person's connection.
    pub(super) bus: Bus,
    /// Fails when the session has ended; absent: the session is one of the page's address.
    pub(super) alive: Option<watch::Receiver<()>>,
    /// The token of a session of the page's address.
    pub(super) link: Option<String>,
}

impl Person {
    /// The person of a session of the page's address, with the service's own connection.
    pub(super) fn of_link(bus: &Bus, token: &str) -> Self {
        Self { bus: bus.clone(), alive: None, link: Some(token.to_owned()) }
    }
}

/// The sessions by token.
pub(super) struct Sessions {
    open: Mutex<BTreeMap<String, Session>>,
    sessions_max: usize,
    sign_ins: Semaphore,
}

/// A token from the random source of the system.
pub(super) fn random_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; TOKEN_LEN];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Ends sessions that are over, for as long as the service runs.
pub(super) async fn keep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        shared.sessions.end_old(clock::monotonic());
    }
}

impl Sessions {
    /// At most this number of sessions.
    pub(super) fn new(sessions_max: usize) -> Self {
        Self { open: Mutex::default(), sessions_max, sign_ins: Semaphore::new(SIGN_INS_MAX) }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the sessions that were not used for long, and those whose key the server refuses.
    fn end_old(&self, now: Duration) {
        self.open().retain(|_, session| {
            let is_over = session.bus.has_ended();
            if is_over {
                let person = session.bus.requester();
                tracing::info!(%person, "session ended: the server refuses its key");
            }
            !is_over && now.saturating_sub(session.used) < IDLE_MAX
        });
    }

    /// The person of a session.
    pub(super) fn get(&self, token: &str) -> Option<Person> {
        let now = clock::monotonic();
        self.end_old(now);
        let mut open = self.open();
        let session = open.get_mut(token)?;
        session.used = now;
        let alive = Some(session.alive.subscribe());
        Some(Person { bus: session.bus.clone(), alive, link: None })
    }

    /// Ends a session.
    pub(super) fn end(&self, token: &str) {
        self.open().remove(token);
    }

    /// Signs a person in with the text of the person's key file; returns the token.
    pub(super) async fn begin(&self, config: &Config, key: &str) -> Result<(String, Bus), String> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.sign_ins.acquire()).await;
        let Ok(Ok(_permit)) = turn else {
            return Err("too many people sign in at once: try again".to_owned());
        };
        let cluster = config.cluster.clone();
        let connected =
            Bus::connect_with_key(&config.nats, key, cluster, "wattle-web session", PATIENCE).await;
        let bus = match connected {
            Ok(bus) => bus,
            Err(error) => {
                // While its turn lasts, so that wrong keys are tried slowly.
                tokio::time::sleep(WRONG_KEY_PAUSE).await;
                return Err(match error {
                    BusError::Unauthorized { .. } => {
                        "the NATS server does not know this key".to_owned()
                    }
                    other => wattle_runtime::shell::chain(&other),
                });
            }
        };
        if !bus.has_key() || bus.requester().rank == Rank::Local {
            return Err(
                "the key is not one of a person: paste the whole file that `wattle keys add \
                        user NAME` wrote, with its line `# role: user NAME`"
                    .to_owned(),
            );
        }
        match bus.has_proven_requester().await {
            Ok(true) => {}
            Ok(false) => {
                return Err(
                    "the line `# role:` of the file is not that of its key: the NATS server does \
                            not accept the key for this person"
                        .to_owned(),
                );
            }
            Err(error) => {
                let error = wattle_runtime::shell::chain(&error);
                return Err(format!("it is not known whose key this is: {error}; try again"));
            }
        }
        self.add(bus.public_key().unwrap_or_default(), &bus).map(|token| (token, bus))
    }

    /// Adds a session of the person with this public key; returns its token.
    fn add(&self, key: &str, bus: &Bus) -> Result<String, String> {
        let token = random_token().map_err(|error| format!("no random numbers: {error}"))?;
        let used = clock::monotonic();
        let mut open = self.open();
        let own: Vec<_> = open.iter().filter(|(_, session)| session.key == key).collect();
        let oldest = own
            .iter()
            .min_by_key(|(_, session)| session.used)
            .filter(|_| own.len() >= PER_PERSON_MAX);
        if let Some(oldest) = oldest.map(|(token, _)| (*token).clone()) {
            open.remove(&oldest);
        }
        if open.len() >= self.sessions_max {
            return Err("too many people are signed in: try again later".to_owned());
        }
        let (key, bus) = (key.to_owned(), bus.clone());
        open.insert(token.clone(), Session { key, bus, used, alive: watch::Sender::new(()) });
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::ClusterId;
    use wattle_runtime::bus::BusConfig;
    use wattle_runtime::testing::NatsServer;

    use super::*;

    #[tokio::test]
    async fn sign_ins_of_one_person_end_no_session_of_another() {
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("main").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let sessions = Sessions::new(SESSIONS_MAX);
        let ada = sessions.add("ada", &bus).unwrap();
        let first = sessions.add("bob", &bus).unwrap();
        let mut alive = sessions.get(&first).unwrap().alive.unwrap();
        for _ in 0..600 {
            sessions.add("bob", &bus).unwrap();
        }
        assert!(sessions.get(&ada).is_some(), "ada is signed in");
        assert!(sessions.get(&first).is_none() && alive.changed().await.is_err());
        assert_eq!(sessions.open().len(), 1 + PER_PERSON_MAX);
        // With the most sessions of as many persons, further ones are refused and none ends.
        let open = sessions.open().len();
        for number in open..SESSIONS_MAX {
            sessions.add(&format!("p{number}"), &bus).unwrap();
        }
        assert!(sessions.add("olga", &bus).unwrap_err().contains("too many people"));
        assert!(sessions.get(&ada).is_some());
        sessions.end(&ada);
        assert!(sessions.get(&ada).is_none() && sessions.add("olga", &bus).is_ok());
    }

    #[tokio::test]
    async fn a_session_without_use_ends() {
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("main").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let sessions = Sessions::new(2);
        let token = sessions.add("ada", &bus).unwrap();
        let mut alive = sessions.get(&token).unwrap().alive.unwrap();
        sessions.end_old(clock::monotonic() + IDLE_MAX / 2);
        assert!(alive.has_changed().is_ok());
        sessions.end_old(clock::monotonic() + IDLE_MAX);
        assert!(alive.changed().await.is_err(), "its streams of events end");
    }
}

//! Sessions: the connection of each signed-in person to the bus, under the own key of that person.
//!
//! What a person may do is enforced by the NATS server, which also proves whose key it is: the file only
//! claims it. Sessions are in memory only: they end with the
//! service, after a time without use, and when the person signs out.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use wattle_common::subject::Rank;
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::clock;

use crate::config::Config;

/// Most sessions; of more, the one that was used earliest ends.
const SESSIONS_MAX: usize = 64;
/// Time without use after which a session ends, wall time.
const IDLE_MAX: Duration = Duration::from_secs(8 * 3_600);
/// Time limit of a connection, wall time.
const PATIENCE: Duration = Duration::from_secs(4);
/// Sign-ins under way at a time.
const SIGN_INS_MAX: usize = 4;
/// Random bytes of a token.
const TOKEN_LEN: usize = 32;

struct Session {
    bus: Bus,
    used: Duration,
}

/// The sessions by token.
pub(super) struct Sessions {
    open: Mutex<BTreeMap<String, Session>>,
    sign_ins: Semaphore,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { open: Mutex::default(), sign_ins: Semaphore::new(SIGN_INS_MAX) }
    }
}

/// A token from the random source of the system.
pub(super) fn random_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; TOKEN_LEN];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Sessions {
    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of a session.
    pub(super) fn get(&self, token: &str) -> Option<Bus> {
        let now = clock::monotonic();
        let mut open = self.open();
        open.retain(|_, session| now.saturating_sub(session.used) < IDLE_MAX);
        let session = open.get_mut(token)?;
        session.used = now;
        Some(session.bus.clone())
    }

    /// Ends a session.
    pub(super) fn end(&self, token: &str) {
        self.open().remove(token);
    }

    /// Signs a person in with the text of the person's key file; returns the token.
    pub(super) async fn begin(&self, config: &Config, key: &str) -> Result<(String, Bus), String> {
        let Ok(_permit) = self.sign_ins.try_acquire() else {
            return Err("too many people sign in at once: try again".to_owned());
        };
        let cluster = config.cluster.clone();
        let connected =
            Bus::connect_with_key(&config.nats, key, cluster, "wattle-web session", PATIENCE).await;
        let bus = connected.map_err(|error| match error {
            BusError::Unauthorized { .. } => "the NATS server does not know this key".to_owned(),
            other => wattle_runtime::shell::chain(&other),
        })?;
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
        let token = random_token().map_err(|error| format!("no random numbers: {error}"))?;
        let used = clock::monotonic();
        let mut open = self.open();
        if open.len() >= SESSIONS_MAX
            && let Some(oldest) =
                open.iter().min_by_key(|(_, session)| session.used).map(|(token, _)| token.clone())
        {
            open.remove(&oldest);
        }
        open.insert(token.clone(), Session { bus: bus.clone(), used });
        Ok((token, bus))
    }
}

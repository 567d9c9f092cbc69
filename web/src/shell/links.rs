//! The address that signs a browser in without a key, for the page of one user's own system.
//!
//! The address is in a file that only the service's user can read, and works once: the file then has the
//! next one. Its sessions act with the service's own connection. They are in the file too, so that they
//! outlive a restart of the service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use wattle_runtime::files::{self, Access};
use wattle_runtime::shell::chain;

use super::sessions::random_token;
use super::{Shared, actions};

/// The path of the address.
pub(super) const PATH: &str = "/sign-in";
/// Most sessions; of more, the oldest ends.
const SESSIONS_MAX: usize = 16;
/// Age at which the browser forgets the session, seconds.
const COOKIE_AGE_S: u32 = 30 * 86_400;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    /// The whole address, for a person to open.
    address: String,
    /// Its token.
    token: String,
    /// The tokens of the sessions, oldest first.
    #[serde(default)]
    sessions: Vec<String>,
}

/// The address and its sessions.
pub(super) struct Links {
    file: PathBuf,
    page: SocketAddr,
    stored: Mutex<Stored>,
}

/// Whether two tokens are equal, in a time that does not depend on where they differ.
fn is_same(a: &str, b: &str) -> bool {
    let differs = a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.len() == b.len() && differs == 0
}

impl Links {
    /// Reads the sessions of an earlier process, and writes a new address of the page.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn open(file: &Path, page: SocketAddr) -> anyhow::Result<Self> {
        let before = std::fs::read(file).ok();
        let before = before.and_then(|text| serde_json::from_slice::<Stored>(&text).ok());
        let sessions = before.unwrap_or_default().sessions;
        let links = Self { file: file.to_owned(), page, stored: Mutex::default() };
        links.store(&mut links.stored(), sessions)?;
        Ok(links)
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores these sessions with a new address; on an error nothing has changed.
    fn store(&self, stored: &mut Stored, sessions: Vec<String>) -> anyhow::Result<()> {
        let token = random_token().context("no random numbers")?;
        let address = format!("http://{}{PATH}?token={token}", self.page);
        let next = Stored { address, token, sessions };
        files::replace(&self.file, &serde_json::to_vec_pretty(&next)?, Access::Owner)
            .with_context(|| format!("cannot write {}", self.file.display()))?;
        *stored = next;
        Ok(())
    }

    /// Begins a session if this is the token of the address, which is replaced; returns that of the session.
    pub(super) fn begin(&self, token: &str) -> anyhow::Result<Option<String>> {
        let mut stored = self.stored();
        if !is_same(&stored.token, token) {
            return Ok(None);
        }
        let session = random_token().context("no random numbers")?;
        let mut sessions = stored.sessions.clone();
        sessions.push(session.clone());
        sessions.drain(..sessions.len().saturating_sub(SESSIONS_MAX));
        self.store(&mut stored, sessions)?;
        Ok(Some(session))
    }

    /// Whether this is the token of a session.
    pub(super) fn knows(&self, session: &str) -> bool {
        self.stored().sessions.iter().any(|known| is_same(known, session))
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &str) {
        let mut stored = self.stored();
        let sessions = stored.sessions.iter().filter(|known| !is_same(known, session));
        let sessions: Vec<String> = sessions.cloned().collect();
        if sessions.len() == stored.sessions.len() {
            return;
        }
        // It ends in this process in any case.
        if let Err(error) = self.store(&mut stored, sessions.clone()) {
            tracing::error!(error = chain(error.as_ref()), "sessions not stored");
            stored.sessions = sessions;
        }
    }
}

/// The parameters of the address.
#[derive(Deserialize)]
pub(super) struct Parameters {
    #[serde(default)]
    token: String,
}

/// `GET /sign-in?token=TOKEN`: begins a session and shows the page.
pub(super) async fn sign_in(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(Parameters { token }): Query<Parameters>,
) -> Response {
    let begun = shared.links.as_ref().map_or(Ok(None), |links| links.begin(&token));
    match begun {
        Ok(Some(session)) => {
            tracing::info!("a browser signed in with the address of the page");
            let cookie = actions::cookie(&session, COOKIE_AGE_S, actions::is_https(&headers));
            let to = HeaderValue::from_static("/");
            (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, to)])
                .into_response()
        }
        Ok(None) => {
            let text =
                "this address signs in once, and is used or wrong: `wattle page` prints another\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(error) => {
            tracing::error!(error = chain(error.as_ref()), "a browser could not sign in");
            let text = "the session could not be stored; the log of wattle-web has the cause\n";
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn address(file: &Path) -> String {
        let stored: Stored = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(stored.address.ends_with(&stored.token));
        stored.address
    }

    fn token(file: &Path) -> String {
        address(file).rsplit('=').next().unwrap().to_owned()
    }

    #[test]
    fn an_address_signs_in_once_and_its_session_outlives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.json");
        let open = || Links::open(&file, "127.0.0.1:8620".parse().unwrap()).unwrap();
        let links = open();
        assert!(address(&file).starts_with("http://127.0.0.1:8620/sign-in?token="));
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let first = token(&file);
        for wrong in ["", "0", &first[1..], &format!("{first}0")] {
            assert_eq!(links.begin(wrong).unwrap(), None, "{wrong}");
            assert!(!links.knows(wrong));
        }
        let session = links.begin(&first).unwrap().unwrap();
        assert_eq!(links.begin(&first).unwrap(), None, "it is used");
        assert!(links.knows(&session) && !links.knows(&first) && !links.knows(&session[1..]));
        let other = links.begin(&token(&file)).unwrap().unwrap();

        let links = open();
        assert!(links.knows(&session) && links.knows(&other));
        links.end(&session);
        assert!(!links.knows(&session) && links.knows(&other));
        let links = open();
        assert!(!links.knows(&session) && links.knows(&other), "it ended for good");
    }

    #[test]
    fn a_session_that_cannot_be_stored_does_not_begin() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys/page.json");
        std::fs::create_dir(folder.path().join("keys")).unwrap();
        let links = Links::open(&file, "127.0.0.1:8620".parse().unwrap()).unwrap();
        let first = token(&file);
        std::fs::remove_dir_all(folder.path().join("keys")).unwrap();
        assert!(links.begin(&first).is_err());
        assert!(links.stored().sessions.is_empty());
        std::fs::create_dir(folder.path().join("keys")).unwrap();
        assert!(links.begin(&first).unwrap().is_some(), "the address was not used");
    }

    #[test]
    fn the_oldest_of_many_sessions_ends() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.json");
        let links = Links::open(&file, "127.0.0.1:8620".parse().unwrap()).unwrap();
        let begin = || links.begin(&token(&file)).unwrap().unwrap();
        let sessions: Vec<String> = (0..=SESSIONS_MAX).map(|_| begin()).collect();
        let known = sessions.iter().filter(|session| links.knows(session)).count();
        assert_eq!((known, links.knows(&sessions[0])), (SESSIONS_MAX, false));
    }
}

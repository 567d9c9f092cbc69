//! Credentials of a connection: an nkey from a file, and TLS.
//!
//! The file has the seed on a line of its own. Lines that begin with `#` are comments; `# role: user ada`
//! names the identity, which a person's commands need. The name is a claim of the file: the server's
//! permissions prove it ([`super::Bus::has_proven_requester`]). Nothing here prints a seed.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use async_nats::{ConnectOptions, ServerAddr};
use nkeys::KeyPair;
use wattle_common::id::UserId;
use wattle_common::subject::roles::{self, Role};
use wattle_common::subject::{Rank, Requester};

use super::{BusConfig, BusError};
use crate::user::local_user;

/// Marks the comment with the identity.
const ROLE: &str = "# role:";
/// Marks a file with a signed token of NATS's decentralised authentication.
const TOKEN: &str = "-----BEGIN NATS USER JWT-----";

/// An identity that the server checks.
#[derive(Clone)]
pub(super) struct Credentials {
    seed: String,
    /// Its public key.
    pub(super) public: String,
    role: Option<Role>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, {:?})", self.public, self.role)
    }
}

impl Credentials {
    /// Reads a key file.
    pub(super) fn read(path: &Path) -> Result<Self, BusError> {
        let file = |source: std::io::Error| BusError::file(path, source);
        let mode = std::fs::metadata(path).map_err(file)?.mode();
        if mode & 0o007 != 0 {
            let remedy =
                format!("every user of this machine may use it: chmod 600 {}", path.display());
            return Err(BusError::file(path, remedy));
        }
        let text = std::fs::read_to_string(path).map_err(file)?;
        Self::parse(&text).map_err(|problem| BusError::file(path, problem))
    }

    /// Parses the text of a key file; the error contains no part of it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.contains(TOKEN) {
            return Err("it is a file of signed tokens (.creds); Wattle uses an nkey seed, as \
                        `wattle keys` writes it"
                .to_owned());
        }
        let lines = || text.lines().map(str::trim);
        let role = lines().find_map(|line| line.strip_prefix(ROLE));
        let role = role.map(str::parse::<Role>).transpose().map_err(|error| error.to_string())?;
        let mut seeds = lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (Some(seed), None) = (seeds.next(), seeds.next()) else {
            return Err(
                "expected one line with an nkey seed, as `wattle keys` writes it".to_owned()
            );
        };
        // The error of the library is not shown: it might contain a part of the seed.
        let pair =
            KeyPair::from_seed(seed).map_err(|_| "its line is not an nkey seed".to_owned())?;
        if !seed.starts_with("SU") {
            return Err("its nkey is not one of a user: its seed must begin with SU".to_owned());
        }
        Ok(Self { seed: seed.to_owned(), public: pair.public_key(), role })
    }

    pub(super) fn apply(&self, options: ConnectOptions) -> ConnectOptions {
        // A prefix of its own: no other identity may subscribe to the replies.
        options.nkey(self.seed.clone()).custom_inbox_prefix(roles::inbox(&self.public))
    }

    /// The person, if the identity is a person's.
    pub(super) fn requester(&self) -> Option<Requester> {
        self.role.as_ref().and_then(Role::requester)
    }

    /// Whether the file names an identity of the role table.
    pub(super) const fn has_role(&self) -> bool {
        self.role.is_some()
    }
}

/// The person behind a process without a key of its own: its user at the operating system, as declared.
pub(super) fn local_requester() -> Requester {
    Requester { rank: Rank::Local, user: UserId::of_local(&local_user()) }
}

/// Checks that addresses contain no password, and that others than loopback are used with a key and
/// with TLS.
pub(super) fn check(
    config: &BusConfig,
    addresses: &[ServerAddr],
    shown: &str,
    has_key: bool,
) -> Result<(), BusError> {
    if addresses.iter().any(|address| address.username().is_some() || address.password().is_some())
    {
        return Err(BusError::PasswordInAddress { url: shown.to_owned() });
    }
    let remote = addresses.iter().any(|address| !is_loopback(address.host()));
    if !remote || config.permit_insecure {
        return Ok(());
    }
    let has_tls = config.ca_file.is_some()
        || addresses.iter().all(|address| matches!(address.scheme(), "tls" | "wss"));
    let missing = match (has_key, has_tls) {
        (true, true) => return Ok(()),
        (false, _) => {
            "a key: name the file that `wattle keys` wrote, as credentials_file in the \
                       [nats] table, with --credentials, or in WATTLE_CREDENTIALS"
        }
        (true, false) => {
            "TLS: name the file of trusted certificates, as ca_file in the [nats] \
                          table, with --ca, or in WATTLE_CA"
        }
    };
    Err(BusError::Insecure { url: shown.to_owned(), missing })
}

/// Whether a host is this machine, by name or address.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_file_is_parsed_and_its_seed_is_never_shown() {
        let pair = KeyPair::new_user();
        let seed = pair.seed().unwrap();
        let text = format!("# A key.\n# role: user ada\n{seed}\n");
        let read = Credentials::parse(&text).unwrap();
        assert_eq!(read.public, pair.public_key());
        assert_eq!(read.requester().unwrap().to_string(), "user.ada");
        assert!(!format!("{read:?}").contains(&seed));
        assert!(Credentials::parse(&seed).unwrap().requester().is_none(), "a plain seed");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ada.nk");
        let half = &seed[..30];
        for (text, expected) in [
            (String::new(), "expected one line"),
            (half.to_owned(), "not an nkey seed"),
            (format!("{seed}\n{seed}"), "expected one line"),
            (format!("# role: root\n{seed}"), "invalid role `root`"),
            (KeyPair::new_account().seed().unwrap(), "must begin with SU"),
            (TOKEN.to_owned(), "signed tokens"),
        ] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let error = crate::shell::chain(&Credentials::read(&path).unwrap_err());
            assert!(error.contains(expected) && error.contains("ada.nk"), "{error}");
            assert!(!error.contains(half), "{error}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = crate::shell::chain(&Credentials::read(&path).unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn other_hosts_need_a_key_and_tls() {
        let try_with = |url: &str, change: fn(&mut BusConfig), has_key| {
            let mut config = BusConfig::at(url);
            change(&mut config);
            let addresses: Vec<ServerAddr> =
                url.split(',').map(|address| address.parse().unwrap()).collect();
            check(&config, &addresses, "shown", has_key).map_err(|error| error.to_string())
        };
        let none: fn(&mut BusConfig) = |_| {};
        for local in ["nats://127.0.0.1:1", "nats://localhost", "nats://[::1]:4222", "127.8.8.8"] {
            assert_eq!(try_with(local, none, false), Ok(()), "{local}");
        }
        for remote in ["nats://10.0.0.7:4222", "nats://n0", "nats://127.0.0.1,nats://bus:4222"] {
            let error = try_with(remote, none, false).unwrap_err();
            assert!(error.contains("wattle keys") && error.contains("permit_insecure"), "{error}");
            let error = try_with(remote, none, true).unwrap_err();
            assert!(error.contains("ca_file"), "{error}");
            assert_eq!(try_with(remote, |c| c.permit_insecure = true, false), Ok(()));
            assert_eq!(try_with(remote, |c| c.ca_file = Some("ca".into()), true), Ok(()));
        }
        assert_eq!(try_with("tls://bus:4222", none, true), Ok(()));
        let error = try_with("nats://ada:secret@127.0.0.1:4222", none, true).unwrap_err();
        assert!(error.contains("--credentials") && !error.contains("secret"), "{error}");
    }
}

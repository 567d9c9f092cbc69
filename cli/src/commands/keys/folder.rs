//! The folder of the keys.
//!
//! `keys.toml` has the public keys, from which `server/auth.conf` is generated. Folders have the mode
//! 0700, files 0600. Every file is replaced atomically.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use wattle_common::ClusterId;
use wattle_common::subject::roles::Role;
use wattle_runtime::files::{self, Access};

use super::server;
use crate::output::usage;

/// The list of keys.
const LIST: &str = "keys.toml";

/// One key; its seed is in `seeds/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// Whose it is: `node n0`.
    pub(super) role: String,
    /// The public key.
    pub(super) public: String,
    /// Day of its creation, UTC.
    pub(super) created: String,
    /// Whether a newer key of the role exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) previous: bool,
}

/// The content of `keys.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    cluster: ClusterId,
    /// Where the NATS server finds its part.
    server_path: PathBuf,
    #[serde(default)]
    key: Vec<Key>,
}

/// An open folder; [`Self::save`] writes the list and the server's configuration.
pub(super) struct Folder {
    path: PathBuf,
    listed: Listed,
    /// Seeds to delete after the list is saved.
    revoked: Vec<PathBuf>,
}

impl Folder {
    /// Creates a new folder.
    pub(super) fn create(
        path: &Path,
        cluster: ClusterId,
        server_path: Option<&Path>,
    ) -> anyhow::Result<Self> {
        if path.join(LIST).exists() {
            let path = path.display();
            return Err(usage(format!("{path} has keys already; `wattle keys add` adds to them")));
        }
        for folder in [path.to_owned(), path.join("seeds"), path.join("server")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let path = path.canonicalize()?;
        let server_path = server_path.map_or_else(|| path.join("server"), Path::to_owned);
        let listed = Listed { cluster, server_path, key: Vec::new() };
        Ok(Self { path, listed, revoked: Vec::new() })
    }

    /// Opens an existing folder.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let list = path.join(LIST);
        let text = fs::read_to_string(&list).map_err(|error| {
            let list = list.display();
            usage(format!("cannot read {list}: {error}; `wattle keys init` creates it, --folder names another folder"))
        })?;
        let listed =
            toml::from_str(&text).with_context(|| format!("{} is damaged", list.display()))?;
        Ok(Self { path: path.canonicalize()?, listed, revoked: Vec::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The part that the NATS server needs.
    pub(super) fn server(&self) -> PathBuf {
        self.path.join("server")
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.listed.key
    }

    /// Creates the key of a role that has none; returns the path of its seed.
    pub(super) fn add(&mut self, role: &Role) -> anyhow::Result<PathBuf> {
        if self.listed.key.iter().any(|key| key.role == role.to_string()) {
            return Err(usage(format!(
                "{role} has a key already; `wattle keys rotate {role}` replaces it"
            )));
        }
        self.generate(role)
    }

    /// Creates a new key of a role; the present one becomes the previous.
    pub(super) fn rotate(&mut self, role: &Role) -> anyhow::Result<PathBuf> {
        let mut found = false;
        for key in self.listed.key.iter_mut().filter(|key| key.role == role.to_string()) {
            key.previous = true;
            found = true;
        }
        if !found {
            return Err(usage(format!("{role} has no key; `wattle keys add {role}` creates one")));
        }
        self.generate(role)
    }

    /// Removes the keys of a role; returns their number.
    pub(super) fn revoke(&mut self, role: &Role, previous: bool) -> anyhow::Result<usize> {
        let before = self.listed.key.len();
        let name = role.to_string();
        self.listed.key.retain(|key| key.role != name || (previous && !key.previous));
        let removed = before - self.listed.key.len();
        if removed == 0 {
            let which = if previous { "previous key" } else { "key" };
            return Err(usage(format!("{role} has no {which}; `wattle keys list` lists the keys")));
        }
        if !previous {
            self.revoked.push(self.seed(role));
        }
        Ok(removed)
    }

    fn seed(&self, role: &Role) -> PathBuf {
        self.path.join("seeds").join(format!("{}.nk", role.file_stem()))
    }

    fn generate(&mut self, role: &Role) -> anyhow::Result<PathBuf> {
        let pair = KeyPair::new_user();
        let seed = pair.seed().map_err(|error| anyhow::anyhow!("cannot create a key: {error}"))?;
        let cluster = &self.listed.cluster;
        let text = format!(
            "# Wattle: the secret key of {role} in cluster {cluster}.\n# role: {role}\n{seed}\n"
        );
        let path = self.seed(role);
        write_private(&path, &text)?;
        let now = wattle_runtime::clock::wall_now().as_us();
        let created = jiff::Timestamp::from_microsecond(i64::try_from(now)?)?;
        self.listed.key.push(Key {
            role: role.to_string(),
            public: pair.public_key(),
            created: created.strftime("%Y-%m-%d").to_string(),
            previous: false,
        });
        Ok(path)
    }

    /// Writes the list and the server's configuration.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let mut users = Vec::new();
        for key in &self.listed.key {
            let role = key.role.parse::<Role>().context("keys.toml has an invalid role")?;
            users.push((role, key.public.clone()));
        }
        let text = server::configuration(&self.listed.cluster, &self.listed.server_path, &users);
        write_private(&self.server().join("auth.conf"), &text)?;
        write_private(&self.path.join(LIST), &toml::to_string_pretty(&self.listed)?)?;
        for seed in &self.revoked {
            fs::remove_file(seed)
                .or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })
                .with_context(|| format!("cannot delete {}", seed.display()))?;
        }
        Ok(())
    }
}

/// Replaces a file; only its owner may read it.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, text, Access::Owner)
}

/// As [`write_private`], for a certificate, which every service reads.
pub(super) fn write_public(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, text, Access::AllUsers)
}

fn write(path: &Path, text: &str, access: Access) -> anyhow::Result<()> {
    files::replace(path, text.as_bytes(), access)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_private_and_follow_rotation_and_revocation() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("keys");
        let cluster = ClusterId::new("main").unwrap();
        let mut folder = Folder::create(&path, cluster.clone(), None).unwrap();
        let role: Role = "node n0".parse().unwrap();
        let seed = folder.add(&role).unwrap();
        folder.save().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("seeds"))), (0o700, 0o700));
        for file in [&seed, &path.join(LIST), &path.join("server/auth.conf")] {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        let secret = || {
            let text = fs::read_to_string(&seed).unwrap();
            text.lines().last().unwrap().to_owned()
        };
        let first = secret();
        assert!(Folder::create(&path, cluster, None).is_err(), "it exists");

        let mut folder = Folder::open(&path).unwrap();
        assert!(folder.add(&role).is_err());
        folder.rotate(&role).unwrap();
        folder.save().unwrap();
        assert_ne!(secret(), first);
        let configured = || fs::read_to_string(path.join("server/auth.conf")).unwrap();
        assert_eq!(configured().matches("nkey: U").count(), 2, "both are valid");
        assert!([first, secret()].iter().all(|seed| !configured().contains(seed)), "no seed");

        let mut folder = Folder::open(&path).unwrap();
        assert_eq!(folder.revoke(&role, true).unwrap(), 1);
        assert!(folder.revoke(&role, true).is_err());
        folder.save().unwrap();
        let current = KeyPair::from_seed(&secret()).unwrap().public_key();
        assert!(configured().contains(&current));
        let mut folder = Folder::open(&path).unwrap();
        assert_eq!(folder.revoke(&role, false).unwrap(), 1);
        folder.save().unwrap();
        assert!(!seed.exists() && !configured().contains("nkey: U"));
    }
}

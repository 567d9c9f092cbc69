//! The folder of the keys.
//!
//! `keys.toml` has the public keys, from which `server/auth.conf` and the contexts of people are generated. Folders have the mode
//! 0700, files 0600. Every file is replaced atomically. A process that changes the folder holds its lock from
//! reading the list until all files are written, so changes at the same time follow each other. The list is
//! written first: after a crash the next change brings the other files up to date.

use std::fs::{self, DirBuilder, File};
use std::net::Ipv6Addr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use wattle_common::ClusterId;
use wattle_common::subject::roles::Role;
use wattle_runtime::files::{self, Access};

use super::server;
use crate::nats_context;
use crate::output::usage;
use crate::private_folder::check_owner;

/// The list of keys.
const LIST: &str = "keys.toml";
/// The contexts of people for `nats`.
const CONTEXTS: &str = "contexts";
/// NATS's own port.
const PORT: u16 = 4_222;
/// Locked by the process that changes the folder.
const LOCK: &str = "lock";

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
    /// The name by which clients reach the NATS server; `None`: an earlier version did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default)]
    key: Vec<Key>,
}

/// An open folder; [`Self::save`] writes what has changed.
pub(super) struct Folder {
    path: PathBuf,
    listed: Listed,
    /// Seeds to write after the list, and their text.
    created: Vec<(PathBuf, String)>,
    /// Seeds to delete after the list.
    revoked: Vec<PathBuf>,
    /// `None`: opened for reading.
    _lock: Option<File>,
}

/// Waits for the lock of the folder; dropping it, or the end of the process, releases it.
fn lock(path: &Path) -> anyhow::Result<File> {
    let file = path.join(LOCK);
    let locked = File::options().create(true).append(true).mode(0o600).open(&file);
    let locked = locked.and_then(|locked| locked.lock().map(|()| locked));
    locked.with_context(|| format!("cannot lock {}", file.display()))
}

impl Folder {
    /// Creates a new folder.
    pub(super) fn create(
        path: &Path,
        cluster: ClusterId,
        server_path: Option<&Path>,
        host: &str,
    ) -> anyhow::Result<Self> {
        for folder in [path.to_owned(), path.join("seeds"), path.join("server")] {
            make_folder(&folder)?;
            check_owner(&folder, "--folder")?;
        }
        let path = path.canonicalize()?;
        let lock = lock(&path)?;
        if path.join(LIST).exists() {
            let path = path.display();
            return Err(usage(format!("{path} has keys already; `wattle keys add` adds to them")));
        }
        let server_path = server_path.map_or_else(|| path.join("server"), Path::to_owned);
        let host = Some(host.to_owned());
        let listed = Listed { cluster, server_path, host, key: Vec::new() };
        Ok(Self { path, listed, created: Vec::new(), revoked: Vec::new(), _lock: Some(lock) })
    }

    /// Opens an existing folder to change it; waits while another process changes it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        // A folder without a list gets no lock file.
        Self::read(path)?;
        check_owner(path, "--folder")?;
        let lock = lock(path)?;
        Ok(Self { _lock: Some(lock), ..Self::read(path)? })
    }

    /// Reads an existing folder, which another process may change afterwards.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let list = path.join(LIST);
        let text = fs::read_to_string(&list).map_err(|error| {
            let list = list.display();
            usage(format!("cannot read {list}: {error}; `wattle keys init` creates it, --folder names another folder"))
        })?;
        let listed =
            toml::from_str(&text).with_context(|| format!("{} is damaged", list.display()))?;
        let path = path.canonicalize()?;
        Ok(Self { path, listed, created: Vec::new(), revoked: Vec::new(), _lock: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The part that the NATS server needs.
    pub(super) fn server(&self) -> PathBuf {
        self.path.join("server")
    }

    /// The authority's certificate: clients name it as `ca_file`.
    pub(super) fn authority(&self) -> PathBuf {
        self.server().join("ca.pem")
    }

    /// Sets the name by which clients reach the NATS server.
    pub(super) fn set_host(&mut self, host: &str) {
        self.listed.host = Some(host.to_owned());
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
            self.revoked.extend([self.seed(role), self.context(role)]);
        }
        Ok(removed)
    }

    fn seed(&self, role: &Role) -> PathBuf {
        self.path.join("seeds").join(format!("{}.nk", role.file_stem()))
    }

    /// The context of a person for `nats`, NATS's own command line.
    fn context(&self, role: &Role) -> PathBuf {
        self.path.join(CONTEXTS).join(format!("{}.json", role.file_stem()))
    }

    fn generate(&mut self, role: &Role) -> anyhow::Result<PathBuf> {
        let pair = KeyPair::new_user();
        let seed = pair.seed().map_err(|error| anyhow::anyhow!("cannot create a key: {error}"))?;
        let cluster = &self.listed.cluster;
        let text = format!(
            "# Wattle: the secret key of {role} in cluster {cluster}.\n# role: {role}\n{seed}\n"
        );
        let path = self.seed(role);
        self.created.push((path.clone(), text));
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

    /// Writes the list, the server's configuration and new seeds, and deletes revoked seeds.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let mut users = Vec::new();
        for key in &self.listed.key {
            let role = key.role.parse::<Role>().context("keys.toml has an invalid role")?;
            users.push((role, key.public.clone(), key.previous));
        }
        let all = users.iter().map(|(role, public, _)| (role, public.as_str()));
        let text = server::configuration(&self.listed.cluster, &self.listed.server_path, all);
        write_private(&self.path.join(LIST), &toml::to_string_pretty(&self.listed)?)?;
        write_private(&self.server().join("auth.conf"), &text)?;
        // A key whose seed is not written any more is replaced by `wattle keys rotate`; until then the
        // previous one is valid.
        for (path, seed) in &self.created {
            write_private(path, seed)?;
        }
        self.write_contexts(&users)?;
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

    /// Writes the contexts of people with their current keys.
    fn write_contexts(&self, users: &[(Role, String, bool)]) -> anyhow::Result<()> {
        let Some(host) = &self.listed.host else { return Ok(()) };
        let folder = self.path.join(CONTEXTS);
        make_folder(&folder)?;
        let url = match host.parse::<Ipv6Addr>() {
            Ok(address) => format!("nats://[{address}]:{PORT}"),
            Err(_) => format!("nats://{host}:{PORT}"),
        };
        let ca = self.authority();
        let current = users.iter().filter(|(_, _, previous)| !previous);
        for (role, public, _) in current.filter(|(role, _, _)| role.requester().is_some()) {
            let text = nats_context::text(&nats_context::Context {
                description: &format!("Wattle: {role} in cluster {}", self.listed.cluster),
                url: &url,
                nkey: &self.seed(role),
                ca: Some(&ca),
                public,
            });
            write_private(&self.context(role), &text)?;
        }
        Ok(())
    }
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create {}", folder.display()))
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
        let mut folder = Folder::create(&path, cluster.clone(), None, "nats").unwrap();
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
        drop(folder);
        assert!(Folder::create(&path, cluster, None, "nats").is_err(), "it exists");

        let mut folder = Folder::open(&path).unwrap();
        assert!(folder.add(&role).is_err());
        folder.rotate(&role).unwrap();
        folder.save().unwrap();
        drop(folder);
        assert_ne!(secret(), first);
        let configured = || fs::read_to_string(path.join("server/auth.conf")).unwrap();
        assert_eq!(configured().matches("nkey: U").count(), 2, "both are valid");
        assert!([first, secret()].iter().all(|seed| !configured().contains(seed)), "no seed");

        let mut folder = Folder::open(&path).unwrap();
        assert_eq!(folder.revoke(&role, true).unwrap(), 1);
        assert!(folder.revoke(&role, true).is_err());
        folder.save().unwrap();
        drop(folder);
        let current = KeyPair::from_seed(&secret()).unwrap().public_key();
        assert!(configured().contains(&current));
        let mut folder = Folder::open(&path).unwrap();
        assert_eq!(folder.revoke(&role, false).unwrap(), 1);
        folder.save().unwrap();
        assert!(!seed.exists() && !configured().contains("nkey: U"));
    }

    #[test]
    fn a_folder_that_another_user_can_change_gets_no_keys() {
        let temporary = tempfile::tempdir().unwrap();
        let cluster = || ClusterId::new("main").unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let path = temporary.path().join("open");
        fs::create_dir(&path).unwrap();
        chmod(&path, 0o777);
        let refused = |folder: anyhow::Result<Folder>, text: &str| {
            let error = folder.err().expect("it is refused").to_string();
            assert!(error.contains(text) && error.contains("--folder"), "{error}");
        };
        refused(Folder::create(&path, cluster(), None, "nats"), "every user may write");
        chmod(&path, 0o700);
        Folder::create(&path, cluster(), None, "nats").unwrap().save().unwrap();
        chmod(&path, 0o777);
        refused(Folder::open(&path), "every user may write");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        chmod(&path, 0o700);
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        refused(Folder::open(&path), "belongs to the user 65534");
        let path = temporary.path().join("part");
        fs::create_dir_all(path.join("server")).unwrap();
        std::os::unix::fs::chown(path.join("server"), Some(65_534), None).unwrap();
        refused(Folder::create(&path, cluster(), None, "nats"), "belongs to the user 65534");
    }

    #[test]
    fn changes_at_the_same_time_both_hold() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("keys");
        let role = |name: &str| format!("user {name}").parse::<Role>().unwrap();
        let mut folder =
            Folder::create(&path, ClusterId::new("main").unwrap(), None, "nats").unwrap();
        folder.add(&role("z0")).unwrap();
        folder.save().unwrap();
        drop(folder);
        for number in 0..100 {
            let (old, new) = (role(&format!("z{number}")), role(&format!("z{}", number + 1)));
            let start = std::sync::Barrier::new(2);
            let change = |change: &dyn Fn(&mut Folder)| {
                start.wait();
                let mut folder = Folder::open(&path).unwrap();
                change(&mut folder);
                folder.save().unwrap();
            };
            std::thread::scope(|scope| {
                scope
                    .spawn(|| change(&|folder| assert_eq!(folder.revoke(&old, false).unwrap(), 1)));
                scope.spawn(|| change(&|folder| drop(folder.add(&new).unwrap())));
            });
            let folder = Folder::read(&path).unwrap();
            let listed: Vec<&str> = folder.keys().iter().map(|key| key.role.as_str()).collect();
            assert_eq!(listed, [new.to_string()], "try {number}");
            let configured = fs::read_to_string(folder.server().join("auth.conf")).unwrap();
            let files = |part: &str| fs::read_dir(path.join(part)).unwrap().count();
            let keys = configured.matches("nkey: U").count();
            assert_eq!((keys, files("seeds"), files(CONTEXTS)), (1, 1, 1), "try {number}");
            let public = &folder.keys()[0].public;
            assert!(
                configured.contains(&format!("# {new}\n    {{ nkey: {public},")),
                "try {number}"
            );
        }
    }
}

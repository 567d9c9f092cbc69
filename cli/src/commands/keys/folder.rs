//! The folder of the keys.
//!
//! `keys.toml` has the public keys, from which `server/auth.conf` and the contexts of people are generated. Folders have the mode
//! 0700, files 0600. Every file is replaced atomically. A process that changes the folder holds its lock from
//! reading the list until all files are written, so changes at the same time follow each other. The list is
//! written first. If the process ends in between, the next one that opens the folder for a change completes it: a
//! revocation that only the list has would leave the key valid on the server.

use std::collections::BTreeSet;
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
use crate::output::{note, usage};
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
        let folder = Self { _lock: Some(lock), ..Self::read(path)? };
        folder.complete()?;
        Ok(folder)
    }

    /// Completes a change whose process ended after it had written the list.
    fn complete(&self) -> anyhow::Result<()> {
        if !self.is_complete()? {
            self.write_configuration()?;
            note(&format!(
                "{} did not agree with {LIST}, because an earlier change was interrupted: it is replaced, and the \
                 NATS server needs it",
                self.configuration().display()
            ));
        }
        let stems: BTreeSet<String> = self.users()?.iter().map(|user| user.0.file_stem()).collect();
        for folder in ["seeds", CONTEXTS] {
            for file in fs::read_dir(self.path.join(folder)).into_iter().flatten().flatten() {
                let path = file.path();
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let is_ours =
                    || fs::read_to_string(&path).is_ok_and(|text| text.contains("Wattle: "));
                if !stems.contains(&stem) && is_ours() {
                    delete(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the server's configuration has the keys of the list.
    pub(super) fn is_complete(&self) -> anyhow::Result<bool> {
        let written = fs::read_to_string(self.configuration()).unwrap_or_default();
        Ok(written == self.configuration_text()?)
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

    /// The role, the public key and whether it is a previous one, of each key.
    fn users(&self) -> anyhow::Result<Vec<(Role, String, bool)>> {
        let user = |key: &Key| -> anyhow::Result<_> {
            let role = key.role.parse::<Role>().context("keys.toml has an invalid role")?;
            Ok((role, key.public.clone(), key.previous))
        };
        self.listed.key.iter().map(user).collect()
    }

    /// The part of the server's configuration that has the keys.
    fn configuration(&self) -> PathBuf {
        self.server().join("auth.conf")
    }

    fn configuration_text(&self) -> anyhow::Result<String> {
        let users = self.users()?;
        let all = users.iter().map(|(role, public, _)| (role, public.as_str()));
        Ok(server::configuration(&self.listed.cluster, &self.listed.server_path, all))
    }

    fn write_configuration(&self) -> anyhow::Result<()> {
        write_private(&self.configuration(), &self.configuration_text()?)
    }

    /// Writes the list, the server's configuration and new seeds, and deletes revoked seeds.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let users = self.users()?;
        write_private(&self.path.join(LIST), &toml::to_string_pretty(&self.listed)?)?;
        self.write_configuration()?;
        // A key whose seed is not written any more is replaced by `wattle keys rotate`; until then the
        // previous one is valid.
        for (path, seed) in &self.created {
            write_private(path, seed)?;
        }
        self.write_contexts(&users)?;
        self.revoked.iter().try_for_each(|file| delete(file))
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

/// Deletes a file, if there is one.
fn delete(file: &Path) -> anyhow::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot delete {}", file.display()))
        }
        _ => Ok(()),
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

    /// The process was killed after it wrote the list. The server must not permit the revoked key for longer than
    /// until the next command, also if that is the same one.
    #[test]
    fn an_interrupted_change_is_completed_by_the_next_one() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("keys");
        let (gone, stays): (Role, Role) =
            ("user gone".parse().unwrap(), "user stays".parse().unwrap());
        let mut folder =
            Folder::create(&path, ClusterId::new("main").unwrap(), None, "nats").unwrap();
        let seed = folder.add(&gone).unwrap();
        folder.add(&stays).unwrap();
        folder.save().unwrap();
        drop(folder);
        let files =
            [path.join("server/auth.conf"), seed, path.join(CONTEXTS).join("user-gone.json")];
        let before = files.each_ref().map(|file| fs::read(file).unwrap());
        let mut folder = Folder::open(&path).unwrap();
        folder.revoke(&gone, false).unwrap();
        folder.save().unwrap();
        drop(folder);
        for (file, content) in files.iter().zip(before) {
            fs::write(file, content).unwrap();
        }
        assert!(!Folder::read(&path).unwrap().is_complete().unwrap());

        let mut folder = Folder::open(&path).unwrap();
        assert!(folder.revoke(&gone, false).is_err(), "the list has no such key");
        assert!(folder.is_complete().unwrap());
        drop(folder);
        let configured = fs::read_to_string(&files[0]).unwrap();
        assert_eq!(configured.matches("nkey: U").count(), 1, "{configured}");
        assert!(!files[1].exists() && !files[2].exists(), "its secret is gone");
        assert!(path.join("seeds/user-stays.nk").exists());
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

//! The account under which a job's processes run.
//!
//! A launcher that runs as root gives each job the user, the groups and the home folder of its account.
//! Accounts are looked up by the system's name service, so accounts of a directory (LDAP) are found too.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, User, initgroups, setresgid, setresuid};

use crate::RunSpec;
use crate::run_spec::AccountSpec;

/// An account of this node.
#[derive(Clone, Debug)]
pub(super) struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
    home: PathBuf,
    shell: PathBuf,
}

/// Why a job cannot run under its account, for the job's owner.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccountError {
    #[error("the user `{0}` has no account on this node: create it there")]
    Unknown(String),
    #[error("the account of `{0}` cannot be read")]
    Lookup(String, #[source] io::Error),
    #[error(
        "the user `{name}` has the id {uid}, below job_uid_min = {uid_min} of this node's \
         launcher: submit the job as another user"
    )]
    Reserved { name: String, uid: u32, uid_min: u32 },
    #[error("cannot become the user `{0}`: the launcher must run as root")]
    Change(String, #[source] io::Error),
}

impl Account {
    /// The account of a run; `None` for a run under the launcher's own account.
    pub(super) fn of(spec: &RunSpec) -> Result<Option<Self>, AccountError> {
        let Some(AccountSpec { name, uid_min }) = &spec.account else { return Ok(None) };
        let found = User::from_name(name)
            .map_err(|errno| AccountError::Lookup(name.clone(), errno.into()))?
            .ok_or_else(|| AccountError::Unknown(name.clone()))?;
        let uid = found.uid.as_raw();
        if uid < *uid_min {
            return Err(AccountError::Reserved { name: name.clone(), uid, uid_min: *uid_min });
        }
        let User { uid, gid, dir: home, shell, .. } = found;
        Ok(Some(Self { name: name.clone(), uid, gid, home, shell }))
    }

    /// Its user id.
    pub(super) const fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Gives a file or folder to the account.
    pub(super) fn own(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Changes this process to the account, for good: it keeps no privilege.
    pub(super) fn enter(&self) -> Result<(), AccountError> {
        let change = || {
            let name = CString::new(self.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
            initgroups(&name, self.gid)?;
            setresgid(self.gid, self.gid, self.gid)?;
            setresuid(self.uid, self.uid, self.uid)
        };
        change().map_err(|errno| AccountError::Change(self.name.clone(), errno.into()))
    }

    /// The variables of a login as this account.
    pub(super) fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("HOME", self.home.display().to_string()),
            ("SHELL", self.shell.display().to_string()),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name.clone()),
        ]
    }
}

//! Folders whose content is a right: keys, and the state of a system.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::output::usage;

/// Refuses a folder that another user than this one and root can change. `option` names another folder.
pub(crate) fn check_owner(path: &Path, option: &str) -> anyhow::Result<()> {
    let found = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (own, owner) = (rustix::process::geteuid().as_raw(), found.uid());
    let shown = path.display();
    if owner != own && owner != 0 {
        return Err(usage(format!(
            "{shown} belongs to the user {owner}, who could change what the user {own} trusts: choose another \
             {option}, or chown it"
        )));
    }
    if found.mode() & 0o002 != 0 {
        return Err(usage(format!(
            "every user may write to {shown}: choose another {option}, or chmod o-w {shown}"
        )));
    }
    Ok(())
}

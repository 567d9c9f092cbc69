//! `wattle man`: the manual pages, one per command, generated from the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::output::note;

/// Write the manual pages.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// The folder; it is created if needed
    folder: PathBuf,
}

/// Runs the command.
pub(crate) fn run(command: &Man) -> anyhow::Result<()> {
    let folder = command.folder.display();
    std::fs::create_dir_all(&command.folder).with_context(|| format!("cannot create {folder}"))?;
    clap_mangen::generate_to(crate::command_line(), &command.folder)
        .with_context(|| format!("cannot write manual pages to {folder}"))?;
    note(&format!("wrote the manual pages to {folder}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        run(&Man { folder: folder.path().join("man1") }).unwrap();
        let page = |name: &str| {
            let path = folder.path().join("man1").join(format!("{name}.1"));
            std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no page {name}.1"))
        };
        assert!(page("wattle").contains(".TH wattle 1"));
        for command in crate::command_line().get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = format!("wattle-{}", command.get_name());
            assert!(page(&name).contains("SYNOPSIS"), "{name}");
        }
    }
}

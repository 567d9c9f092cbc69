//! `wattle page`: the address of the web page of `wattle up` that signs a browser in.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use serde::Deserialize;

use crate::connection::Connection;
use crate::output::{print, usage};

/// Print an address of the web page of `wattle up` that signs one browser in.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle page")]
pub(crate) struct Page {
    #[command(flatten)]
    connection: Connection,
}

/// The part of the page's file that this command reads.
#[derive(Deserialize)]
struct Stored {
    address: String,
}

/// The address in the file that the web page writes.
pub(crate) fn address(file: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", file.display());
    let text = std::fs::read(file).with_context(cannot)?;
    Ok(serde_json::from_slice::<Stored>(&text).with_context(cannot)?.address)
}

/// Runs the command.
pub(crate) fn run(command: &Page) -> anyhow::Result<()> {
    let file = command.connection.running().and_then(|running| running.page);
    let file = file.ok_or_else(|| {
        usage("no `wattle up` of yours runs here; the page of a site is signed in to with a key")
    })?;
    print(&address(&file)?)
}

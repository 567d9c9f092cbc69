//! `wattle backup`: copies the stored state of the cluster into a folder.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use wattle_common::subject::{Bucket, backed_up};
use wattle_runtime::clock;

use crate::backup_folder::{BackedUpStream, BackupFolder, BackupList};
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::print;

/// Copy the stored state of the cluster into a new folder, while everything runs.
///
/// The folder has one snapshot of the NATS server for each bucket and stream, with the positions of their
/// consumers. The records of all jobs are in it, with their environment variables: keep it private.
#[derive(Args)]
#[command(
    after_help = "Each bucket and stream is copied at one instant, the ledger before the records that count \
        it. `wattle restore` restores the folder.\n\n\
        Examples:\n  wattle backup /var/backups/wattle-monday"
)]
pub(crate) struct Backup {
    #[command(flatten)]
    connection: Connection,
    /// The new folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Runs the command.
pub(crate) fn run(command: &Backup) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "backup")?;
        let jobs = Bucket::Jobs.stream(bus.cluster());
        let found = bus.stream_messages(&jobs).await.context("the storage cannot be read")?;
        anyhow::ensure!(
            found.is_some(),
            "the NATS server has no data of cluster {}: name another with --cluster",
            bus.cluster()
        );
        let folder = BackupFolder::create(&command.folder)?;
        let mut list = BackupList::new(bus.cluster().clone(), bus.server_version(), clock::now());
        for name in backed_up(bus.cluster()) {
            let mut file = folder.snapshot(&name)?;
            let description = bus.take_snapshot(&name, &mut file).await;
            let description = description.context("the backup is not complete")?;
            let (bytes, crc32) = file.complete().context("the backup is not complete")?;
            // Without messages since the cluster's creation, a stream may be missing.
            let Some(description) = description else { continue };
            list.streams.push(BackedUpStream { name, bytes, crc32, description });
        }
        folder.complete(&list)?;
        let messages: u64 = list.streams.iter().map(|stream| stream.description.messages()).sum();
        print(&format!(
            "{} buckets and streams with {messages} values, {} kB in {}",
            list.streams.len(),
            list.bytes().div_ceil(1_000),
            command.folder.display()
        ))
    })
}

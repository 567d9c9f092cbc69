//! `wattle restore`: restores the stored state of the cluster from a backup.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::messages::StoreRestored;
use wattle_common::subject::roles::RESTORE_WITHOUT;
use wattle_common::subject::{Bucket, STORE_RESTORED};
use wattle_runtime::bus::{Bus, StreamDescription};
use wattle_runtime::clock;

use crate::backup_folder::{BackupFolder, BackupList};
use crate::connection::{Connection, block_on};
use crate::output::{note, print, usage};

/// Time for answers of services, wall time.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Most attempts for one stream: a service on a server without keys may create it in between.
const ATTEMPTS: usize = 10;

/// Restore the stored state of the cluster from a folder of `wattle backup`.
///
/// The placers and registries must be stopped; the services of the nodes continue, and so do their jobs.
/// The next placer compares the restored records with the nodes before it starts a job.
#[derive(Args)]
#[command(
    after_help = "On a server with keys, --credentials names the placer's key, and the storage must be \
        empty: no key may delete it.\n\n\
        Examples:\n  wattle restore /var/backups/wattle-monday\n  \
        wattle restore /var/backups/wattle-monday --replace"
)]
pub(crate) struct Restore {
    #[command(flatten)]
    connection: Connection,
    /// The folder of the backup
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Delete buckets and streams that are not empty
    #[arg(long)]
    replace: bool,
    /// Number of servers that keep each bucket and stream [default: as in the backup]
    #[arg(long, value_name = "N", value_parser = ["1", "3", "5"])]
    replicas: Option<String>,
}

/// The first two numbers of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Refuses a server that is older than the one which took the backup.
fn check_version(list: &BackupList, server: &str) -> anyhow::Result<()> {
    let older = matches!(
        (release(server), release(&list.server_version)),
        (Some(server), Some(backup)) if server < backup
    );
    anyhow::ensure!(
        !older,
        "the backup is from NATS server {} and this one is {server}, which may not read it: install \
         the newer one",
        list.server_version
    );
    Ok(())
}

/// Refuses while a service runs that would write the state meanwhile.
async fn check_stopped(bus: &Bus) -> anyhow::Result<()> {
    for service in RESTORE_WITHOUT {
        let found = bus.services(service, PATIENCE).await.context("services cannot be listed")?;
        let hosts: Vec<&str> = found
            .iter()
            .map(|found| found.metadata.get("host").map_or("unknown host", String::as_str))
            .collect();
        anyhow::ensure!(
            hosts.is_empty(),
            "{service} runs on {}: stop it, restore, and start it again",
            hosts.join(", ")
        );
    }
    Ok(())
}

/// Refuses a storage with data, except for reports, which the nodes write again.
async fn check_empty(bus: &Bus, list: &BackupList) -> anyhow::Result<()> {
    let reports = Bucket::Actual.stream(bus.cluster());
    let mut full = Vec::new();
    for stream in list.streams.iter().filter(|stream| stream.name != reports) {
        let messages = bus.stream_messages(&stream.name).await.context("the storage is unknown")?;
        if let Some(messages) = messages.filter(|messages| *messages > 0) {
            full.push(format!("{} ({messages} values)", stream.name));
        }
    }
    anyhow::ensure!(
        full.is_empty(),
        "the NATS server has data of this cluster: {}. --replace deletes it; on a server with keys, stop \
         the server, move its storage folder away and start it",
        full.join(", ")
    );
    Ok(())
}

async fn restore_stream(
    bus: &Bus,
    folder: &BackupFolder,
    name: &str,
    description: &StreamDescription,
) -> anyhow::Result<()> {
    let mut attempt = 1;
    loop {
        if bus.stream_messages(name).await?.is_some() {
            let deleted = bus.delete_stream(name).await;
            deleted.context(
                "it exists and cannot be deleted: stop the server, move its storage folder away and \
                 start it",
            )?;
        }
        let mut snapshot = folder.read(name)?;
        match bus.restore_snapshot(name, description, &mut snapshot).await {
            Ok(()) => return Ok(()),
            Err(_) if attempt < ATTEMPTS && bus.stream_messages(name).await?.is_some() => {
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &Restore) -> anyhow::Result<()> {
    let (folder, list) = BackupFolder::open(&command.folder)?;
    block_on(async {
        let bus = command.connection.open_with_any_key().await?;
        if list.cluster != *bus.cluster() {
            return Err(usage(format!(
                "the backup is of cluster {}, not of {}: name it with --cluster",
                list.cluster,
                bus.cluster()
            )));
        }
        check_version(&list, &bus.server_version())?;
        check_stopped(&bus).await?;
        if !command.replace {
            check_empty(&bus, &list).await?;
        }
        for stream in &list.streams {
            let mut description = stream.description.clone();
            if let Some(replicas) = &command.replicas {
                description.config["num_replicas"] = replicas.parse::<u64>()?.into();
            }
            let restored = restore_stream(&bus, &folder, &stream.name, &description).await;
            restored.with_context(|| {
                format!(
                    "{} is not restored; correct the cause and restore again with --replace",
                    stream.name
                )
            })?;
        }
        let mark = StoreRestored { backup_at_us: list.began_at_us, restored_at_us: clock::now() };
        let budget = bus.bucket(Bucket::Budget).await?;
        budget
            .put(STORE_RESTORED, &mark)
            .await
            .context("the mark of the restoration is missing")?;
        note("start the registry and the placer; the placer's log names what the backup lacks");
        print(&format!(
            "{} buckets and streams of the backup of {} are restored",
            list.streams.len(),
            list.began_at_us
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::{ClusterId, Timestamp};

    #[test]
    fn an_older_server_is_refused() {
        let cluster = ClusterId::new("main").unwrap();
        let list = BackupList::new(cluster, "2.10.3".to_owned(), Timestamp::EPOCH);
        for (server, ok) in
            [("2.10.0", true), ("2.11.1-beta", true), ("3.0.0", true), ("2.9.25", false)]
        {
            assert_eq!(check_version(&list, server).is_ok(), ok, "{server}");
        }
    }
}

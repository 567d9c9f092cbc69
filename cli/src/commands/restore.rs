//! `wattle restore`: restores the stored state of the cluster from a backup.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::messages::StoreRestored;
use wattle_common::subject::roles::RESTORE_WITHOUT;
use wattle_common::subject::{Bucket, STORE_RESTORED};
use wattle_runtime::bus::{Bus, BusError, StreamDescription};
use wattle_runtime::clock;

use crate::backup_folder::{BackedUpStream, BackupFolder, BackupList};
use crate::connection::{Connection, block_on};
use crate::output::{note, print, usage};

/// Time for answers of services, wall time.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Most attempts for one stream: a service on a server without keys may create it in between.
const ATTEMPTS: usize = 10;
/// Most attempts that a busy server does not answer. It does not answer what it forbids either.
const UNANSWERED_MAX: usize = 3;

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

/// Refuses while a service runs that would write the state meanwhile. One that is too busy to answer still renews
/// its lease.
async fn check_stopped(bus: &Bus) -> anyhow::Result<()> {
    for (service, lease) in RESTORE_WITHOUT {
        let found = bus.services(service, PATIENCE).await.context("services cannot be listed")?;
        let mut hosts: Vec<String> = found
            .iter()
            .map(|found| found.metadata.get("host").map_or("unknown host", String::as_str))
            .map(str::to_owned)
            .collect();
        if hosts.is_empty() {
            let holder = bus.lease_holder(&lease).await.context("leases cannot be read")?;
            hosts.extend(holder.map(|holder| holder.instance));
        }
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

/// Restores one stream in place of what the server has of it. Each attempt begins from scratch.
async fn restore_stream(
    bus: &Bus,
    folder: &BackupFolder,
    name: &str,
    description: &StreamDescription,
) -> anyhow::Result<()> {
    let mut unanswered = 0;
    for _ in 1..ATTEMPTS {
        let error = match replace_stream(bus, folder, name, description).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let may_succeed = if error.downcast_ref::<BusError>().is_some_and(BusError::is_transient) {
            unanswered += 1;
            unanswered < UNANSWERED_MAX
        } else {
            bus.stream_messages(name).await?.is_some()
        };
        if !may_succeed {
            return Err(error);
        }
    }
    replace_stream(bus, folder, name, description).await
}

async fn replace_stream(
    bus: &Bus,
    folder: &BackupFolder,
    name: &str,
    description: &StreamDescription,
) -> anyhow::Result<()> {
    if bus.stream_messages(name).await?.is_some() {
        let deleted = bus.delete_stream(name).await;
        deleted.context(
            "it exists and cannot be deleted: stop the server, move its storage folder away and start it",
        )?;
    }
    let mut snapshot = folder.read(name)?;
    Ok(bus.restore_snapshot(name, description, &mut snapshot).await?)
}

/// The streams before the mark of the restoration, and those after it. A placer that starts after this command was
/// killed must not follow restored orders and records without the mark, so they are restored last.
fn in_order(list: &BackupList) -> (Vec<&BackedUpStream>, Vec<&BackedUpStream>) {
    let last = [Bucket::Desired, Bucket::Jobs].map(|bucket| bucket.stream(&list.cluster));
    list.streams.iter().partition(|stream| !last.contains(&stream.name))
}

async fn restore_streams(
    bus: &Bus,
    folder: &BackupFolder,
    command: &Restore,
    streams: &[&BackedUpStream],
) -> anyhow::Result<()> {
    for stream in streams {
        let mut description = stream.description.clone();
        if let Some(replicas) = &command.replicas {
            description.config["num_replicas"] = replicas.parse::<u64>()?.into();
        }
        let restored = restore_stream(bus, folder, &stream.name, &description).await;
        restored.with_context(|| {
            format!(
                "{} is not restored; correct the cause and restore again with --replace",
                stream.name
            )
        })?;
    }
    Ok(())
}

/// Stores the mark by which the next placer compares the restored records with the nodes.
async fn store_mark(bus: &Bus, mark: &StoreRestored) -> anyhow::Result<()> {
    let mut attempt = 1;
    loop {
        let stored = async { bus.bucket(Bucket::Budget).await?.put(STORE_RESTORED, mark).await };
        match stored.await {
            Err(error) if error.is_transient() && attempt < UNANSWERED_MAX => attempt += 1,
            stored => return stored.map(drop).context("the mark of the restoration is missing"),
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
        let mark = StoreRestored { backup_at_us: list.began_at_us, restored_at_us: clock::now() };
        let (before, after) = in_order(&list);
        restore_streams(&bus, &folder, command, &before).await?;
        store_mark(&bus, &mark).await?;
        restore_streams(&bus, &folder, command, &after).await?;
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
    use serde_json::json;
    use wattle_common::{ClusterId, Timestamp};

    /// A kill at any point leaves no restored order or record without the mark, which is in the bucket of the budget.
    #[test]
    fn the_mark_is_stored_before_orders_and_records() {
        let cluster = ClusterId::new("main").unwrap();
        let mut list = BackupList::new(cluster.clone(), "2.11.0".to_owned(), Timestamp::EPOCH);
        list.streams = wattle_common::subject::backed_up(&cluster)
            .into_iter()
            .map(|name| {
                let description = StreamDescription { config: json!({}), state: json!({}) };
                BackedUpStream { name, bytes: 0, crc32: 0, description }
            })
            .collect();
        for reversed in [false, true] {
            if reversed {
                list.streams.reverse();
            }
            let (before, after) = in_order(&list);
            assert_eq!(before.len() + after.len(), list.streams.len());
            let has = |streams: &[&BackedUpStream], bucket: Bucket| {
                streams.iter().any(|stream| stream.name == bucket.stream(&cluster))
            };
            assert!(has(&before, Bucket::Budget));
            assert!(has(&after, Bucket::Jobs) && has(&after, Bucket::Desired));
        }
    }

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

//! Receives the node's desired state and writes the node's report.
//!
//! It retries for as long as the bus is away. A desired state that cannot be decoded is logged and
//! ignored: the previous one stays in force until its lease ends.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::codec;
use wattle_common::messages::{NodeDesired, PowerReport};
use wattle_common::subject::{Bucket, Reporter};
use wattle_runtime::bus::{Bus, BusError, KvBucket, Watch};

use super::ServiceConfig;
use crate::machine::Event;

/// Pause before a failed operation is retried: wall time.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until the machine has ended and its last report is stored.
pub(super) async fn serve(
    config: ServiceConfig,
    events: mpsc::Sender<Event>,
    newest: watch::Receiver<Option<PowerReport>>,
) {
    let open = async {
        loop {
            match open(&config).await {
                Ok(open) => return open,
                Err(error) => {
                    tracing::error!(%error, source = source(&error), "no bus; retrying");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    let (bus, desired, actual) = tokio::select! {
        open = open => open,
        () = ended(newest.clone()) => return,
    };
    let service = bus.register_on("wattle-power-agent", "applies caps and clocks", &config.node);
    let service = service.await.inspect_err(|error| tracing::warn!(%error, "not registered"));
    let key = Reporter::Power.key(&config.node);
    tokio::select! {
        () = listen(&config, desired, &events) => {}
        () = actual.put_latest(&key, newest) => {}
    }
    if let Ok(service) = service {
        service.stop().await;
    }
    bus.flush().await;
}

async fn open(config: &ServiceConfig) -> Result<(Bus, Watch, KvBucket), BusError> {
    let name = format!("wattle-power-agent-{}", config.node);
    let bus = Bus::connect(&config.nats, config.cluster.clone(), &name).await?;
    let desired = bus.bucket(Bucket::Desired).await?.watch_keys(config.node.as_str()).await?;
    let actual = bus.bucket(Bucket::Actual).await?;
    Ok((bus, desired, actual))
}

async fn ended(mut newest: watch::Receiver<Option<PowerReport>>) {
    while newest.changed().await.is_ok() {}
}

async fn listen(config: &ServiceConfig, mut desired: Watch, events: &mpsc::Sender<Event>) {
    while let Some(change) = desired.next().await {
        if change.key != config.node.as_str() {
            continue;
        }
        let Some(value) = change.value else {
            tracing::warn!(
                "the desired state was deleted; the last one stays in force until its lease ends"
            );
            continue;
        };
        match codec::decode_json::<NodeDesired>(&value) {
            Ok(desired) => {
                if events.send(Event::DesiredChanged(desired)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                let revision = change.revision;
                tracing::warn!(revision, %error, source = source(&error), "desired state ignored");
            }
        }
    }
    // The watch ends only with the bus client; the report's loop continues to retry.
    std::future::pending::<()>().await;
}

fn source(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}

//! Receives the node's desired state and writes the node's report.
//!
//! It retries for as long as the bus is away. A desired state that cannot be decoded is logged and
//! ignored: the previous one stays in force until its lease ends. Of two agents with one node's name, the
//! holder of the service's lease is active; the other one receives no desired state and reports nothing, so
//! its GPUs keep their safe cap.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::codec;
use wattle_common::lease::NODE_LEASE;
use wattle_common::messages::{NodeDesired, PowerReport};
use wattle_common::subject::{Bucket, LeaseKey, Reporter};
use wattle_runtime::bus::{Bus, BusError, Candidate, KvBucket, Leadership, Service, Watch};

use super::ServiceConfig;
use super::metrics::PowerMetrics;
use crate::machine::Event;

/// Pause before a failed operation is retried: wall time.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until the machine has ended and its last report is stored.
pub(super) async fn serve(
    config: ServiceConfig,
    events: mpsc::Sender<Event>,
    newest: watch::Receiver<Option<PowerReport>>,
    metrics: PowerMetrics,
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
    let (bus, desired, actual, candidate) = tokio::select! {
        open = open => open,
        () = ended(newest.clone()) => return,
    };
    metrics.follow_bus(&bus);
    let key = Reporter::Power.key(&config.node);
    loop {
        let lease = tokio::select! {
            lease = stand_by(&bus, &candidate, &config) => lease,
            () = ended(newest.clone()) => return,
        };
        let service = register(&bus, &config, "active").await;
        let lost = tokio::select! {
            () = listen(&config, &desired, &events) => None,
            () = actual.put_latest(&key, newest.clone()) => None,
            lost = lease.lost() => Some(lost),
        };
        drop(service);
        let Some(lost) = lost else {
            lease.release().await;
            break;
        };
        tracing::error!(other = lost.holder.instance, "another power agent of this node is active");
    }
    bus.flush().await;
}

/// Waits until this agent holds the node's lease.
async fn stand_by(bus: &Bus, candidate: &Candidate, config: &ServiceConfig) -> Leadership {
    let _registered = register(bus, config, "standby").await;
    candidate
        .acquire(|lease| {
            tracing::error!(
                other = lease.holder.instance,
                "another power agent has this node's name: this one is on standby, and its GPUs keep their \
                 safe cap; stop one of the two, or configure another `node`"
            );
        })
        .await
}

async fn register(bus: &Bus, config: &ServiceConfig, state: &str) -> Option<Service> {
    let words = [("node", config.node.as_str()), ("state", state)];
    let service =
        bus.register("wattle-power-agent", "applies caps and clocks", &words).await;
    service.inspect_err(|error| tracing::warn!(%error, "not registered")).ok()
}

async fn open(config: &ServiceConfig) -> Result<(Bus, KvBucket, KvBucket, Candidate), BusError> {
    let name = format!("wattle-power-agent-{}", config.node);
    let bus = Bus::connect(&config.nats, config.cluster.clone(), &name).await?;
    let desired = bus.bucket(Bucket::Desired).await?;
    let actual = bus.bucket(Bucket::Actual).await?;
    let candidate = Candidate::new(&bus, LeaseKey::Power(config.node.clone()), NODE_LEASE).await?;
    Ok((bus, desired, actual, candidate))
}

async fn ended(mut newest: watch::Receiver<Option<PowerReport>>) {
    while newest.changed().await.is_ok() {}
}

async fn listen(config: &ServiceConfig, desired: &KvBucket, events: &mpsc::Sender<Event>) {
    let mut desired = watch_desired(config, desired).await;
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

/// Opens the watch of the node's desired state.
async fn watch_desired(config: &ServiceConfig, desired: &KvBucket) -> Watch {
    loop {
        match desired.watch_keys(config.node.as_str()).await {
            Ok(watch) => return watch,
            Err(error) => {
                tracing::error!(%error, source = source(&error), "no desired state; retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn source(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}

//! Receives the node's desired state and writes the node's report.
//!
//! A desired state that cannot be decoded is logged and ignored: the previous one stays in force until its
//! lease ends. Of two agents with one node's name, the holder of the service's lease is active
//! ([`LeaseMode::Node`]); the other one receives no desired state and reports nothing, so its GPUs keep their
//! safe cap.
//!
//! [`LeaseMode::Node`]: wattle_runtime::service::LeaseMode::Node

use tokio::sync::{mpsc, watch};
use wattle_common::messages::{NodeDesired, PowerReport};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{NodeId, codec};
use wattle_runtime::bus::{Bus, BusError, KvBucket, Service};
use wattle_runtime::service::Link;
use wattle_runtime::shell::chain;

use crate::machine::Event;

/// The channels between the machine and the bus.
#[derive(Clone)]
pub(super) struct Channels {
    pub(super) node: NodeId,
    pub(super) events: mpsc::Sender<Event>,
    /// The newest report.
    pub(super) newest: watch::Receiver<Option<PowerReport>>,
}

/// The bus side.
pub(super) struct PowerLink {
    channels: Channels,
    desired: KvBucket,
    actual: KvBucket,
}

impl Link for PowerLink {
    type Setup = Channels;

    async fn open(channels: &Channels, bus: &Bus) -> Result<Self, BusError> {
        let desired = bus.bucket(Bucket::Desired).await?;
        let actual = bus.bucket(Bucket::Actual).await?;
        Ok(Self { channels: channels.clone(), desired, actual })
    }

    async fn work(&mut self, _registered: Service) -> Result<(), BusError> {
        let Channels { node, newest, .. } = &self.channels;
        let key = Reporter::Power.key(node);
        tokio::select! {
            ended = self.listen() => ended,
            () = self.actual.put_latest(&key, newest.clone()) => Ok(()),
        }
    }
}

impl PowerLink {
    async fn listen(&self) -> Result<(), BusError> {
        let Channels { node, events, .. } = &self.channels;
        let mut desired = self.desired.watch_keys(node.as_str()).await?;
        while let Some(change) = desired.next().await {
            if change.key != node.as_str() {
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
                        return Ok(());
                    }
                }
                Err(error) => {
                    let revision = change.revision;
                    tracing::warn!(revision, error = chain(&error), "desired state ignored");
                }
            }
        }
        // The watch ends only with the client of the bus; the last report is still stored.
        std::future::pending().await
    }
}

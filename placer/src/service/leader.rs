//! Active or on standby: of the placers of a cluster, the holder of the lease works.
//!
//! A placer on standby answers no request, writes nothing and reads nothing but the lease. When it
//! acquires the lease it starts like after a restart, from the buckets. A placer that loses the lease drops
//! all its state and returns to standby. The server refuses what it still tries to write ([`ExclusiveBucket`]), and
//! an entry of the energy ledger is acknowledged after its effect is stored, so the next placer counts it
//! or has read it.
//!
//! [`ExclusiveBucket`]: wattle_runtime::bus::ExclusiveBucket

use std::time::Duration;

use wattle_common::subject::LeaseKey;
use wattle_runtime::bus::{Bus, Candidate, ExclusiveError, Leadership, LeaseLost, Service};
use wattle_runtime::metrics::Metrics;
use wattle_runtime::shell::Shutdown;
use wattle_runtime::traces::Exporter;

use super::metrics::PlacerMetrics;
use super::{PlacerService, ShellError};
use crate::Config;

/// The name under which placers register.
const NAME: &str = "wattle-placer";

/// Why the placer stopped working.
pub(super) enum Ended {
    /// Shutdown was requested.
    Stopped,
    /// Another placer leads.
    Lost(LeaseLost),
}

/// Runs until shutdown.
///
/// # Errors
/// If the bus refuses the connection or a write.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    crate::policy(&config.policy)?;
    let metrics = Metrics::start(&config.metrics, "placer", &config.cluster, None);
    let metrics = PlacerMetrics::new(&metrics);
    let (cluster, spans) = (config.cluster.as_str(), metrics.spans());
    let exporter = Exporter::start(&config.traces, NAME, cluster, spans);
    // Opening waits for the bus; a shutdown interrupts it.
    let connect = async {
        let bus = Bus::connect(&config.nats, config.cluster.clone(), NAME).await?;
        bus.create_storage().await?;
        let length = Duration::from_millis(config.service_lease_wall_ms);
        let candidate = Candidate::new(&bus, LeaseKey::Placer, length).await?;
        Ok::<_, ShellError>((bus, candidate))
    };
    let Some(opened) = shutdown.or(connect).await else { return Ok(()) };
    let (bus, candidate) = opened?;
    metrics.follow_bus(&bus);
    loop {
        let Some(leadership) = shutdown.or(stand_by(&bus, &candidate)).await else {
            return Ok(());
        };
        let leadership = leadership?;
        metrics.is_active(true);
        let service = open(&config, &bus, &leadership, &metrics, exporter.clone());
        let led = match shutdown.or(service).await {
            Some(Ok(service)) => service.serve(shutdown).await,
            Some(Err(error)) => Err(error),
            None => Ok(Ended::Stopped),
        };
        metrics.is_active(false);
        match led {
            Ok(Ended::Lost(lost)) | Err(ShellError::Store(ExclusiveError::Lost(lost))) => {
                tracing::error!(
                    active = lost.holder.instance,
                    "another placer is active in this cluster because this one was away longer than its \
                     lease; this one is on standby"
                );
            }
            Ok(Ended::Stopped) => {
                leadership.release().await;
                return Ok(());
            }
            Err(error) => {
                leadership.release().await;
                return Err(error);
            }
        }
    }
}

/// Waits until this placer holds the lease.
async fn stand_by(bus: &Bus, candidate: &Candidate) -> Result<Leadership, ShellError> {
    let service = register(bus, "standby").await?;
    let mut waited = false;
    let leadership = candidate
        .acquire(|lease| {
            waited = true;
            let active = &lease.holder.instance;
            tracing::warn!(
                active,
                "another placer is active in this cluster; this one is on standby"
            );
        })
        .await;
    if waited {
        tracing::warn!("this placer takes over and is active");
    }
    service.stop().await;
    Ok(leadership)
}

async fn open(
    config: &Config,
    bus: &Bus,
    leadership: &Leadership,
    metrics: &PlacerMetrics,
    exporter: Option<Exporter>,
) -> Result<PlacerService, ShellError> {
    let policy = crate::policy(&config.policy)?;
    let (bus, leadership) = (bus.clone(), leadership.clone());
    PlacerService::open(config.clone(), policy, bus, leadership, metrics.clone(), exporter).await
}

/// Registers this process with its state, `active` or `standby`.
pub(super) async fn register(bus: &Bus, state: &str) -> Result<Service, ShellError> {
    let about = "accepts jobs and places them on GPUs";
    Ok(bus.register(NAME, about, &[("state", state)]).await?)
}

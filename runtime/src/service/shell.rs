//! A process of a service: its names, its connection, its registration and its metrics.

use std::time::Duration;

use wattle_common::config::MetricsConfig;
use wattle_common::subject::LeaseKey;
use wattle_common::{ClusterId, NodeId};

use crate::bus::{self, Bus, BusConfig, BusError, LeaderElector, Leadership, LeaseLost};
use crate::metrics::Metrics;

/// Longest time in which a process that holds a lease waits for answers about one bucket or stream, wall time: an
/// election of a leader takes up to about 10 s.
pub(super) const UNANSWERED_MAX: Duration = Duration::from_secs(15);

/// The names of a process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `wattle-` and the service: the name on the bus, and without the prefix in metrics.
    pub service: &'static str,
    /// What the service does, for discovery.
    pub about: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// The node of a node's service.
    pub node: Option<NodeId>,
    /// Entries of the registration besides the state and the node.
    pub entries: Vec<(&'static str, String)>,
}

impl Identity {
    /// A service of the cluster.
    #[must_use]
    pub fn of_cluster(service: &'static str, about: &str, cluster: &ClusterId) -> Self {
        let (about, cluster) = (about.to_owned(), cluster.clone());
        Self { service, about, cluster, node: None, entries: Vec::new() }
    }

    /// A service of a node.
    #[must_use]
    pub fn of_node(service: &'static str, about: &str, cluster: &ClusterId, node: &NodeId) -> Self {
        Self { node: Some(node.clone()), ..Self::of_cluster(service, about, cluster) }
    }
}

/// The shell of one process.
pub struct Shell {
    identity: Identity,
    nats: BusConfig,
    metrics: Metrics,
    unanswered_max: Duration,
}

impl Shell {
    /// Starts the metrics endpoint. Requires a tokio runtime.
    #[must_use]
    pub fn start(identity: Identity, metrics: &MetricsConfig, nats: &BusConfig) -> Self {
        let service = identity.service.trim_start_matches("wattle-");
        let node = identity.node.as_ref();
        let metrics = Metrics::start(metrics, service, &identity.cluster, node);
        Self { identity, nats: nats.clone(), metrics, unanswered_max: UNANSWERED_MAX }
    }

    /// This shell with another longest wait for answers about one bucket or stream, wall time; 15 s otherwise.
    #[must_use]
    pub const fn waiting_at_most(mut self, unanswered_max: Duration) -> Self {
        self.unanswered_max = unanswered_max;
        self
    }

    pub(super) const fn unanswered_max(&self) -> Duration {
        self.unanswered_max
    }

    /// Logs that the server leaves calls without an answer, and what follows.
    pub(super) fn log_unanswered(&self, calls: &str, effect: &str) {
        tracing::error!(
            cluster = %self.identity.cluster,
            calls,
            seconds = self.unanswered_max.as_secs(),
            "the nats server does not answer calls about a bucket or stream: {effect}; check the state and \
             the logs of the servers (nats stream report)"
        );
    }

    /// The metrics, to which the service adds its own.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Connects; the metrics have the state of the connection from then on. Waits for the server.
    pub(super) async fn connect(&self) -> Result<Bus, BusError> {
        let Identity { service, cluster, node, .. } = &self.identity;
        let name = match node {
            Some(node) => format!("{service}-{node}"),
            None => (*service).to_owned(),
        };
        let bus = Bus::connect(&self.nats, cluster.clone(), &name).await?;
        self.metrics.follow_bus(&bus);
        bus.log_limits();
        Ok(bus)
    }

    /// Registers this process with its state, `active` or `standby`; `None`: without one.
    pub(super) async fn register(
        &self,
        bus: &Bus,
        state: Option<&str>,
    ) -> Result<bus::Service, BusError> {
        let Identity { service, about, node, entries, .. } = &self.identity;
        let node = node.iter().map(|node| ("node", node.as_str()));
        let entries = entries.iter().map(|(key, value)| (*key, value.as_str()));
        let state = state.iter().map(|state| ("state", *state));
        let words: Vec<(&str, &str)> = node.chain(entries).chain(state).collect();
        bus.register(service, about, &words).await
    }

    /// Waits until this process holds the lease `key`, registered as on standby.
    pub(super) async fn stand_by(
        &self,
        bus: &Bus,
        key: &LeaseKey,
        elector: &LeaderElector,
        log: impl Fn(&str),
    ) -> Result<Leadership, BusError> {
        let registered = self.register(bus, Some("standby")).await?;
        let mut waited = false;
        let lease = elector
            .acquire(|lease| {
                waited = true;
                log(&lease.holder.instance);
            })
            .await;
        if waited {
            tracing::warn!("this {} takes over and is active", key.label());
        }
        registered.stop().await;
        Ok(lease)
    }

    /// Logs that another process holds the lease.
    pub(super) fn log_lost(&self, key: &LeaseKey, lost: &LeaseLost) {
        tracing::error!(
            cluster = %self.identity.cluster,
            other = lost.holder.instance,
            "{} because this one was away longer than its lease; this one is on standby",
            other_is_active(key)
        );
    }
}

/// The state of another process that holds the lease, for logs.
pub(super) fn other_is_active(key: &LeaseKey) -> String {
    match key {
        LeaseKey::Placer | LeaseKey::Registry | LeaseKey::Slurm | LeaseKey::OpenAdr => {
            format!("another {} is active in this cluster", key.label())
        }
        LeaseKey::Predictor(_) => "another predictor of this name is active".to_owned(),
        LeaseKey::Profiler(_) => "another profiler of this node is active".to_owned(),
        LeaseKey::Power(_) => "another power agent of this node is active".to_owned(),
    }
}

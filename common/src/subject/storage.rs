//! Names of stored data: key-value buckets, their keys, and streams.

use std::fmt;

use super::Topic;
use crate::id::{ClusterId, NodeId, PredictorId};

/// The key-value buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bucket {
    /// Key = job: [`crate::messages::JobRecord`].
    Jobs,
    /// Key = node: [`crate::messages::NodeDesired`].
    Desired,
    /// Key = `launcher.<node>` or `power.<node>`: [`crate::messages::LaunchReport`],
    /// [`crate::messages::PowerReport`].
    Actual,
    /// Key = job: [`crate::messages::Surface`].
    Surfaces,
    /// Key = `<predictor>.class.<gpu type>.<class>`, `<predictor>.job.<job>` or
    /// `<predictor>.scores.<gpu type>.<scope>`: a predictor's learned state, in its own format.
    Knowledge,
    /// Keys: [`PredictorKey`]; the champion, and the state of each predictor.
    Predictors,
    /// Keys [`BUDGET_SET`], [`BUDGET_STATUS`], [`AIM_STATUS`], [`GRID_STATUS`], [`FEEDERS_STATUS`],
    /// [`TWIN_STATUS`], [`TWIN_OPEN`], [`EXPECTED_STATUS`], [`WHAT_IF`], [`EVENTS`] and [`STORE_RESTORED`]: the budget in force, its consumption,
    /// the state of the energy aim, the sources of carbon intensity and price, the power of each feeder, the twin, the
    /// errors of expected starts and ends, the grid events, and whether the store was restored from a backup.
    Budget,
    /// Key = service: [`LeaseKey`]; [`crate::messages::ServiceLease`].
    Leases,
}

/// Key of the budget in force in [`Bucket::Budget`]: [`crate::messages::BudgetRecord`].
pub const BUDGET_SET: &str = "set";
/// Key of the consumption in [`Bucket::Budget`]: [`crate::messages::BudgetStatus`].
pub const BUDGET_STATUS: &str = "status";
/// Key of the energy aim's state in [`Bucket::Budget`]: [`crate::messages::AimStatus`].
pub const AIM_STATUS: &str = "aim";
/// Key of the state of the grid's signals in [`Bucket::Budget`]: [`crate::messages::GridStatus`].
pub const GRID_STATUS: &str = "grid";
/// Key of the power of each feeder in [`Bucket::Budget`]: [`crate::messages::FeedersStatus`].
pub const FEEDERS_STATUS: &str = "feeders";
/// Key of the twin's sums in [`Bucket::Budget`]: [`crate::messages::TwinStatus`].
pub const TWIN_STATUS: &str = "twin";
/// Key of the jobs that are not in the sums yet in [`Bucket::Budget`]: [`crate::messages::TwinOpen`].
pub const TWIN_OPEN: &str = "twin-open";
/// Key of the errors of expected starts and ends in [`Bucket::Budget`]: [`crate::messages::ExpectedStatus`].
pub const EXPECTED_STATUS: &str = "expected";
/// Key of the trade of energy for completion time in [`Bucket::Budget`]: [`crate::messages::WhatIf`].
pub const WHAT_IF: &str = "what-if";
/// Key of the grid events in [`Bucket::Budget`]: [`crate::event::EventBook`].
pub const EVENTS: &str = "events";
/// Key of what jobs lose over grid events in [`Bucket::Budget`]: [`crate::event::EventPerformances`].
pub const EVENT_JOBS: &str = "event-jobs";
/// Key of the mark of a restored store in [`Bucket::Budget`]: [`crate::messages::StoreRestored`].
pub const STORE_RESTORED: &str = "restored";

impl Bucket {
    /// Every bucket.
    pub const ALL: [Self; 8] = [
        Self::Jobs,
        Self::Desired,
        Self::Actual,
        Self::Surfaces,
        Self::Knowledge,
        Self::Predictors,
        Self::Budget,
        Self::Leases,
    ];

    /// The last part of its name.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Desired => "desired",
            Self::Actual => "actual",
            Self::Surfaces => "surfaces",
            Self::Knowledge => "knowledge",
            Self::Predictors => "predictors",
            Self::Budget => "budget",
            Self::Leases => "leases",
        }
    }

    /// Its description on the server, as `nats kv info` shows it.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Jobs => "Wattle: record of each job (JobRecord, JSON), key = job",
            Self::Desired => "Wattle: desired state of each node (NodeDesired, JSON), key = node",
            Self::Actual => {
                "Wattle: reports of each node (LaunchReport, PowerReport, JSON), \
                 key = launcher.<node>, power.<node>"
            }
            Self::Surfaces => {
                "Wattle: predicted speed and power of each job (Surface, JSON), key = job"
            }
            Self::Knowledge => "Wattle: learned state of each predictor, in its own format",
            Self::Predictors => "Wattle: champion, status and scores of the predictors (JSON)",
            Self::Budget => "Wattle: the budget, its consumption and the energy aim (JSON)",
            Self::Leases => "Wattle: the active process of each service (JSON)",
        }
    }

    /// The name of its stream on the server.
    #[must_use]
    pub fn stream(self, cluster: &ClusterId) -> String {
        format!("KV_{}", self.name(cluster))
    }

    /// The cluster of its stream of this name; `None`: the stream is another one.
    #[must_use]
    pub fn cluster_of(self, stream: &str) -> Option<ClusterId> {
        let name = stream.strip_prefix("KV_wattle-v1-")?;
        ClusterId::new(name.strip_suffix(self.token())?.strip_suffix('-')?).ok()
    }

    /// The subject of the values of a key, or of a pattern of keys.
    #[must_use]
    pub fn subject(self, cluster: &ClusterId, key: &str) -> String {
        format!("$KV.{}.{key}", self.name(cluster))
    }

    /// Its name on the server, as in `nats kv get wattle-v1-<cluster>-jobs <job>`.
    #[must_use]
    pub fn name(self, cluster: &ClusterId) -> String {
        format!("wattle-v1-{cluster}-{}", self.token())
    }
}

/// The names of the streams that a backup contains, in the order in which they are copied.
///
/// The copies are taken one after the other while the services write. A stream comes before those in which
/// its effects are recorded: an entry of the ledger that is copied as not yet counted is not counted twice,
/// because the records name until when each node is counted. Leases are not copied, because they belong to
/// processes.
#[must_use]
pub fn backed_up(cluster: &ClusterId) -> Vec<String> {
    let buckets = [
        Bucket::Knowledge,
        Bucket::Predictors,
        Bucket::Surfaces,
        Bucket::Actual,
        Bucket::Desired,
        Bucket::Budget,
        Bucket::Jobs,
    ];
    let streams = [StreamName::Ledger, StreamName::Site, StreamName::Windows, StreamName::Orders];
    let streams = streams.iter().map(|stream| stream.name(cluster));
    streams.chain(buckets.iter().map(|bucket| bucket.stream(cluster))).collect()
}

/// A service that reports to [`Bucket::Actual`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reporter {
    /// The launcher.
    Launcher,
    /// The power agent.
    Power,
}

impl Reporter {
    /// The key of this reporter's report on `node`.
    #[must_use]
    pub fn key(self, node: &NodeId) -> String {
        let name = match self {
            Self::Launcher => "launcher",
            Self::Power => "power",
        };
        format!("{name}.{node}")
    }

    /// The reporter and node of `key`.
    #[must_use]
    pub fn parse(key: &str) -> Option<(Self, NodeId)> {
        let (name, node) = key.split_once('.')?;
        let reporter = match name {
            "launcher" => Self::Launcher,
            "power" => Self::Power,
            _ => return None,
        };
        Some((reporter, NodeId::new(node).ok()?))
    }
}

/// A key of [`Bucket::Predictors`]. The part before the dot separates predictors' names from the other
/// keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PredictorKey {
    /// The champion: [`crate::messages::Champion`].
    Champion,
    /// State of a predictor: [`crate::messages::PredictorStatus`].
    Status(PredictorId),
    /// Data of a predictor's scores, in the registry's own format.
    Scores(PredictorId),
}

impl PredictorKey {
    /// Parses `key`.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once('.') {
            None => (key == "champion").then_some(Self::Champion),
            Some(("status", predictor)) => PredictorId::new(predictor).ok().map(Self::Status),
            Some(("scores", predictor)) => PredictorId::new(predictor).ok().map(Self::Scores),
            Some(_) => None,
        }
    }
}

impl fmt::Display for PredictorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Champion => f.write_str("champion"),
            Self::Status(predictor) => write!(f, "status.{predictor}"),
            Self::Scores(predictor) => write!(f, "scores.{predictor}"),
        }
    }
}

/// A key of [`Bucket::Leases`]: a service of which one process works at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKey {
    /// The cluster's placer.
    Placer,
    /// The cluster's registry.
    Registry,
    /// The predictor of one name.
    Predictor(PredictorId),
    /// The profiler of a node.
    Profiler(NodeId),
    /// The power agent of a node.
    Power(NodeId),
    /// The service that connects the cluster with Slurm.
    Slurm,
    /// The service that follows the events of an OpenADR server.
    OpenAdr,
}

impl LeaseKey {
    /// Parses `key`.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once('.') {
            None => match key {
                "placer" => Some(Self::Placer),
                "registry" => Some(Self::Registry),
                "slurm" => Some(Self::Slurm),
                "openadr" => Some(Self::OpenAdr),
                _ => None,
            },
            Some(("predictor", name)) => PredictorId::new(name).ok().map(Self::Predictor),
            Some(("profiler", node)) => NodeId::new(node).ok().map(Self::Profiler),
            Some(("power", node)) => NodeId::new(node).ok().map(Self::Power),
            Some(_) => None,
        }
    }

    /// The service and the node or predictor, for people: `power agent n0`.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Placer => "placer".to_owned(),
            Self::Registry => "registry".to_owned(),
            Self::Slurm => "Slurm service".to_owned(),
            Self::OpenAdr => "OpenADR service".to_owned(),
            Self::Predictor(name) => format!("predictor {name}"),
            Self::Profiler(node) => format!("profiler {node}"),
            Self::Power(node) => format!("power agent {node}"),
        }
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placer => f.write_str("placer"),
            Self::Registry => f.write_str("registry"),
            Self::Slurm => f.write_str("slurm"),
            Self::OpenAdr => f.write_str("openadr"),
            Self::Predictor(name) => write!(f, "predictor.{name}"),
            Self::Profiler(node) => write!(f, "profiler.{node}"),
            Self::Power(node) => write!(f, "power.{node}"),
        }
    }
}

/// The JetStream streams, without those of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamName {
    /// Closed windows ([`Topic::WindowClosed`]).
    Windows,
    /// The energy ledger ([`Topic::EnergyMetered`]).
    Ledger,
    /// Orders of people, accepted or refused ([`Topic::OrderRecorded`]).
    Orders,
    /// The power of the site by minute ([`Topic::SiteMetered`]).
    Site,
}

impl StreamName {
    /// Every stream.
    pub const ALL: [Self; 4] = [Self::Windows, Self::Ledger, Self::Orders, Self::Site];

    /// Its name on the server.
    #[must_use]
    pub fn name(self, cluster: &ClusterId) -> String {
        let token = match self {
            Self::Windows => "windows",
            Self::Ledger => "ledger",
            Self::Orders => "orders",
            Self::Site => "site",
        };
        format!("wattle-v1-{cluster}-{token}")
    }

    /// Its description on the server, as `nats stream info` shows it.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Windows => "Wattle: measurement windows of jobs (JobWindow, JSON)",
            Self::Ledger => "Wattle: energy of each node and job (LedgerEntry, JSON)",
            Self::Orders => "Wattle: orders of people, accepted or refused (OrderRecord, JSON)",
            Self::Site => "Wattle: power of the site by minute (SiteMinute, JSON)",
        }
    }

    /// The topic it stores.
    #[must_use]
    pub const fn topic(self) -> Topic {
        match self {
            Self::Windows => Topic::WindowClosed,
            Self::Ledger => Topic::EnergyMetered,
            Self::Orders => Topic::OrderRecorded,
            Self::Site => Topic::SiteMetered,
        }
    }
}

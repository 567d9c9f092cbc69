//! Every NATS name Wattle uses: subjects, key-value buckets, streams, services.
//!
//! `wattle.v1.<cluster>.<noun>.<verb-ed>[.<node>[.<job>]]`, and `.<predictor>.<job>` of what a
//! predictor says. Built and parsed only here, so a new
//! subject is a new line of this file, and two clusters on one server can never meet.

use std::fmt;
use std::str::FromStr;

use crate::id::{ClusterId, IdError, JobId, NodeId, PredictorId};

/// The first two tokens of every subject: the product and the version of its messages.
pub const ROOT: &str = "wattle.v1";

/// Which subject, without the ids in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Telemetry batches of a node: [`crate::messages::TelemetryBatch`].
    GpuSampled,
    /// A node's second: [`crate::messages::NodeSummary`].
    NodeSummarized,
    /// A closed window of a job on a node: [`crate::messages::JobWindow`].
    WindowClosed,
    /// How far a job is: [`crate::messages::JobProgressed`].
    JobProgressed,
    /// What a node spent: [`crate::messages::LedgerEntry`].
    EnergyMetered,
    /// Request: take this job: [`crate::messages::SubmitJob`].
    JobSubmitted,
    /// Request: take this job back: [`crate::messages::CancelJob`].
    JobCancelled,
    /// What a predictor says of a job: [`crate::messages::Surface`].
    SurfaceProposed,
    /// Request: let this predictor serve: [`crate::messages::PromotePredictor`].
    PredictorPromoted,
    /// Request: keep to this budget: [`crate::messages::SetBudget`].
    BudgetSet,
}

/// Which ids follow a topic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    None,
    Node,
    NodeJob,
    PredictorJob,
}

impl Topic {
    /// Every topic there is.
    pub const ALL: [Self; 10] = [
        Self::GpuSampled,
        Self::NodeSummarized,
        Self::WindowClosed,
        Self::JobProgressed,
        Self::EnergyMetered,
        Self::JobSubmitted,
        Self::JobCancelled,
        Self::SurfaceProposed,
        Self::PredictorPromoted,
        Self::BudgetSet,
    ];

    /// Its noun and verb, as in the subject.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::GpuSampled => "gpu.sampled",
            Self::NodeSummarized => "node.summarized",
            Self::WindowClosed => "window.closed",
            Self::JobProgressed => "job.progressed",
            Self::EnergyMetered => "energy.metered",
            Self::JobSubmitted => "job.submitted",
            Self::JobCancelled => "job.cancelled",
            Self::SurfaceProposed => "surface.proposed",
            Self::PredictorPromoted => "predictor.promoted",
            Self::BudgetSet => "budget.set",
        }
    }

    const fn ids(self) -> Ids {
        match self {
            Self::GpuSampled | Self::NodeSummarized | Self::EnergyMetered => Ids::Node,
            Self::WindowClosed | Self::JobProgressed => Ids::NodeJob,
            Self::SurfaceProposed => Ids::PredictorJob,
            Self::JobSubmitted | Self::JobCancelled | Self::PredictorPromoted | Self::BudgetSet => {
                Ids::None
            }
        }
    }

    /// The subject to subscribe to for every message of this topic in `cluster`.
    #[must_use]
    pub fn pattern(self, cluster: &ClusterId) -> String {
        let ids = match self.ids() {
            Ids::None => "",
            Ids::Node => ".*",
            Ids::NodeJob | Ids::PredictorJob => ".*.*",
        };
        format!("{ROOT}.{cluster}.{}{ids}", self.token())
    }

    /// The subject's form for documentation: `wattle.v1.<cluster>.gpu.sampled.<node>`.
    #[must_use]
    pub fn form(self) -> String {
        let ids = match self.ids() {
            Ids::None => "",
            Ids::Node => ".<node>",
            Ids::NodeJob => ".<node>.<job>",
            Ids::PredictorJob => ".<predictor>.<job>",
        };
        format!("{ROOT}.<cluster>.{}{ids}", self.token())
    }
}

/// One subject, with its ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    cluster: ClusterId,
    topic: Topic,
    node: Option<NodeId>,
    predictor: Option<PredictorId>,
    job: Option<JobId>,
}

impl Subject {
    /// The subject of a request to `cluster`'s placer, or to its registry of predictors.
    #[must_use]
    pub const fn request(cluster: ClusterId, topic: RequestTopic) -> Self {
        let topic = match topic {
            RequestTopic::JobSubmitted => Topic::JobSubmitted,
            RequestTopic::JobCancelled => Topic::JobCancelled,
            RequestTopic::PredictorPromoted => Topic::PredictorPromoted,
            RequestTopic::BudgetSet => Topic::BudgetSet,
        };
        Self { cluster, topic, node: None, predictor: None, job: None }
    }
    /// The subject of what a node says of itself.
    #[must_use]
    pub const fn of_node(cluster: ClusterId, topic: NodeTopic, node: NodeId) -> Self {
        let topic = match topic {
            NodeTopic::GpuSampled => Topic::GpuSampled,
            NodeTopic::NodeSummarized => Topic::NodeSummarized,
            NodeTopic::EnergyMetered => Topic::EnergyMetered,
        };
        Self { cluster, topic, node: Some(node), predictor: None, job: None }
    }
    /// The subject of what a node says of a job.
    #[must_use]
    pub const fn of_job(cluster: ClusterId, topic: JobTopic, node: NodeId, job: JobId) -> Self {
        let topic = match topic {
            JobTopic::WindowClosed => Topic::WindowClosed,
            JobTopic::JobProgressed => Topic::JobProgressed,
        };
        Self { cluster, topic, node: Some(node), predictor: None, job: Some(job) }
    }
    /// The subject of what `predictor` says of a job.
    #[must_use]
    pub const fn of_proposal(cluster: ClusterId, predictor: PredictorId, job: JobId) -> Self {
        let topic = Topic::SurfaceProposed;
        Self { cluster, topic, node: None, predictor: Some(predictor), job: Some(job) }
    }
    /// Which topic it is.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        self.topic
    }
    /// The cluster it belongs to.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterId {
        &self.cluster
    }
    /// The node in it.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeId> {
        self.node.as_ref()
    }
    /// The predictor in it.
    #[must_use]
    pub const fn predictor(&self) -> Option<&PredictorId> {
        self.predictor.as_ref()
    }
    /// The job in it.
    #[must_use]
    pub const fn job(&self) -> Option<&JobId> {
        self.job.as_ref()
    }
    /// The subject to subscribe to for everything in `cluster`.
    #[must_use]
    pub fn everything(cluster: &ClusterId) -> String {
        format!("{ROOT}.{cluster}.>")
    }
}

/// Topics of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTopic {
    /// [`Topic::JobSubmitted`]
    JobSubmitted,
    /// [`Topic::JobCancelled`]
    JobCancelled,
    /// [`Topic::PredictorPromoted`]
    PredictorPromoted,
    /// [`Topic::BudgetSet`]
    BudgetSet,
}

/// Topics that carry a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTopic {
    /// [`Topic::GpuSampled`]
    GpuSampled,
    /// [`Topic::NodeSummarized`]
    NodeSummarized,
    /// [`Topic::EnergyMetered`]
    EnergyMetered,
}

/// Topics that carry a node and a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobTopic {
    /// [`Topic::WindowClosed`]
    WindowClosed,
    /// [`Topic::JobProgressed`]
    JobProgressed,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}.{}.{}", self.cluster, self.topic.token())?;
        if let Some(node) = &self.node {
            write!(f, ".{node}")?;
        }
        if let Some(predictor) = &self.predictor {
            write!(f, ".{predictor}")?;
        }
        if let Some(job) = &self.job {
            write!(f, ".{job}")?;
        }
        Ok(())
    }
}

/// Why a text is none of our subjects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Another product's, another version's, or no topic of ours.
    #[error("`{0}` is no subject of {ROOT}")]
    Unknown(String),
    /// The topic takes another number of ids.
    #[error("`{0}` has too many or too few tokens for its topic")]
    Ids(String),
    /// A token is no id.
    #[error("{0}")]
    Id(#[from] IdError),
}

impl FromStr for Subject {
    type Err = SubjectError;
    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let unknown = || SubjectError::Unknown(text.to_owned());
        let rest = text.strip_prefix(ROOT).and_then(|r| r.strip_prefix('.')).ok_or_else(unknown)?;
        let tokens: Vec<&str> = rest.split('.').collect();
        let [cluster, noun, verb, ids @ ..] = tokens.as_slice() else { return Err(unknown()) };
        let topic = Topic::ALL
            .into_iter()
            .find(|topic| topic.token().split_once('.') == Some((noun, verb)))
            .ok_or_else(unknown)?;
        let (node, predictor, job) = match (topic.ids(), ids) {
            (Ids::None, []) => (None, None, None),
            (Ids::Node, [node]) => (Some(NodeId::new(node)?), None, None),
            (Ids::NodeJob, [node, job]) => (Some(NodeId::new(node)?), None, Some(JobId::new(job)?)),
            (Ids::PredictorJob, [predictor, job]) => {
                (None, Some(PredictorId::new(predictor)?), Some(JobId::new(job)?))
            }
            (Ids::None | Ids::Node | Ids::NodeJob | Ids::PredictorJob, _) => {
                return Err(SubjectError::Ids(text.to_owned()));
            }
        };
        Ok(Self { cluster: ClusterId::new(cluster)?, topic, node, predictor, job })
    }
}

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
    /// Key = `<predictor>.class.<gpu kind>.<class>` or `<predictor>.job.<job>`: what a predictor has
    /// learned, in a form of its own; nobody else reads it.
    Knowledge,
    /// Keys as [`PredictorKey`] has them: who serves, how each predictor does.
    Predictors,
    /// Keys [`BUDGET_SET`] and [`BUDGET_STATUS`]: what may be spent, what has been.
    Budget,
}

/// Where the budget that stands lies in [`Bucket::Budget`]: [`crate::messages::BudgetRecord`].
pub const BUDGET_SET: &str = "set";
/// Where what has been spent lies in [`Bucket::Budget`]: [`crate::messages::BudgetStatus`].
pub const BUDGET_STATUS: &str = "status";

impl Bucket {
    /// Every bucket there is.
    pub const ALL: [Self; 7] = [
        Self::Jobs,
        Self::Desired,
        Self::Actual,
        Self::Surfaces,
        Self::Knowledge,
        Self::Predictors,
        Self::Budget,
    ];

    /// Its last word.
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
        }
    }

    /// Its name on the server, as in `nats kv get wattle-v1-<cluster>-jobs <job>`.
    #[must_use]
    pub fn name(self, cluster: &ClusterId) -> String {
        format!("wattle-v1-{cluster}-{}", self.token())
    }
}

/// Who reports into [`Bucket::Actual`].
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
        let who = match self {
            Self::Launcher => "launcher",
            Self::Power => "power",
        };
        format!("{who}.{node}")
    }

    /// Who reports under `key`, and on which node.
    #[must_use]
    pub fn parse(key: &str) -> Option<(Self, NodeId)> {
        let (who, node) = key.split_once('.')?;
        let who = match who {
            "launcher" => Self::Launcher,
            "power" => Self::Power,
            _ => return None,
        };
        Some((who, NodeId::new(node).ok()?))
    }
}

/// What stands in [`Bucket::Predictors`]. The words before the dot keep the names of predictors
/// apart from everything else, whatever they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PredictorKey {
    /// Who serves: [`crate::messages::Champion`].
    Champion,
    /// How a predictor does: [`crate::messages::PredictorStatus`].
    Status(PredictorId),
    /// What its scores are made of, in a form of the registry's own.
    Scores(PredictorId),
    /// Which registry looks after the cluster and until when, in a form of the registry's own.
    Registry,
}

impl PredictorKey {
    /// What stands under `key`.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once('.') {
            None => match key {
                "champion" => Some(Self::Champion),
                "registry" => Some(Self::Registry),
                _ => None,
            },
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
            Self::Registry => f.write_str("registry"),
            Self::Status(predictor) => write!(f, "status.{predictor}"),
            Self::Scores(predictor) => write!(f, "scores.{predictor}"),
        }
    }
}

/// The JetStream streams beside the buckets' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamName {
    /// Closed windows ([`Topic::WindowClosed`]).
    Windows,
    /// The energy ledger ([`Topic::EnergyMetered`]).
    Ledger,
}

impl StreamName {
    /// Every stream there is.
    pub const ALL: [Self; 2] = [Self::Windows, Self::Ledger];

    /// Its name on the server.
    #[must_use]
    pub fn name(self, cluster: &ClusterId) -> String {
        let token = match self {
            Self::Windows => "windows",
            Self::Ledger => "ledger",
        };
        format!("wattle-v1-{cluster}-{token}")
    }

    /// The topic it stores.
    #[must_use]
    pub const fn topic(self) -> Topic {
        match self {
            Self::Windows => Topic::WindowClosed,
            Self::Ledger => Topic::EnergyMetered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_subject() -> impl Strategy<Value = Subject> {
        let id = "[A-Za-z0-9_-]{1,20}";
        (id, id, id, 0usize..Topic::ALL.len()).prop_map(|(cluster, first, job, at)| {
            let topic = Topic::ALL[at];
            let (has_node, has_predictor, has_job) = match topic.ids() {
                Ids::None => (false, false, false),
                Ids::Node => (true, false, false),
                Ids::NodeJob => (true, false, true),
                Ids::PredictorJob => (false, true, true),
            };
            Subject {
                cluster: ClusterId::new(&cluster).unwrap(),
                topic,
                node: has_node.then(|| NodeId::new(&first).unwrap()),
                predictor: has_predictor.then(|| PredictorId::new(&first).unwrap()),
                job: has_job.then(|| JobId::new(&job).unwrap()),
            }
        })
    }

    proptest! {
        #[test]
        fn parse_undoes_show(subject in any_subject()) {
            prop_assert_eq!(subject.to_string().parse::<Subject>(), Ok(subject));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = text.parse::<Subject>();
            let _ = format!("{ROOT}.{text}").parse::<Subject>();
        }
    }

    #[test]
    fn clusters_and_topics_keep_apart() {
        let (a, b) = (ClusterId::new("a").unwrap(), ClusterId::new("b").unwrap());
        for topic in Topic::ALL {
            assert_ne!(topic.pattern(&a), topic.pattern(&b));
        }
        assert!(matches!(
            "wattle.v2.a.gpu.sampled.n".parse::<Subject>(),
            Err(SubjectError::Unknown(_))
        ));
        assert!(matches!("wattle.v1.a.gpu.sampled".parse::<Subject>(), Err(SubjectError::Ids(_))));
        let node = NodeId::new("n0").unwrap();
        for who in [Reporter::Launcher, Reporter::Power] {
            assert_eq!(Reporter::parse(&who.key(&node)), Some((who, node.clone())));
        }
        let named = PredictorId::new("champion").unwrap();
        for key in [PredictorKey::Status(named.clone()), PredictorKey::Scores(named)] {
            assert_eq!(PredictorKey::parse(&key.to_string()), Some(key));
        }
        for key in [PredictorKey::Champion, PredictorKey::Registry] {
            assert_eq!(PredictorKey::parse(&key.to_string()), Some(key));
        }
        assert_eq!(PredictorKey::parse("physical"), None);
    }
}

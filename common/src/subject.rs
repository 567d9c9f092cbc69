//! All NATS names of Wattle: subjects, key-value buckets, keys and streams.
//!
//! A subject is `wattle.v1.<cluster>.<noun>.<participle>[.<node>[.<job>]]`; a predictor's surface has
//! `.<predictor>.<job>`, and a request of a person has `.<requester>.<user>` ([`Requester`]). Subjects are built and parsed only here. Each contains its cluster, so
//! clusters on one server are separate.

mod payloads;
mod requester;
pub mod roles;
mod storage;

use std::fmt;
use std::str::FromStr;

use crate::id::{ClusterId, IdError, JobId, NodeId, PredictorId, UserId};

pub use requester::{Rank, Requester};
pub use storage::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, Bucket, EVENT_JOBS, EVENTS, EXPECTED_STATUS,
    FEEDERS_STATUS, GRID_STATUS, LeaseKey, PredictorKey, Reporter, STORE_RESTORED, StreamName,
    TWIN_OPEN, TWIN_STATUS, WHAT_IF, backed_up,
};

/// The first two tokens of every subject: the product and the version of its messages.
pub const ROOT: &str = "wattle.v1";

/// The operator in whose name the OpenADR service sends its requests. No person has it.
pub const OPENADR_REQUESTER: &str = "openadr";
/// The NATS service name that every predictor registers under.
pub const PREDICTOR_SERVICE: &str = "wattle-predictor";
/// The key of that service's metadata that holds the predictor's own name.
pub const PREDICTOR_NAME_KEY: &str = "predictor";

/// A subject without its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Telemetry batches of a node: [`crate::messages::TelemetryBatch`].
    GpuSampled,
    /// One second of a node's readings: [`crate::messages::NodeSummary`].
    NodeSummarized,
    /// A closed window of a job on a node: [`crate::messages::JobWindow`].
    WindowClosed,
    /// Training progress of a job: [`crate::messages::JobProgressed`].
    JobProgressed,
    /// Measured energy of a node: [`crate::messages::LedgerEntry`].
    EnergyMetered,
    /// Power of the site in a minute: [`crate::messages::SiteMinute`].
    SiteMetered,
    /// Request: submit a job: [`crate::messages::SubmitJob`].
    JobSubmitted,
    /// Request: cancel a job: [`crate::messages::CancelJob`].
    JobCancelled,
    /// A predictor's proposed surface of a job: [`crate::messages::Surface`].
    SurfaceProposed,
    /// Request: make a predictor the champion: [`crate::messages::PromotePredictor`].
    PredictorPromoted,
    /// Request: put a budget in force: [`crate::messages::SetBudget`].
    BudgetSet,
    /// Request: announce or change a grid event: [`crate::messages::EventRequest`].
    EventSet,
    /// Request: what can be delivered during a grid event: [`crate::messages::PlanEvent`].
    EventPlanned,
    /// Request: the last summary of a node: [`crate::messages::ReadSummary`].
    SummaryRequested,
    /// Request: a part of a job's output on a node: [`crate::messages::ReadOutput`].
    OutputRequested,
    /// Request: the records of jobs: [`crate::messages::ReadJobs`].
    JobRequested,
    /// An order of a person and its outcome: [`crate::messages::OrderRecord`].
    OrderRecorded,
}

/// The ids after a topic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    None,
    Node,
    NodeJob,
    PredictorJob,
    Requester,
    NodeRequester,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 17] = [
        Self::GpuSampled,
        Self::NodeSummarized,
        Self::WindowClosed,
        Self::JobProgressed,
        Self::EnergyMetered,
        Self::SiteMetered,
        Self::JobSubmitted,
        Self::JobCancelled,
        Self::SurfaceProposed,
        Self::PredictorPromoted,
        Self::BudgetSet,
        Self::EventSet,
        Self::EventPlanned,
        Self::SummaryRequested,
        Self::OutputRequested,
        Self::JobRequested,
        Self::OrderRecorded,
    ];

    /// Its noun and participle, as in the subject.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::GpuSampled => "gpu.sampled",
            Self::NodeSummarized => "node.summarized",
            Self::WindowClosed => "window.closed",
            Self::JobProgressed => "job.progressed",
            Self::EnergyMetered => "energy.metered",
            Self::SiteMetered => "site.metered",
            Self::JobSubmitted => "job.submitted",
            Self::JobCancelled => "job.cancelled",
            Self::SurfaceProposed => "surface.proposed",
            Self::PredictorPromoted => "predictor.promoted",
            Self::BudgetSet => "budget.set",
            Self::EventSet => "event.set",
            Self::EventPlanned => "event.planned",
            Self::SummaryRequested => "summary.requested",
            Self::OutputRequested => "output.requested",
            Self::JobRequested => "job.requested",
            Self::OrderRecorded => "order.recorded",
        }
    }

    const fn ids(self) -> Ids {
        match self {
            Self::GpuSampled
            | Self::NodeSummarized
            | Self::EnergyMetered
            | Self::SummaryRequested => Ids::Node,
            Self::WindowClosed | Self::JobProgressed => Ids::NodeJob,
            Self::SurfaceProposed => Ids::PredictorJob,
            Self::JobSubmitted
            | Self::JobCancelled
            | Self::PredictorPromoted
            | Self::BudgetSet
            | Self::EventSet
            | Self::EventPlanned
            | Self::JobRequested => Ids::Requester,
            Self::OutputRequested => Ids::NodeRequester,
            Self::OrderRecorded | Self::SiteMetered => Ids::None,
        }
    }

    /// The subject to subscribe to for every message of this topic in `cluster`.
    #[must_use]
    pub fn pattern(self, cluster: &ClusterId) -> String {
        let ids = match self.ids() {
            Ids::None => "",
            Ids::Node => ".*",
            Ids::NodeJob | Ids::PredictorJob | Ids::Requester => ".*.*",
            Ids::NodeRequester => ".*.*.*",
        };
        format!("{ROOT}.{cluster}.{}{ids}", self.token())
    }

    /// The subject's documented form: `wattle.v1.<cluster>.gpu.sampled.<node>`.
    #[must_use]
    pub fn form(self) -> String {
        let ids = match self.ids() {
            Ids::None => "",
            Ids::Node => ".<node>",
            Ids::NodeJob => ".<node>.<job>",
            Ids::PredictorJob => ".<predictor>.<job>",
            Ids::Requester => ".<requester>.<user>",
            Ids::NodeRequester => ".<node>.<requester>.<user>",
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
    requester: Option<Requester>,
}

impl Subject {
    /// The subject of a request of `requester` to the placer or registry of `cluster`.
    #[must_use]
    pub const fn request(cluster: ClusterId, topic: RequestTopic, requester: Requester) -> Self {
        let topic = match topic {
            RequestTopic::JobSubmitted => Topic::JobSubmitted,
            RequestTopic::JobCancelled => Topic::JobCancelled,
            RequestTopic::PredictorPromoted => Topic::PredictorPromoted,
            RequestTopic::BudgetSet => Topic::BudgetSet,
            RequestTopic::EventSet => Topic::EventSet,
            RequestTopic::EventPlanned => Topic::EventPlanned,
            RequestTopic::JobRequested => Topic::JobRequested,
        };
        let requester = Some(requester);
        Self { cluster, topic, node: None, predictor: None, job: None, requester }
    }
    /// The subject of a request of `requester` for the output of a job on `node`.
    #[must_use]
    pub const fn of_output(cluster: ClusterId, node: NodeId, requester: Requester) -> Self {
        Self {
            cluster,
            topic: Topic::OutputRequested,
            node: Some(node),
            predictor: None,
            job: None,
            requester: Some(requester),
        }
    }
    /// The pattern of the requests for output on `node`.
    #[must_use]
    pub fn outputs_of(cluster: &ClusterId, node: &NodeId) -> String {
        format!("{ROOT}.{cluster}.{}.{node}.*.*", Topic::OutputRequested.token())
    }
    /// The subject of the records of orders.
    #[must_use]
    pub const fn of_orders(cluster: ClusterId) -> Self {
        let topic = Topic::OrderRecorded;
        Self { cluster, topic, node: None, predictor: None, job: None, requester: None }
    }
    /// The subject of the power of the site by minute.
    #[must_use]
    pub const fn of_site(cluster: ClusterId) -> Self {
        let topic = Topic::SiteMetered;
        Self { cluster, topic, node: None, predictor: None, job: None, requester: None }
    }
    /// The subject of a message about a node.
    #[must_use]
    pub const fn of_node(cluster: ClusterId, topic: NodeTopic, node: NodeId) -> Self {
        let topic = match topic {
            NodeTopic::GpuSampled => Topic::GpuSampled,
            NodeTopic::NodeSummarized => Topic::NodeSummarized,
            NodeTopic::EnergyMetered => Topic::EnergyMetered,
            NodeTopic::SummaryRequested => Topic::SummaryRequested,
        };
        Self { cluster, topic, node: Some(node), predictor: None, job: None, requester: None }
    }
    /// The subject of a message about a job on a node.
    #[must_use]
    pub const fn of_job(cluster: ClusterId, topic: JobTopic, node: NodeId, job: JobId) -> Self {
        let topic = match topic {
            JobTopic::WindowClosed => Topic::WindowClosed,
            JobTopic::JobProgressed => Topic::JobProgressed,
        };
        Self { cluster, topic, node: Some(node), predictor: None, job: Some(job), requester: None }
    }
    /// The subject of a surface that `predictor` proposes.
    #[must_use]
    pub const fn of_proposal(cluster: ClusterId, predictor: PredictorId, job: JobId) -> Self {
        let topic = Topic::SurfaceProposed;
        Self {
            cluster,
            topic,
            node: None,
            predictor: Some(predictor),
            job: Some(job),
            requester: None,
        }
    }
    /// The pattern of the windows of one job on all nodes.
    #[must_use]
    pub fn windows_of(cluster: &ClusterId, job: &JobId) -> String {
        format!("{ROOT}.{cluster}.{}.*.{job}", Topic::WindowClosed.token())
    }
    /// Its topic.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        self.topic
    }
    /// Its cluster.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterId {
        &self.cluster
    }
    /// Its node.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeId> {
        self.node.as_ref()
    }
    /// Its predictor.
    #[must_use]
    pub const fn predictor(&self) -> Option<&PredictorId> {
        self.predictor.as_ref()
    }
    /// Its job.
    #[must_use]
    pub const fn job(&self) -> Option<&JobId> {
        self.job.as_ref()
    }
    /// The person who sent it, as the server proves: a client may publish only on subjects of its own
    /// identity.
    #[must_use]
    pub const fn requester(&self) -> Option<&Requester> {
        self.requester.as_ref()
    }
    /// The pattern of all subjects of `cluster`.
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
    /// [`Topic::EventSet`]
    EventSet,
    /// [`Topic::EventPlanned`]
    EventPlanned,
    /// [`Topic::JobRequested`]
    JobRequested,
}

/// Topics with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTopic {
    /// [`Topic::GpuSampled`]
    GpuSampled,
    /// [`Topic::NodeSummarized`]
    NodeSummarized,
    /// [`Topic::EnergyMetered`]
    EnergyMetered,
    /// [`Topic::SummaryRequested`]
    SummaryRequested,
}

/// Topics with a node and a job.
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
        if let Some(requester) = &self.requester {
            write!(f, ".{requester}")?;
        }
        Ok(())
    }
}

/// Why a text is not a subject of Wattle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Another product or version, or an unknown topic.
    #[error("unknown subject `{0}`: expected {ROOT}.<cluster>.<topic>")]
    Unknown(String),
    /// Wrong number of ids for the topic.
    #[error("subject `{0}` has the wrong number of ids for its topic")]
    Ids(String),
    /// An unknown rank of a requester.
    #[error("subject `{0}` has no requester: expected user, operator, monitor or local")]
    Requester(String),
    /// An invalid id.
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
        let cluster = ClusterId::new(cluster)?;
        let mut subject =
            Self { cluster, topic, node: None, predictor: None, job: None, requester: None };
        let wrong = || SubjectError::Ids(text.to_owned());
        let requester = |rank: &str, user| {
            let rank = Rank::parse(rank).ok_or_else(|| SubjectError::Requester(text.to_owned()))?;
            Ok::<_, SubjectError>(Requester { rank, user: UserId::new(user)? })
        };
        match (topic.ids(), ids) {
            (Ids::None, []) => {}
            (Ids::Node, [node]) => subject.node = Some(NodeId::new(node)?),
            (Ids::NodeJob, [node, job]) => {
                subject.node = Some(NodeId::new(node)?);
                subject.job = Some(JobId::new(job)?);
            }
            (Ids::PredictorJob, [predictor, job]) => {
                subject.predictor = Some(PredictorId::new(predictor)?);
                subject.job = Some(JobId::new(job)?);
            }
            (Ids::Requester, [rank, user]) => subject.requester = Some(requester(rank, user)?),
            (Ids::NodeRequester, [node, rank, user]) => {
                subject.node = Some(NodeId::new(node)?);
                subject.requester = Some(requester(rank, user)?);
            }
            (
                Ids::None
                | Ids::Node
                | Ids::NodeJob
                | Ids::PredictorJob
                | Ids::Requester
                | Ids::NodeRequester,
                _,
            ) => return Err(wrong()),
        }
        Ok(subject)
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
            let (has_node, has_predictor, has_job, has_requester) = match topic.ids() {
                Ids::None => (false, false, false, false),
                Ids::Node => (true, false, false, false),
                Ids::NodeJob => (true, false, true, false),
                Ids::PredictorJob => (false, true, true, false),
                Ids::Requester => (false, false, false, true),
                Ids::NodeRequester => (true, false, false, true),
            };
            let requester = Requester { rank: Rank::ALL[at % 4], user: UserId::new(&job).unwrap() };
            Subject {
                cluster: ClusterId::new(&cluster).unwrap(),
                topic,
                node: has_node.then(|| NodeId::new(&first).unwrap()),
                predictor: has_predictor.then(|| PredictorId::new(&first).unwrap()),
                job: has_job.then(|| JobId::new(&job).unwrap()),
                requester: has_requester.then_some(requester),
            }
        })
    }

    proptest! {
        #[test]
        fn display_round_trips(subject in any_subject()) {
            prop_assert_eq!(subject.to_string().parse::<Subject>(), Ok(subject));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,80}") {
            let _ = text.parse::<Subject>();
            let _ = format!("{ROOT}.{text}").parse::<Subject>();
        }
    }

    #[test]
    fn names_of_clusters_and_keys_are_distinct() {
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
        for reporter in [Reporter::Launcher, Reporter::Power] {
            assert_eq!(Reporter::parse(&reporter.key(&node)), Some((reporter, node.clone())));
        }
        let named = PredictorId::new("champion").unwrap();
        for key in [PredictorKey::Status(named.clone()), PredictorKey::Scores(named)] {
            assert_eq!(PredictorKey::parse(&key.to_string()), Some(key));
        }
        let champion = PredictorKey::Champion;
        assert_eq!(PredictorKey::parse(&champion.to_string()), Some(champion));
        assert_eq!(PredictorKey::parse("physical"), None);
        let name = PredictorId::new("placer").unwrap();
        for key in [
            LeaseKey::Placer,
            LeaseKey::Registry,
            LeaseKey::OpenAdr,
            LeaseKey::Predictor(name),
            LeaseKey::Profiler(node.clone()),
            LeaseKey::Power(node),
        ] {
            assert_eq!(LeaseKey::parse(&key.to_string()), Some(key));
        }
    }
}

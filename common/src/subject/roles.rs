//! The identities of a cluster and what each may publish and subscribe to: the role table.
//!
//! `wattle keys` generates the NATS server's configuration from this table, and the tests try every
//! role on every subject and key. Four rules shape it:
//! * A role publishes only what it is the source of, on subjects that contain its own name.
//! * A request is served by one role; no other may subscribe to its subject, so that no request is
//!   answered or swallowed by another process.
//! * Each identity has its own prefix of reply subjects ([`inbox`]).
//! * The server publishes replies of JetStream to any subject that a client names, with the payload of
//!   stored messages. Therefore people without the rank of an operator have no access to JetStream, and
//!   a node has no raw access to values that it writes.

use std::fmt;
use std::str::FromStr;

use super::{
    Bucket, EVENTS, LeaseKey, OPENADR_REQUESTER, PREDICTOR_SERVICE, Rank, Reporter, Requester,
    StreamName, Subject, Topic, backed_up,
};
use crate::id::{ClusterId, NodeId, PredictorId, UserId};

/// An identity: one key of `wattle keys`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The placers of the cluster.
    Placer,
    /// The registries of the cluster.
    Registry,
    /// One predictor.
    Predictor(PredictorId),
    /// Profiler, launcher and power agent of one node.
    Node(NodeId),
    /// The service that connects the cluster with Slurm.
    Slurm,
    /// The service that follows the events of an OpenADR server.
    OpenAdr,
    /// The service of the web page.
    Web,
    /// A person who submits jobs.
    User(UserId),
    /// A person who operates the cluster.
    Operator(UserId),
    /// A person or program that observes the cluster.
    Monitor(UserId),
}

/// Why a text is not a [`Role`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid role `{0}`: expected placer, registry, slurm, openadr, web, predictor NAME, node NAME, \
     user NAME, operator NAME or monitor NAME; a NAME has 1 to 64 letters, digits, - and _, and the operator openadr is \
     the service"
)]
pub struct RoleError(String);

impl Role {
    /// The role `kind`, with `name` where it has one.
    ///
    /// # Errors
    /// If the kind is unknown, or the name is missing, superfluous or not an id.
    pub fn new(kind: &str, name: Option<&str>) -> Result<Self, RoleError> {
        let wrong = || RoleError([kind, name.unwrap_or_default()].join(" ").trim().to_owned());
        let user = |name: &str| UserId::new(name).map_err(|_| wrong());
        match (kind, name) {
            ("placer", None) => Ok(Self::Placer),
            ("registry", None) => Ok(Self::Registry),
            ("slurm", None) => Ok(Self::Slurm),
            ("openadr", None) => Ok(Self::OpenAdr),
            ("web", None) => Ok(Self::Web),
            ("predictor", Some(name)) => {
                PredictorId::new(name).map(Self::Predictor).map_err(|_| wrong())
            }
            ("node", Some(name)) => NodeId::new(name).map(Self::Node).map_err(|_| wrong()),
            ("user", Some(name)) => user(name).map(Self::User),
            ("operator", Some(name)) if name != OPENADR_REQUESTER => user(name).map(Self::Operator),
            ("monitor", Some(name)) => user(name).map(Self::Monitor),
            _ => Err(wrong()),
        }
    }

    /// Its kind and name.
    #[must_use]
    pub fn parts(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Placer => ("placer", None),
            Self::Registry => ("registry", None),
            Self::Slurm => ("slurm", None),
            Self::OpenAdr => ("openadr", None),
            Self::Web => ("web", None),
            Self::Predictor(name) => ("predictor", Some(name.as_str())),
            Self::Node(name) => ("node", Some(name.as_str())),
            Self::User(name) => ("user", Some(name.as_str())),
            Self::Operator(name) => ("operator", Some(name.as_str())),
            Self::Monitor(name) => ("monitor", Some(name.as_str())),
        }
    }

    /// The name of its key file, without extension: `node-n0`.
    #[must_use]
    pub fn file_stem(&self) -> String {
        match self.parts() {
            (kind, None) => kind.to_owned(),
            (kind, Some(name)) => format!("{kind}-{name}"),
        }
    }

    /// The person, for roles of people.
    #[must_use]
    pub fn requester(&self) -> Option<Requester> {
        let (rank, user) = match self {
            Self::User(user) => (Rank::User, user),
            Self::Operator(user) => (Rank::Operator, user),
            Self::Monitor(user) => (Rank::Monitor, user),
            Self::Placer
            | Self::Registry
            | Self::Predictor(_)
            | Self::Node(_)
            | Self::Slurm
            | Self::OpenAdr
            | Self::Web => return None,
        };
        Some(Requester { rank, user: user.clone() })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (kind, None) => f.write_str(kind),
            (kind, Some(name)) => write!(f, "{kind} {name}"),
        }
    }
}

impl FromStr for Role {
    type Err = RoleError;
    /// Parses `placer` or `node n0`.
    fn from_str(text: &str) -> Result<Self, RoleError> {
        let mut words = text.split_whitespace();
        let role = Self::new(words.next().unwrap_or_default(), words.next());
        if words.next().is_some() { Err(RoleError(text.to_owned())) } else { role }
    }
}

/// The prefix of the reply subjects of the identity with this public key.
#[must_use]
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// The services that must not run while a backup is restored, and their leases.
pub const RESTORE_WITHOUT: [(&str, LeaseKey); 2] =
    [("wattle-placer", LeaseKey::Placer), ("wattle-registry", LeaseKey::Registry)];

/// The topics that a monitor may subscribe to.
pub const TELEMETRY: [Topic; 6] = [
    Topic::GpuSampled,
    Topic::NodeSummarized,
    Topic::WindowClosed,
    Topic::JobProgressed,
    Topic::EnergyMetered,
    Topic::SurfaceProposed,
];

/// What an identity may do on the NATS server; everything else is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects that it may publish to.
    pub publish: Vec<String>,
    /// Subjects that it may subscribe to, also in a queue group.
    pub subscribe: Vec<String>,
    /// Exceptions from `subscribe`, as `SUBJECT` or `SUBJECT QUEUE`.
    pub subscribe_deny: Vec<String>,
}

/// The permissions of the identity `role` with this public key.
#[must_use]
pub fn permissions(role: &Role, cluster: &ClusterId, public_key: &str) -> Permissions {
    let mut grant = Grant { cluster, permissions: Permissions::default() };
    grant.subscribe(format!("{}.>", inbox(public_key)));
    match role {
        Role::Placer => grant.placer(),
        Role::Registry => grant.registry(),
        Role::Predictor(name) => grant.predictor(name),
        Role::Node(node) => grant.node(node),
        Role::Slurm => grant.slurm(),
        Role::OpenAdr => grant.openadr(),
        Role::Web => grant.web(),
        Role::User(_) => {}
        Role::Operator(_) => grant.operator(),
        Role::Monitor(_) => grant.monitor(),
    }
    if let Some(requester) = role.requester() {
        grant.person(&requester);
    }
    grant.permissions
}

/// Builds [`Permissions`].
struct Grant<'a> {
    cluster: &'a ClusterId,
    permissions: Permissions,
}

impl Grant<'_> {
    fn publish(&mut self, subject: impl Into<String>) {
        self.permissions.publish.push(subject.into());
    }

    fn subscribe(&mut self, subject: impl Into<String>) {
        self.permissions.subscribe.push(subject.into());
    }

    /// The subject of a topic with these ids.
    fn topic(&self, topic: Topic, ids: &str) -> String {
        format!("{}.{}.{}{ids}", super::ROOT, self.cluster, topic.token())
    }

    /// Serves requests: discovery under this service name, and replies.
    fn service(&mut self, name: &str) {
        for verb in ["PING", "INFO", "STATS"] {
            self.subscribe(format!("$SRV.{verb}"));
            self.subscribe(format!("$SRV.{verb}.{name}"));
            self.subscribe(format!("$SRV.{verb}.{name}.*"));
        }
        if !self.permissions.publish.iter().any(|subject| subject == "_INBOX.>") {
            self.publish("_INBOX.>");
        }
    }

    /// Serves the requests of a topic.
    fn serve(&mut self, topic: Topic) {
        self.subscribe(topic.pattern(self.cluster));
    }

    /// Finds a stream.
    fn find(&mut self, stream: &str) {
        self.publish(format!("$JS.API.STREAM.INFO.{stream}"));
    }

    /// Reads the messages of a stream whose subject is `filter`, by consumers without a stored
    /// position.
    fn read(&mut self, stream: &str, filter: &str) {
        self.read_only(stream, filter);
        self.publish(format!("$JS.API.CONSUMER.DELETE.{stream}.*"));
    }

    /// As [`Self::read`], without the right to delete consumers, which may be another process's: the server
    /// deletes the reader's own ones some time after their use.
    fn read_only(&mut self, stream: &str, filter: &str) {
        self.publish(format!("$JS.API.CONSUMER.CREATE.{stream}.*.{filter}"));
        self.publish(format!("$JS.API.CONSUMER.INFO.{stream}.*"));
        self.publish(format!("$JS.FC.{stream}.>"));
    }

    /// Reads and watches the keys of a bucket.
    fn watch(&mut self, bucket: Bucket, keys: &str) {
        let (stream, filter) = (bucket.stream(self.cluster), bucket.subject(self.cluster, keys));
        self.find(&stream);
        self.read(&stream, &filter);
        self.publish(format!("$JS.API.DIRECT.GET.{stream}.{filter}"));
    }

    /// Writes the keys of a bucket.
    fn write(&mut self, bucket: Bucket, keys: &str) {
        self.publish(bucket.subject(self.cluster, keys));
    }

    /// Competes for the lease of a service. It is read through a JSON envelope: see the module's last
    /// rule.
    fn lease(&mut self, key: &LeaseKey) {
        let (stream, key) = (Bucket::Leases.stream(self.cluster), key.to_string());
        self.find(&stream);
        self.publish(format!("$JS.API.STREAM.MSG.GET.{stream}"));
        self.write(Bucket::Leases, &key);
        self.subscribe(Bucket::Leases.subject(self.cluster, &key));
    }

    /// Consumes a stream with a stored position.
    fn consume(&mut self, stream: StreamName, durable: &str) {
        let stream = stream.name(self.cluster);
        self.find(&stream);
        for verb in ["CREATE", "INFO", "MSG.NEXT", "DELETE"] {
            self.publish(format!("$JS.API.CONSUMER.{verb}.{stream}.{durable}"));
        }
        self.publish(format!("$JS.ACK.{stream}.{durable}.>"));
    }

    /// Stores messages in a stream.
    fn store(&mut self, stream: StreamName, ids: &str) {
        self.find(&stream.name(self.cluster));
        self.publish(self.topic(stream.topic(), ids));
    }

    /// Creates a stream, and changes the number of its copies.
    fn create(&mut self, stream: &str) {
        self.publish(format!("$JS.API.STREAM.CREATE.{stream}"));
        self.publish(format!("$JS.API.STREAM.UPDATE.{stream}"));
    }

    /// Reads copies of all streams, for backups.
    fn back_up(&mut self) {
        for stream in backed_up(self.cluster) {
            self.find(&stream);
            self.publish(format!("$JS.API.STREAM.SNAPSHOT.{stream}"));
            self.publish(format!("$JS.SNAPSHOT.ACK.{stream}.>"));
        }
    }

    /// Restores streams that do not exist from a backup, while no placer and no registry answers.
    fn restore(&mut self) {
        for stream in backed_up(self.cluster) {
            self.publish(format!("$JS.API.STREAM.RESTORE.{stream}"));
            self.publish(format!("$JS.SNAPSHOT.RESTORE.{stream}.*"));
        }
        for (service, _) in RESTORE_WITHOUT {
            self.publish(format!("$SRV.PING.{service}"));
        }
    }

    fn placer(&mut self) {
        self.service("wattle-placer");
        self.restore();
        // The placer creates what all others use.
        for bucket in Bucket::ALL {
            let stream = bucket.stream(self.cluster);
            self.find(&stream);
            self.create(&stream);
        }
        for stream in StreamName::ALL {
            let stream = stream.name(self.cluster);
            self.find(&stream);
            self.create(&stream);
        }
        for bucket in [Bucket::Jobs, Bucket::Desired, Bucket::Budget] {
            self.watch(bucket, ">");
            self.write(bucket, ">");
        }
        self.watch(Bucket::Actual, ">");
        self.watch(Bucket::Surfaces, ">");
        self.consume(StreamName::Ledger, "wattle-placer");
        self.store(StreamName::Orders, "");
        self.store(StreamName::Site, "");
        // After a takeover it continues the power of the site by minute.
        for stream in [StreamName::Ledger, StreamName::Site] {
            let name = stream.name(self.cluster);
            self.read_only(&name, &stream.topic().pattern(self.cluster));
        }
        self.lease(&LeaseKey::Placer);
        for topic in [
            Topic::JobSubmitted,
            Topic::JobCancelled,
            Topic::BudgetSet,
            Topic::EventSet,
            Topic::EventPlanned,
            Topic::JobRequested,
        ] {
            self.serve(topic);
        }
        self.subscribe(Topic::JobProgressed.pattern(self.cluster));
        self.subscribe(Topic::NodeSummarized.pattern(self.cluster));
    }

    fn registry(&mut self) {
        self.service("wattle-registry");
        for bucket in [Bucket::Surfaces, Bucket::Predictors] {
            self.watch(bucket, ">");
            self.write(bucket, ">");
        }
        self.watch(Bucket::Jobs, ">");
        self.lease(&LeaseKey::Registry);
        self.store(StreamName::Orders, "");
        self.serve(Topic::PredictorPromoted);
        self.subscribe(Topic::WindowClosed.pattern(self.cluster));
        self.subscribe(Topic::SurfaceProposed.pattern(self.cluster));
        self.publish(format!("$SRV.PING.{PREDICTOR_SERVICE}"));
    }

    fn predictor(&mut self, name: &PredictorId) {
        self.service(PREDICTOR_SERVICE);
        let own = format!("{name}.>");
        self.watch(Bucket::Knowledge, &own);
        self.write(Bucket::Knowledge, &own);
        self.lease(&LeaseKey::Predictor(name.clone()));
        for bucket in [Bucket::Jobs, Bucket::Predictors, Bucket::Actual] {
            self.watch(bucket, ">");
        }
        self.consume(StreamName::Windows, &format!("predictor-{name}"));
        self.publish(self.topic(Topic::SurfaceProposed, &format!(".{name}.*")));
    }

    fn node(&mut self, node: &NodeId) {
        for name in ["wattle-profiler", "wattle-launcher", "wattle-power-agent"] {
            self.service(name);
        }
        self.watch(Bucket::Desired, node.as_str());
        self.watch(Bucket::Jobs, ">");
        self.lease(&LeaseKey::Profiler(node.clone()));
        self.lease(&LeaseKey::Power(node.clone()));
        // Own reports are read through a JSON envelope: see the module's last rule.
        let reports = Bucket::Actual.stream(self.cluster);
        self.find(&reports);
        self.publish(format!("$JS.API.STREAM.MSG.GET.{reports}"));
        for reporter in [Reporter::Launcher, Reporter::Power] {
            let key = reporter.key(node);
            self.write(Bucket::Actual, &key);
            self.subscribe(Bucket::Actual.subject(self.cluster, &key));
        }
        for topic in [Topic::GpuSampled, Topic::NodeSummarized] {
            self.publish(self.topic(topic, &format!(".{node}")));
        }
        self.publish(self.topic(Topic::JobProgressed, &format!(".{node}.*")));
        self.store(StreamName::Windows, &format!(".{node}.*"));
        self.store(StreamName::Ledger, &format!(".{node}"));
        self.subscribe(self.topic(Topic::SummaryRequested, &format!(".{node}")));
        self.subscribe(Subject::outputs_of(self.cluster, node));
    }

    /// Follows the orders of all nodes, reports in place of their launchers, and submits the jobs of Slurm's
    /// users in their names: Slurm has proven their identities.
    fn slurm(&mut self) {
        self.service("wattle-slurm");
        self.watch(Bucket::Desired, ">");
        self.watch(Bucket::Jobs, ">");
        self.lease(&LeaseKey::Slurm);
        self.find(&Bucket::Actual.stream(self.cluster));
        self.write(Bucket::Actual, "launcher.*");
        for topic in [Topic::JobSubmitted, Topic::JobCancelled] {
            self.publish(self.topic(topic, &format!(".{}.*", Rank::User.as_str())));
        }
    }

    /// Announces the events of an OpenADR server in the name of an operator of its own, reads their records, and the
    /// power of the site for its reports.
    fn openadr(&mut self) {
        self.service("wattle-openadr");
        self.watch(Bucket::Budget, EVENTS);
        self.lease(&LeaseKey::OpenAdr);
        let site = StreamName::Site.name(self.cluster);
        self.find(&site);
        self.read_only(&site, &StreamName::Site.topic().pattern(self.cluster));
        let requester = format!(".{}.{OPENADR_REQUESTER}", Rank::Operator.as_str());
        self.publish(self.topic(Topic::EventSet, &requester));
    }

    /// Reads what the pages show, and writes nothing.
    fn web(&mut self) {
        self.service("wattle-web");
        for bucket in [
            Bucket::Jobs,
            Bucket::Actual,
            Bucket::Desired,
            Bucket::Budget,
            Bucket::Predictors,
            Bucket::Leases,
            Bucket::Surfaces,
        ] {
            self.watch(bucket, ">");
        }
        for stream in [StreamName::Ledger, StreamName::Windows, StreamName::Site] {
            let name = stream.name(self.cluster);
            self.find(&name);
            self.read_only(&name, &stream.topic().pattern(self.cluster));
        }
        for topic in [Topic::NodeSummarized, Topic::EnergyMetered] {
            self.subscribe(topic.pattern(self.cluster));
            self.without_queue_groups(topic.pattern(self.cluster));
        }
        self.publish("$SRV.PING");
    }

    /// The requests of every person.
    fn person(&mut self, requester: &Requester) {
        self.publish(self.topic(Topic::JobRequested, &format!(".{requester}")));
        if requester.rank == Rank::Monitor {
            return;
        }
        for topic in [Topic::JobSubmitted, Topic::JobCancelled] {
            self.publish(self.topic(topic, &format!(".{requester}")));
        }
        self.publish(self.topic(Topic::OutputRequested, &format!(".*.{requester}")));
        if requester.rank == Rank::Operator {
            let operates =
                [Topic::BudgetSet, Topic::EventSet, Topic::EventPlanned, Topic::PredictorPromoted];
            for topic in operates {
                self.publish(self.topic(topic, &format!(".{requester}")));
            }
        }
    }

    fn operator(&mut self) {
        self.back_up();
        for bucket in Bucket::ALL {
            self.watch(bucket, ">");
            self.subscribe(bucket.subject(self.cluster, ">"));
            self.without_queue_groups(bucket.subject(self.cluster, ">"));
        }
        for stream in StreamName::ALL {
            let name = stream.name(self.cluster);
            self.find(&name);
            self.read(&name, &stream.topic().pattern(self.cluster));
            self.publish(format!("$JS.API.STREAM.MSG.GET.{name}"));
        }
        // NATS's own tools list everything, also the storage of other clusters.
        for verb in ["INFO", "STREAM.LIST", "STREAM.NAMES"] {
            self.publish(format!("$JS.API.{verb}"));
        }
        self.publish(self.topic(Topic::SummaryRequested, ".*"));
        self.publish("$SRV.>");
        self.subscribe(Subject::everything(self.cluster));
        self.without_queue_groups(Subject::everything(self.cluster));
    }

    fn monitor(&mut self) {
        for topic in TELEMETRY {
            self.subscribe(topic.pattern(self.cluster));
            self.without_queue_groups(topic.pattern(self.cluster));
        }
        self.publish(self.topic(Topic::SummaryRequested, ".*"));
    }

    /// Only plain subscriptions, which receive copies.
    fn without_queue_groups(&mut self, pattern: String) {
        self.permissions.subscribe_deny.push(format!("{pattern} >"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: [&str; 10] = [
        "placer",
        "registry",
        "slurm",
        "openadr",
        "web",
        "predictor a",
        "node n0",
        "user ada",
        "operator b",
        "monitor m",
    ];

    #[test]
    fn roles_round_trip() {
        for text in ROLES {
            assert_eq!(text.parse::<Role>().map(|role| role.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "placer x",
            "node",
            "node a.b",
            "root x",
            "user a b",
            "user *",
            "user >",
            "operator openadr",
        ] {
            assert!(text.parse::<Role>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_services_of_the_cluster_write_orders_and_only_users_lack_jetstream() {
        let cluster = ClusterId::new("c").unwrap();
        let of = |text: &str| permissions(&text.parse().unwrap(), &cluster, "KEY");
        for text in ROLES.into_iter().filter(|text| *text != "placer") {
            let publish = of(text).publish;
            let desired = Bucket::Desired.subject(&cluster, "");
            assert!(!publish.iter().any(|subject| subject.starts_with(&desired)), "{text}");
            let people = matches!(text.split(' ').next(), Some("user" | "monitor"));
            let jetstream = publish.iter().any(|subject| subject.starts_with('$'));
            assert_eq!(jetstream, !people, "{text}");
        }
    }
}

//! Joins the live placer with the bus: requests, reports and surfaces in, records and orders out.
//!
//! One loop, one writer. Actions are carried out strictly in their order, each write acknowledged
//! before the next begins; while the bus is away they wait, and the machine is told afterwards that
//! silence meant nothing. Every write names the revision it replaces, so a second placer for the
//! same cluster is noticed at once instead of two of them overwriting each other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, BudgetStatus, CancelJob, JobProgressed, LaunchReport, LedgerEntry,
    PowerReport, Reply, SetBudget, SubmitJob, Surface,
};
use wattle_common::subject::{
    BUDGET_SET, BUDGET_STATUS, Bucket, Reporter, RequestTopic, StreamName, Subject, Topic,
};
use wattle_common::{Machine, NodeId, Timestamp, codec};
use wattle_runtime::bus::{
    Bus, BusError, Change, Consumer, ExclusiveBucket, ExclusiveError, Request, Requests, Service,
    Stored, StoredDelivery, Subscription, Watch,
};
use wattle_runtime::shell::{Shutdown, chain};
use wattle_runtime::{clock, command};

use crate::live::{Action, Event, PersistedState, Placer, RequestNumber};
use crate::{Config, Policy, UnknownPolicy};

/// How long to wait before the bus is tried again: wall time.
const RETRY: Duration = Duration::from_millis(250);

/// Longest time, wall, that a wake command may take; the node itself may take `sleep.wake_timeout_s`.
const WAKE_WITHIN: Duration = Duration::from_secs(60);
/// Wake commands whose ends wait to be heard.
const WOKEN_MAX: usize = 64;

/// Why the placer cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The bus refuses it.
    #[error("the bus cannot be used")]
    Bus(#[from] BusError),
    /// An unknown policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// State cannot be stored; another writer is another placer.
    #[error(
        "the placer's state cannot be stored; if another process writes it, stop the other placer \
         of this cluster (`$SRV.PING.wattle-placer` shows them), then start this one again"
    )]
    Store(#[from] ExclusiveError),
}

/// Runs until asked to stop.
///
/// # Errors
/// Where the bus does not take it, or another placer is at work.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    let policy = crate::policy(&config.policy)?;
    // While the bus is away this takes as long as it takes; a wish to stop does not wait for it.
    match shutdown.or(PlacerService::open(config, policy)).await {
        Some(service) => service?.serve(shutdown).await,
        None => Ok(()),
    }
}

/// The placer, and all it reads and writes.
struct PlacerService {
    bus: Bus,
    placer: Placer,
    jobs: ExclusiveBucket,
    orders: ExclusiveBucket,
    actual: Watch,
    surfaces: Watch,
    _service: Service,
    submissions: Requests,
    cancellations: Requests,
    budgets: Requests,
    budget: ExclusiveBucket,
    metered: Consumer,
    /// The entry of the energy ledger that is being counted.
    counting: Option<StoredDelivery>,
    progress: Subscription,
    /// Requests that are not answered yet.
    waiting: BTreeMap<RequestNumber, Request>,
    count: RequestNumber,
    wake_command: Vec<String>,
    /// How wake commands ended.
    woken: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

impl PlacerService {
    async fn open(config: Config, policy: Box<dyn Policy>) -> Result<Self, ShellError> {
        let cluster = config.cluster.clone();
        let bus = Bus::connect(&config.nats, cluster.clone(), "wattle-placer").await?;
        let (jobs, records) = open(&bus, Bucket::Jobs).await?;
        let (orders, desired) = open(&bus, Bucket::Desired).await?;
        let mut actual = bus.bucket(Bucket::Actual).await?.watch().await?;
        let mut surfaces = bus.bucket(Bucket::Surfaces).await?.watch().await?;
        let (power, launch) = reports(&mut actual).await;
        let (budget_bucket, budget_values) = ExclusiveBucket::open(&bus, Bucket::Budget).await?;
        let of = |key: &str| budget_values.iter().find(|change| change.key == key);
        let budget = of(BUDGET_SET).and_then(|change| read::<BudgetRecord>(Bucket::Budget, change));
        let budget_status =
            of(BUDGET_STATUS).and_then(|change| read::<BudgetStatus>(Bucket::Budget, change));
        let metered = bus.consume(StreamName::Ledger, "wattle-placer").await?;
        let known = surfaces.initial().await;
        let known = known.iter().filter_map(|change| read(Bucket::Surfaces, change)).collect();
        let memory = PersistedState {
            jobs: records,
            desired,
            power,
            launch,
            surfaces: known,
            budget,
            budget_status,
        };
        tracing::info!(
            policy = policy.name(),
            jobs = memory.jobs.len(),
            nodes = memory.power.len(),
            "placing"
        );
        let wake_command = config.sleep.wake_command.clone().unwrap_or_default();
        let placer = Placer::new(config, policy, memory, clock::now());

        let service = bus.register("wattle-placer", "takes jobs and places them").await?;
        let subject = |topic| Subject::request(cluster.clone(), topic);
        let submissions = service.endpoint(subject(RequestTopic::JobSubmitted)).await?;
        let cancellations = service.endpoint(subject(RequestTopic::JobCancelled)).await?;
        let budgets = service.endpoint(subject(RequestTopic::BudgetSet)).await?;
        let progress = bus.subscribe(&Topic::JobProgressed.pattern(&cluster)).await?;
        Ok(Self {
            bus,
            placer,
            jobs,
            orders,
            actual,
            surfaces,
            _service: service,
            submissions,
            cancellations,
            budgets,
            budget: budget_bucket,
            metered,
            counting: None,
            progress,
            waiting: BTreeMap::new(),
            count: 0,
            wake_command,
            woken: mpsc::channel(WOKEN_MAX),
        })
    }

    async fn serve(mut self, shutdown: &Shutdown) -> Result<(), ShellError> {
        let mut out = Vec::new();
        let mut was_away = false;
        loop {
            let event = if std::mem::take(&mut was_away) {
                Some(Event::BusReturned)
            } else {
                // In no order: however many ask, leases are renewed and reports are read meanwhile.
                tokio::select! {
                    () = shutdown.wait() => return Ok(()),
                    event = self.hear(&mut out) => event,
                }
            };
            if let Some(event) = event {
                self.placer.handle(clock::now(), event, &mut out);
            }
            for action in out.drain(..) {
                match self.act(action, shutdown).await? {
                    Stored::Immediately => {}
                    Stored::AfterRetry => was_away = true,
                    // Asked to stop while the bus is away: what is not written is worked out again.
                    Stored::Interrupted => return Ok(()),
                }
            }
            // What it has counted is stored: it need not come again.
            if let Some(counted) = self.counting.take()
                && let Err(error) = counted.ack().await
            {
                tracing::warn!(%error, "an entry of the energy ledger comes again");
            }
        }
    }

    /// Waits for what comes next; where that is the clock, `out` gets what is due.
    async fn hear(&mut self, out: &mut Vec<Action>) -> Option<Event> {
        let wake = self.placer.next_wake().map_or(Timestamp::FOREVER, |(at, _)| at);
        tokio::select! {
            Some(request) = self.submissions.next() => {
                let (number, asked) = self.asked::<SubmitJob>(request).await?;
                Some(Event::Submitted(number, Box::new(asked)))
            }
            Some(request) = self.cancellations.next() => {
                let (number, asked) = self.asked::<CancelJob>(request).await?;
                Some(Event::Cancelled(number, asked))
            }
            Some(request) = self.budgets.next() => {
                let (number, asked) = self.asked::<SetBudget>(request).await?;
                Some(Event::BudgetSet(number, Box::new(asked)))
            }
            Some(delivery) = self.metered.next() => {
                let entry = metered(&delivery);
                self.counting = Some(delivery);
                entry
            }
            Some(change) = self.actual.next() => reported(&change),
            Some(change) = self.surfaces.next() => {
                read::<Surface>(Bucket::Surfaces, &change).map(|s| Event::SurfaceKnown(Box::new(s)))
            }
            Some(event) = self.woken.1.recv() => Some(event),
            Some(message) = self.progress.next() => progressed(&message.subject, &message.payload),
            () = clock::sleep_until(wake) => {
                if self.bus.is_connected() {
                    self.placer.wake(clock::now(), out);
                    return None;
                }
                // Nothing can be heard or written: it is not the nodes that are silent.
                tokio::time::sleep(RETRY).await;
                Some(Event::BusReturned)
            }
        }
    }

    /// What is asked for; a request that cannot be read is answered here.
    async fn asked<T: DeserializeOwned>(&mut self, request: Request) -> Option<(RequestNumber, T)> {
        match request.decode() {
            Ok(asked) => {
                self.count += 1;
                self.waiting.insert(self.count, request);
                Some((self.count, asked))
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                let error = format!("{error}{}", cause.unwrap_or_default());
                tracing::warn!(subject = request.subject, error, "a request cannot be read");
                answer(Some(request), Reply::Refused { error }).await;
                None
            }
        }
    }

    async fn act(&mut self, action: Action, shutdown: &Shutdown) -> Result<Stored, ExclusiveError> {
        match action {
            Action::StoreJob(record) => {
                self.jobs.put(record.spec.job.as_str(), &record, shutdown).await
            }
            Action::StoreDesired(desired) => {
                self.orders.put(desired.node.as_str(), &desired, shutdown).await
            }
            Action::ForgetJob(job) => self.jobs.delete(job.as_str(), shutdown).await,
            Action::WakeNode(node) => {
                self.wake_node(node);
                Ok(Stored::Immediately)
            }
            Action::StoreBudget(record) => self.budget.put(BUDGET_SET, &*record, shutdown).await,
            Action::StoreBudgetStatus(status) => {
                self.budget.put(BUDGET_STATUS, &*status, shutdown).await
            }
            Action::AnswerBudget(number, reply) => {
                answer_budget(self.waiting.remove(&number), &reply).await;
                Ok(Stored::Immediately)
            }
            Action::Answer(number, reply) => {
                answer(self.waiting.remove(&number), reply).await;
                Ok(Stored::Immediately)
            }
            Action::Alarm(text) => {
                tracing::error!("{text}");
                Ok(Stored::Immediately)
            }
        }
    }
}

impl PlacerService {
    /// Runs the operator's wake command beside everything else.
    fn wake_node(&self, node: NodeId) {
        tracing::info!(%node, "somebody needs the node: it is woken");
        let (command, woken) = (self.wake_command.clone(), self.woken.0.clone());
        tokio::spawn(async move {
            let ended = command::run(&command, &node, WAKE_WITHIN).await;
            let error = ended.err().map(|error| chain(&error));
            // Nobody is there any more where the placer was stopped meanwhile.
            let _ = woken.send(Event::WakeAnswered(node, error)).await;
        });
    }
}

/// Opens the bucket and decodes its values.
async fn open<T: DeserializeOwned>(
    bus: &Bus,
    which: Bucket,
) -> Result<(ExclusiveBucket, Vec<T>), BusError> {
    let (bucket, changes) = ExclusiveBucket::open(bus, which).await?;
    Ok((bucket, changes.iter().filter_map(|change| read(which, change)).collect()))
}

/// The value of a change; what cannot be read is logged with its key, and ignored.
fn read<T: DeserializeOwned>(bucket: Bucket, change: &Change) -> Option<T> {
    let value = change.value.as_ref()?;
    match codec::decode_json(value) {
        Ok(value) => Some(value),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(
                bucket = bucket.token(),
                key = change.key,
                revision = change.revision,
                %error,
                cause,
                "ignored"
            );
            None
        }
    }
}

fn reported(change: &Change) -> Option<Event> {
    // A key of another form belongs to somebody else.
    let (who, node) = Reporter::parse(&change.key)?;
    match who {
        Reporter::Power => read::<PowerReport>(Bucket::Actual, change)
            .filter(|report| report.node == node)
            .map(Event::PowerReported),
        Reporter::Launcher => read::<LaunchReport>(Bucket::Actual, change)
            .filter(|report| report.node == node)
            .map(Event::LaunchReported),
    }
}

async fn reports(actual: &mut Watch) -> (Vec<PowerReport>, Vec<LaunchReport>) {
    let (mut power, mut launch) = (Vec::new(), Vec::new());
    for change in actual.initial().await {
        match reported(&change) {
            Some(Event::PowerReported(report)) => power.push(report),
            Some(Event::LaunchReported(report)) => launch.push(report),
            _ => {}
        }
    }
    (power, launch)
}

fn progressed(subject: &str, payload: &[u8]) -> Option<Event> {
    match codec::decode_json::<JobProgressed>(payload) {
        Ok(message) => Some(Event::Progressed(message)),
        Err(error) => {
            tracing::warn!(subject, %error, "ignored");
            None
        }
    }
}

fn metered(delivery: &StoredDelivery) -> Option<Event> {
    match codec::decode_json::<LedgerEntry>(&delivery.payload) {
        Ok(entry) => Some(Event::EnergyMetered(Box::new(entry))),
        Err(error) => {
            tracing::warn!(subject = delivery.subject, %error, "ignored");
            None
        }
    }
}

async fn answer_budget(request: Option<Request>, reply: &BudgetReply) {
    let Some(request) = request else { return };
    if let Err(error) = request.respond(reply).await {
        tracing::warn!(%error, ?reply, "an answer is not sent");
    }
}

async fn answer(request: Option<Request>, reply: Reply) {
    let Some(request) = request else { return };
    if let Err(error) = request.respond(&reply).await {
        // Whoever asked does so again, and gets the same answer.
        tracing::warn!(%error, ?reply, "an answer is not sent");
    }
}

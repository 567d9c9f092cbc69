//! Connects the decisions with the bus and with the OpenADR server.
//!
//! The server is called on a thread of its own, requests to the placer and reads of the site's power are tasks of their own:
//! none of them delays another, and a call in progress delays no shutdown. The events are polled in system time.

pub mod metrics;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use wattle_common::event::EventBook;
use wattle_common::id::UserId;
use wattle_common::messages::site_minute::minute_of;
use wattle_common::messages::{EventReply, EventRequest};
use wattle_common::subject::{
    Bucket, EVENTS, LeaseKey, OPENADR_REQUESTER, Rank, RequestTopic, Requester, Subject,
};
use wattle_common::{Machine as _, Timestamp};
use wattle_runtime::bus::{self, Bus, BusError, Change, Watch};
use wattle_runtime::service::{self, Identity, LeaseMode, Phase, Service, Shell};
use wattle_runtime::shell::{Shutdown, chain};
use wattle_runtime::{clock, site_minutes};

use self::metrics::OpenAdrMetrics;
use crate::client::Client;
use crate::config::Config;
use crate::machine::{Action, Answer, Event, Settings, VenMachine};
use crate::report::Measure;
use crate::usage;
use crate::wire::{Report, shown};

/// Capacity of the queues; what has no room is requested again after the next poll.
const QUEUE: usize = 1_024;

/// Why the service cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The bus refuses an operation.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The system refuses a thread.
    #[error("cannot start the thread that calls the OpenADR server")]
    Thread(#[from] std::io::Error),
}

/// Why an active phase ended.
type End = service::End<ServiceError>;

/// Runs until shutdown.
///
/// # Errors
/// If the bus refuses a required operation.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ServiceError> {
    let about = "follows the events of an OpenADR server";
    let identity = Identity::of_cluster("wattle-openadr", about, &config.cluster);
    let length = Duration::from_millis(config.service_lease_wall_ms);
    let mode = LeaseMode::Checked { key: LeaseKey::OpenAdr, length };
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = OpenAdrMetrics::new(shell.metrics());
    shell.run::<OpenAdrService>(mode, (config, metrics), shutdown).await
}

/// A call of the server.
enum Call {
    Poll,
    Report(usize, Box<Report>),
}

/// Calls the server until the service is gone.
fn call(mut client: Client, calls: &std::sync::mpsc::Receiver<Call>, events: &mpsc::Sender<Event>) {
    while let Ok(call) = calls.recv() {
        let event = match call {
            Call::Poll => Event::Polled(client.poll()),
            Call::Report(place, report) => {
                let result = client.report(&report).map_err(|failure| failure.reason);
                Event::Reported { place, report, result }
            }
        };
        if events.blocking_send(event).is_err() {
            return;
        }
    }
}

/// Sends requests to the placer, one after the other.
async fn request(
    bus: Bus,
    mut requests: mpsc::Receiver<EventRequest>,
    events: mpsc::Sender<Event>,
) {
    let requester = if bus.has_own_key() {
        let user = UserId::new(OPENADR_REQUESTER).expect("a constant id");
        Requester { rank: Rank::Operator, user }
    } else {
        bus.requester().clone()
    };
    let subject = Subject::request(bus.cluster().clone(), RequestTopic::EventSet, requester);
    while let Some(request) = requests.recv().await {
        let answer = match bus.request::<_, EventReply>(&subject, &request).await {
            Ok(EventReply::Stored { record, .. }) => Answer::Stored(record),
            Ok(EventReply::Refused { error }) => Answer::Refused(error),
            Err(error) => Answer::Absent(chain(&error)),
        };
        if events.send(Event::Answered(request, answer)).await.is_err() {
            return;
        }
    }
}

/// The energy of the site over an interval.
async fn joules(bus: &Bus, from: Timestamp, until: Timestamp) -> Result<f64, String> {
    let site = site_minutes::read(bus, minute_of(from)).await;
    let site =
        site.map_err(|error| format!("the power of the site cannot be read: {}", chain(&error)))?;
    usage::joules(&site, from, until)
}

async fn measure(bus: Bus, measure: Measure, events: mpsc::Sender<Event>) {
    let found = joules(&bus, measure.slot.from, measure.slot.until).await;
    let _ = events.send(Event::Measured(measure, found)).await;
}

/// What the sources deliver.
enum Input {
    Event(Box<Event>),
    Records(Change),
}

/// The process that holds the lease.
struct OpenAdrService {
    bus: Bus,
    lease: bus::Leadership,
    machine: VenMachine,
    metrics: OpenAdrMetrics,
    records: Watch,
    calls: std::sync::mpsc::SyncSender<Call>,
    requests: mpsc::Sender<EventRequest>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    tasks: JoinSet<()>,
    _registered: bus::Service,
}

/// The records in a change of their key.
fn book(change: &Change) -> Option<EventBook> {
    let book: EventBook = change.decode(Bucket::Budget)?;
    match book.check() {
        Ok(()) => Some(book),
        Err(error) => {
            tracing::error!(%error, "the records of grid events are ignored");
            None
        }
    }
}

impl Service for OpenAdrService {
    type Machine = VenMachine;
    type Input = Input;
    type Setup = (Config, OpenAdrMetrics);
    type Failure = ServiceError;

    async fn open((config, metrics): &Self::Setup, phase: Phase<'_>) -> Result<Self, End> {
        let bus = phase.bus.clone();
        let mut records = bus.bucket(Bucket::Budget).await?.watch_keys(EVENTS).await?;
        let stored = records.initial().await.iter().filter_map(book).next_back();
        let settings = Settings {
            site: config.site(),
            poll: Duration::from_millis(config.poll_ms),
            seed: clock::wall_now().as_us(),
        };
        let machine = VenMachine::new(settings, stored.unwrap_or_default(), clock::now());
        let (sender, events) = mpsc::channel(QUEUE);
        let (requests, to_send) = mpsc::channel(QUEUE);
        let (calls, called) = std::sync::mpsc::sync_channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(request(bus.clone(), to_send, sender.clone()));
        let (client, to_events) = (Client::new(config.clone(), clock::work_time), sender.clone());
        let thread = std::thread::Builder::new().name("openadr-calls".to_owned());
        // It is detached: a call in progress ends by its time limit.
        let started = thread.spawn(move || call(client, &called, &to_events));
        started.map_err(|error| End::Failed(error.into()))?;
        tracing::info!(cluster = %config.cluster, url = config.base(), "active");
        Ok(Self {
            lease: phase.lease.clone(),
            machine,
            metrics: metrics.clone(),
            records,
            calls,
            requests,
            events,
            sender,
            tasks,
            _registered: phase.register().await?,
            bus,
        })
    }

    fn set_active((_, metrics): &Self::Setup, active: bool) {
        metrics.is_active(active);
    }

    fn machine(&mut self) -> &mut VenMachine {
        &mut self.machine
    }

    async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            Some(event) = self.events.recv() => Some(Input::Event(Box::new(event))),
            change = self.records.next() => change.map(Input::Records),
        }
    }

    async fn handle(&mut self, input: Input, actions: &mut Vec<Action>) -> Result<(), End> {
        let event = match input {
            Input::Event(event) => *event,
            Input::Records(change) => match book(&change) {
                Some(book) => Event::RecordsChanged(book),
                None => return Ok(()),
            },
        };
        match &event {
            Event::Polled(result) => self.metrics.polled(result.is_ok()),
            Event::Answered(request, answer) => self.metrics.answered(request, answer),
            Event::Reported { result, .. } => self.metrics.reported(result.is_ok()),
            Event::RecordsChanged(_) | Event::Measured(..) => {}
        }
        self.machine.handle(clock::now(), event, actions);
        self.metrics.set(self.machine.measures());
        Ok(())
    }

    async fn act(&mut self, actions: &mut Vec<Action>) -> Result<(), End> {
        while self.tasks.try_join_next().is_some() {}
        for action in actions.drain(..) {
            match action {
                Action::Poll => drop(self.calls.try_send(Call::Poll)),
                Action::Report(place, report) => {
                    if let Err(error) = self.calls.try_send(Call::Report(place, report)) {
                        let (std::sync::mpsc::TrySendError::Full(call)
                        | std::sync::mpsc::TrySendError::Disconnected(call)) = error;
                        if let Call::Report(place, report) = call {
                            let result = Err("too many reports wait".to_owned());
                            let _ = self.sender.try_send(Event::Reported { place, report, result });
                        }
                    }
                }
                // The process may have been paused: another one may be active.
                Action::Request(request) if !self.lease.is_valid() => {
                    tracing::debug!(event = %request.event(), "not sent: the lease has ended");
                    let answer = Answer::Absent("the lease has ended".to_owned());
                    let _ = self.sender.try_send(Event::Answered(request, answer));
                }
                Action::Request(request) => {
                    if let Err(error) = self.requests.try_send(request) {
                        let answer = Answer::Absent("too many requests wait".to_owned());
                        let _ = self.sender.try_send(Event::Answered(error.into_inner(), answer));
                    }
                }
                Action::Measure(interval) => {
                    self.tasks.spawn(measure(self.bus.clone(), interval, self.sender.clone()));
                }
                Action::Info(text) => tracing::info!("{}", shown_line(&text)),
                Action::Warn(text) => tracing::warn!("{}", shown_line(&text)),
            }
        }
        Ok(())
    }
}

/// A text in one line: parts of it are the server's.
fn shown_line(text: &str) -> String {
    text.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
}

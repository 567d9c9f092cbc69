//! Connects the [`crate::model::Model`] to the bus and to browsers.

mod actions;
mod assets;
mod connections;
mod details;
mod events;
mod follow;
mod grid_events;
mod guard;
mod http;
mod hub;
mod limits;
mod links;
pub mod metrics;
mod sessions;
mod streams;
mod submit;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio::net::TcpListener;
use wattle_common::subject::Topic as Subjects;
use wattle_runtime::bus::{Bus, NewestMessages};
use wattle_runtime::clock;
use wattle_runtime::metrics::Metrics;
use wattle_runtime::shell::{Shutdown, chain};

use self::hub::Hub;
use self::limits::Limits;
use self::links::Links;
use self::metrics::WebMetrics;
use self::sessions::Sessions;
use crate::config::Config;
use crate::model::{Model, Now};

/// The name under which the service registers.
const NAME: &str = "wattle-web";
/// Interval of updates, wall time.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// Number of updates without a viewer after which waiting summaries are read: within their validity.
const IDLE_UPDATES: u32 = 4;
/// Seconds between two updates of a large cluster.
const LARGE_UPDATES: u32 = 3;
/// Number of nodes above which a cluster is large.
const NODES_LARGE: usize = 200;
/// Most bytes of waiting summaries: those of 5,000 nodes at 3 kB.
const SUMMARIES_LEN_MAX: usize = 16 << 20;

/// What all parts of the service share.
struct Shared {
    config: Config,
    bus: Bus,
    model: Mutex<Model>,
    hub: Mutex<Hub>,
    sessions: Sessions,
    /// `None`: a person signs in with a key only.
    links: Option<Links>,
}

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The present.
fn now() -> Now {
    Now { at: clock::now(), steady: clock::monotonic(), rate: clock::scale().rate }
}

/// Runs the service until shutdown.
///
/// # Errors
/// If the address cannot be used, or the server refuses a required operation.
pub async fn run(config: Config, shutdown: &Shutdown) -> anyhow::Result<()> {
    let listen = config.listen;
    let listener = TcpListener::bind(listen).await;
    let listener = listener
        .with_context(|| format!("cannot listen on {listen}; name a free port as `listen`"))?;
    let address = listener.local_addr().context("the address of the page is not known")?;
    let limits = Limits::of_process(config.viewers_max as usize);
    let metrics = Metrics::start(&config.metrics, "web", &config.cluster, None);
    let connected = shutdown.or(Bus::connect(&config.nats, config.cluster.clone(), NAME)).await;
    let Some(bus) = connected else { return Ok(()) };
    let bus = bus?;
    metrics.follow_bus(&bus);
    let metrics = WebMetrics::new(&metrics);
    let links =
        config.sign_in_file.as_deref().map(|file| Links::open(file, address)).transpose()?;
    let service = bus.register(NAME, "serves the web page of the cluster", &[]).await?;
    let shared = Arc::new(Shared {
        model: Mutex::new(Model::new(config.cluster.as_str())),
        hub: Mutex::new(Hub::new(config.viewers_max as usize)),
        sessions: Sessions::new(limits.sessions),
        links,
        bus,
        config,
    });
    let mut tasks = follow::start(&shared);
    tasks.spawn(update(Arc::clone(&shared), metrics));
    tasks.spawn(details::keep(Arc::clone(&shared)));
    tracing::info!(address = %format!("http://{address}"), "page served");
    tasks.spawn(sessions::keep(Arc::clone(&shared)));
    let served = http::serve(listener, Arc::clone(&shared), limits.connections, shutdown);
    let result = tokio::select! {
        () = served => Ok(()),
        // A task of the service runs until shutdown.
        Some(ended) = tasks.join_next() => match ended {
            Ok(()) => Err(anyhow::anyhow!("a task of the service has ended")),
            Err(error) => Err(error).context("a task of the service has failed"),
        },
    };
    service.stop().await;
    result
}

/// Reads the summaries of the nodes and sends what has changed to the viewers, once a second; in a large
/// cluster every three seconds.
///
/// Receiving the summaries of a thousand nodes needs more time than the pages, so between updates of a
/// large cluster they are not received.
async fn update(shared: Arc<Shared>, metrics: WebMetrics) {
    let mut tick = tokio::time::interval(UPDATE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut summaries: Option<NewestMessages> = None;
    let mut since = IDLE_UPDATES;
    loop {
        tick.tick().await;
        let viewers = shared.hub().viewers();
        metrics.updated(viewers);
        let is_large = shared.model().nodes.len() > NODES_LARGE;
        let every = match (viewers > 0, is_large) {
            (false, _) => IDLE_UPDATES,
            (true, true) => LARGE_UPDATES,
            (true, false) => 1,
        };
        since += 1;
        if summaries.is_none() && (since + 1 >= every || !is_large) {
            let bus = &shared.bus;
            let pattern = Subjects::NodeSummarized.pattern(bus.cluster());
            match bus.subscribe_newest(&pattern, SUMMARIES_LEN_MAX).await {
                Ok(subscribed) => summaries = Some(subscribed),
                Err(error) => tracing::debug!(error = chain(&error), "summaries not received"),
            }
        }
        let is_due = since >= every;
        let now = now();
        let mut model = shared.model();
        if let Some(messages) = summaries.as_mut().filter(|_| is_due) {
            while let Some(Some(delivery)) = messages.next().now_or_never() {
                model.summary(&delivery.payload, now);
            }
        }
        model.tick(shared.bus.is_connected(), now);
        if is_due {
            since = 0;
            shared.hub().update(&mut model, now);
            summaries = summaries.filter(|_| !is_large);
        }
    }
}

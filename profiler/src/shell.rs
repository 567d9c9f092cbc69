//! Connects the machine with the GPUs, the jobs' socket, the state file and the bus.
//!
//! ```text
//! GPUs' thread ---samples--.              .--> core messages: dropped while the bus is away
//! jobs' socket ----lines----+--> machine --+--> windows: a bounded queue until the bus is back
//! bus: `actual`, `jobs` ----'              +--> ledger: one entry at a time, acknowledged
//!                                          '--> state file
//! ```
//!
//! The machine runs with or without the bus. This module decides nothing.

mod bus;
pub mod metrics;
pub mod sampler;
pub mod socket;
mod state;

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_runtime::bus::BusConfig;
use wattle_runtime::service::{Identity, Shell};
use wattle_runtime::shell::Shutdown;
use wattle_runtime::{clock, driver};

use crate::config::Config;
use crate::machine::{Action, Event, ProfilerMachine};
use crate::note::Note;
use metrics::ProfilerMetrics;

/// The service's configuration.
pub type ServiceConfig = Config<BusConfig>;

/// Capacity of the event channel: some seconds of samples and of many jobs' lines. An event that
/// finds it full is dropped; no energy is lost, because counters continue.
const EVENTS_MAX: usize = 1_024;
/// Longest wait for the last ledger entry and windows to be stored at shutdown: wall time.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);

/// Reads the configuration. The environment names the NVML library if the file does not.
///
/// # Errors
/// The file, key and line.
pub fn load(path: &Path) -> Result<ServiceConfig, wattle_runtime::config::ConfigError> {
    let mut config: ServiceConfig = wattle_runtime::config::load(path)?;
    let named = || std::env::var_os(wattle_gpu::LIBRARY_ENV).filter(|path| !path.is_empty());
    config.nvml_library = config.nvml_library.take().or_else(|| named().map(Into::into));
    Ok(config)
}

/// Runs the service until shutdown.
///
/// # Errors
/// Where the jobs' socket cannot be opened or a thread cannot be started.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> std::io::Result<()> {
    let rate = clock::scale().rate;
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let settings = config.settings().at_rate(rate);
    let file = state::StateFile::open(&config, settings.clock_step_min);
    let socket = socket::open(&config.progress_socket, config.progress_socket_mode)?;
    let lines = tokio::spawn(socket::listen(socket, events.clone()));
    let every = config.sample_every(rate);
    let about = "watches GPUs and jobs";
    let identity = Identity::of_node("wattle-profiler", about, &config.cluster, &config.node);
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = ProfilerMetrics::new(shell.metrics(), config.dcgm_names);
    let found = metrics.clone();
    let sampler =
        sampler::start(config.nvml_library.clone(), every, events.clone(), move |gpu, info| {
            found.gpu_found(gpu, info);
        })?;
    let bus = bus::start(shell, &config, events, metrics.clone());
    let earlier = file.load(clock::now());
    let mut machine =
        ProfilerMachine::new(config.node.clone(), settings, earlier, file.boot.clone());
    let mut act = |action| act(action, &bus, &file, &metrics);
    tracing::info!(
        node = %config.node,
        cluster = %config.cluster,
        sample_us = u64::try_from(every.as_micros()).unwrap_or(u64::MAX),
        socket = %config.progress_socket.display(),
        "profiler started"
    );
    driver::run(&mut machine, &mut inbox, shutdown, &mut act).await;

    drop(sampler);
    lines.abort();
    let stored = |machine: &ProfilerMachine| !machine.ledger_pending();
    let last = driver::drain(&mut machine, &mut inbox, Event::StopRequested, stored, &mut act);
    if tokio::time::timeout(SHUTDOWN_MAX, last).await.is_err() {
        tracing::warn!("the last ledger entry is not stored; it is kept for the next start");
    }
    if tokio::time::timeout(SHUTDOWN_MAX, bus.close()).await.is_err() {
        tracing::warn!("not every window is stored");
    }
    // Without the socket a job notices sooner that its lines are lost.
    let _ = std::fs::remove_file(&config.progress_socket);
    Ok(())
}

fn act(action: Action, bus: &bus::Outbox, file: &state::StateFile, metrics: &ProfilerMetrics) {
    metrics.acted(&action);
    match action {
        Action::PublishBatch(batch) => bus.publish_core(bus::CoreMessage::Batch(batch)),
        Action::PublishSummary(summary) => bus.publish_core(bus::CoreMessage::Summary(summary)),
        Action::PublishProgress(progress) => bus.publish_core(bus::CoreMessage::Progress(progress)),
        Action::StoreWindow(window) => bus.store_window(window),
        Action::StoreLedger(entry) => bus.store_ledger(entry),
        Action::SaveState(state) => file.save(&state),
        Action::Log(note) => match &note {
            Note::Recovered(gpu) | Note::MeteredByPower(gpu) => tracing::info!(gpu, "{note}"),
            Note::Lost(gpu, _) | Note::CounterStuck(gpu) | Note::NoMeter(gpu) => {
                tracing::warn!(gpu, "{note}");
            }
            Note::DriverFailed(_) | Note::ForeignProgress(..) => tracing::warn!("{note}"),
        },
    }
}

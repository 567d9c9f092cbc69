//! The service around the machine: its tasks, and how they hang together.
//!
//! ```text
//! bus: bucket `desired` --events--> machine --orders--> the driver's thread
//!                                    |  ^------answers------'
//!                                    '--newest report--> bus: bucket `actual`
//! ```
//!
//! The operator's sleep command runs beside all this, in a task of its own.
//!
//! The machine runs from the first moment, bus or no bus: leases run out and cards go to their safe
//! state by the clock of this process alone. Reports are whole, so only the newest waits for a bus
//! that is away. This module decides nothing.

mod bus;
mod cards;
mod sleeper;

use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::Machine;
use wattle_common::messages::PowerReport;
use wattle_runtime::bus::BusConfig;
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

use crate::config::Config;
use crate::machine::{Action, Event, PowerMachine};
use crate::note::Note;

pub use cards::reset;

/// The service's whole configuration.
pub type ServiceConfig = Config<BusConfig>;

/// Events that wait for the machine. A reading is one event, and an order is answered by one.
const EVENTS_MAX: usize = 64;
/// Longest wait, in wall time, for the cards to reach their safe state at a stop: systemd gives a
/// service 90 s, and cards answer within milliseconds unless they are ill.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// Reads the configuration. The environment names the NVML library where the file does not.
///
/// # Errors
/// Names file, key and line.
pub fn load(path: &Path) -> Result<ServiceConfig, wattle_runtime::config::ConfigError> {
    let mut config: ServiceConfig = wattle_runtime::config::load(path)?;
    let named = || std::env::var_os(wattle_gpu::LIBRARY_ENV).filter(|path| !path.is_empty());
    config.nvml_library = config.nvml_library.take().or_else(|| named().map(Into::into));
    Ok(config)
}

/// Runs the service until it is told to stop.
///
/// # Errors
/// Where the driver's thread cannot be started.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> std::io::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (reports, newest) = watch::channel(None);
    let cards = cards::start(config.nvml_library.clone(), events.clone())?;
    let sleeper = sleeper::Sleeper {
        command: config.sleep_command.clone().unwrap_or_default(),
        node: config.node.clone(),
        events: events.clone(),
    };
    let bus = tokio::spawn(bus::serve(config.clone(), events, newest));
    let mut machine = PowerMachine::new(config.node.clone(), config.settings());
    let mut act = async |action| act(action, &cards, &sleeper, &reports);
    tracing::info!(node = %config.node, cluster = %config.cluster, "power agent started");
    wattle_runtime::driver::run(&mut machine, &mut inbox, shutdown, &mut act).await;

    let mut actions = Vec::new();
    machine.handle(clock::now(), Event::StopRequested, &mut actions);
    let rest = async {
        loop {
            for action in actions.drain(..) {
                act(action).await;
            }
            if machine.at_rest() {
                return true;
            }
            match inbox.recv().await {
                Some(event) => machine.handle(clock::now(), event, &mut actions),
                None => return false,
            }
        }
    };
    if tokio::time::timeout(REST_WITHIN, rest).await == Ok(true) {
        tracing::info!("every card is at its safe state");
    } else {
        tracing::error!("not every card is known to be at its safe state: run `reset`");
    }
    // The last report leaves when this end is closed.
    drop(reports);
    if tokio::time::timeout(REST_WITHIN, bus).await.is_err() {
        tracing::warn!("the last report could not be published");
    }
    Ok(())
}

fn act(
    action: Action,
    cards: &cards::Cards,
    sleeper: &sleeper::Sleeper,
    reports: &watch::Sender<Option<PowerReport>>,
) {
    match action {
        Action::Sleep(requested_at_us) => sleeper.sleep(requested_at_us),
        Action::ReadCards => cards.order(cards::Order::Read),
        Action::SetCap { gpu, cap } => cards.order(cards::Order::Cap(gpu, cap)),
        Action::SetClock { gpu, clock } => cards.order(cards::Order::Clock(gpu, clock)),
        Action::Report(report) => {
            reports.send_replace(Some(report));
        }
        Action::Log(note) => log(&note),
    }
}

fn log(note: &Note) {
    match note {
        Note::Back { gpu } => tracing::info!(gpu, "{note}"),
        Note::FallsAsleep => tracing::info!("{note}"),
        Note::Lost { gpu, .. }
        | Note::Refused { gpu, .. }
        | Note::ForeignCap { gpu, .. }
        | Note::ForeignClock { gpu, .. }
        | Note::NoSuchGpu { gpu } => tracing::warn!(gpu, "{note}"),
        Note::Older { generation, .. }
        | Note::Stale { generation, .. }
        | Note::LeaseEnded { generation } => tracing::warn!(generation, "{note}"),
        Note::ForeignNode { .. }
        | Note::DriverAway { .. }
        | Note::NoSuchBoards { .. }
        | Note::StaysAwake { .. } => tracing::warn!("{note}"),
    }
}

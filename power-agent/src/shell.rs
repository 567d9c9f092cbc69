//! Connects the machine with the driver's thread, the sleep command and the bus.
//!
//! ```text
//! bus: bucket `desired` --events--> machine --commands--> the driver's thread
//!                                    |  ^------results------'
//!                                    '--newest report--> bus: bucket `actual`
//! ```
//!
//! The machine runs with or without the bus: leases expire by this process's clock alone. Reports
//! are complete, so only the newest one waits for the bus. This module decides nothing.

mod bus;
mod control;
mod driver_thread;
pub mod metrics;
mod reset;
mod sleep_command;
mod state_file;

use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::bounds::OrderRefused;
use wattle_common::lease::NODE_LEASE;
use wattle_common::messages::PowerReport;
use wattle_common::subject::LeaseKey;
use wattle_runtime::bus::BusConfig;
use wattle_runtime::driver;
use wattle_runtime::service::{Identity, LeaseMode, Shell};
use wattle_runtime::shell::Shutdown;

use self::bus::{Channels, PowerLink};
use self::driver_thread::{DriverThread, GpuCommand};
use self::metrics::PowerMetrics;
use self::sleep_command::SleepCommand;
use self::state_file::StateFile;
use crate::config::{Config, Control};
use crate::machine::{Action, Event, PowerMachine};
use crate::note::Note;

pub use reset::reset;

/// The service's configuration.
pub type ServiceConfig = Config<BusConfig>;

/// Capacity of the event channel. A reading and a result are one event each.
const EVENTS_MAX: usize = 64;
/// Longest wait for the GPUs to reach their safe state at shutdown: wall time. systemd gives a
/// service 90 s, and healthy GPUs answer within milliseconds.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// Reads the configuration. The environment names the NVML library if the file does not.
///
/// # Errors
/// The file, key and line.
pub fn load(path: &Path) -> Result<ServiceConfig, wattle_runtime::config::ConfigError> {
    let mut config = wattle_runtime::config::load_checked(path, ServiceConfig::check)?;
    let named = || std::env::var_os(wattle_gpu::LIBRARY_ENV).filter(|path| !path.is_empty());
    config.nvml_library = config.nvml_library.take().or_else(|| named().map(Into::into));
    Ok(config)
}

/// Runs the service until shutdown.
///
/// # Errors
/// Where the driver's thread cannot be started.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> std::io::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (reports, newest) = watch::channel(None);
    let driver_config = config.clone();
    let gpus = driver_thread::start(move || control::open(&driver_config), events.clone())?;
    let sleep_command = SleepCommand {
        command: config.sleep_command.clone().unwrap_or_default(),
        node: config.node.clone(),
        events: events.clone(),
    };
    let node = config.node.clone();
    let about = "applies caps and clocks";
    let identity = Identity::of_node("wattle-power-agent", about, &config.cluster, &config.node);
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = PowerMetrics::new(shell.metrics());
    let mode = LeaseMode::Node {
        key: LeaseKey::Power(node.clone()),
        length: NODE_LEASE,
        on_standby: "another power agent has this node's name: this one is on standby, and its GPUs keep \
                     their safe cap; stop one of the two, or configure another `node`",
    };
    let channels = Channels { node, events, newest: newest.clone() };
    let bus = tokio::spawn(shell.follow::<PowerLink, _>(mode, channels, newest));
    let mut machine = PowerMachine::new(config.node.clone(), config.settings())
        .instance(wattle_runtime::instance::name());
    // The file of an agent that set caps is left as it is: its next start restores what it found.
    let state_dir = config.state_dir.as_deref().filter(|_| config.control != Control::Advise);
    let state = StateFile::new(state_dir);
    machine = match state_dir {
        Some(_) => machine.with_caps(state.read()),
        None => machine.without_stored_caps(),
    };
    let mut act = |action| act(action, &metrics, &gpus, &sleep_command, &reports, &state);
    tracing::info!(
        node = %config.node, cluster = %config.cluster, control = ?config.control,
        "power agent started"
    );
    if config.control == Control::Advise {
        tracing::warn!(
            "control = \"advise\": caps and clocks are computed and reported, never set"
        );
    }
    driver::run(&mut machine, &mut inbox, shutdown, &mut act).await;

    let stop = Event::StopRequested;
    let drain = driver::drain(&mut machine, &mut inbox, stop, PowerMachine::is_safe, &mut act);
    let _ = tokio::time::timeout(SHUTDOWN_MAX, drain).await;
    if config.control == Control::Advise {
        tracing::info!("no cap or clock was set");
    } else if machine.leaves_nothing_behind() {
        tracing::info!("every GPU is in its safe state");
        state.write(&machine.caps_after_stop());
    } else {
        tracing::error!("not every GPU is known to be in its safe state: run `reset`");
    }
    // Without the reports' sender, the bus task writes the last report and ends.
    drop(reports);
    if tokio::time::timeout(SHUTDOWN_MAX, bus).await.is_err() {
        tracing::warn!("bus away: the last report is not stored");
    }
    Ok(())
}

fn act(
    action: Action,
    metrics: &PowerMetrics,
    driver: &DriverThread,
    sleep_command: &SleepCommand,
    reports: &watch::Sender<Option<PowerReport>>,
    state: &StateFile,
) {
    metrics.acted(&action);
    match action {
        Action::Sleep(requested_at_us) => sleep_command.sleep(requested_at_us),
        Action::ReadGpus => driver.send(GpuCommand::Read),
        Action::SetCap { gpu, cap } => driver.send(GpuCommand::Cap(gpu, cap)),
        Action::SetClock { gpu, clock } => driver.send(GpuCommand::Clock(gpu, clock)),
        Action::Report(report) => {
            reports.send_replace(Some(report));
        }
        Action::StoreCaps(caps) => state.write(&caps),
        Action::Log(note) => log(&note),
    }
}

fn log(note: &Note) {
    match note {
        Note::Recovered { gpu }
        | Note::ConditionEnded { gpu, .. }
        | Note::NoCap { gpu }
        | Note::NoLock { gpu } => tracing::info!(gpu, "{note}"),
        Note::EntersSleep | Note::DriverReturned | Note::CapsBounded { .. } | Note::EventOver => {
            tracing::info!("{note}");
        }
        Note::ConditionBegan { gpu, condition, .. } if condition.is_fault() => {
            tracing::error!(gpu, "{note}");
        }
        Note::Lost { gpu, .. }
        | Note::NotApplied { gpu, .. }
        | Note::CapChanged { gpu, .. }
        | Note::Restarted { gpu }
        | Note::ConditionBegan { gpu, .. }
        | Note::ClockAboveLock { gpu, .. }
        | Note::UnknownGpu { gpu } => tracing::warn!(gpu, "{note}"),
        Note::Refused(OrderRefused::OutOfBounds(_))
        | Note::NodeLimitMissed { .. }
        | Note::NodeLimitUnbounded { .. } => {
            tracing::error!("{note}");
        }
        Note::Expired { generation, .. } | Note::LeaseEnded { generation } => {
            tracing::warn!(generation, "{note}");
        }
        Note::Refused(OrderRefused::Outdated { .. })
        | Note::WrongNode { .. }
        | Note::DriverFailed { .. }
        | Note::InvalidBoards { .. }
        | Note::SleepFailed { .. } => tracing::warn!("{note}"),
    }
}

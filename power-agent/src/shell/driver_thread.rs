//! The thread that calls the driver, whose calls block: for microseconds, or for seconds if a GPU
//! hangs.
//!
//! It executes commands in order and reports each with one event. It loads the driver when the
//! GPUs are first read, and again after the driver has failed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc as blocking;

use tokio::sync::mpsc;
use wattle_common::{Frequency, GpuIndex, Power};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver, GpuError};

use crate::config::Settings;
use crate::gpu_state::{GpuFacts, GpuStatus, SetError};
use crate::machine::Event;
use crate::persisted::PersistedCaps;
use crate::shell::state_file::StateFile;

/// Capacity of the command channel: the machine has at most one reading pending, and one cap and
/// one clock for each GPU.
const COMMANDS_MAX: usize = 1 + 2 * wattle_common::topology::GPUS_PER_NODE_MAX as usize;

#[derive(Clone, Copy, Debug)]
pub(super) enum GpuCommand {
    Read,
    Cap(GpuIndex, Power),
    Clock(GpuIndex, Option<Frequency>),
}

type Reads = Vec<(GpuIndex, Result<GpuStatus, String>)>;

/// Sends commands to the thread.
pub(super) struct DriverThread(blocking::SyncSender<GpuCommand>);

impl DriverThread {
    pub(super) fn send(&self, command: GpuCommand) {
        if let Err(error) = self.0.try_send(command) {
            // The machine issues it again at the next heartbeat.
            tracing::error!(?command, %error, "command not sent to the driver's thread");
        }
    }
}

pub(super) fn start(
    library: Option<PathBuf>,
    events: mpsc::Sender<Event>,
) -> std::io::Result<DriverThread> {
    let (sender, commands) = blocking::sync_channel(COMMANDS_MAX);
    let mut executor = Executor { library, driver: None, facts: BTreeMap::new() };
    std::thread::Builder::new().name("driver".to_owned()).spawn(move || {
        for command in commands {
            if events.blocking_send(executor.execute(command)).is_err() {
                return; // the service has ended
            }
        }
    })?;
    Ok(DriverThread(sender))
}

struct Executor {
    library: Option<PathBuf>,
    driver: Option<Box<dyn Driver>>,
    /// The GPUs' properties, which do not change and take longest to read.
    facts: BTreeMap<GpuIndex, GpuFacts>,
}

impl Executor {
    fn execute(&mut self, command: GpuCommand) -> Event {
        match command {
            GpuCommand::Read => match self.read() {
                Ok(reads) => Event::GpusRead(reads),
                Err(error) => {
                    self.driver = None;
                    self.facts.clear();
                    Event::GpusUnreadable(error.to_string())
                }
            },
            GpuCommand::Cap(gpu, cap) => {
                let result = self.set(|driver| driver.set_cap(gpu, cap));
                if result.is_ok() {
                    tracing::info!(gpu, cap_mw = cap.as_mw(), "cap set");
                }
                Event::CapSet { gpu, cap, result }
            }
            GpuCommand::Clock(gpu, clock) => {
                let result = self.set(|driver| driver.set_clock_max(gpu, clock));
                if result.is_ok() {
                    let clock_mhz_max = clock.map(Frequency::as_mhz);
                    tracing::debug!(gpu, clock_mhz_max, "clock set");
                }
                Event::ClockSet { gpu, clock, result }
            }
        }
    }

    fn set(
        &mut self,
        setting: impl FnOnce(&mut dyn Driver) -> Result<(), GpuError>,
    ) -> Result<(), SetError> {
        let Some(driver) = self.driver.as_mut() else {
            let message = "the driver is not loaded".to_owned();
            return Err(SetError { unsupported: false, message });
        };
        setting(driver.as_mut()).map_err(|error| SetError {
            unsupported: matches!(error, GpuError::Unsupported { .. }),
            message: error.to_string(),
        })
    }

    fn read(&mut self) -> Result<Reads, GpuError> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(Box::new(NvmlDriver::open(self.library.as_deref())?)),
        };
        let mut reads = Vec::new();
        for gpu in 0..driver.count()? {
            let read = read_gpu(driver.as_mut(), gpu, &mut self.facts);
            if let Err(GpuError::DriverAbsent { .. }) = read {
                return Err(read.expect_err("matched as an error"));
            }
            reads.push((gpu, read.map_err(|error| error.to_string())));
        }
        Ok(reads)
    }
}

fn read_gpu(
    driver: &mut dyn Driver,
    gpu: GpuIndex,
    known: &mut BTreeMap<GpuIndex, GpuFacts>,
) -> Result<GpuStatus, GpuError> {
    let facts = match known.get(&gpu) {
        Some(facts) => facts.clone(),
        None => facts(driver, gpu)?,
    };
    let reading = driver.read(gpu)?;
    known.insert(gpu, facts.clone());
    Ok(GpuStatus { facts, cap: reading.cap, clock: reading.clock })
}

fn facts(driver: &dyn Driver, gpu: GpuIndex) -> Result<GpuFacts, GpuError> {
    let info = driver.info(gpu)?;
    Ok(GpuFacts {
        uuid: info.uuid,
        gpu_type: info.gpu_type,
        memory_mib: info.memory_mib,
        cap_default: info.cap_default,
        cap_range: info.cap_min.zip(info.cap_max),
        clock_range: info.clocks.first().copied().zip(info.clocks.last().copied()),
    })
}

/// Gives every GPU the cap that an earlier service found, or the safe one, and unlocks its clock; returns the number of failures.
///
/// # Errors
/// Where there is no driver.
pub fn reset(config: &super::ServiceConfig) -> Result<u32, GpuError> {
    let mut driver = NvmlDriver::open(config.nvml_library.as_deref())?;
    let file = StateFile::new(config.state_dir.as_deref());
    let caps = file.read();
    let failed = reset_all(&mut driver, &config.settings(), &caps)?;
    if failed == 0 {
        file.write(&PersistedCaps { restored: true, ..caps });
    }
    Ok(failed)
}

fn reset_all(
    driver: &mut dyn Driver,
    settings: &Settings,
    caps: &PersistedCaps,
) -> Result<u32, GpuError> {
    let mut failed = 0;
    for gpu in 0..driver.count()? {
        match reset_gpu(driver, gpu, settings, caps) {
            Ok(cap) => {
                tracing::info!(gpu, cap_mw = cap.map(Power::as_mw), "GPU is in its safe state");
            }
            Err(error) => {
                failed += 1;
                tracing::error!(gpu, %error, "GPU could not be reset");
            }
        }
    }
    Ok(failed)
}

fn reset_gpu(
    driver: &mut dyn Driver,
    gpu: GpuIndex,
    settings: &Settings,
    caps: &PersistedCaps,
) -> Result<Option<Power>, GpuError> {
    let cap = caps.final_cap(gpu, &facts(driver, gpu)?, settings);
    let capped = cap.map_or(Ok(()), |cap| driver.set_cap(gpu, cap));
    // The clock is unlocked even if the cap could not be set.
    match driver.set_clock_max(gpu, None) {
        Ok(()) | Err(GpuError::Unsupported { .. }) => capped.map(|()| cap),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_gpu::fake::{Command, FakeDriver, FaultMode};

    #[test]
    fn reset_makes_every_reachable_gpu_safe() {
        let mut node = FakeDriver::v100s(3);
        for gpu in 0..3 {
            node.set_cap(gpu, Power::from_w(120)).unwrap();
            node.set_clock_max(gpu, Some(Frequency::from_mhz(900))).unwrap();
        }
        node.gpus[1].fault = FaultMode::Lost;
        node.commands.clear();
        let safe = Power::from_w(250);
        let settings = Settings { safe_cap: Some(safe), ..Settings::default() };
        assert_eq!(reset_all(&mut node, &settings, &PersistedCaps::default()), Ok(1));
        assert_eq!(
            node.commands,
            [
                Command::Cap(0, safe),
                Command::ClockMax(0, None),
                Command::Cap(2, safe),
                Command::ClockMax(2, None)
            ]
        );
    }

    #[test]
    fn each_command_has_one_true_result() {
        let mut node = FakeDriver::v100s(2);
        node.gpus[1].fault = FaultMode::Lost;
        let mut executor =
            Executor { library: None, driver: Some(Box::new(node)), facts: BTreeMap::new() };
        let Event::GpusRead(reads) = executor.execute(GpuCommand::Read) else { panic!("not read") };
        let read = reads[0].1.as_ref().unwrap();
        assert_eq!(read.facts.cap_range, Some((Power::from_w(100), Power::from_w(300))));
        assert_eq!(read.facts.clock_range.unwrap().1, Frequency::from_mhz(1_530));
        assert!(reads[1].1.as_ref().unwrap_err().contains("lost"));
        let cap = Power::from_w(99);
        let Event::CapSet { result, .. } = executor.execute(GpuCommand::Cap(0, cap)) else {
            panic!("no result")
        };
        assert!(!result.unwrap_err().unsupported);
    }
}

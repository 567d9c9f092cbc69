//! The thread that calls the driver, whose calls block: for microseconds, or for seconds if a GPU
//! hangs.
//!
//! It executes commands in order and reports each with one event. It loads the driver when the
//! GPUs are first read, and again after the driver has failed.

use std::collections::BTreeMap;
use std::sync::mpsc as blocking;

use tokio::sync::mpsc;
use wattle_common::{Frequency, GpuIndex, Power};
use wattle_gpu::{Driver, GpuError};

use crate::gpu_state::{GpuFacts, GpuStatus, SetError};
use crate::machine::Event;

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

/// Starts the thread; `open` loads the driver.
pub(super) fn start(
    open: impl Fn() -> Result<Box<dyn Driver>, GpuError> + Send + 'static,
    events: mpsc::Sender<Event>,
) -> std::io::Result<DriverThread> {
    let (sender, commands) = blocking::sync_channel(COMMANDS_MAX);
    let mut executor = Executor { open: Box::new(open), driver: None, facts: BTreeMap::new() };
    std::thread::Builder::new().name("driver".to_owned()).spawn(move || {
        for command in commands {
            if events.blocking_send(executor.execute(command)).is_err() {
                return; // the service has ended
            }
        }
    })?;
    Ok(DriverThread(sender))
}

type Open = Box<dyn Fn() -> Result<Box<dyn Driver>, GpuError> + Send>;

struct Executor {
    open: Open,
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
            none => none.insert((self.open)()?),
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
    // A property that the GPU lacks may only have failed this time.
    if facts.memory_mib.is_some() && facts.cap_range.is_some() && facts.clock_range.is_some() {
        known.insert(gpu, facts.clone());
    }
    let health = driver.health(gpu)?;
    let (cap, clock) = (reading.cap, reading.clock);
    let energy_total = reading.energy_total.or(reading.energy_module);
    let no_meter = reading.has_no_meter;
    Ok(GpuStatus { facts, cap, clock, energy_total, no_meter, health })
}

pub(super) fn facts(driver: &dyn Driver, gpu: GpuIndex) -> Result<GpuFacts, GpuError> {
    let info = driver.info(gpu)?;
    Ok(GpuFacts {
        uuid: info.uuid,
        gpu_type: info.gpu_type,
        memory_mib: info.memory_mib,
        cap_default: info.cap_default,
        cap_range: info.cap_min.zip(info.cap_max).filter(|(min, max)| min <= max),
        clock_range: info.clocks.first().copied().zip(info.clocks.last().copied()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_gpu::fake::{FakeDriver, FaultMode};

    #[test]
    fn each_command_has_one_true_result() {
        let mut node = FakeDriver::v100s(2);
        node.gpus[0].health.ecc_errors_uncorrected = Some(2);
        node.gpus[1].fault = FaultMode::Lost;
        let open = || panic!("the driver is open");
        let driver: Box<dyn Driver> = Box::new(node);
        let mut executor =
            Executor { open: Box::new(open), driver: Some(driver), facts: BTreeMap::new() };
        let Event::GpusRead(reads) = executor.execute(GpuCommand::Read) else { panic!("not read") };
        let read = reads[0].1.as_ref().unwrap();
        assert_eq!(read.facts.cap_range, Some((Power::from_w(100), Power::from_w(300))));
        assert_eq!(read.facts.clock_range.unwrap().1, Frequency::from_mhz(1_530));
        assert_eq!(read.health.ecc_errors_uncorrected, Some(2));
        assert!(reads[1].1.as_ref().unwrap_err().contains("lost"));
        let cap = Power::from_w(99);
        let Event::CapSet { result, .. } = executor.execute(GpuCommand::Cap(0, cap)) else {
            panic!("no result")
        };
        assert!(!result.unwrap_err().unsupported);
    }
}

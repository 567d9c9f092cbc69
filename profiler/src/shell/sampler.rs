//! The thread that reads the GPUs, because driver calls block.
//!
//! It samples at a regular grid with a deliberate jitter. An instant that is missed, because the
//! machine is busy or a GPU answers slowly, is skipped. The driver is loaded at the start and
//! again after it has failed.

use std::path::PathBuf;
use std::sync::mpsc as blocking;
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::rng::Stream;
use wattle_common::time::scaled;
use wattle_common::{GpuIndex, Timestamp};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver, GpuError, GpuInfo};
use wattle_runtime::clock;

use crate::gpu_tracker::{GpuIdentity, SampledGpu};
use crate::machine::Event;
use crate::process_tree::reader::OriginReader;

/// Pause before a failed driver is loaded again: wall time.
const DRIVER_RETRY: Duration = Duration::from_secs(2);

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub struct Sampler(
    #[expect(dead_code, reason = "dropping it ends the thread")] blocking::SyncSender<()>,
);

/// Receives the constant properties of a GPU when it is announced.
type Found = Box<dyn Fn(GpuIndex, &GpuInfo) + Send>;

/// Starts the thread, which reads every GPU about `every` (system time) and sends `events`; `found` receives
/// the properties of each GPU.
///
/// # Errors
/// Where no thread can be created.
pub fn start(
    library: Option<PathBuf>,
    every: Duration,
    events: mpsc::Sender<Event>,
    found: impl Fn(GpuIndex, &GpuInfo) + Send + 'static,
) -> std::io::Result<Sampler> {
    let (sender, stop) = blocking::sync_channel(0);
    std::thread::Builder::new().name("gpus".to_owned()).spawn(move || {
        let mut thread = SamplerThread {
            library,
            driver: None,
            gpus: 0,
            known: Vec::new(),
            origins: OriginReader::default(),
            found: Box::new(found),
        };
        let mut at = clock::now();
        let mut rng = Stream::new(0, "sampling instants");
        loop {
            if let Err(Ended) = thread.sample_once(&events) {
                return;
            }
            at = next(at, every, clock::now());
            let due = jittered(at, every, rng.unit());
            loop {
                let wait = clock::wall_until(due);
                let wait = if thread.driver.is_some() { wait } else { DRIVER_RETRY };
                if !matches!(stop.recv_timeout(wait), Err(blocking::RecvTimeoutError::Timeout)) {
                    return;
                }
                // A simulated clock may have been held meanwhile.
                if thread.driver.is_none() || clock::now() >= due {
                    break;
                }
            }
        }
    })?;
    Ok(Sampler(sender))
}

/// The first instant of the grid after `now`.
fn next(at: Timestamp, every: Duration, now: Timestamp) -> Timestamp {
    let every = every.max(Duration::from_micros(1));
    let passed = now.since(at).as_micros() / every.as_micros();
    let steps = u64::try_from(passed).unwrap_or(u64::MAX).saturating_add(1);
    let step = u64::try_from(every.as_micros()).unwrap_or(u64::MAX);
    at + Duration::from_micros(step.saturating_mul(steps))
}

/// Jitters a grid instant by up to a quarter of the interval either way: evenly spaced samples
/// cannot distinguish a step shorter than their interval from a long one
/// ([`crate::period_detection`]).
fn jittered(at: Timestamp, every: Duration, unit: f64) -> Timestamp {
    let quarter = every / 4;
    let early = at.as_us().saturating_sub(u64::try_from(quarter.as_micros()).unwrap_or(u64::MAX));
    Timestamp::from_us(early) + scaled(quarter, 2.0 * unit)
}

/// The properties and readings of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It has not been read.
    New,
    /// Its properties could not be read, which is in the log.
    Failed,
    /// It has been announced.
    Announced,
}

/// The receiver of events has ended.
struct Ended;

struct SamplerThread {
    library: Option<PathBuf>,
    driver: Option<Box<dyn Driver>>,
    gpus: u32,
    /// The properties and readings of each GPU.
    known: Vec<Known>,
    origins: OriginReader,
    found: Found,
}

impl SamplerThread {
    fn sample_once(&mut self, events: &mpsc::Sender<Event>) -> Result<(), Ended> {
        let event = match self.sample(events) {
            Ok(event) => event,
            Err(error) => {
                self.driver = None;
                Event::DriverFailed(error.to_string())
            }
        };
        match events.try_send(event) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended),
            // A sample dropped from a full channel is a gap like any other.
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
        }
    }

    fn sample(&mut self, events: &mpsc::Sender<Event>) -> Result<Event, GpuError> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => {
                let driver = NvmlDriver::open(self.library.as_deref())?;
                self.gpus = driver.count()?;
                self.known = vec![Known::New; self.gpus as usize];
                none.insert(Box::new(driver))
            }
        };
        announce(driver.as_ref(), &mut self.known, events, &self.found);
        let at = clock::now();
        let mut gpus = Vec::with_capacity(self.gpus as usize);
        for gpu in 0..self.gpus {
            let reading = driver.read(gpu);
            if let Err(error @ GpuError::DriverAbsent { .. }) = reading {
                return Err(error);
            }
            let processes = reading.as_ref().ok().and_then(|r| r.processes.as_ref());
            let origins =
                processes.into_iter().flatten().map(|p| self.origins.origin(p.pid)).collect();
            let reading = reading.map_err(|error| error.to_string());
            gpus.push(SampledGpu { gpu, reading, origins });
        }
        let alive = |pid| {
            gpus.iter()
                .filter_map(|tracker| tracker.reading.as_ref().ok())
                .any(|reading| reading.processes.iter().flatten().any(|process| process.pid == pid))
        };
        self.origins.retain(alive);
        Ok(Event::Sampled { at, gpus })
    }
}

/// Announces the GPUs that have not been: all at first, later those that could not be read then.
fn announce(
    driver: &dyn Driver,
    known: &mut [Known],
    events: &mpsc::Sender<Event>,
    on_found: &Found,
) {
    let mut found = Vec::new();
    for (gpu, known) in (0..).zip(known.iter_mut()).filter(|(_, known)| **known != Known::Announced)
    {
        match driver.info(gpu) {
            Ok(info) => {
                on_found(gpu, &info);
                found.push(GpuIdentity { gpu, uuid: info.uuid, gpu_type: info.gpu_type });
                *known = Known::Announced;
            }
            Err(error) => {
                if std::mem::replace(known, Known::Failed) == Known::New {
                    tracing::warn!(gpu, %error, "GPU without a type: its properties cannot be read");
                }
            }
        }
    }
    if !found.is_empty() && events.try_send(Event::GpusFound(found)).is_err() {
        known.fill(Known::New);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_instants_are_skipped() {
        let (at, ms) = (Timestamp::from_us, Duration::from_millis);
        assert_eq!(next(at(0), ms(100), at(5_000)), at(100_000));
        assert_eq!(next(at(0), ms(100), at(100_000)), at(200_000));
        assert_eq!(next(at(0), ms(100), at(950_000)), at(1_000_000));
        // A clock set back: the grid waits for it.
        assert_eq!(next(at(500_000), ms(100), at(0)), at(600_000));
    }

    #[test]
    fn jittered_samples_keep_their_order() {
        let (at, every) = (Timestamp::from_us, Duration::from_millis(100));
        assert_eq!(jittered(at(500_000), every, 0.0), at(475_000));
        assert_eq!(jittered(at(500_000), every, 0.5), at(500_000));
        // An early sample is not taken twice.
        assert_eq!(next(at(500_000), every, at(475_000)), at(600_000));
    }
}

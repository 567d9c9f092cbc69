//! Threads that read the providers, so that nothing else waits for them.
//!
//! Each signal has a thread. It is detached: a request in progress ends by its time-out and delays no shutdown.
//! When the [`Poller`] is dropped, the threads end after their present request.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use wattle_common::Timestamp;

use crate::client::{CarbonClient, read_prices};
use crate::config::GridConfig;
use crate::http::ReadError;
use crate::retry::Schedule;
use crate::series::{Signal, SignalSeries};

/// The result of one read.
#[derive(Debug)]
pub struct Read {
    /// What was read.
    pub signal: Signal,
    /// The values, or why there are none.
    pub result: Result<SignalSeries, String>,
}

/// The clocks of the caller.
#[derive(Clone, Copy)]
pub struct Clocks {
    /// The system's time.
    pub now: fn() -> Timestamp,
    /// Wall time.
    pub wall: fn() -> Timestamp,
}

/// Running reads; they end with it.
#[derive(Debug)]
pub struct Poller {
    /// Closed when the poller is dropped; nothing is sent.
    _stop: Vec<SyncSender<()>>,
}

impl Poller {
    /// Starts the reads of the configured signals. `report` returns false if nothing more is wanted; it must not
    /// wait for long.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn start(
        config: &GridConfig,
        clocks: Clocks,
        report: impl Fn(Read) -> bool + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let report = Arc::new(report);
        let mut stop = Vec::new();
        let mut run =
            |signal, poll_s, read: Box<dyn FnMut() -> Result<SignalSeries, ReadError> + Send>| {
                let (sender, stopped) = sync_channel(1);
                stop.push(sender);
                let report = report.clone();
                let schedule = Schedule::new(Duration::from_secs(poll_s), (clocks.wall)().as_us());
                let name = match signal {
                    Signal::Carbon => "grid-carbon",
                    Signal::Price => "grid-price",
                };
                std::thread::Builder::new()
                    .name(name.to_owned())
                    .spawn(move || poll(signal, schedule, read, &*report, &stopped))
            };
        if let Some(carbon) = config.carbon.clone() {
            let poll_s = carbon.poll_s;
            let mut client = CarbonClient::new(carbon);
            let read = move || client.read((clocks.now)(), (clocks.wall)());
            run(Signal::Carbon, poll_s, Box::new(read))?;
        }
        if let Some(price) = config.price.clone() {
            let poll_s = price.poll_s;
            run(Signal::Price, poll_s, Box::new(move || read_prices(&price, (clocks.now)())))?;
        }
        Ok(Self { _stop: stop })
    }
}

/// Reads until `stopped` is closed.
fn poll(
    signal: Signal,
    mut schedule: Schedule,
    mut read: impl FnMut() -> Result<SignalSeries, ReadError>,
    report: &(impl Fn(Read) -> bool + ?Sized),
    stopped: &Receiver<()>,
) {
    loop {
        let result = read();
        let pause = match &result {
            Ok(_) => schedule.succeeded(),
            Err(error) => schedule.failed(error.retry_after()),
        };
        let result = result.map_err(|error| error.to_string());
        if !report(Read { signal, result }) {
            return;
        }
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

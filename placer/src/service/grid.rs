//! Reads of the grid's providers: started by the active placer, on threads of their own.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use wattle_grid::GridConfig;
use wattle_grid::poller::{Clocks, Poller, Read};
use wattle_runtime::clock;

/// Reads that wait for the placer; further ones are dropped, because a later read has newer values.
const WAITING_MAX: usize = 8;

/// The running reads; they end with the placer's lease.
pub(super) struct GridReads {
    _poller: Option<Poller>,
    /// Keeps the channel open where nothing is read.
    _sender: mpsc::Sender<Read>,
    reads: mpsc::Receiver<Read>,
}

impl GridReads {
    pub(super) fn start(config: &GridConfig) -> Self {
        let (sender, reads) = mpsc::channel(WAITING_MAX);
        let clocks = Clocks { now: clock::now, wall: clock::wall_now };
        let report = {
            let sender = sender.clone();
            move |read| !matches!(sender.try_send(read), Err(TrySendError::Closed(_)))
        };
        let poller = match Poller::start(config, clocks, report) {
            Ok(poller) => Some(poller),
            Err(error) => {
                tracing::error!(
                    %error,
                    "no thread for the grid's providers: the static values of [grid] are in use"
                );
                None
            }
        };
        Self { _poller: poller, _sender: sender, reads }
    }

    pub(super) async fn next(&mut self) -> Option<Read> {
        self.reads.recv().await
    }
}

//! Submissions: received in batches, and refused when too many wait.
//!
//! The records of a batch are stored together, and reports and lease renewals have their turn after each
//! batch. A task of its own receives the requests, so that the client's queue never fills: it answers those
//! beyond the bound at once with the error code 503, and every client has an answer within the time for
//! which it waits. It answers so, too, while the placer has waited for the server for longer than
//! [`STALLED`], as it does while the server's disk is full.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use wattle_common::Machine as _;
use wattle_common::messages::{Reply, SubmitJob};
use wattle_runtime::bus::{Request, Requests, SERVICE_BUSY};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;

use super::storage::Room;
use super::{PlacerService, access};
use crate::live::{Action, Event};

/// Most submissions that are handled before other events.
const BATCH: usize = 64;
/// Most waiting submissions. At 400 per second, the lowest rate measured under load, the last one waits
/// for 1.3 s; a client waits for two.
const WAITING_MAX: usize = 512;
/// The refusal while the placer waits.
const WAITS: &str = "the placer waits for the NATS server to store values, so nothing is accepted; if that \
                     lasts, check the server's disk and log";
/// Shortest time between two log lines about refused submissions, wall time.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Time without a turn of submissions after which they are refused: below the two seconds for which a client
/// waits.
const STALLED: Duration = Duration::from_millis(1_500);

/// Since when submissions have had no turn; absent: they have one now.
#[derive(Clone, Default)]
struct Turn(Arc<Mutex<Option<Instant>>>);

impl Turn {
    /// Begins a turn, which ends when the result is dropped.
    fn begin(&self) -> TurnEnd {
        self.set(None);
        TurnEnd(self.clone())
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether there has been no turn for too long.
    fn is_stalled(&self) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= STALLED)
    }
}

struct TurnEnd(Turn);

impl Drop for TurnEnd {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

/// Received submissions.
pub(super) struct Submissions {
    waiting: mpsc::Receiver<Request>,
    turn: Turn,
}

impl Submissions {
    /// Receives requests until they end or the value is dropped.
    pub(super) fn new(requests: Requests) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        let turn = Turn::default();
        tokio::spawn(receive(requests, sender, turn.clone()));
        Self { waiting, turn }
    }

    /// The next submissions. Cancel-safe.
    pub(super) async fn next(&mut self) -> Vec<Request> {
        let _turn = self.turn.begin();
        let mut batch = Vec::with_capacity(BATCH);
        if self.waiting.recv_many(&mut batch, BATCH).await == 0 {
            // The requests end with the service.
            std::future::pending::<()>().await;
        }
        batch
    }
}

/// Passes requests on, and refuses those that find no room.
async fn receive(mut requests: Requests, waiting: mpsc::Sender<Request>, turn: Turn) {
    let (mut refused, mut logged_at) = (0_u64, None);
    let busy = format!(
        "the placer is busy: {WAITING_MAX} submissions wait; submit again in a few seconds"
    );
    loop {
        let request = tokio::select! {
            request = requests.next() => request,
            () = waiting.closed() => return,
        };
        let Some(request) = request else { return };
        let refusal = if turn.is_stalled() {
            Some((request, WAITS))
        } else {
            match waiting.try_send(request) {
                Ok(()) => None,
                Err(TrySendError::Full(request)) => Some((request, busy.as_str())),
                Err(TrySendError::Closed(_)) => return,
            }
        };
        if let Some((request, text)) = refusal {
            refused += 1;
            refuse(&request, text).await;
        }
        if refused > 0 && logged_at.is_none_or(|at: Instant| at.elapsed() >= LOG_EVERY) {
            tracing::warn!(refused, "more submissions than the placer handles: some were refused");
            (refused, logged_at) = (0, Some(Instant::now()));
        }
    }
}

async fn refuse(request: &Request, text: &str) {
    if let Err(error) = request.refuse(SERVICE_BUSY, text).await {
        tracing::debug!(error = chain(&error), "a refusal was not sent");
    }
}

impl PlacerService {
    /// Handles a batch of submissions.
    pub(super) async fn submitted(&mut self, batch: Vec<Request>, out: &mut Vec<Action>) {
        for request in batch {
            if let Some(event) = self.admit(request, out).await {
                self.placer.handle(clock::now(), event, out);
            }
        }
    }

    /// Decodes a submission, and refuses it if the bucket of jobs has no room.
    async fn admit(&mut self, request: Request, out: &mut Vec<Action>) -> Option<Event> {
        let (number, body) = self.receive::<SubmitJob>(request, access::submit).await?;
        let room = self.storage.room().await;
        if room != Room::Free {
            self.placer.handle(clock::now(), Event::JobsNearlyFull, out);
        }
        if room == Room::Full && !self.jobs.contains(body.spec.job.as_str()) {
            let error = self.storage.refusal();
            let reply = Reply::Refused { error: error.clone() };
            self.conclude(number, &reply, Some(&error)).await;
            return None;
        }
        Some(Event::Submitted(number, Box::new(body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn submissions_are_refused_after_a_time_without_a_turn() {
        let turn = Turn::default();
        assert!(!turn.is_stalled(), "before the first turn");
        let running = turn.begin();
        tokio::time::advance(STALLED * 2).await;
        assert!(!turn.is_stalled(), "the placer waits for submissions");
        drop(running);
        assert!(!turn.is_stalled());
        tokio::time::advance(STALLED).await;
        assert!(turn.is_stalled());
        let _again = turn.begin();
        assert!(!turn.is_stalled());
    }
}

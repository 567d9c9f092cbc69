//! Submissions: received in batches, and refused when too many wait.
//!
//! The records of a batch are stored together, and reports and lease renewals have their turn after each
//! batch. A task of its own receives the requests, so that the client's queue never fills: it answers those
//! beyond the bound at once with the error code 503, and every client has an answer within the time for
//! which it waits.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use wattle_common::messages::{Reply, SubmitJob};
use wattle_common::{AdmissionId, Machine as _, Timestamp, codec};
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
/// Shortest time between two log lines about refused submissions, wall time.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Makes the ids of accepted submissions.
pub(super) struct Admissions(u64);

impl Admissions {
    /// Begins at a random number, which differs between processes. The standard library draws it from the
    /// system's source of random numbers.
    pub(super) fn new() -> Self {
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// An id that was never made before.
    pub(super) fn next(&mut self, now: Timestamp) -> AdmissionId {
        self.0 = self.0.wrapping_add(1);
        AdmissionId::accepted(now, self.0)
    }
}

/// Received submissions.
pub(super) struct Submissions(mpsc::Receiver<Request>);

impl Submissions {
    /// Receives requests until they end or the value is dropped.
    pub(super) fn new(requests: Requests) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        tokio::spawn(receive(requests, sender));
        Self(waiting)
    }

    /// The next submissions. Cancel-safe.
    pub(super) async fn next(&mut self) -> Vec<Request> {
        let mut batch = Vec::with_capacity(BATCH);
        if self.0.recv_many(&mut batch, BATCH).await == 0 {
            // The requests end with the service.
            std::future::pending::<()>().await;
        }
        batch
    }
}

/// Passes requests on, and refuses those that find no room.
async fn receive(mut requests: Requests, waiting: mpsc::Sender<Request>) {
    let (mut refused, mut logged_at) = (0_u64, None);
    loop {
        let request = tokio::select! {
            request = requests.next() => request,
            () = waiting.closed() => return,
        };
        let Some(request) = request else { return };
        match waiting.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(request)) => {
                refused += 1;
                refuse(&request).await;
            }
            Err(TrySendError::Closed(_)) => return,
        }
        if refused > 0 && logged_at.is_none_or(|at: Instant| at.elapsed() >= LOG_EVERY) {
            tracing::warn!(refused, "more submissions than the placer handles: some were refused");
            (refused, logged_at) = (0, Some(Instant::now()));
        }
    }
}

async fn refuse(request: &Request) {
    let text = format!(
        "the placer is busy: {WAITING_MAX} submissions wait; submit again in a few seconds"
    );
    if let Err(error) = request.refuse(SERVICE_BUSY, &text).await {
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
        let is_new = !self.jobs.contains(body.spec.job.as_str());
        let of_user = body.spec.user.as_deref().unwrap_or_default();
        let len = codec::encode_json(&body.spec).len() as u64;
        let over = self.storage.refusal_to_user(self.placer.unfinished_bytes(of_user), len);
        let error = match over {
            _ if !is_new => None,
            Some(over) => Some(over),
            None => (room == Room::Full).then(|| self.storage.refusal()),
        };
        if let Some(error) = error {
            let reply = Reply::Refused { error: error.clone() };
            self.conclude(number, &reply, Some(&error)).await;
            return None;
        }
        let admission = self.admissions.next(clock::now());
        Some(Event::Submitted(number, admission, Box::new(body)))
    }
}

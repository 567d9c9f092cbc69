//! The log of orders: the person, the order, and whether it was accepted.
//!
//! Records are stored in the background, in order, and repeated until the server has acknowledged
//! them. Their number is bounded: while the server is away, the newest are dropped and counted in the
//! log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use wattle_common::messages::{Order, OrderRecord};
use wattle_common::subject::{Rank, Requester, Subject};

use crate::bus::{Bus, Request};
use crate::clock;
use crate::shell::chain;

/// Most records that wait for the server.
const WAITING_MAX: usize = 4_096;
/// Pause before a record is stored again, wall time.
const RETRY: Duration = Duration::from_millis(500);
/// Longest error text of a record, in characters.
const ERROR_LEN_MAX: usize = 300;

/// Stores the orders that a service answers.
pub struct OrderLog {
    proven: bool,
    records: mpsc::Sender<(String, OrderRecord)>,
    count: AtomicU64,
    service: String,
    _task: AbortOnDropHandle<()>,
}

impl OrderLog {
    /// The log of orders answered by `service`.
    #[must_use]
    pub fn new(bus: &Bus, service: &str) -> Self {
        let (records, waiting) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(store(bus.clone(), waiting));
        Self {
            proven: bus.has_own_key(),
            records,
            count: AtomicU64::new(0),
            // Unique over restarts: message ids remove duplicates.
            service: format!("{service}-{}-{}", std::process::id(), clock::wall_now().as_us()),
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Records an order that is answered now; `refused` has the reason of a refusal.
    pub fn record(&self, requester: &Requester, order: Order, refused: Option<&str>) {
        let short = |text: &str| text.chars().take(ERROR_LEN_MAX).collect();
        let record = OrderRecord {
            at_us: clock::now(),
            requester: requester.clone(),
            proven: self.proven,
            order,
            refused: refused.map(short),
        };
        let id = format!("{}-{}", self.service, self.count.fetch_add(1, Ordering::Relaxed));
        if let Err(error) = self.records.try_send((id, record)) {
            let (_, record) = error.into_inner();
            tracing::error!(
                requester = %record.requester,
                order = %record.order,
                refused = record.refused,
                "order not stored in the log of orders: too many wait for the nats server"
            );
        }
    }
}

async fn store(bus: Bus, mut waiting: mpsc::Receiver<(String, OrderRecord)>) {
    let subject = Subject::of_orders(bus.cluster().clone());
    while let Some((id, record)) = waiting.recv().await {
        let mut logged = false;
        while let Err(error) = bus.store(&subject, &id, &record).await {
            if !std::mem::replace(&mut logged, true) {
                let error = chain(&error);
                tracing::warn!(error, "log of orders not stored; retrying");
            }
            if !error_is_passing(&bus, &error) {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Whether a repetition may succeed: the server is away, or does not answer yet.
fn error_is_passing(bus: &Bus, error: &crate::bus::BusError) -> bool {
    error.is_transient() || !bus.is_connected()
}

/// The person who sent a request.
///
/// # Errors
/// Why the request is refused: without a requester, or with an identity that the server has not proven
/// although the service has a key of the role table.
pub fn requester_of(bus: &Bus, request: &Request) -> Result<Requester, String> {
    let requester = request
        .requester()
        .ok_or_else(|| format!("subject {} names no requester", request.subject))?;
    if requester.rank == Rank::Local && bus.has_own_key() {
        return Err(
            "this cluster accepts orders with a key only: name yours with --credentials or \
                    WATTLE_CREDENTIALS"
                .to_owned(),
        );
    }
    Ok(requester)
}

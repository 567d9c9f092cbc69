//! The lease of a service, in the bucket `leases`; [`wattle_common::lease`] has the rules.
//!
//! A [`LeaderElector`] is on standby until it acquires the lease. A task of the [`Leadership`] then renews it, also
//! while the service is busy. The lease is read in the server's JSON envelope (see [`super::follow`]).
//!
//! While the server is away the lease cannot be renewed and ends. If no other process acquires it, the
//! first renewal after the outage continues it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use wattle_common::codec;
use wattle_common::lease::{Holding, Refusal, SERVICE_LEASE_MIN, Standby, Step, StoredLease};
use wattle_common::messages::{LeaseHolder, ServiceLease};
use wattle_common::subject::{Bucket, LeaseKey};

use super::copies::Copies;
use super::{ANSWER_WITHIN, Bus, BusError, KvBucket};
use crate::shell::chain;
use crate::{clock, instance};

/// Pause before a failed read or write is repeated, wall time.
const RETRY: Duration = Duration::from_millis(250);
/// Pause between the signal of a change and the read: the value is stored after the signal.
const STORED_AFTER: Duration = Duration::from_millis(20);
/// Queued commands to the task that renews the lease.
const COMMANDS_MAX: usize = 16;

/// Most reads in a row that the server does not answer.
const READS_MAX: u32 = 10;

impl Bus {
    /// The process that holds the lease `key`: it waits until the lease is renewed, released or over. `None`: no
    /// process holds it. On a busy machine this finds a process that answers no request in time.
    ///
    /// # Errors
    /// As [`Bus::bucket`], or if the lease cannot be read.
    pub async fn lease_holder(&self, key: &LeaseKey) -> Result<Option<LeaseHolder>, BusError> {
        let bucket = self.bucket(Bucket::Leases).await?;
        let mut standby = Standby::new(instance::holder(), SERVICE_LEASE_MIN);
        let (mut first, mut unanswered) = (None, 0);
        loop {
            let stored = match read(&bucket, key).await {
                Ok(stored) => stored,
                Err(error) if error.is_transient() && unanswered < READS_MAX => {
                    unanswered += 1;
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            unanswered = 0;
            let step = standby.read(clock::monotonic(), &stored, instance::has_ended);
            let Step::Read { after } = step else { return Ok(None) };
            if *first.get_or_insert(stored.revision) != stored.revision {
                return Ok(stored.lease.map(|lease| lease.holder));
            }
            tokio::time::sleep(after).await;
        }
    }
}

async fn read(bucket: &KvBucket, key: &LeaseKey) -> Result<StoredLease, BusError> {
    let change = bucket.read_enveloped(&key.to_string()).await?;
    Ok(change.map_or(StoredLease { revision: 0, lease: None }, |change| {
        let lease = change.value.and_then(|value| codec::decode_json(&value).ok());
        StoredLease { revision: change.revision, lease }
    }))
}

/// Acquires the lease of a service for this process, against the others of the same service.
#[derive(Clone)]
pub struct LeaderElector {
    bucket: KvBucket,
    key: LeaseKey,
    own: LeaseHolder,
    length: Duration,
    copies: Copies,
    _following: Arc<Vec<AbortOnDropHandle<()>>>,
}

/// Why the lease cannot be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease of the {service} is held by another process ({})", holder.instance)]
pub struct LeaseLost {
    /// The service.
    pub service: String,
    /// The process that holds it.
    pub holder: LeaseHolder,
}

impl LeaderElector {
    /// An elector for the lease `key` of this `length` (wall time). Waits for the server.
    ///
    /// # Errors
    /// As [`Bus::bucket`].
    pub async fn new(bus: &Bus, key: LeaseKey, length: Duration) -> Result<Self, BusError> {
        Self::with_copies(bus, key, length, &[]).await
    }

    /// As [`Self::new`], with copies of the buckets that the holder writes: it stores them again if the server
    /// has lost them.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub async fn with_copies(
        bus: &Bus,
        key: LeaseKey,
        length: Duration,
        buckets: &[Bucket],
    ) -> Result<Self, BusError> {
        let bucket = bus.bucket(Bucket::Leases).await?;
        let copies = Copies::default();
        let following = Arc::new(copies.follow(bus, buckets).await);
        Ok(Self { bucket, key, own: instance::holder(), length, copies, _following: following })
    }

    /// The number of values in the copy of `bucket`.
    #[must_use]
    pub fn copied(&self, bucket: Bucket) -> usize {
        self.copies.len(bucket)
    }

    /// Waits until this process holds the lease. `on_standby` is called with the lease of each other
    /// holder, once. Cancel-safe: a lease that was acquired and not returned ends by itself.
    pub async fn acquire(&self, mut on_standby: impl FnMut(&ServiceLease)) -> Leadership {
        let mut standby = Standby::new(self.own.clone(), self.length);
        let mut reported: Option<LeaseHolder> = None;
        let subject = self.bucket.subject(&self.key.to_string());
        // Without signals, the regular reads suffice.
        let mut signals = match self.bucket.bus().subscriber(subject).await {
            Ok(signals) => signals.boxed(),
            Err(_) => futures_util::stream::pending().boxed(),
        };
        loop {
            let after = match self.read().await {
                Ok(stored) => {
                    let step = standby.read(clock::monotonic(), &stored, instance::has_ended);
                    match step {
                        Step::Acquire { revision } => {
                            let lease = standby.lease(clock::now());
                            match self.write(&lease, revision).await {
                                Ok(holding) => return Leadership::start(self, holding, lease),
                                // Another process was faster.
                                Err(BusError::Conflict { .. }) => Duration::ZERO,
                                Err(error) => self.failed("not acquired", &error).await,
                            }
                        }
                        Step::Read { after } => {
                            if let Some(lease) = &stored.lease
                                && reported.as_ref() != Some(&lease.holder)
                            {
                                reported = Some(lease.holder.clone());
                                on_standby(lease);
                            }
                            after
                        }
                    }
                }
                Err(error) => self.failed("not read", &error).await,
            };
            tokio::select! {
                () = tokio::time::sleep(after) => {}
                Some(_) = signals.next() => tokio::time::sleep(STORED_AFTER).await,
            }
        }
    }

    async fn read(&self) -> Result<StoredLease, BusError> {
        read(&self.bucket, &self.key).await
    }

    /// Replaces `revision`.
    async fn write(&self, lease: &ServiceLease, revision: u64) -> Result<Holding, BusError> {
        let sent = clock::monotonic();
        let revision = self.bucket.update(&self.key.to_string(), lease, revision).await?;
        Ok(Holding::new(self.own.clone(), self.length, sent, revision))
    }

    /// The pause after an error; a lost bucket is created again where this process may.
    async fn failed(&self, what: &str, error: &BusError) -> Duration {
        tracing::debug!(lease = %self.key, error = chain(error), "lease {what}; retrying");
        if self.bucket.bus().is_connected() {
            let _ = self.bucket.ensure().await;
        }
        RETRY
    }
}

/// A lease that this process holds until it is released, lost or dropped.
#[derive(Clone)]
pub struct Leadership(Arc<Inner>);

struct Inner {
    key: LeaseKey,
    status: watch::Receiver<Status>,
    commands: mpsc::Sender<Command>,
    copies: Copies,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Debug)]
enum Status {
    Held { confirmed: Duration, valid_until: Duration },
    Lost(LeaseHolder),
}

enum Command {
    Confirm,
    Release(oneshot::Sender<()>),
}

impl Leadership {
    fn start(elector: &LeaderElector, holding: Holding, lease: ServiceLease) -> Self {
        let (sender, status) = watch::channel(status_of(&holding));
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (key, copies) = (elector.key.clone(), elector.copies.clone());
        let keeper = Keeper { elector: elector.clone(), holding, lease, status: sender };
        let task = AbortOnDropHandle::new(tokio::spawn(keeper.run(received)));
        Self(Arc::new(Inner { key, status, commands, copies, _task: task }))
    }

    /// The copies of this process.
    pub(super) fn copies(&self) -> &Copies {
        &self.0.copies
    }

    /// Whether the lease has not ended, by this process's own clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match &*self.0.status.borrow() {
            Status::Held { valid_until, .. } => clock::monotonic() < *valid_until,
            Status::Lost(_) => false,
        }
    }

    /// Waits until a renewal that was sent after this call is stored, which proves that no other process
    /// held the lease until then.
    ///
    /// # Errors
    /// If another process holds the lease.
    pub async fn confirm(&self) -> Result<(), LeaseLost> {
        let requested = clock::monotonic();
        // The task ends only when the lease is lost.
        let _ = self.0.commands.send(Command::Confirm).await;
        self.until(|confirmed| confirmed >= requested).await
    }

    /// Returns when another process holds the lease.
    pub async fn lost(&self) -> LeaseLost {
        match self.until(|_| false).await {
            Err(lost) => lost,
            Ok(()) => std::future::pending().await,
        }
    }

    async fn until(&self, is_confirmed: impl Fn(Duration) -> bool) -> Result<(), LeaseLost> {
        let mut status = self.0.status.clone();
        let reached = status.wait_for(|status| match status {
            Status::Held { confirmed, .. } => is_confirmed(*confirmed),
            Status::Lost(_) => true,
        });
        let reached = reached.await.map(|status| status.clone());
        match reached {
            Ok(Status::Lost(holder)) => Err(LeaseLost { service: self.0.key.label(), holder }),
            Ok(Status::Held { .. }) => Ok(()),
            // The task has ended: released.
            Err(_) => std::future::pending().await,
        }
    }

    /// Releases the lease, so that another process acquires it at once.
    pub async fn release(&self) {
        let (done, ended) = oneshot::channel();
        if self.0.commands.send(Command::Release(done)).await.is_ok() {
            let _ = tokio::time::timeout(ANSWER_WITHIN * 2, ended).await;
        }
    }
}

fn status_of(holding: &Holding) -> Status {
    Status::Held { confirmed: holding.confirmed(), valid_until: holding.valid_until() }
}

/// Renews the lease.
struct Keeper {
    elector: LeaderElector,
    holding: Holding,
    lease: ServiceLease,
    status: watch::Sender<Status>,
}

impl Keeper {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut pause = Duration::ZERO;
        loop {
            let due = self.holding.renew_at().saturating_sub(clock::monotonic()).max(pause);
            let command = tokio::select! {
                () = tokio::time::sleep(due) => Command::Confirm,
                command = commands.recv() => match command {
                    Some(command) => command,
                    None => return,
                },
            };
            match command {
                Command::Confirm => match self.renew().await {
                    Ok(retry) => pause = retry,
                    Err(holder) => {
                        self.status.send_replace(Status::Lost(holder));
                        return;
                    }
                },
                Command::Release(done) => {
                    self.lease.released = true;
                    let written = self.elector.write(&self.lease, self.holding.revision()).await;
                    if let Err(error) = written {
                        let error = chain(&error);
                        tracing::debug!(error, "lease not released; it ends at its time");
                    }
                    self.status.send_replace(Status::Lost(self.lease.holder.clone()));
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    /// Renews the lease; returns the pause before a failed renewal is repeated.
    async fn renew(&mut self) -> Result<Duration, LeaseHolder> {
        let error = match self.elector.write(&self.lease, self.holding.revision()).await {
            Ok(renewed) => {
                self.holding.renewed(renewed.confirmed(), renewed.revision());
                self.status.send_replace(status_of(&self.holding));
                return Ok(Duration::ZERO);
            }
            Err(error) => error,
        };
        if !matches!(error, BusError::Conflict { .. }) {
            return Ok(self.elector.failed("not renewed", &error).await);
        }
        match self.elector.read().await {
            Ok(stored) => match self.holding.refused(&stored) {
                Refusal::Lost(holder) => Err(holder),
                // Its answer is awaited: renew at once.
                Refusal::Renew => Box::pin(self.renew()).await,
            },
            Err(error) => Ok(self.elector.failed("not read", &error).await),
        }
    }
}

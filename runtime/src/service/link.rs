//! The bus side of a node's service, whose machine always runs.

use std::time::Duration;

use tokio::sync::watch;
use wattle_common::subject::LeaseKey;

use super::{LeaseMode, Shell};
use crate::bus::{self, Bus, BusError, Claim, Claimed, LeaderElector, Leadership};
use crate::shell::chain;

/// Pause before everything is opened again, wall time.
const PAUSE: Duration = Duration::from_secs(1);

/// What a node's service does on the bus.
pub trait Link: Sized {
    /// The configuration, and the channels between the machine and the bus.
    type Setup;

    /// Opens buckets and watches. What it starts also runs on standby.
    ///
    /// # Errors
    /// As the bus; everything is opened again.
    fn open(setup: &Self::Setup, bus: &Bus) -> impl Future<Output = Result<Self, BusError>> + Send;

    /// The work of the active process, registered as `service`. Returns when the machine has ended and its
    /// last message is stored. It is dropped when another process is active.
    ///
    /// # Errors
    /// As the bus; everything is opened again.
    fn work(&mut self, service: bus::Service) -> impl Future<Output = Result<(), BusError>> + Send;
}

/// How this process competes for its node.
enum Contest<'a> {
    Lease { elector: LeaderElector, key: &'a LeaseKey, on_standby: &'static str },
    Report { claim: Claim, on_standby: &'static str },
}

/// What makes this process the active one.
enum Held<'a> {
    Lease { lease: Leadership, key: &'a LeaseKey },
    Report(Claimed<'a>),
}

impl Shell {
    /// Works on the bus in each phase in which this process is active, until the machine has ended, which
    /// closes the sender of `machine`. Retries while the bus is away.
    ///
    /// # Panics
    /// If `mode` is not one of a node's service.
    pub async fn follow<L: Link, T>(
        self,
        mode: LeaseMode,
        setup: L::Setup,
        machine: watch::Receiver<T>,
    ) {
        while let Err(error) = self.follow_once::<L, T>(&mode, &setup, &machine).await {
            tracing::error!(error = chain(&error), "no bus; retrying");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow_once<L: Link, T>(
        &self,
        mode: &LeaseMode,
        setup: &L::Setup,
        machine: &watch::Receiver<T>,
    ) -> Result<(), BusError> {
        let open = async {
            let bus = self.connect().await?;
            let link = L::open(setup, &bus).await?;
            let contest = self.contest(&bus, mode).await?;
            Ok::<_, BusError>((bus, link, contest))
        };
        let (bus, mut link, contest) = tokio::select! {
            open = open => open?,
            () = closed(machine) => return Ok(()),
        };
        loop {
            let held = tokio::select! {
                held = self.acquire(&bus, &contest) => held?,
                () = closed(machine) => break,
            };
            let work = async {
                // A launcher is found by its report and registers without a state.
                let state = mode.lease().map(|_| "active");
                link.work(self.register(&bus, state).await?).await
            };
            let is_responsible = || match &held {
                Held::Lease { lease, .. } => lease.is_valid(),
                Held::Report(_) => bus.is_connected(),
            };
            let worked = tokio::select! {
                worked = work => worked,
                () = self.lost(&held) => continue,
                calls = bus.unanswered(self.unanswered_max(), is_responsible) => {
                    self.log_unanswered(&calls, "everything is opened again");
                    Err(BusError::Timeout { what: calls })
                }
            };
            // Also after an error: the next holder is another process.
            if let Held::Lease { lease, .. } = &held {
                lease.release().await;
            }
            worked?;
            break;
        }
        bus.flush().await;
        Ok(())
    }

    async fn contest<'a>(&self, bus: &Bus, mode: &'a LeaseMode) -> Result<Contest<'a>, BusError> {
        match mode {
            LeaseMode::Node { key, length, on_standby } => {
                let elector = LeaderElector::new(bus, key.clone(), *length).await?;
                Ok(Contest::Lease { elector, key, on_standby })
            }
            LeaseMode::Report { node, newest, heartbeat, on_standby } => {
                let claim = Claim::new(bus, node, *heartbeat, newest.clone()).await?;
                Ok(Contest::Report { claim, on_standby })
            }
            LeaseMode::Fenced { .. } | LeaseMode::Checked { .. } => {
                panic!("{mode:?} is not a mode of a node's service")
            }
        }
    }

    /// Waits until this process is the active one of its node.
    async fn acquire<'a>(&self, bus: &Bus, contest: &'a Contest<'a>) -> Result<Held<'a>, BusError> {
        match contest {
            Contest::Lease { elector, key, on_standby } => {
                let log = |other: &str| tracing::error!(other, "{on_standby}");
                Ok(Held::Lease { lease: self.stand_by(bus, key, elector, log).await?, key })
            }
            Contest::Report { claim, on_standby } => {
                Ok(Held::Report(claim.acquire(on_standby).await?))
            }
        }
    }

    /// Returns when another process is the active one of the node.
    async fn lost(&self, held: &Held<'_>) {
        match held {
            Held::Lease { lease, key } => self.log_lost(key, &lease.lost().await),
            // The next claim logs it.
            Held::Report(claimed) => claimed.lost().await,
        }
    }
}

/// Returns when the sender is gone.
async fn closed<T>(machine: &watch::Receiver<T>) {
    let mut machine = machine.clone();
    while machine.changed().await.is_ok() {}
}

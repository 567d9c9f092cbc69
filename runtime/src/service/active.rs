//! A service that works only while its process is active.
//!
//! An active process is responsible for its service, so no wait of it is without an end: when the server renews the
//! lease and leaves one bucket or stream without an answer for [`UNANSWERED_MAX`], the lease is released, an alarm
//! names the bucket or stream, and another process may take over. While no lease can be renewed there is nothing to
//! give up.

use std::time::Duration;

use tokio::time::Instant;
use wattle_common::Machine;
use wattle_common::subject::Bucket;

use super::shell::{UNANSWERED_MAX, other_is_active};
use super::{LeaseMode, Shell};
use crate::bus::{
    self, Bus, BusError, ExclusiveBucket, ExclusiveError, LeaderElector, Leadership, LeaseLost,
};
use crate::shell::Shutdown;
use crate::{clock, driver};

/// Interval in which the buckets of an active process are checked, wall time.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The actions of a service's machine.
pub type Actions<S> = Vec<<<S as Service>::Machine as Machine>::Action>;

/// The result of a step of a service: why it cannot continue.
pub type Step<S, T = ()> = Result<T, End<<S as Service>::Failure>>;

/// A machine that exists while its process is active, with its sources and the targets of its actions.
#[expect(async_fn_in_trait, reason = "every implementation is run by its own program")]
pub trait Service: Sized {
    /// The machine.
    type Machine: Machine;
    /// What the sources deliver.
    type Input;
    /// What outlives an active phase: the configuration and the metrics.
    type Setup;
    /// Why the service cannot continue.
    type Failure: From<BusError>;

    /// Prepares the server's storage, once after the start and also on standby.
    ///
    /// # Errors
    /// If the service cannot work.
    async fn prepare(_: &Bus) -> Result<(), Self::Failure> {
        Ok(())
    }

    /// Restores the machine from the store and opens the sources, as after a restart. May wait; a shutdown
    /// interrupts it. It registers the process with [`Phase::register`] when requests can be answered.
    ///
    /// # Errors
    /// If the service cannot work, or another process holds the lease.
    async fn open(setup: &Self::Setup, phase: Phase<'_>) -> Step<Self, Self>;

    /// This process becomes active, or returns to standby; for the metrics.
    fn set_active(setup: &Self::Setup, active: bool);

    /// A lease that had ended is confirmed: no other process was active, but the server or this process was
    /// away.
    fn was_away(&mut self) {}

    /// Buckets of which each process keeps a copy in memory, also on standby: those with values that no other
    /// service can make again.
    const COPIED: &'static [Bucket] = &[];

    /// The buckets that only this service writes, which are checked regularly for values that the server has lost.
    fn buckets(&mut self) -> Vec<&mut ExclusiveBucket> {
        Vec::new()
    }

    /// The machine.
    fn machine(&mut self) -> &mut Self::Machine;

    /// The next input of the sources; `None` if one has ended, which ends the service. Cancel-safe.
    async fn next(&mut self) -> Option<Self::Input>;

    /// Passes an input to the machine.
    ///
    /// # Errors
    /// If the service cannot continue.
    async fn handle(&mut self, input: Self::Input, actions: &mut Actions<Self>) -> Step<Self>;

    /// Wakes the machine, at or after the instant that it has requested.
    async fn wake(&mut self, actions: &mut Actions<Self>) {
        self.machine().wake(clock::now(), actions);
    }

    /// Carries out all actions in their order.
    ///
    /// # Errors
    /// If the service cannot continue.
    async fn act(&mut self, actions: &mut Actions<Self>) -> Step<Self>;

    /// Completes pending work after shutdown or the end of a source.
    ///
    /// # Errors
    /// As for the actions.
    async fn close(&mut self) -> Step<Self> {
        Ok(())
    }
}

/// Why an active phase ended.
#[derive(Debug)]
pub enum End<E> {
    /// Shutdown was requested.
    Stopped,
    /// Another process holds the lease.
    Lost(LeaseLost),
    /// The server does not answer calls about a bucket or stream, which are named here.
    Unanswered(String),
    /// The service cannot continue.
    Failed(E),
}

impl<E> From<LeaseLost> for End<E> {
    fn from(lost: LeaseLost) -> Self {
        Self::Lost(lost)
    }
}

impl<E: From<BusError>> From<BusError> for End<E> {
    fn from(error: BusError) -> Self {
        Self::Failed(error.into())
    }
}

impl<E: From<ExclusiveError>> From<ExclusiveError> for End<E> {
    fn from(error: ExclusiveError) -> Self {
        match error {
            ExclusiveError::Lost(lost) => Self::Lost(lost),
            error @ ExclusiveError::Bus { .. } => Self::Failed(error.into()),
        }
    }
}

/// The connections of an active phase.
#[derive(Clone, Copy)]
pub struct Phase<'a> {
    /// The bus.
    pub bus: &'a Bus,
    /// The lease.
    pub lease: &'a Leadership,
    /// The shutdown signal, for actions that retry without a limit.
    pub shutdown: &'a Shutdown,
    shell: &'a Shell,
}

impl Phase<'_> {
    /// Registers this process as the active one.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn register(&self) -> Result<bus::Service, BusError> {
        self.shell.register(self.bus, Some("active")).await
    }
}

impl Shell {
    /// Runs the service until shutdown, in each phase in which this process holds the lease of `mode`.
    ///
    /// # Errors
    /// If the service cannot work.
    ///
    /// # Panics
    /// If `mode` has no lease.
    pub async fn run<S: Service>(
        self,
        mode: LeaseMode,
        setup: S::Setup,
        shutdown: &Shutdown,
    ) -> Result<(), S::Failure> {
        let (key, length) = mode.lease().expect("a mode with a lease");
        let connect = async {
            let bus = self.connect().await?;
            let prepared = tokio::select! {
                prepared = S::prepare(&bus) => prepared,
                // The process is of use on standby, and prepares again when it is active.
                calls = bus.unanswered(self.unanswered_max(), || bus.is_connected()) => {
                    self.log_unanswered(&calls, "this process is on standby meanwhile");
                    Ok(())
                }
            };
            prepared?;
            let elector = LeaderElector::with_copies(&bus, key.clone(), length, S::COPIED).await?;
            Ok::<_, S::Failure>((bus, elector))
        };
        let Some(connected) = shutdown.or(connect).await else { return Ok(()) };
        let (bus, elector) = connected?;
        // Repeated, because another process may take over while the server or this process is away.
        loop {
            let log = |other: &str| {
                let cluster = bus.cluster();
                tracing::warn!(%cluster, other, "{}; this one is on standby", other_is_active(key));
            };
            let lease = shutdown.or(self.stand_by(&bus, key, &elector, log)).await;
            let Some(lease) = lease else { return Ok(()) };
            let lease = lease?;
            S::set_active(&setup, true);
            let end = tokio::select! {
                end = self.serve::<S>(&setup, &bus, &lease, shutdown) => end,
                // What it does is dropped, as if it were killed.
                calls = bus.unanswered(self.unanswered_max(), || lease.is_valid()) => {
                    End::Unanswered(calls)
                }
            };
            S::set_active(&setup, false);
            if let End::Lost(lost) = &end {
                self.log_lost(key, lost);
                continue;
            }
            lease.release().await;
            bus.flush().await;
            match end {
                End::Unanswered(calls) => {
                    let what = "the lease is released, and another process may take over";
                    self.log_unanswered(&calls, what);
                    // Time for the others.
                    if shutdown.or(tokio::time::sleep(length)).await.is_none() {
                        return Ok(());
                    }
                }
                End::Failed(error) => return Err(error),
                End::Stopped | End::Lost(_) => return Ok(()),
            }
        }
    }

    /// One active phase.
    async fn serve<S: Service>(
        &self,
        setup: &S::Setup,
        bus: &Bus,
        lease: &Leadership,
        shutdown: &Shutdown,
    ) -> End<S::Failure> {
        let phase = Phase { bus, lease, shutdown, shell: self };
        let mut service = match shutdown.or(S::open(setup, phase)).await {
            Some(Ok(service)) => service,
            Some(Err(end)) => return end,
            None => return End::Stopped,
        };
        let end = match drive(&mut service, lease, shutdown).await {
            Ok(()) | Err(End::Stopped) => service.close().await.err().unwrap_or(End::Stopped),
            Err(end) => end,
        };
        drop(service);
        end
    }
}

/// The turns of an active phase, until shutdown, the loss of the lease, or the end of a source. A source
/// ends with the client of the bus only.
async fn drive<S: Service>(service: &mut S, lease: &Leadership, shutdown: &Shutdown) -> Step<S> {
    let mut actions = Vec::new();
    let mut check_at = Instant::now() + CHECK_EVERY;
    loop {
        service.act(&mut actions).await?;
        let wake = service.machine().next_wake();
        // Wake-ups and inputs are polled in random order: neither delays the other.
        let turn = async {
            tokio::select! {
                () = driver::wake_at(wake) => Turn::Woken,
                () = tokio::time::sleep_until(check_at) => Turn::Check,
                input = service.next() => input.map_or(Turn::Ended, Turn::Input),
            }
        };
        let turn = tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(()),
            lost = lease.lost() => return Err(End::Lost(lost)),
            turn = turn => turn,
        };
        if !lease.is_valid() {
            let Some(confirmed) = shutdown.or(confirm(lease)).await else { return Ok(()) };
            confirmed?;
            service.was_away();
        }
        match turn {
            Turn::Woken => service.wake(&mut actions).await,
            Turn::Check => {
                for bucket in service.buckets() {
                    match bucket.check().await {
                        Ok(()) => {}
                        Err(ExclusiveError::Lost(lost)) => return Err(End::Lost(lost)),
                        Err(ExclusiveError::Bus { source, .. }) => return Err(source.into()),
                    }
                }
                check_at = Instant::now() + CHECK_EVERY;
            }
            Turn::Input(input) => service.handle(input, &mut actions).await?,
            Turn::Ended => return Ok(()),
        }
    }
}

/// Confirms a lease that has ended. Another process may acquire it meanwhile, so this wait blocks nothing.
async fn confirm(lease: &Leadership) -> Result<(), LeaseLost> {
    loop {
        match tokio::time::timeout(UNANSWERED_MAX, lease.confirm()).await {
            Ok(confirmed) => return confirmed,
            Err(_) => tracing::error!(
                bucket = Bucket::Leases.token(),
                "the lease cannot be renewed, so nothing is decided: the nats server is away, or does not \
                 answer calls about the bucket"
            ),
        }
    }
}

/// What a turn begins with.
enum Turn<I> {
    Woken,
    /// The buckets are to be checked.
    Check,
    Input(I),
    Ended,
}

//! Drives a service's [`Machine`] with real time and events.
//!
//! The driver makes no decisions: it passes events to the machine, wakes it at its requested time, and
//! passes its actions to the shell, one at a time and in order. [`run`] ends at shutdown; [`drain`]
//! then completes the work that the machine must not leave open.

use tokio::sync::mpsc;
use wattle_common::Machine;

use crate::clock;
use crate::shell::Shutdown;

/// Most events handled before their actions are carried out; bounds the delay of actions and wakes
/// under load.
const BURST_MAX: usize = 64;

/// Runs `machine` until shutdown, or until all senders of `events` are gone.
///
/// `act` carries out one action; events wait in their bounded channel meanwhile.
pub async fn run<M: Machine>(
    machine: &mut M,
    events: &mut mpsc::Receiver<M::Event>,
    shutdown: &Shutdown,
    act: impl FnMut(M::Action),
) {
    drive(machine, events, Vec::new(), shutdown.wait(), |_| false, act).await;
}

/// Passes `stop` to `machine` and runs it until it is `drained`, or until all senders of `events` are
/// gone. The caller bounds the time where one exists.
pub async fn drain<M: Machine>(
    machine: &mut M,
    events: &mut mpsc::Receiver<M::Event>,
    stop: M::Event,
    drained: impl Fn(&M) -> bool,
    act: impl FnMut(M::Action),
) {
    let mut actions = Vec::new();
    machine.handle(clock::now(), stop, &mut actions);
    drive(machine, events, actions, std::future::pending(), drained, act).await;
}

async fn drive<M: Machine>(
    machine: &mut M,
    events: &mut mpsc::Receiver<M::Event>,
    mut actions: Vec<M::Action>,
    stopped: impl Future<Output = ()>,
    drained: impl Fn(&M) -> bool,
    mut act: impl FnMut(M::Action),
) {
    let mut burst = Vec::with_capacity(BURST_MAX);
    tokio::pin!(stopped);
    loop {
        actions.drain(..).for_each(&mut act);
        if drained(machine) {
            return;
        }
        let wake = machine.next_wake();
        tokio::select! {
            () = &mut stopped => return,
            () = wake_at(wake) => machine.wake(clock::now(), &mut actions),
            count = events.recv_many(&mut burst, BURST_MAX) => {
                if count == 0 {
                    return;
                }
                for event in burst.drain(..) {
                    machine.handle(clock::now(), event, &mut actions);
                }
            }
        }
    }
}

/// Returns at the requested time; never without one. The only place that waits for a machine's wake-up.
pub(crate) async fn wake_at(wake: Option<(wattle_common::Timestamp, &'static str)>) {
    match wake {
        Some((at, why)) => {
            clock::sleep_until(at).await;
            tracing::trace!(why, "woken");
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::Timestamp;

    use super::*;

    /// Echoes numbers, requests a wake 5 ms after each, and returns 0 when woken.
    #[derive(Default)]
    struct Echo {
        wake: Option<Timestamp>,
    }

    impl Machine for Echo {
        type Event = u32;
        type Action = u32;
        fn handle(&mut self, now: Timestamp, event: u32, out: &mut Vec<u32>) {
            out.push(event);
            self.wake = Some(now + Duration::from_millis(5));
        }
        fn wake(&mut self, _: Timestamp, out: &mut Vec<u32>) {
            out.push(0);
            self.wake = None;
        }
        fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
            self.wake.map(|at| (at, "echo due"))
        }
    }

    #[tokio::test]
    async fn events_and_wakes_become_actions_in_order() {
        let (sender, mut events) = mpsc::channel(4);
        let shutdown = Shutdown::default();
        let mut done = Vec::new();
        sender.send(7).await.unwrap();
        sender.send(8).await.unwrap();
        let stop = shutdown.clone();
        run(&mut Echo::default(), &mut events, &shutdown, |action| {
            done.push(action);
            if action == 0 {
                stop.request();
            }
        })
        .await;
        assert_eq!(done, [7, 8, 0]);
    }

    #[tokio::test]
    async fn driver_ends_with_the_last_sender() {
        let (sender, mut events) = mpsc::channel(4);
        sender.send(1).await.unwrap();
        drop(sender);
        let mut done = Vec::new();
        let shutdown = Shutdown::default();
        run(&mut Echo::default(), &mut events, &shutdown, |action| done.push(action)).await;
        assert_eq!(done, [1]);
    }

    #[tokio::test]
    async fn drain_wakes_the_machine_until_it_is_drained() {
        let (_sender, mut events) = mpsc::channel(1);
        let mut done = Vec::new();
        let drained = |echo: &Echo| echo.wake.is_none();
        drain(&mut Echo::default(), &mut events, 7, drained, |action| done.push(action)).await;
        assert_eq!(done, [7, 0]);
    }
}

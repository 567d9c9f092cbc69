//! Drives a service's [`Machine`] with real time and events.
//!
//! The driver makes no decisions: it passes events to the machine, wakes it at its requested time, and
//! passes its actions to the shell, one at a time and in order.

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
pub async fn run<M, F>(
    machine: &mut M,
    events: &mut mpsc::Receiver<M::Event>,
    shutdown: &Shutdown,
    mut act: F,
) where
    M: Machine,
    F: AsyncFnMut(M::Action),
{
    let mut actions = Vec::new();
    let mut burst = Vec::with_capacity(BURST_MAX);
    loop {
        let wake = machine.next_wake();
        tokio::select! {
            () = shutdown.wait() => return,
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
        for action in actions.drain(..) {
            act(action).await;
        }
    }
}

async fn wake_at(wake: Option<(wattle_common::Timestamp, &'static str)>) {
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
        run(&mut Echo::default(), &mut events, &shutdown, async |action| {
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
        run(&mut Echo::default(), &mut events, &shutdown, async |action| done.push(action)).await;
        assert_eq!(done, [1]);
    }
}

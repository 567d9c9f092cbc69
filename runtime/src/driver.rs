//! Drives a service's [`Machine`] with real time and real events.
//!
//! The simulator drives the very same machines with its own clock; this is the other of the two
//! drivers. It must not decide anything: it passes on events, wakes the machine when it asked to be
//! woken, and hands its actions to the shell, one after the other and in their order.

use tokio::sync::mpsc;
use wattle_common::Machine;

use crate::clock;
use crate::shell::Shutdown;

/// Events handled before their actions are carried out: bounds how late an action, or a wake, can
/// come under a flood of events.
const BURST_MAX: usize = 64;

/// Runs `machine` until `shutdown` is asked for or all senders of `events` are gone.
///
/// `act` carries out one action; while it does, events wait in their bounded channel.
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

    /// Echoes numbers, and asks to be woken 5 ms after each; says "0" when woken.
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
            self.wake.map(|at| (at, "an echo is due"))
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
    async fn it_ends_when_nobody_can_send_any_more() {
        let (sender, mut events) = mpsc::channel(4);
        sender.send(1).await.unwrap();
        drop(sender);
        let mut done = Vec::new();
        let shutdown = Shutdown::default();
        run(&mut Echo::default(), &mut events, &shutdown, async |action| done.push(action)).await;
        assert_eq!(done, [1]);
    }
}

//! What tests of several crates need: a real nats-server, programs written by a test, turns on the machine, waits
//! for a condition.

mod executable;
mod nats_server;
mod ports;
mod turns;

use std::io::{self, Write as _};
use std::time::Duration;

pub use executable::{copy_program, write_script};
pub use nats_server::NatsServer;
pub use turns::{Turn, Weight, turn};

use crate::bus::{ANSWER_WITHIN, Bus};

/// Wall time after which a test that waits for a condition has hung. How long the condition takes with real
/// processes depends on the machine, and is not asserted.
pub const HANG: Duration = Duration::from_secs(600);

/// Shortest pause between two looks at a condition.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause: 15 s of simulated time at the rate of most tests.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A pause is the time waited so far divided by this. A condition is found late by at most that share, and a long
/// wait leaves the machine to the processes under test.
const PAUSE_DIVISOR: u32 = 16;

/// States that a test, or a part of it, does not run here. The line is shown although the test passes.
pub fn skipped(reason: &str) {
    // Unlike `eprintln!`, this is not captured. Without stderr the line is lost.
    let _ = writeln!(io::stderr(), "SKIPPED: {reason}");
}

/// Polls `look` until it returns a value; `None` after `patience`.
///
/// The state of other processes can only be polled; this is the only function that polls.
pub async fn until<T>(patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let mut waited = Duration::ZERO;
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            let pause = (waited / PAUSE_DIVISOR).clamp(PAUSE_MIN, PAUSE_MAX);
            tokio::time::sleep(pause).await;
            waited += pause;
        }
    };
    tokio::time::timeout(patience, found).await.ok()
}

/// Publishes bytes to any subject, also to one that the server refuses; for tests of permissions.
///
/// # Errors
/// If the connection cannot take the message.
pub async fn publish(bus: &Bus, subject: &str, payload: Vec<u8>) -> io::Result<()> {
    let client = bus.client();
    client.publish(subject.to_owned(), payload.into()).await.map_err(io::Error::other)
}

/// Sends a request to any subject; `None` without an answer.
pub async fn request(bus: &Bus, subject: &str, payload: Vec<u8>) -> Option<Vec<u8>> {
    let client = bus.client();
    let reply = client.request(subject.to_owned(), payload.into());
    let reply = tokio::time::timeout(ANSWER_WITHIN, reply).await.ok()?.ok()?;
    // A service's error has no payload; without a responder there is only a status.
    Some(reply.payload.to_vec()).filter(|payload| !payload.is_empty())
}

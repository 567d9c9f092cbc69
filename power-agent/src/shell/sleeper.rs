//! Runs the operator's sleep command, and says what became of it.
//!
//! It decides nothing: the machine says when. The command may suspend the node, and this process
//! with it; then its answer comes after the node has woken, and the placer knows it for an old one.

use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::messages::SleepResult;
use wattle_common::{NodeId, Timestamp};
use wattle_runtime::command;

use crate::machine::Event;

/// Longest time, wall, that a sleep command may take. Our own choice: twice the 30 s after which
/// Slurm counts a node as down (`SuspendTimeout`), and less than the placer waits (`falls_ms`).
const SLEEP_WITHIN: Duration = Duration::from_secs(60);

/// What is needed to put the node to sleep.
pub(super) struct Sleeper {
    /// The operator's command.
    pub(super) command: Vec<String>,
    /// This node.
    pub(super) node: NodeId,
    /// Where the answer goes.
    pub(super) events: mpsc::Sender<Event>,
}

impl Sleeper {
    /// Runs the command beside everything else.
    pub(super) fn sleep(&self, requested_at_us: Timestamp) {
        let (command, node) = (self.command.clone(), self.node.clone());
        let events = self.events.clone();
        tokio::spawn(async move {
            let ended = command::run(&command, &node, SLEEP_WITHIN).await;
            let error = ended.err().map(|error| command::told(&error));
            // Nobody is there any more where the service was stopped meanwhile.
            let _ = events.send(Event::SleepAnswered(SleepResult { requested_at_us, error })).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Real commands: what they did is there, and how they ended is told.
    #[tokio::test]
    async fn the_command_is_run_for_this_node_and_its_end_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("{node}.asleep").display().to_string();
        let (events, mut inbox) = mpsc::channel(4);
        let node = NodeId::new("n3").expect("an id");
        let mut sleeper = Sleeper { command: vec!["touch".to_owned(), mark], node, events };
        sleeper.sleep(Timestamp::from_s(5));
        let answer = SleepResult { requested_at_us: Timestamp::from_s(5), error: None };
        assert_eq!(inbox.recv().await, Some(Event::SleepAnswered(answer)));
        assert!(folder.path().join("n3.asleep").exists());

        sleeper.command = ["sh", "-c", "echo not allowed >&2; exit 4"].map(str::to_owned).into();
        sleeper.sleep(Timestamp::from_s(6));
        let Some(Event::SleepAnswered(answer)) = inbox.recv().await else { panic!("no answer") };
        assert_eq!(answer.requested_at_us, Timestamp::from_s(6));
        assert_eq!(answer.error.as_deref(), Some("`sh` ended with exit status: 4: not allowed"));
    }
}

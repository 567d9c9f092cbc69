//! Runs the operator's sleep command and reports its result.
//!
//! The command may suspend the node and this process with it. Then the result is sent after the
//! node has woken, and the placer recognises it as the result of an old request.

use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::messages::SleepResult;
use wattle_common::{NodeId, Timestamp};
use wattle_runtime::command;
use wattle_runtime::shell::chain;

use crate::machine::Event;

/// Longest duration of a sleep command: wall time. Our own choice: twice the 30 s after which
/// Slurm counts a node as down (`SuspendTimeout`), and less than the placer waits (`falls_ms`).
const SLEEP_WITHIN: Duration = Duration::from_secs(60);

/// The sleep command of this node.
pub(super) struct SleepCommand {
    /// The operator's command.
    pub(super) command: Vec<String>,
    /// This node.
    pub(super) node: NodeId,
    /// The machine's events.
    pub(super) events: mpsc::Sender<Event>,
}

impl SleepCommand {
    /// Runs the command in a task of its own.
    pub(super) fn sleep(&self, requested_at_us: Timestamp) {
        let (command, node) = (self.command.clone(), self.node.clone());
        let events = self.events.clone();
        tokio::spawn(async move {
            let ended = command::run(&command, &node, SLEEP_WITHIN).await;
            let error = ended.err().map(|error| chain(&error));
            // Fails if the service has stopped.
            let _ = events.send(Event::SleepEnded(SleepResult { requested_at_us, error })).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_command_runs_for_this_node_and_its_result_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("{node}.asleep").display().to_string();
        let (events, mut inbox) = mpsc::channel(4);
        let node = NodeId::new("n3").expect("an id");
        let mut sleep_command =
            SleepCommand { command: vec!["touch".to_owned(), mark], node, events };
        sleep_command.sleep(Timestamp::from_s(5));
        let result = SleepResult { requested_at_us: Timestamp::from_s(5), error: None };
        assert_eq!(inbox.recv().await, Some(Event::SleepEnded(result)));
        assert!(folder.path().join("n3.asleep").exists());

        sleep_command.command =
            ["sh", "-c", "echo not allowed >&2; exit 4"].map(str::to_owned).into();
        sleep_command.sleep(Timestamp::from_s(6));
        let Some(Event::SleepEnded(result)) = inbox.recv().await else { panic!("no result") };
        assert_eq!(result.requested_at_us, Timestamp::from_s(6));
        assert_eq!(result.error.as_deref(), Some("`sh` ended with exit status: 4: not allowed"));
    }
}

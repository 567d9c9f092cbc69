//! Runs a command of the operator's: a program with its arguments, for a while, for one node.
//!
//! What it is for is told by whoever calls. A command must be idempotent: after a kill between an
//! order and its carrying out it is run again. It must not be handed anything that came over the
//! bus but the id of a node, which has no characters of a shell's.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use wattle_common::NodeId;

/// How much of what a failed command said is told.
const SAID_MAX: u64 = 2_000;

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no program in it.
    #[error("the command is empty; write [\"PROGRAM\", \"ARGUMENT\", ..]")]
    Empty,
    /// It cannot be started.
    #[error("`{program}` cannot be started")]
    Start {
        /// The program.
        program: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// It ended badly.
    #[error("`{program}` ended with {status}{said}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit code or signal.
        status: std::process::ExitStatus,
        /// What it wrote to its standard error, after a colon.
        said: String,
    },
    /// It did not end; it was killed.
    #[error("`{program}` did not end within {} s and was killed", .within.as_secs())]
    TooLong {
        /// The program.
        program: String,
        /// How long it had, wall time.
        within: Duration,
    },
}

/// Runs `command`, in which `{node}` stands for the node's id, for at most `within` of wall time.
/// It reads nothing, its output goes nowhere, and it may outlive this process.
///
/// # Errors
/// Where it cannot be started, ends with anything but 0, or does not end.
pub async fn run(command: &[String], node: &NodeId, within: Duration) -> Result<(), CommandError> {
    let mut words = command.iter().map(|word| word.replace("{node}", node.as_str()));
    let program = words.next().ok_or(CommandError::Empty)?;
    let start = |source| CommandError::Start { program: program.clone(), source };
    let mut child = Command::new(&program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let stderr = child.stderr.take();
    let ended = async {
        let status = child.wait().await;
        let mut said = Vec::new();
        if let (Some(stderr), Ok(status)) = (stderr, &status)
            && !status.success()
        {
            // What it left running in the background may hold the pipe open: what is there counts.
            let mut stderr = stderr.take(SAID_MAX);
            let read = stderr.read_to_end(&mut said);
            let _ = tokio::time::timeout(Duration::from_millis(200), read).await;
        }
        (status, String::from_utf8_lossy(&said).trim().to_owned())
    };
    match tokio::time::timeout(within, ended).await {
        Ok((Ok(status), _)) if status.success() => Ok(()),
        Ok((Ok(status), said)) => {
            let said = if said.is_empty() { said } else { format!(": {said}") };
            Err(CommandError::Failed { program, status, said })
        }
        Ok((Err(source), _)) => Err(CommandError::Start { program, source }),
        Err(_) => {
            // Gone already: then it needs no killing.
            let _ = child.kill().await;
            Err(CommandError::TooLong { program, within })
        }
    }
}

/// The error with its cause, in one line: it is told to people who do not see this process's log.
#[must_use]
pub fn told(error: &CommandError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str, within: Duration) -> Result<(), String> {
        let command = ["sh", "-c", script, "{node}"].map(str::to_owned);
        let node = NodeId::new("n7").expect("an id");
        run(&command, &node, within).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_command_knows_its_node_and_says_why_it_fails() {
        let long = Duration::from_secs(60);
        assert_eq!(sh("test \"$0\" = n7", long).await, Ok(()));
        let told = sh("echo no such host >&2; exit 3", long).await.expect_err("it fails");
        assert_eq!(told, "`sh` ended with exit status: 3: no such host");
        let told = sh("exec sleep 600", Duration::from_millis(50)).await.expect_err("it hangs");
        assert!(told.contains("did not end"), "{told}");
        let node = NodeId::new("n7").expect("an id");
        let missing = run(&["/no/such/program".to_owned()], &node, long).await;
        assert!(matches!(missing, Err(CommandError::Start { .. })), "{missing:?}");
    }
}

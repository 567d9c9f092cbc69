//! Runs an operator's command for one node, with a time limit.
//!
//! A command must be idempotent: after a kill it may run again. Its only argument from the bus is the
//! id of a node, which contains no shell characters.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use wattle_common::NodeId;

/// Most bytes of a failed command's standard error in the error message.
const STDERR_MAX: u64 = 2_000;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No program.
    #[error("the command is empty; write [\"PROGRAM\", \"ARGUMENT\", ..]")]
    Empty,
    /// The program cannot be started.
    #[error("`{program}` cannot be started")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Ended with an error.
    #[error("`{program}` ended with {status}{stderr}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit code or signal.
        status: std::process::ExitStatus,
        /// Its standard error, after a colon.
        stderr: String,
    },
    /// Exceeded its time and was killed.
    #[error("`{program}` did not end within {} s and was killed", .within.as_secs())]
    TooLong {
        /// The program.
        program: String,
        /// The limit, wall time.
        within: Duration,
    },
}

/// Runs `command` for at most `within` of wall time; `{node}` is replaced by the node's id.
///
/// It has no input, its output is discarded, and it may outlive this process.
///
/// # Errors
/// If it cannot be started, ends with another status than 0, or does not end in time.
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
    let pipe = child.stderr.take();
    let ended = async {
        let status = child.wait().await;
        let mut stderr = Vec::new();
        if let (Some(pipe), Ok(status)) = (pipe, &status)
            && !status.success()
        {
            // A background process of it may keep the pipe open: read what is available.
            let mut pipe = pipe.take(STDERR_MAX);
            let read = pipe.read_to_end(&mut stderr);
            let _ = tokio::time::timeout(Duration::from_millis(200), read).await;
        }
        (status, String::from_utf8_lossy(&stderr).trim().to_owned())
    };
    match tokio::time::timeout(within, ended).await {
        Ok((Ok(status), _)) if status.success() => Ok(()),
        Ok((Ok(status), stderr)) => {
            let stderr = if stderr.is_empty() { stderr } else { format!(": {stderr}") };
            Err(CommandError::Failed { program, status, stderr })
        }
        Ok((Err(source), _)) => Err(CommandError::Start { program, source }),
        Err(_) => {
            // An error means that it has ended already.
            let _ = child.kill().await;
            Err(CommandError::TooLong { program, within })
        }
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
    async fn command_receives_the_node_and_reports_failure() {
        let long = Duration::from_secs(60);
        assert_eq!(sh("test \"$0\" = n7", long).await, Ok(()));
        let error = sh("echo no such host >&2; exit 3", long).await.expect_err("it fails");
        assert_eq!(error, "`sh` ended with exit status: 3: no such host");
        let error = sh("exec sleep 600", Duration::from_millis(50)).await.expect_err("it hangs");
        assert!(error.contains("did not end"), "{error}");
        let node = NodeId::new("n7").expect("an id");
        let missing = run(&["/no/such/program".to_owned()], &node, long).await;
        assert!(matches!(missing, Err(CommandError::Start { .. })), "{missing:?}");
    }
}

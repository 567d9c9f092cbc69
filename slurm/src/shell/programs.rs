//! Runs Slurm's programs, with a time limit, a limit on their output, and never through a shell.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::command::SlurmError;
use crate::failure::{failure, is_rate_limited};

/// Longest output that is read: 50,000 jobs.
const OUTPUT_MAX: u64 = 256 << 20;

/// Variables of this process that the programs receive. All others would change their output.
const PASSED: [&str; 7] =
    ["PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "TZ"];

/// Slurm's programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Their folder; absent: they are found by `PATH`.
    pub folder: Option<PathBuf>,
    /// Longest time of one program, wall time. Slurm's own limit (`MessageTimeout`) is 10 s.
    pub time_limit: Duration,
    /// Longest output that is read, bytes.
    pub output_max: u64,
}

impl Default for Programs {
    fn default() -> Self {
        Self { folder: None, time_limit: Duration::from_secs(30), output_max: OUTPUT_MAX }
    }
}

/// What a program that succeeded has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Its standard output; text that is not UTF-8 is replaced.
    pub output: String,
    /// Whether Slurm delayed it, because its rate of requests is limited.
    pub is_rate_limited: bool,
}

impl Programs {
    /// Runs `program` with these arguments and additional variables, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be started, exceeds the time limit or fails.
    pub async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Printed, SlurmError> {
        let line = || [&[program], arguments].concat().join(" ");
        let path = self.folder.as_ref().map_or_else(|| PathBuf::from(program), |f| f.join(program));
        let missing = |error: std::io::Error| SlurmError::Program {
            program: program.to_owned(),
            error: error.to_string(),
        };
        let mut command = Command::new(path);
        command.args(arguments).env_clear();
        command.envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // Instants in seconds, lists of tasks that are not cut off, English messages.
        command.envs([("SLURM_TIME_FORMAT", "%s"), ("SLURM_BITSTR_LEN", "0"), ("LC_ALL", "C")]);
        command.envs(variables.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(missing)?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        // One byte more shows that there is more.
        let max = self.output_max.saturating_add(1);
        let all = async { tokio::join!(read(output, max), read(errors, max), child.wait()) };
        let Ok((output, errors, status)) = tokio::time::timeout(self.time_limit, all).await else {
            let error = format!("no answer in {} s", self.time_limit.as_secs());
            return Err(SlurmError::Away { command: line(), error });
        };
        let (output, errors) = (output.map_err(missing)?, errors.map_err(missing)?);
        let errors = String::from_utf8_lossy(&errors);
        // Before its status: a program whose output is not read to the end fails.
        if output.len() as u64 > self.output_max {
            let error = format!("longer than {} MiB", self.output_max >> 20);
            return Err(SlurmError::Output { command: line(), error });
        }
        if !status.map_err(missing)?.success() {
            return Err(failure(&line(), &errors));
        }
        if !errors.trim().is_empty() {
            tracing::debug!(command = line(), errors = errors.trim(), "succeeded with messages");
        }
        let output = String::from_utf8(output)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Ok(Printed { output, is_rate_limited: is_rate_limited(&errors) })
    }
}

/// At most `max` bytes; the pipe is closed then, so that a program that writes more ends.
async fn read(pipe: Option<impl AsyncRead + Unpin>, max: u64) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(max).read_to_end(&mut text).await?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests;

//! Reads Slurm's accounting of the last days with `sacct`.

use std::ffi::OsStr;
use std::io::{self, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use wattle_simulator::input_file::{self, InputError};

use crate::output::usage;

/// The columns that a trace of jobs is read from.
const COLUMNS: &str = "JobID,JobName,User,Partition,Submit,Eligible,Start,End,Elapsed,State,ReqTRES,\
                       AllocTRES,NNodes,NodeList,Comment,Cluster,Timelimit,Priority";

/// The accounting of all users over the last `span`, as `sacct -P` prints it.
///
/// `program` is the name or path of `sacct`. Text beyond `bytes_max` is refused while it is read.
pub(crate) fn export(program: &OsStr, span: Duration, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let minutes = span.as_secs().div_ceil(60).max(1);
    let started = Command::new(program)
        // All users, every run of a requeued job, allocations without steps.
        .args(["-a", "-D", "-X", "-P", "-o", COLUMNS])
        .arg("-S")
        .arg(format!("now-{minutes}minutes"))
        .env("SLURM_TIME_FORMAT", "%s")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let name = program.display();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(usage(format!(
                "{name} is not installed here: run the command on a machine of the Slurm cluster, or \
                 give an export with --trace"
            )));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot run {name}")),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Both at once: a program stops while one of them is full.
    let (exported, message) = std::thread::scope(|scope| {
        let message = scope.spawn(|| stderr.map(first_line).unwrap_or_default());
        let text = |stdout| input_file::text_of(BufReader::new(stdout), bytes_max);
        let exported = stdout.map_or_else(|| Ok(Vec::new()), text);
        if exported.is_err() {
            // It may have ended.
            let _ = child.kill();
        }
        (exported, message.join().unwrap_or_default())
    });
    let status = child.wait().with_context(|| format!("cannot run {name}"))?;
    match exported {
        Err(error @ InputError::TooLarge(_)) => {
            Err(usage(format!("{name}: {error}; give a shorter span")))
        }
        Ok(_) if !status.success() => {
            let message = if message.is_empty() { "no message" } else { &message };
            anyhow::bail!("{name} failed ({status}): {message}")
        }
        exported => exported.with_context(|| format!("cannot read the output of {name}")),
    }
}

/// The first line of a program's messages; all of them are read, so that the program ends.
fn first_line(mut messages: impl Read) -> String {
    /// Bytes that are kept.
    const KEPT: u64 = 64 << 10;
    let mut kept = Vec::new();
    let read = messages.by_ref().take(KEPT).read_to_end(&mut kept);
    // What cannot be read is no message.
    let _ = read.and_then(|_| io::copy(&mut messages, &mut io::sink()));
    let text = String::from_utf8_lossy(&kept);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use wattle_runtime::testing::write_script;

    use super::*;

    fn run(script: &str) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sacct");
        write_script(&program, script);
        let exported = export(program.as_os_str(), Duration::from_hours(24), 1 << 20)?;
        Ok(String::from_utf8(exported).unwrap())
    }

    #[test]
    fn all_users_and_runs_of_the_span_are_exported() {
        let line = run("echo \"$SLURM_TIME_FORMAT $*\"").unwrap();
        assert!(line.starts_with("%s -a -D -X -P -o JobID,JobName,User,"), "{line}");
        assert!(line.ends_with(" -S now-1440minutes\n"), "{line}");
    }

    #[test]
    fn failures_name_the_program_and_the_cause() {
        let error = run("echo; echo 'Slurm accounting storage is disabled' >&2; exit 1");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("accounting storage is disabled"), "{error}");
        let missing = export(OsStr::new("/no/such/sacct"), Duration::from_hours(1), 1 << 20);
        let missing = missing.unwrap_err();
        assert!(missing.to_string().contains("--trace"), "{missing}");
    }

    #[test]
    fn an_endless_export_is_refused_and_many_messages_are_read() {
        let error = run("exec yes '1|train|ada|gpu'").unwrap_err().to_string();
        assert!(error.contains("more than 1 MiB") && error.contains("shorter span"), "{error}");
        let exported = run("yes warning | head -c 300000 >&2; echo JobID").unwrap();
        assert_eq!(exported, "JobID\n");
    }
}

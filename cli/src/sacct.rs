//! Reads Slurm's accounting of the last days with `sacct`.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::output::usage;

/// The columns that a trace of jobs is read from.
const COLUMNS: &str = "JobID,JobName,User,Partition,Submit,Eligible,Start,End,Elapsed,State,ReqTRES,\
                       AllocTRES,NNodes,NodeList,Comment";

/// The accounting of all users over the last `span`, as `sacct -P` prints it.
///
/// `program` is the name or path of `sacct`.
pub(crate) fn export(program: &OsStr, span: Duration) -> anyhow::Result<Vec<u8>> {
    let minutes = span.as_secs().div_ceil(60).max(1);
    let output = Command::new(program)
        // All users, every run of a requeued job, allocations without steps.
        .args(["-a", "-D", "-X", "-P", "-o", COLUMNS])
        .arg("-S")
        .arg(format!("now-{minutes}minutes"))
        .env("SLURM_TIME_FORMAT", "%s")
        .stdin(Stdio::null())
        .output();
    let name = program.display();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(usage(format!(
                "{name} is not installed here: run the command on a machine of the Slurm cluster, or \
                 give an export with --trace"
            )));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot run {name}")),
    };
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let line = error.lines().map(str::trim).find(|line| !line.is_empty());
        anyhow::bail!("{name} failed ({}): {}", output.status, line.unwrap_or("no message"));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use wattle_runtime::testing::write_script;

    use super::*;

    fn run(script: &str) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sacct");
        write_script(&program, script);
        let exported = export(program.as_os_str(), Duration::from_hours(24))?;
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
        let missing = export(OsStr::new("/no/such/sacct"), Duration::from_hours(1)).unwrap_err();
        assert!(missing.to_string().contains("--trace"), "{missing}");
    }
}

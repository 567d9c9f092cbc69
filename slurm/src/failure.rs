//! Why a program of Slurm failed, from its error output.

use crate::command::SlurmError;

/// Parts of the texts for an unreachable slurmctld, slurmdbd or munged.
const AWAY: [&str; 16] = [
    "Unable to contact",
    "Unexpected message received",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Communication connection failure",
    "Message receive failure",
    "Message send failure",
    "standby mode",
    "authentication",
    "Munge",
    "Unable to establish",
    "Problem talking to the database",
    "persistent connection",
];

/// Parts of the texts for a missing permission.
const DENIED: [&str; 5] = [
    "Invalid user id",
    "ermission denied",
    "user doesn't have privilege",
    "not authorized",
    "Only admins",
];

/// Parts of the texts for the limit on the request rate.
const LIMITED: [&str; 3] = ["rate limit", "rate-limit", "BACKOFF"];

/// Parts of the texts for a job that Slurm does not have, or that has ended.
const ABSENT: [&str; 4] =
    ["Invalid job id", "already completing or completed", "already finished", "No error"];

/// The error of a program that failed, by its error output.
#[must_use]
pub(crate) fn failure(command: &str, error_output: &str) -> SlurmError {
    let command = command.to_owned();
    let is_among = |parts: &[&str]| parts.iter().any(|part| error_output.contains(part));
    let error = summary(error_output);
    if is_rate_limited(error_output) {
        SlurmError::RateLimited { command }
    } else if is_among(&AWAY) {
        SlurmError::Away { command, error }
    } else if is_among(&DENIED) {
        SlurmError::Denied { command, error }
    } else {
        SlurmError::Refused { command, error }
    }
}

/// Whether the output names the limit on the request rate. Slurm's programs wait and repeat the request, so
/// that they may succeed with it.
#[must_use]
pub(crate) fn is_rate_limited(error_output: &str) -> bool {
    LIMITED.iter().any(|part| error_output.contains(part))
}

/// Whether every line of the error is about a job that Slurm does not have or that has ended.
#[must_use]
pub(crate) fn is_about_absent_job(error: &SlurmError) -> bool {
    let SlurmError::Refused { error, .. } = error else { return false };
    error.split("; ").all(|line| ABSENT.iter().any(|part| line.contains(part)))
}

/// The lines, at most 300 characters, and without line breaks.
fn summary(error_output: &str) -> String {
    let lines: Vec<&str> = error_output.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    if lines.is_empty() {
        "no message".to_owned()
    } else {
        lines.join("; ").chars().take(300).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts that Slurm 22.05 prints.
    #[test]
    fn texts_of_slurm() {
        let away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n";
        assert!(matches!(failure("squeue", away), SlurmError::Away { .. }));
        assert!(failure("squeue", away).is_temporary());
        let denied = "Invalid user id for job 5\nslurm_update error: Invalid user id\n";
        assert!(matches!(failure("scontrol", denied), SlurmError::Denied { .. }));
        let denied = "scancel: error: Kill job error on job id 5: Access/permission denied\n";
        assert!(matches!(failure("scancel", denied), SlurmError::Denied { .. }));
        let refused =
            "Invalid GRES specification (with and without type identification) for job 2012\n";
        let error = failure("scontrol", refused);
        assert!(matches!(error, SlurmError::Refused { .. }) && !is_about_absent_job(&error));
        let absent = "scancel: error: Kill job error on job id 9: Invalid job id specified\n";
        assert!(is_about_absent_job(&failure("scancel", absent)));
        assert!(matches!(
            failure("squeue", "RPC rate limit exceeded"),
            SlurmError::RateLimited { .. }
        ));
        assert_eq!(failure("scontrol", "").to_string(), "Slurm refuses `scontrol`: no message");
    }
}

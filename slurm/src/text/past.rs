//! Runs of jobs as `sacct` prints them.

use super::TextError;
use super::state::state;
use super::values::instant;
use crate::past::{PastRun, PastState};

/// The fields of `sacct --format`; the one that may contain a `|` is last.
pub const FORMAT: &str = "JobIDRaw,User,State,ExitCode,Submit,Start,End,AdminComment";

/// The runs of the output of `sacct --parsable2 --noheader --allocations --duplicates`, in its order. Lines
/// that are no run, such as the rest of a comment with a line break, are left out.
///
/// # Errors
/// If a run has an unknown state or time.
pub fn runs(output: &str) -> Result<Vec<PastRun>, TextError> {
    let mut runs = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.splitn(8, '|').collect();
        let [id, user, state_text, exit, submit, start, end, comment] = fields.as_slice() else {
            continue;
        };
        let Ok(id) = id.parse::<u32>() else { continue };
        let run_state = if state_text.starts_with("REQUEUED") {
            PastState::Requeued
        } else {
            PastState::Job(
                state(state_text).ok_or_else(|| TextError::new("job state", state_text))?,
            )
        };
        let (code, signal) = exit.split_once(':').unwrap_or((exit, "0"));
        let number = |text: &str| text.parse().map_err(|_| TextError::new("exit code", exit));
        runs.push(PastRun {
            id,
            user: (*user).to_owned(),
            state: run_state,
            exit: (number(code)?, number(signal)?),
            submitted_at: instant(submit)?
                .ok_or_else(|| TextError::new("submission time", submit))?,
            started_at: instant(start)?,
            ended_at: instant(end)?,
            admin_comment: (*comment).to_owned(),
        });
    }
    runs.sort_by_key(|run| (run.submitted_at, run.started_at, run.ended_at));
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::SlurmState;
    use wattle_common::Timestamp;

    #[test]
    fn runs_of_slurm_22_05() {
        let output = "2|news|CANCELLED by 0|0:0|1795580749|1795580750|1795580977|wattle: tag=1,a|b\n\
                      1|games|REQUEUED|0:15|1795580740|1795580741|1795580745|\n\
                      1|games|RUNNING|0:0|1795580749|1795580750|Unknown|\nrest of a comment\n";
        let runs = runs(output).unwrap();
        let states: Vec<_> = runs.iter().map(|run| (run.id, run.state)).collect();
        assert_eq!(
            states,
            [
                (1, PastState::Requeued),
                (1, PastState::Job(SlurmState::Running)),
                (2, PastState::Job(SlurmState::Cancelled)),
            ]
        );
        assert_eq!(runs[2].admin_comment, "wattle: tag=1,a|b");
        assert_eq!(runs[0].exit, (0, 15));
        assert_eq!(runs[1].ended_at, None);
        assert_eq!(runs[2].ended_at, Some(Timestamp::from_s(1_795_580_977)));
    }
}

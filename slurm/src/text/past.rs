//! Runs of jobs as `sacct` prints them.

use super::TextError;
use super::state::state;
use super::values::instant;
use crate::past::{PastRun, PastState, ScriptEnd};

/// The fields of `sacct --format`; the one that may contain a `|` is last.
pub const FORMAT: &str = "JobIDRaw,User,State,ExitCode,Submit,Start,End,AdminComment";

/// The step of a batch script.
const SCRIPT: &str = ".batch";

/// The runs of the output of `sacct --parsable2 --noheader --duplicates`, the oldest first. The step `batch`
/// follows its run. Other steps, and the rest of a comment with a line break, are left out.
///
/// # Errors
/// If a run has an unknown state or time.
pub fn runs(output: &str) -> Result<Vec<PastRun>, TextError> {
    let mut runs: Vec<PastRun> = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.splitn(8, '|').collect();
        let [id, user, state_text, exit, submit, start, end, comment] = fields.as_slice() else {
            continue;
        };
        if let Some(id) = id.strip_suffix(SCRIPT) {
            let run = runs.last_mut().filter(|run| run.id.to_string() == id);
            if let (Some(run), Some(ended_at)) = (run, instant(end)?) {
                // A node that fails reports none.
                let exit = (!exit.is_empty()).then(|| exit_of(exit)).transpose()?;
                run.script = exit.map(|exit| ScriptEnd { exit, ended_at });
            }
            continue;
        }
        let Ok(id) = id.parse::<u32>() else { continue };
        let run_state = if state_text.starts_with("REQUEUED") {
            PastState::Requeued
        } else {
            let unknown = || TextError::new("job state", state_text);
            PastState::Job(state(state_text).ok_or_else(unknown)?)
        };
        let unknown = || TextError::new("submission time", submit);
        runs.push(PastRun {
            id,
            user: (*user).to_owned(),
            state: run_state,
            exit: exit_of(exit)?,
            submitted_at: instant(submit)?.ok_or_else(unknown)?,
            started_at: instant(start)?,
            ended_at: instant(end)?,
            admin_comment: (*comment).to_owned(),
            script: None,
        });
    }
    runs.sort_by_key(|run| (run.submitted_at, run.started_at, run.ended_at));
    Ok(runs)
}

/// Exit code and signal of `3:0`.
fn exit_of(text: &str) -> Result<(i32, i32), TextError> {
    let (code, signal) = text.split_once(':').unwrap_or((text, "0"));
    let number = |part: &str| part.parse().map_err(|_| TextError::new("exit code", text));
    Ok((number(code)?, number(signal)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::SlurmState;
    use wattle_common::Timestamp;

    #[test]
    fn runs_of_slurm_22_05() {
        let runs = runs(include_str!("../../tests/slurm-22.05/sacct.txt")).unwrap();
        let of = |id| runs.iter().filter(move |run| run.id == id).collect::<Vec<_>>();
        let states: Vec<_> = of(14).iter().map(|run| run.state).collect();
        let cancelled = PastState::Job(SlurmState::Cancelled);
        assert_eq!(states, [PastState::Requeued, PastState::Requeued, cancelled]);
        assert_eq!(of(14)[2].started_at, None);
        let end = Timestamp::from_s(1_795_582_039);
        assert_eq!(of(14)[0].script, Some(ScriptEnd { exit: (0, 15), ended_at: end }));
        assert_eq!(of(14)[2].script, None);
        assert_eq!((of(5)[0].exit, of(6)[0].exit), ((0, 11), (3, 0)));
        assert_eq!(of(6)[0].admin_comment, "wattle: tag=1,energy_j=5");
        assert_eq!(runs.len(), 7);
    }

    #[test]
    fn other_lines_are_left_out() {
        let output = "2|news|CANCELLED by 0|0:0|10|11|12|a|b\nrest of a comment\n2.0||FAILED|1:0|10|11|12|\n";
        let runs = runs(output).unwrap();
        assert_eq!((runs.len(), runs[0].admin_comment.as_str()), (1, "a|b"));
        assert!(super::runs("2|news|DREAMING|0:0|10|11|12|").is_err());
    }
}

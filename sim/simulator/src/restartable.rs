//! Which jobs of a trace may be stopped, moved and resized.
//!
//! Few traces record whether a job can resume from a checkpoint. Where a trace states it, that counts.
//! For all other jobs the user of a simulation declares it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use wattle_common::JobId;
use wattle_common::rng::Stream;

use crate::input_file::{self, InputError, SERIES_BYTES_MAX};
use crate::scenario::Scenario;
use crate::trace::Trace;

/// The jobs that can resume from a checkpoint, where the trace does not state it.
#[derive(Clone, Debug, PartialEq)]
pub enum Restartable {
    /// No job.
    None,
    /// Every job.
    All,
    /// The listed jobs.
    Listed {
        /// The file with the list.
        file: PathBuf,
        /// Their ids.
        jobs: BTreeSet<JobId>,
    },
    /// A share of the jobs, from 0 to 1, chosen by a hash of the id and the scenario's seed.
    Share(f64),
}

/// Why a text is not a [`Restartable`].
#[derive(Debug, thiserror::Error)]
pub enum RestartableError {
    /// The share is outside 0 to 1.
    #[error("invalid share `{0}`: expected a number from 0 to 1")]
    Share(String),
    /// The file cannot be read.
    #[error("`{0}` is neither none, all, a share from 0 to 1, nor a readable file of job ids")]
    Unreadable(String, #[source] InputError),
    /// A line of the file is not an id.
    #[error("{file}, line {line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

impl Restartable {
    /// Reads `none`, `all`, a share such as `0.3`, or the path of a file with one job id a line.
    /// Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// [`RestartableError`] names the text and the remedy.
    pub fn read(text: &str) -> Result<Self, RestartableError> {
        match text {
            "none" => return Ok(Self::None),
            "all" => return Ok(Self::All),
            _ => {}
        }
        if let Ok(share) = text.parse::<f64>() {
            let valid = (0.0..=1.0).contains(&share);
            return if valid {
                Ok(Self::Share(share))
            } else {
                Err(RestartableError::Share(text.to_owned()))
            };
        }
        let list = input_file::read(Path::new(text), SERIES_BYTES_MAX)
            .map_err(|source| RestartableError::Unreadable(text.to_owned(), source))?;
        let list = String::from_utf8_lossy(&list);
        let mut jobs = BTreeSet::new();
        for (i, line) in list.lines().enumerate() {
            let id = line.trim();
            if id.is_empty() || id.starts_with('#') {
                continue;
            }
            let id = JobId::new(id).map_err(|error| RestartableError::Line {
                file: text.to_owned(),
                line: i + 1,
                problem: error.to_string(),
            })?;
            jobs.insert(id);
        }
        Ok(Self::Listed { file: PathBuf::from(text), jobs })
    }

    /// Whether a job can resume, given what its trace states.
    #[must_use]
    pub fn permits(&self, job: &JobId, declared: Option<bool>, seed: u64) -> bool {
        declared.unwrap_or_else(|| match self {
            Self::None => false,
            Self::All => true,
            Self::Listed { jobs, .. } => jobs.contains(job),
            Self::Share(share) => Stream::new(seed, &format!("restartable/{job}")).unit() < *share,
        })
    }

    /// Sets [`crate::SimJob::can_stop`] of every job. `scenario` holds the jobs of `trace` in the
    /// trace's order. Adds a note on listed ids that the trace does not have.
    pub fn apply(&self, scenario: &mut Scenario, trace: &Trace) {
        let seed = scenario.seed;
        for (job, traced) in scenario.jobs.iter_mut().zip(&trace.jobs) {
            job.can_stop = self.permits(&job.id, traced.can_checkpoint, seed);
        }
        if let Self::Listed { file, jobs } = self {
            let known: BTreeSet<&JobId> = trace.jobs.iter().map(|job| &job.id).collect();
            let unknown = jobs.iter().filter(|job| !known.contains(job)).count();
            if unknown > 0 {
                scenario.notes.push(format!(
                    "{unknown} of {} ids in {} are not in the trace",
                    jobs.len(),
                    file.display()
                ));
            }
        }
    }
}

impl fmt::Display for Restartable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no job is restartable"),
            Self::All => f.write_str("every job is restartable"),
            Self::Listed { file, jobs } => {
                write!(f, "{} jobs are restartable ({})", jobs.len(), file.display())
            }
            Self::Share(share) => write!(f, "{:.0} % of the jobs are restartable", 100.0 * share),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(i: u32) -> JobId {
        JobId::new(&format!("j{i}")).unwrap()
    }

    #[test]
    fn trace_has_precedence_over_the_option() {
        for option in [Restartable::None, Restartable::All, Restartable::Share(0.5)] {
            assert!(option.permits(&id(1), Some(true), 7));
            assert!(!option.permits(&id(1), Some(false), 7));
        }
        assert!(!Restartable::None.permits(&id(1), None, 7));
        assert!(Restartable::All.permits(&id(1), None, 7));
    }

    #[test]
    fn share_is_of_the_jobs_and_depends_on_the_seed() {
        let chosen = |share: f64, seed| -> Vec<bool> {
            (0..2_000).map(|i| Restartable::Share(share).permits(&id(i), None, seed)).collect()
        };
        let count = |chosen: &[bool]| chosen.iter().filter(|chosen| **chosen).count();
        assert!((520..680).contains(&count(&chosen(0.3, 7))), "{}", count(&chosen(0.3, 7)));
        assert_eq!((count(&chosen(0.0, 7)), count(&chosen(1.0, 7))), (0, 2_000));
        assert_ne!(chosen(0.3, 7), chosen(0.3, 8));
        // A larger share has the jobs of a smaller one.
        let nested = chosen(0.3, 7).into_iter().zip(chosen(0.6, 7)).all(|(few, many)| many || !few);
        assert!(nested);
    }

    #[test]
    fn texts_are_read_or_refused_by_name() {
        assert_eq!(Restartable::read("none").unwrap(), Restartable::None);
        assert_eq!(Restartable::read("0.25").unwrap(), Restartable::Share(0.25));
        for (wrong, named) in [("1.5", "`1.5`"), ("-1", "`-1`"), ("no-such-file", "`no-such-file`")]
        {
            assert!(Restartable::read(wrong).unwrap_err().to_string().contains(named), "{wrong}");
        }
    }
}

//! Names of jobs on the command line: a job id, or a prefix that only one job has.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use wattle_common::JobId;
use wattle_runtime::bus::Bus;

use crate::job_records;
use crate::output::usage;

/// Candidates that the error for an ambiguous prefix lists.
const CANDIDATES_MAX: usize = 8;

/// A job as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobName(String);

impl FromStr for JobName {
    type Err = Infallible;
    /// A trailing `…`, which tables show for the end of a long id, is ignored.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim_end_matches('…').to_owned()))
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JobName {
    /// The id of the job that this names.
    pub(crate) async fn resolve(&self, bus: &Bus) -> anyhow::Result<JobId> {
        let keys = job_records::ids(bus).await?;
        self.select(keys.iter().map(String::as_str))
    }

    /// The one job of `ids` that this names. An id that is equal has precedence over longer ones.
    fn select<'a>(&self, ids: impl Iterator<Item = &'a str>) -> anyhow::Result<JobId> {
        let mut found: Vec<&str> = ids.filter(|id| id.starts_with(&self.0)).collect();
        if let Some(exact) = found.iter().find(|id| **id == self.0) {
            found = vec![exact];
        }
        match found.as_slice() {
            _ if self.0.is_empty() => Err(usage("the name of the job is empty")),
            [] => Err(usage(format!("no job `{self}`; `wattle jobs --all` lists all jobs"))),
            [one] => JobId::new(one).map_err(|error| usage(error.to_string())),
            several => {
                let more = several.len().saturating_sub(CANDIDATES_MAX);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                let shown = several[..several.len() - more].join(", ");
                Err(usage(format!(
                    "`{self}` is the beginning of {} jobs: {shown}{rest}; give more of the name",
                    several.len()
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::UsageError;

    #[test]
    fn unique_prefix_names_a_job() {
        let ids = ["train-1", "train-12", "eval-7"];
        let select = |text: &str| {
            let name: JobName = text.parse().unwrap();
            name.select(ids.into_iter()).map(|id| id.to_string())
        };
        assert_eq!(select("e").unwrap(), "eval-7");
        assert_eq!(select("train-12").unwrap(), "train-12");
        assert_eq!(select("train-1").unwrap(), "train-1", "an equal id has precedence");
        assert_eq!(select("eval…").unwrap(), "eval-7", "as shortened in a table");
        for (text, expected) in [
            ("tra", "`tra` is the beginning of 2 jobs: train-1, train-12; give more of the name"),
            ("x", "no job `x`; `wattle jobs --all` lists all jobs"),
            ("", "the name of the job is empty"),
        ] {
            let error = select(text).unwrap_err();
            assert!(error.is::<UsageError>(), "exit code 2");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn long_list_of_candidates_is_cut() {
        let ids: Vec<String> = (0..20).map(|i| format!("a{i:02}")).collect();
        let name: JobName = "a".parse().unwrap();
        let error = name.select(ids.iter().map(String::as_str)).unwrap_err().to_string();
        assert!(error.contains("20 jobs: a00, ") && error.contains("a07 and 12 more"), "{error}");
    }
}

//! The options of a submission, as people give them to `wattle submit` and on the web page, and the
//! specification that they make.

use std::time::Duration;

use super::{Flexibility, GpuRequest, JobSpec};
use crate::id::{self, IdError, JobId, ProjectId, WorkloadId};
use crate::time::Timestamp;

/// Highest priority that a person may give a job.
const PRIORITY_MAX: u8 = 100;
/// Most characters of a name in the id of a job.
const STEM_LEN_MAX: usize = 40;

/// What a person chooses about a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOptions {
    /// Name; absent: the name of the program.
    pub name: Option<String>,
    /// Id; absent: the name and a number.
    pub job: Option<JobId>,
    /// Project.
    pub project: Option<ProjectId>,
    /// Workload class.
    pub workload: Option<WorkloadId>,
    /// Number of GPUs.
    pub gpus: GpuRequest,
    /// Its GPUs are never shared.
    pub exclusive: bool,
    /// Consent to sharing its GPUs.
    pub share: bool,
    /// How much slower its GPUs may run it than at their default setting, a share.
    pub max_slowdown: Option<f64>,
    /// The largest loss of throughput during a grid event, a share.
    pub flexibility: Option<f64>,
    /// It may be paused during a grid event; read with a flexibility.
    pub event_pause: bool,
    /// Its number of GPUs may change during a grid event; read with a flexibility.
    pub event_resize: bool,
    /// Priority from 0 to 100.
    pub priority: u8,
    /// Deadline, from now.
    pub deadline: Option<Duration>,
    /// Total time it may wait for lower carbon intensity.
    pub slack: Option<Duration>,
    /// Estimated run time with exclusive GPUs.
    pub estimate: Option<Duration>,
    /// Peak device memory of each GPU, MiB.
    pub memory_mib: Option<u64>,
    /// Required GPU type.
    pub gpu_type: Option<String>,
    /// Full name of the signal that requests a checkpoint ([`super::check_signal`]).
    pub checkpoint_signal: Option<&'static str>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Working directory.
    pub working_dir: Option<String>,
}

impl JobOptions {
    /// The name of the job: the given one, else the file name of the program.
    #[must_use]
    pub fn name(&self) -> &str {
        let program = self.command.first().map(String::as_str).unwrap_or_default();
        let file = program.rsplit('/').next().unwrap_or(program);
        self.name.as_deref().unwrap_or(file)
    }

    /// The specification of the job, submitted by `user`. `number` makes its id unique, unless an id is
    /// given: a repetition of the request has the same number. An absent user is set by the placer.
    ///
    /// # Errors
    /// If name and number make no id.
    pub fn spec(
        self,
        user: Option<String>,
        number: u64,
        now: Timestamp,
    ) -> Result<JobSpec, IdError> {
        let name = self.name().to_owned();
        let job = match self.job {
            Some(job) => job,
            None => JobId::new(&format!("{}-{number:x}", as_id(&name)))?,
        };
        let milliseconds = |span: Duration| span.as_millis() as u64;
        let permille = |share: f64| (share * 1e3).round() as u32;
        Ok(JobSpec {
            job,
            name,
            user,
            project: self.project,
            workload: self.workload,
            gpus: self.gpus,
            exclusive: self.exclusive,
            consents_to_sharing: self.share,
            max_slowdown_permille: self.max_slowdown.map(permille),
            flexibility: self.flexibility.map(|loss| Flexibility {
                loss_permille: permille(loss),
                may_pause: self.event_pause,
                may_resize: self.event_resize,
            }),
            priority: self.priority,
            deadline_at_us: self.deadline.map(|span| now + span),
            slack_ms: self.slack.map(milliseconds),
            duration_ms_estimate: self.estimate.map(milliseconds),
            time_limit_ms: None,
            memory_mib_max: self.memory_mib,
            gpu_type: self.gpu_type,
            checkpoint_signal: self.checkpoint_signal.map(str::to_owned),
            command: self.command,
            environment: self.environment,
            working_dir: self.working_dir,
            site: None,
            submitted_at_us: now,
        })
    }
}

/// Why a text is not the value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Not a GPU type.
    #[error("invalid GPU type `{0}`: expected a type as in `wattle nodes`, such as v100")]
    GpuType(String),
    /// Not a variable with its value.
    #[error("invalid variable `{0}`: expected KEY=VALUE")]
    Variable(String),
    /// Not a priority.
    #[error("invalid priority `{0}`: expected a number from 0 to {PRIORITY_MAX}")]
    Priority(String),
    /// Not an amount of memory.
    #[error("invalid memory `{0}`: expected a number of MiB, as in 16000")]
    Memory(String),
}

/// Parses a GPU type; nodes report it in lower case.
///
/// # Errors
/// If it is not an id.
pub fn parse_gpu_type(text: &str) -> Result<String, OptionError> {
    match id::check(text) {
        Ok(()) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err(OptionError::GpuType(text.to_owned())),
    }
}

/// Parses `KEY=VALUE`.
///
/// # Errors
/// Without a key or a value.
pub fn parse_variable(text: &str) -> Result<(String, String), OptionError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(OptionError::Variable(text.to_owned())),
    }
}

/// Parses a priority from 0 to 100.
///
/// # Errors
/// For another text.
pub fn parse_priority(text: &str) -> Result<u8, OptionError> {
    let priority = text.parse().ok().filter(|priority| *priority <= PRIORITY_MAX);
    priority.ok_or_else(|| OptionError::Priority(text.to_owned()))
}

/// Parses a number of MiB.
///
/// # Errors
/// For another text.
pub fn parse_memory_mib(text: &str) -> Result<u64, OptionError> {
    text.parse().map_err(|_| OptionError::Memory(text.to_owned()))
}

/// Turns a name into the start of an id; invalid characters become `-`.
fn as_id(name: &str) -> String {
    let kept: String = name
        .chars()
        .take(STEM_LEN_MAX)
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    let kept = kept.trim_matches('-');
    if kept.is_empty() { "job".to_owned() } else { kept.to_owned() }
}

/// Whether an id was made from a name by [`JobOptions::spec`].
#[must_use]
pub fn is_of_name(id: &str, name: &str) -> bool {
    id.rsplit_once('-').is_some_and(|(stem, number)| {
        stem == as_id(name) && number.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A job on one GPU without further options.
    pub(crate) fn options(command: &[&str]) -> JobOptions {
        JobOptions {
            name: None,
            job: None,
            project: None,
            workload: None,
            gpus: GpuRequest::exactly(1),
            exclusive: false,
            share: false,
            max_slowdown: None,
            flexibility: None,
            event_pause: false,
            event_resize: false,
            priority: 0,
            deadline: None,
            slack: None,
            estimate: None,
            memory_mib: None,
            gpu_type: None,
            checkpoint_signal: None,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            environment: Vec::new(),
            working_dir: None,
        }
    }

    #[test]
    fn id_has_the_name_of_the_program_and_the_number() {
        let now = Timestamp::from_s(7);
        let spec = options(&["/usr/bin/python3", "t.py"]).spec(None, 0x1f, now).unwrap();
        assert_eq!((spec.job.as_str(), spec.name.as_str()), ("python3-1f", "python3"));
        let named = JobOptions { name: Some("my train".to_owned()), ..options(&["sh"]) };
        assert_eq!(named.clone().spec(None, 0x1f, now).unwrap().job.as_str(), "my-train-1f");
        let with_id = JobOptions { job: Some(JobId::new("a").unwrap()), ..named };
        assert_eq!(with_id.spec(None, 0x1f, now).unwrap().job.as_str(), "a");
    }

    #[test]
    fn spans_and_shares_are_converted() {
        let given = JobOptions {
            deadline: Some(Duration::from_secs(3)),
            slack: Some(Duration::from_millis(1_500)),
            max_slowdown: Some(0.0204),
            flexibility: Some(0.25),
            event_pause: true,
            ..options(&["a"])
        };
        let spec = given.spec(Some("ada".to_owned()), 1, Timestamp::from_s(7)).unwrap();
        assert_eq!(spec.deadline_at_us, Some(Timestamp::from_s(10)));
        assert_eq!((spec.slack_ms, spec.max_slowdown_permille), (Some(1_500), Some(20)));
        let promise = Flexibility { loss_permille: 250, may_pause: true, may_resize: false };
        assert_eq!(spec.flexibility, Some(promise));
        assert_eq!(spec.user.as_deref(), Some("ada"));
    }

    #[test]
    fn values_of_options_are_parsed() {
        assert_eq!(parse_gpu_type("V100").as_deref(), Ok("v100"));
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!((parse_priority("100"), parse_memory_mib("16000")), (Ok(100), Ok(16_000)));
        let errors = [
            parse_gpu_type("v100,p100").err(),
            parse_variable("=b").err(),
            parse_variable("A").err(),
            parse_priority("101").err(),
            parse_priority("-1").err(),
            parse_memory_mib("16 GiB").err(),
        ];
        for error in errors {
            assert!(error.unwrap().to_string().contains(": expected "));
        }
    }

    #[test]
    fn ids_of_a_name_are_recognised() {
        assert!(is_of_name("train-660bb7234354a", "train"));
        assert!(is_of_name("my-train-660bb7234354a", "my train"));
        assert!(!is_of_name("train-660bb7234354a-7", "train"));
        assert!(!is_of_name("train", "train") && !is_of_name("other-1", "train"));
    }

    #[test]
    fn every_name_gives_a_valid_id() {
        for name in ["train.py", "../..", "模型", "a b", &"x".repeat(100)] {
            let named = JobOptions { name: Some(name.to_owned()), ..options(&["a"]) };
            assert!(named.spec(None, u64::MAX, Timestamp::from_s(0)).is_ok(), "{name}");
        }
    }
}

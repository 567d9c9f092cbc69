//! A submission on the page: the text of each field, and the job that it makes.
//!
//! Options, their checks and the specification are those of `wattle submit`
//! ([`wattle_common::job::JobOptions`]).

mod words;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use wattle_common::aim::parse_slowdown;
use wattle_common::duration::parse_span;
use wattle_common::id::SubmissionId;
use wattle_common::job::{
    GpuRequest, JobOptions, check_signal, parse_flexibility, parse_gpu_type, parse_memory_mib,
    parse_priority, parse_variable,
};
use wattle_common::messages::SubmitJob;
use wattle_common::{JobId, Timestamp};

use self::words::{Words, split};

/// Whether a job shares its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingChoice {
    /// As the site decides.
    #[default]
    Site,
    /// The owner consents.
    Share,
    /// Never.
    Exclusive,
}

/// The fields of the form as a person fills them in; an empty text is an option that is not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Form {
    /// The program and its arguments.
    pub command: String,
    /// The command is a line for `sh -c`.
    pub shell: bool,
    /// Name.
    pub name: String,
    /// Working directory on the node.
    pub working_dir: String,
    /// Number of GPUs or a range.
    pub gpus: String,
    /// GPU type.
    pub gpu_type: String,
    /// Sharing of its GPUs.
    pub sharing: SharingChoice,
    /// Peak device memory of each GPU, MiB.
    pub memory_mib: String,
    /// Workload class.
    pub workload: String,
    /// Project.
    pub project: String,
    /// Estimated run time.
    pub estimate: String,
    /// Deadline, from now.
    pub deadline: String,
    /// Time it may wait for lower carbon intensity.
    pub slack: String,
    /// How much slower it may run.
    pub max_slowdown: String,
    /// The share of its throughput that it gives up during a grid event.
    pub flexibility: String,
    /// It may be paused during a grid event.
    pub event_pause: bool,
    /// Its number of GPUs may change during a grid event.
    pub event_resize: bool,
    /// Priority.
    pub priority: String,
    /// Signal that requests a checkpoint.
    pub checkpoint_signal: String,
    /// Environment variables, one on each line.
    pub environment: String,
}

/// What is wrong, by the name of the field.
pub type Errors = BTreeMap<&'static str, String>;

/// What a form means: shown while a person fills it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Review {
    /// What is wrong.
    pub errors: Errors,
    /// The program and its arguments; empty if the command is not valid.
    pub words: Vec<String>,
    /// The name of the job; empty if a field is wrong.
    pub name: String,
    /// A character of the command that only a shell would interpret.
    pub uninterpreted: Option<char>,
}

/// Collects values and errors of fields.
#[derive(Default)]
struct Fields {
    errors: Errors,
}

impl Fields {
    /// The value of a field; `None` if it is empty or wrong.
    fn parsed<T, E: Display>(
        &mut self,
        name: &'static str,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.insert(name, error.to_string());
                None
            }
        }
    }
}

/// A launcher has no working directory of its own that a person knows.
fn parse_working_dir(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err(format!("invalid directory `{text}`: expected an absolute path, as in /home/ada/train"))
    }
}

/// Whether a shell reads this first word as a variable for the command.
fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| {
        let mut characters = name.chars();
        characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

impl Form {
    fn words(&self) -> Result<Words, String> {
        let line = self.command.trim_matches([' ', '\t', '\r', '\n']);
        let words = if self.shell && !line.is_empty() {
            let words = ["sh", "-c", line].map(str::to_owned).to_vec();
            Words { words, uninterpreted: None }
        } else {
            split(line)?
        };
        if words.words.first().is_none_or(String::is_empty) {
            return Err("the command is empty: name a program and its arguments".to_owned());
        }
        if let Some(variable) = words.words.first().filter(|word| is_assignment(word)) {
            return Err(format!(
                "the command begins with a variable, `{variable}`: put it into the environment variables, \
                 or run the command with a shell"
            ));
        }
        Ok(words)
    }

    /// The options of the job.
    ///
    /// # Errors
    /// What is wrong with each field.
    pub fn options(&self) -> Result<JobOptions, Errors> {
        let mut fields = Fields::default();
        let words = self.words();
        let command = words.map(|words| words.words).unwrap_or_else(|error| {
            fields.errors.insert("command", error);
            Vec::new()
        });
        let variables =
            self.environment.lines().map(str::trim_start).filter(|line| !line.is_empty());
        let environment: Result<Vec<_>, _> = variables.map(parse_variable).collect();
        let environment = environment.unwrap_or_else(|error| {
            fields.errors.insert("environment", error.to_string());
            Vec::new()
        });
        let options = JobOptions {
            name: Some(self.name.trim().to_owned()).filter(|name| !name.is_empty()),
            job: None,
            project: fields.parsed("project", &self.project, FromStr::from_str),
            workload: fields.parsed("workload", &self.workload, FromStr::from_str),
            gpus: fields
                .parsed("gpus", &self.gpus, GpuRequest::from_str)
                .unwrap_or(GpuRequest::exactly(1)),
            exclusive: self.sharing == SharingChoice::Exclusive,
            share: self.sharing == SharingChoice::Share,
            max_slowdown: fields.parsed("max_slowdown", &self.max_slowdown, parse_slowdown),
            flexibility: fields.parsed("flexibility", &self.flexibility, parse_flexibility),
            event_pause: self.event_pause,
            event_resize: self.event_resize,
            priority: fields.parsed("priority", &self.priority, parse_priority).unwrap_or(0),
            deadline: fields.parsed("deadline", &self.deadline, parse_span),
            slack: fields.parsed("slack", &self.slack, parse_span),
            estimate: fields.parsed("estimate", &self.estimate, parse_span),
            memory_mib: fields.parsed("memory_mib", &self.memory_mib, parse_memory_mib),
            gpu_type: fields.parsed("gpu_type", &self.gpu_type, parse_gpu_type),
            checkpoint_signal: fields.parsed(
                "checkpoint_signal",
                &self.checkpoint_signal,
                check_signal,
            ),
            command,
            environment,
            working_dir: fields.parsed("working_dir", &self.working_dir, parse_working_dir),
        };
        if fields.errors.is_empty() { Ok(options) } else { Err(fields.errors) }
    }

    /// What the form means.
    #[must_use]
    pub fn review(&self) -> Review {
        let words = self.words().unwrap_or_default();
        let options = self.options();
        let name = options.as_ref().map(|options| options.name().to_owned()).unwrap_or_default();
        Review {
            errors: options.err().unwrap_or_default(),
            words: words.words,
            name,
            uninterpreted: words.uninterpreted,
        }
    }
}

/// A form that is submitted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// The form.
    pub form: Form,
    /// A hexadecimal number that the browser chooses for this submission. A repetition has the same.
    pub number: String,
    /// The person that the page shows as the owner; absent: it shows none.
    #[serde(default)]
    pub person: Option<String>,
}

impl Submission {
    /// The request to the placer. Equal submissions have the same job and submission id, so the placer
    /// accepts one job. It sets an absent user from the sender's key.
    ///
    /// # Errors
    /// What is wrong with each field; `number` is the name of the number's.
    pub fn request(&self, user: Option<String>, now: Timestamp) -> Result<SubmitJob, Errors> {
        let wrong = |text: String| Errors::from([("number", text)]);
        let number = u64::from_str_radix(&self.number, 16).map_err(|_| {
            wrong(format!("invalid number `{}`: expected hexadecimal digits", self.number))
        })?;
        let submission = SubmissionId::new(&format!("web-{number:x}"));
        let submission = submission.map_err(|error| wrong(error.to_string()))?;
        let spec = self.form.options()?.spec(user, number, now);
        let spec = spec.map_err(|error| Errors::from([("name", error.to_string())]))?;
        Ok(SubmitJob { spec, submission: Some(submission), user_proven: false })
    }
}

/// The error of a submission to which no service has replied.
#[must_use]
pub fn unknown_outcome(job: &JobId, error: &str) -> String {
    format!(
        "it is unknown whether {job} was accepted: {error}; submitting the same form again does not \
         make a second job"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(command: &str) -> Form {
        Form { command: command.to_owned(), ..Form::default() }
    }

    #[test]
    fn a_form_makes_the_job_of_the_same_options() {
        let text = |text: &str| text.to_owned();
        let form = Form {
            command: text("python3 'my train.py' --epochs 90"),
            shell: false,
            name: text(" resnet "),
            working_dir: text("/home/ada"),
            gpus: text("1..8"),
            gpu_type: text("V100"),
            sharing: SharingChoice::Share,
            memory_mib: text("16000"),
            workload: text("resnet50"),
            project: text("vision"),
            estimate: text("2h"),
            deadline: text("12h"),
            slack: text("90m"),
            max_slowdown: text("2%"),
            flexibility: text("25%"),
            event_pause: true,
            event_resize: false,
            priority: text("7"),
            checkpoint_signal: text("USR1"),
            environment: text("A=1\n\n B=x y \n"),
        };
        let submission = Submission { form, number: text("1f"), person: None };
        let spec = submission.request(None, Timestamp::from_s(100)).unwrap().spec;
        assert_eq!(spec.command, ["python3", "my train.py", "--epochs", "90"]);
        assert_eq!((spec.job.as_str(), spec.name.as_str()), ("resnet-1f", "resnet"));
        assert_eq!(spec.user, None, "the placer sets it from the sender");
        assert_eq!(spec.gpus, GpuRequest { min: 1, max: 8 });
        assert_eq!(spec.gpu_type.as_deref(), Some("v100"));
        assert!(spec.consents_to_sharing && !spec.exclusive);
        assert_eq!(spec.deadline_at_us, Some(Timestamp::from_s(100 + 12 * 3_600)));
        assert_eq!(spec.slack_ms, Some(90 * 60_000));
        assert_eq!(spec.duration_ms_estimate, Some(2 * 3_600_000));
        assert_eq!((spec.max_slowdown_permille, spec.priority), (Some(20), 7));
        assert_eq!(spec.flexibility.unwrap().sentence(), "25 %, may be paused");
        assert_eq!(spec.checkpoint_signal.as_deref(), Some("SIGUSR1"));
        let variable = |key: &str, value: &str| (text(key), text(value));
        assert_eq!(spec.environment, [variable("A", "1"), variable("B", "x y ")]);
        assert_eq!(spec.working_dir.as_deref(), Some("/home/ada"));
        assert_eq!(spec.memory_mib_max, Some(16_000));
        assert_eq!(spec.project.unwrap().as_str(), "vision");
    }

    #[test]
    fn every_wrong_field_is_named() {
        let text = |text: &str| text.to_owned();
        let wrong = Form {
            gpus: text("8..1"),
            gpu_type: text("v100,p100"),
            memory_mib: text("16 GiB"),
            workload: text("a b"),
            project: text("ü"),
            estimate: text("soon"),
            deadline: text("-3h"),
            slack: text("0s"),
            max_slowdown: text("fast"),
            flexibility: text("120%"),
            priority: text("101"),
            checkpoint_signal: text("KILL"),
            environment: text("A=1\nB"),
            working_dir: text("train"),
            ..form("python3 'train.py")
        };
        let errors = wrong.options().unwrap_err();
        let names: Vec<&str> = errors.keys().copied().collect();
        let all = [
            "checkpoint_signal",
            "command",
            "deadline",
            "environment",
            "estimate",
            "flexibility",
            "gpu_type",
            "gpus",
            "max_slowdown",
            "memory_mib",
            "priority",
            "project",
            "slack",
            "working_dir",
            "workload",
        ];
        assert_eq!(names, all);
        assert_eq!(errors["deadline"], parse_span("-3h").unwrap_err().to_string());
        assert_eq!(errors["gpus"], GpuRequest::from_str("8..1").unwrap_err().to_string());
        assert_eq!(errors["environment"], "invalid variable `B`: expected KEY=VALUE");
    }

    #[test]
    fn unknown_fields_are_refused() {
        let read = serde_json::from_str::<Form>;
        assert_eq!(read(r#"{"command":"a"}"#).unwrap(), form("a"));
        assert!(read(r#"{"command":"a","user":"olga"}"#).is_err(), "no person names another one");
        assert!(read(r#"{"sharing":"often"}"#).is_err());
    }

    #[test]
    fn a_repetition_has_the_same_ids() {
        let submission =
            Submission { form: form("a"), number: "660bb7234354a".to_owned(), person: None };
        let first = submission.request(None, Timestamp::from_s(1)).unwrap();
        let again = submission.request(None, Timestamp::from_s(9)).unwrap();
        assert_eq!(first.spec.job.as_str(), "a-660bb7234354a");
        assert_eq!((&first.spec.job, &first.submission), (&again.spec.job, &again.submission));
        let other = Submission { number: "660bb7234354b".to_owned(), ..submission.clone() };
        let other = other.request(None, Timestamp::from_s(1)).unwrap();
        assert!(other.spec.job != first.spec.job && other.submission != first.submission);
        for wrong in ["", "x", "11112222333344445"] {
            let submission = Submission { number: wrong.to_owned(), ..submission.clone() };
            let errors = submission.request(None, Timestamp::from_s(1)).unwrap_err();
            assert!(errors["number"].contains(wrong), "{errors:?}");
        }
    }

    #[test]
    fn a_review_shows_the_words_and_what_no_shell_interprets() {
        let review = form("python3 t.py > out.txt").review();
        assert_eq!(review.words, ["python3", "t.py", ">", "out.txt"]);
        assert_eq!((review.name.as_str(), review.uninterpreted), ("python3", Some('>')));
        let review = Form { shell: true, ..form(" a > out.txt ") }.review();
        assert_eq!(review.words, ["sh", "-c", "a > out.txt"]);
        assert_eq!((review.name.as_str(), review.uninterpreted), ("sh", None));
        for shell in [false, true] {
            let review = Form { shell, ..form(" ") }.review();
            assert!(review.words.is_empty() && review.errors["command"].contains("empty"));
        }
    }
}

//! `wattle submit`: submits a job and prints its id once the placer has stored it.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::aim::parse_slowdown;
use wattle_common::id::{ProjectId, SubmissionId};
use wattle_common::job::{GpuRequest, JobSpec, check_signal};
use wattle_common::messages::{Reply, SubmitJob};
use wattle_common::subject::RequestTopic;
use wattle_common::time::span_s;
use wattle_common::{JobId, WorkloadId, id};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{note, print, print_json, usage};
use crate::takeover;

/// Submit a job.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle submit --gpus 2 -- python3 train.py --epochs 90\n  wattle submit --gpus 1..8 --workload resnet50 --deadline 12h --checkpoint-signal USR1 -- ./train.sh\n  wattle submit --gpus 2 --gpu-type v100 -- python3 train.py"
)]
pub(crate) struct Submit {
    /// Number of GPUs, or a range for an elastic job
    #[arg(long, value_name = "N|MIN..MAX", default_value = "1")]
    gpus: GpuRequest,
    /// Name of the job [default: the name of the program]
    #[arg(long)]
    name: Option<String>,
    /// Id of the job [default: the name and a number]
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
    /// Workload class; measurements of the same class improve its predictions
    #[arg(long, value_name = "ID")]
    workload: Option<WorkloadId>,
    /// Deadline, from now: 90s, 45m, 12h, 3d
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    deadline: Option<Duration>,
    /// Total time the job may wait for cleaner energy, before its start and between epochs
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    slack: Option<Duration>,
    /// Estimated run time with exclusive GPUs
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    estimate: Option<Duration>,
    /// Peak device memory per GPU
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// Required GPU type, as in `wattle nodes` [default: any]
    #[arg(long, value_name = "TYPE", value_parser = parse_gpu_type)]
    gpu_type: Option<String>,
    /// Never share its GPUs
    #[arg(long)]
    exclusive: bool,
    /// Consent to sharing its GPUs with other jobs, where the site requires consent
    #[arg(long, conflicts_with = "exclusive")]
    share: bool,
    /// How much slower than at the default cap and clock its GPUs may run it: 2% or 0.02
    #[arg(long, value_name = "SHARE", value_parser = parse_slowdown)]
    max_slowdown: Option<f64>,
    /// Project whose quota and fair share it counts towards
    #[arg(long, value_name = "NAME", env = "WATTLE_PROJECT")]
    project: Option<ProjectId>,
    /// Priority from 0 to 100, higher first; equal priorities in order of submission
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    priority: u8,
    /// Signal on which the job writes a checkpoint and exits with 0; without it the job is never moved
    #[arg(long, value_name = "SIGNAL", value_parser = check_signal)]
    checkpoint_signal: Option<&'static str>,
    /// Environment variable of the job (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Reads `90s`, `45m`, `12h`, `3d`, or plain seconds.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration `{text}`: expected 90s, 45m, 12h or 3d");
    let (number, seconds) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3_600.0),
        Some((at, 'd')) => (&text[..at], 86_400.0),
        _ => (text, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    if !(number > 0.0 && number * seconds < 1e10) {
        return Err(wrong());
    }
    Ok(span_s(number * seconds))
}

/// Parses a GPU type; nodes report it in lower case.
fn parse_gpu_type(text: &str) -> Result<String, String> {
    match id::check(text) {
        Ok(()) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err(format!(
            "invalid GPU type `{text}`: expected a type as in `wattle nodes`, such as v100"
        )),
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("invalid variable `{text}`: expected KEY=VALUE")),
    }
}

/// Turns a name into the start of an id; invalid characters become `-`.
fn as_id(name: &str) -> String {
    let kept: String = name
        .chars()
        .take(40)
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    let kept = kept.trim_matches('-');
    if kept.is_empty() { "job".to_owned() } else { kept.to_owned() }
}

/// The name of the user who runs this command: `USER` or `LOGNAME`, else the name in `/etc/passwd`, else
/// the numeric id.
pub(crate) fn user() -> Option<String> {
    let named = ["USER", "LOGNAME"].into_iter().filter_map(|key| std::env::var(key).ok());
    let name = named.map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
    let id = rustix::process::getuid().as_raw().to_string();
    let passwd = || std::fs::read_to_string("/etc/passwd").ok();
    Some(name.or_else(|| user_in(&passwd()?, &id)).unwrap_or(id))
}

/// The name of the user with this numeric id, from lines of `name:password:id:...`.
fn user_in(passwd: &str, id: &str) -> Option<String> {
    let users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = users.filter(|fields| fields.get(2) == Some(&id));
    found.next()?.first().map(|name| (*name).to_owned())
}

/// A share in thousandths.
fn permille(share: f64) -> u32 {
    (share * 1e3).round() as u32
}

impl Submit {
    fn spec(self) -> anyhow::Result<JobSpec> {
        let program = self.command.first().map(String::as_str).unwrap_or_default();
        let name =
            self.name.unwrap_or_else(|| program.rsplit('/').next().unwrap_or("job").to_owned());
        let now = clock::now();
        let job = match self.job {
            Some(job) => job,
            // The timestamp makes ids unique; a retry of this call uses the same id.
            None => JobId::new(&format!("{}-{:x}", as_id(&name), now.as_us()))
                .map_err(|error| usage(format!("--name {name}: {error}")))?,
        };
        let here = std::env::current_dir().context("cannot read the current directory")?;
        Ok(JobSpec {
            job,
            name,
            user: user(),
            project: self.project,
            workload: self.workload,
            gpus: self.gpus,
            exclusive: self.exclusive,
            consents_to_sharing: self.share,
            max_slowdown_permille: self.max_slowdown.map(permille),
            priority: self.priority,
            deadline_at_us: self.deadline.map(|span| now + span),
            slack_ms: self.slack.map(|span| span.as_millis() as u64),
            duration_ms_estimate: self.estimate.map(|span| span.as_millis() as u64),
            memory_mib_max: self.memory_mib,
            gpu_type: self.gpu_type,
            checkpoint_signal: self.checkpoint_signal.map(str::to_owned),
            command: self.command,
            environment: self.env,
            working_dir: Some(here.to_string_lossy().into_owned()),
            site: None,
            submitted_at_us: now,
        })
    }
}

/// Submits a job; on success it is stored.
pub(crate) async fn submit(bus: &Bus, request: &SubmitJob) -> anyhow::Result<JobId> {
    let subject = bus.request_subject(RequestTopic::JobSubmitted);
    let reply: Reply = bus
        .request(&subject, request)
        .await
        .context("the placer did not answer; is wattle-placer running?")?;
    match reply {
        Reply::Accepted { job } => Ok(job),
        Reply::Refused { error } => Err(usage(error)),
    }
}

/// Submits a job, and repeats the request while another placer may take over. A job that was stored before
/// a lost reply is not duplicated.
async fn submit_with_retries(bus: &Bus, spec: JobSpec) -> anyhow::Result<JobId> {
    let job = spec.job.clone();
    let unique = format!("{}-{:x}", std::process::id(), clock::wall_now().as_us());
    let submission = SubmissionId::new(&unique).context("the id of the submission")?;
    let request = SubmitJob { spec, submission: Some(submission), user_proven: false };
    let reply = takeover::request(bus, RequestTopic::JobSubmitted, "placer", &request).await;
    let reply = reply.with_context(|| {
        format!("it is unknown whether {job} was accepted; check `wattle jobs`")
    })?;
    match reply {
        Reply::Accepted { job } => Ok(job),
        Reply::Refused { error } => Err(usage(error)),
    }
}

/// Notes other jobs of the same name that have not ended: a second submission may be a mistake. The job
/// is submitted already, so errors are ignored.
async fn note_same_name(bus: &Bus, name: &str, job: &JobId) {
    let Ok(ids) = job_records::ids(bus).await else { return };
    let mut others = Vec::new();
    for key in ids.into_iter().filter(|key| key != job.as_str() && is_of_name(key, name)) {
        let Ok(other) = JobId::new(&key) else { continue };
        if let Ok(Some(record)) = job_records::one(bus, &other).await
            && !record.phase.is_final()
        {
            others.push(key);
        }
    }
    if !others.is_empty() {
        let others = others.join(", ");
        note(&format!("note: other jobs named `{name}` have not ended: {others}"));
    }
}

/// Whether an id was made from a name by [`Submit::spec`].
fn is_of_name(id: &str, name: &str) -> bool {
    id.rsplit_once('-').is_some_and(|(stem, number)| {
        stem == as_id(name) && number.chars().all(|c| c.is_ascii_hexdigit())
    })
}

/// Runs the command.
pub(crate) fn run(command: Submit) -> anyhow::Result<()> {
    let (connection, json) = (command.connection.clone(), command.json);
    block_on(async {
        let bus = connection.open().await?;
        job_records::require_change(&bus)?;
        let name = command.name.clone().filter(|_| command.job.is_none());
        let job = submit_with_retries(&bus, command.spec()?).await?;
        if let Some(name) = name {
            note_same_name(&bus, &name, &job).await;
        }
        if json { print_json(&Reply::Accepted { job }) } else { print(job.as_str()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("1.5h"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_span("30"), Ok(Duration::from_secs(30)));
        for wrong in ["", "h", "-3h", "0s", "soon", "nan", "1e300d"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    /// `--` is optional; arguments after the program belong to the program.
    #[test]
    fn dashes_before_the_program_are_optional() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            submit: Submit,
        }
        let read = |line: &str| <Line as clap::Parser>::try_parse_from(line.split(' '));
        for line in
            ["submit --gpus 2 -- python3 t.py --json", "submit --gpus 2 python3 t.py --json"]
        {
            let submit = read(line).map_err(|error| error.to_string()).unwrap().submit;
            assert_eq!((submit.gpus, submit.json), (GpuRequest::exactly(2), false));
            assert_eq!(submit.command, ["python3", "t.py", "--json"]);
        }
        let submit = read("submit --gpu-type V100 t.py").map_err(|error| error.to_string());
        assert_eq!(submit.unwrap().submit.gpu_type.as_deref(), Some("v100"));
        assert!(read("submit --gpu-type v100,p100 t.py").is_err());
        assert!(read("submit --gpu 2 python3").is_err(), "an unknown option is not the program");
    }

    #[test]
    fn ids_of_a_name_are_recognised() {
        assert!(is_of_name("train-660bb7234354a", "train"));
        assert!(is_of_name("my-train-660bb7234354a", "my train"));
        assert!(!is_of_name("train-660bb7234354a-7", "train"));
        assert!(!is_of_name("train", "train") && !is_of_name("other-1", "train"));
    }

    #[test]
    fn user_is_found_by_id() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(user_in(passwd, "1000").as_deref(), Some("ada"));
        assert_eq!(user_in(passwd, "1"), None);
    }

    #[test]
    fn every_name_gives_a_valid_id() {
        for name in ["train.py", "../..", "模型", "a b", &"x".repeat(100)] {
            assert!(JobId::new(&as_id(name)).is_ok(), "{name}");
        }
    }
}

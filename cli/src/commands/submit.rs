//! `wattle submit`: submits a job and prints its id once the placer has stored it.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::aim::parse_slowdown;
use wattle_common::duration::{parse_span, span};
use wattle_common::id::{ProjectId, SubmissionId, parse_chosen};
use wattle_common::job::{
    GpuRequest, JobOptions, JobSpec, check_signal, is_of_name, parse_flexibility, parse_gpu_type,
    parse_memory_mib, parse_priority, parse_variable,
};
use wattle_common::messages::{JobRecord, Reply, SubmitJob};
use wattle_common::subject::RequestTopic;
use wattle_common::verdict::late_finding;
use wattle_common::{JobId, WorkloadId};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_runtime::user::local_user;

use crate::connection::{Connection, block_on};
use crate::job_end;
use crate::job_records;
use crate::output::{Exit, note, print, print_json, usage};
use crate::takeover;
use crate::wait::Wait;

/// Submit a job.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle submit --gpus 2 -- python3 train.py --epochs 90\n  wattle submit --gpus 1..8 --workload resnet50 --deadline 12h --checkpoint-signal USR1 -- ./train.sh\n  wattle submit --gpus 2 --gpu-type v100 -- python3 train.py\n  wattle submit --wait --timeout 2h -- python3 evaluate.py"
)]
pub(crate) struct Submit {
    /// Number of GPUs, or a range for an elastic job
    #[arg(long, value_name = "N|MIN..MAX", default_value = "1")]
    gpus: GpuRequest,
    /// Name of the job [default: the name of the program]
    #[arg(long)]
    name: Option<String>,
    /// Id of the job [default: the name and a number]
    #[arg(long, value_name = "ID", value_parser = parse_chosen::<JobId>, allow_hyphen_values = true)]
    job: Option<JobId>,
    /// Workload class; measurements of the same class improve its predictions
    #[arg(long, value_name = "ID", value_parser = parse_chosen::<WorkloadId>, allow_hyphen_values = true)]
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
    #[arg(long, value_name = "MIB", value_parser = parse_memory_mib)]
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
    /// Share of its throughput that it gives up at most during a grid event, on average: 25% or 0.25 [default: the
    /// site's; without one it has no promise]
    #[arg(long, value_name = "SHARE", value_parser = parse_flexibility)]
    flexibility: Option<f64>,
    /// It may be paused during a grid event; needs a checkpoint signal
    #[arg(long, requires_all = ["flexibility", "checkpoint_signal"])]
    event_pause: bool,
    /// Its number of GPUs may change during a grid event
    #[arg(long, requires = "flexibility")]
    event_resize: bool,
    /// Project whose quota and fair share it counts towards
    #[arg(long, value_name = "NAME", env = "WATTLE_PROJECT", value_parser = parse_chosen::<ProjectId>)]
    project: Option<ProjectId>,
    /// Priority from 0 to 100, higher first; equal priorities in order of submission
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_priority)]
    priority: u8,
    /// Signal on which the job writes a checkpoint and exits with 0; without it the job is never moved. Only
    /// its first process receives it: a shell script must start the program with `exec`
    #[arg(long, value_name = "SIGNAL", value_parser = check_signal)]
    checkpoint_signal: Option<&'static str>,
    /// Environment variable of the job (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Wait until the job has ended, and exit with its exit code; 125 if it has none, as after a cancellation
    #[arg(long)]
    wait: bool,
    /// Longest wait, then exit code 124; the job continues: 90s, 45m, 12h
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "wait")]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON; with --wait also the end of the job
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Submit {
    fn options(self) -> anyhow::Result<JobOptions> {
        let here = std::env::current_dir().context("cannot read the current directory")?;
        Ok(JobOptions {
            name: self.name,
            job: self.job,
            project: self.project,
            workload: self.workload,
            gpus: self.gpus,
            exclusive: self.exclusive,
            share: self.share,
            max_slowdown: self.max_slowdown,
            flexibility: self.flexibility,
            event_pause: self.event_pause,
            event_resize: self.event_resize,
            priority: self.priority,
            deadline: self.deadline,
            slack: self.slack,
            estimate: self.estimate,
            memory_mib: self.memory_mib,
            gpu_type: self.gpu_type,
            checkpoint_signal: self.checkpoint_signal,
            command: self.command,
            environment: self.env,
            working_dir: Some(here.to_string_lossy().into_owned()),
        })
    }

    fn spec(self) -> anyhow::Result<JobSpec> {
        let now = clock::now();
        let options = self.options()?;
        let name = options.name().to_owned();
        // The time makes ids unique; a retry of this call uses the same id.
        let spec = options.spec(Some(local_user()), now.as_us(), now);
        spec.map_err(|error| usage(format!("--name {name}: {error}")))
    }
}

/// A deadline that the job cannot meet by its own estimate.
fn impossible_deadline(spec: &JobSpec) -> Option<String> {
    let now = spec.submitted_at_us;
    let late = JobRecord::queued(spec.clone(), now).late(now)?;
    let estimate = Duration::from_millis(spec.duration_ms_estimate?);
    let estimate = span(estimate.as_secs_f64());
    Some(format!("{}: its estimated run time is {estimate}", late_finding(&spec.job, late).text))
}

/// Submits a job; on success it is stored.
pub(crate) async fn submit(bus: &Bus, request: &SubmitJob) -> anyhow::Result<JobId> {
    let subject = bus.request_subject(RequestTopic::JobSubmitted);
    let reply: Result<Reply, _> = bus.request(&subject, request).await;
    match reply.map_err(|error| takeover::unanswered(error, "placer"))? {
        Reply::Accepted { job, .. } => Ok(job),
        Reply::Refused { error } => Err(usage(error)),
    }
}

/// Submits a job, and repeats the request while another placer may take over. A job that was stored before
/// a lost reply is not duplicated.
async fn submit_with_retries(bus: &Bus, spec: JobSpec) -> anyhow::Result<Reply> {
    let job = spec.job.clone();
    let unique = format!("{}-{:x}", std::process::id(), clock::wall_now().as_us());
    let submission = SubmissionId::new(&unique).context("the id of the submission")?;
    let request = SubmitJob { spec, submission: Some(submission), user_proven: false };
    let reply = takeover::request(bus, RequestTopic::JobSubmitted, "placer", &request).await;
    reply.map_err(|error| {
        let outcome = if takeover::is_unsent(&error) {
            format!("{job} is not submitted")
        } else {
            format!("it is unknown whether {job} was accepted; check `wattle jobs`")
        };
        error.context(outcome)
    })
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

/// Runs the command.
pub(crate) fn run(command: Submit) -> anyhow::Result<()> {
    let (connection, json) = (command.connection.clone(), command.json);
    let (waits, timeout) = (command.wait, command.timeout);
    block_on(async {
        let bus = connection.open().await?;
        job_records::require_change(&bus)?;
        let name = command.name.clone().filter(|_| command.job.is_none());
        let spec = command.spec()?;
        let impossible = impossible_deadline(&spec);
        let reply = submit_with_retries(&bus, spec).await?;
        let job = match &reply {
            Reply::Accepted { job, .. } => job,
            Reply::Refused { error } => return Err(usage(error.clone())),
        };
        if let Some(text) = impossible {
            note(&format!("note: {text}"));
        }
        if let Some(name) = name {
            note_same_name(&bus, &name, job).await;
        }
        if !json {
            print(job.as_str())?;
        } else if !waits {
            print_json(&reply)?;
        }
        if !waits {
            return Ok(());
        }
        let otherwise = format!("{job} continues; `wattle cancel {job}` cancels it");
        let wait = Wait { timeout, otherwise: &otherwise, slow: None };
        let ended = job_end::until_ended(&bus, job, &reply, &wait, json).await?;
        match job_end::exit_code(&ended) {
            0 => Ok(()),
            code => Err(Exit(code).into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_below_the_estimate_is_named() {
        let mut spec = wattle_testkit::job_spec("t-7", 1);
        spec.deadline_at_us = Some(spec.submitted_at_us + Duration::from_secs(600));
        assert_eq!(impossible_deadline(&spec), None, "nothing is known of its work");
        spec.duration_ms_estimate = Some(13_200_000);
        let text =
            "t-7 will miss its deadline by 3.5 h, by prediction: its estimated run time is 3.7 h";
        assert_eq!(impossible_deadline(&spec).as_deref(), Some(text));
        spec.duration_ms_estimate = Some(500_000);
        assert_eq!(impossible_deadline(&spec), None);
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
        let submit = read("submit --wait --timeout 2h t.py --wait").map_err(|e| e.to_string());
        let submit = submit.unwrap().submit;
        assert_eq!((submit.wait, submit.timeout), (true, Some(Duration::from_secs(7_200))));
        assert_eq!(submit.command, ["t.py", "--wait"], "the second belongs to the program");
        assert!(read("submit --timeout 2h t.py").is_err(), "without a wait it limits nothing");
        for id in ["--job=-rf", "--job -rf", "--workload --x", "--project=-p"] {
            let error =
                read(&format!("submit {id} t.py")).map_err(|e| e.to_string()).err().unwrap();
            assert!(error.contains("it begins with a dash; begin it with a letter"), "{error}");
        }
    }
}

//! `wattle submit`: hands a job to the placer and says its id once it is stored.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::job::{GpuRequest, JobSpec, check_signal};
use wattle_common::messages::{Reply, SubmitJob};
use wattle_common::subject::{RequestTopic, Subject};
use wattle_common::{JobId, WorkloadId, id};
use wattle_runtime::bus::Bus;

use crate::connection::{Connection, block_on};
use crate::output::{UsageError, print, print_json, usage};

/// How long to ask a placer that does not answer, wall time: it is started again within a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long before it is asked again, wall time.
const PAUSE: Duration = Duration::from_millis(200);

/// Hand in a job.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle submit --gpus 2 -- python3 train.py --epochs 90\n  wattle submit --gpus 1..8 --workload resnet50 --deadline 12h --checkpoint-signal USR1 -- ./train.sh\n  wattle submit --gpus 2 --gpu-type v100 -- python3 train.py"
)]
pub(crate) struct Submit {
    /// GPUs: a number, or the fewest and the most it can use
    #[arg(long, value_name = "N|MIN..MAX", default_value = "1")]
    gpus: GpuRequest,
    /// What you call it [default: the program's name]
    #[arg(long)]
    name: Option<String>,
    /// Its id [default: the name and a number]
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
    /// Which kind of job it is: what was learned of others of its kind is used for it
    #[arg(long, value_name = "ID")]
    workload: Option<WorkloadId>,
    /// It must be done within this time from now: 90s, 45m, 12h, 3d
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    deadline: Option<Duration>,
    /// It may wait so long in all for cleaner energy, before it starts and between epochs
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    slack: Option<Duration>,
    /// How long it takes alone, if you know
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    estimate: Option<Duration>,
    /// Peak device memory on each GPU, if you know
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// The kind of GPU it must have, as `wattle nodes` names it [default: any]
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    gpu_type: Option<String>,
    /// Never share its GPUs
    #[arg(long)]
    exclusive: bool,
    /// Who has more is served first, from 0 to 100; among equals, who came first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    priority: u8,
    /// The signal on which it writes a checkpoint and exits 0; without one it is never moved
    #[arg(long, value_name = "SIGNAL", value_parser = check_signal)]
    checkpoint_signal: Option<&'static str>,
    /// An environment variable for it (repeat for more)
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
    let wrong = || format!("`{text}` is no span of time; write 90s, 45m, 12h or 3d");
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
    Ok(Duration::from_secs_f64(number * seconds))
}

/// A kind of GPU, in lower case as nodes report it.
fn parse_kind(text: &str) -> Result<String, String> {
    match id::check(text) {
        Ok(()) => Ok(text.to_ascii_lowercase()),
        Err(_) => {
            Err(format!("`{text}` is no kind of GPU; write v100, as `wattle nodes` shows it"))
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form KEY=VALUE")),
    }
}

/// A name made into the beginning of an id: what an id cannot have becomes `-`.
fn as_id(name: &str) -> String {
    let kept: String = name
        .chars()
        .take(40)
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    let kept = kept.trim_matches('-');
    if kept.is_empty() { "job".to_owned() } else { kept.to_owned() }
}

impl Submit {
    fn spec(self) -> anyhow::Result<JobSpec> {
        let program = self.command.first().map(String::as_str).unwrap_or_default();
        let name =
            self.name.unwrap_or_else(|| program.rsplit('/').next().unwrap_or("job").to_owned());
        let now = wattle_runtime::clock::now();
        let job = match self.job {
            Some(job) => job,
            // The instant keeps ids apart, and makes a repeated attempt of the same call the same.
            None => JobId::new(&format!("{}-{:x}", as_id(&name), now.as_us()))
                .map_err(|error| usage(format!("--name {name}: {error}")))?,
        };
        let here = std::env::current_dir().context("cannot tell the current folder")?;
        Ok(JobSpec {
            job,
            name,
            workload: self.workload,
            gpus: self.gpus,
            exclusive: self.exclusive,
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
            submitted_at_us: now,
        })
    }
}

/// Asks the placer to take `spec`; once this returns the job is stored.
pub(crate) async fn submit(bus: &Bus, spec: JobSpec) -> anyhow::Result<JobId> {
    let subject = Subject::request(bus.cluster().clone(), RequestTopic::JobSubmitted);
    let reply: Reply = bus
        .request(&subject, &SubmitJob { spec })
        .await
        .context("the placer did not answer; `wattle nodes` shows what runs")?;
    match reply {
        Reply::Accepted { job } => Ok(job),
        Reply::Refused { error } => Err(usage(error)),
    }
}

/// As [`submit`], again and again for a while: a placer that is killed is back soon, and a job that
/// it took before it could answer is not doubled.
async fn insist(bus: &Bus, spec: JobSpec) -> anyhow::Result<JobId> {
    let job = spec.job.clone();
    let mut last = None;
    let taken = async {
        loop {
            match submit(bus, spec.clone()).await {
                Err(error) if !error.is::<UsageError>() => last = Some(error),
                answered => return answered,
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(PATIENCE, taken).await {
        Ok(answered) => answered,
        Err(late) => Err(last.unwrap_or_else(|| late.into())).with_context(|| {
            format!("not known whether {job} was taken; `wattle jobs` shows it if it was")
        }),
    }
}

/// Runs the command.
pub(crate) fn run(command: Submit) -> anyhow::Result<()> {
    let (connection, json) = (command.connection.clone(), command.json);
    block_on(async {
        let bus = connection.open().await?;
        let job = insist(&bus, command.spec()?).await?;
        if json { print_json(&Reply::Accepted { job }) } else { print(job.as_str()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them() {
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("1.5h"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_span("30"), Ok(Duration::from_secs(30)));
        for wrong in ["", "h", "-3h", "0s", "soon", "nan", "1e300d"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    /// `--` may be left out; what follows the program is the program's.
    #[test]
    fn the_command_needs_no_dashes_before_it() {
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
        assert!(read("submit --gpu 2 python3").is_err(), "a slip of the finger is no program");
    }

    #[test]
    fn any_name_makes_an_id() {
        for name in ["train.py", "../..", "模型", "a b", &"x".repeat(100)] {
            assert!(JobId::new(&as_id(name)).is_ok(), "{name}");
        }
    }
}

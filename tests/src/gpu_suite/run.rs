//! One run: start one or two trainings on the card, wait until they report, measure, stop them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use wattle_common::env;
use wattle_common::messages::{JobProcesses, JobRecord, LaunchReport, LaunchState, LaunchedJob};
use wattle_common::{JobId, Timestamp};
use wattle_gpu::GpuReading;
use wattle_profiler::Event;
use wattle_profiler::period_detection::{NoPeriod, Period, Sample, SampleSeries};
use wattle_profiler::steps::{StepMeter, StepRate};
use wattle_runtime::{clock, testing};

use super::watch::Watch;
use super::{Plan, START_WITHIN};

/// Wall time a training has to end by itself once it was told to.
const END_WITHIN: Duration = Duration::from_secs(15);
/// Lines of a failed training's output that the record keeps.
const TAIL: usize = 12;

/// What was seen of one job.
#[derive(Clone, Debug)]
pub struct JobSeen {
    /// Its model, as it was asked for.
    pub model: String,
    /// Steps a second, by its own reports.
    pub rate: Option<StepRate>,
    /// Samples in one step.
    pub batch: Option<u32>,
    /// Most device memory its processes held, MiB.
    pub memory_mib: Option<u64>,
    /// The part of the card's power that the profiler gives it, watts.
    pub power_w: Option<f64>,
}

/// What was seen of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// One or two.
    pub jobs: Vec<JobSeen>,
    /// Why there are no figures.
    pub failed: Option<String>,
    /// How long was measured, seconds.
    pub span_s: f64,
    /// What the card read.
    pub samples: Vec<(Timestamp, GpuReading)>,
    /// By the card's energy counter, joules.
    pub counted_j: Option<f64>,
    /// By integrating its power readings over the same time, joules.
    pub integrated_j: Option<f64>,
    /// Processor time of this process, the profiler in it, as a share of one core.
    pub overhead: Option<f64>,
    /// The period seen in power and utilisation; of single jobs only.
    pub rhythm: Option<Result<Period, NoPeriod>>,
}

impl Run {
    /// Mean of what the card read, where it did.
    #[must_use]
    pub fn mean(&self, of: impl Fn(&GpuReading) -> Option<f64>) -> Option<f64> {
        let all: Vec<f64> = self.samples.iter().filter_map(|(_, reading)| of(reading)).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// The card's mean power: by its counter, else by its readings, watts.
    #[must_use]
    pub fn power_w(&self) -> Option<f64> {
        self.counted_j.or(self.integrated_j).map(|joules| joules / self.span_s)
    }
}

/// A training process with a session of its own, which ends with this.
struct Training {
    job: JobId,
    child: Child,
}

impl Training {
    fn start(plan: &Plan, watch: &Watch, folder: &Path, at: usize, model: &str) -> Result<Self> {
        let job = JobId::new(&format!("job-{at}"))?;
        let files = folder.join(format!("{job}-{}", clock::wall_now().as_us()));
        std::fs::create_dir_all(&files)?;
        let log = std::fs::File::create(folder.join(format!("{job}.log")))?;
        let words = plan.train.iter().map(|word| word.replace("{model}", model));
        // The profiler knows whose a process is by its session, as the launcher gives it one.
        let child = Command::new("setsid")
            .args(words)
            .env(env::JOB, job.as_str())
            .env(env::ATTEMPT, "1")
            .env(env::PROGRESS, &watch.socket)
            .env(env::CHECKPOINT_DIR, &files)
            .env("CUDA_VISIBLE_DEVICES", plan.gpu.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("setsid does not start; it is part of util-linux")?;
        Ok(Self { job, child })
    }

    /// Its log's end, where it is gone.
    fn gone(&mut self, folder: &Path) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let log = std::fs::read_to_string(folder.join(format!("{}.log", self.job)));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join(" / ");
        Some(format!("{} ended with {status}: {tail}", self.job))
    }

    /// Signals its whole session.
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        let mut tell = Command::new("kill");
        tell.args([&format!("-{signal}"), "--", &group]).stderr(Stdio::null());
        // Who is gone cannot be told.
        let _ = tell.status();
    }

    async fn end(&mut self) {
        self.signal("TERM");
        let ended = async || self.child.try_wait().ok().flatten();
        if testing::until(END_WITHIN, ended).await.is_none() {
            self.signal("KILL");
            let _ = self.child.wait();
        }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("KILL");
            let _ = self.child.wait();
        }
    }
}

/// What the placer would have written of it.
fn record(watch: &Watch, plan: &Plan, job: &JobId, model: &str) -> Result<JobRecord> {
    let share = serde_json::json!({ "node": watch.node, "gpus": [plan.gpu] });
    Ok(serde_json::from_value(serde_json::json!({
        "spec": {
            "job": job, "name": model, "workload": model, "gpus": { "min": 1, "max": 1 },
            "exclusive": false, "command": plan.train, "environment": [], "submitted_at_us": 0,
        },
        "phase": "running", "phase_since_us": 0, "attempt": 1, "placement": [share],
    }))?)
}

/// What the launcher would have said of all.
fn report(watch: &Watch, plan: &Plan, trainings: &[Training]) -> LaunchReport {
    let now = clock::now();
    let launched = |training: &Training| LaunchedJob {
        job: training.job.clone(),
        attempt: 1,
        gpus: vec![plan.gpu],
        state: LaunchState::Running,
        processes: Some(JobProcesses::Session(training.child.id())),
        since_us: now,
        log_path: String::new(),
    };
    LaunchReport {
        node: watch.node.clone(),
        at_us: now,
        observed_generation: 1,
        jobs: trainings.iter().map(launched).collect(),
    }
}

/// Processor time of all threads of this process, nanoseconds.
fn own_cpu_ns() -> Option<u64> {
    let one = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(std::fs::read_dir("/proc/self/task").ok()?.filter_map(one).sum())
}

/// Trains `models` together on the card and measures.
pub(super) async fn measure(
    watch: &mut Watch,
    plan: &Plan,
    folder: &Path,
    models: &[String],
) -> Result<Run> {
    watch.begin();
    let mut trainings = Vec::new();
    for (at, model) in models.iter().enumerate() {
        let training = Training::start(plan, watch, folder, at, model)?;
        let record = record(watch, plan, &training.job, model)?;
        watch.tell(Event::JobRecorded(Box::new(record)));
        trainings.push(training);
    }
    let told = report(watch, plan, &trainings);
    watch.tell(Event::LaunchReported(told));

    let failed = match ready(watch, plan, folder, &mut trainings).await? {
        Err(failed) => Some(failed),
        Ok(()) => {
            watch.begin();
            None
        }
    };
    let before = (clock::wall_now(), own_cpu_ns());
    let until = clock::now() + Duration::from_secs(plan.seconds);
    let failed = match failed {
        Some(failed) => Some(failed),
        None => pass(watch, folder, &mut trainings, until).await?,
    };
    let wall = clock::wall_now().since(before.0);
    let spent = before.1.zip(own_cpu_ns()).map(|(before, after)| after.saturating_sub(before));
    // The last window closes as the jobs go.
    let nobody = report(watch, plan, &[]);
    watch.tell(Event::LaunchReported(nobody));
    let run = seen(watch, models, &trainings, failed);
    for training in &mut trainings {
        training.end().await;
    }
    let wall_ns = wall.as_nanos() as f64;
    Ok(Run { overhead: spent.filter(|_| wall_ns > 0.0).map(|ns| ns as f64 / wall_ns), ..run })
}

/// Waits until every job has reported, and for the settling time; else why not.
async fn ready(
    watch: &mut Watch,
    plan: &Plan,
    folder: &Path,
    trainings: &mut [Training],
) -> Result<Result<(), String>> {
    let patience = clock::wall_now() + START_WITHIN;
    let waited = watch
        .listen(|watch| {
            if let Some(gone) = trainings.iter_mut().find_map(|training| training.gone(folder)) {
                return Some(Err(gone));
            }
            let said = |t: &Training| watch.lines.iter().any(|(_, line)| line.job == t.job);
            match trainings.iter().find(|training| !said(training)) {
                None => Some(Ok(())),
                Some(silent) if clock::wall_now() >= patience => {
                    Some(Err(format!("{} reports no step within {START_WITHIN:?}", silent.job)))
                }
                Some(_) => None,
            }
        })
        .await?;
    if waited.is_err() {
        return Ok(waited);
    }
    let until = clock::now() + Duration::from_secs(plan.settle);
    Ok(pass(watch, folder, trainings, until).await?.map_or(Ok(()), Err))
}

/// Lets time pass; which training has ended in it, if one has.
async fn pass(
    watch: &mut Watch,
    folder: &Path,
    trainings: &mut [Training],
    until: Timestamp,
) -> Result<Option<String>> {
    watch
        .listen(|_| {
            let gone = trainings.iter_mut().find_map(|training| training.gone(folder));
            gone.map(Some).or_else(|| (clock::now() >= until).then_some(None))
        })
        .await
}

fn seen(
    watch: &mut Watch,
    models: &[String],
    trainings: &[Training],
    failed: Option<String>,
) -> Run {
    let samples = std::mem::take(&mut watch.samples);
    let span = match (samples.first(), samples.last()) {
        (Some((first, _)), Some((last, _))) => last.since(*first),
        _ => Duration::ZERO,
    };
    let jobs: Vec<JobSeen> = models
        .iter()
        .zip(trainings)
        .map(|(model, training)| {
            let mut meter = StepMeter::default();
            let mine = || watch.lines.iter().filter(|(_, line)| line.job == training.job);
            for (at, line) in mine() {
                meter.report(*at, line.step);
            }
            let windows = || watch.windows.iter().filter(|window| window.job == training.job);
            let weighted = windows().filter_map(|window| {
                let seconds = window.until_us.since(window.from_us).as_secs_f64();
                Some((window.power_mw_job?.as_w() * seconds, seconds))
            });
            let (joules, seconds) = weighted.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            JobSeen {
                model: model.clone(),
                rate: meter.rate(),
                batch: mine().filter_map(|(_, line)| line.global_batch).next_back(),
                memory_mib: windows().filter_map(|window| window.memory_mib_max_job).max(),
                power_w: (seconds > 0.0).then(|| joules / seconds),
            }
        })
        .collect();
    Run {
        rhythm: (jobs.len() == 1 && failed.is_none())
            .then(|| series(&samples).detect_period(false)),
        jobs,
        failed,
        span_s: span.as_secs_f64(),
        counted_j: counted(&samples),
        integrated_j: integrated(&samples),
        samples,
        overhead: None,
    }
}

/// What the energy counter says was spent; `None` where it is missing or fell.
fn counted(samples: &[(Timestamp, GpuReading)]) -> Option<f64> {
    let counter: Vec<f64> =
        samples.iter().map(|(_, r)| Some(r.energy_total?.as_j())).collect::<Option<_>>()?;
    let rises = counter.windows(2).all(|pair| pair[1] >= pair[0]);
    Some(counter.last()? - counter.first()?).filter(|_| rises && counter.len() > 1)
}

/// What the power readings add up to, straight lines between them.
fn integrated(samples: &[(Timestamp, GpuReading)]) -> Option<f64> {
    let one = |pair: &[(Timestamp, GpuReading)]| {
        let watts = f64::midpoint(pair[0].1.power?.as_w(), pair[1].1.power?.as_w());
        Some(watts * pair[1].0.since(pair[0].0).as_secs_f64())
    };
    (samples.len() > 1).then(|| samples.windows(2).map(one).sum()).flatten()
}

/// The series from which the profiler detects the period of a job that reports no steps.
fn series(samples: &[(Timestamp, GpuReading)]) -> SampleSeries {
    let mut series = SampleSeries::default();
    for pair in samples.windows(2) {
        let ((before, last), (at, reading)) = (&pair[0], &pair[1]);
        let seconds = at.since(*before).as_secs_f64();
        let spent = last.energy_total.zip(reading.energy_total);
        series.push(Sample {
            at_s: at.since(samples[0].0).as_secs_f64(),
            power_w: reading.power.map(|power| power.as_w() as f32),
            spent_w: spent.map(|(a, b)| ((b.as_j() - a.as_j()) / seconds) as f32),
            busy_percent: reading.utilization_gpu_percent.map(f32::from),
            memory_percent: reading.utilization_memory_percent.map(f32::from),
        });
    }
    series
}

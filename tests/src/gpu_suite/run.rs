//! One run: start one or two training jobs on the GPU, wait for their reports, measure, stop them.

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

use super::profiler::Profiler;
use super::{Plan, START_TIMEOUT};

/// Grace period after SIGTERM (wall time).
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// Lines of a failed job's output in the record.
const LOG_LINES: usize = 12;

/// Measurements of one job.
#[derive(Clone, Debug)]
pub struct JobMeasurement {
    /// The model, as in the plan.
    pub model: String,
    /// Steps per second by its reports.
    pub rate: Option<StepRate>,
    /// Global batch size.
    pub batch: Option<u32>,
    /// Peak device memory of its processes, MiB.
    pub memory_mib: Option<u64>,
    /// GPU power that the profiler attributes to it, watts.
    pub power_w: Option<f64>,
}

/// Measurements of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// One or two jobs.
    pub jobs: Vec<JobMeasurement>,
    /// Cause of a failure.
    pub failed: Option<String>,
    /// Duration of the measurement, seconds.
    pub span_s: f64,
    /// Readings of the GPU.
    pub samples: Vec<(Timestamp, GpuReading)>,
    /// Energy by the GPU's counter, joules.
    pub counted_j: Option<f64>,
    /// Energy by integration of its power readings, joules.
    pub integrated_j: Option<f64>,
    /// CPU time of this process, including the profiler, as a share of one core.
    pub overhead: Option<f64>,
    /// Period detected in power and utilisation; exclusive jobs only.
    pub period: Option<Result<Period, NoPeriod>>,
}

impl Run {
    /// Mean of a reading over the samples that contain it.
    #[must_use]
    pub fn mean(&self, reading: impl Fn(&GpuReading) -> Option<f64>) -> Option<f64> {
        let all: Vec<f64> = self.samples.iter().filter_map(|(_, sample)| reading(sample)).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// Mean GPU power by the counter, otherwise by the readings, watts.
    #[must_use]
    pub fn power_w(&self) -> Option<f64> {
        self.counted_j.or(self.integrated_j).map(|joules| joules / self.span_s)
    }
}

/// A training process in its own session, killed on drop.
struct Training {
    job: JobId,
    child: Child,
}

impl Training {
    fn start(
        plan: &Plan,
        profiler: &Profiler,
        directory: &Path,
        at: usize,
        model: &str,
    ) -> Result<Self> {
        let job = JobId::new(&format!("job-{at}"))?;
        let files = directory.join(format!("{job}-{}", clock::wall_now().as_us()));
        std::fs::create_dir_all(&files)?;
        let log = std::fs::File::create(directory.join(format!("{job}.log")))?;
        let words = plan.train.iter().map(|word| word.replace("{model}", model));
        // The profiler attributes processes to jobs by session, as set up by the launcher.
        let child = Command::new("setsid")
            .args(words)
            .env(env::JOB, job.as_str())
            .env(env::ATTEMPT, "1")
            .env(env::PROGRESS, &profiler.socket)
            .env(env::CHECKPOINT_DIR, &files)
            .env("CUDA_VISIBLE_DEVICES", plan.gpu.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start setsid (part of util-linux)")?;
        Ok(Self { job, child })
    }

    /// Status and end of the log, if the process has ended.
    fn ended(&mut self, directory: &Path) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let log = std::fs::read_to_string(directory.join(format!("{}.log", self.job)));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join(" / ");
        Some(format!("{} ended with {status}: {tail}", self.job))
    }

    /// Signals its session.
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        let mut kill = Command::new("kill");
        kill.args([&format!("-{signal}"), "--", &group]).stderr(Stdio::null());
        // The session may have ended.
        let _ = kill.status();
    }

    async fn stop(&mut self) {
        self.signal("TERM");
        let ended = async || self.child.try_wait().ok().flatten();
        if testing::until(END_TIMEOUT, ended).await.is_none() {
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

/// The job record that a placer would write.
fn record(profiler: &Profiler, plan: &Plan, job: &JobId, model: &str) -> Result<JobRecord> {
    let share = serde_json::json!({ "node": profiler.node, "gpus": [plan.gpu] });
    Ok(serde_json::from_value(serde_json::json!({
        "spec": {
            "job": job, "name": model, "workload": model, "gpus": { "min": 1, "max": 1 },
            "exclusive": false, "command": plan.train, "environment": [], "submitted_at_us": 0,
        },
        "phase": "running", "phase_since_us": 0, "attempt": 1, "placement": [share],
    }))?)
}

/// The report that a launcher would publish.
fn report(profiler: &Profiler, plan: &Plan, trainings: &[Training]) -> LaunchReport {
    let now = clock::now();
    let launched = |training: &Training| LaunchedJob {
        job: training.job.clone(),
        admission: None,
        attempt: 1,
        gpus: vec![plan.gpu],
        state: LaunchState::Running,
        processes: Some(JobProcesses::Session(training.child.id())),
        since_us: now,
        log_path: String::new(),
    };
    LaunchReport {
        instance: String::new(),
        node: profiler.node.clone(),
        at_us: now,
        observed_generation: 1,
        has_ended: false,
        fault: None,
        site: None,
        jobs: trainings.iter().map(launched).collect(),
    }
}

/// CPU time of all threads of this process, nanoseconds.
fn own_cpu_ns() -> Option<u64> {
    let one = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(std::fs::read_dir("/proc/self/task").ok()?.filter_map(one).sum())
}

/// Trains `models` together on the GPU and measures.
pub(super) async fn measure(
    profiler: &mut Profiler,
    plan: &Plan,
    directory: &Path,
    models: &[String],
) -> Result<Run> {
    profiler.clear();
    let mut trainings = Vec::new();
    for (at, model) in models.iter().enumerate() {
        let training = Training::start(plan, profiler, directory, at, model)?;
        let record = record(profiler, plan, &training.job, model)?;
        profiler.handle(Event::JobRecorded(Box::new(record)));
        trainings.push(training);
    }
    let launched = report(profiler, plan, &trainings);
    profiler.handle(Event::LaunchReported(launched));

    let failed = match ready(profiler, plan, directory, &mut trainings).await? {
        Err(failed) => Some(failed),
        Ok(()) => {
            profiler.clear();
            None
        }
    };
    let before = (clock::wall_now(), own_cpu_ns());
    let until = clock::now() + Duration::from_secs(plan.seconds);
    let failed = match failed {
        Some(failed) => Some(failed),
        None => wait(profiler, directory, &mut trainings, until).await?,
    };
    let wall = clock::wall_now().since(before.0);
    let spent = before.1.zip(own_cpu_ns()).map(|(before, after)| after.saturating_sub(before));
    // Without jobs the profiler closes its last windows.
    let no_jobs = report(profiler, plan, &[]);
    profiler.handle(Event::LaunchReported(no_jobs));
    let run = summarize(profiler, models, &trainings, failed);
    for training in &mut trainings {
        training.stop().await;
    }
    let wall_ns = wall.as_nanos() as f64;
    Ok(Run { overhead: spent.filter(|_| wall_ns > 0.0).map(|ns| ns as f64 / wall_ns), ..run })
}

/// Waits until every job has reported, then for the settling time; `Err` if a job fails.
async fn ready(
    profiler: &mut Profiler,
    plan: &Plan,
    directory: &Path,
    trainings: &mut [Training],
) -> Result<Result<(), String>> {
    let deadline = clock::wall_now() + START_TIMEOUT;
    let started = profiler
        .run_until(|profiler| {
            if let Some(ended) = trainings.iter_mut().find_map(|training| training.ended(directory))
            {
                return Some(Err(ended));
            }
            let has_reported =
                |t: &Training| profiler.reports.iter().any(|(_, line)| line.job == t.job);
            match trainings.iter().find(|training| !has_reported(training)) {
                None => Some(Ok(())),
                Some(silent) if clock::wall_now() >= deadline => {
                    Some(Err(format!("{} reports no step within {START_TIMEOUT:?}", silent.job)))
                }
                Some(_) => None,
            }
        })
        .await?;
    if started.is_err() {
        return Ok(started);
    }
    let until = clock::now() + Duration::from_secs(plan.settle);
    Ok(wait(profiler, directory, trainings, until).await?.map_or(Ok(()), Err))
}

/// Waits until `until`; returns early with the cause if a job ends.
async fn wait(
    profiler: &mut Profiler,
    directory: &Path,
    trainings: &mut [Training],
    until: Timestamp,
) -> Result<Option<String>> {
    profiler
        .run_until(|_| {
            let ended = trainings.iter_mut().find_map(|training| training.ended(directory));
            ended.map(Some).or_else(|| (clock::now() >= until).then_some(None))
        })
        .await
}

fn summarize(
    profiler: &mut Profiler,
    models: &[String],
    trainings: &[Training],
    failed: Option<String>,
) -> Run {
    let samples = std::mem::take(&mut profiler.samples);
    let span = match (samples.first(), samples.last()) {
        (Some((first, _)), Some((last, _))) => last.since(*first),
        _ => Duration::ZERO,
    };
    let jobs: Vec<JobMeasurement> = models
        .iter()
        .zip(trainings)
        .map(|(model, training)| {
            let mut meter = StepMeter::default();
            let mine = || profiler.reports.iter().filter(|(_, line)| line.job == training.job);
            for (at, line) in mine() {
                meter.report(*at, line.step);
            }
            let windows = || profiler.windows.iter().filter(|window| window.job == training.job);
            let weighted = windows().filter_map(|window| {
                let seconds = window.until_us.since(window.from_us).as_secs_f64();
                Some((window.power_mw_job?.as_w() * seconds, seconds))
            });
            let (joules, seconds) = weighted.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            JobMeasurement {
                model: model.clone(),
                rate: meter.rate(),
                batch: mine().filter_map(|(_, line)| line.global_batch).next_back(),
                memory_mib: windows().filter_map(|window| window.memory_mib_max_job).max(),
                power_w: (seconds > 0.0).then(|| joules / seconds),
            }
        })
        .collect();
    Run {
        period: (jobs.len() == 1 && failed.is_none())
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

/// Energy by the counter, joules; `None` if it is missing or decreased.
fn counted(samples: &[(Timestamp, GpuReading)]) -> Option<f64> {
    let counter: Vec<f64> =
        samples.iter().map(|(_, r)| Some(r.energy_total?.as_j())).collect::<Option<_>>()?;
    let rises = counter.windows(2).all(|pair| pair[1] >= pair[0]);
    Some(counter.last()? - counter.first()?).filter(|_| rises && counter.len() > 1)
}

/// Energy by trapezoidal integration of the power readings, joules.
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

//! Jobs that are submitted during the run, and what became of each accepted one.
//!
//! Each process of a job holds a lock of its own on a shared file while it runs. A process that finds it
//! held belongs to an attempt that was started twice; it reports so in a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use wattle_common::rng::Stream;
use wattle_runtime::clock::monotonic;

use super::site::Site;
use crate::program;

/// Time between two submissions.
const EVERY: Duration = Duration::from_secs(4);

/// What a job's process runs: the lock, then the training.
const LOCKED: &str = r#"exec 9>>"$0.$WATTLE_JOB.$PET_NODE_RANK.lock"
flock -n 9 || echo "$WATTLE_JOB $WATTLE_ATTEMPT" >> "$0.doubled"
echo "$WATTLE_JOB $WATTLE_ATTEMPT" >> "$0.started"
exec "$@""#;

/// The jobs of a run.
pub struct Jobs {
    draws: Stream,
    folder: PathBuf,
    next: Duration,
    submitted: u32,
    pending: Vec<(String, tokio::process::Child)>,
    /// Ids of accepted jobs.
    pub accepted: Vec<String>,
    /// Number of submissions that were refused or not answered.
    pub refused: u32,
}

impl Jobs {
    /// The jobs of a seed.
    #[must_use]
    pub fn new(seed: u64, folder: &Path) -> Self {
        Self {
            draws: Stream::new(seed, "chaos jobs"),
            folder: folder.join("locks"),
            next: monotonic(),
            submitted: 0,
            pending: Vec::new(),
            accepted: Vec::new(),
            refused: 0,
        }
    }

    /// Submits a job if it is time, while `open`; collects the answers.
    ///
    /// # Errors
    /// If `wattle` cannot be started.
    pub fn advance(&mut self, site: &Site, open: bool) -> Result<()> {
        let mut waiting = Vec::new();
        for (job, mut child) in self.pending.drain(..) {
            match child.try_wait()? {
                None => waiting.push((job, child)),
                Some(status) if status.success() => self.accepted.push(job),
                Some(status) => {
                    super::log(&format!("submission of {job}: {status}"));
                    self.refused += 1;
                }
            }
        }
        self.pending = waiting;
        if !open || monotonic() < self.next {
            return Ok(());
        }
        self.next = monotonic() + EVERY;
        let job = format!("c{}", self.submitted);
        self.submitted += 1;
        std::fs::create_dir_all(&self.folder)?;
        let lock = self.folder.join("job").display().to_string();
        let simjob = program("wattle-simjob").display().to_string();
        let gpus = ["1", "1", "2", "4"][self.draws.below(4) as usize];
        let steps = (60 + self.draws.below(240)).to_string();
        let workload = ["eaco-resnet50", "eaco-vgg16"][self.draws.below(2) as usize];
        let head = ["submit", "--job", &job, "--gpus", gpus, "--workload", workload];
        let tail = ["--checkpoint-signal", "SIGUSR1", "--", "sh", "-c", LOCKED, &lock, &simjob];
        let training = ["--workload", workload, "--steps", &steps, "--steps-per-epoch", "50"];
        let args = [&head[..], &tail[..], &training[..]].concat();
        let mut command = tokio::process::Command::from(site.wattle("user-ada", &args));
        let log = std::fs::File::create(self.folder.join(format!("{job}.submission")))?;
        command.stdout(std::process::Stdio::null()).stderr(log);
        self.pending.push((job, command.spawn()?));
        Ok(())
    }

    /// Whether an answer is outstanding.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The job and attempt of every process that has started.
    #[must_use]
    pub fn started(&self) -> Vec<(String, u32)> {
        super::forgery::attempts(&self.folder.join("job.started"))
    }

    /// Number of attempts that were started while another process of the same job ran.
    #[must_use]
    pub fn doubled(&self) -> usize {
        let reported = std::fs::read_to_string(self.folder.join("job.doubled")).unwrap_or_default();
        reported.lines().count()
    }
}

/// The phase and attempt of each job of `wattle jobs --json`.
#[must_use]
pub fn phases(list: &Value) -> Vec<(String, String, u64)> {
    let jobs = list.as_array().or_else(|| list["jobs"].as_array());
    let jobs = jobs.map_or(&[][..], Vec::as_slice);
    jobs.iter()
        .map(|job| {
            let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
            (text("job"), text("phase"), job["attempt"].as_u64().unwrap_or_default())
        })
        .collect()
}

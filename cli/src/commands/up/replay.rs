//! Replay of a trace: every job is submitted at its time.
//!
//! A trace contains the run time of a job, not its number of training steps. The steps are those that
//! the simulated hardware completes in that time with exclusive GPUs, so a trace is the same work live
//! and in the simulator.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use wattle_common::job::JobSpec;
use wattle_common::messages::SubmitJob;
use wattle_common::{JobId, Timestamp};
use wattle_placer::state::restarts::typical_cost;
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_simulator::{Scenario, SimJob, Work, text};
use wattle_world::World;

use super::Up;
use super::processes::find_own;
use crate::commands::jobs::records;
use crate::commands::submit::submit;
use crate::inputs::scenario;
use crate::output::{UsageError, note, usage};

/// Polling interval, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Minimum number of epochs per job. A short job of a workload with long epochs gets shorter ones, here
/// and in the simulation.
const EPOCHS_MIN: u64 = 10;

/// A trace, ready for submission and simulation.
pub(crate) struct Trace {
    /// The jobs.
    pub(crate) scenario: Scenario,
    /// Their ids on the bus, in the same order.
    ids: Vec<JobId>,
    simjob: String,
}

impl Trace {
    /// Reads a trace for the simulated cluster of `command`.
    pub(crate) fn read(path: &Path, command: &Up) -> anyhow::Result<Self> {
        let shape = command.simulated.as_ref().ok_or_else(|| {
            usage("--trace needs --simulated; submit real jobs with `wattle submit`")
        })?;
        let world = World::builtin();
        let carbon = command.carbon.as_deref();
        let mut scenario = scenario(&world, path, shape, carbon, command.seed)?;
        let (_, kind) = shape.nodes().next().context("a cluster has a node")?;
        for job in &mut scenario.jobs {
            let workload = world.workload(job.workload.as_str()).context("from the catalog")?;
            if let Work::Lasts(span) = job.work {
                // The duration applies to the requested GPU type, else to the first of the cluster.
                let kind = job.gpu_type.as_deref().unwrap_or(kind);
                let gpu = world.gpu(kind).context("the scenario has checked the GPUs")?;
                let of_kind = shape.nodes().filter(|(_, known)| *known == kind);
                let gpus_per_node = of_kind.map(|(gpus, _)| gpus).max().unwrap_or(1);
                let nodes = job.gpus.min.div_ceil(gpus_per_node);
                let rate = workload.steps_per_s(gpu, job.gpus.min, nodes);
                job.work = Work::Steps(((span.as_secs_f64() * rate).round() as u64).max(1));
            }
            if let Work::Steps(steps) = job.work {
                let epoch = workload.steps_per_epoch.min(steps.div_ceil(EPOCHS_MIN)).max(1);
                job.steps_per_epoch = Some(epoch);
            }
        }
        // Many traces use plain numbers as ids.
        let ids = scenario
            .jobs
            .iter()
            .map(|job| JobId::new(&format!("t-{}", job.id)).unwrap_or_else(|_| job.id.clone()))
            .collect();
        let simjob = find_own("wattle-simjob")?.to_string_lossy().into_owned();
        for text in &scenario.notes {
            note(&text::note(text));
        }
        Ok(Self { scenario, ids, simjob })
    }

    /// Number of jobs.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The jobs' ids on the bus.
    pub(crate) fn ids(&self) -> &[JobId] {
        &self.ids
    }

    fn spec(&self, job: &SimJob, id: &JobId, began: Timestamp) -> JobSpec {
        let (Work::Steps(steps), epoch) = (job.work, job.steps_per_epoch) else {
            unreachable!("`read` converts every duration to steps")
        };
        let mut command = vec![
            self.simjob.clone(),
            "--workload".to_owned(),
            job.workload.to_string(),
            "--steps".to_owned(),
            steps.to_string(),
            "--restart-s".to_owned(),
            typical_cost(job.gpus.max).as_secs().to_string(),
        ];
        if let Some(epoch) = epoch {
            command.extend(["--steps-per-epoch".to_owned(), epoch.to_string()]);
        }
        JobSpec {
            job: id.clone(),
            name: job.workload.to_string(),
            user: Some(wattle_runtime::user::local_user()),
            project: None,
            workload: Some(job.workload.clone()),
            gpus: job.gpus,
            exclusive: job.exclusive,
            consents_to_sharing: false,
            max_slowdown_permille: None,
            flexibility: job.flexibility,
            priority: job.priority,
            deadline_at_us: job.deadline.map(|span| began + span),
            slack_ms: job.slack.map(|span| span.as_millis() as u64),
            duration_ms_estimate: job.duration_estimate.map(|span| span.as_millis() as u64),
            time_limit_ms: job.time_limit.map(|span| span.as_millis() as u64),
            memory_mib_max: None,
            gpu_type: job.gpu_type.clone(),
            checkpoint_signal: job.can_stop.then(|| "SIGUSR1".to_owned()),
            command,
            environment: Vec::new(),
            working_dir: None,
            site: None,
            submitted_at_us: began + job.submit,
        }
    }

    /// Submits every job at its time, then waits until all have ended.
    pub(crate) async fn run(&self, bus: &Bus, began: Timestamp) -> anyhow::Result<()> {
        for (job, id) in self.scenario.jobs.iter().zip(&self.ids) {
            clock::sleep_until(began + job.submit).await;
            let request =
                SubmitJob { spec: self.spec(job, id, began), submission: None, user_proven: false };
            // A killed service restarts, and a known job is not duplicated.
            while let Err(error) = submit(bus, &request).await {
                if error.is::<UsageError>() {
                    note(&format!("{id} was refused: {error}"));
                    break;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        loop {
            // The bus may be unavailable for a moment.
            if let Ok(records) = records(bus).await
                && records.iter().all(|record| record.phase.is_final())
            {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

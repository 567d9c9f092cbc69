//! The services of `wattle up`: configuration, start, readiness and end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use toml::{Table, Value};
use wattle_common::aim::AimBound;
use wattle_common::job::Sharing;
use wattle_common::messages::Reply;
use wattle_common::subject::Topic;
use wattle_common::{ClusterId, NodeId, Power};
use wattle_launcher::engine::local::kill_all;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::clock;

use super::configs::{self, Overrides};
use super::folder::METRICS;
use super::hardware::{Hardware, Node};
use super::keys::Keys;
use super::processes::{Processes, Program, READY_WITHIN, find_own};
use super::simulated_sleep::{self, Transition};
use crate::commands::cancel::cancel;
use crate::commands::jobs::records;
use crate::commands::nodes::nodes;
use crate::output::note;

/// The shipped predictors by their example files; all are evaluated side by side.
const PREDICTORS: [&str; 2] = ["predictor", "predictor-statistical"];
/// Interval at which missing reports are named, wall time.
const NAME_MISSING_EVERY: Duration = Duration::from_secs(10);
/// Time limit for killed jobs to end, wall time.
const KILL_PATIENCE: Duration = Duration::from_secs(3);
/// Time limit of a service discovery request, wall time.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// Polling interval, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Minimum wall time of leases and time limits, which count simulated time: a busy machine would let
/// shorter ones expire.
const WALL_LEASE: Duration = Duration::from_secs(6);
/// Minimum wall time before a prior replaces a missing surface of the champion.
const WALL_FIRST: Duration = Duration::from_secs(3);
const WALL_SILENCE: Duration = Duration::from_secs(10);
const WALL_HEARTBEAT: Duration = Duration::from_millis(500);
/// Minimum wall time between a job's submission and the planning round that reads its predictions: a round without them
/// takes jobs off their GPUs which the next round puts back.
const WALL_ROUND_DELAY: Duration = Duration::from_millis(20);

/// Settings shared by all services.
pub(crate) struct Site<'a> {
    /// The cluster.
    pub(crate) cluster: &'a ClusterId,
    /// How to reach the bus.
    pub(crate) bus: &'a BusConfig,
    /// The key and the files of the page.
    pub(super) keys: &'a Keys,
    /// The policy.
    pub(crate) policy: &'a str,
    /// The bound of the energy aim; `None`: the time aim, or a budget.
    pub(crate) aim: Option<AimBound>,
    /// Power cap of every GPU.
    pub(crate) gpu_cap: Option<Power>,
    /// Which jobs may share a GPU.
    pub(crate) share: Sharing,
    /// Most jobs on one GPU; `None`: the placer's default.
    pub(crate) tenants_max: Option<u32>,
    /// Whether unused simulated nodes sleep.
    pub(crate) sleep: bool,
    /// The state folder.
    pub(crate) folder: &'a Path,
    /// Most simulated seconds per wall second.
    pub(crate) rate: u32,
    /// Port of the web page.
    pub(crate) port: u16,
}

impl Site<'_> {
    /// Milliseconds of simulated time: the value of the example, at least `wall` of wall time.
    fn ms(&self, example: u64, wall: Duration) -> Value {
        let least = wall.as_millis() as u64 * u64::from(self.rate);
        Value::from(i64::try_from(example.max(least)).unwrap_or(i64::MAX))
    }

    /// Seconds of simulated time: the value of the example, at least `wall` of wall time.
    fn s(&self, example: u64, wall: Duration) -> Value {
        let least = (wall * self.rate).as_secs();
        Value::from(i64::try_from(example.max(least)).unwrap_or(i64::MAX))
    }

    /// The overrides of every service; `name` is that of its configuration and log.
    fn common(&self, name: &str) -> Overrides {
        let targets = self.folder.join(METRICS).join(format!("{name}.json"));
        let mut overrides = vec![
            ("cluster", Value::from(self.cluster.as_str())),
            ("nats.url", Value::from(self.bus.url.as_str())),
            // A free port, so that several clusters run on one machine.
            ("metrics.listen", Value::from("127.0.0.1:0")),
            ("metrics.targets_file", configs::path(&targets)),
        ];
        let files = [
            ("nats.credentials_file", &self.bus.credentials_file),
            ("nats.ca_file", &self.bus.ca_file),
        ];
        let files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?)));
        overrides.extend(files.map(|(key, file)| (key, configs::path(file))));
        overrides
    }

    fn of_node(&self, service: &str, node: &Node) -> Overrides {
        let mut overrides = self.common(&format!("{service}-{}", node.id));
        overrides.push(("node", Value::from(node.id.as_str())));
        overrides
    }

    fn driver(&self, service: &str, node: &Node) -> Overrides {
        let mut overrides = self.of_node(service, node);
        if let Some(library) = &node.library {
            overrides.push(("nvml_library", configs::path(library)));
        }
        overrides
    }
}

/// Starts every service as a process.
pub(crate) fn start(
    processes: &mut Processes,
    site: &Site<'_>,
    hardware: &Hardware,
) -> anyhow::Result<()> {
    let cluster_env = hardware.nodes.first().map(|node| {
        let clock = node.env.iter().filter(|(key, _)| key == wattle_common::env::CLOCK);
        clock.cloned().collect::<Vec<_>>()
    });
    let cluster_env = cluster_env.unwrap_or_default();
    let folder = site.folder.join("config");

    let mut placer = site.common("placer");
    placer.extend([
        ("policy", Value::from(site.policy)),
        ("aim", Value::from(if site.aim.is_some() { "energy" } else { "time" })),
        ("share", Value::from(site.share.as_str())),
        ("lease_ms", site.ms(60_000, WALL_LEASE)),
        ("round_delay_ms", site.ms(100, WALL_ROUND_DELAY)),
        ("node_stale_after_ms", site.ms(15_000, WALL_LEASE)),
        ("node_lost_after_ms", site.ms(120_000, 3 * WALL_LEASE)),
        ("nodes_expected", Value::from(hardware.nodes.len() as i64)),
    ]);
    match site.aim {
        Some(AimBound { baseline: Some(baseline), share, project }) => {
            placer.extend([
                ("no_later_than", Value::from(baseline.name())),
                ("by", Value::from(share)),
            ]);
            placer.extend(project.map(|share| ("no_project_later_than", Value::from(share))));
        }
        Some(AimBound { baseline: None, share, .. }) => {
            placer.push(("max_slowdown", Value::from(share)));
        }
        None => {}
    }
    if let Some(tenants) = site.tenants_max {
        placer.push(("tenants_max", Value::from(i64::from(tenants))));
    }
    if site.sleep {
        let command = simulated_sleep::command(Transition::Wake, &site.folder.join("logs"))?;
        placer.extend([
            ("sleep.wake_command", command),
            ("sleep.idle_before_sleep_s", Value::from(300)),
            ("sleep.wake_time_s", site.s(30, WALL_HEARTBEAT)),
            ("sleep.sleep_timeout_s", site.s(180, 5 * WALL_LEASE)),
            ("sleep.wake_timeout_s", site.s(600, 10 * WALL_LEASE)),
        ]);
    }
    if let Some(cap) = site.gpu_cap {
        placer.push(("gpu_cap_w", Value::from((cap.as_mw() / 1_000) as i64)));
    }
    let kind = hardware.nodes.first().map(|node| node.gpu_type.clone()).unwrap_or_default();
    let mut registry = site.common("registry");
    registry.extend([
        ("registry.gpu_type_default", Value::from(kind.clone())),
        ("registry.first_prior_after_ms", site.ms(5_000, WALL_FIRST)),
        ("registry.silent_after_ms", site.ms(60_000, WALL_SILENCE)),
        ("registry.prior_after_ms", site.ms(600_000, 2 * WALL_SILENCE)),
    ]);
    let mut web = site.common("web");
    web.extend([
        ("listen", Value::from(format!("127.0.0.1:{}", site.port))),
        ("require_sign_in", Value::from(true)),
        ("sign_in_file", configs::path(&site.keys.page())),
    ]);
    let mut services =
        vec![("placer", "placer", placer), ("registry", "registry", registry), ("web", "web", web)];
    for name in PREDICTORS {
        let mut predictor = site.common(name);
        predictor.push(("model.gpu_type_default", Value::from(kind.clone())));
        services.push(("predictor", name, predictor));
    }
    for (service, name, overrides) in services {
        let config = configs::write(&folder, name, name, overrides)?;
        let path = find_own(&format!("wattle-{service}"))?;
        processes.start(Program::service(name.to_owned(), path, &config, &cluster_env))?;
    }
    hardware.nodes.iter().try_for_each(|node| start_node(processes, site, node))
}

fn start_node(processes: &mut Processes, site: &Site<'_>, node: &Node) -> anyhow::Result<()> {
    let folder = site.folder;
    let state = folder.join("state");
    let socket = configs::path(&state.join(format!("{}.sock", node.id)));

    let mut profiler = site.driver("profiler", node);
    let model = wattle_world::World::builtin();
    if let Some(gpu) = model.gpu(&node.gpu_type).filter(|_| node.library.is_some()) {
        // An operator would measure this at the power supply; a simulated node has a known value.
        let host = model.host_power_of(gpu, node.gpus);
        profiler.push(("host_power_w", Value::from(host.as_w().round() as i64)));
    }
    profiler.extend([
        ("dcgm_names", Value::from(true)),
        ("progress_socket", socket.clone()),
        ("state_dir", configs::path(&state.join(format!("profiler-{}", node.id)))),
    ]);
    let mut agent = site.driver("power-agent", node);
    agent.push(("heartbeat_ms", site.ms(10_000, WALL_HEARTBEAT)));
    agent.push(("lease_max_ms", site.ms(600_000, 2 * WALL_LEASE)));
    if let Some(switch) = node.switch {
        agent.push(("switch", Value::from(format!("leaf-{switch}"))));
    }
    if let Some(gpus) = node.gpus_per_board {
        agent.push(("gpus_per_board", Value::from(i64::from(gpus))));
    }
    if site.sleep {
        agent.push((
            "sleep_command",
            simulated_sleep::command(Transition::Sleep, &folder.join("logs"))?,
        ));
    }
    let mut launcher = site.of_node("launcher", node);
    let job_env: Table = node
        .env
        .iter()
        .map(|(key, value)| (key.clone(), Value::from(value.to_string_lossy().into_owned())))
        .collect();
    launcher.extend([
        ("progress_socket", socket),
        ("state_dir", configs::path(&launcher_state(folder, &node.id))),
        ("log_dir", configs::path(&folder.join("jobs"))),
        ("checkpoint_dir", configs::path(&folder.join("checkpoints"))),
        ("job_environment", Value::Table(job_env)),
        ("heartbeat_ms", site.ms(5_000, WALL_HEARTBEAT)),
        ("lease_max_ms", site.ms(600_000, 2 * WALL_LEASE)),
        ("checkpoint_grace_ms", site.ms(120_000, Duration::from_secs(5))),
        ("terminate_grace_ms", site.ms(10_000, Duration::from_secs(2))),
        ("stop_jobs_at_exit", Value::from(true)),
        // All services are this user's, and only this user submits.
        ("job_user", Value::from("service")),
    ]);
    let agent_state = state.join(format!("power-agent-{}", node.id));
    agent.push(("state_dir", configs::path(&agent_state)));
    let services = [("profiler", profiler), ("power-agent", agent), ("launcher", launcher)];
    for (service, overrides) in services {
        let name = format!("{service}-{}", node.id);
        let config = configs::write(&folder.join("config"), service, &name, overrides)?;
        let path = find_own(&format!("wattle-{service}"))?;
        processes.start(Program::service(name, path, &config, &node.env))?;
    }
    Ok(())
}

/// Waits until every launcher and power agent has reported and every other service answers.
pub(crate) async fn ready(bus: &Bus, hardware: &Hardware) -> anyhow::Result<()> {
    let wanted = hardware.nodes.len();
    let mut last = String::from("nothing has reported");
    let began = clock::work_time();
    let reported = async {
        let mut noted = began;
        loop {
            match missing(bus, wanted).await {
                Ok(None) => return,
                Ok(Some(what)) => last = what,
                Err(error) => last = error.to_string(),
            }
            let now = clock::work_time();
            if now - noted >= NAME_MISSING_EVERY {
                noted = now;
                note(&format!("waiting for {} s: {last}", (now - began).as_secs()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(READY_WITHIN, reported)
        .await
        .map_err(|_| ())
        .or_else(|()| anyhow::bail!("after {READY_WITHIN:?} {last}; the logs say why"))
}

/// The first service that has not reported or does not answer yet.
async fn missing(bus: &Bus, nodes_wanted: usize) -> anyhow::Result<Option<String>> {
    let reported = nodes(bus).await?;
    let ready = reported.iter().filter(|n| n.power.is_some() && n.launcher.is_some()).count();
    if ready < nodes_wanted {
        return Ok(Some(format!("{ready} of {nodes_wanted} nodes have reported")));
    }
    // The placer subscribes to this subject last.
    let last = Topic::EventPlanned.pattern(bus.cluster());
    let answering = async |name, wanted| {
        let found = bus.services(name, ANSWER_WITHIN).await?.len();
        anyhow::Ok((found < wanted).then(|| format!("{found} of {wanted} {name} answer")))
    };
    let (placer, registry, predictors, profilers, web) = tokio::try_join!(
        async { anyhow::Ok(bus.serves("wattle-placer", &last, ANSWER_WITHIN).await?) },
        answering("wattle-registry", 1),
        answering("wattle-predictor", PREDICTORS.len()),
        answering("wattle-profiler", nodes_wanted),
        answering("wattle-web", 1),
    )?;
    let placer = (!placer).then(|| "the placer does not answer".to_owned());
    Ok(placer.or(registry).or(predictors).or(profilers).or(web))
}

/// Cancels every job and waits until none runs.
pub(crate) async fn cancel_jobs(bus: &Bus, patience: Duration) {
    let stopped = async {
        let mut requested = std::collections::BTreeSet::new();
        loop {
            let active: Vec<_> = match records(bus).await {
                Ok(records) => records.into_iter().filter(|r| !r.phase.is_final()).collect(),
                Err(error) => return Err(error),
            };
            if active.is_empty() {
                return Ok(());
            }
            if requested.is_empty() {
                let (jobs, they) = if active.len() == 1 { ("job", "it") } else { ("jobs", "they") };
                note(&format!(
                    "cancelling {} {jobs}; with --dir {they} can be resumed",
                    active.len()
                ));
            }
            for record in active {
                let job = record.spec.job;
                if requested.insert(job.clone())
                    && let Reply::Refused { error } = cancel(bus, job).await.context("cancel")?
                {
                    note(&error);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    match tokio::time::timeout(patience, stopped).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => note(&format!("warning: jobs could not be cancelled: {error:#}")),
        Err(_) => note("warning: some jobs did not stop in time; they are killed"),
    }
}

/// Kills the jobs that still run once the launchers have ended. Otherwise a job that does not stop
/// in time would hold its GPUs without anything that reports it.
pub(crate) async fn kill_jobs(folder: &Path, hardware: &Hardware) {
    for node in &hardware.nodes {
        let state = launcher_state(folder, &node.id);
        let killed = async {
            while state.exists() && kill_all(&state)? {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(KILL_PATIENCE, killed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => note(&format!("warning: jobs may still run: {error:#}")),
            Err(_) => note("warning: killed jobs have not ended yet"),
        }
    }
}

fn launcher_state(folder: &Path, node: &NodeId) -> PathBuf {
    folder.join("state").join(format!("launcher-{node}"))
}

/// Prints the number of jobs that the next `wattle up` in the same folder resumes.
pub(crate) async fn note_resumable_jobs(bus: &Bus) {
    let Ok(records) = records(bus).await else { return };
    let active = records.iter().filter(|record| !record.phase.is_final()).count();
    if active > 0 {
        let jobs = if active == 1 { "job" } else { "jobs" };
        note(&format!(
            "{active} {jobs} will be resumed by the next `wattle up` with the same --dir"
        ));
    }
}

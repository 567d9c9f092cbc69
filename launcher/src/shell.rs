//! Connects the launcher's decisions with its engine, its state folder and the bus.
//!
//! One loop carries out the machine's actions in their order. One task follows the bucket
//! `desired`, writes the newest report to the bucket `actual` and answers requests for the output of
//! jobs. Jobs do not depend on the bus:
//! while it is away they continue, and the newest report is written once it is back.

pub mod metrics;
mod specs;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::messages::{JobRecord, LaunchReport, NodeDesired, OutputReply, ReadOutput};
use wattle_common::subject::{Bucket, Rank, Reporter, Requester, Subject};
use wattle_common::{JobId, NodeId, codec};
use wattle_runtime::bus::{Bus, BusError, KvBucket, Request, Requests};
use wattle_runtime::driver;
use wattle_runtime::metrics::Metrics;
use wattle_runtime::orders::requester_of;
use wattle_runtime::shell::{Shutdown, chain};

use self::metrics::LauncherMetrics;
use self::specs::Specs;
use crate::claim;
use crate::config::JobUser;
use crate::engine::local::LocalEngine;
use crate::engine::local::cgroup::{CgroupError, Cgroups};
use crate::engine::{Engine, StatusSender};
use crate::run_spec::CgroupSpec;
use crate::state::{self, StateError};
use crate::{Action, Config, Event, Found, Launcher, PersistedState, Status, output};

/// The service in the labels of its metrics.
const NAME: &str = "launcher";
/// Capacity of the event channel; senders wait when it is full.
const EVENTS_MAX: usize = 256;
/// Pause before the bus, or the state folder's lock, is tried again: wall time.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait for the last report to be stored at shutdown: wall time.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Why the launcher cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The state folder cannot be used.
    #[error("the state of the launcher's runs cannot be used")]
    State(#[from] StateError),
    /// The engine cannot be used.
    #[error("the engine that starts jobs cannot be used")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Jobs are to run under other accounts, which only root can do.
    #[error(
        "job_user gives jobs another account, which only root can do: run the launcher as root, \
         or set job_user = \"service\""
    )]
    NotRoot,
    /// Jobs cannot be limited.
    #[error("the limits of jobs in [job_limits] cannot be enforced")]
    Limits(#[from] CgroupError),
    /// The launcher's own program, which every supervisor runs, was not found.
    #[error("the path of the launcher's own program is not known")]
    Program(#[source] std::io::Error),
}

/// Runs jobs as local processes until shutdown.
///
/// # Errors
/// Where the state folder or the launcher's own program cannot be used.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    if config.job_user != JobUser::Service && !rustix::process::geteuid().is_root() {
        return Err(ShellError::NotRoot);
    }
    if let Some(spec) = CgroupSpec::new(&config.job_limits, format!("{}.check", config.node), 1) {
        Cgroups::system()?.of(&spec).check()?;
    }
    let program: PathBuf = std::env::current_exe().map_err(ShellError::Program)?;
    let state_dir = config.state_dir.clone();
    let (node, limits) = (config.node.clone(), config.job_limits.clone());
    let engine = move |changes| {
        LocalEngine::new(state_dir, program, changes).removing_cgroups(&node, &limits)
    };
    run_with(config, engine, shutdown).await
}

/// Runs jobs by an engine until shutdown.
///
/// # Errors
/// Where the state folder or the engine cannot be used.
pub async fn run_with<E: Engine>(
    config: Config,
    engine: impl FnOnce(StatusSender) -> E,
    shutdown: &Shutdown,
) -> Result<(), ShellError> {
    let Some(_lock) = lock(&config.state_dir, shutdown).await? else { return Ok(()) };
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let (reports, newest) = watch::channel(None);
    let mut engine = engine(StatusSender::new(sender.clone()));
    let state = restore(&config, &mut engine).await?;
    let mut launcher =
        Launcher::new(config.clone(), state).instance(claim::name(&config.state_dir));
    let metrics = Metrics::start(&config.metrics, NAME, &config.cluster, Some(&config.node));
    let metrics = LauncherMetrics::new(&metrics);
    let mut executor =
        Executor { state_dir: config.state_dir.clone(), engine, reports, metrics: metrics.clone() };

    let bus_side = tokio::spawn(follow_bus(config.clone(), sender.clone(), newest, metrics));
    let mut act = |action| executor.execute(action);
    driver::run(&mut launcher, &mut events, shutdown, &mut act).await;
    if config.stop_jobs_at_exit {
        driver::drain(&mut launcher, &mut events, Event::Retired, Launcher::is_idle, &mut act)
            .await;
    }
    // Without the reports' sender, the bus task writes the last report and ends.
    drop(executor);
    let stopper = bus_side.abort_handle();
    if tokio::time::timeout(LAST_REPORT, bus_side).await.is_err() {
        tracing::warn!("bus away: the last report is not stored");
        stopper.abort();
    }
    Ok(())
}

/// Waits until no other launcher uses the state folder; `None` if shutdown comes first.
///
/// An earlier launcher may still be stopping its jobs; this one would report them as exited by
/// themselves.
async fn lock(state_dir: &Path, shutdown: &Shutdown) -> Result<Option<File>, StateError> {
    let mut logged = false;
    loop {
        if let Some(lock) = state::lock(state_dir)? {
            return Ok(Some(lock));
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::warn!(
                state_dir = %state_dir.display(),
                "another launcher uses this state folder; waiting until it has ended"
            );
        }
        tokio::select! {
            () = shutdown.wait() => return Ok(None),
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn restore<E: Engine>(config: &Config, engine: &mut E) -> Result<PersistedState, ShellError> {
    let obeyed = state::obeyed(&config.state_dir).unwrap_or_else(|error| {
        tracing::error!(error = chain(&error), "the last generation obeyed is not known");
        None
    });
    let runs = engine.resume().await.map_err(|error| ShellError::Engine(error.into()))?;
    for Found { spec, status, .. } in &runs {
        if let Some(Status::Running(handle)) = status {
            tracing::info!(job = %spec.job, attempt = spec.attempt, id = handle.id, "found running");
        }
    }
    Ok(PersistedState { obeyed, runs })
}

/// Carries out actions.
struct Executor<E> {
    state_dir: PathBuf,
    engine: E,
    reports: watch::Sender<Option<LaunchReport>>,
    metrics: LauncherMetrics,
}

impl<E: Engine> Executor<E> {
    fn execute(&mut self, action: Action) {
        self.metrics.acted(&action);
        match action {
            Action::Start(spec) => {
                tracing::info!(job = %spec.job, attempt = spec.attempt, gpus = ?spec.gpus, "starting");
                self.engine.start(&spec);
            }
            Action::Stop(run, stage) => {
                tracing::info!(job = %run.job, attempt = run.attempt, ?stage, "stopping");
                self.engine.stop(&run, stage);
            }
            Action::Forget(run) => self.engine.forget(&run),
            Action::Alarm(refused) => {
                tracing::error!(error = %refused, "desired state refused; jobs continue");
            }
            Action::StoreObeyed(version) => {
                let stored = state::store_obeyed(&self.state_dir, version);
                if let Err(error) = stored {
                    tracing::error!(
                        error = chain(&error),
                        "generation not stored: after a restart an older one could be obeyed"
                    );
                }
            }
            Action::Report(report) => {
                self.reports.send_replace(Some(report));
            }
        }
    }
}

/// Receives the desired state and writes reports, and retries for as long as the bus is away.
async fn follow_bus(
    config: Config,
    sender: mpsc::Sender<Event>,
    newest: watch::Receiver<Option<LaunchReport>>,
    metrics: LauncherMetrics,
) {
    while let Err(error) = follow_bus_once(&config, &sender, newest.clone(), &metrics).await {
        tracing::error!(error = chain(&error), "no bus; jobs continue, retrying");
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow_bus_once(
    config: &Config,
    sender: &mpsc::Sender<Event>,
    newest: watch::Receiver<Option<LaunchReport>>,
    metrics: &LauncherMetrics,
) -> Result<(), BusError> {
    let name = format!("wattle-launcher-{}", config.node);
    let bus = Bus::connect(&config.nats, config.cluster.clone(), &name).await?;
    metrics.follow_bus(&bus);
    let desired = bus.bucket(Bucket::Desired).await?;
    let actual = bus.bucket(Bucket::Actual).await?;
    let jobs = bus.bucket(Bucket::Jobs).await?;
    let mut specs = Specs::new(jobs.clone());
    let key = Reporter::Launcher.key(&config.node);
    let heartbeat = wattle_runtime::clock::scale().wall_span(config.heartbeat());
    loop {
        let Some(first) = first_report(newest.clone()).await else { return Ok(()) };
        tokio::select! {
            claimed = claim::claim(&actual, &key, &first, heartbeat) => claimed?,
            // This launcher ends before the name is free.
            () = ended(newest.clone()) => return Ok(()),
        }
        let about = "starts and stops jobs on a node";
        let entries = [("node", config.node.as_str())];
        let service = bus.register("wattle-launcher", about, &entries).await?;
        let requests = service.endpoint(Subject::outputs_of(&config.cluster, &config.node)).await?;
        let followed = tokio::select! {
            () = actual.put_latest(&key, newest.clone()) => Ok(()),
            followed = follow_desired(&desired, &mut specs, &config.node, sender) => followed,
            () = answer_requests(requests, config, &bus, &jobs) => Ok(()),
            () = claim::lost(&actual, &key, &first.instance, heartbeat) => continue,
        };
        drop(service);
        return followed;
    }
}

/// The first report of this launcher; `None` if it ends before.
async fn first_report(mut newest: watch::Receiver<Option<LaunchReport>>) -> Option<LaunchReport> {
    newest.wait_for(Option::is_some).await.ok()?.clone()
}

/// Returns when the sender of the reports is gone.
async fn ended(mut newest: watch::Receiver<Option<LaunchReport>>) {
    while newest.changed().await.is_ok() {}
}

/// Answers requests for the output of jobs; never returns.
async fn answer_requests(mut requests: Requests, config: &Config, bus: &Bus, jobs: &KvBucket) {
    while let Some(request) = requests.next().await {
        let (log_dir, node) = (config.log_dir.clone(), config.node.clone());
        let requester = requester_of(bus, &request);
        tokio::spawn(answer(request, requester, jobs.clone(), log_dir, node));
    }
    // The requests end only with the bus client.
    std::future::pending::<()>().await;
}

async fn answer(
    request: Request,
    requester: Result<Requester, String>,
    jobs: KvBucket,
    log_dir: PathBuf,
    node: NodeId,
) {
    let permitted = async {
        let body = request.decode::<ReadOutput>().map_err(|error| chain(&error))?;
        may_read(&requester?, &jobs, &body.job).await?;
        Ok::<_, String>(body)
    };
    let reply = match permitted.await {
        Ok(body) => tokio::task::spawn_blocking(move || output::reply(&log_dir, &node, &body))
            .await
            .unwrap_or_else(|error| OutputReply::Refused { error: error.to_string() }),
        Err(error) => OutputReply::Refused { error },
    };
    if let Err(error) = request.respond(&reply).await {
        tracing::warn!(error = chain(&error), "output not sent");
    }
}

/// Whether a person may read the output of a job; its owner is in the placer's record.
async fn may_read(requester: &Requester, jobs: &KvBucket, job: &JobId) -> Result<(), String> {
    if requester.rank != Rank::User {
        return if requester.may_operate() {
            Ok(())
        } else {
            Err("only users and operators read the output of jobs".to_owned())
        };
    }
    let record = jobs.get::<JobRecord>(job.as_str()).await.map_err(|error| chain(&error))?;
    let owner = record.as_ref().and_then(|(record, _)| record.spec.user.as_deref());
    if requester.may_see(owner) {
        Ok(())
    } else {
        Err(format!("unknown job `{job}`; `wattle jobs` lists your jobs"))
    }
}

async fn follow_desired(
    bucket: &KvBucket,
    specs: &mut Specs,
    node: &NodeId,
    sender: &mpsc::Sender<Event>,
) -> Result<(), BusError> {
    let mut watch = bucket.watch_keys(node.as_str()).await?;
    while let Some(change) = watch.next().await {
        if change.key != node.as_str() {
            continue;
        }
        let Some(value) = change.value else { continue };
        match codec::decode_json::<NodeDesired>(&value) {
            Ok(mut desired) => {
                specs.complete(&mut desired).await;
                if sender.send(Event::DesiredChanged(desired)).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) => tracing::error!(
                bucket = Bucket::Desired.token(),
                key = change.key,
                revision = change.revision,
                error = chain(&error),
                "desired state ignored; jobs continue"
            ),
        }
    }
    Ok(())
}

//! Connects the launcher's decisions with its engine, its state folder and the bus.
//!
//! One loop carries out the machine's actions in their order. One task follows the bucket `desired`, writes
//! the newest report to the bucket `actual` and answers requests for the output of jobs; of two launchers
//! with one node's name, one works on the bus ([`LeaseMode::Report`]). Jobs do not depend on the bus: while
//! it is away they continue, and the newest report is written once it is back.

pub mod metrics;
mod specs;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::messages::{JobRecord, LaunchReport, NodeDesired, OutputReply, ReadOutput};
use wattle_common::subject::{Bucket, Rank, Reporter, Requester, Subject};
use wattle_common::{JobId, NodeId, codec};
use wattle_runtime::bus::{Bus, BusError, KvBucket, Request, Requests, Service, claimant_of};
use wattle_runtime::driver;
use wattle_runtime::orders::requester_of;
use wattle_runtime::service::{Identity, LeaseMode, Link, Shell};
use wattle_runtime::shell::{Shutdown, chain};

use self::metrics::LauncherMetrics;
use self::specs::Specs;
use crate::config::{JobLimits, JobUser};
use crate::engine::local::LocalEngine;
use crate::engine::local::cgroup::{CgroupError, Cgroups};
use crate::engine::{Engine, StatusSender};
use crate::output::{self, Of};
use crate::run_spec::CgroupSpec;
use crate::state::{self, StateError};
use crate::{Action, Config, Event, Found, Launcher, PersistedState, Status};

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
pub async fn run(mut config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    if config.job_user != JobUser::Service && !rustix::process::geteuid().is_root() {
        return Err(ShellError::NotRoot);
    }
    check_cgroups(&mut config)?;
    let program: PathBuf = std::env::current_exe().map_err(ShellError::Program)?;
    let of = config.clone();
    let engine = move |changes| {
        LocalEngine::new(of.state_dir.clone(), program, changes)
            .adopting_orphans()
            .testing(&of)
            .removing_cgroups(&of.node, &of.job_limits)
    };
    run_with(config, engine, shutdown).await
}

/// Checks that jobs can be limited. Without configured limits, each attempt gets a cgroup without limits where
/// that is possible: the kernel then ends all its processes at once.
fn check_cgroups(config: &mut Config) -> Result<(), CgroupError> {
    let check = |limits: &JobLimits| {
        let spec = CgroupSpec::new(limits, format!("{}.check", config.node), 1);
        spec.map_or(Ok(()), |spec| Cgroups::system()?.of(&spec).check())
    };
    check(&config.job_limits)?;
    if !config.job_limits.uses_cgroups() {
        let delegated = config.job_limits.in_delegated_cgroup();
        if check(&delegated).is_ok() {
            config.job_limits = delegated;
        }
    }
    Ok(())
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
    engine.test();
    let mut launcher =
        Launcher::new(config.clone(), state).instance(claimant_of(&config.state_dir));
    let about = "starts and stops jobs on a node";
    let identity = Identity::of_node("wattle-launcher", about, &config.cluster, &config.node);
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = LauncherMetrics::new(shell.metrics());
    let mut executor = Executor { state_dir: config.state_dir.clone(), engine, reports, metrics };
    let mode = LeaseMode::Report {
        node: config.node.clone(),
        newest: newest.clone(),
        heartbeat: config.heartbeat(),
        on_standby: "another launcher has this node's name: this one stands aside and starts no job. Stop one \
                     of the two, or configure another `node`",
    };
    let channels =
        Channels { config: config.clone(), events: sender.clone(), newest: newest.clone() };
    let bus_side = tokio::spawn(shell.follow::<LauncherLink, _>(mode, channels, newest));
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
            Action::Test => self.engine.test(),
            Action::FaultAlarm(fault) => tracing::error!(
                error = fault.error,
                remedy = fault.kind.remedy(),
                "this node cannot start jobs and gets none until it can"
            ),
            Action::FaultEnded => tracing::info!("this node can start jobs again"),
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
                    // A start would fail too.
                    self.engine.test();
                }
            }
            Action::Report(report) => {
                self.reports.send_replace(Some(report));
            }
        }
    }
}

/// The channels between the machine and the bus.
#[derive(Clone)]
struct Channels {
    config: Config,
    events: mpsc::Sender<Event>,
    /// The newest report.
    newest: watch::Receiver<Option<LaunchReport>>,
}

/// The bus side.
struct LauncherLink {
    channels: Channels,
    bus: Bus,
    desired: KvBucket,
    actual: KvBucket,
    jobs: KvBucket,
    specs: Specs,
}

impl Link for LauncherLink {
    type Setup = Channels;

    async fn open(channels: &Channels, bus: &Bus) -> Result<Self, BusError> {
        let jobs = bus.bucket(Bucket::Jobs).await?;
        Ok(Self {
            channels: channels.clone(),
            bus: bus.clone(),
            desired: bus.bucket(Bucket::Desired).await?,
            actual: bus.bucket(Bucket::Actual).await?,
            specs: Specs::new(jobs.clone()),
            jobs,
        })
    }

    async fn work(&mut self, registered: Service) -> Result<(), BusError> {
        let Channels { config, events, newest } = &self.channels;
        let requests = Subject::outputs_of(&config.cluster, &config.node);
        let requests = registered.endpoint(requests).await?;
        let key = Reporter::Launcher.key(&config.node);
        tokio::select! {
            () = self.actual.put_latest(&key, newest.clone()) => Ok(()),
            followed = follow_desired(&self.desired, &mut self.specs, &config.node, events) => followed,
            () = answer_requests(requests, config, &self.bus, &self.jobs) => Ok(()),
        }
    }
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
        let of = readable(&requester?, &jobs, &body.job).await?;
        Ok::<_, String>((of, body))
    };
    let reply = match permitted.await {
        Ok((of, body)) => {
            tokio::task::spawn_blocking(move || output::reply(&log_dir, &node, of, &body))
                .await
                .unwrap_or_else(|error| OutputReply::Refused { error: error.to_string() })
        }
        Err(error) => OutputReply::Refused { error },
    };
    if let Err(error) = request.respond(&reply).await {
        tracing::warn!(error = chain(&error), "output not sent");
    }
}

/// The output that a person may read of a job. The placer's record has its owner and the submission: output of
/// an earlier submission of the same id may be another person's.
async fn readable(requester: &Requester, jobs: &KvBucket, job: &JobId) -> Result<Of, String> {
    let operates = requester.may_operate();
    if requester.rank != Rank::User && !operates {
        return Err("only users and operators read the output of jobs".to_owned());
    }
    let record = jobs.get::<JobRecord>(job.as_str()).await.map_err(|error| chain(&error))?;
    match record {
        Some((record, _)) if operates || requester.may_see(record.spec.user.as_deref()) => {
            Ok(Of::Recorded(record.admission))
        }
        None if operates => Ok(Of::Newest),
        _ => Err(format!("unknown job `{job}`; `wattle jobs` lists your jobs")),
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

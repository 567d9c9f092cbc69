//! Joins the launcher's decisions with processes, the disk and the bus.
//!
//! One loop carries out the machine's actions in their order; a small task for each start waits
//! for its supervisor; one task follows the bucket `desired`, one writes the newest report to the
//! bucket `actual`. Jobs never wait for the bus: when it is away they go on, and the newest report
//! is written once it is back.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use wattle_common::messages::{LaunchReport, NodeDesired};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{Machine, NodeId, codec};
use wattle_runtime::bus::{Bus, BusError, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

use crate::folder::{self, Claim, End, Folder, How, StateError, Stop};
use crate::process::{self, Signal};
use crate::{Action, Config, Event, Found, Launcher, Order, PersistedState, Run, Stage};

/// Events that may wait; each is small, and whoever has one more waits.
const EVENTS_MAX: usize = 256;
/// How long a supervisor's first words are waited for before looking again: wall time. They come
/// within a few milliseconds.
const FIRST_WORDS: Duration = Duration::from_millis(10);
/// How long to wait before the bus, or a lock, is tried again: wall time.
const RETRY: Duration = Duration::from_secs(1);

/// How long the last report may take when the launcher stops: wall time.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Why the launcher cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The state folder is of no use.
    #[error("the launcher's memory of its jobs cannot be used")]
    State(#[from] StateError),
    /// Its own program is not to be found.
    #[error("the launcher's own program cannot be found, which every job's supervisor runs")]
    Program(#[source] std::io::Error),
}

/// Runs until asked to stop.
///
/// # Errors
/// Where it cannot begin: no state folder.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), ShellError> {
    let program = std::env::current_exe().map_err(ShellError::Program)?;
    let Some(_lock) = alone(&config.state_dir, &shutdown).await? else { return Ok(()) };
    let (memory, faults) = folder::restore(&config.state_dir, clock::now())?;
    for error in faults {
        tracing::error!(error = chain(&error), "a start cannot be recalled and is left alone");
    }
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let (reports, newest) = watch::channel(None);
    let mut hands = Hands { config: config.clone(), program, sender, reports };
    hands.resume(&memory);
    let mut launcher = Launcher::new(config.clone(), memory);

    let bus_side = tokio::spawn(follow_bus(config.clone(), hands.sender.clone(), newest));
    let stop = config.stop_jobs_at_exit.then_some(Event::Retired);
    drive(&mut launcher, &mut events, &mut hands, Some(&shutdown)).await;
    if let Some(retired) = stop {
        let _ = hands.sender.send(retired).await;
        drive(&mut launcher, &mut events, &mut hands, None).await;
    }
    // Without its source the reporter writes the last report and ends, and the bus side with it.
    drop(hands);
    let stopper = bus_side.abort_handle();
    match tokio::time::timeout(LAST_REPORT, bus_side).await {
        // A panic there was logged there.
        Ok(_) => {}
        Err(_) => {
            tracing::warn!("the bus is away: the last report is not stored");
            stopper.abort();
        }
    }
    Ok(())
}

/// Waits until no other launcher uses the state folder; `None` where this one is to stop first.
///
/// An earlier launcher may still be stopping its jobs. What it asks of them, this one would take
/// for their own doing.
async fn alone(state_dir: &Path, shutdown: &Shutdown) -> Result<Option<File>, StateError> {
    let mut told = false;
    loop {
        if let Some(lock) = folder::take(state_dir)? {
            return Ok(Some(lock));
        }
        if !std::mem::replace(&mut told, true) {
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

/// Until asked to stop, or else until nothing runs any more.
async fn drive(
    launcher: &mut Launcher,
    events: &mut mpsc::Receiver<Event>,
    hands: &mut Hands,
    shutdown: Option<&Shutdown>,
) {
    let asked = async {
        match shutdown {
            Some(shutdown) => shutdown.wait().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(asked);
    let mut out = Vec::new();
    loop {
        let wake = launcher.next_wake().map_or(wattle_common::Timestamp::FOREVER, |(at, _)| at);
        tokio::select! {
            biased;
            () = &mut asked => return,
            Some(event) = events.recv() => launcher.handle(clock::now(), event, &mut out),
            () = clock::sleep_until(wake) => launcher.wake(clock::now(), &mut out),
        }
        for action in out.drain(..) {
            hands.act(action);
        }
        if shutdown.is_none() && launcher.is_idle() {
            return;
        }
    }
}

/// What carries out actions.
struct Hands {
    config: Config,
    program: PathBuf,
    sender: mpsc::Sender<Event>,
    reports: watch::Sender<Option<LaunchReport>>,
}

impl Hands {
    fn folder(&self, run: &Run) -> Folder {
        Folder::of(&self.config.state_dir, run)
    }

    /// Waits again for every supervisor that lives.
    fn resume(&self, memory: &PersistedState) {
        for (order, found, _) in &memory.runs {
            let run = Run { job: order.job.clone(), attempt: order.attempt };
            if let Found::Live(session, _) = found {
                tracing::info!(job = %run.job, attempt = run.attempt, session, "found running");
                let folder = self.folder(&run);
                tokio::spawn(attend(run, folder, None, self.sender.clone()));
            }
        }
    }

    fn act(&self, action: Action) {
        match action {
            Action::Start(order) => self.start(&order),
            Action::Stop(run, stage) => self.stop(&run, stage),
            Action::Forget(run) => {
                if let Err(error) = self.folder(&run).remove() {
                    tracing::warn!(error = chain(&error), "an old start is not forgotten");
                }
            }
            Action::Remember(generation, issued_at) => {
                let stored = folder::remember(&self.config.state_dir, generation, issued_at);
                if let Err(error) = stored {
                    tracing::error!(error = chain(&error), "a restart could obey an older order");
                }
            }
            Action::Report(report) => {
                self.reports.send_replace(Some(report));
            }
        }
    }

    fn start(&self, order: &Order) {
        let run = Run { job: order.job.clone(), attempt: order.attempt };
        let folder = self.folder(&run);
        let child = folder.write_order(order).map_err(|error| chain(&error)).and_then(|()| {
            let mut supervisor = Command::new(&self.program);
            supervisor
                .arg("supervise")
                .arg("--dir")
                .arg(folder.path())
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            supervisor.spawn().map_err(|error| format!("no process can be made for it: {error}"))
        });
        match child {
            Ok(child) => {
                tracing::info!(job = %run.job, attempt = run.attempt, gpus = ?order.gpus, "starting");
                tokio::spawn(attend(run, folder, Some(child), self.sender.clone()));
            }
            Err(error) => {
                let sender = self.sender.clone();
                tokio::spawn(async move { refuse(run, &folder, error, &sender).await });
            }
        }
    }

    fn stop(&self, run: &Run, stage: Stage) {
        let folder = self.folder(run);
        let stored = folder.write_stop(&Stop { stage, at_us: clock::now() });
        if let Err(error) = stored {
            tracing::error!(error = chain(&error), "after a restart its end would look its own");
        }
        tracing::info!(job = %run.job, attempt = run.attempt, ?stage, "stopping");
        let (started, claimed) = match (folder.started(), folder.claimed()) {
            (Ok(started), Ok(claimed)) => (started, claimed),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(error = chain(&error), "a job cannot be signalled");
                return;
            }
        };
        match stage {
            Stage::Checkpoint => {
                let name = folder.order().ok().and_then(|order| order.checkpoint_signal);
                let signal = name.as_deref().and_then(process::signal_named);
                if let (Some(started), Some(signal)) = (started, signal) {
                    process::signal(&started.process, signal);
                }
            }
            Stage::Terminate | Stage::Kill => {
                let signal = if stage == Stage::Kill { Signal::KILL } else { Signal::TERM };
                if let Some(claim) = claimed.filter(|claim| process::is_alive(&claim.supervisor)) {
                    for who in process::descendants(claim.supervisor.pid) {
                        process::signal(&who, signal);
                    }
                }
            }
        }
    }
}

/// The end of a start that no supervisor took on.
async fn refuse(run: Run, folder: &Folder, error: String, sender: &mpsc::Sender<Event>) {
    tracing::error!(job = %run.job, attempt = run.attempt, error, "not started");
    let end = End { how: How::Refused(error), at_us: clock::now() };
    // Where even this cannot be stored, a restart finds the order alone, and tries again.
    let _ = folder.write_end(&end);
    let _ = sender.send(Event::Ended(run, end.how.into())).await;
}

/// Waits for one start: its first words, then its end.
async fn attend(
    run: Run,
    folder: Folder,
    mut child: Option<tokio::process::Child>,
    sender: mpsc::Sender<Event>,
) {
    let mut told = false;
    let ended = loop {
        let gone = match &mut child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => false,
        };
        match first_words(&folder) {
            Err(error) => break Err(error),
            Ok(Words { end: Some(end), .. }) => break Ok(end),
            Ok(Words { claim: Some(claim), started, .. }) => {
                if started && !told {
                    told = true;
                    let session = claim.supervisor.pid;
                    let _ = sender.send(Event::Started(run.clone(), session)).await;
                }
                if started || !process::is_alive(&claim.supervisor) {
                    break wait_for(&folder, &claim).await;
                }
            }
            Ok(Words { claim: None, .. }) if gone => {
                let error = "its supervisor ended before it could start it: see the launcher's log \
                             folder and the free memory of the node";
                return refuse(run, &folder, error.to_owned(), &sender).await;
            }
            Ok(_) => {}
        }
        tokio::time::sleep(FIRST_WORDS).await;
    };
    let how = match ended {
        Ok(end) => end.how,
        Err(error) => How::Lost(chain(&error)),
    };
    tracing::info!(job = %run.job, attempt = run.attempt, ?how, "ended");
    let _ = sender.send(Event::Ended(run, how.into())).await;
    if let Some(mut child) = child {
        // Only so that no dead process is left in the table.
        let _ = child.wait().await;
    }
}

struct Words {
    claim: Option<Claim>,
    started: bool,
    end: Option<End>,
}

fn first_words(folder: &Folder) -> Result<Words, StateError> {
    Ok(Words { end: folder.end()?, claim: folder.claimed()?, started: folder.started()?.is_some() })
}

/// Waits until the supervisor is gone, and reads its last word.
async fn wait_for(folder: &Folder, claim: &Claim) -> Result<End, StateError> {
    #[expect(deprecated, reason = "its replacement is unsafe; an OwnedFd keeps what that asks for")]
    let handle = process::handle(&claim.supervisor).and_then(|handle| AsyncFd::new(handle).ok());
    if let Some(handle) = handle {
        // Readable means ended; an error here means the same, or is seen just below.
        let _ = handle.readable().await;
    }
    while process::is_alive(&claim.supervisor) {
        tokio::time::sleep(FIRST_WORDS).await;
    }
    folder.bury(claim, clock::now())
}

/// The bus: what is desired comes in, what is goes out. Tries for ever, for jobs go on without it.
async fn follow_bus(
    config: Config,
    sender: mpsc::Sender<Event>,
    newest: watch::Receiver<Option<LaunchReport>>,
) {
    while let Err(error) = follow_bus_once(&config, &sender, newest.clone()).await {
        tracing::error!(error = chain(&error), "no bus; jobs go on, and it is tried again");
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow_bus_once(
    config: &Config,
    sender: &mpsc::Sender<Event>,
    newest: watch::Receiver<Option<LaunchReport>>,
) -> Result<(), BusError> {
    let name = format!("wattle-launcher-{}", config.node);
    let bus = Bus::connect(&config.nats, config.cluster.clone(), &name).await?;
    let service =
        bus.register_on("wattle-launcher", "starts and stops jobs on a node", &config.node).await?;
    let desired = bus.bucket(Bucket::Desired).await?;
    let actual = bus.bucket(Bucket::Actual).await?;
    let followed = tokio::select! {
        () = write_reports(actual, config.node.clone(), newest) => Ok(()),
        followed = follow_desired(&desired, &config.node, sender) => followed,
    };
    drop(service);
    followed
}

async fn follow_desired(
    bucket: &KvBucket,
    node: &NodeId,
    sender: &mpsc::Sender<Event>,
) -> Result<(), BusError> {
    let mut watch = bucket.watch().await?;
    while let Some(change) = watch.next().await {
        if change.key != node.as_str() {
            continue;
        }
        let Some(value) = change.value else { continue };
        match codec::decode_json::<NodeDesired>(&value) {
            Ok(desired) => {
                if sender.send(Event::DesiredChanged(desired)).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) => tracing::error!(
                bucket = Bucket::Desired.token(),
                key = change.key,
                revision = change.revision,
                error = chain(&error),
                "ignored; jobs go on as before"
            ),
        }
    }
    Ok(())
}

/// Writes the newest report, until it is written or there is a newer one.
async fn write_reports(
    bucket: KvBucket,
    node: NodeId,
    mut newest: watch::Receiver<Option<LaunchReport>>,
) {
    let key = Reporter::Launcher.key(&node);
    let mut away = false;
    while newest.changed().await.is_ok() {
        loop {
            let Some(report) = newest.borrow_and_update().clone() else { break };
            match bucket.put(&key, &report).await {
                Ok(_) => {
                    if away {
                        tracing::info!("reports are stored again");
                        away = false;
                    }
                    break;
                }
                Err(error) => {
                    if !away {
                        tracing::warn!(error = chain(&error), "reports wait until they are stored");
                        away = true;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

//! Starts jobs as child processes of this node.
//!
//! Each run has a folder ([`run_folder`]) and a [`supervisor`]: a small process that starts the
//! job ([`program`]), outlives the launcher and records the job's end. The engine starts supervisors,
//! signals the processes below them ([`process`]) and waits for them.

mod account;
pub mod cgroup;
mod ending;
mod job_output;
mod node_test;
mod own_children;
mod ownership;
pub mod process;
pub mod program;
pub mod run_folder;
mod shared_memory;
pub mod supervisor;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use wattle_common::NodeId;
use wattle_common::messages::{JobProcesses, NodeFaultKind};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;

use self::cgroup::{Cgroup, Cgroups};
use self::node_test::NodeTest;
use self::own_children::OwnChildren;
use self::process::Signal;
use self::run_folder::{Claim, End, RunFolder, StopRecord};
use super::{Engine, StatusSender};
use crate::config::JobLimits;
use crate::fault::{StartFault, kind_of};
use crate::run_spec::CgroupSpec;
use crate::state::StateError;
use crate::{Config, Fault, Found, Handle, Outcome, Run, RunSpec, Status, StopStage};

/// Interval at which a run's folder is read until its program runs: wall time. The supervisor
/// writes within a few milliseconds.
const START_POLL: Duration = Duration::from_millis(10);
/// Rounds of removing a cgroup: killed processes end within milliseconds.
const REMOVE_ROUNDS: u32 = 200;

/// Starts jobs as child processes of this node.
#[derive(Debug)]
pub struct LocalEngine {
    state_dir: PathBuf,
    program: PathBuf,
    changes: StatusSender,
    /// The test of the node; without one it succeeds.
    test: Option<NodeTest>,
    children: OwnChildren,
    /// The cgroup below which runs have theirs, and the prefix of their names.
    cgroups: Option<(String, String)>,
}

impl LocalEngine {
    /// An engine that stores runs below `state_dir` and runs `program supervise` for each.
    #[must_use]
    pub fn new(state_dir: PathBuf, program: PathBuf, changes: StatusSender) -> Self {
        let children = OwnChildren::default();
        Self { state_dir, program, changes, test: None, children, cgroups: None }
    }

    /// Adopts and ends the processes of a job whose supervisor is killed. For a process whose only children are
    /// this engine's.
    #[must_use]
    pub fn adopting_orphans(mut self) -> Self {
        self.children = OwnChildren::adopting();
        self
    }

    /// Tests all that a start by `config` needs.
    #[must_use]
    pub fn testing(mut self, config: &Config) -> Self {
        self.test = Some(NodeTest::new(config, self.program.clone()));
        self
    }

    /// Removes cgroups that earlier runs of `node` left below the cgroup of `limits`.
    #[must_use]
    pub fn removing_cgroups(mut self, node: &NodeId, limits: &JobLimits) -> Self {
        self.cgroups =
            limits.uses_cgroups().then(|| (limits.parent().to_owned(), format!("{node}.")));
        self
    }

    /// Removes the cgroups of ended runs, and empty ones of unknown runs: an unknown run may still have
    /// processes if its files are unreadable.
    fn remove_cgroups(&self, found: &[Found]) {
        let Ok(cgroups) = Cgroups::system() else { return };
        for found in found {
            if let (Some(Status::Ended(_)), Some(cgroup)) = (&found.status, &found.spec.cgroup) {
                tokio::spawn(remove(cgroups.of(cgroup)));
            }
        }
        let Some((parent, prefix)) = &self.cgroups else { return };
        let known =
            |name: &str| found.iter().any(|run| CgroupSpec::name_of(&run.spec.run()) == name);
        for name in cgroups.names(parent) {
            if name.starts_with(prefix) && !known(&name) {
                let removed = cgroups.of(&CgroupSpec::unlimited(parent, &name)).remove();
                if let Err(error) = removed {
                    tracing::warn!(
                        error = chain(&error),
                        name,
                        "cgroup of an unknown run not removed"
                    );
                }
            }
        }
    }

    fn folder(&self, run: &Run) -> RunFolder {
        RunFolder::of(&self.state_dir, run)
    }

    fn spawn_supervisor(&self, folder: &RunFolder, spec: &RunSpec) -> Result<Child, StartError> {
        folder.write_spec(spec)?;
        folder.reserve_end()?;
        let mut supervisor = Command::new(&self.program);
        supervisor
            .arg(supervisor::COMMAND)
            .arg(folder.path())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let started = self.children.start(|| {
            let child = supervisor.spawn()?;
            let number = child.id();
            Ok((child, number))
        });
        started.map_err(StartError::Spawn)
    }
}

/// Why a run was not started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot create its supervisor process")]
    Spawn(#[source] std::io::Error),
    #[error(
        "its supervisor ended before it started the job: see the launcher's state folder and the \
         free memory of the node"
    )]
    SupervisorEnded,
}

impl StartFault for StartError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        Some(match self {
            Self::State(error) => return error.node_fault(),
            Self::Spawn(source) => kind_of(source),
            Self::SupervisorEnded => NodeFaultKind::Other,
        })
    }
}

/// The folder after `command` in the command line of this process.
fn requested_folder(command: &str) -> Option<PathBuf> {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().filter(|first| first == command)?;
    arguments.next().map(PathBuf::from)
}

/// The handle of a run whose supervisor is `claim`.
fn handle(claim: &Claim, spec: &RunSpec) -> Handle {
    let session = claim.supervisor.pid;
    Handle {
        id: format!("session {session}"),
        processes: JobProcesses::Session(session),
        log_path: spec.log_path.clone(),
    }
}

impl Engine for LocalEngine {
    type Error = StateError;

    async fn resume(&mut self) -> Result<Vec<Found>, StateError> {
        let (found, errors) = run_folder::find_all(&self.state_dir, clock::now())?;
        for error in errors {
            tracing::error!(error = chain(&error), "stored run unreadable; it is left as it is");
        }
        self.remove_cgroups(&found);
        for found in &found {
            if let Some(Status::Running(_)) = found.status {
                let folder = self.folder(&found.spec.run());
                if let Ok(Some(stop)) = folder.stop()
                    && !stop.is_signalled
                {
                    carry_out(&folder, stop);
                }
                let (changes, children) = (self.changes.clone(), self.children.clone());
                tokio::spawn(follow(found.spec.clone(), folder, None, changes, children));
            }
        }
        Ok(found)
    }

    fn start(&mut self, spec: &RunSpec) {
        let folder = self.folder(&spec.run());
        let (spec, changes) = (spec.clone(), self.changes.clone());
        match self.spawn_supervisor(&folder, &spec) {
            Ok(child) => {
                let children = self.children.clone();
                tokio::spawn(follow(spec, folder, Some(child), changes, children))
            }
            Err(error) => {
                tokio::spawn(async move { refuse(spec.run(), &folder, &error, &changes).await })
            }
        };
    }

    fn stop(&mut self, run: &Run, stage: StopStage) {
        let folder = self.folder(run);
        let stop = StopRecord { stage, at_us: clock::now(), is_signalled: false };
        if let Err(error) = folder.write_stop(&stop) {
            tracing::error!(
                error = chain(&error),
                "stop not stored: after a restart the job would be reported as exited by itself"
            );
        }
        carry_out(&folder, stop);
    }

    fn test(&mut self) {
        let (test, changes) = (self.test.clone(), self.changes.clone());
        let children = self.children.clone();
        let (sender, result) = oneshot::channel();
        // In a thread of its own, because it may wait for disks. A node without a free thread has failed its test.
        let run = move || {
            let _ = sender.send(test.map_or(Ok(()), |test| test.run(&children)));
        };
        let thread = std::thread::Builder::new().spawn(run);
        tokio::spawn(async move {
            let result = match thread {
                Err(source) => Err(Fault {
                    kind: kind_of(&source),
                    error: format!("cannot start a thread: {source}"),
                }),
                Ok(_) => result.await.unwrap_or_else(|_| {
                    let error = "its test ended without a result".to_owned();
                    Err(Fault { kind: NodeFaultKind::Other, error })
                }),
            };
            changes.tested(result).await;
        });
    }

    fn forget(&mut self, run: &Run) {
        if let Err(error) = self.folder(run).remove() {
            tracing::warn!(error = chain(&error), "folder of an ended run not removed");
        }
    }
}

/// Kills every process of every run below `state_dir`, for a node without a launcher. Returns
/// `false` if none was running.
///
/// # Errors
/// Where the state folder cannot be read.
pub fn kill_all(state_dir: &Path) -> Result<bool, StateError> {
    let (found, _) = run_folder::find_all(state_dir, clock::now())?;
    let mut any = false;
    for found in found.iter().filter(|found| matches!(found.status, Some(Status::Running(_)))) {
        any = true;
        signal(&RunFolder::of(state_dir, &found.spec.run()), StopStage::Kill)?;
    }
    Ok(any)
}

/// Signals the processes of a run as `stop` requests, and stores that this was done. A kill in between repeats
/// the signal after the restart.
fn carry_out(folder: &RunFolder, mut stop: StopRecord) {
    let job = folder.path().display();
    if let Err(error) = signal(folder, stop.stage) {
        tracing::error!(error = chain(&error), %job, "job cannot be signalled");
        return;
    }
    stop.is_signalled = true;
    if let Err(error) = folder.write_stop(&stop) {
        tracing::warn!(error = chain(&error), %job, "signal not stored: a restart sends it again");
    }
}

fn signal(folder: &RunFolder, stage: StopStage) -> Result<(), StateError> {
    let terminate = match stage {
        StopStage::Checkpoint => {
            let name = folder.spec()?.checkpoint_signal;
            let signal = name.as_deref().and_then(process::signal_named);
            if let (Some(started), Some(signal)) = (folder.started()?, signal) {
                process::signal(&started.process, signal);
            }
            return Ok(());
        }
        StopStage::Terminate => Signal::TERM,
        StopStage::Kill => Signal::KILL,
    };
    if let Some(claim) = folder.claimed()?.filter(|claim| process::is_alive(&claim.supervisor)) {
        for descendant in process::descendants(claim.supervisor.pid) {
            process::signal(&descendant, terminate);
        }
        if stage == StopStage::Kill
            && let Some(cgroup) = folder.spec()?.cgroup
            && let Ok(cgroups) = Cgroups::system()
        {
            cgroups.of(&cgroup).kill();
        }
    }
    Ok(())
}

/// Removes the cgroup of a run that has ended, if its supervisor has not.
async fn remove(cgroup: Cgroup) {
    for _ in 0..REMOVE_ROUNDS {
        if !cgroup.exists() {
            return;
        }
        cgroup.kill();
        if cgroup.remove().is_ok() {
            return;
        }
        tokio::time::sleep(START_POLL).await;
    }
    tracing::warn!("cgroup of an ended run not removed: a process in it does not end");
}

/// Ends a run that no supervisor has claimed.
async fn refuse(run: Run, folder: &RunFolder, error: &StartError, changes: &StatusSender) {
    let outcome = error.outcome();
    // If this cannot be stored either, a restart finds the spec alone and starts it again.
    let _ = folder.write_end(&End { outcome: outcome.clone(), at_us: clock::now() });
    changes.send(run, Status::Ended(outcome)).await;
}

/// Reports that a run's program runs, and then its end. `child`: its supervisor, if it is a child of this process.
async fn follow(
    spec: RunSpec,
    folder: RunFolder,
    mut child: Option<Child>,
    changes: StatusSender,
    children: OwnChildren,
) {
    let mut reported = false;
    let number = child.as_ref().and_then(Child::id);
    let ended = loop {
        let supervisor_ended =
            child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        match progress(&folder) {
            Err(error) => break Err(error),
            Ok(Progress { end: Some(end), .. }) => break Ok(end),
            Ok(Progress { claim: Some(claim), started, .. }) => {
                if started && !reported {
                    reported = true;
                    changes.send(spec.run(), Status::Running(handle(&claim, &spec))).await;
                }
                if started || !process::is_alive(&claim.supervisor) {
                    break wait_for_end(&folder, &claim, &children).await;
                }
            }
            Ok(Progress { claim: None, .. }) if supervisor_ended => {
                children.ended(number);
                return refuse(spec.run(), &folder, &StartError::SupervisorEnded, &changes).await;
            }
            Ok(_) => {}
        }
        tokio::time::sleep(START_POLL).await;
    };
    let outcome = match ended {
        Ok(end) => end.outcome,
        Err(error) => Outcome::Lost(chain(&error)),
    };
    if let (Some(cgroup), Ok(cgroups)) = (&spec.cgroup, Cgroups::system()) {
        remove(cgroups.of(cgroup)).await;
    }
    changes.send(spec.run(), Status::Ended(outcome)).await;
    if let Some(mut child) = child {
        // Reaps the supervisor.
        let _ = child.wait().await;
        children.ended(number);
    }
}

/// How far a run has come, by its folder.
struct Progress {
    claim: Option<Claim>,
    started: bool,
    end: Option<End>,
}

fn progress(folder: &RunFolder) -> Result<Progress, StateError> {
    let end = folder.end()?;
    Ok(Progress { end, claim: folder.claimed()?, started: folder.started()?.is_some() })
}

/// Waits until the supervisor has ended, and reads the end that it recorded.
async fn wait_for_end(
    folder: &RunFolder,
    claim: &Claim,
    children: &OwnChildren,
) -> Result<End, StateError> {
    #[expect(deprecated, reason = "its replacement is unsafe; an OwnedFd keeps its condition")]
    let handle = process::handle(&claim.supervisor).and_then(|handle| AsyncFd::new(handle).ok());
    if let Some(handle) = handle {
        // A pidfd is readable once its process has ended; the loop below covers an error.
        let _ = handle.readable().await;
    }
    while process::is_alive(&claim.supervisor) {
        tokio::time::sleep(START_POLL).await;
    }
    // Its processes have this process as their parent now, if it was a child of this process.
    // Here, and not in a thread of its own: a job may have left the account without threads, and its end must be reported.
    children.end_orphans();
    folder.conclude(claim, clock::now())
}

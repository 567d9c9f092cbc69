//! The account, the environment and the output of jobs.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::messages::DesiredJob;
use wattle_launcher::config::JobUser;
use wattle_launcher::engine::local::LocalEngine;
use wattle_launcher::engine::{Engine as _, StatusSender};
use wattle_launcher::{Config, Event, Outcome, RunSpec, Status};
use wattle_runtime::testing::skipped;

use crate::support::{admitted, config, desired_job, node};

const DEADLINE: Duration = wattle_runtime::testing::HANG;
/// The name of the user 65534 of every system, which has no privileges.
const UNPRIVILEGED: &str = concat!("no", "body");

/// A node whose jobs may pass through its folder.
struct Node {
    folder: tempfile::TempDir,
    config: Config,
}

impl Node {
    fn new(job_user: JobUser) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let config = Config { job_user, ..config(folder.path()) };
        Self { folder, config }
    }

    /// Runs a shell script of `user` to its end; the outcome and the output without the header.
    async fn run(&self, name: &str, user: &str, script: &str) -> (Outcome, String) {
        self.run_of(desired_job(name, 1), user, script).await
    }

    /// The same for an order.
    async fn run_of(&self, mut desired: DesiredJob, user: &str, script: &str) -> (Outcome, String) {
        desired.user = Some(user.to_owned());
        desired.command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spec = RunSpec::new(&desired, &node(), &self.config).unwrap();
        let (sender, mut changes) = mpsc::channel(16);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_wattle-launcher"));
        let state_dir = self.config.state_dir.clone();
        let mut engine = LocalEngine::new(state_dir, program, StatusSender::new(sender));
        engine.start(&spec);
        let outcome = loop {
            let change = tokio::time::timeout(DEADLINE, changes.recv()).await;
            match change.expect("it ends in time") {
                Some(Event::StatusChanged(_, Status::Ended(outcome))) => break outcome,
                Some(_) => {}
                None => panic!("the engine reports the end"),
            }
        };
        let text = fs::read_to_string(&spec.log_path).unwrap_or_default();
        let (_, output) = text.split_once('\n').unwrap_or_default();
        (outcome, output.to_owned())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn a_job_runs_as_its_owner_and_cannot_read_the_launchers_files() {
    if !is_root() {
        skipped("only root can start processes of another user");
        return;
    }
    let node = Node::new(JobUser::Owner);
    let script = "id -un; id -u; echo home=$HOME user=$USER path=$PATH site=$NCCL_DEBUG; \
         echo cargo=$CARGO_MANIFEST_DIR; ls ../../s ../../s/jobs; cat ../../s/jobs/own/1/spec.json; \
         kill -9 $PPID; echo kill=$?; echo mine > $WATTLE_CHECKPOINT_DIR/state && ls";
    let (outcome, output) = node.run("own", UNPRIVILEGED, script).await;
    assert_eq!(outcome, Outcome::Code(0), "{output}");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], [UNPRIVILEGED, "65534"], "{output}");
    let login = format!("user={UNPRIVILEGED} path=/usr/local/bin:/usr/bin:/bin site=WARN");
    assert!(lines[2].ends_with(&login), "{output}");
    assert_eq!(lines[3], "cargo=", "the launcher's own environment is not passed on");
    assert!(!output.contains("\"command\"") && output.contains("ermission denied"), "{output}");
    assert!(output.contains("kill=1"), "its supervisor is another user's: {output}");
    assert_eq!(*lines.last().unwrap(), "state");
    let own = fs::metadata(node.folder.path().join("c/own")).unwrap();
    assert_eq!((own.uid(), own.mode() & 0o777), (65_534, 0o700));
    let log = fs::metadata(node.folder.path().join("l/own.n0.log")).unwrap();
    assert_eq!((log.uid(), log.mode() & 0o777), (65_534, 0o600));
}

#[tokio::test]
async fn unknown_and_reserved_users_are_refused() {
    if !is_root() {
        skipped("only root can start processes of another user");
        return;
    }
    let node = Node::new(JobUser::Owner);
    for (user, reason) in [("root", "below job_uid_min"), ("no-such-user", "has no account")] {
        let (outcome, _) = node.run(user, user, "id").await;
        let Outcome::Refused(text) = outcome else { panic!("{user}: {outcome:?}") };
        assert!(text.contains(reason), "{text}");
    }
    let one_user = Node::new(JobUser::Named(UNPRIVILEGED.to_owned()));
    let (outcome, output) = one_user.run("named", "root", "id -un").await;
    assert_eq!((outcome, output.trim()), (Outcome::Code(0), UNPRIVILEGED));
}

/// What another account owns is neither read nor changed, whichever account has the id of the job.
#[tokio::test]
async fn folders_and_logs_of_another_account_are_refused() {
    if !is_root() {
        skipped("only root can start processes of another user");
        return;
    }
    let node = Node::new(JobUser::Owner);
    let path = |path: &str| node.folder.path().join(path);
    let belongs_to = |path: &PathBuf, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    fs::create_dir_all(path("c/folder")).unwrap();
    fs::write(path("c/folder/model"), "secret").unwrap();
    belongs_to(&path("c/folder"), 4_242);
    fs::create_dir_all(path("l")).unwrap();
    fs::write(path("l/log.n0.log"), "secret").unwrap();
    belongs_to(&path("l/log.n0.log"), 4_242);
    // Root's own, with content: not a folder that was left empty by a kill.
    fs::create_dir_all(path("c/roots")).unwrap();
    fs::write(path("c/roots/model"), "secret").unwrap();
    std::os::unix::fs::symlink(path("c/folder"), path("c/link")).unwrap();
    for (job, kept) in [("folder", "c/folder"), ("log", "l/log.n0.log"), ("roots", "c/roots")] {
        let (outcome, _) = node.run(job, UNPRIVILEGED, "rm -rf $WATTLE_CHECKPOINT_DIR/*").await;
        let Outcome::Foreign(error) = outcome else { panic!("{job}: {outcome:?}") };
        assert!(error.contains(kept) && error.contains("chown -R"), "{error}");
    }
    let (outcome, _) = node.run("link", UNPRIVILEGED, "true").await;
    assert!(
        matches!(&outcome, Outcome::Refused(error) if error.contains("move it away")),
        "{outcome:?}"
    );
    for kept in ["c/folder/model", "l/log.n0.log", "c/roots/model"] {
        assert_eq!(fs::read_to_string(path(kept)).unwrap(), "secret", "{kept}");
    }
    // A kill between the creation and the change of the owner leaves an empty folder and log.
    fs::create_dir_all(path("c/empty")).unwrap();
    fs::write(path("l/empty.n0.log"), "").unwrap();
    let (outcome, _) = node.run("empty", UNPRIVILEGED, "echo > $WATTLE_CHECKPOINT_DIR/state").await;
    assert_eq!(outcome, Outcome::Code(0));
}

/// The run before is forgotten on this node or not: a new submission of its id starts clean.
#[tokio::test]
async fn a_reused_id_runs_and_has_neither_log_nor_checkpoint_of_the_one_before() {
    let node = Node::new(JobUser::Service);
    let script = "ls $WATTLE_CHECKPOINT_DIR; echo mine > $WATTLE_CHECKPOINT_DIR/state";
    let of = |s| admitted(desired_job("a", 1), s);
    for s in [1, 2] {
        let (outcome, output) = node.run_of(of(s), "ada", script).await;
        assert_eq!((outcome, output.as_str()), (Outcome::Code(0), ""), "submission {s}");
    }
    // Further attempts of a submission have both.
    let again = DesiredJob { attempt: 2, ..of(2) };
    let (outcome, output) = node.run_of(again, "ada", script).await;
    assert_eq!(outcome, Outcome::Code(0));
    assert!(output.ends_with("---\nstate\n"), "{output}");
    assert_eq!(fs::read_dir(node.folder.path().join("c")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(node.folder.path().join("l")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(node.folder.path().join("s/jobs")).unwrap().count(), 2);
}

#[test]
fn a_job_without_a_user_cannot_run_as_its_owner() {
    let node = Node::new(JobUser::Owner);
    let mut desired = desired_job("a", 1);
    desired.user = None;
    let error = RunSpec::new(&desired, &crate::support::node(), &node.config).unwrap_err();
    assert!(error.to_string().contains("submit it as a user"), "{error}");
}

/// The configuration's limit is 1 MiB. The job is not stopped, and nothing of it remains open.
#[tokio::test]
async fn output_is_limited_and_the_job_continues() {
    let node = Node::new(JobUser::Service);
    let script = "head -c 20000000 /dev/zero | tr '\\0' x; echo done > $WATTLE_CHECKPOINT_DIR/end";
    let (outcome, output) = node.run("big", "ada", script).await;
    assert_eq!(outcome, Outcome::Code(0));
    assert!(output.len() < (1 << 20) + 200, "{}", output.len());
    assert!(output.ends_with("--- output beyond 1 MiB is dropped (log_mib_max) ---\n"));
    assert!(node.folder.path().join("c/big/end").exists());
    let log = fs::metadata(node.folder.path().join("l/big.n0.log")).unwrap();
    assert_eq!(log.mode() & 0o777, 0o600);
}

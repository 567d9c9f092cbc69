//! Starts that the node prevents, and those that the job itself prevents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wattle_common::messages::NodeFaultKind;
use wattle_launcher::config::JobLimits;
use wattle_launcher::engine::Engine as _;
use wattle_launcher::{Config, Outcome, RunSpec};
use wattle_runtime::testing::skipped;

use crate::limits::Node;
use crate::support::{config, desired_job};

const PROGRAM: &str = env!("CARGO_BIN_EXE_wattle-launcher");

fn kind(outcome: &Outcome) -> Option<NodeFaultKind> {
    match outcome {
        Outcome::Prevented(fault) => Some(fault.kind),
        _ => None,
    }
}

#[tokio::test]
async fn what_wattle_needs_is_the_nodes_fault() {
    type Change = fn(&mut Config, &Path);
    // A file where a folder is needed, no program, and no cgroup.
    let cases: [(Change, &str, NodeFaultKind); 4] = [
        (|config, file| config.state_dir = file.join("s"), PROGRAM, NodeFaultKind::Missing),
        (|config, file| config.checkpoint_dir = file.join("c"), PROGRAM, NodeFaultKind::Missing),
        (|_, _| {}, "/no/such/wattle-launcher", NodeFaultKind::Missing),
        (
            |config, _| config.job_limits.cgroup = Some("/no-such-cgroup".to_owned()),
            PROGRAM,
            NodeFaultKind::Cgroup,
        ),
    ];
    for (at, (change, program, expected)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut config = config(folder.path());
        change(&mut config, &file);
        let mut node = Node::with(folder, config, program);
        let run = node.start("a", 1, "true").run();
        let outcome = node.end(&run).await;
        assert_eq!(kind(&outcome), Some(expected), "{at}: {outcome:?}");
        assert_eq!(node.tested().await.unwrap_err().kind, expected, "{at}");
    }
}

#[tokio::test]
async fn what_a_job_names_is_its_own_fault() {
    let mut node = Node::new(JobLimits::default());
    assert_eq!(node.tested().await, Ok(()));
    let plain = node.folder.path().join("plain");
    fs::write(&plain, "echo").unwrap();
    let named = |command: &str, folder: Option<&str>| {
        let mut desired = desired_job("named", 1);
        desired.command = vec![command.to_owned()];
        desired.working_dir = folder.map(str::to_owned);
        desired
    };
    let plain = plain.display().to_string();
    for (at, desired) in [
        named("/no/such/program", None),
        named(&plain, None),
        named("true", Some("/no/such/folder")),
    ]
    .into_iter()
    .enumerate()
    {
        let desired = wattle_common::messages::DesiredJob { attempt: at as u32 + 1, ..desired };
        let spec = RunSpec::new(&desired, &crate::support::node(), &node.config).unwrap();
        node.engine.start(&spec);
        let outcome = node.end(&spec.run()).await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    }
    // Something else has the name of its folder.
    fs::write(node.config.checkpoint_dir.join("file"), "").unwrap();
    let run = node.start("file", 1, "true").run();
    assert!(matches!(node.end(&run).await, Outcome::Refused(_)));
    let run = node.start("fails", 1, "exit 3").run();
    assert_eq!(node.end(&run).await, Outcome::Code(3));
    let run = node.start("crashes", 1, "kill -SEGV $$").run();
    assert_eq!(node.end(&run).await, Outcome::Killed(11));
    assert_eq!(node.tested().await, Ok(()));
}

/// A file system of 2 MiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then_some(Self(path))
    }
    fn fill(&self) {
        // As much as it takes.
        let _ = fs::write(self.0.join("full"), vec![1; 4 << 20]);
    }
    fn free(&self) {
        fs::remove_file(self.0.join("full")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test]
async fn a_full_disk_prevents_a_start_and_not_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path().join("s")) else {
        skipped("a small disk: only root can mount one");
        return;
    };
    let config = config(folder.path());
    assert_eq!(config.state_dir, disk.0);
    let mut node = Node::with(folder, config, PROGRAM);
    assert_eq!(node.tested().await, Ok(()));
    let waits = "while [ ! -e go ]; do sleep 0.02; done; exit 3";
    let runs = node.start("runs", 1, waits).run();
    node.running(&runs).await;
    disk.fill();
    let fault = node.tested().await.unwrap_err();
    assert_eq!(fault.kind, NodeFaultKind::Disk, "{fault:?}");
    let prevented = node.start("b", 1, "true").run();
    assert_eq!(kind(&node.end(&prevented).await), Some(NodeFaultKind::Disk));
    // The end of a job that ran has room.
    fs::write(node.config.checkpoint_dir.join("runs/go"), "").unwrap();
    assert_eq!(node.end(&runs).await, Outcome::Code(3));
    let mut node = node.restart().await;
    let found = node.engine.resume().await.unwrap();
    let ended = found.iter().find(|found| found.spec.job.as_str() == "runs").unwrap();
    assert_eq!(ended.status, Some(wattle_launcher::Status::Ended(Outcome::Code(3))));
    disk.free();
    assert_eq!(node.tested().await, Ok(()));
    let run = node.start("c", 1, "true").run();
    assert_eq!(node.end(&run).await, Outcome::Code(0));
}

//! A test whether this node can start jobs: all that a start needs and no job names.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wattle_common::messages::NodeFaultKind;
use wattle_runtime::files::{self, Access};
use wattle_runtime::shell::chain;

use super::cgroup::Cgroups;
use super::own_children::OwnChildren;
use crate::fault::kind_of;
use crate::run_spec::CgroupSpec;
use crate::{Config, Fault};

/// Bytes that are written: more than the files of one start, so that the next start succeeds too.
const BYTES: usize = 1 << 20;

/// What a start needs.
#[derive(Clone, Debug)]
pub(super) struct NodeTest {
    /// The file that is written; no job has its name, because ids contain no dot.
    name: String,
    state_dir: PathBuf,
    log_dir: PathBuf,
    checkpoint_dir: PathBuf,
    program: PathBuf,
    cgroup: Option<CgroupSpec>,
}

impl NodeTest {
    pub(super) fn new(config: &Config, program: PathBuf) -> Self {
        Self {
            name: format!(".test.{}", config.node),
            state_dir: config.state_dir.clone(),
            log_dir: config.log_dir.clone(),
            checkpoint_dir: config.checkpoint_dir.clone(),
            program,
            cgroup: CgroupSpec::new(&config.job_limits, format!("{}.check", config.node), 1),
        }
    }

    /// Does what a start does, without a job. It may wait for disks.
    pub(super) fn run(&self, children: &OwnChildren) -> Result<(), Fault> {
        self.write(&self.state_dir, 0o700)?;
        self.write(&self.log_dir, 0o711)?;
        self.create(&self.checkpoint_dir)?;
        self.execute(children)?;
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        let checked = Cgroups::system().and_then(|cgroups| cgroups.of(cgroup).check());
        checked.map_err(|error| Fault { kind: NodeFaultKind::Cgroup, error: chain(&error) })
    }

    /// Writes a file and removes it.
    fn write(&self, folder: &Path, mode: u32) -> Result<(), Fault> {
        let path = folder.join(&self.name);
        let created = DirBuilder::new().recursive(true).mode(mode).create(folder);
        let written = created.and_then(|()| files::replace(&path, &vec![0; BYTES], Access::Owner));
        let removed = written.and_then(|()| fs::remove_file(&path));
        removed.map_err(|source| fault("write to", folder, &source))
    }

    /// Creates a folder, as each job has one, and removes it.
    fn create(&self, folder: &Path) -> Result<(), Fault> {
        let path = folder.join(&self.name);
        let created = DirBuilder::new().recursive(true).mode(0o711).create(&path);
        let removed = created.and_then(|()| fs::remove_dir(&path));
        removed.map_err(|source| fault("create a folder in", folder, &source))
    }

    /// Runs the program of every supervisor.
    fn execute(&self, children: &OwnChildren) -> Result<(), Fault> {
        let mut command = Command::new(&self.program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = children.start(|| {
            let child = command.spawn()?;
            let number = child.id();
            Ok((child, Some(number)))
        });
        let status = started.and_then(|mut child| {
            let status = child.wait();
            children.ended(Some(child.id()));
            status
        });
        let status = status.map_err(|source| fault("run", &self.program, &source))?;
        if status.success() {
            return Ok(());
        }
        let error = format!("{} does not run: {status}", self.program.display());
        Err(Fault { kind: NodeFaultKind::Other, error })
    }
}

fn fault(operation: &str, path: &Path, source: &io::Error) -> Fault {
    let error = format!("cannot {operation} {}: {source}", path.display());
    Fault { kind: kind_of(source), error }
}

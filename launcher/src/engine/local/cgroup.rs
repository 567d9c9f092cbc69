//! The cgroup of one run: its limits, its processes, and the limits that it reached.
//!
//! Each run has a cgroup of its own below one that the site delegates (`wattle-jobs.service`). The
//! supervisor creates it and stays outside, so that no limit of the job ends it; the job's first process
//! joins it before it takes on the job's account. The supervisor removes it at the job's end, the next
//! launcher if no supervisor was left.
//!
//! Both versions of cgroups are supported: v2, one hierarchy for all controllers, and v1, one hierarchy
//! for each. Under v2 the processes of the delegated cgroup itself must move to a child, because
//! the kernel gives controllers only to the children of a cgroup without processes.

mod error;
mod files;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use wattle_common::messages::ReachedLimit;

pub use self::error::CgroupError;
use self::files::{count, remove_tree, value, words, write, write_if_present};
use super::process::{self, Identity, Signal};
use crate::run_spec::CgroupSpec;

/// Where every distribution mounts cgroups.
const ROOT: &str = "/sys/fs/cgroup";
/// The child for the processes of the delegated cgroup itself. Names of runs contain dots.
const HOLDER: &str = "holder";
/// Period of the quota of CPU time, the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Rounds of moving or killing processes, which may start others meanwhile.
const ROUNDS: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }

    /// Whether a limit of `spec` needs this controller.
    const fn is_needed(self, spec: &CgroupSpec) -> bool {
        match self {
            Self::Memory => spec.memory_mib.is_some(),
            Self::Cpu => spec.cpu_milli.is_some(),
            Self::Pids => spec.processes.is_some(),
        }
    }
}

/// The cgroups of this machine.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: PathBuf,
    version: Version,
}

impl Cgroups {
    /// The cgroups of this machine.
    ///
    /// # Errors
    /// If none are mounted.
    pub fn system() -> Result<Self, CgroupError> {
        Self::at(Path::new(ROOT))
    }

    /// The cgroups that are mounted at `root`.
    ///
    /// # Errors
    /// If none are.
    pub fn at(root: &Path) -> Result<Self, CgroupError> {
        let version = if root.join("cgroup.controllers").exists() {
            Version::V2
        } else if Controller::ALL.iter().any(|controller| root.join(controller.name()).is_dir()) {
            Version::V1
        } else {
            return Err(CgroupError::NotMounted(root.to_owned()));
        };
        Ok(Self { root: root.to_owned(), version })
    }

    /// The cgroup of `spec`, which need not exist.
    #[must_use]
    pub fn of(&self, spec: &CgroupSpec) -> Cgroup {
        let folder = |controller| self.folder(controller, &spec.parent);
        let used =
            |controller: &Controller| controller.is_needed(spec) || folder(*controller).is_dir();
        let folders: Vec<(Controller, PathBuf)> = Controller::ALL
            .into_iter()
            .filter(used)
            .map(|controller| (controller, folder(controller).join(&spec.name)))
            .collect();
        Cgroup { spec: spec.clone(), version: self.version, folders, cgroups: self.clone() }
    }

    /// The folder of the cgroup `path` in the hierarchy of `controller`.
    fn folder(&self, controller: Controller, path: &str) -> PathBuf {
        let hierarchy = match self.version {
            Version::V1 => self.root.join(controller.name()),
            Version::V2 => self.root.clone(),
        };
        hierarchy.join(path.trim_start_matches('/'))
    }

    /// The names of the cgroups directly below `parent`.
    #[must_use]
    pub fn names(&self, parent: &str) -> BTreeSet<String> {
        let list = |controller| std::fs::read_dir(self.folder(controller, parent));
        Controller::ALL
            .into_iter()
            .filter_map(|controller| list(controller).ok())
            .flatten()
            .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Prepares the parent of `spec` for its children's limits.
    fn prepare(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        let needed: Vec<Controller> =
            Controller::ALL.into_iter().filter(|controller| controller.is_needed(spec)).collect();
        let missing = |controller: Controller, path: PathBuf| CgroupError::NoController {
            controller: controller.name(),
            path,
        };
        match self.version {
            Version::V1 => {
                for controller in needed {
                    let hierarchy = self.folder(controller, "/");
                    if !hierarchy.is_dir() {
                        return Err(missing(controller, hierarchy));
                    }
                    let parent = self.folder(controller, &spec.parent);
                    if !parent.is_dir() {
                        return Err(CgroupError::NoParent(parent));
                    }
                }
                if Controller::ALL.iter().all(|each| !self.folder(*each, &spec.parent).is_dir()) {
                    return Err(CgroupError::NoParent(PathBuf::from(&spec.parent)));
                }
                Ok(())
            }
            Version::V2 => {
                let parent = self.folder(Controller::Memory, &spec.parent);
                if !parent.is_dir() {
                    return Err(CgroupError::NoParent(parent));
                }
                let available = words(&parent.join("cgroup.controllers"))?;
                let control = parent.join("cgroup.subtree_control");
                let enabled = words(&control)?;
                let has = |words: &[String], controller: Controller| {
                    words.iter().any(|word| word == controller.name())
                };
                if let Some(absent) = needed.iter().find(|each| !has(&available, **each)) {
                    return Err(missing(*absent, parent));
                }
                let to_enable: Vec<String> = needed
                    .into_iter()
                    .filter(|each| !has(&enabled, *each))
                    .map(|each| format!("+{}", each.name()))
                    .collect();
                if to_enable.is_empty() {
                    return Ok(());
                }
                vacate(&parent)?;
                write(&control, &to_enable.join(" "))
            }
        }
    }
}

/// Moves the processes of a cgroup into a child.
fn vacate(parent: &Path) -> Result<(), CgroupError> {
    let procs = parent.join("cgroup.procs");
    for _ in 0..ROUNDS {
        let pids = words(&procs)?;
        if pids.is_empty() {
            break;
        }
        let holder = parent.join(HOLDER);
        files::create(&holder)?;
        for pid in pids {
            match write(&holder.join("cgroup.procs"), &pid) {
                // It has ended.
                Err(CgroupError::Access { source, .. })
                    if source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
    }
    Ok(())
}

/// The cgroup of one run.
#[derive(Clone, Debug)]
pub struct Cgroup {
    spec: CgroupSpec,
    version: Version,
    /// Its folder for each controller; under v2 they are one.
    folders: Vec<(Controller, PathBuf)>,
    cgroups: Cgroups,
}

impl Cgroup {
    /// Creates it and sets its limits.
    ///
    /// # Errors
    /// If a limit cannot be set.
    pub fn create(&self) -> Result<(), CgroupError> {
        self.cgroups.prepare(&self.spec)?;
        for (_, folder) in &self.folders {
            files::create(folder)?;
        }
        if let (Some(mib), Some(folder)) = (self.spec.memory_mib, self.of(Controller::Memory)) {
            let bytes = mib.saturating_mul(1 << 20).to_string();
            match self.version {
                Version::V1 => {
                    write(&folder.join("memory.limit_in_bytes"), &bytes)?;
                    write_if_present(&folder.join("memory.memsw.limit_in_bytes"), &bytes)?;
                }
                Version::V2 => {
                    write(&folder.join("memory.max"), &bytes)?;
                    // Swapping jobs would slow down all others.
                    write_if_present(&folder.join("memory.swap.max"), "0")?;
                    // A job without one of its processes would wait for it.
                    write_if_present(&folder.join("memory.oom.group"), "1")?;
                }
            }
        }
        if let (Some(milli), Some(folder)) = (self.spec.cpu_milli, self.of(Controller::Cpu)) {
            let quota = milli.saturating_mul(CPU_PERIOD_US / 1_000);
            match self.version {
                Version::V1 => {
                    write(&folder.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                    write(&folder.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
                Version::V2 => {
                    write(&folder.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?;
                }
            }
        }
        if let (Some(count), Some(folder)) = (self.spec.processes, self.of(Controller::Pids)) {
            write(&folder.join("pids.max"), &count.to_string())?;
        }
        Ok(())
    }

    /// Creates it with its limits and removes it.
    ///
    /// # Errors
    /// If a limit cannot be set.
    pub fn check(&self) -> Result<(), CgroupError> {
        let created = self.create();
        // A launcher that starts at the same time may have it.
        let _ = self.remove();
        created
    }

    /// Moves this process into it.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn join(&self) -> Result<(), CgroupError> {
        // 0 is the writing process.
        self.distinct().try_for_each(|folder| write(&folder.join("cgroup.procs"), "0"))
    }

    /// Whether it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.distinct().any(Path::is_dir)
    }

    /// The limit that the run has reached: the memory limit before that of processes.
    #[must_use]
    pub fn reached(&self) -> Option<ReachedLimit> {
        if self.memory_exceeded() {
            return self.spec.memory_mib.map(ReachedLimit::MemoryMib);
        }
        let refused = count(&self.of(Controller::Pids)?.join("pids.events"), "max");
        self.spec.processes.filter(|_| refused > Some(0)).map(ReachedLimit::Processes)
    }

    /// Whether the kernel killed a process because the run reached its memory limit, rather than because
    /// the node was short of memory.
    fn memory_exceeded(&self) -> bool {
        let (Some(folder), Some(mib)) = (self.of(Controller::Memory), self.spec.memory_mib) else {
            return false;
        };
        match self.version {
            Version::V1 => {
                // Linux 6.18 does not count failures at the limit of memory and swap, which is met first.
                let peak = value(&folder.join("memory.max_usage_in_bytes"));
                let near = mib.saturating_mul((1 << 20) / 100 * 98);
                count(&folder.join("memory.oom_control"), "oom_kill") > Some(0) && peak > Some(near)
            }
            Version::V2 => {
                let events = folder.join("memory.events");
                count(&events, "oom_kill") > Some(0) && count(&events, "oom") > Some(0)
            }
        }
    }

    /// Whether the kernel leaves the rest of the run to its launcher when it kills one of its processes:
    /// [`Cgroup::kill_if_memory_exceeded`] must then be called from time to time.
    #[must_use]
    pub fn needs_watch(&self) -> bool {
        self.version == Version::V1 && self.spec.memory_mib.is_some()
    }

    /// Kills the run if it has exceeded its memory limit; `false` if it has not.
    pub fn kill_if_memory_exceeded(&self) -> bool {
        let exceeded = self.memory_exceeded();
        if exceeded {
            self.kill();
        }
        exceeded
    }

    /// Kills every process in it, also those that its processes start meanwhile. Waits for none.
    pub fn kill(&self) {
        let all_at_once = self.distinct().next().map(|folder| folder.join("cgroup.kill"));
        if all_at_once.is_some_and(|file| file.exists() && write(&file, "1").is_ok()) {
            return;
        }
        if let Some(folder) = self.of(Controller::Pids) {
            // No process of the run can start another one.
            let _ = write_if_present(&folder.join("pids.max"), "0");
        }
        for _ in 0..ROUNDS {
            let members = self.members();
            if members.is_empty() {
                return;
            }
            for member in members {
                process::signal(&member, Signal::KILL);
            }
        }
    }

    /// The live processes in it.
    #[must_use]
    pub fn members(&self) -> Vec<Identity> {
        let pids = || self.distinct().flat_map(files::members).collect::<BTreeSet<u32>>();
        let identities: Vec<Identity> = pids().into_iter().filter_map(process::identity).collect();
        // A pid that is still a member belongs to the identified process, or that has ended.
        let still = pids();
        let is_member = |each: &Identity| still.contains(&each.pid) && process::is_alive(each);
        identities.into_iter().filter(is_member).collect()
    }

    /// Removes it; `Ok` if it does not exist.
    ///
    /// # Errors
    /// While a process is in it.
    pub fn remove(&self) -> io::Result<()> {
        self.distinct().try_for_each(remove_tree)
    }

    fn of(&self, controller: Controller) -> Option<&PathBuf> {
        self.folders.iter().find(|(known, _)| *known == controller).map(|(_, folder)| folder)
    }

    /// Its folders, each once.
    fn distinct(&self) -> impl Iterator<Item = &Path> {
        let count = match self.version {
            Version::V1 => self.folders.len(),
            Version::V2 => 1,
        };
        self.folders.iter().take(count).map(|(_, folder)| folder.as_path())
    }
}

#[cfg(test)]
mod tests;

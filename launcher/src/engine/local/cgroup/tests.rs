//! Plain files stand for the file system of cgroups; `tests/suite/limits.rs` uses the real one.

use std::fs;

use super::*;

const PARENT: &str = "/system.slice/wattle-jobs.service";

fn spec() -> CgroupSpec {
    CgroupSpec {
        memory_mib: Some(2_048),
        cpu_milli: Some(1_500),
        processes: Some(64),
        ..CgroupSpec::unlimited(PARENT, "n0.a.1")
    }
}

struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            folder.set(name, text);
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name.replace('@', PARENT.trim_start_matches('/')))
    }

    fn set(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|_| "absent".to_owned())
    }

    fn cgroup(&self, spec: &CgroupSpec) -> Cgroup {
        Cgroups::at(self.0.path()).unwrap().of(spec)
    }
}

/// A delegated cgroup of version 2 with a process.
fn v2() -> Files {
    Files::new(&[
        ("cgroup.controllers", "cpu memory pids"),
        ("@/cgroup.controllers", "cpuset cpu memory pids\n"),
        ("@/cgroup.subtree_control", "memory\n"),
        ("@/cgroup.procs", "41\n"),
        ("@/n0.a.1/memory.swap.max", "max"),
        ("@/n0.a.1/memory.oom.group", "0"),
    ])
}

/// A delegated cgroup of version 1.
fn v1() -> Files {
    let files = Files::new(&[("memory/@/n0.a.1/memory.memsw.limit_in_bytes", "max")]);
    for controller in ["cpu", "pids"] {
        fs::create_dir_all(files.path(&format!("{controller}/@"))).unwrap();
    }
    files
}

#[test]
fn limits_are_written_in_version_2() {
    let files = v2();
    files.cgroup(&spec()).create().unwrap();
    let text = |name: &str| files.text(&format!("@/n0.a.1/{name}"));
    assert_eq!(files.text("@/holder/cgroup.procs"), "41", "its own processes move to a child");
    assert_eq!(files.text("@/cgroup.subtree_control"), "+cpu +pids", "memory is enabled already");
    assert_eq!(text("memory.max"), (2u64 << 30).to_string());
    assert_eq!((text("memory.swap.max"), text("memory.oom.group")), ("0".into(), "1".into()));
    assert_eq!((text("cpu.max"), text("pids.max")), ("150000 100000".into(), "64".into()));
    files.cgroup(&spec()).join().unwrap();
    assert_eq!(text("cgroup.procs"), "0");
    let unlimited = CgroupSpec::unlimited(PARENT, "n0.b.1");
    files.cgroup(&unlimited).create().unwrap();
    assert!(files.path("@/n0.b.1").is_dir());
    assert_eq!(files.text("@/n0.b.1/memory.max"), "absent");
}

#[test]
fn limits_are_written_in_version_1() {
    let files = v1();
    let cgroup = files.cgroup(&spec());
    cgroup.create().unwrap();
    let text = |controller: &str, name: &str| files.text(&format!("{controller}/@/n0.a.1/{name}"));
    let bytes = (2u64 << 30).to_string();
    assert_eq!(text("memory", "memory.limit_in_bytes"), bytes);
    assert_eq!(text("memory", "memory.memsw.limit_in_bytes"), bytes);
    assert_eq!(text("cpu", "cpu.cfs_quota_us"), "150000");
    assert_eq!(text("cpu", "cpu.cfs_period_us"), "100000");
    assert_eq!(text("pids", "pids.max"), "64");
    cgroup.join().unwrap();
    for controller in ["memory", "cpu", "pids"] {
        assert_eq!(text(controller, "cgroup.procs"), "0");
    }
    assert!(cgroup.needs_watch());
}

#[test]
fn limit_that_cannot_be_set_is_an_error_with_its_remedy() {
    let error = |files: &Files, spec: &CgroupSpec| {
        files.cgroup(spec).create().expect_err("no limit is left out").to_string()
    };
    let nothing = Files::new(&[]);
    let unmounted = Cgroups::at(nothing.0.path()).unwrap_err().to_string();
    assert!(unmounted.contains("no cgroups are mounted"), "{unmounted}");
    let elsewhere = CgroupSpec { parent: "/other".to_owned(), ..spec() };
    for files in [v1(), v2()] {
        let absent = error(&files, &elsewhere);
        assert!(absent.contains("start wattle-jobs.service"), "{absent}");
        let absent = error(&files, &CgroupSpec::unlimited("/other", "n0.a.1"));
        assert!(absent.contains("start wattle-jobs.service"), "{absent}");
    }
    let files = v2();
    files.set("@/cgroup.controllers", "cpu pids");
    let absent = error(&files, &spec());
    assert!(absent.contains("`memory`") && absent.contains("Delegate="), "{absent}");
    files.cgroup(&CgroupSpec { memory_mib: None, ..spec() }).create().unwrap();
    let files = v1();
    fs::remove_dir_all(files.path("pids")).unwrap();
    let absent = error(&files, &spec());
    assert!(absent.contains("`pids`"), "{absent}");
    // As a file that only another user may write, or a limit that the kernel refuses.
    let files = v2();
    fs::create_dir_all(files.path("@/n0.a.1/pids.max")).unwrap();
    let refused = error(&files, &spec());
    assert!(refused.contains("pids.max: run the launcher as root"), "{refused}");
}

#[test]
fn reached_limits_are_read() {
    let files = v2();
    let cgroup = files.cgroup(&spec());
    let memory = |text: &str| files.set("@/n0.a.1/memory.events", text);
    assert_eq!(cgroup.reached(), None, "nothing is known");
    memory("low 0\nhigh 0\nmax 17\noom 0\noom_kill 1\noom_group_kill 0\n");
    assert_eq!(cgroup.reached(), None, "the node was short of memory");
    files.set("@/n0.a.1/pids.events", "max 3\n");
    assert_eq!(cgroup.reached(), Some(ReachedLimit::Processes(64)));
    memory("low 0\nhigh 0\nmax 17\noom 1\noom_kill 1\noom_group_kill 1\n");
    assert_eq!(cgroup.reached(), Some(ReachedLimit::MemoryMib(2_048)));

    let files = v1();
    let cgroup = files.cgroup(&spec());
    let peak = |mib: u64| {
        files.set("memory/@/n0.a.1/memory.max_usage_in_bytes", &format!("{}\n", mib << 20));
    };
    peak(2_048);
    files
        .set("memory/@/n0.a.1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    assert_eq!(cgroup.reached(), None, "cached files are dropped at the limit");
    files
        .set("memory/@/n0.a.1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    assert_eq!(cgroup.reached(), Some(ReachedLimit::MemoryMib(2_048)));
    peak(1_500);
    assert_eq!(cgroup.reached(), None, "the node was short of memory");
}

#[test]
fn whole_cgroup_is_killed_at_once_where_the_kernel_can() {
    let files = v2();
    files.set("@/n0.a.1/cgroup.kill", "");
    files.cgroup(&spec()).kill();
    assert_eq!(files.text("@/n0.a.1/cgroup.kill"), "1");
}

#[test]
fn cgroups_are_listed_and_removed() {
    let files = v1();
    let cgroup = files.cgroup(&CgroupSpec::unlimited(PARENT, "n0.b.2"));
    cgroup.create().unwrap();
    assert!(cgroup.exists());
    let names = Cgroups::at(files.0.path()).unwrap().names(PARENT);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["n0.a.1", "n0.b.2"]);
    cgroup.remove().unwrap();
    assert!(!cgroup.exists());
    cgroup.remove().unwrap();
}

//! Runs in full: environment, folders, refusals.

use std::path::Path;

use wattle_common::job::NodeShare;
use wattle_common::messages::DesiredJob;
use wattle_common::{JobId, NodeId};
use wattle_launcher::config::JobLimits;
use wattle_launcher::run_spec::{CgroupSpec, master_port};
use wattle_launcher::{Config, RunSpec};

use crate::support::{config, desired_job, node};

#[test]
fn the_environment_holds_the_variables_of_torchrun() {
    let mut desired = desired_job("a", 2);
    desired.rank = 1;
    desired.gpus = vec![4, 5];
    desired.shares = vec![
        NodeShare { node: NodeId::new("n0").unwrap(), gpus: vec![0, 1] },
        NodeShare { node: NodeId::new("n1").unwrap(), gpus: vec![4, 5] },
    ];
    desired.environment = vec![
        ("NCCL_DEBUG".to_owned(), "INFO".to_owned()),
        ("WATTLE_SIM_NODE".to_owned(), "/etc/other".to_owned()),
        ("CUDA_VISIBLE_DEVICES".to_owned(), "0,1,2,3".to_owned()),
    ];
    let spec =
        RunSpec::new(&desired, &NodeId::new("n1").unwrap(), &config(Path::new("/"))).unwrap();
    let text: Vec<String> =
        spec.environment.iter().map(|(key, value)| format!("{key}={value}")).collect();
    expect_test::expect![[r#"
        NCCL_DEBUG=INFO
        WATTLE_SIM_NODE=/dev/shm/n1
        CUDA_DEVICE_ORDER=PCI_BUS_ID
        CUDA_VISIBLE_DEVICES=4,5
        PET_NNODES=2
        PET_NODE_RANK=1
        PET_NPROC_PER_NODE=2
        PET_MASTER_ADDR=10.0.0.1
        PET_MASTER_PORT=29596
        MASTER_ADDR=10.0.0.1
        MASTER_PORT=29596
        NODE_RANK=1
        WATTLE_JOB=a
        WATTLE_ATTEMPT=2
        WATTLE_PROGRESS=/p.sock
        WATTLE_CHECKPOINT_DIR=/c/a
    "#]]
    .assert_eq(&(text.join("\n") + "\n"));
    assert_eq!((spec.log_path.as_str(), spec.attempt), ("/l/a.n1.log", 2));
}

/// Nodes that share a log folder do not write into one file.
#[test]
fn each_node_of_a_job_has_its_own_log() {
    let nodes = ["n0", "n1"].map(|node| NodeId::new(node).unwrap());
    let shares = nodes.clone().map(|node| NodeShare { node, gpus: vec![0] });
    let logs = [0, 1].map(|rank| {
        let mut desired = desired_job("a", 1);
        (desired.rank, desired.shares, desired.gpus) = (rank, shares.to_vec(), vec![0]);
        RunSpec::new(&desired, &nodes[rank as usize], &config(Path::new("/"))).unwrap().log_path
    });
    assert_eq!(logs, ["/l/a.n0.log", "/l/a.n1.log"]);
}

#[test]
fn jobs_that_cannot_run_are_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut DesiredJob)| {
        let mut desired = desired_job("a", 1);
        change(&mut desired);
        RunSpec::new(&desired, &node(), &config(Path::new("/"))).unwrap_err().to_string()
    };
    assert!(refused(&|job| job.command.clear()).contains("command is empty"));
    assert!(refused(&|job| job.gpus.clear()).contains("no GPU of n0"));
    assert!(refused(&|job| job.rank = 3).contains("rank 3"));
    assert!(refused(&|job| job.shares.clear()).contains("rank 0"));
    assert!(refused(&|job| job.command.push("a\0b".to_owned())).contains("zero bytes"));
    let wrong_signal = refused(&|job| job.checkpoint_signal = Some("SIGKILL".to_owned()));
    assert!(wrong_signal.contains("SIGUSR2"), "{wrong_signal}");
}

#[test]
fn ports_stay_in_their_range() {
    for job in ["a", "b", "resnet-1", "0"] {
        let job = JobId::new(job).unwrap();
        assert!((29_500..=29_510).contains(&master_port(&job, 29_500, 29_510)));
        assert_eq!(master_port(&job, 7, 7), 7);
        assert!(master_port(&job, 0, u16::MAX) == master_port(&job, 0, u16::MAX));
    }
}

#[test]
fn limits_follow_the_number_of_gpus() {
    let mut config = config(Path::new("/"));
    let spec = |config: &Config, gpus: usize| {
        let mut desired = desired_job("a", 2);
        desired.gpus.resize(gpus, 7);
        RunSpec::new(&desired, &node(), config).unwrap()
    };
    assert_eq!(spec(&config, 2).cgroup, None, "no limit, no cgroup");
    config.job_limits.memory_gib_per_gpu = Some(60);
    config.job_limits.cpus_per_gpu = Some(3.5);
    config.job_limits.processes_max = Some(4_096);
    for gpus in [1, 4] {
        let expected = CgroupSpec {
            memory_mib: Some(gpus * 60 * 1_024),
            cpu_milli: Some(gpus * 3_500),
            processes: Some(4_096),
            ..CgroupSpec::unlimited("/system.slice/wattle-jobs.service", "n0.a.2")
        };
        assert_eq!(spec(&config, gpus as usize).cgroup, Some(expected));
    }
    let threads = |config: &Config| {
        let environment = spec(config, 1).environment;
        environment.into_iter().find(|(key, _)| key == "OMP_NUM_THREADS").map(|(_, value)| value)
    };
    assert_eq!(threads(&config).as_deref(), Some("3"));
    config.job_environment.insert("OMP_NUM_THREADS".to_owned(), "1".to_owned());
    assert_eq!(threads(&config).as_deref(), Some("1"), "the site's value has precedence");
    config.job_limits.memory_gib_per_gpu = Some(u64::MAX);
    assert_eq!(spec(&config, 4).cgroup.unwrap().memory_mib, Some(u64::MAX));
}

#[test]
fn wrong_limits_are_refused() {
    let error = |limits: JobLimits| {
        let config = Config { job_limits: limits, ..config(Path::new("/")) };
        config.check().unwrap_err().to_string()
    };
    let none = JobLimits::default;
    let cgroup = |path: &str| JobLimits { cgroup: Some(path.to_owned()), ..none() };
    for cpus in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        let text = error(JobLimits { cpus_per_gpu: Some(cpus), ..none() });
        assert!(text.contains("job_limits.cpus_per_gpu") && text.contains("0.01"), "{text}");
    }
    for count in [0, u64::MAX] {
        let text = error(JobLimits { memory_gib_per_gpu: Some(count), ..none() });
        assert!(text.contains("job_limits.memory_gib_per_gpu"), "{text}");
        let text = error(JobLimits { processes_max: Some(count), ..none() });
        assert!(text.contains("job_limits.processes_max"), "{text}");
    }
    for path in ["", "/", "a", "/a//b", "/a/../b", "/.a"] {
        assert!(error(cgroup(path)).contains("job_limits.cgroup"), "{path}");
    }
}

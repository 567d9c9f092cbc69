//! Runs in full: environment, folders, refusals.

use std::path::Path;

use wattle_common::job::NodeShare;
use wattle_common::messages::DesiredJob;
use wattle_common::{JobId, NodeId};
use wattle_launcher::RunSpec;
use wattle_launcher::run_spec::master_port;

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

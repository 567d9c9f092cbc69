//! `wattle-simnode` on the command line.

use std::process::{Command, Output};

use crate::support::{HEAVY, Job, SimCluster, rate_when};

fn simnode(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattle-simnode")).args(args).output().unwrap()
}

fn outcome(out: &Output) -> (Option<i32>, String) {
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn create_show_and_fault_commands() {
    let cluster = SimCluster::new(1);
    let state = cluster.dir().join("node");
    let state = state.to_str().unwrap();
    let create = |gpu_type| {
        simnode(&[
            "create",
            "--state",
            state,
            "--node",
            "n7",
            "--gpus",
            "2",
            "--gpu-type",
            gpu_type,
            "--rate",
            "60",
            "--epoch-us",
            "1000000",
        ])
    };
    let (code, error) = outcome(&create("teapot"));
    assert!(code == Some(2) && error.contains("v100"), "{error}");
    assert!(create("v100").status.success());
    let (code, error) = outcome(&create("v100"));
    assert!(code == Some(2) && error.contains("remove it first"), "{error}");
    // The directory contains only the node.
    assert_eq!(cluster.dir().read_dir().unwrap().count(), 1);

    let node = nvml_sim::node::Node::open(state.as_ref()).unwrap();
    let _job = Job::start(node.path(), "1", "job-1", &["--workload", HEAVY], &[]);
    rate_when(&node, "job-1", |_| true);
    assert!(simnode(&["fault", "--state", state, "--gpu", "0", "lost"]).status.success());
    let fault = ["fault", "--state", state, "--gpu", "0", "unsupported:energy"];
    assert!(simnode(&fault).status.success());

    let out = simnode(&["show", "--state", state, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&json["node"], &json["rate"]), (&"n7".into(), &60.into()));
    assert_eq!(json["epoch_us"], 1_000_000);
    assert_eq!(json["gpus"][0]["faults"], serde_json::json!(["lost", "unsupported:energy"]));
    let tenant = &json["gpus"][1]["tenants"][0];
    assert_eq!((&tenant["job"], &tenant["workload"]), (&"job-1".into(), &HEAVY.into()));
    assert!(tenant["steps_per_s"].as_f64().unwrap() > 0.0);
    let table = simnode(&["show", "--state", state]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("job-1") && table.contains("[lost]"), "{table}");

    assert!(simnode(&["fault", "--state", state, "--gpu", "0", "clear"]).status.success());
    assert!(node.observe().unwrap().state.gpus[0].faults().is_empty());
    let (code, error) = outcome(&simnode(&["fault", "--state", state, "--gpu", "0", "melted"]));
    assert!(code == Some(2) && error.contains("no-permission"), "{error}");
    let (code, error) = outcome(&simnode(&["fault", "--state", state, "--gpu", "2", "lost"]));
    assert!(code == Some(2) && error.contains("no GPU 2"), "{error}");
    let (code, error) = outcome(&simnode(&["fault", "--state", state, "--gpu", "0", "mig"]));
    assert!(code == Some(2) && error.contains("not supported by GPU 0"), "{error}");
    assert!(simnode(&["driver", "--state", state, "unload"]).status.success());
    let shown = String::from_utf8(simnode(&["show", "--state", state]).stdout).unwrap();
    assert!(shown.contains("driver not loaded"), "{shown}");
    assert!(simnode(&["driver", "--state", state, "load"]).status.success());
    let (code, error) = outcome(&simnode(&["show", "--state", "/nowhere/n0"]));
    assert!(code == Some(2) && error.contains("wattle-simnode create"), "{error}");
}

#[test]
fn help_has_an_example() {
    for command in ["", "create", "show", "fault", "driver"] {
        let arguments: Vec<&str> =
            [command, "--help"].into_iter().filter(|a| !a.is_empty()).collect();
        let out = simnode(&arguments);
        let help = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && help.contains("Example"), "{help}");
    }
}

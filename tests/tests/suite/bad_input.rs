//! Invalid input gives a clear error and, for wrong usage, exit code 2; every service keeps running.

use std::process::{Command, Output};

use wattle_common::job::JobPhase;
use wattle_common::subject::{Bucket, Topic};
use wattle_runtime::testing::NatsServer;
use wattle_tests::{System, program, repository, until};

fn run(name: &str, args: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } =
        Command::new(program(name)).args(args).env("WATTLE_NATS_URL", "").output().unwrap();
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&stderr).into_owned())
}

#[track_caller]
fn refused(name: &str, args: &[&str], expected: &[&str]) {
    let (code, error) = run(name, args);
    assert_eq!(code, 2, "{name} {args:?}: {error}");
    for word in expected {
        assert!(error.contains(word), "{name} {args:?} lacks `{word}`: {error}");
    }
}

#[test]
fn wrong_usage_gives_exit_code_2_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let simulate = |trace: &str, cluster: &str, policy: &str, expected: &[&str]| {
        let args = ["simulate", "--trace", trace, "--cluster", cluster, "--policy", policy];
        refused("wattle", &args, expected);
    };
    let good = repository("deploy/demo/trace.csv");
    let good = good.to_str().unwrap();
    let column = file("column.csv", "job_id,gpu_milli,submit\n1,1,1\n");
    simulate(&column, "2x4:v100", "fifo", &["gpu_milli"]);
    simulate("/no/such/file.csv", "2x4:v100", "fifo", &["/no/such/file.csv"]);
    simulate(good, "two nodes", "fifo", &["28x8:v100"]);
    simulate(good, "2x4:voodoo2", "fifo", &["voodoo2", "v100"]);
    simulate(good, "2x4:v100", "clairvoyant", &["clairvoyant", "eaco"]);
    let simulate_is_refused = |args: &[&str], expected: &[&str]| {
        refused("wattle", &[&["simulate"], args].concat(), expected);
    };
    simulate_is_refused(&["--trace", good], &["--cluster", "28x8:v100"]);
    simulate_is_refused(
        &["--trace", good, "--cluster", "2x4:v100", "--load", "0"],
        &["load 0", "0.8"],
    );
    simulate_is_refused(
        &["--trace", good, "--cluster", "2x4:v100", "--trace-format", "pai"],
        &["pai", "sacct"],
    );
    simulate_is_refused(
        &["--trace", good, "--cluster", "2x4:v100", "--trace-format", "sacct"],
        &["JobID"],
    );
    simulate_is_refused(&["--jobs", "0"], &["at least 1"]);
    simulate_is_refused(&["--policy", "fifo,eaco,fifo"], &["fifo", "twice"]);
    simulate_is_refused(&["--policy", "fifo,srtf"], &["srtf", "powerflow", "wattle-lab simulate"]);
    simulate_is_refused(&["--policy", "fifo+zeus"], &["fifo+zeus", "wattle-lab simulate"]);
    simulate_is_refused(&["--policy", "fifo", "--price", "0.3"], &["0.3", "powerflow"]);
    let no_later = |kind: &str, args: &[&str], expected: &[&str]| {
        let own = ["--jobs", "20", "--policy", "wattle", "--no-later-than", kind];
        simulate_is_refused(&[&own, args].concat(), expected);
    };
    no_later("sjf", &[], &["sjf", "backfill, fifo or recorded"]);
    no_later("recorded", &[], &["builtin", "sacct", "Start and End", "backfill"]);
    no_later("fifo", &["--max-slowdown", "5%"], &["--no-later-than", "--max-slowdown"]);
    no_later("fifo", &["--by", "150%"], &["150%", "0% to 100%"]);
    no_later("fifo", &["--aim", "time"], &["--no-later-than fifo", "the aim is time"]);
    no_later("fifo", &["--energy-kwh", "9"], &["--no-later-than fifo", "the aim is budget"]);
    no_later("recorded", &["--load", "0.5"], &["recorded", "--load"]);
    simulate_is_refused(&["--by", "3%", "--max-slowdown", "5%"], &["--max-slowdown"]);
    let fixed = ["--policy", "fifo", "--no-later-than", "backfill"];
    simulate_is_refused(&fixed, &["--no-later-than", "wattle"]);
    let mut unnamed = vec!["--trace", good, "--cluster", "2x4:v100", "--no-later-than", "fifo"];
    unnamed.extend(["--no-project-later-than", "10%"]);
    simulate_is_refused(&unnamed, &["--no-project-later-than", "Account"]);
    simulate_is_refused(&["--policy", "fifo", "--seeds", "3"], &["at least two", "--policy"]);
    simulate_is_refused(&["--policy", "fifo@99999"], &["99999", "405 to 1380"]);
    simulate_is_refused(&["--forecast", "perfect"], &["--carbon"]);
    let grid = file("grid.csv", "at_s,g_per_kwh\n0,250\n3600,260\n");
    simulate_is_refused(
        &["--carbon", &grid, "--forecast", "nope"],
        &["nope", "persistence", "perfect"],
    );
    simulate_is_refused(&["--report", "/no/such/folder/page.html"], &["/no/such/folder/page.html"]);
    simulate_is_refused(&["--seeds", "0"], &["1..=1000"]);
    simulate_is_refused(&["--trace-format", "philly"], &["--trace"]);
    let saving_is_refused = |args: &[&str], expected: &[&str]| {
        let saving = ["saving", "--trace", good, "--cluster", "2x4:v100"];
        refused("wattle", &[&saving, args].concat(), expected);
    };
    let prices = file("prices.csv", "at,eur_per_mwh\n2026-01-01T00:00Z,90\n");
    saving_is_refused(&["--prices", &prices, "--price-kwh", "0.2"], &["--prices", "--price-kwh"]);
    saving_is_refused(&["--prices", &prices, "--currency", "CHF"], &["--prices", "--currency"]);
    saving_is_refused(&["--prices", &grid], &["grid.csv", "at_s,g_per_kwh", "at,eur_per_mwh"]);
    saving_is_refused(&["--prices", "/no/such.xml"], &["/no/such.xml"]);
    let capacity_is_refused = |trace: &str, args: &[&str], expected: &[&str]| {
        let capacity = ["capacity", "--trace", trace, "--cluster", "2x4:v100"];
        refused("wattle", &[&capacity, args].concat(), expected);
    };
    let empty = file("empty.csv", "job_id,submit_s,duration_s,num_gpus,vc\n");
    capacity_is_refused(good, &[], &["--limit"]);
    capacity_is_refused(good, &["--limit", "3"], &["--limit", "56kW"]);
    capacity_is_refused(good, &["--limit", "3kV"], &["3kV", "56kW"]);
    capacity_is_refused(good, &["--limit", "1W"], &["1 W", "without jobs", "higher limit"]);
    capacity_is_refused(good, &["--limit", "90W", "--no-sleep"], &["90 W", "--no-sleep"]);
    capacity_is_refused(&empty, &["--limit", "3kW"], &["empty.csv", "no row is a valid job"]);
    let twice = ["compare", "builtin", "--load", "0.8,0.5,0.8"];
    refused("wattle-lab", &twice, &["--load", "0.8", "twice"]);
    refused("wattle-lab", &["compare", "builtin", "--policy", "fifo,fifo"], &["fifo", "twice"]);
    refused("wattle-lab", &["compare", "builtin", "--policy", "fifo@1080"], &["clocks", "`fifo`"]);
    refused("wattle", &["up", "--rate", "60", "--for", "1s"], &["--simulated"]);
    refused("wattle", &["up", "--simulated", "1x1:v100", "--policy", "best"], &["best", "eaco"]);
    refused("wattle", &["submit", "--gpus", "0", "--", "true"], &["1..8"]);
    refused("wattle", &["submit", "--checkpoint-signal", "KILL", "--", "true"], &["SIGUSR1"]);
    refused("wattle", &["submit"], &["COMMAND"]);
    quantities_state_their_unit();
    refused(
        "wattle",
        &["jobs", "--nats", "http://127.0.0.1:4222"],
        &["http://", "nats://HOST:4222"],
    );
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let up = ["up", "--simulated", "1x1:v100", "--port", &port];
    refused("wattle", &up, &[&port, "in use", "omit --port"]);
    let up = ["up", "--simulated", "1x1:v100", "--nats", "http://127.0.0.1:1"];
    refused("wattle", &up, &["http://", "nats://HOST:4222"]);

    // A wrong key, a wrong value and a wrong file, for every service.
    for service in
        ["placer", "predictor", "registry", "profiler", "power-agent", "launcher", "slurm"]
    {
        let example =
            std::fs::read_to_string(repository(&format!("deploy/{service}.toml"))).unwrap();
        let name = format!("wattle-{service}");
        let key = file("key.toml", &format!("colour = \"blue\"\n{example}"));
        refused(&name, &["--config", &key], &["key.toml", "colour", "1"]);
        let value = file("value.toml", &example.replace("cluster = \"", "cluster = \"not an id "));
        refused(&name, &["--config", &value], &["value.toml"]);
        refused(&name, &["--config", "/no/such.toml"], &["/no/such.toml"]);
        refused(&name, &[], &["--config"]);
    }
}

/// A bare number of an option without a unit in its name is refused, and a unit where the name has it.
fn quantities_state_their_unit() {
    for option in ["--deadline", "--slack", "--estimate"] {
        refused("wattle", &["submit", option, "10", "--", "true"], &[option, "no unit", "10m"]);
    }
    for command in [
        &["up", "--for", "10"][..],
        &["cancel", "--wait", "--timeout", "10", "a"],
        &["budget", "set", "--energy-kwh", "5", "--window", "24"],
        &["energy", "--since", "24"],
        &["audit", "--since", "24"],
        &["simulate", "--slack", "12"],
    ] {
        refused("wattle", command, &["no unit"]);
    }
    for (option, value, expected) in [
        ("--energy-kwh", "5kWh", "number of kWh without a unit, as in 5"),
        ("--power-kw", "9.5 kW", "number of kW without a unit, as in 9.5"),
        ("--carbon-kg", "much", "number of kg without a unit"),
    ] {
        refused("wattle", &["budget", "set", option, value], &[option, expected]);
    }
    refused("wattle", &["up", "--gpu-cap-w", "250W"], &["number of W without a unit, as in 250"]);
    for bound in ["150%", "1.5", "-1%"] {
        let option = format!("--max-slowdown={bound}");
        refused("wattle", &["submit", &option, "--", "true"], &[bound, "0% to 100%"]);
        refused("wattle", &["up", &option], &[bound, "0% to 100%"]);
    }
}

/// A server with other clusters: each command names them at once.
#[tokio::test]
async fn a_cluster_that_does_not_exist_is_refused_with_those_that_do() {
    let server = NatsServer::start().await;
    let url = server.url();
    let cluster = wattle_common::ClusterId::new("main").unwrap();
    let config = wattle_runtime::bus::BusConfig::at(&url);
    let bus = wattle_runtime::bus::Bus::connect(&config, cluster, "test").await.unwrap();
    bus.bucket(Bucket::Jobs).await.unwrap();
    for command in [
        &["submit", "--", "true"][..],
        &["jobs"],
        &["nodes"],
        &["energy"],
        &["doctor"],
        &["budget", "show"],
        &["cancel", "a"],
        &["logs", "a"],
        &["predictors"],
        &["services"],
        &["tap", "--count", "1"],
    ] {
        let (verb, rest) = command.split_first().unwrap();
        let args = [&[*verb, "--nats", &url, "--cluster", "prod"], rest].concat();
        let args = if *verb == "budget" {
            vec!["budget", "show", "--nats", &url, "--cluster", "prod"]
        } else {
            args
        };
        refused("wattle", &args, &["no cluster `prod`", "it has main", "--cluster"]);
    }
}

#[test]
fn every_program_names_itself_as_its_version() {
    for name in [
        "",
        "-lab",
        "-placer",
        "-predictor",
        "-registry",
        "-profiler",
        "-power-agent",
        "-launcher",
        "-slurm",
    ] {
        let name = format!("wattle{name}");
        let output = Command::new(program(&name)).arg("--version").output().unwrap();
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(version.trim(), format!("{name} {}", env!("CARGO_PKG_VERSION")));
    }
}

/// If the disk fills up while the page is written, the result is still printed and the old page is
/// kept.
#[test]
fn result_is_printed_although_the_page_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    std::fs::write(&page, "before").unwrap();
    let few = "simulate --jobs 100 --cluster 4x8:v100 --policy fifo --report";
    let full = format!("trap '' XFSZ; ulimit -f 20; \"$0\" {few} page.html");
    let Output { status, stdout, stderr } = Command::new("sh")
        .args(["-c", &full])
        .arg(program("wattle"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let (output, error) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write page.html"), "{error}");
    assert!(output.contains("fifo") && output.contains("workloads:"), "{output}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn trace_warning_is_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("odd.csv");
    std::fs::write(&trace, "job_id,submit_s,duration_s,num_gpus\na,0,60,1\nb,1,60,0\n").unwrap();
    let Output { stdout, stderr, .. } = Command::new(program("wattle"))
        .args(["simulate", "--cluster", "1x4:v100", "--policy", "fifo", "--trace"])
        .arg(&trace)
        .output()
        .unwrap();
    let both = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert_eq!(both.matches("num_gpus is 0").count(), 1, "{both}");
}

#[tokio::test]
async fn services_survive_corrupt_messages_and_a_lost_gpu() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "120", "--policy", "fifo"]).await;
    let services = [
        "wattle-placer",
        "wattle-predictor",
        "wattle-registry",
        "wattle-profiler",
        "wattle-power-agent",
        "wattle-launcher",
    ];
    let before: Vec<Vec<u32>> = services.map(|name| system.processes(name)).to_vec();

    // Invalid payloads on every subject and in every bucket.
    let cluster = system.bus.cluster().clone();
    let mut lines = system.bus.subscribe(&Topic::NodeSummarized.pattern(&cluster)).await.unwrap();
    let invalid: [&[u8]; 4] = [b"", b"{", b"{\"node\":\"n0\"}", &[0xE5, 1, 1, 0, 255, 255, 255]];
    let raw = wattle_tests::Raw::connect(system.url(), Some(&system.key())).await;
    for payload in invalid {
        for topic in Topic::ALL {
            let subject = topic.pattern(&cluster).replace('*', "n0");
            raw.publish(&subject, payload).await;
        }
        for (bucket, key) in [
            (Bucket::Desired, "n0"),
            (Bucket::Desired, "n9"),
            (Bucket::Actual, "power.n9"),
            (Bucket::Actual, "launcher.n9"),
            (Bucket::Actual, "strange"),
            (Bucket::Jobs, "ghost"),
            (Bucket::Surfaces, "ghost"),
            (Bucket::Predictors, "status.ghost"),
        ] {
            raw.publish(&format!("$KV.{}.{key}", bucket.name(&cluster)), payload).await;
        }
    }
    // Invalid progress reports on the profiler's socket.
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    for line in ["", "step=1", "job=a step=x", "job=../x step=1", &"x".repeat(4_000)] {
        let _ = socket.send_to(line.as_bytes(), system.folder().join("state/n0.sock"));
    }

    // A lost GPU is reported, and the other one keeps running jobs.
    let state = system.node_state("n0");
    let status = Command::new(program("wattle-simnode"))
        .args(["fault", "--gpu", "1", "--state"])
        .arg(&state)
        .arg("lost")
        .status()
        .unwrap();
    assert!(status.success());
    until("the summary reports GPU 1 as lost", async || {
        let delivery = lines.next().await?;
        let summary: wattle_common::messages::NodeSummary =
            wattle_common::codec::decode_json(&delivery.payload).ok()?;
        let lost = summary.gpus.iter().find(|gpu| gpu.gpu == 1)?;
        lost.error.is_some().then_some(())
    })
    .await;
    until("`wattle nodes` reports it too", async || {
        let nodes = system.json(&["nodes", "--json"]);
        let node = nodes.as_array()?.iter().find(|node| node["node"] == "n0")?.clone();
        (node["power"]["gpus"][1]["healthy"] == false).then_some(())
    })
    .await;

    let job = system.submit("after", &[], &["--workload", "eaco-alexnet", "--steps", "500"]);
    let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{}", system.logs());
    assert_eq!(end.spec.gpus.min, 1);
    let after: Vec<Vec<u32>> = services.map(|name| system.processes(name)).to_vec();
    assert_eq!(before, after, "a service ended: {}", system.logs());

    // A request beyond the size of the cluster is refused at once.
    let simjob = program("wattle-simjob");
    let refused = system.wattle(&["submit", "--gpus", "64", "--", simjob.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("64"), "{error}");
    assert!(system.end().await.success());
}

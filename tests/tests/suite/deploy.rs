//! The files of `deploy/`: every example configuration starts its service, on its own, against any
//! NATS server, and the server's own example starts the server.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::testing::NatsServer;
use wattle_tests::{PATIENCE, Raw, kill, program, repository, until};

const SERVICES: [&str; 9] = [
    "placer",
    "predictor",
    "registry",
    "profiler",
    "power-agent",
    "launcher",
    "slurm",
    "web",
    "openadr",
];

/// Every example configuration: its file, and the service it is of.
const EXAMPLES: [(&str, &str); 10] = [
    ("placer", "placer"),
    ("predictor", "predictor"),
    ("predictor-statistical", "predictor"),
    ("registry", "registry"),
    ("profiler", "profiler"),
    ("power-agent", "power-agent"),
    ("launcher", "launcher"),
    ("slurm", "slurm"),
    ("web", "web"),
    ("openadr", "openadr"),
];

/// A child that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn simulated_node(folder: &Path) -> std::path::PathBuf {
    let state = folder.join("n0.state");
    let made = Command::new(program("wattle-simnode"))
        .args([
            "create",
            "--node",
            "n0",
            "--gpus",
            "2",
            "--gpu-type",
            "v100",
            "--rate",
            "1",
            "--state",
        ])
        .arg(&state)
        .status()
        .unwrap();
    assert!(made.success());
    state
}

/// The example as it stands, with the folders and the driver of a test machine.
fn example(name: &str, folder: &Path, library: &Path) -> String {
    let text = std::fs::read_to_string(repository(&format!("deploy/{name}.toml"))).unwrap();
    let text = text
        .replace("/var/lib/wattle", folder.join("lib").to_str().unwrap())
        .replace("/var/log/wattle", folder.join("log").to_str().unwrap())
        .replace("/run/wattle", folder.join("run").to_str().unwrap());
    let mut table: toml::Table = text.parse().unwrap_or_else(|e| panic!("{name}.toml: {e}"));
    if matches!(name, "profiler" | "power-agent") {
        table.insert("nvml_library".into(), library.to_str().unwrap().into());
    }
    if name == "web" {
        // Another test may use the port.
        table.insert("listen".into(), "127.0.0.1:0".into());
    }
    if name == "launcher" {
        // Another account for jobs needs root.
        table.insert("job_user".into(), "service".into());
    }
    table.to_string()
}

/// Every service's example starts it, and NATS's own discovery (`nats micro ls`) shows them all.
#[tokio::test]
async fn every_example_starts_its_service_on_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["lib", "log", "run"] {
        std::fs::create_dir_all(folder.path().join(part)).unwrap();
    }
    let library = program("libnvml_sim.so");
    let state = simulated_node(folder.path());
    let server = NatsServer::start().await;
    let mut running = Vec::new();
    for (name, service) in EXAMPLES {
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, example(name, folder.path(), &library)).unwrap();
        let log = std::fs::File::create(folder.path().join(format!("{name}.log"))).unwrap();
        let child = Command::new(program(&format!("wattle-{service}")))
            .arg("--config")
            .arg(&file)
            .env("WATTLE_NATS_URL", server.url())
            .env("WATTLE_SIM_NODE", &state)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        running.push((name, Running(child)));
    }

    let cluster = ClusterId::new("any").unwrap();
    let config = BusConfig::at(&server.url());
    let bus = Bus::connect_within(&config, cluster, "test", PATIENCE).await.unwrap();
    let raw = Raw::connect(&server.url(), None).await;
    let mut found = BTreeSet::new();
    let mut wanted: BTreeSet<String> = SERVICES.map(|service| format!("wattle-{service}")).into();
    // The predictors are one program; each reports its name.
    wanted.extend(["physical", "statistical"].map(str::to_owned));
    let mut answers = bus.subscribe("test.answers").await.unwrap();
    until("every service answers $SRV.PING", async || {
        raw.publish("$SRV.PING test.answers", b"").await;
        let wait = std::time::Duration::from_millis(200);
        while let Ok(Some(answer)) = tokio::time::timeout(wait, answers.next()).await {
            let info: Value = serde_json::from_slice(&answer.payload).unwrap();
            let name = info["name"].as_str().unwrap().to_owned();
            assert_eq!(info["version"], env!("CARGO_PKG_VERSION"), "{info}");
            assert!(info["metadata"]["cluster"].is_string(), "{info}");
            found.insert(name);
            found.extend(info["metadata"]["predictor"].as_str().map(str::to_owned));
        }
        for (name, child) in &mut running {
            let ended = child.0.try_wait().unwrap();
            let log = std::fs::read_to_string(folder.path().join(format!("{name}.log")));
            assert!(ended.is_none(), "{name} ended: {}", log.unwrap_or_default());
        }
        wanted.is_subset(&found).then_some(())
    })
    .await;

    // Each service ends cleanly after SIGTERM.
    for (name, mut child) in running {
        kill(child.0.id(), "TERM");
        let what = format!("{name} ends");
        let status = until(&what, async || child.0.try_wait().unwrap()).await;
        let log = std::fs::read_to_string(folder.path().join(format!("{name}.log"))).unwrap();
        assert!(status.success(), "{name}: {status}: {log}");
    }
}

/// No example lies in `deploy/` that is not started above.
#[test]
fn every_configuration_of_a_service_is_an_example() {
    let files = std::fs::read_dir(repository("deploy")).unwrap();
    let names = files.map(|file| file.unwrap().path());
    let named: BTreeSet<String> = names
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(named, EXAMPLES.map(|(name, _)| name.to_owned()).into());
}

#[test]
fn example_of_the_server_accepts_the_generated_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let keys = path("keys");
    let run = |args: &[&str]| {
        let output =
            Command::new(program("wattle")).args(args).arg("--folder").arg(&keys).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["keys", "init", "--cluster", "main", "--host", "localhost", "--host", "10.0.0.5"]);
    run(&["keys", "add", "node", "n0"]);
    std::fs::copy(repository("deploy/nats.conf"), path("nats.conf")).unwrap();
    std::os::unix::fs::symlink(keys.join("server"), path("wattle")).unwrap();
    let binary = wattle_runtime::server::find().expect("tests/run installs nats-server");
    let checked = Command::new(binary).arg("-t").arg("-c").arg(path("nats.conf")).output().unwrap();
    let info = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{info}");
}

/// Each unit starts the program it is named after, with the configuration of that name.
#[test]
fn every_service_has_a_unit() {
    for service in SERVICES {
        let path = repository(&format!("deploy/systemd/wattle-{service}.service"));
        let unit = std::fs::read_to_string(&path).unwrap();
        let start =
            format!("ExecStart=/usr/bin/wattle-{service} --config /etc/wattle/{service}.toml");
        assert!(unit.lines().any(|line| line == start), "{}", path.display());
        for section in ["[Unit]", "[Service]", "[Install]"] {
            assert!(unit.lines().any(|line| line == section), "{} {section}", path.display());
        }
    }
    for (unit, lines) in [
        ("jobs", ["Delegate=cpu memory pids", "OOMPolicy=continue", "TasksMax=infinity"]),
        ("launcher", ["ProtectControlGroups=no", "OOMPolicy=continue", "KillMode=process"]),
    ] {
        let path = repository(&format!("deploy/systemd/wattle-{unit}.service"));
        let unit = std::fs::read_to_string(&path).unwrap();
        for line in lines {
            assert!(unit.lines().any(|known| known == line), "{} {line}", path.display());
        }
    }
    let agent = repository("deploy/systemd/wattle-power-agent.service");
    let agent = std::fs::read_to_string(agent).unwrap();
    assert!(
        agent.contains("ExecStopPost=") && agent.contains(" reset"),
        "no cap outlives the agent"
    );
    for line in [
        "CapabilityBoundingSet=CAP_SYS_ADMIN",
        "NoNewPrivileges=yes",
        "DevicePolicy=closed",
        "DeviceAllow=char-nvidia* rw",
        "NoExecPaths=/",
        "SystemCallFilter=@system-service",
        // Not below the folder of the other services, which systemd gives to their user with all that is in it.
        "StateDirectory=wattle-power-agent",
    ] {
        assert!(agent.lines().any(|known| known == line), "the agent's rights: {line}");
    }
    let drop_in = "deploy/systemd/wattle-power-agent.service.d/unprivileged.conf";
    let drop_in = std::fs::read_to_string(repository(drop_in)).unwrap();
    for line in ["CapabilityBoundingSet=", "User=wattle", "After=zeusd.service"] {
        assert!(drop_in.lines().any(|known| known == line), "rights without NVML: {line}");
    }
}

/// Each service is in the table of the Debian packages, and every file that the table names exists.
#[test]
fn every_service_has_a_package() {
    let table = std::fs::read_to_string(repository("deploy/debian/packages")).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    for service in SERVICES {
        let name = format!("wattle-{service}");
        let found = rows.iter().any(|row| row[0] == name && row[1] == name);
        assert!(found, "{name}: add its line to deploy/debian/packages");
    }
    for row in &rows {
        assert_eq!(row.len(), 5, "{row:?}");
        for file in row[4].split_whitespace() {
            let (source, target) = file.split_once('=').unwrap_or_else(|| panic!("{file}"));
            let built = source.starts_with("BINARIES/");
            assert!(built || repository(source).exists(), "{}: no file {source}", row[0]);
            assert!(!target.starts_with('/'), "{file}: targets are relative");
        }
    }
}

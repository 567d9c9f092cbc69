//! The complete system under the generated permissions and TLS: a job from submission to completion,
//! and what each person may do with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_tests::examples::{example, simulate_gpus};
use wattle_tests::http::http;
use wattle_tests::simulated_clock::SimulatedClock;
use wattle_tests::vtn::{self, Vtn};
use wattle_tests::{kill, program, until};

use super::{Site, error_of, text_of, wattle};
use crate::openadr;

/// The services, with the example configuration and the key of each.
const SERVICES: [(&str, &str, &str); 8] = [
    ("placer", "placer", "placer"),
    ("registry", "registry", "registry"),
    ("predictor", "predictor", "predictor-physical"),
    ("profiler", "profiler", "node-n0"),
    ("power-agent", "power-agent", "node-n0"),
    ("launcher", "launcher", "node-n0"),
    ("web", "web", "web"),
    ("openadr", "openadr", "openadr"),
];

pub(crate) struct Services {
    children: BTreeMap<&'static str, Child>,
    folder: PathBuf,
    vtn: Vtn,
    _clock: SimulatedClock,
}

impl Drop for Services {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Services {
    fn log(&self) -> String {
        let log = |name: &&str| {
            let text = std::fs::read_to_string(self.folder.join(format!("{name}.log")));
            format!("--- {name}\n{}\n", text.unwrap_or_default())
        };
        self.children.keys().map(log).collect()
    }
}

/// The example configuration of a service, for this site.
fn configuration(site: &Site, name: &str, key: &str, folder: &Path, vtn: &Vtn) -> String {
    let url = site.server.url();
    let mut table = match name {
        "openadr" => openadr::configuration(vtn, vtn::SECRET, &url, folder),
        _ => example(name, &url, folder).unwrap(),
    };
    if key == "node-n0" {
        simulate_gpus(&mut table, name, "n0", &folder.join("n0.state")).unwrap();
    }
    if name == "web" {
        table.insert("listen".into(), "127.0.0.1:0".into());
    }
    let nats = table["nats"].as_table_mut().unwrap();
    nats.insert("credentials_file".into(), site.seed(key).to_str().unwrap().into());
    nats.insert("ca_file".into(), site.authority().to_str().unwrap().into());
    table.to_string()
}

pub(crate) fn start(site: &Site) -> Services {
    let folder = site.folder.path().join("services");
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("n0.state");
    let made = Command::new(program("wattle-simnode"))
        .args(["create", "--node", "n0", "--gpus", "2", "--gpu-type", "v100", "--rate", "30"])
        .arg("--state")
        .arg(&state)
        .status()
        .unwrap();
    assert!(made.success());
    let clock = SimulatedClock::start(std::slice::from_ref(&state));
    let vtn = Vtn::start();
    let mut children = BTreeMap::new();
    // The placer creates the storage; the others wait for it.
    for (service, example, key) in SERVICES.into_iter().rev() {
        let file = folder.join(format!("{service}.toml"));
        std::fs::write(&file, configuration(site, example, key, &folder, &vtn)).unwrap();
        let log = File::create(folder.join(format!("{service}.log"))).unwrap();
        let child = Command::new(program(&format!("wattle-{service}")))
            .arg("--config")
            .arg(&file)
            .env("WATTLE_SIM_NODE", &state)
            .env("WATTLE_CLOCK", &state)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        children.insert(service, child);
    }
    Services { children, folder, vtn, _clock: clock }
}

#[tokio::test]
async fn job_runs_under_permissions_and_belongs_to_its_owner() {
    let site = Site::new(true).await;
    let services = start(&site);
    let simjob = program("wattle-simjob");
    let simjob = simjob.to_str().unwrap();
    let submit_of = |steps: &str, person: &str, job: &str| {
        let args = ["submit", "--job", job, "--workload", "eaco-resnet50", "--", simjob];
        let training =
            ["--workload", "eaco-resnet50", "--steps", steps, "--steps-per-epoch", "100"];
        site.wattle_as(person, &[&args[..], &training].concat())
    };
    let submit = |person: &str, job: &str| submit_of("300", person, job);
    until("the placer accepts ada's job", async || {
        let output = submit("user-ada", "train");
        output.status.success().then_some(())
    })
    .await;

    // Bob cannot see, read, cancel or replace it.
    let jobs = |person: &str| -> Value {
        let output = site.wattle_as(person, &["jobs", "--all", "--json"]);
        assert!(output.status.success(), "{}", error_of(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(jobs("user-bob"), Value::Array(Vec::new()));
    for refused in [
        site.wattle_as("user-bob", &["cancel", "train"]),
        site.wattle_as("user-bob", &["logs", "train"]),
        site.wattle_as("user-bob", &["explain", "train"]),
        submit("user-bob", "train"),
        site.wattle_as("user-bob", &["budget", "set", "--power-kw", "0.1"]),
        site.wattle_as("user-bob", &["nodes"]),
        site.wattle_as("monitor-mona", &["cancel", "train"]),
        submit("monitor-mona", "other"),
    ] {
        assert!(!refused.status.success(), "{}", text_of(&refused));
    }

    // It completes, and its record states its proven owner.
    let finished = until("ada's job has ended", async || {
        let jobs = jobs("user-ada");
        let ended = matches!(jobs[0]["phase"].as_str(), Some("finished" | "failed" | "cancelled"));
        ended.then(|| jobs[0].clone())
    })
    .await;
    assert_eq!(finished["phase"], "finished", "{finished}\n{}", services.log());
    assert_eq!(
        (&finished["spec"]["user"], &finished["user_proven"]),
        (&"ada".into(), &true.into())
    );
    assert_eq!(jobs("operator-olga")[0]["spec"]["job"], "train");
    assert_eq!(jobs("monitor-mona")[0]["spec"]["job"], "train");
    let output = site.wattle_as("user-ada", &["explain", "train"]);
    assert!(output.status.success(), "{}", error_of(&output));

    // The owner reads the output of a job that fails at once, before an entry of the ledger names its node.
    let failing = ["submit", "--wait", "--job", "short", "--", "sh", "-c", "echo boom; exit 3"];
    let output = site.wattle_as("user-ada", &failing);
    assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
    let output = site.wattle_as("user-ada", &["logs", "short"]);
    assert!(text_of(&output).contains("\nboom\n"), "{} {}", text_of(&output), error_of(&output));

    // Surfaces, windows and the ledger flow as well, and the operator reads them.
    until("the predictor's surface is used", async || {
        let output = site.wattle_as("operator-olga", &["predictors", "--json"]);
        text_of(&output).contains("physical").then_some(())
    })
    .await;
    for command in ["nodes", "energy", "history"] {
        let output = site.wattle_as("operator-olga", &[command]);
        assert!(output.status.success(), "{command}: {}", error_of(&output));
    }

    check_openadr(&site, &services).await;
    check_page(&site, &services).await;

    // Owner and operator cancel jobs that do not end by themselves.
    for (person, job) in [("user-ada", "second"), ("operator-olga", "third")] {
        assert!(submit_of("100000000", "user-ada", job).status.success());
        let output = site.wattle_as(person, &["cancel", job]);
        assert!(output.status.success(), "{person}: {}", error_of(&output));
    }

    // The log of orders has person, order and outcome.
    let audit = until("orders are recorded", async || {
        let output = site.wattle_as("operator-olga", &["audit", "--json"]);
        let records: Vec<Value> = serde_json::from_slice(&output.stdout).ok()?;
        let last =
            records.iter().any(|record| record["order"] == "cancel" && record["job"] == "third");
        last.then_some(records)
    })
    .await;
    let recorded = |user: &str, order: &str, job: &str, refused: bool| {
        audit.iter().any(|record| {
            record["requester"]["user"] == user
                && record["order"] == order
                && record["job"] == job
                && record["proven"] == true
                && record["refused"].is_string() == refused
        })
    };
    assert!(recorded("ada", "submit", "train", false), "{audit:?}");
    assert!(recorded("bob", "submit", "train", true), "{audit:?}");
    assert!(recorded("olga", "cancel", "third", false), "{audit:?}");

    // No process has violated a permission; services that start before the placer try to create storage.
    let log = site.server.log();
    let violations: Vec<&str> = log.lines().filter(|line| line.contains("Violation")).collect();
    let forged = ["operator.olga", "user.bob", "monitor.mona"];
    let is_forged =
        |line: &str| forged.iter().any(|person| line.contains(&format!("job.requested.{person}")));
    let expected = |line: &str| line.contains("STREAM.CREATE") || is_forged(line);
    assert!(violations.iter().all(|line| expected(line)), "{violations:#?}");
    for child in services.children.values() {
        kill(child.id(), "TERM");
    }
}

/// An event of the OpenADR server is announced in the name of its service, which reads the ledger for the report.
async fn check_openadr(site: &Site, services: &Services) {
    let limit = json!([{ "type": "IMPORT_CAPACITY_LIMIT", "values": [50] }]);
    let mut event = vtn::event("e-1", "0001-01-01", "PT5M", limit);
    event["reportDescriptors"] = json!([{ "payloadType": "USAGE" }]);
    services.vtn.state().events = vec![event];
    until("the report arrives", async || services.vtn.state().reports.get("r-1").cloned()).await;
    let audit = site.wattle_as("operator-olga", &["audit", "--json"]);
    let records: Vec<Value> = serde_json::from_slice(&audit.stdout).unwrap();
    let is_ours = |record: &&Value| record["requester"]["user"] == "openadr";
    let record = records.iter().find(is_ours).unwrap_or_else(|| panic!("{records:?}"));
    assert!(record["proven"] == true && record["refused"].is_null(), "{record}");
}

/// The web page: content without a session, and the permitted actions with one.
async fn check_page(site: &Site, services: &Services) {
    let log = std::fs::read_to_string(services.folder.join("web.log")).unwrap();
    let address = log.split("http://127.0.0.1:").nth(1).unwrap();
    let port: u16 = address.split('"').next().unwrap().parse().unwrap();
    let get = async |path: &str, cookie: &str| {
        http(port, "GET", path, &[("Cookie", cookie)], "").await.unwrap()
    };
    let jobs = until("the page has the job", async || {
        let answer = get("/api/content?topic=jobs&show=all", "").await;
        answer.body.contains("train").then_some(answer)
    })
    .await;
    assert_eq!(jobs.status, 200);
    assert!(jobs.body.contains("\"proven\":true"), "{}", jobs.body);
    let energy = until("the ledger is read", async || {
        let answer = get("/api/content?topic=energy", "").await;
        answer.body.contains("\"name\":\"ada\"").then_some(answer)
    })
    .await;
    assert_eq!(energy.status, 200);

    let own = [("X-Wattle", "1")];
    let log_of = "/api/log?job=train&node=n0";
    assert_eq!(get(log_of, "").await.status, 401, "signing in is needed");
    let cancel = r#"{"job":"train"}"#;
    assert_eq!(http(port, "POST", "/api/cancel", &own, cancel).await.unwrap().status, 401);
    let foreign = http(port, "POST", "/api/cancel", &[], cancel).await.unwrap();
    assert_eq!(foreign.status, 403, "a request of another site");
    let rebound = http(port, "GET", "/", &[("Host", "evil.example")], "").await.unwrap();
    assert_eq!(rebound.status, 421, "a name of another site");
    for wrong in ["", "nonsense", "SUAKERNEL"] {
        let refused = http(port, "POST", "/api/session", &own, wrong).await.unwrap();
        assert_eq!(refused.status, 403, "{}", refused.body);
    }
    let service = std::fs::read_to_string(site.seed("placer")).unwrap();
    // The page gives a busy server up with the same status, and another text.
    let until_refused = async |key: &str, why: &str| {
        until(why, async || {
            let refused = http(port, "POST", "/api/session", &own, key).await.unwrap();
            assert_eq!(refused.status, 403, "{refused:?}");
            refused.body.contains(why).then_some(())
        })
        .await;
    };
    until_refused(&service, "not one of a person").await;

    // What a file claims is neither accepted nor logged.
    let own_key = std::fs::read_to_string(site.seed("user-ada")).unwrap();
    for claim in ["operator olga", "user bob", "monitor mona"] {
        let forged = own_key.replace("# role: user ada", &format!("# role: {claim}"));
        until_refused(&forged, "is not that of its key").await;
    }
    let log = std::fs::read_to_string(services.folder.join("web.log")).unwrap();
    assert!(!log.contains("signed in"), "{log}");

    let sign_in = async |person: &str| {
        let key = std::fs::read_to_string(site.seed(person)).unwrap();
        let answer = until("a session", async || {
            let answer = http(port, "POST", "/api/session", &own, &key).await.unwrap();
            (answer.status == 200).then_some(answer)
        })
        .await;
        let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = cookie.unwrap().to_owned();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let seed = key.lines().last().unwrap();
        assert!(!answer.head.contains(seed) && !answer.body.contains(seed));
        cookie.split(';').next().unwrap().to_owned()
    };
    let (ada, bob, olga) =
        (sign_in("user-ada").await, sign_in("user-bob").await, sign_in("operator-olga").await);
    assert!(get("/api/session", &ada).await.body.contains("\"name\":\"ada\""));
    let output = get(log_of, &ada).await;
    assert!(output.status == 200 && output.body.contains("attempt 1 on n0"), "{output:?}");
    assert_ne!(get(log_of, &bob).await.status, 200, "the output of another user");
    let set = async |cookie: &str| {
        let headers = [("X-Wattle", "1"), ("Cookie", cookie)];
        http(port, "POST", "/api/budget", &headers, r#"{"power_kw":9}"#).await.unwrap()
    };
    let refused = set(&ada).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(set(&olga).await.status, 200);
    check_submission(site, port, &ada, &bob).await;
    let headers = [("X-Wattle", "1"), ("Cookie", ada.as_str())];
    let events = follow(port, &ada).await;
    http(port, "DELETE", "/api/session", &headers, "").await.unwrap();
    assert_eq!(get(log_of, &ada).await.status, 401, "ada has signed out");
    last_event(events, "signed-out").await;

    // A revoked person is signed out, within seconds of the server's reload.
    let events = follow(port, &bob).await;
    let keys = site.folder.path().join("keys");
    let revoked = wattle(&["keys", "revoke", "user", "bob", "--folder", keys.to_str().unwrap()]);
    assert!(revoked.status.success(), "{}", error_of(&revoked));
    let configuration = std::fs::read_to_string(keys.join("server/auth.conf")).unwrap();
    site.server.reload(&configuration);
    last_event(events, "signed-out").await;
    assert!(!get("/api/session", &bob).await.body.contains("bob"), "bob is signed out");
    assert!(get("/api/session", &olga).await.body.contains("olga"), "olga is signed in");
}

/// Follows the overview as the person of a session, until the first event has arrived.
async fn follow(port: u16, cookie: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!(
        "GET /events?topic=overview HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    while !text.windows(10).any(|part| part == b"event: all") {
        assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{}", text.escape_ascii());
    }
    stream
}

/// Reads a stream of events to its end.
async fn last_event(mut stream: TcpStream, why: &str) {
    let mut text = String::new();
    let read = tokio::time::timeout(wattle_tests::PATIENCE, stream.read_to_string(&mut text)).await;
    read.expect("the stream ends").unwrap();
    assert!(text.contains(&format!("event: ended\ndata: \"{why}\"")), "{text}");
}

/// A submission on the page is made once, and belongs to the person of the session.
async fn check_submission(site: &Site, port: u16, ada: &str, bob: &str) {
    let body = r#"{"form":{"command":"sleep 86400","name":"page","gpus":"2"},"number":"1f"}"#;
    let post = async |cookie: &str, own: &str, body: &str| {
        let headers = [(own, "1"), ("Cookie", cookie)];
        http(port, "POST", "/api/submit", &headers, body).await.unwrap()
    };
    assert_eq!(post("", "X-Wattle", body).await.status, 401, "signing in is needed");
    assert_eq!(post(ada, "X-Other", body).await.status, 403, "a request of another site");
    let for_bob = r#"{"form":{"command":"sleep 86400","user":"bob"},"number":"1f"}"#;
    assert_eq!(post(ada, "X-Wattle", for_bob).await.status, 400, "no field names a user");
    let wrong = r#"{"form":{"command":"","gpus":"0"},"number":"1f"}"#;
    let refused = post(ada, "X-Wattle", wrong).await;
    assert!(refused.status == 400 && refused.body.contains("invalid number of GPUs `0`"));
    let twice = tokio::join!(post(ada, "X-Wattle", body), post(ada, "X-Wattle", body));
    for accepted in [twice.0, twice.1] {
        assert_eq!((accepted.status, accepted.body.as_str()), (200, r#"{"job":"page-1f"}"#));
    }
    let refused = post(bob, "X-Wattle", body).await;
    assert!(refused.status == 409 && refused.body.contains("exists already"), "{refused:?}");
    let listed = site.wattle_as("user-ada", &["jobs", "--json"]);
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let [job] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&job["spec"]["user"], &job["user_proven"]), (&"ada".into(), &true.into()));
    let output = site.wattle_as("user-ada", &["cancel", "page-1f"]);
    assert!(output.status.success(), "{}", error_of(&output));
}

#[tokio::test]
async fn rotated_and_revoked_keys_take_effect_after_a_reload() {
    let site = Site::new(true).await;
    let keys = site.folder.path().join("keys");
    let run = |args: &[&str]| {
        let output = wattle(&[args, &["--folder", keys.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", error_of(&output));
    };
    let reload = || {
        let configuration = std::fs::read_to_string(keys.join("server/auth.conf")).unwrap();
        site.server.reload(&configuration);
    };
    let knows = async || {
        let config = BusConfig {
            credentials_file: Some(site.seed("user-ada")),
            ca_file: Some(site.authority()),
            ..BusConfig::at(&site.server.url())
        };
        let cluster = ClusterId::new("main").unwrap();
        let patience = std::time::Duration::from_secs(3);
        Bus::connect_within(&config, cluster, "test", patience).await.is_ok()
    };
    until("the key is known", async || knows().await.then_some(())).await;
    run(&["keys", "rotate", "user", "ada"]);
    assert!(!knows().await, "the server has not loaded the new key");
    reload();
    until("the new key is known", async || knows().await.then_some(())).await;
    run(&["keys", "revoke", "user", "ada", "--previous"]);
    let seed = std::fs::read_to_string(site.seed("user-ada")).unwrap();
    run(&["keys", "revoke", "user", "ada"]);
    assert!(!site.seed("user-ada").exists());
    reload();
    std::fs::write(site.seed("user-ada"), seed).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(site.seed("user-ada"), private).unwrap();
    until("the key is revoked", async || (!knows().await).then_some(())).await;
}

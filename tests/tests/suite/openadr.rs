//! The OpenADR service: its client against a small server, and the real service between that server, the bus and the
//! placer.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use wattle_grid::instant;
use wattle_openadr::Config;
use wattle_openadr::client::Client;
use wattle_openadr::wire::Report;
use wattle_runtime::clock;
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::examples::example;
use wattle_tests::services::Services;
use wattle_tests::simulated_clock::environment;
use wattle_tests::vtn::{self, Vtn};
use wattle_tests::{program, until};

/// The example configuration for this server and secret.
pub(crate) fn configuration(vtn: &Vtn, secret: &str, nats: &str, folder: &Path) -> toml::Table {
    let file = folder.join("secret");
    std::fs::write(&file, secret).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut table = example("openadr", nats, folder).unwrap();
    for (key, value) in [
        ("url", vtn.url.as_str()),
        ("client_id", "ven"),
        ("client_secret_file", file.to_str().unwrap()),
        ("ven_name", "site-a"),
    ] {
        table.insert(key.to_owned(), value.into());
    }
    table.insert("programs".to_owned(), vec!["shed", "another"].into());
    table
}

fn client(vtn: &Vtn, secret: &str) -> (Client, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let table = configuration(vtn, secret, "nats://127.0.0.1:4222", folder.path());
    let config: Config = table.try_into().unwrap();
    config.check().unwrap();
    (Client::new(config, clock::work_time), folder)
}

fn limit(kw: u64) -> Value {
    json!([{ "type": "IMPORT_CAPACITY_LIMIT", "values": [kw] }])
}

#[test]
fn lists_are_read_page_by_page_with_a_token_that_is_renewed() {
    let vtn = Vtn::start();
    let (mut client, _folder) = client(&vtn, vtn::SECRET);
    let events = (0..120).map(|n| vtn::event(&format!("e-{n}"), "0001-01-01", "PT1H", limit(70)));
    vtn.state().events = events.collect();
    let listing = client.poll().unwrap();
    assert_eq!((listing.events.len(), listing.programs.len()), (120, 1));
    assert_eq!(listing.missing, ["another"]);
    let count =
        |part: &str| vtn.state().requests.iter().filter(|line| line.starts_with(part)).count();
    assert_eq!(
        (count("POST /auth/token"), count("GET /events?skip=100&limit=50&programID=p-1")),
        (1, 1)
    );
    client.poll().unwrap();
    assert_eq!(count("POST /auth/token"), 1, "the token is kept");
    // The server revokes the token.
    vtn.state().token = 2;
    assert_eq!(client.poll().unwrap().events.len(), 120);
    assert_eq!(count("POST /auth/token"), 2);
}

#[test]
fn answers_that_cannot_be_used_are_named_with_the_remedy() {
    let vtn = Vtn::start();
    let (mut client, _folder) = client(&vtn, vtn::SECRET);
    let long = format!("[{}1]", "1,".repeat(3 << 20));
    for (status, body, part) in [
        (200, "<html>".to_owned(), "programs: the answer is not a list in JSON"),
        (200, "{}".to_owned(), "not a list"),
        (200, String::new(), "answers with no body (status 200): check url"),
        (200, long, "answers with more than 4194304 bytes"),
        (
            403,
            r#"{"title":"no scope"}"#.to_owned(),
            "(403), it reports `no scope`: its account needs",
        ),
        (429, String::new(), "limits the requests (429): raise poll_ms"),
        (500, String::new(), "answers with status 500"),
        (301, String::new(), "answers with status 301"),
    ] {
        vtn.state().instead = Some((status, body));
        let error = client.poll().unwrap_err().reason;
        assert!(error.contains(part), "{error}: expected {part}");
    }
    vtn.state().instead = None;
    let event = |n: u32| vtn::event(&format!("e-{n}"), "0001-01-01", "PT1H", limit(70));
    vtn.state().events = (0..1_001).map(event).collect();
    assert_eq!(client.poll().unwrap_err().reason, "events: more than 1000 are listed");
    // A wrong secret, which the server repeats.
    let (mut client, _folder) = self::client(&vtn, "wr0ngsecret");
    let error = client.poll().unwrap_err().reason;
    assert!(error.contains("/auth/token") && !error.contains("wr0ngsecret"), "{error}");
}

#[test]
fn a_report_is_created_once_and_then_replaced() {
    let vtn = Vtn::start();
    let report = |value: f64| Report {
        report_name: "wattle-USAGE-0".to_owned(),
        event_id: "e-1".to_owned(),
        client_name: "site-a".to_owned(),
        payload_descriptors: Vec::new(),
        resources: vec![json!({ "resourceName": "site-a", "intervals": [{ "id": value }] })],
    };
    let stored = || {
        let state = vtn.state();
        let ids = state
            .reports
            .values()
            .map(|report| report["resources"][0]["intervals"][0]["id"].clone());
        ids.collect::<Vec<_>>()
    };
    let (mut first, _folder) = client(&vtn, vtn::SECRET);
    first.report(&report(1.0)).unwrap();
    first.report(&report(2.0)).unwrap();
    assert_eq!(stored(), [2.0]);
    // Another process finds it by its name.
    let (mut second, _folder) = client(&vtn, vtn::SECRET);
    second.report(&report(3.0)).unwrap();
    assert_eq!(stored(), [3.0]);
    // A report that the server has lost is created again, at the next try.
    vtn.state().reports.clear();
    assert!(first.report(&report(4.0)).unwrap_err().reason.contains("status 404"));
    first.report(&report(4.0)).unwrap();
    assert_eq!(stored(), [4.0]);
}

/// The service, which ends with the test.
struct Service(Child);

impl Service {
    fn start(services: &Services, folder: &Path) -> Self {
        let log =
            File::options().create(true).append(true).open(folder.join("openadr.log")).unwrap();
        let child = Command::new(program("wattle-openadr"))
            .arg("--config")
            .arg(folder.join("openadr.toml"))
            .envs([environment(&services.state_of("n0"))])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_announced_changed_and_cancelled_and_its_report_arrives() {
    let _turn = turn(Weight::Light);
    let (vtn, folder) = (Vtn::start(), tempfile::tempdir().unwrap());
    let services = Services::start(1).await;
    let table = configuration(&vtn, vtn::SECRET, &services.server.url(), folder.path());
    std::fs::write(folder.path().join("openadr.toml"), table.to_string()).unwrap();
    let service = Service::start(&services, folder.path());
    let log = || std::fs::read_to_string(folder.path().join("openadr.log")).unwrap_or_default();
    let records = || -> Vec<Value> {
        let output = services.wattle(&["event", "list", "--all", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let until_record = async |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        let found = until(what, async || records().into_iter().find(|record| wanted(record)));
        found.await
    };

    // The limit holds at once, for longer than the test.
    vtn.state().events = vec![vtn::event("e-1", "0001-01-01T00:00:00Z", "P2D", limit(50))];
    let is_ours = |record: &Value| record["event"]["event"] == "openadr-e-1-0";
    let record = until_record("the event is announced", &is_ours).await;
    assert_eq!(record["target_mw"], 50_000_000, "{record}");
    // The command's clock may be an instant behind the start.
    let shown = || {
        let output = services.wattle(&["event", "list"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let parts = ["openadr-e-1-0 is active: at most 50 kW", "openadr shed"];
    let is_active = async || parts.iter().all(|part| shown().contains(part)).then_some(());
    until("the event is active", is_active).await;
    let length = |record: &Value| {
        record["end_us"].as_u64().unwrap() - record["event"]["start_us"].as_u64().unwrap()
    };
    assert_eq!(length(&record), 2 * 86_400_000_000);

    // The server extends it, and requests the energy of five minutes.
    // Later than the first whole minute in which the node was metered.
    let from = services.now() + std::time::Duration::from_secs(120);
    let mut usage = vtn::event("u-1", &instant::shown(from), "PT5M", json!([]));
    usage["reportDescriptors"] = json!([{ "payloadType": "USAGE" }]);
    vtn.state().events = vec![vtn::event("e-1", "0001-01-01T00:00:00Z", "P3D", limit(50)), usage];
    let is_longer = |record: &Value| is_ours(record) && length(record) == 3 * 86_400_000_000;
    until_record("the event is changed", &is_longer).await;
    let report =
        until("the report arrives", async || vtn.state().reports.get("r-1").cloned()).await;
    assert_eq!(
        (&report["reportName"], &report["eventID"]),
        (&json!("wattle-USAGE-0"), &json!("u-1"))
    );
    let kwh = report["resources"][0]["intervals"][0]["payloads"][0]["values"][0].as_f64().unwrap();
    // Two GPUs and their host for five minutes.
    assert!((0.001..0.2).contains(&kwh), "{report}");

    // After a kill it announces nothing again, and the same report is replaced.
    drop(service);
    let _service = Service::start(&services, folder.path());
    let replaced =
        async || vtn.state().requests.iter().any(|line| line == "PUT /reports/r-1").then_some(());
    until("the report is sent again", replaced).await;
    assert_eq!((records().len(), vtn.state().reports.len()), (1, 1), "{}", log());

    // The server deletes the events.
    vtn.state().events.clear();
    let is_cancelled = |record: &Value| is_ours(record) && record["closed"]["how"] == "cancelled";
    until_record("the event is cancelled", &is_cancelled).await;
    assert!(!log().contains(vtn::SECRET) && !log().contains("token-"), "{}", log());
    let log = log();
    assert!(log.contains("openadr-e-1-0 announced: at most 50 kW from"), "{log}");
}

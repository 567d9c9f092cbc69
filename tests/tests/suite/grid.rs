//! A provider of carbon intensity on the whole system: jobs wait for its forecast, a provider that hangs delays
//! nothing, and the fallback is shown.
//!
//! The provider is a local server that answers as the documentation of Electricity Maps describes; the real one
//! was not available.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::services::Services;
use wattle_tests::{program, until};

/// Length of a step of the intensity, system time.
const STEP_S: u64 = 300;
/// Number of steps with a high intensity, and of all steps of the forecast.
const HIGH: u64 = 3;
const STEPS: u64 = 5;

/// A server like Electricity Maps.
struct Provider {
    url: String,
    /// Begin of the first step, which the test sets; before, there are no values.
    begins: Arc<Mutex<Option<Timestamp>>>,
    /// Whether requests stay without an answer.
    hangs: Arc<AtomicBool>,
}

fn point(begins: Timestamp, step: u64) -> Value {
    let seconds = begins.as_us() / 1_000_000 + step * STEP_S;
    let grams = if step < HIGH { 500 } else { 100 };
    value(grams, seconds)
}

fn value(grams: u32, seconds: u64) -> Value {
    let at = wattle_grid::instant::shown(Timestamp::from_s(seconds));
    json!({ "zone": "DE", "carbonIntensity": grams, "datetime": at, "isEstimated": false })
}

/// The hours of the day before, clean ones.
fn history(begins: Timestamp) -> Value {
    let begins = begins.as_us() / 1_000_000;
    let hours: Vec<Value> = (1..=24).map(|hour| value(100, begins - 3_600 * hour)).collect();
    json!({ "zone": "DE", "history": hours })
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let provider = Self { url, begins: Arc::default(), hangs: Arc::default() };
        let (begins, hangs) = (provider.begins.clone(), provider.hangs.clone());
        std::thread::spawn(move || {
            // Connections that hang stay open until the test ends.
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                let begins = *begins.lock().unwrap();
                if hangs.load(Ordering::SeqCst) {
                    open.push(stream);
                } else {
                    serve(stream, begins);
                }
            }
        });
        provider
    }
}

fn serve(mut stream: TcpStream, begins: Option<Timestamp>) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or("");
    let is_authorized = head.to_ascii_lowercase().contains("auth-token: t0ken\r\n");
    let (status, body) = match begins {
        _ if !is_authorized => (401, json!({ "message": "recorded refusal" })),
        None => (503, json!({})),
        // The present value is that of the first step; the forecast has all of them.
        Some(begins) if path.contains("/latest") => (200, point(begins, 0)),
        Some(begins) if path.contains("/forecast") => {
            let points: Vec<Value> = (0..STEPS).map(|step| point(begins, step)).collect();
            (200, json!({ "zone": "DE", "forecast": points }))
        }
        Some(begins) => (200, history(begins)),
    };
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let _ = stream.write_all(text.as_bytes());
}

fn shown(services: &Services) -> Value {
    let output = services.wattle(&["budget", "show", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

async fn until_in_use(services: &Services, source: &str) -> Value {
    until(&format!("the source `{source}`"), async || {
        let shown = shown(services);
        (shown["grid"]["carbon"]["in_use"] == source).then_some(shown)
    })
    .await
}

/// The status is published once per period, so it follows a change of the source.
async fn until_intensity(services: &Services, mg_per_kwh: u64) {
    until(&format!("{mg_per_kwh} mg/kWh in the status"), async || {
        (shown(services)["status"]["intensity_mg_per_kwh"] == mg_per_kwh).then_some(())
    })
    .await;
}

fn text(output: &std::process::Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(error))
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_follow_a_provider_and_its_fallback_is_shown() {
    let _turn = turn(Weight::Long);
    let (folder, provider) = (tempfile::tempdir().unwrap(), Provider::start());
    let secret = folder.path().join("credential");
    std::fs::write(&secret, "t0ken\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let placer = format!(
        "policy = \"greenflow\"\n[grid.carbon]\nprovider = \"electricity-maps\"\nzone = \"DE\"\n\
         url = \"{}\"\ncredential_file = \"{}\"\nfallback_g_per_kwh = 380\npoll_s = 1\ntimeout_ms = 500\n\
         hold_s = 0\nalarm_after_s = 60\n[grid.price]\nfallback_per_kwh = 0.21\n",
        provider.url,
        secret.display()
    );
    let mut services = Services::start_with(2, placer.parse().unwrap()).await;

    // Nothing has been read: the constant is in use, and the cause is shown.
    until_in_use(&services, "static").await;
    until_intensity(&services, 380_000).await;
    let set = services.wattle(&["budget", "set", "--carbon-kg", "30"]);
    assert!(set.status.success(), "{}", text(&set));

    *provider.begins.lock().unwrap() = Some(services.now());
    until_in_use(&services, "live").await;
    until_intensity(&services, 500_000).await;
    let shown_text = text(&services.wattle(&["budget", "show"]));
    assert!(
        shown_text.contains("500 g/kWh (electricity-maps DE, average, measured)"),
        "{shown_text}"
    );
    assert!(shown_text.contains("0.21 EUR/kWh (configuration, static)"), "{shown_text}");

    // A job with slack waits for the clean hours of the forecast, one without starts at once.
    let simjob = program("wattle-simjob").display().to_string();
    let job = |name: &str, slack: &[&str]| {
        let mut args =
            vec!["submit", "--job", name, "--gpus", "1", "--workload", "resnet50-imagenet-b128"];
        args.extend(slack);
        args.extend([
            "--",
            simjob.as_str(),
            "--workload",
            "resnet50-imagenet-b128",
            "--steps",
            "500000",
        ]);
        let output = services.wattle(&args);
        assert!(output.status.success(), "{}", text(&output));
        wattle_common::JobId::new(name).unwrap()
    };
    let patient = job("patient", &["--slack", "6h"]);
    let urgent = job("urgent", &[]);
    services
        .until_job(&urgent, "the job without slack runs", |r| r.phase == JobPhase::Running)
        .await;
    let waiting = services.record(&patient).await.unwrap();
    assert_eq!(waiting.phase, JobPhase::Queued, "high carbon intensity");

    // The provider hangs from now on: its forecast still ends the wait, and another job starts meanwhile.
    provider.hangs.store(true, Ordering::SeqCst);
    until_in_use(&services, "last-known").await;
    let third = job("third", &[]);
    services.until_job(&third, "planning continues", |r| r.phase == JobPhase::Running).await;
    services.until_job(&patient, "the clean hour has come", |r| r.phase == JobPhase::Running).await;
    until_intensity(&services, 100_000).await;
    services.until_alarm("the last known values are in use").await;

    // The forecast ends.
    until_in_use(&services, "static").await;
    until_intensity(&services, 380_000).await;
    let shown_text = text(&services.wattle(&["budget", "show"]));
    for part in
        ["380 g/kWh (static value, no current value of electricity-maps DE)", "does not answer"]
    {
        assert!(shown_text.contains(part), "{part}: {shown_text}");
    }
    let doctor = services.wattle(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["about"] == "grid"), "{report}");
    let energy = until("the ledger has emissions", async || {
        let energy = text(&services.wattle(&["energy"]));
        energy.contains("CO2 ").then_some(energy)
    })
    .await;
    assert!(energy.contains("intensity: static value") && energy.contains("cost 0."), "{energy}");

    // After a kill the placer continues with the stored values; no secret is in a log.
    services.kill_9("placer", wattle_tests::services::CONTROL);
    services.run("placer", wattle_tests::services::CONTROL);
    services.until_ordered().await;
    assert_eq!(shown(&services)["set"]["budget"]["carbon_ug"], 30_000_000_000_u64);
    assert!(!services.logs().contains("t0ken"));
}

//! A provider of carbon intensity on the whole system: jobs wait for its forecast, a provider that hangs delays
//! nothing, and the fallback is shown.
//!
//! The provider is a local server that answers as the documentation of Electricity Maps describes; the real one
//! was not available.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_runtime::clock::FileClock;
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::services::Services;
use wattle_tests::{program, until};

/// Length of a step of the intensity, system time, seconds.
const STEP_S: u64 = 300;
/// Number of steps with a high intensity, and of all steps of the forecast.
const HIGH: u64 = 3;
const STEPS: u64 = 5;

/// What the provider's values follow from.
struct Values {
    clock: FileClock,
    /// Begin of the present step with all values; absent: they are high now and later, whenever they are read.
    begins: Option<Timestamp>,
}

/// A server like Electricity Maps.
struct Provider {
    url: String,
    /// Absent: there are no values.
    values: Arc<Mutex<Option<Values>>>,
    /// Answered requests of the history, the last request of a read.
    reads: Arc<AtomicU32>,
    /// Whether requests stay without an answer.
    hangs: Arc<AtomicBool>,
}

impl Values {
    fn begin(&self) -> u64 {
        self.begins.map_or_else(|| seconds(self.clock.now()) / STEP_S * STEP_S, seconds)
    }

    fn point(&self, step: u64) -> Value {
        let grams = if step < HIGH || self.begins.is_none() { 500 } else { 100 };
        value(grams, self.begin() + step * STEP_S)
    }

    /// The hours of the day before, clean ones.
    fn history(&self) -> Value {
        let begin = self.begin();
        let hours: Vec<Value> = (1..=24).map(|hour| value(100, begin - 3_600 * hour)).collect();
        json!({ "zone": "DE", "history": hours })
    }
}

/// The whole seconds of `at`; the provider's values begin at whole seconds.
fn seconds(at: Timestamp) -> u64 {
    at.as_us() / 1_000_000
}

fn value(grams: u32, begin_s: u64) -> Value {
    let at = wattle_grid::instant::shown(Timestamp::from_s(begin_s));
    json!({ "zone": "DE", "carbonIntensity": grams, "datetime": at, "isEstimated": false })
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let provider =
            Self { url, values: Arc::default(), reads: Arc::default(), hangs: Arc::default() };
        let Self { values, reads, hangs, .. } = &provider;
        let (values, reads, hangs) = (values.clone(), reads.clone(), hangs.clone());
        std::thread::spawn(move || {
            // Connections that hang stay open until the test ends.
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                if hangs.load(Ordering::SeqCst) {
                    open.push(stream);
                } else {
                    serve(stream, values.lock().unwrap().as_ref(), &reads);
                }
            }
        });
        provider
    }

    /// Sets the values, and waits until the placer has read them all.
    async fn set(&self, values: Values) {
        *self.values.lock().unwrap() = Some(values);
        let before = self.reads.load(Ordering::SeqCst);
        // The first one may have begun before.
        let is_read = async || (self.reads.load(Ordering::SeqCst) >= before + 2).then_some(());
        until("the provider's values are read", is_read).await;
    }
}

fn serve(mut stream: TcpStream, values: Option<&Values>, reads: &AtomicU32) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or("");
    let is_authorized = head.to_ascii_lowercase().contains("auth-token: t0ken\r\n");
    let (status, body) = match values {
        _ if !is_authorized => (401, json!({ "message": "recorded refusal" })),
        None => (503, json!({})),
        // The present value is that of the first step; the forecast has all of them.
        Some(values) if path.contains("/latest") => (200, values.point(0)),
        Some(values) if path.contains("/forecast") => {
            let points: Vec<Value> = (0..STEPS).map(|step| values.point(step)).collect();
            (200, json!({ "zone": "DE", "forecast": points }))
        }
        Some(values) => (200, values.history()),
    };
    let is_last = path.contains("/history");
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    if stream.write_all(text.as_bytes()).is_ok() && is_last {
        reads.fetch_add(1, Ordering::SeqCst);
    }
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

    let clock = || FileClock::open(&services.state_of("n0")).unwrap();
    provider.set(Values { clock: clock(), begins: None }).await;
    until_in_use(&services, "live").await;
    until_intensity(&services, 500_000).await;
    let shown_text = text(&services.wattle(&["budget", "show"]));
    assert!(
        shown_text.contains("500 g/kWh (electricity-maps DE, average, measured)"),
        "{shown_text}"
    );
    assert!(shown_text.contains("0.21 EUR/kWh (configuration, static)"), "{shown_text}");

    // A job with slack waits for the clean hours of the forecast, one without starts at once. No time passes until
    // both are submitted and the provider hangs: a machine of any speed reads the forecast before its clean hours.
    let held = services.hold();
    // The provider states whole seconds.
    let begins = Timestamp::from_s(seconds(services.now()));
    provider.set(Values { clock: clock(), begins: Some(begins) }).await;
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
    // Its forecast still ends the wait, and another job starts meanwhile.
    provider.hangs.store(true, Ordering::SeqCst);
    let third = job("third", &[]);
    drop(held);
    for job in [&urgent, &third, &patient] {
        services.until_job(job, "it runs", |record| record.phase == JobPhase::Running).await;
    }
    let started = services.record(&patient).await.unwrap().started_at_us.unwrap();
    let clean = HIGH * STEP_S..STEPS * STEP_S;
    assert!(
        clean.contains(&started.since(begins).as_secs()),
        "{started:?} of {begins:?}: the clean hours"
    );
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

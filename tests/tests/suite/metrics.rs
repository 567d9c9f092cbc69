//! The metrics: names, documentation, dashboards and alert rules agree, every service of `wattle up` has an
//! endpoint, and a real Prometheus has data for each panel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wattle_common::ClusterId;
use wattle_common::id::PredictorId;
use wattle_launcher::shell::metrics::LauncherMetrics;
use wattle_openadr::shell::metrics::OpenAdrMetrics;
use wattle_placer::service::metrics::PlacerMetrics;
use wattle_power_agent::shell::metrics::PowerMetrics;
use wattle_predictor::shell::metrics::PredictorMetrics;
use wattle_profiler::shell::metrics::ProfilerMetrics;
use wattle_registry::service::metrics::RegistryMetrics;
use wattle_runtime::metrics::{Family, Kind, Metrics};
use wattle_runtime::testing::{self, skipped};
use wattle_slurm::Level;
use wattle_slurm::shell::metrics::SlurmMetrics;
use wattle_tests::prometheus::{Prometheus, addresses, get, installed};
use wattle_tests::{PATIENCE, System, repository, until};
use wattle_web::shell::metrics::WebMetrics;

const DASHBOARDS: [&str; 2] = ["deploy/grafana/wattle.json", "deploy/grafana/wattle-slurm.json"];
const ALERTS: &str = "deploy/prometheus/alerts.yml";
/// Time in which every panel has data, beyond that of the start.
const PANELS_WITHIN: Duration = wattle_runtime::testing::HANG;

fn families(service: &str, register: impl FnOnce(&Metrics)) -> (String, Vec<Family>) {
    let metrics = Metrics::new(service, &ClusterId::new("main").unwrap(), None);
    register(&metrics);
    (service.to_owned(), metrics.families())
}

/// The families of each service; `all` has those that every service has.
fn exported() -> BTreeMap<String, Vec<Family>> {
    let name = PredictorId::new("physical").unwrap();
    let services = [
        families("all", |_| {}),
        families("profiler", |m| drop(ProfilerMetrics::new(m, true))),
        families("power-agent", |m| drop(PowerMetrics::new(m))),
        families("launcher", |m| drop(LauncherMetrics::new(m))),
        families("placer", |m| drop(PlacerMetrics::new(m))),
        families("registry", |m| drop(RegistryMetrics::new(m))),
        families("predictor", |m| drop(PredictorMetrics::new(m, &name))),
        families("web", |m| drop(WebMetrics::new(m))),
        families("openadr", |m| drop(OpenAdrMetrics::new(m))),
        families("slurm", |m| drop(SlurmMetrics::new(m, Level::Advise))),
    ];
    let mut services = BTreeMap::from(services);
    let common = services["all"].clone();
    for (service, families) in &mut services {
        if service != "all" {
            families.retain(|family| !common.contains(family));
        }
    }
    services
}

/// The rows of the tables in docs/metrics.md.
fn rows(families: &[Family]) -> Vec<String> {
    let row = |family: &Family| {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind) = (family.name, family.kind.as_str());
        format!("| `{name}` | {kind} | {} | {} |", labels.join(", "), family.help)
    };
    families.iter().map(row).collect()
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let page = std::fs::read_to_string(repository("docs/metrics.md")).unwrap();
    let (mut expected, mut missing) = (Vec::new(), String::new());
    for (service, families) in exported() {
        let rows = rows(&families);
        let table = rows.join("\n");
        if !page.contains(&format!("\n{table}\n\n")) {
            missing.push_str(&format!("{service}:\n{table}\n"));
        }
        expected.extend(rows);
    }
    assert!(missing.is_empty(), "docs/metrics.md lacks these rows in this order:\n{missing}");
    let is_row = |line: &&str| ["| `wattle_", "| `DCGM_"].iter().any(|word| line.starts_with(word));
    for row in page.lines().filter(is_row) {
        assert!(expected.iter().any(|line| line == row), "no service exports this: {row}");
    }
}

/// The names of metrics in a query.
fn names(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("wattle_") || word.starts_with("DCGM_")).collect()
}

/// The queries of a dashboard with the titles of their panels.
fn queries(file: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository(file)).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let title = panel["title"].as_str().unwrap().to_owned();
            queries.push((title, target["expr"].as_str().unwrap().to_owned()));
        }
    }
    assert!(!queries.is_empty(), "{file} has no query");
    queries
}

/// The expressions of the alert rules.
fn alerts() -> Vec<String> {
    let text = std::fs::read_to_string(repository(ALERTS)).unwrap();
    let mut alerts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(expression) = line.trim_start().strip_prefix("expr: ") else { continue };
        if expression == ">-" {
            let rest = lines.by_ref().take_while(|line| !line.trim_start().starts_with("for:"));
            alerts.push(rest.map(str::trim).collect::<Vec<_>>().join(" "));
        } else {
            alerts.push(expression.to_owned());
        }
    }
    let rules = text.lines().filter(|line| line.trim_start().starts_with("- alert: ")).count();
    assert_eq!(alerts.len(), rules, "one expression for each rule");
    alerts
}

#[test]
fn dashboards_and_alert_rules_name_exported_metrics() {
    let mut exported_names = BTreeSet::new();
    for family in exported().into_values().flatten() {
        exported_names.insert(family.name.to_owned());
        if family.kind == Kind::Histogram {
            exported_names
                .extend(["bucket", "sum", "count"].map(|part| format!("{}_{part}", family.name)));
        }
    }
    let panels = DASHBOARDS.into_iter().flat_map(queries);
    let rules = alerts().into_iter().map(|expression| (ALERTS.to_owned(), expression));
    for (place, query) in panels.chain(rules) {
        let names = names(&query);
        assert!(!names.is_empty() || query.contains("up{"), "{place}: {query}");
        for name in names {
            assert!(exported_names.contains(name), "{place}: no service exports {name}");
        }
    }
}

/// What promtool prints about a text.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let program = installed("promtool")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    for (verb, what, file) in [
        ("check", "rules", ALERTS),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("test", "rules", "deploy/prometheus/alerts_test.yml"),
    ] {
        let path = repository(file);
        match promtool(&[verb, what, path.to_str().unwrap()], "") {
            Some((succeeded, text)) => assert!(succeeded, "{file}: {text}"),
            None => skipped("promtool is not installed"),
        }
    }
}

/// The samples of a text by name.
fn sampled(text: &str) -> BTreeSet<&str> {
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples.map(|line| line.split(['{', ' ']).next().unwrap_or(line)).collect()
}

/// Compares the endpoint of a service with what the service registers, and checks it with promtool.
fn check_endpoint(name: &str, address: &str, exported: &BTreeMap<String, Vec<Family>>) {
    let text = get(address, "/metrics").unwrap();
    let service =
        if name.starts_with("predictor") { "predictor" } else { name.trim_end_matches("-n0") };
    let known: Vec<&Family> = exported[service].iter().chain(&exported["all"]).collect();
    let samples = sampled(&text);
    assert!(samples.contains("wattle_build_info"), "{name}: {text}");
    for sample in samples {
        let is_known = |family: &&Family| {
            let part = sample.strip_prefix(family.name);
            part.is_some_and(|part| matches!(part, "" | "_bucket" | "_sum" | "_count"))
        };
        assert!(known.iter().any(is_known), "{name}: {sample} is not registered");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let service = format!("service=\"{service}\"");
        assert!(line.contains(&service) && line.contains("cluster=\"test\""), "{name}: {line}");
    }
    assert!(text.contains("wattle_bus_connected{") && !text.contains("job="), "{name}: {text}");
    let Some((_, complaints)) = promtool(&["check", "metrics"], &text) else {
        return skipped("promtool is not installed");
    };
    // The label modelName of dcgm-exporter.
    let accepted = |line: &&str| line.starts_with("DCGM_") && line.contains("camelCase");
    let complaints: Vec<&str> = complaints.lines().filter(|line| !accepted(line)).collect();
    assert!(complaints.is_empty(), "{name}: {complaints:?}");
}

/// The queries of the panels of NVIDIA's dashboard 12239 whose metrics NVML has, of
/// <https://github.com/NVIDIA/dcgm-exporter/blob/main/grafana/dcgm-exporter-dashboard.json>. Its two others
/// need the profiling counters of DCGM.
const DASHBOARD_12239: [&str; 6] = [
    r#"max(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, uuid)"#,
    r#"avg(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$Hostname", gpu=~"$gpu"})"#,
    r#"max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, uuid)"#,
    r#"sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (gpu))"#,
    r#"max(DCGM_FI_DEV_SM_CLOCK{Hostname=~"$Hostname", gpu=~"$gpu"} * 1000000) by (Hostname, UUID, gpu)"#,
    r#"max(DCGM_FI_DEV_FB_USED{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"#,
];
/// The power limits of dcgm-exporter since version 4.8.
const POWER_LIMITS: [&str; 2] =
    ["DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"];

/// The value of a variable of the dashboard when all are selected, as Grafana inserts it: `(0|1)`.
fn variable(prometheus: &Prometheus, query: &str, label: &str) -> Option<String> {
    let samples = prometheus.query(query)?;
    let values: BTreeSet<&str> =
        samples.iter().filter_map(|sample| sample["metric"][label].as_str()).collect();
    let values: Vec<&str> = values.into_iter().collect();
    (!values.is_empty()).then(|| format!("({})", values.join("|")))
}

/// Selects all hosts and GPUs of dashboard 12239, as its variables do, and returns the queries without data.
fn nvidias_queries_without_data(prometheus: &Prometheus, gpus: usize) -> Option<Vec<String>> {
    let host = variable(prometheus, "DCGM_FI_DEV_FB_FREE", "Hostname")?;
    let of_host = format!("DCGM_FI_DEV_FB_FREE{{Hostname=~\"{host}\"}}");
    let gpu = variable(prometheus, &of_host, "gpu")?;
    let has_data = |query: &str| {
        let query = query.replace("$Hostname", &host).replace("$gpu", &gpu);
        let samples = prometheus.query(&query).unwrap_or_default();
        samples.len() == if query.contains(" by (Hostname") { gpus } else { 1 }
    };
    let limits = POWER_LIMITS.map(|name| format!("max({name}) by (Hostname, gpu)"));
    let all = DASHBOARD_12239.into_iter().map(str::to_owned).chain(limits);
    Some(all.filter(|query| !has_data(query)).collect())
}

/// The queries that have had no data yet.
fn without_data(prometheus: &Prometheus, left: Vec<(String, String)>) -> Vec<(String, String)> {
    left.into_iter()
        .filter(|(_, query)| {
            let query = query.replace("$cluster", "test").replace("$__rate_interval", "1m");
            let found = prometheus.query(&query).unwrap_or_default();
            // A quantile of an empty distribution is NaN.
            !found.iter().any(|sample| sample["value"][1].as_str().is_some_and(|v| v != "NaN"))
        })
        .collect()
}

fn start_prometheus(folder: &Path, up: &Path) -> Option<Prometheus> {
    let program = installed("prometheus")?;
    Some(Prometheus::start(&program, folder, up))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_has_an_endpoint_and_every_panel_has_data() {
    let carbon = repository("deploy/demo/carbon.csv");
    let carbon = carbon.to_str().unwrap();
    let up = ["--simulated", "1x4:v100", "--rate", "60", "--carbon", carbon, "--power-kw", "9.5"];
    let mut system = System::up(&up).await;
    let folder = tempfile::tempdir().unwrap();
    let prometheus = start_prometheus(folder.path(), system.folder());
    let services = [
        "launcher-n0",
        "placer",
        "power-agent-n0",
        "predictor",
        "predictor-statistical",
        "profiler-n0",
        "registry",
        "web",
    ];
    let found = until("every service has written its address", async || {
        let found = addresses(system.folder());
        (found.len() == services.len()).then_some(found)
    })
    .await;
    let named: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, services);
    // A short job, so that ends are counted; it runs through some steps of the aim, which last a minute. Two run on.
    system.submit("short", &[], &["--workload", "eaco-resnet50", "--steps", "300"]);
    for job in ["one", "two"] {
        system.submit(job, &[], &["--workload", "eaco-resnet50", "--steps", "1000000"]);
    }
    let exported = exported();
    for (name, address) in &found {
        check_endpoint(name, address, &exported);
        let list = get(address, "/").unwrap();
        assert!(list.contains("wattle_build_info{version} gauge: "), "{list}");
    }
    let Some(prometheus) = prometheus else {
        skipped("prometheus is not installed: the panels are not compared with data");
        return;
    };
    let shown = testing::until(PATIENCE, async || {
        nvidias_queries_without_data(&prometheus, 4).filter(Vec::is_empty)
    });
    let left = || nvidias_queries_without_data(&prometheus, 4);
    assert!(shown.await.is_some(), "dashboard 12239 has no data for {:?}", left());
    // The slowdown is estimated until a budget with a window sets the price.
    let slowdown: fn(&(String, String)) -> bool = |(title, _)| title.starts_with("Slowdown");
    let (grid, all): (Vec<_>, Vec<_>) =
        queries(DASHBOARDS[0]).into_iter().partition(|(_, query)| query.contains("wattle_grid_"));
    let (mut first, mut then): (Vec<_>, Vec<_>) = all.into_iter().partition(slowdown);
    assert_eq!(first.len(), 1);
    let shown = testing::until(PATIENCE, async || {
        first = without_data(&prometheus, std::mem::take(&mut first));
        first.is_empty().then_some(())
    });
    assert!(shown.await.is_some(), "no data: {first:?}\n{}", system.logs());
    let set = system.wattle(&["budget", "set", "--energy-kwh", "120", "--power-kw", "9.5"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    // Short jobs one after the other: starts and ends continue, so that their rates have data.
    let mut shorts = Vec::new();
    let shown = testing::until(PANELS_WITHIN, async || {
        then = without_data(&prometheus, std::mem::take(&mut then));
        let has_ended = match shorts.last() {
            Some(job) => system.record(job).await.is_some_and(|record| record.phase.is_final()),
            None => true,
        };
        if has_ended && !then.is_empty() {
            let training = ["--workload", "eaco-resnet50", "--steps", "20"];
            shorts.push(system.submit(&format!("more-{}", shorts.len()), &[], &training));
        }
        then.is_empty().then_some(())
    });
    assert!(shown.await.is_some(), "no data: {then:#?}\n{}", system.logs());
    for (_, query) in queries(DASHBOARDS[1]).into_iter().chain(grid) {
        // Without Slurm or a provider of prices there is no data, but the query is valid.
        assert!(prometheus.query(&query.replace("$__rate_interval", "1m")).is_some(), "{query}");
    }
    for expression in alerts() {
        assert!(prometheus.query(&expression).is_some(), "{expression}");
    }
    // A scrape of a busy service may take longer than Prometheus waits.
    until("every service is up for Prometheus", async || {
        (prometheus.query("up == 1")?.len() == services.len()).then_some(())
    })
    .await;
    assert!(system.end().await.success());
}

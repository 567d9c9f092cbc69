//! `wattle doctor` on a running system, and what any NATS tool sees of the services, streams and buckets.

use std::time::Duration;

use serde_json::Value;
use wattle_common::subject::{Bucket, StreamName};
use wattle_tests::{System, reflects, until};

/// The findings of `wattle doctor` about the cluster; those about this machine depend on the machine.
fn findings(system: &System) -> (Option<i32>, Vec<String>) {
    let output = system.wattle(&["doctor", "--json", "--config-dir", "/nonexistent"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["findings"].as_array().unwrap().iter();
    let of_cluster = found.filter(|finding| {
        ["server", "clock", "services", "node"].iter().any(|about| finding["about"] == *about)
    });
    let lines = of_cluster.map(|finding| {
        assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
        finding["finding"].as_str().unwrap().to_owned()
    });
    (output.status.code(), lines.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_stopped_service_and_tools_see_every_service_and_stream() {
    let system = System::up(&["--simulated", "1x1:v100", "--rate", "60"]).await;
    // The reports reflect the orders, so every service of the node has begun its work.
    reflects::orders(&system.bus, "n0").await;
    until("nothing is found", async || findings(&system).1.is_empty().then_some(())).await;

    let profiler = system.processes("wattle-profiler")[0];
    wattle_tests::kill(profiler, "STOP");
    until("the stopped profiler is found", async || {
        let (code, found) = findings(&system);
        let expected =
            "the profiler of n0 does not answer: power and speed of its jobs are not known";
        let is_found = found == [expected];
        assert!(!is_found || code == Some(1));
        is_found.then_some(())
    })
    .await;
    wattle_tests::kill(profiler, "CONT");
    until("nothing is found again", async || findings(&system).1.is_empty().then_some(())).await;

    let output = system.wattle(&["jobs"]);
    assert!(output.status.success());
    let expected =
        ["launcher", "placer", "power-agent", "predictor", "profiler", "registry", "web"]
            .map(|name| format!("wattle-{name}"));
    // A service may answer later than such a request waits.
    let services = until("these services answer", async || {
        let services = system.bus.all_statistics(Duration::from_millis(500)).await.ok()?;
        let mut names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        (names == expected).then_some(services)
    })
    .await;
    for service in &services {
        assert!(service.description.as_ref().is_some_and(|text| text.len() > 10), "{service:?}");
        assert!(
            !service.version.is_empty() && service.metadata.contains_key("host"),
            "{service:?}"
        );
        for endpoint in &service.endpoints {
            let data = endpoint.process().unwrap_or_else(|| panic!("{service:?}"));
            assert!(data.bus_connections > 0, "{service:?}");
        }
    }
    let placer = services.iter().find(|service| service.name == "wattle-placer").unwrap();
    let read = placer.endpoints.iter().find(|endpoint| endpoint.name == "job-requested").unwrap();
    assert!(read.requests > 0 && read.mean_ns > 0, "{read:?}");

    let buckets = Bucket::ALL.map(|bucket| format!("KV_{}", bucket.name(system.bus.cluster())));
    let streams = StreamName::ALL.map(|stream| stream.name(system.bus.cluster()));
    for stream in buckets.into_iter().chain(streams) {
        let text = system.bus.stream_description(&stream).await.unwrap();
        assert!(text.as_ref().is_some_and(|text| text.len() > 10), "{stream}: {text:?}");
    }
}

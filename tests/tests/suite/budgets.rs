//! Budgets on the whole system: a power limit holds the GPUs, what was set outlives the placer, and
//! what cannot be kept to is refused.

use wattle_common::job::JobPhase;
use wattle_common::{Power, Timestamp};
use wattle_tests::{System, reflects, until};

/// The caps of the node's GPUs, as its power agent reports them.
fn caps(system: &System) -> Vec<Power> {
    let nodes = system.json(&["nodes", "--json"]);
    let gpus = nodes[0]["power"]["gpus"].as_array().cloned().unwrap_or_default();
    gpus.iter().filter_map(|gpu| gpu["cap_mw"].as_u64()).map(Power::from_mw).collect()
}

#[tokio::test]
async fn power_limit_and_spending_survive_a_placer_restart() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    assert_eq!(system.wattle(&["budget", "show"]).status.code(), Some(0));
    infeasible_budgets_are_refused(&system);
    let unlimited = caps(&system);
    let set = ["budget", "set", "--power-kw", "0.65", "--energy-kwh", "900", "--json"];
    let set = system.json(&set);
    assert_eq!(set["result"], "stored");
    // The status of a planning round from before is not bound by the limit.
    let reflected = reflects::budget(&system.bus, &set).await;

    let training = [
        "--workload",
        "resnet50-imagenet-b128",
        "--steps",
        "100000000",
        "--steps-per-epoch",
        "10000",
    ];
    let hot = system.submit("hot", &["--gpus", "2"], &training);
    system.until_job(&hot, "it runs", |r| r.phase == JobPhase::Running).await;
    until("the caps of both GPUs are below those without a limit", async || {
        let held = caps(&system);
        (held.len() == 2 && held.iter().zip(&unlimited).all(|(cap, free)| cap < free)).then_some(())
    })
    .await;
    let spent = async |what: &str, since: Timestamp, least: u64| {
        until(what, async || {
            let shown = system.json(&["budget", "show", "--json"]);
            let spent = shown["status"]["energy_mj"].as_u64()?;
            let expected = shown["status"]["power_mw_expected"].as_u64()?;
            assert!(expected <= 650_000, "{shown}");
            let at = shown["status"]["at_us"].as_u64()?;
            (spent > least && at > since.as_us()).then_some(spent)
        })
        .await
    };
    let before = spent("the ledger counts", reflected.at_us, 0).await;

    // After a kill the placer continues the window.
    let old = system.processes("wattle-placer");
    system.kill_9("wattle-placer");
    let killed = system.now();
    until("a placer runs again", async || {
        let new = system.processes("wattle-placer");
        (new.len() == 1 && new != old).then_some(())
    })
    .await;
    // A status of the new placer.
    spent("the window continues", killed, before).await;
    let shown = system.json(&["budget", "show", "--json"]);
    assert_eq!(shown["set"]["budget"]["power_mw"], 650_000, "{shown}");
    assert_eq!(shown["status"]["window_from_us"], reflected.window_from_us.as_us(), "{shown}");
    assert_eq!(shown["status"]["observed_generation"], set["generation"], "{shown}");

    // Without a limit the GPUs have their default caps again.
    let cleared = system.json(&["budget", "clear", "--wait", "--json"]);
    assert!(reflects::generation(&cleared) > reflects::generation(&set), "{cleared}");
    until("the caps are gone", async || (caps(&system) == unlimited).then_some(())).await;
    assert!(system.end().await.success());
}

fn infeasible_budgets_are_refused(system: &System) {
    for (args, expected) in [
        (&["budget", "set"][..], "--energy-kwh"),
        (&["budget", "set", "--carbon-kg", "3"], "--carbon FILE"),
        (&["budget", "set", "--energy-kwh", "0"], "energy"),
        (&["budget", "set", "--energy-kwh", "5", "--window", "1s"], "window"),
        (&["budget", "set", "--carbon-kg", "3", "--carbon", "/no/such.csv"], "/no/such.csv"),
    ] {
        let output = system.wattle(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let shown = system.json(&["budget", "show", "--json"]);
    assert!(shown["set"].is_null(), "{shown}");
}

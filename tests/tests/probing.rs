//! Probing on the whole system: the predictor proposes a cap, the placer lets the job be looked at
//! under it, the profiler's window comes back, and the surface is surer than before.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use wattle_common::Power;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::subject::Bucket;
use wattle_tests::{System, until};

/// Mean width of the intervals of speed under caps, alone, as a share.
fn width_under_caps(surface: &Surface) -> f64 {
    let capped = |p: &&SurfacePoint| {
        p.neighbours.is_empty() && p.gpus == 1 && p.cap_mw.is_some_and(|c| c < Power::from_w(240))
    };
    let share = |e: Estimate| (e.high - e.low) / e.mean;
    let widths: Vec<f64> =
        surface.points.iter().filter(capped).map(|p| share(p.relative_speed)).collect();
    assert!(!widths.is_empty(), "no point under a cap: {surface:#?}");
    widths.iter().sum::<f64>() / widths.len() as f64
}

#[tokio::test]
async fn a_probed_jobs_surface_becomes_narrow_under_caps_and_no_cap_stays() {
    let args = ["--simulated", "1x1:v100", "--rate", "60", "--policy", "fifo", "--probe"];
    let mut system = System::up(&args).await;
    // Ten hours alone: 5 % of that is half an hour.
    let job = system.submit(
        "hot",
        &[],
        &[
            "--workload",
            "resnet50-imagenet-b128",
            "--steps",
            "100000",
            "--steps-per-epoch",
            "10000",
        ],
    );
    let surfaces = system.bus.bucket(Bucket::Surfaces).await.unwrap();
    let surface = async || {
        let known: Option<(Surface, u64)> = surfaces.get(job.as_str()).await.ok().flatten();
        known.map(|(surface, _)| surface)
    };
    let before = until("its level is known", async || {
        surface().await.filter(|s| (1..=3).contains(&s.windows))
    })
    .await;
    let made = system
        .until_job(&job, "it was probed", |record| {
            record.reasons.iter().any(|reason| reason.decision.starts_with("probed "))
        })
        .await;
    let probe = &made.probes[0];
    assert!(probe.cap_mw >= Power::from_w(100) && probe.cap_mw < Power::from_w(250), "{probe:?}");
    let after = until("there is nothing left to look at", async || {
        let known = surface().await?;
        let record = system.record(&job).await?;
        let over = |p: &wattle_common::messages::ProbeMade| {
            known.at_us > p.at_us + std::time::Duration::from_millis(p.duration_ms)
        };
        (known.probe.is_none() && record.probes.iter().all(over)).then_some(known)
    })
    .await;
    let (wide, narrow) = (width_under_caps(&before), width_under_caps(&after));
    assert!(narrow < 0.5 * wide, "{narrow} from {wide}: {after:#?}");

    // What was done is told, and the card has its default back while the job goes on.
    let told = system.wattle(&["explain", "hot"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("probes ") && told.contains("would narrow"), "{told}");
    until("the card has its default cap again", async || {
        let nodes = system.json(&["nodes", "--json"]);
        (nodes[0]["power"]["gpus"][0]["cap_mw"] == 250_000).then_some(())
    })
    .await;
    let record = system.record(&job).await.unwrap();
    assert!(!record.phase.is_final(), "{record:#?}");
    assert!(system.end().await.success());
}

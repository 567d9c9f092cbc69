//! Probing on the whole system: the predictor proposes caps and clocks, the placer lets the job be
//! looked at under them, the profiler's windows come back, and the surface is surer than before.

use wattle_common::Power;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::subject::Bucket;
use wattle_runtime::testing;
use wattle_tests::{PATIENCE, System, until};

/// Mean width of the intervals of speed alone, as a share: under caps, and under locked clocks.
fn widths(surface: &Surface) -> [f64; 2] {
    let capped = |p: &SurfacePoint| p.cap_mw.is_some_and(|c| c < Power::from_w(240));
    let locked = |p: &SurfacePoint| p.clock_mhz_max.is_some();
    let kinds: [&dyn Fn(&SurfacePoint) -> bool; 2] = [&capped, &locked];
    let share = |e: Estimate| (e.high - e.low) / e.mean;
    kinds.map(|of_kind| {
        let alone = |p: &&SurfacePoint| p.neighbours.is_empty() && p.gpus == 1 && of_kind(p);
        let widths: Vec<f64> =
            surface.points.iter().filter(alone).map(|p| share(p.relative_speed)).collect();
        assert!(!widths.is_empty(), "no such point: {surface:#?}");
        widths.iter().sum::<f64>() / widths.len() as f64
    })
}

/// The width of an interval after the probes over that before. On an idle machine it is below a half.
const NARROWER: f64 = 0.75;

/// Width of the interval of the job's speed at its default settings, as a share, above which windows at 60 times
/// the speed scatter too much to narrow other intervals. It is 0.05 on an idle machine, 0.08 with six busy
/// processes on two cores.
const SCATTER_MAX: f64 = 0.09;

/// The width of the interval of the speed on one GPU at the default settings, as a share.
fn scatter(surface: &Surface) -> f64 {
    let is_default = |p: &&SurfacePoint| {
        let is_free = p.cap_mw.is_none() && p.clock_mhz_max.is_none();
        p.gpus == 1 && is_free && p.neighbours.is_empty()
    };
    let speed = surface.points.iter().find(is_default).and_then(|p| p.steps_per_s);
    speed.map_or(f64::INFINITY, |speed| (speed.high - speed.low) / speed.mean)
}

#[expect(clippy::print_stdout, reason = "the note of a check that is not made")]
fn note(text: &str) {
    println!("{text}");
}

#[tokio::test]
async fn a_probed_jobs_surface_becomes_narrow_and_neither_cap_nor_clock_stays() {
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
        .until_job(&job, "a cap and a clock were probed", |record| {
            let ended = |unit| {
                let over = |d: &str| d.starts_with("probed ") && d.contains(unit);
                record.reasons.iter().any(|reason| over(&reason.decision))
            };
            ended(" W ") && ended(" MHz ")
        })
        .await;
    for probe in &made.probes {
        match probe.clock_mhz_max {
            None => {
                let cap = probe.cap_mw;
                assert!(cap >= Power::from_w(100) && cap < Power::from_w(250), "{probe:?}");
            }
            Some(clock) => {
                assert!((405..1_380).contains(&clock.as_mhz()), "{probe:?}");
                assert_eq!(
                    probe.cap_mw,
                    Power::from_w(250),
                    "the previous cap was the default: {probe:?}"
                );
            }
        }
    }
    // On a busy machine probes may spend their budget before the predictor has no proposal left.
    let is_narrow = |known: &Surface| {
        widths(&before)
            .into_iter()
            .zip(widths(known))
            .all(|(wide, narrow)| narrow < NARROWER * wide)
    };
    let narrow_or_complete = async || {
        let known = surface().await?;
        let record = system.record(&job).await?;
        let over = |p: &wattle_common::messages::ProbeRecord| {
            known.at_us > p.at_us + std::time::Duration::from_millis(p.duration_ms)
        };
        let is_over = known.probe.is_none() || is_narrow(&known);
        (is_over && record.probes.iter().all(over)).then_some(known)
    };
    let after = match testing::until(PATIENCE, narrow_or_complete).await {
        Some(known) => known,
        // The intervals cannot become narrow where the speed scatters.
        None => surface().await.unwrap(),
    };
    let scatter = scatter(&after);
    if scatter > SCATTER_MAX {
        note(&format!("SKIPPED: widths, since the speed is uncertain by {:.0} %", 100.0 * scatter));
    } else {
        for (wide, narrow) in widths(&before).into_iter().zip(widths(&after)) {
            assert!(narrow < NARROWER * wide, "{narrow} from {wide}: {after:#?}");
        }
    }

    // The probe is explained, and the GPU has its previous cap while the job continues.
    let explained = system.wattle(&["explain", "hot"]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        explained.contains("probes ") && explained.contains("reduces interval widths"),
        "{explained}"
    );
    until("the GPU has its default cap and a free clock again", async || {
        let nodes = system.json(&["nodes", "--json"]);
        let gpu = &nodes[0]["power"]["gpus"][0];
        (gpu["cap_mw"] == 250_000 && gpu["clock_mhz_max"].is_null()).then_some(())
    })
    .await;
    let record = system.record(&job).await.unwrap();
    assert!(!record.phase.is_final(), "{record:#?}");
    assert!(system.end().await.success());
}

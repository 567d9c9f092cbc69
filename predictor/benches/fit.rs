//! How long learning and answering take: `cargo bench -p wattle-predictor`.

use std::time::Duration;

use wattle_common::id::{JobId, NodeId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Neighbour};
use wattle_common::{Power, Timestamp};
use wattle_predictor::PredictorConfig;
use wattle_predictor::predictor::Predictor;

fn main() {
    divan::main();
}

fn window(i: u64) -> JobWindow {
    let from = Timestamp::from_s(60 * i);
    let neighbour = Neighbour {
        job: JobId::new("other").expect("an id"),
        workload: Some(WorkloadId::new("b").expect("an id")),
    };
    let capped = i % 3 == 1;
    JobWindow {
        job: JobId::new("job").expect("an id"),
        workload: Some(WorkloadId::new("a").expect("an id")),
        node: NodeId::new("n0").expect("an id"),
        gpu_kind: "v100".into(),
        attempt: 1,
        from_us: from,
        until_us: from + Duration::from_secs(60),
        gpus: vec![0, 1],
        gpus_total: 2,
        nodes_total: 1,
        global_batch: None,
        cap_mw: Some(Power::from_w(if capped { 150 } else { 250 })),
        clock_mhz_mean: None,
        clock_mhz_max: None,
        neighbours: if i % 3 == 2 { vec![neighbour] } else { Vec::new() },
        steps: Some(600),
        steps_per_s: Some(10.0 + 0.05 * (i % 5) as f64),
        steps_per_s_error: Some(0.02),
        steps_inferred: false,
        step: None,
        epoch: None,
        early: false,
        power_mw_cards: Some(Power::from_w(if capped { 290 } else { 420 + i % 7 })),
        power_mw_job: None,
        energy_mj_cards: None,
        utilization_gpu_percent: Some(80.0),
        utilization_gpu_percent_job: Some(80.0),
        utilization_memory_percent: Some(40.0),
        memory_mib_max_job: Some(9_000),
        samples: 600,
    }
}

fn trained(windows: u64) -> Predictor {
    let mut predictor = Predictor::new(PredictorConfig::shipped());
    for i in 0..windows {
        let _ = predictor.learn(Timestamp::from_s(60 * i + 60), &window(i));
    }
    predictor
}

/// The 20th window of a job: a fit of all twenty.
#[divan::bench]
fn fit_from_20_windows(bencher: divan::Bencher<'_, '_>) {
    bencher.with_inputs(|| (trained(19), window(19))).bench_local_values(
        |(mut predictor, window)| {
            divan::black_box(predictor.learn(Timestamp::from_s(9_999), &window));
            predictor
        },
    );
}

/// A surface of 256 points: 1 to 64 GPUs, their spreads, caps, neighbours.
#[divan::bench]
fn surface_of_256_points(bencher: divan::Bencher<'_, '_>) {
    let mut predictor = trained(20);
    let job = JobId::new("job").expect("an id");
    let request = GpuRequest { min: 1, max: 64 };
    let class = Some(WorkloadId::new("a").expect("an id"));
    let now = Timestamp::from_s(9_999);
    predictor.describe(now, job.clone(), class, request, None);
    bencher.bench_local(|| predictor.surface(now, &job));
}

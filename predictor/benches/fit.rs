//! Time of learning and prediction for one job: `cargo bench -p wattle-predictor --bench fit`.

mod common;

use common::{METHODS, now, predictor, window_of};
use wattle_common::Power;
use wattle_common::id::JobId;
use wattle_common::job::GpuRequest;
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::predictor::Predictor;

fn main() {
    divan::main();
}

fn job() -> JobId {
    JobId::new("job").expect("an id")
}

/// A predictor with this many windows of one job, and 6 windows of each of 20 others.
fn trained(method: Method, windows: u64) -> Predictor {
    let mut predictor = predictor(method);
    for other in 0..20 {
        for minute in 0..6 {
            let window = window_of(&format!("other-{other}"), &format!("class-{other}"), minute);
            let _ = predictor.learn(now(minute), &window);
        }
    }
    for minute in 0..windows {
        let _ = predictor.learn(now(minute), &window_of("job", "class-3", minute));
    }
    predictor
}

/// The 20th window of a job: a fit of all twenty windows and, with few classes, of the pooled models.
#[divan::bench(args = METHODS, sample_count = 50)]
fn fit_from_20_windows(bencher: divan::Bencher<'_, '_>, method: Method) {
    let before = trained(method, 19);
    bencher.with_inputs(|| (before.clone(), window_of("job", "class-3", 19))).bench_local_values(
        |(mut predictor, window)| {
            divan::black_box(predictor.learn(now(19), &window));
            predictor
        },
    );
}

/// 7 GPU counts, 3 spreads each, 12 caps: 252 points.
#[divan::bench(args = METHODS)]
fn surface_of_252_points(bencher: divan::Bencher<'_, '_>, method: Method) {
    let predictor = trained(method, 20);
    let mut wanted = Vec::new();
    for gpus in [4u32, 8, 12, 16, 24, 32, 64] {
        for nodes in [1, 2, 4] {
            for step in 0..12 {
                wanted.push(Configuration {
                    gpus,
                    nodes,
                    cap: (step > 0).then(|| Power::from_w(250 - 13 * step)),
                    clock_max: None,
                    global_batch: None,
                    neighbours: Vec::new(),
                });
            }
        }
    }
    let job = job();
    bencher.bench_local(|| predictor.predict_all(&job, &wanted));
}

/// A published surface: 256 points over GPUs, spreads, caps and neighbours.
#[divan::bench(args = METHODS)]
fn surface_as_published(bencher: divan::Bencher<'_, '_>, method: Method) {
    let mut predictor = trained(method, 20);
    let request = GpuRequest { min: 1, max: 64 };
    let class = predictor.workload_of(&job()).cloned();
    predictor.describe(now(20), job(), class, request, None);
    let job = job();
    bencher.bench_local(|| predictor.surface(now(20), &job));
}

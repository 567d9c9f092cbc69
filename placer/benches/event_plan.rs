//! The time of one plan of a grid event: `cargo bench -p wattle-placer --bench event_plan`.
//!
//! Jobs of 14 workloads, each with a promise, run on 1 to 16 GPUs with lengths over four decades; those that do not fit
//! are queued. The goal for 10,000 GPUs and 2,000 jobs is one second of processor time.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/suite/event_plan/site.rs"]
mod site;
#[path = "../tests/suite/support.rs"]
mod support;

use wattle_common::Timestamp;
use wattle_common::event::EventBook;
use wattle_placer::power::event_plan::{EventPlanning, PlanOf};
use wattle_placer::power::promises::EventPromises;

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Nodes of eight GPUs, and jobs.
const SCALES: [(u32, u32); 3] = [(13, 20), (125, 200), (1_250, 2_000)];

fn main() {
    divan::main();
}

#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn of_an_event(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let controller = site::busy(scale);
    let book = site::book(&controller);
    let promises = EventPromises::default();
    bencher.bench_local(|| {
        EventPlanning::of(&controller, &book, &promises, site::of_first(&book), Timestamp::EPOCH)
            .plan()
    });
}

#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn of_a_day(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let controller = site::busy(scale);
    let (book, promises) = (EventBook::default(), EventPromises::default());
    bencher.bench_local(|| {
        EventPlanning::of(&controller, &book, &promises, PlanOf::Day(None), Timestamp::EPOCH).plan()
    });
}

/// What the rounds of a live placer wait for.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn the_copy(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let controller = site::busy(scale);
    let book = site::book(&controller);
    let promises = EventPromises::default();
    bencher.bench_local(|| {
        EventPlanning::of(&controller, &book, &promises, site::of_first(&book), Timestamp::EPOCH)
    });
}

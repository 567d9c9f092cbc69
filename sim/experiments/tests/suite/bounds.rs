//! The bounds on a real trace: 876 jobs on 128 A100, with what was measured of speed and clocks.
//!
//! The figures were first found by a prototype written apart from this code, for the same jobs,
//! options and power above idle. The trace and the measurements are not part of this repository:
//! the test looks for them in `$WATTLE_DATA` or beside the repository.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use wattle_common::Frequency;
use wattle_experiments::bound::{BoundJob, BoundOption, PricedSearch, contention_free, priced};
use wattle_simulator::measured::{CLOCKS_MHZ, Measured, workload_id};
use wattle_world::{Setting, Tenant, World};

const GPUS: u32 = 128;
/// Idle power of an A100, W; the bounds are on energy above idle.
const IDLE_W: f64 = 60.0;

fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr is open");
}

/// Every number of GPUs at every clock, power above idle.
fn options(world: &World, id: &str) -> Arc<[BoundOption]> {
    let (a100, workload) = (world.gpu("a100").unwrap(), world.workload(id).unwrap());
    let mut options = Vec::new();
    for gpus in [1, 2, 4, 8, 16, 32, 64] {
        for mhz in CLOCKS_MHZ {
            let setting = Setting { cap: None, clock_max: Some(Frequency::from_mhz(mhz)) };
            let tenant = Tenant { workload, gpus, nodes: gpus.div_ceil(8) };
            let state = world.gpu_state(a100, setting, &[tenant]);
            options.push(BoundOption {
                gpus,
                steps_per_s: state.tenants[0].steps_per_s,
                power_w: f64::from(gpus) * (state.power.as_w() - IDLE_W),
            });
        }
    }
    options.into()
}

/// The trace's jobs with arrival times divided by `closer`; `None` without files.
fn jobs(closer: f64) -> Option<Vec<BoundJob>> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("WATTLE_DATA").map_or_else(beside, PathBuf::from);
    let path = data.join("traces/elasticflow_philly_103959.csv");
    let Ok(mut trace) = csv::Reader::from_path(&path) else {
        say(&format!("NOT RUN: no trace at {}; set WATTLE_DATA", path.display()));
        return None;
    };
    let world = Measured::find(&data).unwrap().world().unwrap();
    let columns = trace.headers().unwrap().clone();
    let at = |name: &str| columns.iter().position(|c| c == name).unwrap();
    let mut lists = BTreeMap::new();
    let job = |row: csv::StringRecord| {
        let number = |name: &str| row[at(name)].parse::<f64>().unwrap();
        let id = workload_id(&row[at("model_name")], row[at("batch_size")].parse().unwrap());
        let options = lists.entry(id.clone()).or_insert_with(|| options(&world, &id)).clone();
        let (arrival_s, work) = (number("submit_time") / closer, number("iteration"));
        BoundJob { arrival_s, work, options }
    };
    Some(trace.records().map(Result::unwrap).map(job).collect())
}

fn near(what: &str, value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{what}: {value}, expected {expected}");
}

#[test]
fn bound_without_contention_agrees_with_the_prototype() {
    let Some(jobs) = jobs(1.0) else { return };
    let bound = contention_free(&jobs, GPUS).unwrap();
    let (least_kwh, slow_s) = bound.least_energy();
    near("least kWh", least_kwh, 4_980.0, 0.005);
    near("its hours", slow_s / 3_600.0, 51.4, 0.005);
    // The high-energy ends differ: the catalog's VGG-16 gains more from many GPUs than the
    // prototype's.
    near("hours", bound.jct_s_at(5_500.0).unwrap() / 3_600.0, 13.0, 0.02);
}

/// Arrivals five and seven times closer: loads .76 and 1.07.
#[test]
#[ignore = "takes a minute: `cargo test --release -p wattle-experiments --test suite bounds -- --ignored`"]
#[expect(clippy::disallowed_methods, reason = "a speed is measured")]
fn bound_with_contention_agrees_with_the_prototype() {
    for (closer, expected) in [
        (5.0, [(5_600.0, 16.1), (6_500.0, 14.3), (7_500.0, 13.5), (10_000.0, 12.7)]),
        (7.0, [(5_600.0, 21.4), (6_500.0, 19.3), (7_500.0, 18.0), (10_000.0, 16.8)]),
    ] {
        let Some(jobs) = jobs(closer) else { return };
        let began = Instant::now();
        let bound = priced(&jobs, GPUS, &PricedSearch::default()).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        let (prices, buckets) = (bound.paths.len(), bound.paths[0].prices.len());
        say(&format!(
            "arrivals / {closer}: {seconds:.1} s for {prices} prices of energy, {buckets} buckets"
        ));
        for (kwh, hours) in expected {
            let found = bound.frontier.jct_s_at(kwh).unwrap() / 3_600.0;
            say(&format!("  {kwh} kWh: {found:.2} h (prototype: {hours})"));
            near("hours", found, hours, 0.03);
        }
    }
}

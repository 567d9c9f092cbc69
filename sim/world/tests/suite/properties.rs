//! Properties of every GPU model for every workload and setting.

use std::sync::LazyLock;

use proptest::prelude::*;
use wattle_common::{Frequency, Power};
use wattle_world::{GpuModel, GpuState, Interference, Setting, Tenant, Workload, World};

/// Read once for thousands of queries.
static WORLD: LazyLock<World> = LazyLock::new(World::builtin);
/// The same with the other interference model.
static MILD: LazyLock<World> =
    LazyLock::new(|| World::builtin().with_interference(Interference::Mild));

/// The world with one of the models.
fn world_with(mild: bool) -> &'static World {
    if mild { &MILD } else { &WORLD }
}

/// A workload index, a GPU count and a node count.
type Pick = (usize, u32, u32);

fn picks(most: usize) -> impl Strategy<Value = Vec<Pick>> {
    let spread = prop_oneof![
        Just((1u32, 1u32)),
        Just((2, 1)),
        Just((8, 1)),
        Just((8, 2)),
        Just((3, 3)),
        Just((64, 8))
    ];
    prop::collection::vec((any::<prop::sample::Index>(), spread), 0..=most).prop_map(|picks| {
        picks.into_iter().map(|(w, (gpus, nodes))| (w.index(10_000), gpus, nodes)).collect()
    })
}

fn tenants<'a>(all: &[&'a Workload], picks: &[Pick]) -> Vec<Tenant<'a>> {
    let tenant = |&(w, gpus, nodes): &Pick| Tenant { workload: all[w % all.len()], gpus, nodes };
    picks.iter().map(tenant).collect()
}

fn setting(gpu: &GpuModel, cap: f64, clock: Option<f64>) -> Setting {
    let between = |low: u64, high: u64, t: f64| low + ((high - low) as f64 * t) as u64;
    let cap = Power::from_mw(between(gpu.cap_min.as_mw(), gpu.cap_max.as_mw(), cap));
    let clock_max = clock.map(|t| gpu.clocks[((gpu.clocks.len() - 1) as f64 * t) as usize]);
    Setting { cap: Some(cap), clock_max }
}

fn check(gpu: &GpuModel, setting: Setting, state: &GpuState) {
    let cap = setting.cap.unwrap_or(gpu.cap_default);
    assert!(state.power >= gpu.idle && state.power <= cap, "{state:?}");
    for share in [state.utilization_gpu, state.utilization_memory] {
        assert!((0.0..=1.0).contains(&share), "{state:?}");
    }
    assert!(state.clock > Frequency::ZERO && state.clock <= gpu.clock_max(), "{state:?}");
    assert!(setting.clock_max.is_none_or(|max| state.clock <= max), "{state:?}");
    for tenant in &state.tenants {
        assert!(tenant.speed > 0.0 && tenant.speed <= 1.0, "{state:?}");
        assert!(tenant.steps_per_s.is_finite() && tenant.steps_per_s > 0.0, "{state:?}");
        assert!((0.0..=1.0).contains(&tenant.utilization_gpu), "{state:?}");
    }
}

/// Exclusive use of every GPU by every workload: full speed at the defaults, valid at every cap and
/// clock.
#[test]
fn every_entry_is_valid() {
    let world = &*WORLD;
    for gpu in world.gpus() {
        for workload in world.workloads() {
            for gpus in [1, 2, 3, 4, 7, 8, 16, 64, 512] {
                let tenant = [Tenant { workload, gpus, nodes: gpus.div_ceil(8) }];
                let free = world.gpu_state(gpu, Setting::default(), &tenant);
                check(gpu, Setting::default(), &free);
                let name = (&workload.id, &gpu.gpu_type, gpus);
                assert!((free.tenants[0].speed - 1.0).abs() < 1e-9, "{name:?} {free:?}");
                assert!(!free.power_capped && free.clock == gpu.clock_max(), "{name:?} {free:?}");
                let exclusive = workload.steps_per_s(gpu, gpus, tenant[0].nodes);
                assert!((free.tenants[0].steps_per_s / exclusive - 1.0).abs() < 1e-9, "{name:?}");
                for step in 0..=20 {
                    let t = f64::from(step) / 20.0;
                    for setting in [
                        setting(gpu, t, None),
                        setting(gpu, 1.0, Some(t)),
                        setting(gpu, t, Some(t)),
                    ] {
                        check(gpu, setting, &world.gpu_state(gpu, setting, &tenant));
                    }
                }
            }
        }
    }
}

/// More GPUs of one node never slow a job; spreading it never speeds it up.
#[test]
fn more_gpus_of_one_node_never_slow_a_job() {
    let world = &*WORLD;
    for gpu in world.gpus() {
        for workload in world.workloads() {
            for (few, many) in [(1, 2), (2, 4), (4, 8), (3, 5)] {
                let (a, b) =
                    (workload.steps_per_s(gpu, few, 1), workload.steps_per_s(gpu, many, 1));
                assert!(
                    b >= a * (1.0 - 1e-9),
                    "{} {}: {few} {a}, {many} {b}",
                    workload.id,
                    gpu.gpu_type
                );
                let spread = workload.steps_per_s(gpu, many, 2);
                assert!(
                    spread <= b * (1.0 + 1e-9),
                    "{} {}: {spread} {b}",
                    workload.id,
                    gpu.gpu_type
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn power_and_speed_increase_with_the_cap(
        model in 0usize..3,
        mild in any::<bool>(),
        picks in picks(4),
        caps in (0.0f64..=1.0, 0.0f64..=1.0),
        clock in prop::option::of(0.0f64..=1.0),
    ) {
        let world = world_with(mild);
        let all: Vec<&Workload> = world.workloads().collect();
        let gpu = world.gpus().nth(model).unwrap();
        let tenants = tenants(&all, &picks);
        let (low, high) = (caps.0.min(caps.1), caps.0.max(caps.1));
        let (less, more) = (setting(gpu, low, clock), setting(gpu, high, clock));
        let (a, b) = (world.gpu_state(gpu, less, &tenants), world.gpu_state(gpu, more, &tenants));
        check(gpu, less, &a);
        check(gpu, more, &b);
        prop_assert!(a.power <= b.power, "{a:?} {b:?}");
        for (a, b) in a.tenants.iter().zip(&b.tenants) {
            prop_assert!(a.speed <= b.speed + 1e-9, "{a:?} {b:?}");
        }
    }

    #[test]
    fn adding_a_tenant_never_speeds_up_another(
        model in 0usize..3,
        mild in any::<bool>(),
        picks in picks(5).prop_filter("at least one tenant", |picks| !picks.is_empty()),
        cap in 0.0f64..=1.0,
        clock in prop::option::of(0.0f64..=1.0),
    ) {
        let world = world_with(mild);
        let all: Vec<&Workload> = world.workloads().collect();
        let gpu = world.gpus().nth(model).unwrap();
        let tenants = tenants(&all, &picks);
        let setting = setting(gpu, cap, clock);
        let few = world.gpu_state(gpu, setting, &tenants[..tenants.len() - 1]);
        let many = world.gpu_state(gpu, setting, &tenants);
        for (before, after) in few.tenants.iter().zip(&many.tenants) {
            prop_assert!(after.speed <= before.speed + 1e-9, "{few:?} {many:?}");
        }
    }

    #[test]
    fn power_and_speed_increase_with_the_clock(
        model in 0usize..3,
        mild in any::<bool>(),
        picks in picks(3),
        clocks in (0.0f64..=1.0, 0.0f64..=1.0),
    ) {
        let world = world_with(mild);
        let all: Vec<&Workload> = world.workloads().collect();
        let gpu = world.gpus().nth(model).unwrap();
        let tenants = tenants(&all, &picks);
        let (a, b) = (setting(gpu, 1.0, Some(clocks.0)), setting(gpu, 1.0, Some(clocks.1)));
        let (low, high) = if a.clock_max <= b.clock_max { (a, b) } else { (b, a) };
        let (low, high) = (world.gpu_state(gpu, low, &tenants), world.gpu_state(gpu, high, &tenants));
        prop_assert!(low.power <= high.power && low.clock <= high.clock, "{low:?} {high:?}");
        for (low, high) in low.tenants.iter().zip(&high.tenants) {
            prop_assert!(low.speed <= high.speed + 1e-9, "{low:?} {high:?}");
        }
    }
}

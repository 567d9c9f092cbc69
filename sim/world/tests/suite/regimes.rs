//! Compute-bound and input-bound co-location, caps, clocks, memory and host power.

use wattle_common::{Frequency, Power};
use wattle_world::{GpuState, Interference, Setting, Tenant, World};

fn state(gpu_type: &str, cap_w: Option<u64>, ids: &[&str]) -> GpuState {
    state_in(&World::builtin(), gpu_type, cap_w, ids)
}

fn state_in(world: &World, gpu_type: &str, cap_w: Option<u64>, ids: &[&str]) -> GpuState {
    let tenant = |id: &&str| {
        let workload = world.workload(id).expect("in the catalog");
        Tenant { workload, gpus: workload.gpus, nodes: 1 }
    };
    let tenants: Vec<Tenant<'_>> = ids.iter().map(tenant).collect();
    let setting = Setting { cap: cap_w.map(Power::from_w), clock_max: None };
    world.gpu_state(world.gpu(gpu_type).expect("in the catalog"), setting, &tenants)
}

fn summed_speed(state: &GpuState) -> f64 {
    state.tenants.iter().map(|tenant| tenant.speed).sum()
}

/// Gavel, V100 and P100, one GPU: mean over batch sizes of the summed normalised throughput.
#[test]
fn compute_bound_pairs_lose_throughput() {
    let resnets = state("v100", None, &["resnet50-imagenet-b64", "resnet50-imagenet-b32"]);
    assert!((summed_speed(&resnets) - 0.77).abs() < 0.01, "{resnets:?}");
    let (resnet, bert) = ("resnet50-imagenet-b64", "bert-squad-b16");
    let mixed = state("v100", None, &[resnet, bert]);
    assert!((summed_speed(&mixed) - 0.74).abs() < 0.02, "{mixed:?}");
    let three = state("v100", None, &[resnet, resnet, resnet]);
    assert!(summed_speed(&three) < 0.77, "{three:?}");
    let p100 = state("p100", None, &[resnet, resnet]);
    assert!((summed_speed(&p100) - 1.06).abs() < 0.01, "{p100:?}");
}

/// EaCO: each job is slowed by a few percent. NCF hardly uses the GPU and hardly slows its co-tenant.
#[test]
fn input_bound_pairs_gain_throughput() {
    let pair = state("v100", None, &["eaco-alexnet", "eaco-vgg16"]);
    assert!(summed_speed(&pair) > 1.9, "{pair:?}");
    let with_ncf = state("v100", None, &["ncf-movielens-b1024", "resnet50-imagenet-b64"]);
    assert!(summed_speed(&with_ncf) > 1.85, "{with_ncf:?}");
}

/// Two ResNet-50 jobs lose throughput by the V100's table; by the RTX 3090's curve two saturating jobs
/// keep 0.68 each.
#[test]
fn mild_interference_differs_and_pairs_is_the_default() {
    let world = World::builtin();
    let (pairs, mild) = (
        world.clone().with_interference(Interference::Pairs),
        world.clone().with_interference(Interference::Mild),
    );
    assert_eq!(world.interference(), Interference::Pairs);
    let two = ["resnet50-imagenet-b64", "bert-squad-b16"];
    let of = |world: &World, ids: &[&str]| state_in(world, "v100", None, ids);
    assert_eq!(of(&world, &two), of(&pairs, &two));
    assert_eq!(of(&mild, &two).power, of(&pairs, &two).power);
    let full = ["resnet50-imagenet-b256"; 2];
    assert!((summed_speed(&of(&mild, &full)) - 1.36).abs() < 0.03, "{:?}", of(&mild, &full));
    // Summed utilisation of 0.37 and 0.48: within the bin of 0.8 to 1.0, whose mean is 0.97.
    let eaco = of(&mild, &["eaco-resnet50", "eaco-vgg16"]);
    for tenant in &eaco.tenants {
        assert!((0.97..0.98).contains(&tenant.speed), "{eaco:?}");
    }
    assert_eq!(of(&mild, &two[..1]), of(&pairs, &two[..1]));
}

/// Zeus: NCF draws 38 W at every cap; ResNet-50 slows with every reduction.
#[test]
fn cap_slows_only_jobs_that_exceed_it() {
    let ncf = state("v100", Some(100), &["ncf-movielens-b1024"]);
    assert!(ncf.tenants[0].speed > 0.999 && !ncf.power_capped, "{ncf:?}");
    let resnet = state("v100", Some(100), &["resnet50-imagenet-b64"]);
    assert!((0.5..0.6).contains(&resnet.tenants[0].speed) && resnet.power_capped, "{resnet:?}");
    let eaco = state("v100", Some(100), &["eaco-vgg16"]);
    assert!((0.6..0.95).contains(&eaco.tenants[0].speed) && eaco.power_capped, "{eaco:?}");
    assert!(state("v100", Some(100), &["eaco-alexnet"]).tenants[0].speed > 0.999);
}

/// A clock limit reduces the power of a compute-bound job more than its speed, and slows an
/// input-bound one less.
#[test]
fn clock_limit_saves_more_power_than_speed() {
    let world = World::builtin();
    let v100 = world.gpu("v100").unwrap();
    let at = |id: &str, mhz: u32| {
        let workload = world.workload(id).unwrap();
        let tenant = [Tenant { workload, gpus: workload.gpus, nodes: 1 }];
        world.gpu_state(
            v100,
            Setting { cap: None, clock_max: Some(Frequency::from_mhz(mhz)) },
            &tenant,
        )
    };
    let (slow, fast) = (at("resnet50-imagenet-b128", 1102), at("resnet50-imagenet-b128", 1380));
    let (speed, power) = (slow.tenants[0].speed, slow.power.ratio(fast.power));
    assert!((0.86..0.90).contains(&speed) && power < speed, "{slow:?} {fast:?}");
    assert!(at("eaco-resnet50", 1102).tenants[0].speed > 0.94);
}

#[test]
fn memory_limits_co_location_and_host_power_scales() {
    let world = World::builtin();
    let (v100, p100) = (world.gpu("v100").unwrap(), world.gpu("p100").unwrap());
    let workload = world.workload("resnet50-imagenet-b128").unwrap();
    let one = Tenant { workload, gpus: 1, nodes: 1 };
    // 11.7 GB each: two fit 32 GB, not 16.
    assert!(world.fits(v100, &[one, one]) && !world.fits(v100, &[one, one, one]));
    assert!(world.fits(p100, &[one]) && !world.fits(p100, &[one, one]));
    let ids = ["eaco-alexnet", "eaco-resnet18", "eaco-resnet50", "eaco-vgg16"];
    let four: Vec<Tenant<'_>> = ids
        .iter()
        .map(|id| Tenant { workload: world.workload(id).unwrap(), gpus: 8, nodes: 1 })
        .collect();
    assert!(world.fits(v100, &four));
    assert_eq!(world.host_power_of(v100, 8), world.host_power(v100));
    assert!(world.host_power_of(v100, 1) < world.host_power_of(v100, 4));
}

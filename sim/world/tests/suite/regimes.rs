//! Two regimes of neighbours are real, and both must come out; and a cap meets both.

use wattle_common::{Frequency, Power};
use wattle_world::{GpuState, Interference, Setting, Tenant, World};

fn card(kind: &str, cap_w: Option<u64>, ids: &[&str]) -> GpuState {
    card_of(&World::builtin(), kind, cap_w, ids)
}

fn card_of(world: &World, kind: &str, cap_w: Option<u64>, ids: &[&str]) -> GpuState {
    let tenant = |id: &&str| {
        let workload = world.workload(id).expect("in the catalog");
        Tenant { workload, gpus: workload.gpus, nodes: 1 }
    };
    let tenants: Vec<Tenant<'_>> = ids.iter().map(tenant).collect();
    let setting = Setting { cap: cap_w.map(Power::from_w), clock_max: None };
    world.gpu_state(world.gpu(kind).expect("in the catalog"), setting, &tenants)
}

fn summed_speed(card: &GpuState) -> f64 {
    card.tenants.iter().map(|tenant| tenant.speed).sum()
}

/// Gavel, V100 and P100, one GPU: mean over batch sizes of the summed normalised throughput.
#[test]
fn compute_bound_neighbours_lose_outright() {
    let resnets = card("v100", None, &["resnet50-imagenet-b64", "resnet50-imagenet-b32"]);
    assert!((summed_speed(&resnets) - 0.77).abs() < 0.01, "{resnets:?}");
    let (resnet, bert) = ("resnet50-imagenet-b64", "bert-squad-b16");
    let unlike = card("v100", None, &[resnet, bert]);
    assert!((summed_speed(&unlike) - 0.74).abs() < 0.02, "{unlike:?}");
    let three = card("v100", None, &[resnet, resnet, resnet]);
    assert!(summed_speed(&three) < 0.77, "{three:?}");
    let older = card("p100", None, &[resnet, resnet]);
    assert!((summed_speed(&older) - 1.06).abs() < 0.01, "{older:?}");
}

/// EaCO: each slowed by a few percent. NCF hardly uses the card: nor does its neighbour feel it.
#[test]
fn input_bound_neighbours_barely_feel_each_other() {
    let pair = card("v100", None, &["eaco-alexnet", "eaco-vgg16"]);
    assert!(summed_speed(&pair) > 1.9, "{pair:?}");
    let beside = card("v100", None, &["ncf-movielens-b1024", "resnet50-imagenet-b64"]);
    assert!(summed_speed(&beside) > 1.85, "{beside:?}");
}

/// Two worlds: a V100's table says two ResNet-50 lose outright, an RTX 3090's curve that
/// two full jobs keep 0.68 each.
#[test]
fn the_mild_world_is_another_one_and_the_default_stays() {
    let world = World::builtin();
    let (pairs, mild) = (
        world.clone().with_interference(Interference::Pairs),
        world.clone().with_interference(Interference::Mild),
    );
    assert_eq!(world.interference(), Interference::Pairs);
    let two = ["resnet50-imagenet-b64", "bert-squad-b16"];
    let of = |world: &World, ids: &[&str]| card_of(world, "v100", None, ids);
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

/// Zeus: NCF draws 38 W whatever the cap; ResNet-50 loses speed with every step of it.
#[test]
fn a_cap_slows_only_who_draws_power() {
    let ncf = card("v100", Some(100), &["ncf-movielens-b1024"]);
    assert!(ncf.tenants[0].speed > 0.999 && !ncf.power_capped, "{ncf:?}");
    let resnet = card("v100", Some(100), &["resnet50-imagenet-b64"]);
    assert!((0.5..0.6).contains(&resnet.tenants[0].speed) && resnet.power_capped, "{resnet:?}");
    let eaco = card("v100", Some(100), &["eaco-vgg16"]);
    assert!((0.6..0.95).contains(&eaco.tenants[0].speed) && eaco.power_capped, "{eaco:?}");
    assert!(card("v100", Some(100), &["eaco-alexnet"]).tenants[0].speed > 0.999);
}

/// A clock ceiling costs a compute-bound job a little and saves more; an input-bound one feels less.
#[test]
fn a_lower_clock_saves_more_than_it_costs() {
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
fn memory_is_known_and_hosts_scale() {
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

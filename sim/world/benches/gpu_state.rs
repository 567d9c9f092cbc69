//! Cost of one query; the simulator queries at every change of a GPU.

use divan::{Bencher, black_box};
use wattle_common::Power;
use wattle_world::{Setting, Tenant, World};

fn main() {
    divan::main();
}

#[divan::bench(args = [1, 2, 4])]
fn gpu_state(bencher: Bencher<'_, '_>, tenants: usize) {
    let world = World::builtin();
    let v100 = world.gpu("v100").expect("in the catalog");
    let ids = ["eaco-resnet50", "resnet50-imagenet-b64", "bert-squad-b16", "eaco-vgg16"];
    let tenant = |id: &&str| {
        let workload = world.workload(id).expect("in the catalog");
        Tenant { workload, gpus: workload.gpus, nodes: 1 }
    };
    let tenants: Vec<Tenant<'_>> = ids[..tenants].iter().map(tenant).collect();
    let setting = Setting { cap: Some(Power::from_w(150)), clock_max: None };
    bencher.bench(|| world.gpu_state(black_box(v100), black_box(setting), black_box(&tenants)));
}

#[divan::bench]
fn read_catalog() -> World {
    World::builtin()
}

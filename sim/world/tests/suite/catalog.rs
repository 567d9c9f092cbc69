//! The built-in catalog, and what is said of a wrong one.

use wattle_common::{Frequency, Power};
use wattle_world::{CatalogError, Setting, Tenant, World};

#[test]
fn the_built_in_catalog_is_read() {
    let world = World::builtin();
    assert!(
        world.gpu("v100").is_some() && world.gpu("p100").is_some() && world.gpu("a100").is_some()
    );
    assert!(world.gpu("k80").is_some());
    assert_eq!(world.workloads().count(), 66);
    assert!(world.mix().count() >= 10);
    // The mix is meant for cards of 16 GB and more.
    let cards = world.gpus().filter(|gpu| gpu.gpu_type != "k80");
    for (gpu, workload) in cards.flat_map(|gpu| world.mix().map(move |w| (gpu, w))) {
        assert!(workload.memory_mib <= gpu.memory_mib, "{} on {}", workload.id, gpu.gpu_type);
    }
    let names = [
        ("ResNet-50", Some("resnet50-imagenet-b128")),
        ("ResNet-50 (batch size 64)", Some("resnet50-imagenet-b64")),
        ("ResNet-50 (batch size 65)", None),
        ("ResNet-18 (batch size 64)", None),
        ("vgg16", Some("eaco-vgg16")),
        ("bert_base_uncased", Some("bert-squad-b16")),
        ("deepspeech2", Some("deepspeech2-librispeech-b64")),
        ("vgg19", None),
        ("", None),
    ];
    for (name, expected) in names {
        assert_eq!(world.workload_for_model(name).map(|w| w.id.as_str()), expected, "{name}");
    }
}

#[test]
fn a_measured_row_comes_back() {
    // Zeus, V100: ResNet-50, batch 256, 150 W: 4148.7 s an epoch at 145 W; 3515.0 s at 250 W.
    let world = World::builtin();
    let v100 = world.gpu("v100").unwrap();
    let job = world.workload("resnet50-imagenet-b256").unwrap();
    let tenant = [Tenant { workload: job, gpus: 1, nodes: 1 }];
    let setting = Setting { cap: Some(Power::from_w(150)), clock_max: None };
    let card = world.gpu_state(v100, setting, &tenant);
    assert!((card.tenants[0].speed - 3515.0 / 4148.7).abs() < 1e-3, "{card:?}");
    assert!((card.power.as_w() - 145.0).abs() < 1.0 && card.power_capped, "{card:?}");
    assert!(card.clock < v100.clock_max(), "{card:?}");
    let free = world.gpu_state(v100, Setting::default(), &tenant);
    assert!((free.tenants[0].steps_per_s - 5005.0 / 3515.0).abs() < 1e-3, "{free:?}");
}

#[test]
fn an_empty_card_is_idle() {
    let world = World::builtin();
    for gpu in world.gpus() {
        let card = world.gpu_state(gpu, Setting::default(), &[]);
        assert_eq!((card.power, card.utilization_gpu), (gpu.idle, 0.0));
        assert!(card.clock > Frequency::ZERO && !gpu.clocks.is_empty());
    }
}

/// What an idle node draws awake and asleep: the figures that decide what consolidation is worth.
#[test]
fn a_node_draws_little_asleep_and_pays_for_waking() {
    let world = World::builtin();
    for (kind, awake_w, asleep_w) in
        [("v100", 384, 30), ("p100", 384, 30), ("a100", 1480, 60), ("k80", 352, 30)]
    {
        let gpu = world.gpu(kind).unwrap();
        let awake = world.host_power(gpu) + gpu.idle.scale(f64::from(gpu.node_gpus));
        assert_eq!(
            (awake.as_w().round() as u64, gpu.sleep.power),
            (awake_w, Power::from_w(asleep_w))
        );
        // Waking draws what the idle node does, for minutes: sleep of under a minute never pays.
        assert!((gpu.sleep.waking().as_w() - awake.as_w()).abs() < 1.0, "{gpu:?}");
        assert!(gpu.sleep.wake.as_secs() >= 60 && gpu.sleep.enter < gpu.sleep.wake);
    }
}

fn broken(file: &str, from: &str, to: &str) -> CatalogError {
    let mut files = World::builtin_files().to_vec();
    let entry = files.iter_mut().find(|(name, _)| *name == file).expect("a built-in file");
    assert!(entry.1.contains(from), "{from}");
    let text = entry.1.replacen(from, to, 1);
    entry.1 = &text;
    World::from_toml(&files).expect_err("the file was broken")
}

#[test]
fn a_wrong_catalog_names_file_entry_and_remedy() {
    let cases = [
        ("eaco.toml", "scaling = \"resnet50\"", "scaling = \"no\"", "no [[scaling]] named `no`"),
        ("eaco.toml", "gpu = \"v100\"", "gpu = \"v10\"", "no [[gpu]] of kind `v10`"),
        ("eaco.toml", "id = \"eaco-vgg16\"", "id = \"eaco-alexnet\"", "its own id"),
        ("eaco.toml", "[\"vgg16\"]", "[\"alexnet\"]", "choose one"),
        ("eaco.toml", "busy = 0.0472", "busy = 4.72", "shares, 0 to 1"),
        ("eaco.toml", "busy = 0.0472", "busy = 0.0472\ncore_bound = 7", "shares, 0 to 1"),
        ("eaco.toml", "mix = true", "waiting_share = 2.0", "share, 0 to 1"),
        ("eaco.toml", "busy = 0.0472", "clock = [[900, 0.5, 0.9]]", "end at value 1"),
        ("gpus.toml", "power_w = 30", "power_w = 3000", "awake and idle"),
        ("gpus.toml", "wake_s = 180", "wake_s = -1", "wake_s of 0 to"),
        ("sharing.toml", "[1.9, 0.68]", "[1.9, 0.78]", "mild: need"),
        ("gpus.toml", "min = 100, default = 250", "min = 300, default = 250", "min <= default"),
        ("pairs.toml", "speed = 0.", "speed = 7.", "(0, 1]"),
        ("zeus.toml", "[100, 125, 150, ", "[150, 125, 100, ", "cap_w must increase"),
    ];
    for (file, from, to, expected) in cases {
        let error = broken(file, from, to).to_string();
        assert!(error.starts_with(file) && error.contains(expected), "{error}");
    }
    let error = broken("gpus.toml", "idle_w", "idle_watts");
    assert!(matches!(&error, CatalogError::Syntax { file, .. } if file == "gpus.toml"), "{error}");
    assert!(matches!(World::from_toml(&[]), Err(CatalogError::Incomplete(_))));
}

//! The built-in catalog, and the errors of invalid catalogs.

use wattle_common::{Frequency, Power};
use wattle_world::{CatalogError, Setting, Tenant, World};

#[test]
fn built_in_catalog_is_valid() {
    let world = World::builtin();
    assert!(
        world.gpu("v100").is_some() && world.gpu("p100").is_some() && world.gpu("a100").is_some()
    );
    assert!(world.gpu("k80").is_some());
    assert_eq!(world.workloads().count(), 74);
    assert!(world.mix().count() >= 10);
    // The mix requires GPUs of at least 16 GB.
    let gpus = world.gpus().filter(|gpu| gpu.gpu_type != "k80");
    for (gpu, workload) in gpus.flat_map(|gpu| world.mix().map(move |w| (gpu, w))) {
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

/// The mix determines the random draws of every trace without workloads, so entries are only added
/// outside it.
#[test]
fn the_mix_is_fixed() {
    let world = World::builtin();
    let mix: Vec<&str> = world.mix().map(|workload| workload.id.as_str()).collect();
    expect_test::expect![[r#"
        eaco-alexnet
        eaco-resnet18
        eaco-resnet50
        eaco-vgg16
        bert-squad-b8
        bert-squad-b16
        deepspeech2-librispeech-b32
        deepspeech2-librispeech-b64
        ncf-movielens-b1024
        resnet50-imagenet-b32
        resnet50-imagenet-b64
        resnet50-imagenet-b128
        shufflenetv2-cifar100-b128
        shufflenetv2-cifar100-b512
        shufflenetv2-cifar100-b1024
    "#]]
    .assert_eq(&(mix.join("\n") + "\n"));
}

/// dvfs_sweep.csv: pretraining of MPT 13B on 64 A100s, 0.148333 steps/s at 381.7 W and 400 W cap,
/// 0.0925 steps/s at 196.2 W and 200 W cap.
#[test]
fn language_models_run_as_in_the_published_sweep() {
    let world = World::builtin();
    let a100 = world.gpu("a100").unwrap();
    let job = world.workload("mpt-13b-pretrain-lg").unwrap();
    let tenant = [Tenant { workload: job, gpus: 64, nodes: 8 }];
    let free = world.gpu_state(a100, Setting::default(), &tenant);
    assert!((free.tenants[0].steps_per_s / 0.148_333 - 1.0).abs() < 1e-3, "{free:?}");
    assert!((free.power.as_w() - 381.7).abs() < 1.0, "{free:?}");
    let capped = Setting { cap: Some(Power::from_w(200)), clock_max: None };
    let capped = world.gpu_state(a100, capped, &tenant);
    assert!((capped.tenants[0].steps_per_s / 0.0925 - 1.0).abs() < 1e-3, "{capped:?}");
    assert!((capped.power.as_w() - 196.2).abs() < 1.0, "{capped:?}");
    // Per GPU the published throughput hardly falls from 8 to 128 GPUs.
    let per_gpu = |gpus: u32| job.steps_per_s(a100, gpus, gpus / 8) / f64::from(gpus);
    assert!((per_gpu(64) / per_gpu(8) - 0.996).abs() < 1e-3, "{}", per_gpu(64) / per_gpu(8));
}

/// By hand, from the A100 with 60 W idle of 400 W and 320 W active: the H100 PCIe has the H100's
/// 64 W of 700 W idle, so 32 W of 350 W, and 320 / 340 of the 318 W above it.
#[test]
fn derived_types_follow_the_data_sheets() {
    let world = World::builtin();
    let gpu = |name: &str| world.gpu(name).unwrap();
    assert_eq!(gpu("a40").derived_from, None);
    let pcie = gpu("h100-pcie");
    assert_eq!(pcie.derived_from.as_deref(), Some("h100"));
    assert_eq!((pcie.idle, pcie.cap_default), (Power::from_w(32), Power::from_w(350)));
    assert_eq!(pcie.clock_max(), Frequency::from_mhz(1_755));
    // ResNet-50 runs at the geometric mean of 756/989 and 2000/3350 of the H100's speed on the GPU.
    let job = world.workload("mpt-7b-pretrain").unwrap();
    let ratio = job.steps_per_s(pcie, 48, 6) / job.steps_per_s(gpu("h100"), 48, 6);
    let rule = (756.0_f64 / 989.0 * 2_000.0 / 3_350.0).sqrt();
    assert!((ratio / rule - 1.0).abs() < 0.02, "{ratio} {rule}");
    for gpu in world.gpus() {
        let host = world.host_power(gpu).as_w() + 8.0 * gpu.idle.as_w();
        let waking = gpu.sleep.waking().as_w();
        assert!((waking / host - 1.0).abs() < 0.01, "{}: {waking} {host}", gpu.gpu_type);
        assert!(!gpu.source.is_empty());
    }
}

#[test]
fn types_are_found_by_their_product_names() {
    let world = World::builtin();
    for (name, gpu_type) in [
        ("nvidia_a100-sxm4-80gb", Some("a100")),
        ("NVIDIA A100-SXM4-40GB", Some("a100-40gb")),
        ("nvidia_h100_80gb_hbm3", Some("h100")),
        ("NVIDIA H100 PCIe", Some("h100-pcie")),
        ("a6000", Some("rtxa6000")),
        ("nvidia_l40s", Some("l40s")),
        ("gaudi2", None),
    ] {
        assert_eq!(world.gpu_named(name).map(|gpu| gpu.gpu_type.as_str()), gpu_type, "{name}");
    }
}

#[test]
fn measured_row_is_reproduced() {
    // Zeus, V100: ResNet-50, batch 256, 150 W: 4148.7 s an epoch at 145 W; 3515.0 s at 250 W.
    let world = World::builtin();
    let v100 = world.gpu("v100").unwrap();
    let job = world.workload("resnet50-imagenet-b256").unwrap();
    let tenant = [Tenant { workload: job, gpus: 1, nodes: 1 }];
    let setting = Setting { cap: Some(Power::from_w(150)), clock_max: None };
    let state = world.gpu_state(v100, setting, &tenant);
    assert!((state.tenants[0].speed - 3515.0 / 4148.7).abs() < 1e-3, "{state:?}");
    assert!((state.power.as_w() - 145.0).abs() < 1.0 && state.power_capped, "{state:?}");
    assert!(state.clock < v100.clock_max(), "{state:?}");
    let free = world.gpu_state(v100, Setting::default(), &tenant);
    assert!((free.tenants[0].steps_per_s - 5005.0 / 3515.0).abs() < 1e-3, "{free:?}");
}

#[test]
fn gpu_without_tenants_is_idle() {
    let world = World::builtin();
    for gpu in world.gpus() {
        let state = world.gpu_state(gpu, Setting::default(), &[]);
        assert_eq!((state.power, state.utilization_gpu), (gpu.idle, 0.0));
        assert!(state.clock > Frequency::ZERO && !gpu.clocks.is_empty());
    }
}

/// Power of an idle node, awake and asleep: these figures determine the benefit of consolidation.
#[test]
fn sleeping_node_draws_little_and_waking_costs_energy() {
    let world = World::builtin();
    for (gpu_type, awake_w, asleep_w) in
        [("v100", 384, 30), ("p100", 384, 30), ("a100", 1480, 60), ("k80", 352, 30)]
    {
        let gpu = world.gpu(gpu_type).unwrap();
        let awake = world.host_power(gpu) + gpu.idle.scale(f64::from(gpu.node_gpus));
        assert_eq!(
            (awake.as_w().round() as u64, gpu.sleep.power),
            (awake_w, Power::from_w(asleep_w))
        );
        // Waking takes minutes at idle power, so sleeping for less than a minute never saves energy.
        assert!((gpu.sleep.waking().as_w() - awake.as_w()).abs() < 1.0, "{gpu:?}");
        assert!(gpu.sleep.wake.as_secs() >= 60 && gpu.sleep.enter < gpu.sleep.wake);
    }
}

fn error_of(file: &str, from: &str, to: &str) -> CatalogError {
    let mut files = World::builtin_files().to_vec();
    let entry = files.iter_mut().find(|(name, _)| *name == file).expect("a built-in file");
    assert!(entry.1.contains(from), "{from}");
    let text = entry.1.replacen(from, to, 1);
    entry.1 = &text;
    World::from_toml(&files).expect_err("an invalid file")
}

#[test]
fn errors_name_file_entry_and_remedy() {
    let cases = [
        ("eaco.toml", "scaling = \"resnet50\"", "scaling = \"no\"", "no [[scaling]] named `no`"),
        ("eaco.toml", "gpu = \"v100\"", "gpu = \"v10\"", "no [[gpu]] with gpu_type `v10`"),
        ("eaco.toml", "id = \"eaco-vgg16\"", "id = \"eaco-alexnet\"", "its own id"),
        ("eaco.toml", "[\"vgg16\"]", "[\"alexnet\"]", "keep one"),
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
        let error = error_of(file, from, to).to_string();
        assert!(error.starts_with(file) && error.contains(expected), "{error}");
    }
    let error = error_of("gpus.toml", "idle_w", "idle_watts");
    assert!(matches!(&error, CatalogError::Syntax { file, .. } if file == "gpus.toml"), "{error}");
    assert!(matches!(World::from_toml(&[]), Err(CatalogError::Incomplete(_))));
}

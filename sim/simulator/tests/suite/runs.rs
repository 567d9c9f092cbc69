//! Properties of simulated runs. The plan checker runs inside each of them.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::job::GpuRequest;
use wattle_placer::policies::{Capabilities, Fifo, Policy, Reads};
use wattle_placer::state::work_history::SizeHistory;
use wattle_placer::{Plan, PlanningInput};
use wattle_simulator::{
    CarbonSeries, ErrorShape, Lengths, RunOptions, Scenario, SimJob, SurfaceNoise, Work, gather,
    run_with, trace,
};
use wattle_testkit::cases;
use wattle_world::{Setting, Tenant, World};

use crate::named::{run, run_oracle, run_policy};

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(World::builtin)
}

fn job(name: &str, workload: &str, submit_s: u64, lasts_s: u64) -> SimJob {
    let work = Work::Lasts(Duration::from_secs(lasts_s));
    let submit = Duration::from_secs(submit_s);
    SimJob::new(name.parse().unwrap(), submit, 1, workload.parse().unwrap(), work)
}

fn scenario(cluster: &str, jobs: Vec<SimJob>) -> Scenario {
    Scenario::new("test", cluster.parse().unwrap(), jobs, 7)
}

fn jobs(workloads: Vec<String>) -> impl Strategy<Value = Vec<SimJob>> {
    let one = (
        prop::sample::select(workloads),
        0u64..20_000,
        0u64..30_000,
        prop_oneof![6 => 1u32..3, 3 => 4u32..9, 1 => 10u32..40],
        prop::option::weighted(0.3, 100u64..200),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.8)),
        prop::option::weighted(0.8, 50u64..5_000),
    );
    prop::collection::vec(one, 1..30).prop_map(|rows| {
        let mut jobs = Vec::new();
        for (workload, submit_s, lasts_s, gpus, slack, (exclusive, can_stop), epoch) in rows {
            let spec = job(&format!("j{}", jobs.len()), &workload, submit_s, lasts_s);
            let slack = slack.map(|percent| Duration::from_secs(lasts_s * percent / 100));
            jobs.push(SimJob {
                gpus: GpuRequest::exactly(gpus),
                deadline: slack.map(|slack| spec.submit + slack),
                slack: None,
                duration_estimate: slack.map(|_| Duration::from_secs(lasts_s)),
                exclusive,
                can_stop,
                steps_per_epoch: epoch,
                ..spec
            });
        }
        jobs
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(5, 24)))]

    /// Every job finishes or is rejected as too large, under every policy; no plan breaks a rule;
    /// and a second run is identical.
    #[test]
    fn every_job_finishes_or_is_rejected(
        jobs in jobs(world().workloads().map(|w| w.id.to_string()).collect()),
        cluster in prop::sample::select(vec!["1x1:v100", "3x4:v100", "2x8:v100,1x4:p100", "5x2:v100"]),
        seed in any::<u64>(),
    ) {
        let world = world();
        let scenario = Scenario { seed, ..scenario(cluster, jobs) };
        let outcome = run(world, &scenario, &NAMES).unwrap();
        for p in &outcome.policies {
            prop_assert_eq!(p.finished + p.rejected, p.jobs, "{:?}", p);
            prop_assert!((0.0..=1.0).contains(&p.gpu_utilization_mean), "{:?}", p);
            prop_assert!(p.active_nodes_mean <= scenario.cluster.node_count() as f64, "{:?}", p);
            prop_assert!(p.undone <= p.migrations, "an undone job is placed again: {:?}", p);
        }
        let again = run(world, &scenario, &NAMES).unwrap();
        prop_assert_eq!(outcome.to_json(), again.to_json());
        for name in NAMES {
            let Some(knowing) = run_oracle(world, &scenario, name).unwrap() else { continue };
            prop_assert_eq!(knowing.finished + knowing.rejected, knowing.jobs, "{:?}", knowing);
            // The oracle's predictions are exact, with and without co-tenants.
            let errors = knowing.prediction.as_ref().unwrap();
            for error in [errors.speed, errors.relative_speed, errors.power] {
                prop_assert_eq!(error.n > 0, error.mape == Some(0.0), "{:?}", errors);
                prop_assert_eq!(error.n > 0, error.coverage90 == Some(1.0), "{:?}", errors);
            }
            prop_assert_eq!(Some(knowing), run_oracle(world, &scenario, name).unwrap());
        }
    }
}

/// For a trace without model names, the seed determines the workloads and the results.
#[test]
fn the_seed_determines_workload_mix_and_results() {
    const JOBS: usize = 24;
    let mut text = "job_id,submit_s,duration_s,num_gpus,vc\n".to_owned();
    for i in 0..JOBS {
        text += &format!("{i},{},{},{},x\n", i * 300, 500 + i * 37 % 20_000, 1 + i % 3);
    }
    let world = world();
    let trace = trace::parse("made.csv", text.as_bytes()).unwrap();
    let json = |seed| {
        let cluster = "4x4:v100".parse().unwrap();
        let scenario = Scenario::from_trace(world, &trace, &cluster, seed).unwrap();
        assert!(scenario.workloads.iter().all(|share| share.drawn && share.model.is_none()));
        assert_eq!(scenario.workloads.iter().map(|share| share.jobs).sum::<usize>(), JOBS);
        run(world, &scenario, &NAMES).unwrap().to_json()
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

/// Computed by hand: two of four GPUs are busy for an hour, then one for half an hour.
#[test]
fn energy_and_carbon_include_whole_nodes() {
    let world = world();
    let gpu = world.gpu("v100").unwrap();
    let id = "resnet50-imagenet-b128";
    let tenant = Tenant { workload: world.workload(id).unwrap(), gpus: 1, nodes: 1 };
    let watts =
        |tenants: &[Tenant<'_>]| world.gpu_state(gpu, Setting::default(), tenants).power.as_w();
    let (busy, idle) = (watts(&[tenant]), watts(&[]));
    let host = world.host_power_of(gpu, 2).as_w();
    let mut scenario =
        scenario("2x2:v100", vec![job("a", id, 600, 3_600), job("b", id, 600, 5_400)]);
    scenario.carbon = Some(CarbonSeries::parse("c", "at_s,g_per_kwh\n0,400\n").unwrap());
    let fifo = run_policy(world, &scenario, "fifo").unwrap();
    let joules =
        2.0 * host * 5_400.0 + (2.0 * busy + 2.0 * idle) * 3_600.0 + (busy + 3.0 * idle) * 1_800.0;
    let kwh = joules / 3.6e6;
    assert!((fifo.energy_kwh - kwh).abs() < 2e-6, "{} kWh, by hand {kwh}", fifo.energy_kwh);
    assert!((fifo.carbon_kg.unwrap() - kwh * 0.4).abs() < 2e-6, "{:?}", fifo.carbon_kg);
    assert_eq!((fifo.makespan_s, fifo.active_nodes_mean), (5_400.0, 1.0));
    // One of two GPUs of the active node is free in the last half hour.
    assert!((fifo.fragmented_gpus_mean - 1.0 / 3.0).abs() < 1e-6, "{}", fifo.fragmented_gpus_mean);
    assert_eq!((fifo.jct_s_p50, fifo.jct_s_p95), (Some(3_600.0), Some(5_400.0)));
}

/// The predictor has no window of the pair and underestimates the interference. At its measured
/// speed the urgent job would miss its deadline, so the co-location is undone.
#[test]
fn eaco_undoes_a_placement_that_breaks_a_deadline_and_the_job_still_finishes() {
    let world = world();
    let (light, heavy) = ("eaco-alexnet", "eaco-vgg16");
    let lasts = Duration::from_secs(10_000);
    let urgent = SimJob {
        deadline: Some(Duration::from_secs(2_000 + 11_000)),
        duration_estimate: Some(lasts),
        steps_per_epoch: Some(1_000),
        ..job("urgent", light, 2_000, 10_000)
    };
    let newcomer = SimJob { steps_per_epoch: Some(1_000), ..job("newcomer", heavy, 3_000, 20_000) };
    // The first job provides windows of the heavy workload in exclusive use.
    let jobs = vec![job("teacher", heavy, 0, 1_200), urgent, newcomer];
    let eaco = run_policy(world, &scenario("1x2:v100", jobs), "eaco").unwrap();
    assert_eq!((eaco.finished, eaco.shared_starts), (3, 1), "{eaco:?}");
    assert_eq!((eaco.undone, eaco.migrations, eaco.deadlines_missed), (1, 1, 0), "{eaco:?}");
    assert!(eaco.restart_gpu_h > 0.0, "an undone job restarts: {eaco:?}");
    // The job keeps its progress up to the last epoch: its loss is positive, and less than the time
    // of its co-location.
    let alone = (1_200.0 + 10_000.0 + 20_000.0) / 3.0;
    let lost = (eaco.runtime_s_mean.unwrap() - alone) * 3.0;
    assert!(lost > 0.0 && lost < 2_000.0, "{lost} s lost");
}

/// With noisy surfaces, packing policies co-locate a pair whose speed is overestimated, observe it,
/// and undo the co-location. With true surfaces nothing is undone.
#[test]
fn packing_policies_undo_a_losing_pair_and_both_jobs_finish() {
    let world = world();
    let id = "deepspeech2-librispeech-b8";
    let epochs = |job: SimJob| SimJob { steps_per_epoch: Some(100), ..job };
    let jobs = vec![epochs(job("old", id, 0, 20_000)), epochs(job("new", id, 1_000, 20_000))];
    let scenario = scenario("1x1:v100", jobs);
    for name in ["fifo-packed", "gandiva", "wattle"] {
        let packer = policy(name).unwrap();
        let run = |surface_noise: Option<SurfaceNoise>| {
            let options = RunOptions { oracle: true, surface_noise, ..RunOptions::default() };
            run_with(world, &scenario, &*packer, &options).unwrap()
        };
        let knowing = run(None);
        assert_eq!((knowing.finished, knowing.undone), (2, 0), "{name}: {knowing:?}");
        let fooled: Vec<_> = (0..30)
            .map(|seed| {
                run(Some(SurfaceNoise { shape: ErrorShape::Independent, share: 0.6, seed }))
            })
            .collect();
        assert!(fooled.iter().all(|run| run.finished == 2), "{name}");
        assert!(fooled.iter().any(|run| run.undone > 0), "{name}: nothing is undone");
        // On one GPU there is one pair, which is undone at most twice.
        assert!(fooled.iter().all(|run| run.undone <= 2), "{name}: {fooled:?}");
    }
}

/// As in the published tables: co-located light jobs run little longer, and the cluster consumes
/// much less energy because a second node stays idle.
#[test]
fn eaco_co_locates_light_jobs() {
    let world = world();
    let whole_node = |name: &str, submit_s| SimJob {
        gpus: GpuRequest::exactly(8),
        ..job(name, "eaco-alexnet", submit_s, 36_000)
    };
    let jobs = vec![
        whole_node("a", 0),
        whole_node("b", 1_200),
        whole_node("c", 1_300),
        whole_node("d", 1_400),
    ];
    let scenario = scenario("2x8:v100", jobs);
    let outcome = run(world, &scenario, &["fifo", "eaco"]).unwrap();
    let [fifo, eaco] = &outcome.policies[..] else { panic!("{outcome:?}") };
    assert!(eaco.shared_starts >= 2, "{eaco:?}");
    assert!(eaco.runtime_s_mean.unwrap() < 1.05 * fifo.runtime_s_mean.unwrap(), "{eaco:?}");
    assert!(eaco.energy_kwh < 0.7 * fifo.energy_kwh, "{eaco:?} against {fifo:?}");
}

#[test]
fn a_job_that_is_too_large_is_rejected_and_does_not_block() {
    let world = world();
    let large = SimJob { gpus: GpuRequest::exactly(9), ..job("large", "eaco-vgg16", 0, 60) };
    let scenario = scenario("2x4:v100", vec![large, job("small", "eaco-vgg16", 1, 60)]);
    for name in NAMES {
        let run = run_policy(world, &scenario, name).unwrap();
        assert_eq!((run.finished, run.rejected, run.makespan_s), (1, 1, 61.0), "{name}");
        assert_eq!(
            run.notes[0],
            "job large was rejected: requests 9 GPUs; the cluster of 8 cannot provide them"
        );
    }
}

#[test]
fn work_in_steps_runs_at_the_worlds_rate() {
    let world = world();
    let workload = world.workload("resnet50-imagenet-b128").unwrap();
    let rate = workload.steps_per_s(world.gpu("v100").unwrap(), 1, 1);
    let steps = SimJob { work: Work::Steps(1_000), ..job("s", workload.id.as_str(), 0, 0) };
    let run = run_policy(world, &scenario("1x1:v100", vec![steps]), "fifo").unwrap();
    assert!((run.makespan_s - 1_000.0 / rate).abs() < 1e-5, "{run:?}");
}

#[test]
fn the_table_fits_a_terminal() {
    let world = world();
    let text = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n\
                0,2,10,1000,vgg19,164,30\n1,1,5,9,resnet50,500,10\n2,64,20,1,mystery,5,1\n";
    let trace = trace::parse("small.csv", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(world, &trace, &"2x4:v100".parse().unwrap(), 3).unwrap();
    let outcome = run(world, &scenario, &NAMES).unwrap();
    let table = outcome.to_table();
    assert!(
        table.lines().all(|line| line.chars().count() <= 80 || line.starts_with("note: ")),
        "{table}"
    );
    for text in [
        "fifo-packed",
        "2/3",
        "drawn for mystery",
        "1 row out of order, sorted by submission (line 3)",
        "rejected",
        "prediction error",
    ] {
        assert!(table.contains(text), "`{text}` is not in\n{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&outcome.to_json()).unwrap();
    let promised = [
        "policy",
        "jobs",
        "finished",
        "jct_s_mean",
        "jct_s_p50",
        "jct_s_p95",
        "jct_s_p99",
        "wait_s_mean",
        "runtime_s_mean",
        "makespan_s",
        "energy_kwh",
        "carbon_kg",
        "active_nodes_mean",
        "fragmented_gpus_mean",
        "gpu_utilization_mean",
        "rescales",
        "migrations",
        "wall_s",
        "oracle",
        "prediction",
    ];
    for field in promised {
        assert!(json["policies"][0].get(field).is_some(), "{field} is gone from the JSON");
    }
    assert!(json["policies"][0]["carbon_kg"].is_null());
}

/// All jobs that arrive at once have the prior of their class, whatever their number.
#[test]
fn simultaneous_arrivals_all_have_their_class_prior() {
    let mut jobs = vec![job("first", "eaco-alexnet", 0, 90_000)];
    jobs.extend((0..8).map(|i| job(&format!("j{i}"), "eaco-alexnet", 50_000, 9_000)));
    let outcome = run_policy(world(), &scenario("2x8:v100", jobs), "eaco").unwrap();
    // One job shares the GPU of the first. Of the others, every second one shares the GPU of its
    // predecessor.
    assert_eq!(outcome.shared_starts, 4, "{outcome:?}");
}

/// A run of excessive length is rejected.
#[test]
fn excessive_times_are_an_error() {
    let lasts_s = 31_000_000_000;
    let jobs = (0..200).map(|i| job(&format!("j{i}"), "eaco-vgg16", i, lasts_s)).collect();
    let error = run_policy(world(), &scenario("1x1:v100", jobs), "eaco").unwrap_err().to_string();
    assert!(error.contains("times in seconds"), "{error}");
}

/// Prediction errors of an unobserved class equal those computed here from the world.
#[test]
fn prediction_errors_equal_hand_computed_values() {
    let world = world();
    let outcome = run(
        world,
        &scenario("1x1:v100", vec![job("a", "eaco-vgg16", 0, 3_600)]),
        &["fifo", "eaco"],
    )
    .unwrap();
    let [fifo, eaco] = &outcome.policies[..] else { panic!("{outcome:?}") };
    assert_eq!(fifo.prediction, None, "fifo reads no surfaces");
    let errors = eaco.prediction.as_ref().unwrap();
    assert_eq!((errors.placements, errors.prior_share), (1, Some(1.0)));
    // An unobserved class has no predicted rate, and there is no shared stretch.
    assert_eq!((errors.speed.n, errors.speed.mape), (0, None));
    assert_eq!((errors.relative_speed.n, errors.relative_speed.coverage90), (0, None));
    // The prior of power, read as the policy does, against that of the one GPU.
    let mut predictor =
        wattle_predictor::Predictor::new(wattle_predictor::PredictorConfig::shipped());
    let now = wattle_common::Timestamp::from_us(0);
    let workload: wattle_common::WorkloadId = "eaco-vgg16".parse().unwrap();
    let id: wattle_common::JobId = "a".parse().unwrap();
    predictor.describe(now, id.clone(), Some(workload), GpuRequest::exactly(1), Some("v100"));
    let surface = predictor.surface(now, &id).unwrap();
    let alone = |p: &&wattle_common::messages::SurfacePoint| {
        p.neighbours.is_empty() && p.cap_mw.is_none() && (p.gpus, p.nodes) == (1, 1)
    };
    let expected = surface.points.iter().find(alone).unwrap().gpu_power_w;
    let tenant = Tenant { workload: world.workload("eaco-vgg16").unwrap(), gpus: 1, nodes: 1 };
    let gpu = world.gpu("v100").unwrap();
    let drawn = world.gpu_state(gpu, Setting::default(), &[tenant]).power.as_w();
    let off = 100.0 * (expected.mean - drawn).abs() / drawn;
    assert_eq!(errors.power.n, 1);
    assert!((errors.power.mape.unwrap() - off).abs() < 1e-5, "{errors:?}, by hand {off} %");
    assert!(off > 1.0, "the prior cannot be right by chance: {off} %");
    let held = expected.low <= drawn && drawn <= expected.high;
    assert_eq!(errors.power.coverage90, Some(f64::from(u8::from(held))));
}

/// For some unobserved pairs the prior overestimates interference, so they are not co-located and
/// wait. The oracle co-locates them, and its surfaces are exact.
#[test]
fn a_wrong_prior_has_a_cost_against_the_oracle() {
    let world = world();
    let pairs = [
        ("shufflenetv2-cifar100-b512", "shufflenetv2-cifar100-b512"),
        ("shufflenetv2-cifar100-b1024", "shufflenetv2-cifar100-b256"),
        ("shufflenetv2-cifar100-b512", "deepspeech2-librispeech-b72"),
        ("eaco-alexnet", "shufflenetv2-cifar100-b256"),
        ("deepspeech2-librispeech-b2", "eaco-alexnet"),
    ];
    let mut worst = 0.0f64;
    for (even, odd) in pairs {
        let workload = |i| if i % 2 == 0 { even } else { odd };
        let jobs = (0..6).map(|i| job(&format!("j{i}"), workload(i), 10 * i, 20_000)).collect();
        let scenario = scenario("1x2:v100", jobs);
        let own = run_policy(world, &scenario, "fifo-packed").unwrap();
        let knowing = run_oracle(world, &scenario, "fifo-packed").unwrap().unwrap();
        assert!(!own.oracle && knowing.oracle);
        let errors = knowing.prediction.as_ref().unwrap();
        for error in [errors.speed, errors.power] {
            assert_eq!((error.mape, error.coverage90), (Some(0.0), Some(1.0)), "{errors:?}");
            assert!(error.n >= 6, "{errors:?}");
        }
        assert_eq!(errors.prior_share, None);
        assert!(own.prediction.as_ref().unwrap().power.mape.unwrap() > 0.0, "{own:?}");
        let ratio = own.jct_s_mean.unwrap() / knowing.jct_s_mean.unwrap();
        assert!(ratio > 0.97, "{even} and {odd}: knowing is slower, {ratio}");
        let outcome = gather(&scenario, vec![own, knowing]);
        let [regret] = &outcome.prediction_regret[..] else { panic!("{outcome:?}") };
        assert!((regret.jct_s_mean_ratio.unwrap() - ratio).abs() < 1e-6, "{regret:?}");
        assert!(outcome.to_table().contains("fifo-packed: prediction regret "), "{outcome:?}");
        worst = worst.max(ratio);
    }
    assert!(worst > 1.02, "prediction regret {worst}");
    let scenario = scenario("1x2:v100", vec![job("a", "eaco-vgg16", 0, 60)]);
    assert_eq!(
        run_oracle(world, &scenario, "fifo").unwrap(),
        None,
        "fifo reads no surfaces, so there is no oracle run"
    );
}

/// SRTF knows at its arrival that the second job is shorter; the first resumes after it and loses
/// only the restart time.
#[test]
fn srtf_preempts_the_longer_job() {
    let id = "resnet50-imagenet-b128";
    let jobs = vec![job("long", id, 0, 10_000), job("short", id, 100, 1_000)];
    let scenario = scenario("1x1:v100", jobs);
    let srtf = run_policy(world(), &scenario, "srtf").unwrap();
    assert_eq!((srtf.jct_s_p50, srtf.jct_s_p95), (Some(1_000.0), Some(11_031.0)));
    assert_eq!((srtf.migrations, srtf.rescales), (1, 0));
    let fifo = run_policy(world(), &scenario, "fifo").unwrap();
    assert_eq!((fifo.jct_s_p50, fifo.jct_s_p95), (Some(10_000.0), Some(10_900.0)));
}

/// FIFO that stores the work history of its first planning.
struct Remembers(Fifo, Mutex<Option<SizeHistory>>);

impl Policy for Remembers {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::All, is_elastic: true, ..Capabilities::default() }
    }
    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        self.1.lock().unwrap().get_or_insert_with(|| input.state.work_history().clone());
        self.0.solve(input)
    }
}

/// The work history is empty unless configured, and then resembles the trace's jobs.
#[test]
fn the_work_history_resembles_the_jobs_of_the_trace() {
    let world = world();
    // All jobs differ in work, which is measured in GPU-seconds.
    let (gpus, lasts_s) = (|i| if i % 2 == 0 { 4 } else { 1 }, |i: u64| 3_600 + 90 * i);
    let jobs = (1..=40).map(|i| SimJob {
        gpus: GpuRequest::exactly(gpus(i)),
        ..job(&format!("j{i}"), "resnet50-imagenet-b128", 10 * i, lasts_s(i))
    });
    let scenario = scenario("2x4:v100", jobs.collect());
    let work_s = (1..=40).map(|i| (u64::from(gpus(i)) * lasts_s(i)) as f64);
    let come_s = work_s.sum::<f64>() / 40.0;
    for (lengths, past) in [(Lengths::Unknown, 0), (Lengths::Past, 40)] {
        let policy = Remembers(Fifo, Mutex::default());
        let options = RunOptions { oracle: true, lengths, ..RunOptions::default() };
        run_with(world, &scenario, &policy, &options).unwrap();
        let sizes = policy.1.into_inner().unwrap().unwrap();
        assert_eq!(sizes.len(), past);
        // Independent draws: the mean is close to that of the trace, but not equal.
        if let Some(mean_s) = sizes.mean_s() {
            let off = (mean_s / come_s - 1.0).abs();
            assert!((1e-6..0.4).contains(&off), "{mean_s} s where {come_s} s come");
        }
    }
}

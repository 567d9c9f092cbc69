//! Golden tests of every trace format on a small file: its jobs and notes.
//!
//! `UPDATE_EXPECT=1` updates the expected files.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use expect_test::expect_file;
use wattle_simulator::measured::Measured;
use wattle_simulator::trace::{self, Trace};
use wattle_simulator::{LoadError, Scenario, Work};
use wattle_world::World;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name)
}

/// One line per job, without missing properties, and one per note.
fn shown(trace: &Trace) -> String {
    let mut text = format!("{}\n", trace.format);
    for job in &trace.jobs {
        let s = |span: Duration| format!("{} s", span.as_secs_f64());
        text += &format!("{}: {} GPUs from {}", job.id, job.gpus, s(job.submit));
        text += &format!(" for {}", s(job.duration));
        let known = [
            ("model", job.model.clone()),
            ("batch", job.batch.map(|batch| batch.to_string())),
            ("iterations", job.iterations.map(|count| count.to_string())),
            ("workload", job.workload.clone()),
            ("by", job.deadline.map(|by| format!("{} {:?}", s(by), job.deadline_kind))),
            ("user", job.user.clone()),
            ("recurs as", job.recurs_as.clone()),
            ("on", job.gpu_type.clone()),
            ("started", job.started.map(s)),
            ("ended", job.ended.map(s)),
            ("partition", job.partition.clone()),
            ("nodes", (!job.node_names.is_empty()).then(|| job.node_names.join(" "))),
            ("can checkpoint", job.can_checkpoint.map(|can| can.to_string())),
        ];
        for (what, known) in known {
            if let Some(known) = known {
                text += &format!(", {what} {known}");
            }
        }
        text += "\n";
    }
    for note in &trace.notes {
        text += &format!("note: {note}\n");
    }
    text
}

#[test]
fn every_trace_format_is_read() {
    for (key, name) in [
        ("helios", "helios.csv"),
        ("acme", "acme.csv"),
        ("pai2020", "pai2020.csv"),
        ("pai2023", "pai2023.csv"),
        ("philly", "philly.json"),
        ("sacct", "sacct.json"),
        ("philly", "philly.csv"),
        ("tiresias", "tiresias.csv"),
        ("elasticflow", "elasticflow.csv"),
        ("chronus", "chronus.csv"),
        ("gavel", "gavel.trace"),
        ("sacct", "sacct.txt"),
        ("sacct", "sacct-old.txt"),
        ("sacct", "sacct-odd.txt"),
    ] {
        let trace = trace::read(&file(name)).unwrap();
        expect_file![file(&format!("{name}.jobs"))].assert_eq(&shown(&trace));
        // Named or recognised, plain or packed, it is the same.
        assert_eq!(trace::read_as(&file(name), Some(key)).unwrap(), trace, "{name}");
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&std::fs::read(file(name)).unwrap()).unwrap();
        assert_eq!(trace::parse(name, &gz.finish().unwrap()).unwrap(), trace, "{name}");
        // Nothing is lost: every row is a job, or is left out by name, or is of a job left out.
        let lines = std::fs::read_to_string(file(name)).unwrap().lines().count();
        let rows = match name {
            "gavel.trace" | "pai2020.csv" => lines,
            // One row for each attempt, and one for a job without any.
            "philly.json" => 5,
            "sacct.json" => 4,
            _ => lines - 1,
        };
        let left_out = trace.notes.iter().filter(|note| note.what.starts_with("left out"));
        let left_out: usize = left_out.map(|note| note.count).sum();
        assert_eq!(trace.jobs.len() + left_out, rows, "{name}");
    }
}

#[test]
fn recurring_jobs_share_a_workload_and_unknown_gpu_types_are_noted() {
    let world = World::builtin();
    let mut text = "JobID|JobName|User|Submit|Elapsed|AllocTRES\n".to_owned();
    for i in 0..40 {
        let (user, name) = (["ada", "bob"][i % 2], ["fit", "sweep"][i / 2 % 2]);
        text += &format!("{i}|{name}|{user}|{}|01:00:00|gres/gpu:h100=1\n", 1_714_982_400 + i);
    }
    let trace = trace::parse("s", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"2x4:v100".parse().unwrap(), 5).unwrap();
    for (job, first) in scenario.jobs.iter().enumerate().map(|(i, job)| (job, i % 4)) {
        assert_eq!(job.workload, scenario.jobs[first].workload);
    }
    assert!(scenario.workloads.len() > 1, "{:?}", scenario.workloads);
    assert!(scenario.workloads.iter().all(|share| share.drawn));
    assert_eq!(
        scenario.notes,
        ["40 jobs ran on GPUs that 2x4:v100 does not have (h100); the same run time is used"]
    );
}

#[test]
fn work_is_counted_in_steps_where_the_catalog_has_model_and_batch() {
    let world = World::builtin();
    let header = "job_id,submit_time,model_name,ddl,batch_size,num_gpu,duration,iteration\n";
    // The catalog lacks this batch, so the model's workload runs for the trace's duration.
    let text =
        format!("{header}0,0,resnet50-imagenet,90,128,2,60,500\n1,0,resnet50,90,77,2,60,500\n");
    let trace = trace::parse("e", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"2x4:v100".parse().unwrap(), 5).unwrap();
    let [steps, lasts] = &scenario.jobs[..] else { panic!("{scenario:?}") };
    assert_eq!(steps.workload.as_str(), "resnet50-imagenet-b128");
    assert_eq!((steps.work, lasts.work), (Work::Steps(500), Work::Lasts(Duration::from_secs(60))));
    assert_eq!(steps.deadline, Some(Duration::from_secs(90)));
}

/// By hand: 2 GPUs for 100 s and 4 for 50 s, on 8 GPUs over 100 s of arrivals.
#[test]
fn load_is_reported_and_set() {
    let world = World::builtin();
    let text = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,workload,deadline\n\
                a,2,50,1,,100,0,eaco-vgg16,250\nb,4,150,1,,50,0,eaco-vgg16,\n";
    let trace = trace::parse("l", text.as_bytes()).unwrap();
    let mut scenario =
        Scenario::from_trace(&world, &trace, &"1x8:v100".parse().unwrap(), 5).unwrap();
    assert_eq!(scenario.load, Some(0.5));
    scenario.set_load(&world, 2.0).unwrap();
    assert_eq!(scenario.load, Some(2.0));
    let times: Vec<u64> = scenario.jobs.iter().map(|job| job.submit.as_secs()).collect();
    assert_eq!((times, scenario.jobs[0].deadline), (vec![50, 75], Some(Duration::from_secs(250))));
    scenario.set_load(&world, 0.25).unwrap();
    assert_eq!(scenario.jobs[1].submit, Duration::from_secs(250));
    for load in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(scenario.set_load(&world, load), Err(LoadError::NoLoad { .. })), "{load}");
    }
    assert!(matches!(scenario.set_load(&world, 1e-12), Err(LoadError::TooLong { .. })));
    scenario.jobs.truncate(1);
    assert_eq!(scenario.offered_load(&world), None);
    assert_eq!(scenario.set_load(&world, 0.5), Err(LoadError::AllAtOnce));
}

#[test]
fn another_order_moves_whole_jobs_over_the_same_arrivals() {
    let world = World::builtin();
    let mut text =
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,deadline\n".to_owned();
    for i in 0..50 {
        text += &format!("{i},{},{},1,,{},0,{}\n", 1 + i % 3, 10 * i, 100 + i, 10 * i + 500 + i);
    }
    let trace = trace::parse("o", text.as_bytes()).unwrap();
    let own = Scenario::from_trace(&world, &trace, &"2x4:v100".parse().unwrap(), 5).unwrap();
    let ordered = |order| {
        let mut scenario = own.clone();
        scenario.set_order(order);
        scenario
    };
    assert_eq!(ordered(0), own);
    assert_eq!(ordered(3), ordered(3));
    assert_ne!(ordered(3), ordered(4));
    let other = ordered(1);
    assert_eq!(other.offered_load(&world), own.load);
    let times = |scenario: &Scenario| scenario.jobs.iter().map(|j| j.submit).collect::<Vec<_>>();
    assert_eq!(times(&other), times(&own));
    let ids = |scenario: &Scenario| scenario.jobs.iter().map(|j| j.id.clone()).collect::<Vec<_>>();
    assert_ne!(ids(&other), ids(&own));
    for job in &other.jobs {
        let before = own.jobs.iter().find(|own| own.id == job.id).unwrap();
        let allowed = |job: &wattle_simulator::SimJob| job.deadline.map(|by| by - job.submit);
        assert_eq!((job.work, job.gpus, allowed(job)), (before.work, before.gpus, allowed(before)));
    }
}

/// The public traces, where available, are read completely; rows left out are noted.
#[test]
fn the_public_traces_are_read_completely() {
    let data = std::env::var_os("WATTLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    if !data.join("traces").is_dir() {
        let why = format!("NOT RUN: {} has no traces; set WATTLE_DATA", data.display());
        writeln!(std::io::stderr(), "{why}").unwrap();
        return;
    }
    let file = |name: &str| data.join("traces").join(name);
    for (name, format, jobs, left_out) in [
        ("philly_jobs.csv.gz", "Philly", 82_247, 0),
        ("philly_5k_tiresias_format.csv", "Tiresias", 5_000, 0),
        ("tiresias_60_job.csv", "Tiresias", 60, 0),
        ("gavel_msr_e13805.trace", "Gavel", 504, 0),
        ("elasticflow_philly_103959.csv", "ElasticFlow", 876, 0),
        // Jobs that ask for no GPU.
        ("trace_job_Philly_SLO.csv.gz", "Chronus", 30_735, 205),
        ("trace_job_Philly_MIX1.csv.gz", "Chronus", 30_756, 184),
    ] {
        let trace = trace::read(&file(name)).unwrap();
        let noted = trace.notes.iter().filter(|note| note.what.starts_with("left out"));
        let noted: usize = noted.map(|note| note.count).sum();
        assert_eq!((trace.format, trace.jobs.len(), noted), (format, jobs, left_out), "{name}");
    }
    // On the measured files the run time of ElasticFlow's iterations equals the traced duration;
    // VGG-16's rates are rounded.
    let world = Measured::find(&data).unwrap().world().unwrap();
    let trace = trace::read(&file("elasticflow_philly_103959.csv")).unwrap();
    let cluster = "16x8:a100".parse().unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &cluster, 7).unwrap();
    let a100 = world.gpu("a100").unwrap();
    for (job, read) in scenario.jobs.iter().zip(&trace.jobs) {
        let Work::Steps(steps) = job.work else { panic!("{job:?}") };
        let rate =
            world.workload(job.workload.as_str()).unwrap().steps_per_s(a100, job.gpus.min, 1);
        let off = steps as f64 / rate / read.duration.as_secs_f64() - 1.0;
        assert!(off.abs() < 0.002 || read.duration.as_secs() < 600, "{job:?}: {off}");
    }
    assert!(scenario.workloads.iter().all(|share| !share.drawn), "{:?}", scenario.workloads);
    let load = scenario.load.unwrap();
    assert!((load - 0.15).abs() < 0.005, "natural load {load}");
}

/// A job larger than the cluster is rejected and does not count in the load.
#[test]
fn oversized_jobs_do_not_count_as_load() {
    let world = World::builtin();
    let load = |more: &str| {
        let text = format!("job_id,submit_s,duration_s,num_gpus\na,0,600,4\nb,1000,600,4\n{more}");
        let trace = trace::parse("t.csv", text.as_bytes()).unwrap();
        let cluster = "2x4:v100".parse().unwrap();
        Scenario::from_trace(&world, &trace, &cluster, 7).unwrap().load.unwrap()
    };
    assert!((load("") - 0.6).abs() < 1e-9);
    assert!((load("c,900,600,4294967295\n") - 0.6).abs() < 1e-9);
    assert!(load("c,900,600,8\n") > 1.0);
}

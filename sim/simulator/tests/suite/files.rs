//! Trace files as sites have them: clocks that change, suspended jobs, encodings, line ends, several
//! clusters, other programs' outputs.

use std::time::Duration;

use wattle_simulator::replay::replay;
use wattle_simulator::trace::{self, Trace};
use wattle_simulator::{CarbonSeries, Scenario};
use wattle_world::World;

const HEADER: &str = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|NNodes|NodeList\n";

fn parse(text: &str) -> Trace {
    trace::parse("s.txt", text.as_bytes()).unwrap()
}

/// A job of eight A100 on one node, with its times as in the export.
fn job(id: u32, times: [&str; 3], elapsed: &str, node: &str) -> String {
    let [submit, start, end] = times;
    format!("{id}|{submit}|{start}|{end}|{elapsed}|COMPLETED|gres/gpu:a100=8,gres/gpu=8|1|{node}\n")
}

fn shape(trace: &Trace) -> String {
    trace::infer(&World::builtin(), trace).unwrap().shape.to_string()
}

fn notes(trace: &Trace) -> String {
    trace.notes.iter().map(|note| format!("{note}\n")).collect()
}

/// Duration, start and end of each job, seconds.
fn runs(trace: &Trace) -> Vec<(u64, Option<u64>, Option<u64>)> {
    let s = |at: Option<Duration>| at.map(|at| at.as_secs());
    trace.jobs.iter().map(|job| (job.duration.as_secs(), s(job.started), s(job.ended))).collect()
}

#[test]
fn an_hour_that_a_change_of_clocks_repeats_is_read_by_the_elapsed_time() {
    // 27 October 2024 in central Europe: 02:50 is before the change, 02:10 after it.
    let local = job(
        1,
        ["2024-10-26T20:00:00", "2024-10-26T20:00:00", "2024-10-27T02:50:00"],
        "06:50:00",
        "gpu01",
    ) + &job(
        2,
        ["2024-10-26T21:00:00", "2024-10-27T02:10:00", "2024-10-27T08:10:00"],
        "06:00:00",
        "gpu01",
    );
    let seconds = job(1, ["1729965600", "1729965600", "1729990200"], "06:50:00", "gpu01")
        + &job(2, ["1729969200", "1729991400", "1730013000"], "06:00:00", "gpu01");
    let (local, seconds) = (HEADER.to_owned() + &local, HEADER.to_owned() + &seconds);
    let (local, seconds) = (parse(&local), parse(&seconds));
    assert_eq!(runs(&local), runs(&seconds));
    assert_eq!(shape(&local), "1x8:a100");
    let noted = notes(&local);
    assert!(noted.contains("inferred") && noted.contains("SLURM_TIME_FORMAT=%s"), "{noted}");
    assert!(noted.contains("2024-10-27"), "{noted}");
    // What contradicts the times as they are.
    assert!(noted.contains("the nodes have 16 GPUs in use at their peaks, with these"), "{noted}");
    assert!(!noted.contains("fit as well"), "{noted}");
    assert!(!notes(&seconds).contains("inferred"), "{}", notes(&seconds));
}

#[test]
fn a_job_that_runs_over_a_change_of_clocks_ends_after_its_elapsed_time() {
    for (text, expected) in [
        // Spring in central Europe: from 02:00 to 03:00.
        (
            job(
                1,
                ["2024-03-31T00:00:00", "2024-03-31T00:00:00", "2024-03-31T05:00:00"],
                "04:00:00",
                "n1",
            ) + &job(
                2,
                ["2024-03-31T05:00:00", "2024-03-31T05:00:00", "2024-03-31T09:00:00"],
                "04:00:00",
                "n1",
            ),
            vec![(14_400, Some(0), Some(14_400)), (14_400, Some(14_400), Some(28_800))],
        ),
        // Autumn in the United States: from 02:00 back to 01:00.
        (
            job(
                1,
                ["2024-11-03T00:30:00", "2024-11-03T00:30:00", "2024-11-03T03:30:00"],
                "04:00:00",
                "n1",
            ) + &job(
                2,
                ["2024-11-03T03:30:00", "2024-11-03T03:30:00", "2024-11-03T04:30:00"],
                "01:00:00",
                "n1",
            ),
            vec![(14_400, Some(0), Some(14_400)), (3_600, Some(14_400), Some(18_000))],
        ),
    ] {
        let trace = parse(&(HEADER.to_owned() + &text));
        assert_eq!(runs(&trace), expected);
        assert_eq!(shape(&trace), "1x8:a100");
        let noted = notes(&trace);
        assert!(noted.contains("inferred") && noted.contains("1 job contradicts"), "{noted}");
        // All of Europe changes its clocks within this job.
        let fit = "those of western Europe and eastern Europe fit as well";
        assert_eq!(noted.contains(fit), text.contains("2024-03-31"), "{noted}");
    }
}

#[test]
fn local_times_around_a_change_that_nothing_contradicts_are_called_ambiguous() {
    let text = job(
        1,
        ["2024-10-26T20:00:00", "2024-10-26T20:00:00", "2024-10-26T21:00:00"],
        "01:00:00",
        "n1",
    ) + &job(
        2,
        ["2024-10-27T12:00:00", "2024-10-27T12:00:00", "2024-10-27T13:00:00"],
        "01:00:00",
        "n1",
    );
    let noted = notes(&parse(&(HEADER.to_owned() + &text)));
    assert!(noted.contains("ambiguous") && noted.contains("SLURM_TIME_FORMAT=%s"), "{noted}");
    // A week in May has no change of clocks, and times with an offset are certain.
    let may = text.replace("2024-10-2", "2024-05-2");
    assert_eq!(notes(&parse(&(HEADER.to_owned() + &may))), "");
    let offset = text.replace(":00:00|", ":00:00+02:00|").replace("01:00:00+02:00", "01:00:00");
    assert_eq!(notes(&parse(&(HEADER.to_owned() + &offset))), "");
}

fn replayed(trace: &Trace, cluster: &str) -> wattle_simulator::replay::Replay {
    let world = World::builtin();
    let scenario = Scenario::from_trace(&world, trace, &cluster.parse().unwrap(), 7).unwrap();
    replay(&world, &scenario, trace).unwrap()
}

#[test]
fn a_suspended_job_draws_idle_power_while_it_is_suspended() {
    let second = job(2, ["1715018400", "1715018400", "1715025600"], "02:00:00", "n1");
    let suspended = job(1, ["1714982400", "1714982400", "1715018400"], "02:00:00", "n1") + &second;
    let not = job(1, ["1714982400", "1714982400", "1714989600"], "02:00:00", "n1") + &second;
    let of = |rows: &str| replayed(&parse(&(HEADER.to_owned() + rows)), "1x8:a100");
    let (suspended, not) = (of(&suspended), of(&not));
    assert!((suspended.energy_kwh - not.energy_kwh).abs() < 1e-6, "{suspended:?}\n{not:?}");
    let [first, _] = &suspended.detail.jobs[..] else { panic!("{suspended:?}") };
    assert!((first.on_gpus_s - 7_200.0).abs() < 1e-6, "{first:?}");
    assert_eq!(first.end_s, Some(36_000.0));
}

/// Job 1 is suspended while job 2 runs on its GPUs.
#[test]
fn a_job_suspended_for_another_is_replayed_on_the_inferred_cluster() {
    let rows = job(1, ["1714982400", "1714982400", "1715004000"], "04:00:00", "n1")
        + &job(2, ["1714989600", "1714989600", "1714996800"], "02:00:00", "n1")
        + &job(3, ["1715004000", "1715004000", "1715007600"], "01:00:00", "n1");
    let trace = parse(&(HEADER.to_owned() + &rows));
    assert_eq!(shape(&trace), "1x8:a100");
    let made = replayed(&trace, "1x8:a100");
    let on_gpus: Vec<f64> = made.detail.jobs.iter().map(|job| job.on_gpus_s).collect();
    assert_eq!(on_gpus, [14_400.0, 7_200.0, 3_600.0]);
}

#[test]
fn jobs_of_an_uneven_division_over_nodes_fit_the_inferred_cluster() {
    // Two jobs of seven GPUs on the same two nodes: fourteen at once.
    let row =
        |id| format!("{id}|1000000|1000000|1003600|01:00:00|COMPLETED|gres/gpu:a100=7|2|n[1-2]\n");
    let trace = parse(&(HEADER.to_owned() + &row(1) + &row(2)));
    let cluster = shape(&trace);
    replayed(&trace, &cluster);
}

#[test]
fn nodes_of_unequal_sizes_are_named_and_replayed_on_their_own_node() {
    let row = |id: u32, gpus: u32, node: &str| {
        format!("{id}|1000000|1000000|1003600|01:00:00|COMPLETED|gres/gpu:a100={gpus}|1|{node}\n")
    };
    let trace =
        parse(&(HEADER.to_owned() + &row(1, 4, "n1") + &row(2, 4, "n2") + &row(3, 8, "n3")));
    let inferred = trace::infer(&World::builtin(), &trace).unwrap();
    assert_eq!(inferred.shape.to_string(), "3x8:a100");
    let noted = inferred.assumptions.join("\n");
    assert!(
        noted.contains("8 GPUs each inferred") && noted.contains("2 nodes never had"),
        "{noted}"
    );
    assert!(noted.contains("1x8:a100,2x4:a100 fits as well: give"), "{noted}");
    let made = replayed(&trace, "1x8:a100,2x4:a100");
    assert!(made.notes.is_empty(), "{:?}", made.notes);
}

#[test]
fn line_numbers_do_not_depend_on_the_line_ends() {
    let text = HEADER.to_owned()
        + &job(1, ["1000000", "1000000", "1003600"], "01:00:00", "n1")
        + "\n"
        + &job(2, ["1000000", "1000000", "1003600"], "01:00:00", "n2")
            .replace("COMPLETED", "FAILED")
        + &job(3, ["1000000", "1000000", "1003600"], "01:00:00", "n3")
            .replace("COMPLETED", "TIMEOUT");
    let lines = |text: &str| -> Vec<u64> {
        parse(text).notes.iter().flat_map(|note| note.lines.clone()).collect()
    };
    assert_eq!(lines(&text), [4, 5]);
    assert_eq!(lines(&text.replace('\n', "\r\n")), [4, 5]);
    assert_eq!(lines(&text.replace('\n', "\r")), [4, 5]);
    let csv = "job_id,submit_s,duration_s,num_gpus\r\na,0,60,1\r\nb,1,60,0\r\nc,2,60,0\r\n";
    assert_eq!(lines(csv), [3, 4]);
}

#[test]
fn files_in_utf_16_and_with_a_byte_order_mark_are_read() {
    let text = HEADER.to_owned() + &job(1, ["1000000", "1000000", "1003600"], "01:00:00", "n1");
    let plain = parse(&text);
    let units = |text: &str| text.encode_utf16().collect::<Vec<u16>>();
    let le = |text: &str| units(text).iter().flat_map(|u| u.to_le_bytes()).collect::<Vec<u8>>();
    let be = |text: &str| units(text).iter().flat_map(|u| u.to_be_bytes()).collect::<Vec<u8>>();
    let marked = format!("\u{feff}{text}");
    for bytes in [marked.as_bytes().to_vec(), le(&marked), be(&marked), le(&text), be(&text)] {
        assert_eq!(trace::parse("s.txt", &bytes).unwrap(), plain, "{:?}", &bytes[..8]);
    }
}

#[test]
fn other_programs_outputs_are_refused_by_name() {
    let refused = |text: &str| {
        let error = trace::parse("x.txt", text.as_bytes()).unwrap_err();
        error.to_string()
    };
    for (text, name) in [
        (
            "--------------------------------------------------------------------------------\nCluster Utilization 2024-05-06T00:00:00 - 2024-05-12T23:59:59\n",
            "sreport",
        ),
        ("Cluster|Account|Login|Proper Name|Used|Energy\nc|a|b|B|5|0\n", "sreport"),
        ("Job Sizes 2024-05-06T00:00:00 - 2024-05-12T23:59:59 (604800 secs)\n", "sreport"),
        ("          JOBID PARTITION   PRIORITY       SITE        AGE  FAIRSHARE\n", "sprio"),
        ("Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare\n", "sshare"),
        ("Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit\n", "sacctmgr"),
        ("*******************\nsdiag output at Mon May 06 10:00:00 2024\n", "sdiag"),
        ("machineId,number of GPUs,single GPU mem\nm31,8, 24GB\n", "Philly"),
        (
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n",
            "squeue",
        ),
        (
            "{\"jobs\": [{\"job_id\": 1, \"job_state\": [\"RUNNING\"], \"submit_time\": {\"number\": 5}}]}",
            "squeue --json",
        ),
        (
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu up infinite 4 idle n[1-4]\n",
            "sinfo",
        ),
        ("JobId=17 JobName=train\n   UserId=ada(1000)\n", "scontrol show job"),
        ("Job ID: 17\nCluster: main\nUser/Group: ada/ada\n", "seff"),
        ("| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15\n", "nvidia-smi"),
        ("; Version: 2.2\n; Computer: x\n1 0 1 2 3\n", "Standard Workload Format"),
        ("05/06/2024 10:00:00;E;17.server;user=ada\n", "PBS"),
        ("NAME  READY  STATUS  RESTARTS  AGE\ntrain 1/1 Running 0 3d\n", "kubectl"),
        ("<!DOCTYPE html>\n<html><body>Sign in</body></html>\n", "HTML"),
        ("PK\u{3}\u{4}xl/worksheets\n", "zip"),
        ("time,machineId,gpu0_util,gpu1_util\n", "Philly"),
        (
            "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0227,32000,262144,0,\n",
            "nodes of Alibaba",
        ),
        ("date,vchbv,vc4om,total\n2020-09-01,64,96,1144\n", "Helios"),
    ] {
        let error = refused(text);
        assert!(error.contains("looks like") && error.contains(name), "{name}: {error}");
        // The name is followed by what to do.
        assert!(error.contains("; "), "{error}");
    }
    let error = trace::parse("x.bin", &[0; 4_096]).unwrap_err().to_string();
    assert!(error.contains("binary"), "{error}");
}

#[test]
fn a_device_that_never_ends_is_refused_at_once() {
    let error = trace::read(std::path::Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("binary"), "{error}");
    let error = CarbonSeries::read(std::path::Path::new("/dev/zero")).unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("binary"), "{error}: {cause}");
}

#[test]
fn the_jobs_of_two_clusters_are_not_one_cluster() {
    let header = HEADER.replace("JobID", "Cluster|JobID");
    let row = |cluster: &str, id| {
        format!("{cluster}|{}", job(id, ["1000000", "1000000", "1003600"], "01:00:00", "gpu01"))
    };
    let one = header.clone() + &row("a", 1) + &row("a", 2).replace("gpu01", "gpu02");
    assert_eq!(shape(&parse(&one)), "2x8:a100");
    let error = trace::parse("s.txt", (header + &row("a", 1) + &row("b", 1)).as_bytes());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("a (1 job)") && error.contains("sacct -M"), "{error}");
    // Without the column, two runs of one JobID at one time contradict one cluster.
    let row = |start: u32| {
        let (submit, end) = (start - 10, start + 3_600);
        format!("7|{submit}|{start}|{end}|01:00:00|COMPLETED|gres/gpu:a100=8|1|gpu01\n")
    };
    let noted = notes(&parse(&(HEADER.to_owned() + &row(1_000_000) + &row(1_001_000))));
    assert!(noted.contains("Cluster"), "{noted}");
}

/// `sacct --json` of one job, with its fields from `time` on.
fn json(rest: &str) -> String {
    format!(
        r#"{{"meta": {{}}, "jobs": [{{"job_id": 7, "name": "a", "user": "ada", "nodes": "n1", "allocation_nodes": 1,
        "tres": {{"allocated": [{{"type": "gres", "name": "gpu:a100", "count": 8}}], "requested": null}},
        "state": {{"current": "COMPLETED"}}, {rest}}}]}}"#
    )
}

/// Slurm 21.08 and 22.05: the eligible time as start, and numbers that are not set as they are in Slurm.
#[test]
fn the_json_of_older_versions_is_read() {
    let old = json(
        r#""array": {"job_id": 0, "task_id": 4294967294, "task": null}, "het": null,
        "time": {"submission": 1000000, "eligible": 1000000, "start": 1000000, "end": 1010000,
        "elapsed": 3600, "suspended": 400}"#,
    );
    let trace = parse(&old);
    assert_eq!(trace.jobs[0].id.as_str(), "7");
    // Of 10,000 s it ran for 3,600 s and was suspended for 400 s, so it waited for 6,000 s.
    assert_eq!(runs(&trace), [(3_600, Some(6_000), Some(10_000))]);
    assert!(notes(&trace).contains("start inferred from End, Elapsed and Suspended"));
    let new = old.replace("\"elapsed\": 3600", "\"elapsed\": 9600").replace("4294967294", "3");
    let trace = parse(&new.replace("\"job_id\": 0", "\"job_id\": 5"));
    assert_eq!(trace.jobs[0].id.as_str(), "5_3");
    assert_eq!(runs(&trace), [(9_600, Some(0), Some(10_000))]);
    assert_eq!(notes(&trace), "");
    assert_eq!(trace.jobs[0].suspended(), Duration::from_secs(400));
}

#[test]
fn json_of_two_clusters_is_refused() {
    let time =
        r#""time": {"submission": 1, "start": 1, "end": 3601, "elapsed": 3600}, "cluster": "a""#;
    let one = json(time);
    assert_eq!(shape(&parse(&one)), "1x8:a100");
    let (_, job) = one.split_once('[').unwrap();
    let job = job.strip_suffix("]}").unwrap().replace("\"a\"", "\"b\"");
    let two = format!("{},{job}]}}", one.strip_suffix("]}").unwrap());
    let error = trace::parse("s.json", two.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("a (1 job), b (1 job)") && error.contains("sacct -M"), "{error}");
}

#[test]
fn times_of_a_place_whose_clocks_do_not_change_are_certain() {
    let row = |id: u32, day: &str| {
        format!("{id},u,vc,8,64,1,COMPLETED,{day} 08:00:00,{day} 08:00:00,{day} 09:00:00,3600,0\n")
    };
    let header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n";
    let text = header.to_owned() + &row(1, "2020-04-01") + &row(2, "2020-09-29");
    assert_eq!(notes(&trace::parse("cluster_log.csv", text.as_bytes()).unwrap()), "");
}

#[test]
fn slices_with_a_sites_names_are_left_out_and_large_memories_are_not() {
    let row = |id: u32, kind: &str| {
        format!("{id}|1000000|1000000|1003600|01:00:00|COMPLETED|gres/gpu:{kind}=1|1|n{id}\n")
    };
    let kinds = [
        "a100_1g5gb",
        "mig-3g",
        "mig20",
        "a100-mig-2g",
        "1g10gb",
        "h100_mig",
        "2g_20gb",
        "a100_10gb",
    ];
    let mut text = HEADER.to_owned() + &row(1, "a100");
    for (id, kind) in (2..).zip(kinds) {
        text += &row(id, kind);
    }
    for (id, kind) in (20..).zip(["a100-80g", "a100_40g", "v100-32g"]) {
        text += &row(id, kind);
    }
    let trace = parse(&text);
    assert_eq!(trace.jobs.len(), 4, "{}", notes(&trace));
    assert!(notes(&trace).contains("8 rows left out: it ran on slices"), "{}", notes(&trace));
}

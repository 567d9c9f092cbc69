//! Properties of all formats; golden files of each format are in `tests/traces`.

use super::*;
use proptest::strategy::Strategy as _;
use std::io::Write;

fn notes(trace: &Trace) -> Vec<String> {
    trace.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn philly_rows_are_read_plain_and_compressed() {
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na.1,0,60,8,7f\nb,2.5,30,1,7f\n";
    let plain = parse("p.csv", text.as_bytes()).unwrap();
    assert_eq!((plain.format, plain.jobs.len()), ("Philly", 2));
    assert_eq!(plain.jobs[0].id.as_str(), "a-1");
    assert_eq!(plain.jobs[1].submit, Duration::from_millis(2_500));
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    assert_eq!(parse("p.csv", &gz.finish().unwrap()).unwrap(), plain);
}

#[test]
fn recorded_starts_and_ends_are_read() {
    let text = "job_id,submit_s,duration_s,num_gpus,start_s,end_s,can_checkpoint\n\
                a,5,60,8,15,75,yes\nb,6,30,1,,,\nc,7,30,1,7,37,false\nd,8,9,1,8,17,maybe\n";
    let trace = parse("p.csv", text.as_bytes()).unwrap();
    let times: Vec<_> = trace.jobs.iter().map(|j| (j.started, j.ended, j.can_checkpoint)).collect();
    let s = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(times[0], (s(15), s(75), Some(true)));
    assert_eq!(times[1], (None, None, None));
    assert_eq!(times[2], (s(7), s(37), Some(false)));
    assert_eq!(
        notes(&trace),
        ["1 row left out: can_checkpoint is neither true nor false (line 5)"]
    );
    let sacct = "JobID|Submit|Start|End|Elapsed|State|AllocTRES\n\
                 1|1000|1010|1070|00:01:00|COMPLETED|gres/gpu=1\n\
                 2|1005|1020|Unknown|00:02:00|RUNNING|gres/gpu=1\n";
    let trace = parse("s.txt", sacct.as_bytes()).unwrap();
    let times: Vec<_> = trace.jobs.iter().map(|job| (job.started, job.ended)).collect();
    assert_eq!(times, [(s(10), s(70)), (s(20), s(140))]);
}

#[test]
fn time_limits_and_priorities_are_read() {
    let s = |seconds| Some(Duration::from_secs(seconds));
    let of = |trace: &Trace| -> Vec<_> {
        trace.jobs.iter().map(|job| (job.time_limit, job.site_priority)).collect()
    };
    let text = "job_id,submit_s,duration_s,num_gpus,time_limit_s,priority\n\
                a,0,60,1,90,7\nb,1,60,1,,\nc,2,60,1,0,0\nd,3,60,1,60,high\n";
    let trace = parse("p.csv", text.as_bytes()).unwrap();
    assert_eq!(of(&trace), [(s(90), 7), (None, 0), (None, 0)]);
    assert_eq!(
        notes(&trace),
        ["1 row left out: priority is not an integer from 0 to 4294967295 (line 5)"]
    );
    let sacct = "JobID|Submit|Elapsed|State|AllocTRES|Timelimit|Priority\n\
                 1|1000|00:01:00|COMPLETED|gres/gpu=1|1-00:00:00|4294901\n\
                 2|1001|00:01:00|COMPLETED|gres/gpu=1|UNLIMITED|\n\
                 3|1002|00:01:00|TIMEOUT|gres/gpu=1|Partition_Limit|1\n\
                 4|1003|00:01:00|COMPLETED|gres/gpu=1|soon|x\n";
    let trace = parse("s.txt", sacct.as_bytes()).unwrap();
    assert_eq!(of(&trace), [(s(86_400), 4_294_901), (None, 0), (s(60), 1), (None, 0)]);
    let odd = notes(&trace);
    assert!(odd.iter().any(|note| note.contains("Timelimit that is no duration")), "{odd:?}");
    assert!(odd.iter().any(|note| note.contains("Priority that is no integer")), "{odd:?}");
    let raw = "JobID|Submit|Elapsed|AllocTRES|TimelimitRaw\n1|1000|00:01:00|gres/gpu=1|30\n";
    assert_eq!(of(&parse("s.txt", raw.as_bytes()).unwrap()), [(s(1_800), 0)]);
    let json = r#"{"jobs": [{"job_id": 7, "priority": {"set": true, "infinite": false, "number": 12},
        "time": {"submission": 1000, "start": 1000, "end": 1060, "elapsed": 60,
                 "limit": {"set": true, "infinite": false, "number": 45}},
        "state": {"current": ["COMPLETED"]},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 1}]}}]}"#;
    assert_eq!(of(&parse("s.json", json.as_bytes()).unwrap()), [(s(2_700), 12)]);
}

#[test]
fn tiresias_rows_are_read() {
    let text = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,deadline,workload\n\
                0,2,10,1000,vgg19,164,30,500,\n1,1,20,9,,5,10,,eaco-vgg16\n";
    let trace = parse("t.csv", text.as_bytes()).unwrap();
    let [a, b] = &trace.jobs[..] else { panic!("{trace:?}") };
    assert_eq!(
        (a.model.as_deref(), a.gpus, a.deadline),
        (Some("vgg19"), 2, Some(Duration::from_secs(500)))
    );
    assert_eq!((b.model.as_deref(), b.workload.as_deref()), (None, Some("eaco-vgg16")));
}

#[test]
fn invalid_rows_are_counted_and_listed() {
    let text = "job_id,submit_s,duration_s,num_gpus,vc\n\
                a,10,60,0,x\nb,-1,60,1,x\nc,20,60,1,x\nd,5,60,1,x\nc,30,1,1,x\n\
                e,1,,1,x\nf,1\ng,40,nan,1,x\nh,50,1,0,x\ni,60,1,-2,x\n";
    let trace = parse("odd.csv", text.as_bytes()).unwrap();
    let order: Vec<&str> = trace.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(order, ["d", "c"]);
    expect_test::expect![[r#"
        [
            "2 rows left out: num_gpus is 0 (lines 2, 10)",
            "1 row left out: submit_s is negative (line 3)",
            "1 row out of order, sorted by submission (line 5)",
            "1 row left out: an earlier row has the same job_id (line 6)",
            "2 rows left out: duration_s is empty (lines 7, 8)",
            "1 row left out: duration_s is not a time (line 9)",
            "1 row left out: num_gpus is not a positive integer (line 11)",
        ]
    "#]]
    .assert_debug_eq(&notes(&trace));
}

#[test]
fn errors_name_the_missing_columns() {
    let error = |text: &str| parse("x.csv", text.as_bytes()).unwrap_err().to_string();
    expect_test::expect![[r#"
        x.csv: no row is a valid job
        x.csv: column `num_gpus` of the Philly format is missing; required are job_id,submit_s,duration_s,num_gpus; the file has job_id,submit_s,duration_s,vc
        x.csv: no row is a valid job
        x.csv: no row is a valid job: 1 row left out: num_gpus is 0 (line 2)
        x.csv: no row is a valid job
    "#]]
    .assert_eq(
        &[
            "job_id,submit_s,duration_s,num_gpus,color\n",
            "job_id,submit_s,duration_s,vc\n",
            "job_id,submit_s,duration_s,num_gpus,vc\n",
            "job_id,submit_s,duration_s,num_gpus,vc\na,1,1,0,x\n",
            "",
        ]
        .map(|text| error(text) + "\n")
        .concat(),
    );
    assert!(matches!(parse("x", &[0xff, 0xfd, 0xfb]), Err(TraceError::UnknownColumn { .. })));
    assert!(matches!(parse("x", &[0x1f, 0x8b, 0x00]), Err(TraceError::Unreadable { .. })));
    let large = TraceError::of(Path::new("dir/x.txt"), InputError::TooLarge(TRACE_BYTES_MAX));
    let large = large.to_string();
    assert!(large.starts_with("the trace x.txt has more than 512 MiB of text"), "{large}");
    assert!(large.contains("sacct -S and -E"), "{large}");
}

/// Rows with Latin-1 names are kept, and notes have the file's line numbers.
#[test]
fn rows_that_are_not_utf8_are_listed_by_line() {
    let rows: [&[u8]; 4] = [b"a,0,60,1,x", b"b\xe9,1,60,1,x", b"c,2,60,1,x", b"d,3,60,1,\xfc"];
    let text = [b"job_id,submit_s,duration_s,num_gpus,vc", &rows[..].join(&b'\n')[..]].join(&b'\n');
    let trace = parse("latin.csv", &text).unwrap();
    let ids: Vec<&str> = trace.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["a", "b-", "c", "d"]);
    assert_eq!(
        notes(&trace),
        ["2 rows with bytes that are not UTF-8, each read as \u{fffd} (lines 3, 5)"]
    );
}

#[test]
fn a_missing_sacct_header_is_reported() {
    let error = |text: &str, format| {
        parse_as("sacct.txt", text.as_bytes(), format).unwrap_err().to_string()
    };
    let rows = "17|train|alice|2024-05-06T08:00:00|00:10:00|gres/gpu=4\n\
                18|train|alice|2024-05-06T09:00:00|00:10:00|gres/gpu=4\n";
    for format in [None, Some("sacct")] {
        assert_eq!(
            error(rows, format),
            "sacct.txt: no header line; export without -n (--noheader)"
        );
    }
    // A header of other columns is a header.
    let other = error("JobID|Elapsed|Nodes\n17|00:10:00|1\n", Some("sacct"));
    assert!(other.contains("`Submit`"), "{other}");
}

const DOCUMENTED: &str = "17|train|ada|gpu|1000|1000|1010|1070|00:01:00|COMPLETED|gres/gpu=2|gres/gpu:a100=2,gres/gpu=2|1|gpu01";

#[test]
fn sacct_rows_without_a_header_are_read_in_the_documented_columns() {
    let columns = slurm::FORMAT.headless.join("|");
    let headed = parse("s.txt", format!("{columns}\n{DOCUMENTED}\n").as_bytes()).unwrap();
    let headless = parse("s.txt", format!("{DOCUMENTED}\n").as_bytes()).unwrap();
    assert_eq!(headless.jobs, headed.jobs);
    assert_eq!(headed.jobs[0].node_names, ["gpu01"]);
    assert!(notes(&headless)[0].starts_with("no header line; the columns are read as JobID,"));
    // -p ends each row with a separator.
    let parsable = parse("s.txt", format!("{DOCUMENTED}|\n").as_bytes()).unwrap();
    assert_eq!(parsable.jobs, headed.jobs);
    // Other columns in the same number are not guessed.
    let swapped = DOCUMENTED.replace("00:01:00|COMPLETED", "COMPLETED|00:01:00");
    let error = parse("s.txt", swapped.as_bytes()).unwrap_err();
    assert!(matches!(error, TraceError::NoHeader { .. }), "{error}");
}

#[test]
fn sacct_line_endings_and_separators_do_not_change_the_jobs() {
    let columns = slurm::FORMAT.headless.join("|");
    let unix = parse("s.txt", format!("{columns}\n{DOCUMENTED}\n").as_bytes()).unwrap();
    let dos = parse("s.txt", format!("{columns}\r\n{DOCUMENTED}\r\n").as_bytes()).unwrap();
    assert_eq!(dos, unix);
    let marked = format!("\u{feff}{columns}|\n{DOCUMENTED}|\n");
    assert_eq!(parse("s.txt", marked.as_bytes()).unwrap(), unix);
    // Of a column that is exported twice the first is read.
    let twice = format!("{columns}|Submit\n{DOCUMENTED}|5\n");
    let twice = parse("s.txt", twice.as_bytes()).unwrap();
    assert_eq!(twice.jobs, unix.jobs);
    assert_eq!(notes(&twice), ["columns that are repeated, of which the first is used: Submit"]);
}

#[test]
fn sacct_output_without_pipes_is_rejected_with_the_option() {
    for text in [
        "JobID           JobName  Partition\n------------ ---------- ----------\n17 train gpu\n",
        "JobID,JobName,Submit\n17,train,1000\n",
    ] {
        let error = parse("s.txt", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("export with -P"), "{error}");
    }
}

#[test]
fn text_from_files_is_sanitized_in_errors() {
    let error = |text: &str| parse("x.csv", text.as_bytes()).unwrap_err().to_string();
    let unknown = error(&format!("\u{1b}[2J{}\n1\n", "z".repeat(500)));
    assert!(unknown.contains("`\\u{1b}[2Jzzz") && !unknown.contains('\u{1b}'), "{unknown}");
    let missing = error(&format!("job_id,\u{1b}[31m{}\n1\n", ",c".repeat(500)));
    assert!(!missing.contains('\u{1b}') && missing.contains("and 482 more"), "{missing}");
    assert!(unknown.len() < 1_500 && missing.len() < 400, "{unknown}\n{missing}");
}

#[test]
fn unread_columns_are_noted_and_a_format_can_be_given() {
    let text = "job_id,submit_s,duration_s,num_gpus,color\na,0,1,1,red\n";
    let trace = parse("c.csv", text.as_bytes()).unwrap();
    assert_eq!(notes(&trace), ["columns not read: color"]);
    assert_eq!(parse_as("c.csv", text.as_bytes(), Some("philly")).unwrap(), trace);
    let error = |format| parse_as("c.csv", text.as_bytes(), Some(format)).unwrap_err().to_string();
    expect_test::expect![[r#"
        unknown trace format `unheard`; use one of philly, tiresias, gavel, elasticflow, chronus, sacct, helios, acme, pai2020, pai2023
        c.csv: column `num_gpu` of the Tiresias format is missing; required are job_id,num_gpu,submit_time,iterations,model_name,duration,interval; the file has job_id,submit_s,duration_s,num_gpus,color
        c.csv: column `command` of the Gavel format is missing; required are job_type,command,working_directory,num_steps_arg,needs_data_dir,total_steps,scale_factor,priority_weight,SLO,arrival_time; the file has job_id,submit_s,duration_s,num_gpus,color
    "#]]
    .assert_eq(&["unheard", "tiresias", "gavel"].map(|format| error(format) + "\n").concat());
}

proptest::proptest! {
    /// Any cells give either valid jobs or an error.
    #[test]
    fn arbitrary_cells_are_read_or_rejected(
        which in 0..FORMATS.len(),
        cells in proptest::collection::vec(
            proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::sample::select(vec![
                        "", "0", "-1", "1", "8", "1e300", "nan", "inf", "18446744073709551615",
                        "Unknown", "None", "2024-05-01T13:00:00", "9999-12-31T23:59:59", "1-00:00:00",
                        "99999999-00:00:00", "gres/gpu=4", "gpu:4", "gres/gpu=4294967295",
                        "LM (batch size 5)", "strict", "10-20", "\u{e9}",
                    ]).prop_map(str::to_owned),
                    "[ -~]{0,12}",
                ],
                0..16,
            ),
            0..12,
        ),
    ) {
        let format = FORMATS[which];
        let groups = format.one_of.iter().map(|group| group[0]);
        let header: Vec<&str> = format.required.iter().copied().chain(groups).collect();
        let between = char::from(format.delimiter).to_string();
        let mut text = if format.has_header { header.join(&between) + "\n" } else { String::new() };
        for row in &cells {
            text += &(row.join(&between) + "\n");
        }
        match parse_as("p", text.as_bytes(), Some(format.key)) {
            Ok(trace) => {
                proptest::prop_assert!(!trace.jobs.is_empty());
                proptest::prop_assert!(trace.jobs.iter().all(|job| job.gpus > 0));
                proptest::prop_assert!(trace.jobs.is_sorted_by_key(|job| job.submit));
            }
            Err(error) => proptest::prop_assert!(!error.to_string().is_empty()),
        }
    }
}

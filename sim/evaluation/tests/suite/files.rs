//! The protocols on small valid and faulty files of unknown GPUs and models.

use wattle_evaluation::{Format, Report, Row, Source};

fn source(file: &str, text: &str) -> Source {
    Source { file: file.into(), place: format!("/somewhere/{file}"), text: text.into() }
}

fn run(file: &str, text: &str) -> Report {
    wattle_evaluation::run(&[source(file, text)])
}

fn row<'a>(report: &'a Report, protocol: &str, quantity: &str) -> &'a Row {
    report
        .rows
        .iter()
        .find(|r| r.protocol == protocol && r.quantity == quantity)
        .unwrap_or_else(|| panic!("no row {protocol} {quantity}: {:?}", report.problems))
}

fn messages(report: &Report) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

/// Two networks on a GPU of 400 W: time rises below each one's power.
fn caps() -> String {
    let mut text =
        "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
            .to_owned();
    for (network, batch, draws) in [("netA", 32, 300.0), ("netA", 64, 340.0), ("netB", 8, 260.0)] {
        for cap in [200.0, 240.0, 280.0, 320.0, 360.0, 400.0] {
            let held = f64::max(draws / cap, 1.0);
            let (time, power) = (50.0 * held.powf(0.8), draws / held);
            text += &format!("set,{network},{batch},sgd,{cap},{time},{power}\n");
        }
    }
    text
}

fn stages() -> String {
    let mut text = "stage,instruction,frequency,time,energy\n".to_owned();
    for stage in 0..2 {
        for way in ["forward", "backward"] {
            for mhz in (900..=1500).step_by(60) {
                let f = f64::from(mhz) / 1500.0;
                let time = 0.05 * (1.0 + f64::from(stage)) * (0.3 + 0.7 / f);
                let energy = time * (80.0 + 220.0 * f.powi(3));
                text += &format!("{stage},{way},{mhz},{time},{energy}\n");
            }
        }
    }
    text
}

fn throughputs(overlap: f64) -> String {
    let gpus = [1u32, 2, 4, 8, 16, 32, 64];
    let mut text = "global_batch_size,1,2,4,8,16,32,64\n".to_owned();
    for batch in [64.0, 128.0, 256.0] {
        let cells = gpus.map(|n| {
            let n = f64::from(n);
            let sync = if n > 1.0 { 0.01 * overlap * n.log2() } else { 0.0 };
            (1.0 / (0.01 + 0.004 * batch / n + sync)).to_string()
        });
        text += &format!("{batch},{}\n", cells.join(","));
    }
    text
}

fn placements(slow: f64) -> String {
    let mut text = "placement,local_bsz,step_time,sync_time\n".to_owned();
    for shape in ["1", "2", "3", "4", "11", "12", "21", "22", "111", "112", "222", "1111", "444"] {
        let nodes = shape.len() as f64;
        let gpus: u32 = shape.bytes().map(|b| u32::from(b - b'0')).sum();
        for local in [8.0, 16.0, 32.0, 64.0] {
            let sync = if nodes > 1.0 { slow * f64::from(gpus).powf(0.3) } else { 0.01 };
            text += &format!("{shape},{local},{},{sync}\n", 0.02 + 0.005 * local + sync);
        }
    }
    text
}

fn pairs() -> String {
    let mut text =
        "gpu,model_a,bs_a,gpus_a,model_b,bs_b,gpus_b,iso_a,iso_b,packed_a,packed_b,norm_a,norm_b\n"
            .to_owned();
    let jobs: Vec<(&str, String, f64)> = [("Alpha", 0.9), ("Beta", 0.5), ("Gamma", 0.7)]
        .iter()
        .flat_map(|(m, load)| {
            [16, 32, 64].map(|b| (*m, b.to_string(), load * (0.8 + 0.003 * f64::from(b))))
        })
        .collect();
    for (i, a) in jobs.iter().enumerate() {
        for b in &jobs[i..] {
            let (ia, ib) = (10.0 / a.2, 10.0 / b.2);
            let (na, nb) = (1.0 / (1.0 + b.2), 1.0 / (1.0 + a.2));
            text += &format!(
                "z9,{},{},1,{},{},1,{ia},{ib},{},{},{na},{nb}\n",
                a.0,
                a.1,
                b.0,
                b.1,
                na * ia,
                nb * ib
            );
        }
    }
    text
}

#[test]
fn a_file_is_recognised_by_its_header() {
    for (header, format) in [
        (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power",
            Some(Format::Caps),
        ),
        (
            "\u{feff}average_power,time_per_epoch , power_limit,batch_size,network",
            Some(Format::Caps),
        ),
        ("stage,instruction,frequency,time,energy\r\n", Some(Format::Stages)),
        ("global_batch_size,1,2,4", Some(Format::Throughputs)),
        ("Global_Batch_Size,3", Some(Format::Throughputs)),
        ("placement,local_bsz,step_time,sync_time", Some(Format::Placements)),
        (
            "gpu,model_a,bs_a,gpus_a,model_b,bs_b,gpus_b,iso_a,iso_b,packed_a,packed_b",
            Some(Format::Pairs),
        ),
        ("gpu,consolidated,model,batch_size,num_gpus,steps_per_s", Some(Format::Isolated)),
        ("global_batch_size,one,two", None),
        ("global_batch_size", None),
        ("num_nodes,num_replicas,local_bsz,step_time,sync_time", None),
        ("", None),
        ("\0\u{fffd}PNG", None),
    ] {
        assert_eq!(wattle_evaluation::recognise(header), format, "{header}");
    }
}

#[test]
fn every_format_runs_its_protocols_on_unknown_gpus_and_models() {
    let sources = [
        source("summary_power_z9.csv", &caps()),
        source("deep/er/foo+q7_fp8.csv", &stages()),
        source("throughputs_Z9/one.csv", &throughputs(0.5)),
        source("throughputs_Z9/two.csv", &throughputs(1.5)),
        source("first/placements.csv", &placements(0.3)),
        source("second/placements.csv", &placements(0.1)),
        source("two-by-two.csv", &pairs()),
        source("README.md", "# nothing of the kind\n"),
    ];
    let report = wattle_evaluation::run(&sources);
    assert_eq!((report.files, messages(&report)), (7, Vec::new()));
    for (file, gpu, model, protocol, quantity, n) in [
        ("summary_power_z9.csv", Some("z9"), None, "caps-3", "time", 9),
        ("summary_power_z9.csv", Some("z9"), None, "caps-1", "power", 15),
        ("deep/er/foo+q7_fp8.csv", Some("q7"), None, "clocks-4", "energy", 28),
        ("throughputs_Z9/one.csv", Some("Z9"), Some("one"), "scaling", "time", 15),
        ("throughputs_Z9/two.csv", Some("Z9"), Some("two"), "scaling+16", "time", 14),
        ("first/placements.csv", None, Some("first"), "placement", "time", 40),
        ("two-by-two.csv", Some("z9"), None, "pairs-out", "relative_speed", 81),
        ("two-by-two.csv", Some("z9"), None, "pairs-out", "worth_pairing", 45),
        ("two-by-two.csv", Some("z9"), None, "jobs-out", "relative_speed", 153),
    ] {
        let is = |r: &&Row| {
            r.file == file && r.protocol == protocol && r.quantity == quantity && r.n == n
        };
        let row = report.rows.iter().find(is);
        let row = row.unwrap_or_else(|| panic!("{file} {protocol} {quantity}"));
        assert_eq!((row.gpu.as_deref(), row.model.as_deref()), (gpu, model), "{file}");
        let names: Vec<&str> = row.baselines.keys().map(String::as_str).collect();
        assert_eq!(names, ["constant", "linear", "nearest"], "{file}");
        assert!(row.mae.is_finite() && row.baselines.values().all(|v| v.is_finite()), "{row:?}");
        assert!(row.coverage90.is_none_or(|c| (0.0..=1.0).contains(&c)), "{row:?}");
    }
    // Files without noise: much better than a constant.
    for (protocol, quantity) in [("caps-3", "time"), ("clocks-4", "time"), ("scaling", "time")] {
        let row = row(&report, protocol, quantity);
        assert!(row.mape.unwrap() < 0.5 * row.baselines["constant"], "{row:?}");
    }
    // The order of files and of their rows has no effect.
    let mut turned: Vec<Source> = sources.to_vec();
    turned.reverse();
    assert_eq!(wattle_evaluation::run(&turned), report);
    let json = serde_json::to_value(&report).unwrap();
    let keys: Vec<&String> = json["rows"][0].as_object().unwrap().keys().collect();
    let expected = [
        "baselines",
        "coverage90",
        "file",
        "gpu",
        "mae",
        "mape",
        "model",
        "n",
        "p90",
        "protocol",
        "quantity",
    ];
    assert_eq!(keys.len(), expected.len());
    assert!(expected.iter().all(|k| keys.iter().any(|key| key == k)), "{keys:?}");
    assert_eq!(json.as_object().unwrap().len(), 2);
    // The file has too few networks for shares of its own.
    let forms = report.forms.iter().find(|f| f.without.is_none()).unwrap();
    assert_eq!((forms.gpu.as_deref(), forms.basis), (Some("z9"), "default"), "{forms:?}");
    assert!((forms.shares.values().sum::<f64>() - 1.0).abs() < 1e-9, "{forms:?}");
}

#[test]
fn row_order_and_line_ends_have_no_effect() {
    let text = caps();
    let (header, rows) = text.split_once('\n').unwrap();
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.reverse();
    let turned = format!("\u{feff}{header}\r\n{}\r\n\r\n", rows.join("\r\n"));
    assert_eq!(run("x_a40.csv", &turned), run("x_a40.csv", &text));
}

#[test]
fn faulty_rows_are_reported_with_their_line_and_the_others_used() {
    let header = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power";
    let mut text = caps();
    let good = run("c.csv", &text);
    for bad in [
        "set,netA,32,sgd,220,NaN,100",
        "set,netA,32,sgd,221,-3,100",
        "set,netA,32,sgd,222,,100",
        "set,netA,32,sgd,223,10",
        "set,netA,32,sgd,400,1,1",
        "set,,32,sgd,224,1,1",
        "set,netA,32,sgd,1e300,1,1",
        "set,netA,32,sgd,0,1,1",
        "\"set,netA,32",
    ] {
        text += &format!("{bad}\n");
    }
    let report = run("c.csv", &text);
    assert_eq!(report.rows, good.rows);
    let messages = messages(&report);
    assert_eq!(messages.len(), 9, "{messages:?}");
    for (line, what) in [
        (20, "`time_per_epoch` is `NaN`"),
        (21, "`time_per_epoch` is `-3`"),
        (22, "`time_per_epoch` is empty"),
        (23, "has 6 cells, the header has 7"),
        (24, "measures again what line 7 did"),
        (25, "`network` is empty"),
        (26, "`power_limit` is `1e300`"),
        (27, "`power_limit` is `0`"),
        (28, "cells"),
    ] {
        let start = format!("c.csv:{line}: ");
        assert!(
            messages.iter().any(|s| s.starts_with(&start) && s.contains(what)),
            "{line} {messages:?}"
        );
    }
    // A header only.
    let empty = run("c.csv", header);
    assert!(empty.rows.is_empty() && empty.files == 1);
    assert!(empty.problems.iter().any(|p| p.what.contains("five caps")), "{:?}", empty.problems);
}

#[test]
fn too_few_readings_are_reported_and_give_no_row() {
    for (file, text, what) in [
        ("a.csv", "network,batch_size,power_limit,time_per_epoch,average_power\nn,1,100,1,90\nn,1,200,1,90\n".to_owned(), "no row for caps-3 time"),
        ("b.csv", "stage,instruction,frequency,time,energy\n0,forward,1000,1,1\n0,forward,1100,1,1\n".to_owned(), "no row for clocks-4 energy"),
        ("c.csv", "global_batch_size,8,16\n64,10,12\n".to_owned(), "no row for scaling time"),
        ("d.csv", "placement,local_bsz,step_time\n44,8,1\n".to_owned(), "no row for placement time"),
        ("e.csv", "gpu,model_a,bs_a,model_b,bs_b,iso_a,iso_b,packed_a,packed_b\nz9,a,,a,,1,1,0.5,0.5\n".to_owned(), "no row for pairs-out relative_speed"),
    ] {
        let report = run(file, &text);
        assert!(report.rows.iter().all(|r| r.n > 0), "{file}");
        assert!(messages(&report).iter().any(|s| s.contains(what)), "{file}: {:?}", messages(&report));
    }
}

#[test]
fn a_faulty_cell_does_not_affect_its_row() {
    let text = throughputs(0.5).replacen("64,", "64,x,", 1).replacen(",64\n", ",64,128\n", 1);
    let report = run("throughputs_Z9/m.csv", &text);
    assert_eq!(report.problems.len(), 3, "{:?}", messages(&report));
    let bad = "placement,local_bsz,step_time\n1,8,1\n0,8,1\n1x,8,1\n,8,1\n11,8.5,1\n2,8,inf\n";
    let messages = messages(&run("m/placements.csv", bad));
    assert_eq!(
        messages.iter().filter(|s| s.starts_with("m/placements.csv:")).count(),
        5 + 1,
        "{messages:?}"
    );
}

/// A pair that did not fit has zero steps/s; it is skipped without an error.
#[test]
fn pairs_in_both_orders_count_once_and_zeros_are_skipped() {
    let text = pairs();
    let once = run("p.csv", &text);
    let (header, rows) = text.split_once('\n').unwrap();
    let mut twice = format!("{header}\n{rows}");
    for line in rows.lines() {
        let c: Vec<&str> = line.split(',').collect();
        let turned =
            [c[0], c[4], c[5], c[6], c[1], c[2], c[3], c[8], c[7], c[10], c[9], c[12], c[11]];
        twice += &format!("{}\n", turned.join(","));
    }
    twice += "z9,Delta,16,1,Alpha,16,1,5,5,0,0,0,0\n";
    let report = run("p.csv", &twice);
    assert_eq!((report.rows, report.problems), (once.rows, Vec::new()));
    let other = format!(
        "{text}z9,Alpha,16,1,Beta,16,1,99,20,1,1,1,1\nz9,Alpha,16,2,Beta,16,1,1,1,1,1,1,1\n"
    );
    let report = run("p.csv", &other);
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
}

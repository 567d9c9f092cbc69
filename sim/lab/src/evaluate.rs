//! `wattle-lab evaluate`: the prediction errors on measured runs, without server or GPU.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use wattle_evaluation::{Report, Row, Source};
use wattle_predictor::Method;

use wattle_cli::output::{Align, Table, colour, note, print_json, print_styled, shown, usage};

/// Measure the predictors on files of measured runs, without server or GPU.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle-lab evaluate --data measurements\n  wattle-lab evaluate --data measurements --json\n  wattle-lab evaluate --data measurements --method statistical\n\nThe format of a file is detected by its columns:\n  time and power by power cap    network, batch_size, power_limit, time_per_epoch, average_power\n  time and energy by clock       stage, instruction, frequency, time, energy\n  iterations/s by batch, GPUs    global_batch_size, then one column for each number of GPUs\n  step time by placement         placement, local_bsz, step_time\n  two jobs on one GPU            gpu, model_a, bs_a, model_b, bs_b, iso_a, iso_b, packed_a, packed_b\n  one exclusive job              gpu, consolidated, model, batch_size, num_gpus, steps_per_s\n\nThe table is in per cent, --json in fractions (0.02 is 2 %). mae is in the unit of the quantity (s, W, J, share of the exclusive speed); for worth_pairing it is the share of wrong decisions. Unreadable rows are listed on stderr with file and line."
)]
pub(crate) struct Evaluate {
    /// Folder with the files, searched recursively
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The predictor
    #[arg(long, value_enum, default_value_t = PredictorName::Physical, value_name = "NAME")]
    method: PredictorName,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The shipped predictors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PredictorName {
    /// Models of the hardware, fitted to each job.
    Physical,
    /// An elastic net on engineered features over all jobs.
    Statistical,
}

impl From<PredictorName> for Method {
    fn from(name: PredictorName) -> Self {
        match name {
            PredictorName::Physical => Self::Physical,
            PredictorName::Statistical => Self::Statistical,
        }
    }
}

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Largest header, bytes.
const HEADER_BYTES: usize = 64 << 10;
/// Largest folder depth, against loops.
const DEPTH_MAX: usize = 32;
/// Largest number of problems printed per file.
const PROBLEMS_SHOWN: usize = 20;

/// Runs the command.
pub(crate) fn run(command: Evaluate) -> anyhow::Result<()> {
    if !command.data.is_dir() {
        return Err(usage(format!(
            "{} is no folder; name one with files of measured runs",
            command.data.display()
        )));
    }
    let mut sources = Vec::new();
    walk(&command.data, &command.data, 0, &mut sources)?;
    let report = wattle_evaluation::run_by(&sources, command.method.into());
    if report.files == 0 {
        return Err(usage(format!(
            "no file below {} has the columns of a format that is read; `wattle-lab evaluate --help` lists them",
            command.data.display()
        )));
    }
    print_problems(&report);
    if command.json {
        print_json(&report)
    } else {
        print_styled(&text(&report, colour(&std::io::stdout())))
    }
}

/// Every file of a format that is read, in the order of their names.
fn walk(root: &Path, dir: &Path, depth: usize, out: &mut Vec<Source>) -> anyhow::Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.with_context(|| format!("read {}", dir.display()))?.path());
    }
    paths.sort();
    for path in paths {
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_dir() && depth < DEPTH_MAX {
            walk(root, &path, depth + 1, out)?;
        } else if about.is_file()
            && let Some(source) = read(root, &path, about.len())
        {
            out.push(source);
        }
    }
    Ok(())
}

fn read(root: &Path, path: &Path, bytes: u64) -> Option<Source> {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let file = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    let unreadable = |error: std::io::Error| note(&format!("{file}: cannot be read: {error}"));
    let mut start = Vec::new();
    let opened = fs::File::open(path).map_err(unreadable).ok()?;
    opened.take(HEADER_BYTES as u64).read_to_end(&mut start).map_err(unreadable).ok()?;
    wattle_evaluation::recognise(&String::from_utf8_lossy(&start))?;
    if bytes > FILE_BYTES_MAX {
        note(&format!("{file}: not read: it is over {} MiB", FILE_BYTES_MAX >> 20));
        return None;
    }
    let text = fs::read(path).map_err(unreadable).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(Source { file, place: place.to_string_lossy().into_owned(), text })
}

/// Prints the problems, at most [`PROBLEMS_SHOWN`] per file, and their number.
fn print_problems(report: &Report) {
    let mut by_file: BTreeMap<&str, usize> = BTreeMap::new();
    for problem in &report.problems {
        let count = by_file.entry(&problem.file).or_default();
        *count += 1;
        if *count <= PROBLEMS_SHOWN {
            note(&problem.to_string());
        }
    }
    for (file, count) in by_file {
        if count > PROBLEMS_SHOWN {
            note(&format!("{file}: {} further problems", count - PROBLEMS_SHOWN));
        }
    }
    if !report.problems.is_empty() {
        note(&format!("{} lines or rows were skipped", report.problems.len()));
    }
}

/// The protocols with their questions, in display order.
const PROTOCOLS: [(&str, &str); 18] = [
    ("caps-3", "three caps of a job are known, its other caps are predicted"),
    ("caps-3-without-ncf", "the same without ncf, whose readings are mostly noise"),
    ("caps-3-new", "a new network, three caps of a job are known, and all caps of other networks"),
    ("caps-3-new-without-ncf", "the same without ncf"),
    ("caps-1", "a new network, only its highest cap is known"),
    ("caps-1-without-ncf", "the same without ncf"),
    ("clocks-4", "four clocks of a pipeline stage are known, its other clocks are predicted"),
    (
        "scaling",
        "a new model, 1, 2 and 4 GPUs at two batches are known, up to 64 GPUs are predicted",
    ),
    ("scaling+16", "the same with 16 GPUs at the smallest batch"),
    ("placement", "a new model, six placements at two batches are known, all others are predicted"),
    ("isolated", "a new model, 1, 2 and 4 GPUs and 2 spread GPUs are known"),
    ("pairs-out", "a fifth of the pairs is predicted"),
    (
        "jobs-out",
        "only the exclusive speed of a job is known, its pairs are predicted; its family is known at other batches",
    ),
    ("families-out", "the same without pairs of its family"),
    ("caps-3-by-network", "caps-3 per network"),
    ("caps-3-new-by-network", "caps-3-new per network"),
    ("caps-1-by-network", "caps-1 per network"),
    ("", "further protocols"),
];

/// One table per protocol, with the mean and the worst model where rows are per model.
fn text(report: &Report, colour: bool) -> String {
    let mut text = String::new();
    for (protocol, about) in PROTOCOLS {
        let named = |r: &&Row| {
            let other = protocol.is_empty() && PROTOCOLS.iter().all(|(p, _)| *p != r.protocol);
            r.protocol == protocol || other
        };
        let rows: Vec<&Row> = report.rows.iter().filter(named).collect();
        if rows.is_empty() {
            continue;
        }
        let name = if protocol.is_empty() { String::new() } else { format!("{protocol}: ") };
        text += &format!("{name}{about}\n{}", table(report, &rows).render(colour));
        let by_model = rows.len() > 1 && rows.iter().all(|r| r.model.is_some());
        if by_model && !protocol.ends_with("by-network") {
            let mean = rows.iter().map(|r| error(r)).sum::<f64>() / rows.len() as f64;
            let worst = rows.iter().max_by(|a, b| error(a).total_cmp(&error(b)));
            if let Some(worst) = worst {
                text += &format!(
                    "mean of {} models {}, worst {}\n",
                    rows.len(),
                    figure(worst, mean),
                    figure(worst, error(worst))
                );
            }
        }
        text.push('\n');
    }
    text += &shown(&forms(report));
    text += "error: mean of |predicted / measured - 1|; of relative_speed mean of |predicted - measured|.\n";
    text += "inside: share of measurements within the 90 % interval. constant, nearest, linear: errors of simple baselines with the same data.\n";
    text
}

/// The forms of the time over caps that were chosen, one paragraph for each file with caps.
fn forms(report: &Report) -> String {
    let chosen: Vec<_> = report.forms.iter().filter(|f| f.without.is_none()).collect();
    if chosen.is_empty() {
        return String::new();
    }
    let mut text = "form of the time over caps, chosen by leaving networks out\n".to_owned();
    for one in chosen {
        let gpu = one.gpu.as_deref().unwrap_or_else(|| short(report, &one.file));
        let mut shares: Vec<_> = one.shares.iter().filter(|(_, share)| **share >= 0.005).collect();
        shares.sort_by(|a, b| b.1.total_cmp(a.1));
        let shares: Vec<String> =
            shares.iter().map(|(name, share)| format!("{name} {:.0} %", 100.0 * **share)).collect();
        let source = match one.basis {
            "blend" => "a blend of its own",
            "equal" => "equal shares, which no blend improves by 5 %",
            "other_types" => "too few networks, the mean of other GPU types",
            _ => "too few networks, equal shares",
        };
        text += &format!("{gpu}, {} networks: {source}\n", one.networks);
        for line in shares.chunks(3) {
            text += &format!("  {}\n", line.join(", "));
        }
        if let (Some(equal), Some(blend)) = (one.error_equal, one.error_blend) {
            text += &format!(
                "  root mean square error: equal shares {:.2} %, blend {:.2} %\n",
                100.0 * equal,
                100.0 * blend
            );
        }
    }
    text + "\n"
}

/// The name of a file, with its folder if the name is ambiguous.
fn short<'a>(report: &Report, file: &'a str) -> &'a str {
    let last = |f: &str| f.rsplit('/').next().unwrap_or(f).to_owned();
    let same = |r: &Row| r.file != file && last(&r.file) == last(file);
    let parts = if report.rows.iter().any(same) { 2 } else { 1 };
    let from = file.rmatch_indices('/').nth(parts - 1).map_or(0, |(at, _)| at + 1);
    &file[from..]
}

fn table(report: &Report, rows: &[&Row]) -> Table {
    use Align::{Left, Right};
    let models = rows.iter().any(|r| r.model.is_some());
    let mut columns = vec![("file", Left), ("gpu", Left)];
    columns.extend(models.then_some(("model", Left)));
    columns.extend([("quantity", Left), ("n", Right), ("error", Right), ("p90", Right)]);
    columns.extend(["inside", "constant", "nearest", "linear"].map(|name| (name, Right)));
    let mut table = Table::new(&columns);
    let dash = || "-".to_owned();
    for row in rows {
        let of = |name: &str| row.baselines.get(name).map_or_else(dash, |v| figure(row, *v));
        let mut cells =
            vec![short(report, &row.file).to_owned(), row.gpu.clone().unwrap_or_else(dash)];
        cells.extend(models.then(|| row.model.clone().unwrap_or_else(dash)));
        cells.extend([
            row.quantity.clone(),
            row.n.to_string(),
            figure(row, error(row)),
            row.p90.map_or_else(dash, |v| figure(row, v)),
            row.coverage90.map_or_else(dash, |v| format!("{:.1} %", 100.0 * v)),
        ]);
        cells.extend(["constant", "nearest", "linear"].map(of));
        table.row(cells);
    }
    table
}

/// The error that the baselines are compared with.
fn error(row: &Row) -> f64 {
    match row.mape {
        Some(mape) if row.quantity != "relative_speed" => mape,
        _ => row.mae,
    }
}

fn figure(row: &Row, value: f64) -> String {
    match row.quantity.as_str() {
        "relative_speed" => format!("{value:.3}"),
        "worth_pairing" => format!("{:.1} % right", 100.0 * (1.0 - value)),
        _ => format!("{:.2} %", 100.0 * value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_evaluation::Forms;

    fn row(file: &str, protocol: &str, model: Option<&str>, quantity: &str) -> Row {
        Row {
            file: file.into(),
            gpu: Some("v100".into()),
            model: model.map(str::to_owned),
            protocol: protocol.into(),
            quantity: quantity.into(),
            n: 4,
            mape: Some(0.02),
            mae: 0.035,
            p90: Some(0.05),
            coverage90: Some(0.9),
            baselines: BTreeMap::from([("constant".into(), 0.1)]),
        }
    }

    #[test]
    fn the_table_reads_in_per_cent_and_shares() {
        let report = Report {
            rows: vec![
                row("a/x.csv", "caps-3", None, "time"),
                row("p.csv", "pairs-out", None, "relative_speed"),
                Row { mape: None, ..row("p.csv", "pairs-out", None, "worth_pairing") },
                row("b/x.csv", "scaling", Some("m"), "time"),
                row("b/y.csv", "scaling", Some("n"), "time"),
            ],
            ..Report::default()
        };
        let text = text(&report, false);
        assert!(!text.contains("form of the time"), "{text}");
        for expected in
            ["a/x.csv  v100  time", "2.00 %", "0.035", "96.5 % right", "mean of 2 models 2.00 %"]
        {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(text.contains("\ny.csv ") && !text.contains("b/y.csv"), "{text}");
    }

    #[test]
    fn chosen_forms_are_shown_by_gpu_type() {
        let form = |without: Option<&str>, basis| Forms {
            file: "zeus/x.csv".into(),
            gpu: Some("rtx6000".into()),
            without: without.map(str::to_owned),
            basis,
            networks: 5,
            shares: BTreeMap::from([("power, speed", 0.667), ("power, ln time", 0.333)]),
            error_equal: Some(0.0409),
            error_blend: Some(0.0315),
        };
        let forms = vec![form(Some("bert"), "equal"), form(None, "blend")];
        let text = text(&Report { forms, ..Report::default() }, false);
        for expected in [
            "rtx6000, 5 networks: a blend of its own\n",
            "power, speed 67 %, power, ln time 33 %",
            "equal shares 4.09 %, blend 3.15 %",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(!text.contains("no blend improves"), "{text}");
    }

    #[test]
    fn files_are_found_however_deep_and_folders_without_any_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/throughputs_Z9/b");
        std::fs::create_dir_all(&deep).unwrap();
        let run_on = |path: &Path| {
            run(Evaluate { data: path.to_owned(), method: PredictorName::Physical, json: true })
        };
        for path in [dir.path().to_owned(), dir.path().join("none")] {
            let error = run_on(&path).unwrap_err();
            assert!(error.is::<wattle_cli::output::UsageError>(), "{error}");
        }
        std::fs::write(deep.join("m"), "global_batch_size,1,2,4,8\n64,1,2,3,4\n").unwrap();
        std::fs::write(deep.join("other.bin"), [0u8, 159, 146, 150]).unwrap();
        let mut sources = Vec::new();
        walk(dir.path(), dir.path(), 0, &mut sources).unwrap();
        let files: Vec<&str> = sources.iter().map(|s| s.file.as_str()).collect();
        assert_eq!(files, ["a/throughputs_Z9/b/m"]);
        run_on(dir.path()).unwrap();
    }
}

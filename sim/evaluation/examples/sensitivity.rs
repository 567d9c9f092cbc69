//! Change of the evaluated rows when one constant of the models is halved or doubled.
//!
//! `cargo run -p wattle-evaluation --features vary --example sensitivity -- --data DIR` prints one line for
//! each constant: the largest change of error and of coverage, with its row. It shows how much could have
//! been tuned. A process can vary one constant once, so the example runs itself for each.

#![allow(clippy::unwrap_used, reason = "a developer's tool; it fails with what is missing")]
#![allow(clippy::print_stdout, reason = "prints its table")]

mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use wattle_evaluation::Format;
use wattle_predictor::job::CONSTANTS;
use wattle_predictor::model::constant::varied;

/// Compared protocols.
const PROTOCOLS: [&str; 3] = ["caps-3", "caps-1", "clocks-4"];

/// One evaluation: error and coverage of each row.
fn one(data: &Path) {
    let sources = files::read(data, |f| matches!(f, Format::Caps | Format::Stages));
    for row in wattle_evaluation::run(&sources).rows {
        if PROTOCOLS.contains(&row.protocol.as_str()) {
            let gpu = row.gpu.as_deref().unwrap_or("-");
            let (error, inside) = (row.mape.unwrap(), row.coverage90.unwrap());
            println!("{} {gpu} {}\t{error}\t{inside}", row.protocol, row.quantity);
        }
    }
}

fn run(data: &Path, variation: Option<(&str, f64)>) -> BTreeMap<String, (f64, f64)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--data").arg(data).arg("--one");
    if let Some((name, factor)) = variation {
        command.arg(name).arg(factor.to_string());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let mut cells = line.split('\t');
        let name = cells.next().unwrap().to_owned();
        let mut figure = || cells.next().unwrap().parse::<f64>().unwrap();
        (name, (figure(), figure()))
    };
    text.lines().map(row).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let data = PathBuf::from(files::option("--data").expect("--data DIR"));
    if let Some(at) = args.iter().position(|a| a == "--one") {
        if let (Some(name), Some(factor)) = (args.get(at + 1), args.get(at + 2)) {
            assert!(varied::multiply(name, factor.parse().unwrap()));
        }
        return one(&data);
    }
    let base = run(&data, None);
    for (row, (error, inside)) in &base {
        println!("| {row} | {:.2} % | {:.1} % |", 100.0 * error, 100.0 * inside);
    }
    println!("\n| constant | value | halved: error, inside | doubled: error, inside |");
    println!("|---|---|---|---|");
    for constant in CONSTANTS {
        let cell = |factor: f64| {
            let varied = run(&data, Some((constant.name(), factor)));
            let most = |of: fn(&(f64, f64)) -> f64| {
                let change = |row: &String| 100.0 * (of(&varied[row]) - of(&base[row]));
                let row = base
                    .keys()
                    .max_by(|a, b| change(a).abs().total_cmp(&change(b).abs()))
                    .expect("some row");
                format!("{:+.2} ({row})", change(row))
            };
            format!("{}, {}", most(|r| r.0), most(|r| r.1))
        };
        println!("| {} | {} | {} | {} |", constant.name(), constant.get(), cell(0.5), cell(2.0));
    }
}

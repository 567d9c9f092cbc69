//! Every command of the README and the documentation belongs to one class, and its class decides how
//! it is tested.
//!
//! `wattle_testkit::documentation` reads the blocks and explains the words after their language. That every
//! command of a program parses is tested with its own parser, in `cli/src/lib.rs` and `sim/lab/src/main.rs`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use wattle_common::JobId;
use wattle_runtime::testing::{Weight, turn};
use wattle_testkit::documentation::{self, Run, commands, inline_commands, words};
use wattle_tests::{System, answered, program, repository, until};

use crate::tidy::root;

/// How a command is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// A `wattle` or `wattle-lab` command without a server: run, and its output compared with the page's.
    Offline,
    /// A `wattle` command for a running system: run against one, in the order of the page.
    Live,
    /// `wattle up` with simulated GPUs: started until it prints its address, then ended.
    Up,
    /// A line of a block that is one script: the script is run.
    Script,
    /// A command of a page that starts its own system: run in the page's order (`sessions.rs`).
    Session,
    /// Minutes of run time, or measured files: run by the ignored test.
    Slow,
    /// Not run, for the reason that the page states: its syntax is checked.
    Elsewhere,
    /// A cargo command: its packages, targets, features, profiles and tests exist.
    Cargo,
    /// A script of the repository: the file is executable.
    File,
}

/// The only place that knows which subcommands need a server.
const OFFLINE: &[&str] = &["simulate", "saving", "capacity", "keys", "completions", "man"];
const LIVE: &[&str] = &[
    "submit",
    "jobs",
    "nodes",
    "services",
    "doctor",
    "backup",
    "top",
    "energy",
    "logs",
    "explain",
    "budget",
    "event",
    "predictors",
    "history",
    "page",
    "tap",
    "cancel",
];

/// The class of a command; an error names the command and the remedy.
fn class(command: &documentation::Command) -> Result<Class, String> {
    let words = words(&command.text);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let unknown = || {
        let documentation::Command { page, line, text, .. } = command;
        Err(format!(
            "{page}:{line}: `{text}` belongs to no class: add its subcommand in \
             tests/tests/suite/commands.rs, or put `slow`, `script`, `session` or `elsewhere REASON` after the block's \
             language"
        ))
    };
    match (command.run, words.as_slice()) {
        (_, ["cargo", ..]) => Ok(Class::Cargo),
        (Run::Slow, ["wattle", subcommand, ..]) if OFFLINE.contains(subcommand) => Ok(Class::Slow),
        // The laboratory's program needs no server.
        (Run::Slow, ["wattle-lab", ..]) => Ok(Class::Slow),
        (Run::Here, ["wattle-lab", ..]) => Ok(Class::Offline),
        (Run::Elsewhere(_), _) => Ok(Class::Elsewhere),
        (Run::Session | Run::DatedSession, _) => Ok(Class::Session),
        (Run::Script, _) => Ok(Class::Script),
        (Run::Here, ["wattle", "up", options @ ..]) => {
            // On a machine with GPUs this command would set their caps.
            Ok(if options.contains(&"--simulated") { Class::Up } else { Class::Elsewhere })
        }
        (Run::Here, ["wattle", subcommand, ..]) if OFFLINE.contains(subcommand) => {
            Ok(Class::Offline)
        }
        (Run::Here, ["wattle", subcommand, ..]) if LIVE.contains(subcommand) => Ok(Class::Live),
        (Run::Here, [file]) if root().join(file).is_file() => Ok(Class::File),
        _ => unknown(),
    }
}

/// The commands of this class, in the order of the pages.
fn of_class(wanted: Class) -> Vec<documentation::Command> {
    let all = commands().unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    all.into_iter().filter(|command| class(command) == Ok(wanted)).collect()
}

/// A folder in which the commands find the repository's files, the programs and the files that pages
/// name as examples.
pub(crate) struct Workplace(TempDir);

impl Workplace {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let link = |from: &Path, to: &str| {
            std::os::unix::fs::symlink(from, folder.path().join(to)).unwrap();
        };
        for entry in std::fs::read_dir(root()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && name != "target" {
                link(&entry.path(), &name);
            }
        }
        std::fs::create_dir(folder.path().join("target")).unwrap();
        link(program("wattle").parent().unwrap(), "target/debug");
        link(&repository("deploy/demo/carbon.csv").canonicalize().unwrap(), "intensity.csv");
        link(&repository("deploy/demo/sacct.txt").canonicalize().unwrap(), "sacct.txt");
        std::fs::write(
            folder.path().join("train.py"),
            "import time\nprint('training', flush=True)\ntime.sleep(86400)\n",
        )
        .unwrap();
        std::fs::write(folder.path().join("evaluate.py"), "print('accuracy 0.76')\n").unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A shell that runs `text` here.
    pub(crate) fn shell(&self, text: &str) -> Command {
        let mut command = Command::new("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-c", &format!("set -eo pipefail\n{text}")])
            .current_dir(self.path())
            .env("PATH", format!("{}:{path}", self.path().join("target/debug").display()))
            .env("XDG_STATE_HOME", self.path().join(".state"))
            .stdin(Stdio::null());
        command
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first line of the page's output that the command does not print, in order. Omitted lines are
/// `...`.
pub(crate) fn difference(documented: &[String], printed: &str) -> Option<String> {
    let mut lines = printed.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let mut omitted = false;
    for expected in documented.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()) {
        if expected == "..." {
            omitted = true;
            continue;
        }
        let found = if omitted {
            lines.any(|line| line == expected)
        } else {
            lines.next().is_some_and(|line| line == expected)
        };
        if !found {
            return Some(expected.to_owned());
        }
        omitted = false;
    }
    lines.next().filter(|_| !omitted).map(|line| format!("the end, found `{line}`"))
}

/// Runs a command, and compares its output with the page's where the page shows it.
fn run_and_compare(workplace: &Workplace, command: &documentation::Command, text: &str) {
    let documentation::Command { page, line, .. } = command;
    let output = workplace.shell(text).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}:{line}: {text}: {}: {error}", output.status);
    let printed = stdout(&output);
    if !command.output.is_empty()
        && let Some(expected) = difference(&command.output, &printed)
    {
        panic!("{page}:{line}: {text}\nexpected: {expected}\nprinted:\n{printed}");
    }
}

#[test]
fn every_command_has_a_class() {
    let commands = commands().unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    let mut problems: Vec<String> = Vec::new();
    let mut counts = BTreeMap::new();
    let mut elsewhere = BTreeMap::new();
    for command in &commands {
        match class(command) {
            Ok(class) => *counts.entry(format!("{class:?}")).or_insert(0) += 1,
            Err(error) => problems.push(error),
        }
        if let Run::Elsewhere(reason) = command.run {
            let place = format!("{}:{}", command.page, command.line);
            elsewhere.entry(reason).or_insert_with(Vec::new).push(place);
        }
        let syntax = Command::new("bash").args(["-n", "-c", &command.text]).output().unwrap();
        if !syntax.status.success() {
            let error = String::from_utf8_lossy(&syntax.stderr).into_owned();
            problems.push(format!("{}:{}: {error}", command.page, command.line));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(counts.len(), 9, "a class without a command tests nothing: {counts:?}");
    println!("commands of the documentation by class: {counts:?}");
    for (reason, meaning) in documentation::REASONS {
        let places = elsewhere.remove(reason).unwrap_or_default();
        assert!(!places.is_empty(), "no command has the reason `{reason}`: remove it");
        println!("not run, {meaning}: {}: {}", places.len(), places.join(" "));
    }
}

#[test]
fn scripts_are_executable() {
    use std::os::unix::fs::PermissionsExt;
    for command in of_class(Class::File) {
        let mode = std::fs::metadata(root().join(&command.text)).unwrap().permissions().mode();
        assert!(mode & 0o111 != 0, "{}: {} is not executable", command.page, command.text);
    }
}

#[test]
fn offline_commands_print_the_documented_output() {
    let _turn = turn(Weight::Heavy);
    let workplace = Workplace::new();
    for command in of_class(Class::Offline) {
        run_and_compare(&workplace, &command, &command.text);
    }
}

/// Scripts, without their build commands.
#[test]
fn documented_scripts_run() {
    let _turn = turn(Weight::Heavy);
    let workplace = Workplace::new();
    let mut scripts: BTreeMap<(String, usize), String> = BTreeMap::new();
    for command in of_class(Class::Script) {
        let script = scripts.entry((command.page, command.block)).or_default();
        script
            .push_str(&command.text.replace("/tmp/", &format!("{}/", workplace.path().display())));
        script.push('\n');
    }
    for ((page, line), script) in scripts {
        let script = format!("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{script}");
        let output = workplace.shell(&script).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}:{line}: {}: {error}", output.status);
        assert!(!output.stdout.is_empty(), "{page}:{line}: prints nothing");
    }
}

/// Longest time to the first line of output, wall time.
const FIRST_LINE: std::time::Duration = wattle_runtime::testing::HANG;

/// Runs a command that continues until it is interrupted, and returns its first line.
async fn first_line(workplace: &Workplace, text: &str, server: Option<&System>) -> String {
    let mut shell = workplace.shell(&format!("exec {text}"));
    if let Some(system) = server {
        shell.envs(system.environment());
    }
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line
    });
    let line = tokio::time::timeout(FIRST_LINE, reading).await;
    // A background shell ignores SIGINT, and so do its children.
    wattle_tests::kill(child.id(), "TERM");
    // Without a line the caller's assertion names the command.
    let line = line.map_or_else(|_| String::new(), Result::unwrap);
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    let status = until(&format!("`{text}` ends"), async || child.try_wait().unwrap()).await;
    let interrupted = status.success() || status.code() == Some(130) || status.code().is_none();
    assert!(interrupted, "{text}: {status}: {error}");
    line
}

#[tokio::test]
async fn documented_systems_start() {
    let _turn = turn(Weight::Heavy);
    let workplace = Workplace::new();
    for command in of_class(Class::Up) {
        let line = first_line(&workplace, &command.text, None).await;
        assert!(line.starts_with("nats://"), "{}: {}: {line}", command.page, command.text);
    }
}

/// The live commands of each page in order, against one system. A job that a page names exists.
#[tokio::test]
async fn live_commands_run_in_order() {
    let _turn = turn(Weight::Heavy);
    let workplace = Workplace::new();
    let mut system = System::up(&["--simulated", "2x4:v100", "--rate", "60"]).await;
    // Documented id of a job, and its id here.
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for command in of_class(Class::Live) {
        let documentation::Command { page, line, .. } = &command;
        let mut text = command.text.clone();
        for (documented, id) in &ids {
            text = text.replace(documented.as_str(), id);
        }
        let words = words(&text);
        let named = matches!(words[1].as_str(), "explain" | "logs" | "cancel")
            .then(|| words[2..].iter().rfind(|word| !word.starts_with('-')).unwrap().clone());
        if let Some(name) = named
            && !ids.values().any(|id| id.starts_with(&name))
        {
            let training = ["--workload", "eaco-resnet50", "--steps", "100000000"];
            let job = system.submit(&name, &["--gpus", "1"], &training);
            system.until_job(&job, "it runs", |r| r.step.is_some()).await;
            ids.insert(name, job.to_string());
        }
        let continues = words[1] == "tap" || words.contains(&"-f".to_owned());
        if continues {
            let first = first_line(&workplace, &text, Some(&system)).await;
            assert!(!first.is_empty(), "{page}:{line}: {text} prints nothing");
            continue;
        }
        // The terminal view needs a terminal, and ends with `q`.
        let run = match words[1].as_str() {
            "top" => format!("(sleep 0.5; printf q) | script -qec '{text}' /dev/null"),
            _ => text.clone(),
        };
        let mut shell = workplace.shell(&run);
        shell.envs(system.environment());
        let output = answered(|| shell.output().unwrap());
        let error = String::from_utf8_lossy(&output.stderr);
        // Its verdict is also about this machine, such as its disks.
        let is_verdict = words[1] == "doctor" && stdout(&output).contains("\nchecked:\n");
        let is_fine = output.status.success() || is_verdict;
        assert!(is_fine, "{page}:{line}: {text}: {}: {error}", output.status);
        if words[1] == "submit" {
            let id = stdout(&output).trim().to_owned();
            let job = JobId::new(&id).unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
            let documented = command.output.first().cloned().unwrap_or_else(|| id.clone());
            ids.insert(documented, id);
            system.until_job(&job, "it starts", |r| r.log_paths.len() == 1).await;
        }
    }
    assert!(system.end().await.success());
}

/// `cargo fuzz run TARGET FOLDER...`: the target exists and all folders but the first, which it creates.
fn check_fuzz_command(place: &str, words: &[String]) {
    let [run, target, _, corpora @ ..] = words else { panic!("{place}: {words:?}") };
    assert_eq!(run, "run", "{place}");
    assert!(root().join(format!("fuzz/fuzz_targets/{target}.rs")).exists(), "{place}: {target}");
    for corpus in corpora {
        assert!(root().join(corpus).is_dir(), "{place}: {corpus}");
    }
}

/// The options of cargo commands name what exists; a test filter selects at least one test.
#[test]
fn cargo_commands_name_existing_packages_targets_and_tests() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let inline = inline_commands("cargo");
    let inline = inline.iter().map(|(page, line, text)| (format!("{page}:{line}"), text.clone()));
    let blocks = of_class(Class::Cargo);
    let blocks = blocks.iter().map(|c| (format!("{}:{}", c.page, c.line), c.text.clone()));
    let mut seen = 0;
    let parts = |(place, text): (String, String)| {
        text.split("&&").map(|part| (place.clone(), part.trim().to_owned())).collect::<Vec<_>>()
    };
    for (place, text) in blocks.chain(inline).flat_map(parts) {
        let words = words(&text);
        // A program that is installed and an extension of cargo have arguments of their own.
        let is_other = words.get(1).is_some_and(|word| word == "install" || word == "mutants");
        if words.first().is_none_or(|word| word != "cargo") || is_other {
            continue;
        }
        seen += 1;
        if let Some(at) = words.iter().position(|word| word == "fuzz") {
            check_fuzz_command(&place, &words[at + 1..]);
            continue;
        }
        let mut package = None;
        let mut words = words.iter().map(String::as_str).skip(2).peekable();
        while let Some(word) = words.next() {
            if word == "--" {
                break;
            }
            let has_target = |kind: &str, name: &str| {
                let of =
                    packages.iter().filter(|p| package.is_none_or(|wanted| p["name"] == wanted));
                let mut targets = of.flat_map(|p| p["targets"].as_array().unwrap());
                targets.any(|t| t["kind"][0] == kind && t["name"] == name)
            };
            let mut argument = || words.next().unwrap_or_else(|| panic!("{place}: {text}: {word}"));
            let exists = match word {
                "-p" => {
                    let name = argument();
                    package = Some(name).filter(|name| *name != "CRATE");
                    package.is_none() || packages.iter().any(|p| p["name"] == name)
                }
                "--example" => has_target("example", argument()),
                "--bin" => has_target("bin", argument()),
                "--test" => has_target("test", argument()),
                "--bench" => has_target("bench", argument()),
                "--profile" => manifest.contains(&format!("[profile.{}]", argument())),
                "--features" => {
                    let name = argument();
                    packages.iter().any(|p| {
                        package.is_none_or(|wanted| p["name"] == wanted)
                            && p["features"].get(name).is_some()
                    })
                }
                _ if word.starts_with('-') => true,
                // A test filter; NAME is a placeholder.
                _ => word == "NAME" || is_part_of_a_test(word),
            };
            assert!(exists, "{place}: `{text}`: nothing is named by `{word}`");
        }
    }
    assert!(seen > 8, "{seen} cargo commands");
}

/// Whether the name of a test function or of a module of tests contains `filter`.
fn is_part_of_a_test(filter: &str) -> bool {
    crate::tidy::files(".rs").iter().any(|path| {
        let text = std::fs::read_to_string(path).unwrap();
        let module = path.file_stem().is_some_and(|name| name.to_string_lossy().contains(filter));
        let is_test = |line: &str| {
            line.trim_start().split_once("fn ").is_some_and(|(_, rest)| {
                rest.split('(').next().is_some_and(|name| name.contains(filter))
            })
        };
        let has_tests = text.contains("#[test]") || text.contains("#[tokio::test");
        has_tests && (module || text.lines().any(is_test))
    })
}

/// Runs the slow commands with the binaries of `WATTLE_PROGRAMS` (a folder, as `target/release`) and the
/// measured files of `WATTLE_DATA`; each for at most `WATTLE_LIMIT_S` seconds (120). A command that still
/// runs then has accepted its options and files.
#[test]
#[ignore = "minutes: WATTLE_PROGRAMS=target/release cargo test -p wattle-tests slow_commands -- --ignored --nocapture"]
fn slow_commands_run() {
    let data =
        std::env::var("WATTLE_DATA").map_or_else(|_| root().join("../shared/data"), PathBuf::from);
    let data = data.canonicalize().expect("WATTLE_DATA names a folder of measured files");
    let limit = std::env::var("WATTLE_LIMIT_S").ok().and_then(|s| s.parse().ok()).unwrap_or(120);
    let workplace = Workplace::new();
    if let Ok(programs) = std::env::var("WATTLE_PROGRAMS") {
        let link = workplace.path().join("target/debug");
        std::fs::remove_file(&link).unwrap();
        let programs = Path::new(&programs).canonicalize().unwrap();
        std::os::unix::fs::symlink(programs, link).unwrap();
    }
    let mut problems = Vec::new();
    for command in of_class(Class::Slow) {
        let documentation::Command { page, line, text, .. } = &command;
        // A bare file name that is not here is one of the measured files.
        for word in words(text) {
            let is_file =
                word.contains('.') && !word.contains(['/', ',']) && !word.starts_with('-');
            if is_file
                && !workplace.path().join(&word).exists()
                && let Some(file) = find(&data, &word)
            {
                std::os::unix::fs::symlink(file, workplace.path().join(&word)).unwrap();
            }
        }
        let text = text.replace("DIR", data.to_str().unwrap());
        let began = wattle_runtime::clock::wall_now();
        let limited = format!("timeout -s INT {limit} {text}");
        let output = workplace.shell(&limited).output().unwrap();
        let took = wattle_runtime::clock::wall_now().since(began).as_secs_f64();
        let over = Duration::from_secs(limit).as_secs_f64() <= took;
        let printed = stdout(&output);
        let result = if over {
            "still running at the limit".to_owned()
        } else if !output.status.success() {
            format!("FAILED: {}", String::from_utf8_lossy(&output.stderr))
        } else {
            match difference(&command.output, &printed).filter(|_| !command.output.is_empty()) {
                Some(expected) => format!("FAILED: expected {expected}\n{printed}"),
                None => "as documented".to_owned(),
            }
        };
        println!("{page}:{line}: {text}: {took:.1} s: {result}");
        if result.starts_with("FAILED") {
            problems.push(format!("{page}:{line}: {text}: {result}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A file of this name below a folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().collect();
    let here = entries.iter().find(|entry| entry.file_name() == name).map(std::fs::DirEntry::path);
    here.or_else(|| entries.iter().filter_map(|entry| find(&entry.path(), name)).next())
}

//! Pages whose commands are one session: the page starts a system, and its `console session` blocks are
//! run against it in order, as a reader does.
//!
//! The output is compared with the page's: the words of each line, not the numbers. A command that only
//! reads is repeated until its output is as documented, within a deadline.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use wattle_runtime::testing::{self, Weight, turn};
use wattle_testkit::documentation::{self, Run, commands, words};
use wattle_tests::simulated_clock::{self, Held};
use wattle_tests::{PATIENCE, answered, kill, until_up};

use crate::commands::{Workplace, difference, stdout};

/// Commands that change something: run once.
const ONCE: &[&str] = &["submit", "cancel", "set", "clear", "promote"];

/// Whether a word is a date, `2026-01-01` or `01-01`.
fn is_date(word: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    word.contains('-') && word.split('-').all(is_part)
}

/// A line without its numbers and without the widths of its columns. A unit is that of the number's magnitude. A time of
/// another day has its date before it.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if is_date(word) && words.peek().is_some_and(|next| next.contains(':')) {
            continue;
        }
        let number = |c: char| c.is_ascii_digit();
        let mut parts = word.split(|c: char| c.is_ascii_digit() || ".,:+-".contains(c)).peekable();
        let is_number = word.contains(number);
        shape.push(' ');
        if is_number {
            // `1.2`, `-3`, `2026-01-01` and `0` are one number each; letters beside it are kept.
            let letters: Vec<&str> = parts.by_ref().filter(|part| !part.is_empty()).collect();
            shape.push_str(&letters.join("0"));
            shape.push('0');
        } else {
            shape.push_str(match word {
                "kW" => "W",
                "kWh" => "Wh",
                other => other,
            });
        }
    }
    shape.trim().to_owned()
}

/// The difference between the documented and the printed output, without numbers.
fn shape_difference(documented: &[String], printed: &str) -> Option<String> {
    let keep = |line: &str| if line == "..." { line.to_owned() } else { shape(line) };
    let documented: Vec<String> = documented.iter().map(|line| keep(line.trim())).collect();
    let printed: Vec<String> = printed.lines().map(shape).collect();
    difference(&documented, &printed.join("\n"))
}

/// The lines of an output that are compared: of one that differs between runs those without a number.
fn compared(command: &documentation::Command) -> Vec<String> {
    let differs = |line: &str| line.contains(|c: char| c.is_ascii_digit());
    let line = |line: &String| match command.run {
        Run::DatedSession if differs(line) => "...".to_owned(),
        _ => line.clone(),
    };
    command.output.iter().map(line).collect()
}

/// A line about a window that exceeded its budget by more than 1 %, which no page shows.
fn overrun(printed: &str) -> Option<String> {
    let of = |line: &&str| {
        let share =
            line.trim_start().strip_prefix("overrun").unwrap_or("0").split_whitespace().next();
        share.is_none_or(|share| share.parse::<f64>().is_ok_and(|percent| percent > 1.0))
    };
    printed.lines().find(of).map(|line| format!("a held budget, found `{line}`"))
}

/// A system that a page has started; it ends with the page.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            kill(self.0.id(), "TERM");
            let _ = self.0.wait();
        }
    }
}

/// Starts a system and waits for the address that it prints first.
fn start(workplace: &Workplace, text: &str) -> Started {
    let mut shell = workplace.shell(&format!("exec {text}"));
    let log = std::fs::File::create(workplace.path().join("up.err")).unwrap();
    let mut child = shell.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let started = Started(child);
    let log = std::fs::read_to_string(workplace.path().join("up.err")).unwrap_or_default();
    assert!(line.starts_with("nats://"), "{text}: {line}{log}");
    started
}

/// The environment of a command for which the clock of the system that runs here waits, as if no time passed
/// between a reader's commands.
fn clock_environment(workplace: &Workplace) -> Option<(&'static str, PathBuf)> {
    let running = std::fs::read(workplace.path().join(".state/wattle/running.json")).ok()?;
    let running: serde_json::Value = serde_json::from_slice(&running).ok()?;
    Some(simulated_clock::environment(Path::new(running.get("clock")?.as_str()?)))
}

/// Runs one page's session. Between two commands no simulated time passes: a job lasts some seconds of wall time, and on
/// a busy machine it would end before the commands that look at it.
async fn run(page: &str, session: &[documentation::Command]) {
    let workplace = Workplace::new();
    let mut started: Option<Started> = None;
    let mut held: Option<Held> = None;
    for command in session {
        let text = &command.text;
        let place = format!("{page}:{}: {text}", command.line);
        let words = words(text);
        if words.get(..2).is_some_and(|words| words == ["wattle", "up"]) {
            drop((held.take(), started.take()));
            let system = started.insert(start(&workplace, text));
            until_up(&mut system.0, &workplace.path().join("up.err")).await;
            held = Some(Held::of_up(system.0.id()));
            continue;
        }
        let is_read = !words.iter().take(3).any(|word| ONCE.contains(&word.as_str()));
        let (mut last, documented) = (String::new(), compared(command));
        drop(held.take());
        let mut attempt = || {
            // The pages show the jobs of this user.
            let mut shell = workplace.shell(text);
            shell.env("USER", "ada").envs(clock_environment(&workplace));
            let output = answered(|| shell.output().unwrap());
            let (printed, error) = (stdout(&output), String::from_utf8_lossy(&output.stderr));
            let expected = shape_difference(&documented, &printed).or_else(|| overrun(&printed));
            let is_shown = command.output.is_empty() || expected.is_none();
            last = format!("{error}expected: {expected:?}\nprinted:\n{printed}");
            (output.status.success() && is_shown).then_some(())
        };
        let first = attempt();
        let found = if is_read && first.is_none() {
            testing::until(PATIENCE, async || attempt()).await
        } else {
            first
        };
        let log = std::fs::read_to_string(workplace.path().join("up.err")).unwrap_or_default();
        assert!(found.is_some(), "{place}: {last}\n{log}");
        held = started.as_ref().map(|system| Held::of_up(system.0.id()));
    }
    assert!(started.is_some(), "{page}: a session starts with `wattle up`");
}

/// The pages with sessions, each with its commands.
fn sessions() -> BTreeMap<String, Vec<documentation::Command>> {
    let mut sessions: BTreeMap<String, Vec<documentation::Command>> = BTreeMap::new();
    for command in commands().unwrap_or_else(|problems| panic!("{}", problems.join("\n"))) {
        if matches!(command.run, Run::Session | Run::DatedSession) {
            sessions.entry(command.page.clone()).or_default().push(command);
        }
    }
    sessions
}

#[tokio::test]
async fn the_first_session_runs_as_documented() {
    let _turn = turn(Weight::Heavy);
    run("docs/start.md", &sessions()["docs/start.md"]).await;
}

#[tokio::test]
#[ignore = "a minute: tests/full commands"]
async fn further_sessions_run_as_documented() {
    let further: Vec<_> =
        sessions().into_iter().filter(|(page, _)| page != "docs/start.md").collect();
    assert!(!further.is_empty());
    for (page, session) in further {
        run(&page, &session).await;
    }
}

#[test]
fn shapes_ignore_numbers_and_widths_only() {
    assert_eq!(shape("t-17  running     2   1.43 Wh"), shape("t-9 running 12 0.1 Wh"));
    assert_eq!(shape("2026-11-24 02:47"), shape("2025-01-01 23:59"));
    assert_eq!(shape("end 23:52"), shape("end 11-28 00:02"));
    assert_ne!(shape("t-17 running 2"), shape("t-17 queued 2"));
    assert_eq!(shape("12 W"), shape("1.2 kW"));
    assert_ne!(shape("12 W"), shape("12 Wh"));
    let page = ["a 1".to_owned(), "...".to_owned(), "c 3".to_owned()];
    assert!(shape_difference(&page, "a 2\nb\nc 4").is_none());
    assert!(shape_difference(&page, "a 2\nb\nd 4").is_some());
    assert!(overrun("spent 3\noverrun  0.20 % in the previous window").is_none());
    assert!(overrun("overrun  1.20 % in the previous window").is_some());
}

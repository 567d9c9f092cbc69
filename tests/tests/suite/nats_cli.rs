//! The lines of docs/messages.md for `nats`, NATS's own command line: under `wattle up`, and on a site with
//! keys as an operator.
//!
//! `deploy/ensure-nats-cli` finds or builds the program; where it cannot, the tests print that they did not run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wattle_common::subject::Topic;
use wattle_runtime::testing::skipped;
use wattle_tests::{PATIENCE, System, program, repository, until};

use crate::identity::{Site, error_of, secured};

/// The program, or a note that the test did not run.
fn nats() -> Option<PathBuf> {
    let output = Command::new(repository("deploy/ensure-nats-cli")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.code() {
        Some(0) => Some(text(&output.stdout).into()),
        Some(3) => {
            skipped(&text(&output.stderr));
            None
        }
        _ => panic!("deploy/ensure-nats-cli: {}", text(&output.stderr)),
    }
}

/// The lines of the page that begin with `nats`, in order, without the program.
fn documented() -> Vec<String> {
    let page = std::fs::read_to_string(repository("docs/messages.md")).unwrap();
    let tables = page.lines().filter(|line| line.starts_with("| "));
    let spans = tables.flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter_map(|span| span.strip_prefix("nats ")).map(str::to_owned).collect()
}

/// Lines that follow what happens, until they are ended.
fn follows(line: &str) -> bool {
    line.starts_with("kv watch") || (line.starts_with("sub ") && !line.contains("--count"))
}

/// The words that show that a line has failed or leaves an operator without an answer.
const FAULTS: [&str; 6] = [
    "error:",
    "permissions violation",
    "no responders",
    "no description",
    "result\":\"refused\"",
    "not found",
];

/// What the output of a line contains, by its beginning.
const EXPECTED: [(&str, &[&str]); 13] = [
    ("micro ls", &["wattle-placer", "wattle-launcher", "wattle-power-agent", "accepts jobs"]),
    ("micro info", &["job-submitted", "SubmitJob", "Reply"]),
    ("micro stats", &["job-submitted"]),
    ("stream ls", &["-ledger", "-windows", "-orders", "Wattle: energy of each node"]),
    ("stream report", &["-ledger"]),
    ("stream info", &["Wattle: energy of each node", "energy.metered"]),
    ("kv ls", &["-jobs", "-desired", "Wattle: record of each job"]),
    ("kv get", &["\"phase\""]),
    ("kv watch", &["n0"]),
    ("stream get", &["wattle.v1."]),
    ("sub --count", &["Received on"]),
    ("sub '", &["Received on"]),
    ("req ", &["{\""]),
];

/// A context for a cluster and a person.
struct Context<'a> {
    nats: &'a Path,
    file: PathBuf,
    /// More options.
    options: Vec<String>,
    cluster: &'a str,
    requester: &'a str,
}

impl Context<'_> {
    /// Runs a line of the page until its output is as expected: a stream may have no such message yet.
    async fn check(&self, line: &str) {
        let expected = EXPECTED.iter().filter(|(start, _)| line.starts_with(start));
        let expected: Vec<&str> = expected.flat_map(|(_, words)| *words).copied().collect();
        assert!(!expected.is_empty(), "nothing is expected of: nats {line}");
        let limit = if follows(line) { "timeout --signal INT 10 " } else { "" };
        let line = line.replace("wattle-v1-local", &format!("wattle-v1-{}", self.cluster));
        let line = line.replace("wattle.v1.local", &format!("wattle.v1.{}", self.cluster));
        let line = line.replace("local.ada", self.requester);
        let shell = format!("exec {limit}\"$0\" \"$@\" {line}");
        let mut last = String::new();
        let found = wattle_runtime::testing::until(PATIENCE, async || {
            let output = Command::new("bash")
                .args(["-c", &shell])
                .arg(self.nats)
                .arg("--context")
                .arg(&self.file)
                .args(&self.options)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            last = format!("{}{}", String::from_utf8_lossy(&output.stdout), error_of(&output));
            let shown = last.to_lowercase();
            let is_faulty = FAULTS.iter().any(|fault| shown.contains(fault));
            (!is_faulty && expected.iter().all(|word| last.contains(word))).then_some(())
        })
        .await;
        assert!(found.is_some(), "nats {line}: expected {expected:?}\n{last}");
    }

    async fn check_all(&self) {
        let lines = documented();
        assert!(lines.len() > Topic::ALL.len() + 8, "{lines:?}");
        for line in lines {
            self.check(&line).await;
        }
    }
}

#[tokio::test]
#[ignore = "builds nats with Go: tests/full nats"]
async fn every_line_runs_under_wattle_up() {
    let Some(nats) = nats() else { return };
    let arguments = ["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"];
    let mut system = System::up_as("local", &arguments).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "100000000"];
    let job = system.submit("first", &["--gpus", "2", "--workload", "eaco-alexnet"], &training);
    system.until_job(&job, "it reports steps", |r| r.step.is_some_and(|step| step > 0)).await;
    let context = Context {
        nats: &nats,
        file: system.folder().join("wattle/nats.json"),
        options: Vec::new(),
        cluster: "local",
        requester: "local.ada",
    };
    context.check_all().await;
    assert!(system.end().await.success());
    assert!(!context.file.exists(), "the context ends with its system");
}

#[tokio::test]
#[ignore = "builds nats with Go: tests/full nats"]
async fn every_line_runs_with_the_key_of_an_operator() {
    let Some(nats) = nats() else { return };
    let site = Site::new(true).await;
    let services = secured::start(&site);
    let simjob = program("wattle-simjob");
    let training =
        ["--", simjob.to_str().unwrap(), "--workload", "eaco-alexnet", "--steps", "100000000"];
    let submit = ["submit", "--job", "first", "--gpus", "2", "--workload", "eaco-alexnet"];
    until("the job is accepted", async || {
        let output = site.wattle_as("user-ada", &[&submit[..], &training].concat());
        output.status.success().then_some(())
    })
    .await;
    let context = Context {
        nats: &nats,
        file: site.folder.path().join("keys/contexts/operator-olga.json"),
        // The server of the test has a port of its own.
        options: vec!["--server".to_owned(), site.server.url()],
        cluster: "main",
        requester: "operator.olga",
    };
    context.check_all().await;
    drop(services);
}

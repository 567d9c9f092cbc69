//! `--wait` on a running system: the exit code of a job, a cancellation, an interruption, a time limit, a server
//! that restarts meanwhile, and a budget that the plan reflects.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_common::messages::BudgetStatus;
use wattle_common::subject::{BUDGET_STATUS, Bucket};
use wattle_tests::{System, UNANSWERED, kill, program, reflects, until};

/// A `wattle submit --wait` in the background.
struct Waiting {
    child: Child,
    job: JobId,
}

impl Waiting {
    /// Submits a job that sleeps, and returns when its id is printed.
    fn submit(system: &System, job: &str, options: &[&str]) -> Self {
        loop {
            let mut child = Command::new(program("wattle"))
                .args(["submit", "--wait", "--job", job])
                .args(options)
                .args(["--", "sleep", "86400"])
                .envs(system.environment())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            if let Ok(job) = JobId::new(line.trim()) {
                return Self { child, job };
            }
            // The id is printed before the wait, unless the command has not reached its server.
            let error = text(&child.wait_with_output().unwrap()).2;
            assert!(error.contains(UNANSWERED), "{error}");
        }
    }

    /// Waits for the end of the command; returns its status and its stderr.
    async fn end(mut self) -> (ExitStatus, String) {
        let status =
            until("the wait ends", async || self.child.try_wait().expect("it is our child")).await;
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }
}

fn text(output: &std::process::Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// One system for all of it.
#[tokio::test]
async fn commands_wait_for_jobs_and_budgets() {
    let mut system = System::up(&["--simulated", "1x4:v100", "--rate", "60"]).await;
    submit_waits_for_the_end_and_has_the_jobs_exit_code(&system).await;
    a_wait_ends_without_the_job_and_a_cancellation_ends_both(&system).await;
    budget_set_waits_until_the_status_reflects_it(&system).await;
    assert!(system.end().await.success());
}

async fn submit_waits_for_the_end_and_has_the_jobs_exit_code(system: &System) {
    let wait = |job: &str, program: &[&str]| {
        let head = ["submit", "--wait", "--job", job];
        text(&system.wattle(&[&head[..], program].concat()))
    };
    let (code, id, notes) = wait("fine", &["--", "true"]);
    assert_eq!((code, id.as_str()), (Some(0), "fine\n"), "{notes}");
    assert!(notes.contains("fine has finished"), "{notes}");
    let (code, id, notes) = wait("seven", &["--", "sh", "-c", "exit 7"]);
    assert_eq!((code, id.as_str()), (Some(7), "seven\n"), "{notes}");
    assert!(notes.contains("seven has failed: "), "{notes}");
    let (code, _, notes) = wait("killed", &["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, Some(137), "{notes}");
    // A job without an exit code of its own.
    let (code, _, notes) = wait("absent", &["--", "/no/such/program"]);
    let record = system.record(&JobId::new("absent").unwrap()).await.unwrap();
    let expected = record.exit_code.unwrap_or(125);
    assert_eq!((record.phase, code), (JobPhase::Failed, Some(expected)), "{notes}");
    assert!(notes.contains("absent has failed: "), "{notes}");

    let (code, printed, notes) = wait("json", &["--json", "--", "sh", "-c", "exit 3"]);
    assert_eq!(code, Some(3), "{notes}");
    let ended: Value = serde_json::from_str(&printed).expect("one document");
    assert_eq!(ended["result"], "accepted");
    assert_eq!((&ended["phase"], &ended["exit_code"]), (&"failed".into(), &3.into()), "{ended}");
    // A refused job is not waited for.
    let (code, _, notes) = wait("json", &["--", "true"]);
    assert!(code == Some(2) && notes.contains("exists already"), "{notes}");
}

async fn a_wait_ends_without_the_job_and_a_cancellation_ends_both(system: &System) {
    // Ctrl-C ends the wait only.
    let waiting = Waiting::submit(system, "long", &[]);
    let (job, pid) = (waiting.job.clone(), waiting.child.id());
    system.until_job(&job, "it runs", |r| r.phase == JobPhase::Running).await;
    kill(pid, "INT");
    let (status, notes) = waiting.end().await;
    assert_eq!(status.code(), Some(130), "{notes}");
    assert!(notes.contains("long continues; `wattle cancel long` cancels it"), "{notes}");
    assert_eq!(system.record(&job).await.unwrap().phase, JobPhase::Running);
    // So does a time limit, with the state that the job has then.
    let limited = ["submit", "--wait", "--timeout", "1s", "--json", "--job", "limited", "--"];
    let (code, printed, notes) =
        text(&system.wattle(&[&limited[..], &["sleep", "86400"]].concat()));
    assert_eq!(code, Some(124), "{notes}");
    assert!(notes.contains("limited continues"), "{notes}");
    let state: Value = serde_json::from_str(&printed).expect("one document");
    assert_eq!((&state["job"], &state["generation"]), (&"limited".into(), &1.into()), "{state}");

    // The server restarts while a command waits.
    let waiting = Waiting::submit(system, "cancelled", &[]);
    let cancelled = waiting.job.clone();
    system.until_job(&cancelled, "it runs", |r| r.phase == JobPhase::Running).await;
    system.kill_9("nats-server");
    until("the server answers", async || system.bus.stream_messages("none").await.ok()).await;
    // A cancellation is waited for; both commands then see the end of the job.
    let (code, printed, notes) = text(&system.wattle(&["cancel", "--wait", "cancelled"]));
    assert_eq!((code, printed.trim()), (Some(0), "cancelled is being cancelled"), "{notes}");
    assert!(notes.contains("cancelled was cancelled"), "{notes}");
    let record = system.record(&cancelled).await.unwrap();
    assert_eq!((record.phase, record.generation), (JobPhase::Cancelled, 2));
    let (status, notes) = waiting.end().await;
    assert_eq!(status.code(), Some(125), "{notes}");
    assert!(notes.contains("cancelled was cancelled"), "{notes}");

    let (code, printed, notes) = text(&system.wattle(&["cancel", "--wait", "--json", "long"]));
    assert_eq!(code, Some(0), "{notes}");
    let ended: Value = serde_json::from_str(&printed).expect("one document");
    assert_eq!((&ended["phase"], &ended["generation"]), (&"cancelled".into(), &2.into()));
    let (code, _, notes) = text(&system.wattle(&["cancel", "--timeout", "1s", "limited"]));
    assert!(code == Some(2) && notes.contains("--wait"), "{notes}");
}

/// After the command one reading of the status suffices.
async fn budget_set_waits_until_the_status_reflects_it(system: &System) {
    let status = async || {
        let bucket = system.bus.bucket(Bucket::Budget).await.unwrap();
        let status = bucket.get::<BudgetStatus>(BUDGET_STATUS).await.unwrap();
        status.expect("a status is stored").0
    };
    let mut last = 0;
    for kilowatts in ["1.4", "1.2", "1.3"] {
        let set = ["budget", "set", "--wait", "--power-kw", kilowatts, "--json"];
        let stored = system.json(&set);
        let generation = reflects::generation(&stored);
        assert!(generation > last, "{stored}");
        assert_eq!(status().await.observed_generation, generation);
        // A repeated request changes nothing, and is reflected already.
        assert_eq!(reflects::generation(&system.json(&set)), generation);
        last = generation;
    }
    let cleared = system.json(&["budget", "clear", "--wait", "--json"]);
    assert_eq!(status().await.observed_generation, reflects::generation(&cleared));
}

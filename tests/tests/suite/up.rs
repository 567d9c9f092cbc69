//! `wattle up` without `--dir`: its temporary folder, and failures before the cluster is up.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use wattle_runtime::testing::write_script;
use wattle_tests::{System, answered, program, until, until_up};

fn entries(folder: &Path) -> Vec<String> {
    let read = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        read.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// `wattle up` with `folder` for its temporary and its state files.
fn up(folder: &Path, args: &[&str]) -> Command {
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut up = Command::new(program("wattle"));
    up.arg("up").args(args).env("TMPDIR", temporary).env("XDG_STATE_HOME", folder.join("state"));
    up
}

#[test]
fn a_failed_start_names_the_cause_and_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], server: &str, code: i32, expected: &[&str]| {
        let mut up = up(folder.path(), args);
        let Output { status, stderr, .. } = up.env("NATS_SERVER", server).output().unwrap();
        let error = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{error}");
        for word in expected {
            assert!(error.contains(word), "no `{word}` in {error}");
        }
        assert!(!error.contains("starting it again"), "{error}");
        assert!(entries(&folder.path().join("tmp")).is_empty(), "{error}");
    };
    fails(&["--simulated", "1x1:voodoo"], "", 2, &["voodoo", "v100"]);
    let simulated = ["--simulated", "1x1:v100"];
    fails(&simulated, "/no/such/server", 2, &["NATS_SERVER=/no/such/server", "unset it"]);
    fails(&simulated, "nats://127.0.0.1:4222", 2, &["not an executable file"]);
}

/// Another program than a server is tried a few times; its log is kept.
#[test]
fn a_server_that_does_not_start_is_reported_with_its_output() {
    let folder = tempfile::tempdir().unwrap();
    for (server, expected) in [
        (program("wattle").display().to_string(), "try '--help'"),
        ("/bin/false".to_owned(), "ended 3 times within 2s (exit status: 1): it printed nothing"),
    ] {
        let mut up = up(folder.path(), &["--simulated", "1x1:v100"]);
        let Output { status, stderr, .. } = up.env("NATS_SERVER", &server).output().unwrap();
        let error = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(1), "{error}");
        assert!(error.contains("nats-server does not start"), "{error}");
        assert!(error.contains(&server) && error.contains(expected), "{error}");
        let kept = error.lines().find_map(|line| line.strip_prefix("logs and state are kept in "));
        assert!(Path::new(kept.unwrap()).join("logs/nats-server.log").exists(), "{error}");
    }
}

/// A server that crashes with the exit code of a rejected configuration is started again.
#[tokio::test]
async fn a_server_that_crashes_while_it_starts_again_is_started_once_more() {
    let folder = tempfile::tempdir().unwrap();
    let server = folder.path().join("nats-server");
    let starts = folder.path().join("starts");
    // The second start ends as a crashed Go program does.
    let script = format!(
        "echo start >> {starts}\n[ $(wc -l < {starts}) = 2 ] && exit 2\nexec {real} \"$@\"",
        starts = starts.display(),
        real = wattle_runtime::server::find().unwrap().display(),
    );
    write_script(&server, &script);
    let environment = [("NATS_SERVER", server.as_os_str())];
    let mut system = System::up_with(&["--simulated", "1x1:v100"], &environment).await;
    system.kill_9("nats-server");
    until("the server answers", async || system.bus.stream_messages("none").await.ok()).await;
    assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 3);
    let error = system.stderr();
    assert_eq!(error.matches("starting it again").count(), 2, "{error}");
    assert!(system.end().await.success());
}

#[tokio::test]
async fn output_of_jobs_outlives_an_interrupted_up() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("up.err");
    let mut up = up(folder.path(), &["--simulated", "1x2:v100", "--rate", "60"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(up.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let error = || std::fs::read_to_string(&log).unwrap();
    until_up(&mut up, &log).await;
    let submit = |job: &str, script: &str| {
        let mut submit = Command::new(program("wattle"));
        submit
            .args(["submit", "--nats", url.trim(), "--cluster", "local", "--job", job, "--"])
            .args(["sh", "-c", script])
            .env("XDG_STATE_HOME", folder.path().join("state"));
        let output = answered(|| submit.output().unwrap());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, why) = submit("talker", "echo result 42; sleep 86400");
    assert_eq!(code, Some(0), "{why}");
    // The same command again is another submission, not a repeated request.
    let (code, why) = submit("talker", "echo result 42; sleep 86400");
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("job `talker` exists already") && why.contains("another id"), "{why}");

    let temporary = folder.path().join("tmp");
    let state = temporary.join(&entries(&temporary)[0]);
    let is_output = |name: &String| name.starts_with("talker.") && name.ends_with(".n0.log");
    let read = || {
        let name = entries(&state.join("jobs")).into_iter().find(is_output);
        name.and_then(|name| std::fs::read_to_string(state.join("jobs").join(name)).ok())
            .unwrap_or_default()
    };
    until("the job has printed", async || read().contains("result 42").then_some(())).await;
    let interrupt = Command::new("kill").args(["-INT", &up.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    assert!(up.wait().unwrap().success(), "{}", error());
    assert!(read().contains("result 42"), "{}", error());
    assert_eq!(entries(&state), ["jobs"], "services leave nothing");
    let kept = state.join("jobs").display().to_string();
    assert!(error().contains(&kept), "{kept} is not printed: {}", error());
}

/// The last job has its last ledger entry after its end, and no job follows that would make the twin count it.
#[test]
fn a_trace_ends_with_the_saving_over_all_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    let rows =
        ["0,1,0,960,resnet50,120,0,eaco-resnet50", "1,1,10,960,resnet50,120,0,eaco-resnet50"];
    let header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,workload";
    std::fs::write(&trace, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
    let args = ["--simulated", "1x1:v100", "--rate", "60", "--policy", "backfill", "--json"];
    let mut up = up(folder.path(), &args);
    let Output { status, stdout, stderr } = up.arg("--trace").arg(&trace).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let printed = String::from_utf8(stdout).unwrap();
    let summary = &printed[printed.find('{').expect("after the address of the server")..];
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let (live, saved) = (&summary["runs"][0], &summary["saved"]["total"]);
    assert_eq!((&live["finished"], &saved["jobs"]), (&2.into(), &2.into()), "{summary}");
    let mean = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    let (live, counted) = (mean(live, "jct_s_mean"), mean(saved, "completion_s_mean"));
    assert!((live - counted).abs() < 0.2, "rounded to a tenth of a second: {summary}");
}

//! Reaching a port is no right: which users command the system of `wattle up`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use wattle_runtime::testing::{NatsServer, skipped};
use wattle_tests::http::http;
use wattle_tests::{System, answered, program};

/// A user without rights.
const OTHER_USER: u32 = 65_534;

fn is_root() -> bool {
    // The owner of a new file is the user of this process.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::MetadataExt::uid(&file.as_file().metadata().unwrap()) == 0
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What another user can do at the server and with the paths, which it knows.
fn check_another_user(system: &System) {
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
    let run = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(args)
            .uid(OTHER_USER)
            .gid(OTHER_USER)
            .current_dir("/")
            .env("HOME", home.path());
        command.env("XDG_STATE_HOME", home.path()).env("WATTLE_NATS_URL", system.url());
        command.stdin(Stdio::null());
        answered(|| command.output().unwrap())
    };
    let wattle = program("wattle");
    if !run(&wattle, &["--version"]).status.success() {
        return skipped("another user cannot run the programs under test");
    }
    let refused = |args: &[&str], expected: &str| {
        let output = run(&wattle, args);
        let error = error_of(&output);
        assert!(!output.status.success() && error.contains(expected), "{args:?}: {error}");
    };
    refused(&["jobs", "--cluster", "test"], "requires a key");
    refused(&["submit", "--cluster", "test", "--", "id"], "requires a key");
    let key = system.key().display().to_string();
    refused(
        &["submit", "--cluster", "test", "--credentials", &key, "--", "id"],
        "Permission denied",
    );
    // The default permissions of a folder that its user has made.
    std::fs::set_permissions(system.folder(), Permissions::from_mode(0o755)).unwrap();
    let folder = system.folder().to_str().unwrap();
    let found = run("find".as_ref(), &[folder, "-type", "f", "-readable"]);
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let is_public = |path: &str| {
        path.contains("/metrics/") || path.ends_with("/lock") || path.ends_with("/up.err")
    };
    let secret: Vec<&str> = found.lines().filter(|path| !is_public(path)).collect();
    assert!(secret.is_empty() && found.contains("/metrics/"), "{found}");
}

/// The page acts and shows only with a session, which its address begins once.
async fn check_page(system: &System) {
    let address = system.wattle(&["page"]);
    let address = String::from_utf8_lossy(&address.stdout).trim().to_owned();
    let (host, path) = address.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let port: u16 = host.rsplit(':').next().unwrap().parse().unwrap();
    let path = format!("/{path}");
    let ask = async |method: &str, path: &str, cookie: &str, body: &str| {
        let headers = [("X-Wattle", "1"), ("Cookie", cookie)];
        http(port, method, path, &headers, body).await.unwrap()
    };
    let submit = r#"{"form":{"command":"id"},"number":"1f"}"#;
    let every = [
        ("GET", "/api/content?topic=jobs", ""),
        ("GET", "/events?topic=jobs", ""),
        ("GET", "/api/log?job=a&node=n0", ""),
        ("POST", "/api/cancel", r#"{"job":"a"}"#),
        ("POST", "/api/budget", "{}"),
        ("POST", "/api/budget/review", "{}"),
        ("POST", "/api/submit", submit),
        ("POST", "/api/submit/review", "{}"),
    ];
    for cookie in ["", "wattle_session=", "wattle_session=0"] {
        for (method, path, body) in every {
            let answer = ask(method, path, cookie, body).await;
            assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        }
    }
    assert_eq!(ask("GET", "/sign-in?token=0", "", "").await.status, 403);
    let answer = ask("GET", &path, "", "").await;
    assert_eq!(answer.status, 303, "{answer:?}");
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(ask("GET", &path, "", "").await.status, 403, "it is used");
    assert_eq!(ask("GET", "/api/content?topic=jobs", cookie, "").await.status, 200);
    let accepted = ask("POST", "/api/submit", cookie, submit).await;
    assert_eq!(accepted.status, 200, "{accepted:?}");
    let next = system.wattle(&["page"]);
    assert_ne!(String::from_utf8_lossy(&next.stdout).trim(), address);
    assert_eq!(ask("DELETE", "/api/session", cookie, "").await.status, 200);
    assert_eq!(ask("GET", "/api/content?topic=jobs", cookie, "").await.status, 401);
}

#[tokio::test]
async fn only_its_user_and_root_command_a_system() {
    let mut system = System::up(&["--simulated", "1x1:v100", "--rate", "60"]).await;
    if is_root() {
        check_another_user(&system);
        assert!(system.stderr().contains("only root can submit them"), "{}", system.stderr());
    } else {
        skipped("another user's access, because this is not root");
    }
    check_page(&system).await;
    // Its user needs no option, and root names the key.
    let listed = system.json(&["jobs", "--all", "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "the job of the page alone: {listed}");
    let key = system.key().display().to_string();
    let url = system.url().to_owned();
    let mut root = Command::new(program("wattle"));
    root.args(["jobs", "--cluster", "test", "--nats", &url, "--credentials", &key])
        .env("XDG_STATE_HOME", "/nowhere");
    let root = answered(|| root.output().unwrap());
    assert!(root.status.success(), "{}", error_of(&root));
    assert!(system.end().await.success());
}

/// A server without keys gives every user who reaches it the rights of `wattle up`.
#[tokio::test]
async fn a_server_without_keys_is_refused_or_warned_of() {
    let server = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program("wattle"))
        .args(["up", "--simulated", "1x1:v100", "--for", "1s", "--nats", &server.url()])
        .env("XDG_STATE_HOME", folder.path())
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let error = error_of(&output);
    assert!(error.contains("has no keys"), "{error}");
    assert_eq!(output.status.code(), Some(if is_root() { 2 } else { 0 }), "{error}");
}

//! Keys, permissions and TLS, as `wattle keys` generates them, on a real nats-server.

mod matrix;
pub(crate) mod secured;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use wattle_runtime::testing::{NatsServer, Weight, turn};
use wattle_tests::{answered, program};

/// A folder of keys for the cluster `main`, and a server that knows them.
pub(crate) struct Site {
    pub(crate) folder: TempDir,
    pub(crate) server: NatsServer,
}

impl Site {
    /// Creates keys for two nodes, two users, an operator, a monitor and a predictor.
    pub(crate) async fn new(tls: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        let run = |args: &[&str]| {
            let output = wattle(&[args, &["--folder", keys.to_str().unwrap()]].concat());
            assert!(output.status.success(), "{args:?}: {}", error_of(&output));
        };
        run(&["keys", "init", "--cluster", "main", "--host", "127.0.0.1"]);
        run(&["keys", "add", "predictor", "physical"]);
        run(&["keys", "add", "node", "n0", "n1"]);
        run(&["keys", "add", "slurm"]);
        run(&["keys", "add", "openadr"]);
        run(&["keys", "add", "web"]);
        run(&["keys", "add", "user", "ada", "bob"]);
        run(&["keys", "add", "operator", "olga"]);
        run(&["keys", "add", "monitor", "mona"]);
        let mut configuration = std::fs::read_to_string(keys.join("server/auth.conf")).unwrap();
        if !tls {
            // The matrix speaks the protocol itself.
            let users = configuration.find("authorization").unwrap();
            configuration.drain(..users);
        }
        let server = NatsServer::start_with(&configuration).await;
        Self { folder, server }
    }

    fn seed(&self, role: &str) -> PathBuf {
        self.folder.path().join(format!("keys/seeds/{role}.nk"))
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("keys/server/ca.pem")
    }

    /// Runs `wattle` as a person.
    pub(crate) fn wattle_as(&self, role: &str, args: &[&str]) -> Output {
        let mut command = command(args);
        command
            .env("WATTLE_CREDENTIALS", self.seed(role))
            .env("WATTLE_CA", self.authority())
            .env("WATTLE_NATS_URL", self.server.url())
            .env("WATTLE_CLUSTER", "main")
            .env("XDG_STATE_HOME", self.folder.path());
        answered(|| command.output().unwrap())
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program("wattle"));
    command.args(args).env("XDG_STATE_HOME", Path::new("/nowhere"));
    command
}

fn wattle(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

pub(crate) fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn password_in_the_address_is_refused_and_not_shown() {
    for address in ["nats://ada:geheim@127.0.0.1:4222", "ada:geheim@127.0.0.1:4222"] {
        let output = wattle(&["jobs", "--nats", address]);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(!error.contains("geheim"), "{error}");
    }
    let output = command(&["jobs", "--help"])
        .env("WATTLE_NATS_URL", "nats://ada:geheim@127.0.0.1:4222")
        .output()
        .unwrap();
    assert!(!text_of(&output).contains("geheim"), "{}", text_of(&output));
}

#[tokio::test]
async fn other_hosts_are_refused_without_a_key() {
    let output = wattle(&["jobs", "--nats", "nats://192.0.2.1:4222"]);
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["not on loopback", "wattle keys", "--credentials"] {
        assert!(error.contains(part), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("placer.toml");
    let text = std::fs::read_to_string(wattle_tests::repository("deploy/placer.toml")).unwrap();
    std::fs::write(&file, text.replace("127.0.0.1:4222", "192.0.2.1:4222")).unwrap();
    let output =
        Command::new(program("wattle-placer")).arg("--config").arg(&file).output().unwrap();
    let log = error_of(&output) + &text_of(&output);
    assert!(!output.status.success() && log.contains("not on loopback"), "{log}");
}

#[tokio::test]
async fn a_cluster_that_does_not_exist_is_named_whatever_the_key() {
    let _turn = turn(Weight::Light);
    let site = Site::new(true).await;
    for role in ["user-ada", "monitor-mona", "operator-olga"] {
        let output = site.wattle_as(role, &["jobs", "--cluster", "nowhere"]);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(2), "{role}: {error}");
        for part in ["cluster `nowhere`", "the key is of another one", "--cluster"] {
            assert!(error.contains(part), "{role}: {error}");
        }
    }
}

//! A real nats-server for tests, on a port of its own, with JetStream in its own folder.
//!
//! It can be killed with SIGKILL and restarted on the same port and store. Every wait is for a
//! condition with a deadline. Dropping the value ends the server and removes the folder. The test has
//! a turn ([`super::turns`]) as long as it has a server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use super::ports::Port;
use super::turns::{Turn, Weight, turn};
use super::{HANG, PAUSE_MIN};
use crate::server::find;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A running nats-server.
#[derive(Debug)]
pub struct NatsServer {
    child: Option<Child>,
    binary: PathBuf,
    folder: PathBuf,
    port: Port,
    /// The port for the other servers of its cluster.
    route_port: Option<Port>,
    jetstream: bool,
    environment: Vec<(&'static str, PathBuf)>,
    _turn: Turn,
}

impl NatsServer {
    /// Starts a server with JetStream.
    ///
    /// # Panics
    /// Without nats-server, naming the package to install; if it does not start, with its log.
    pub async fn start() -> Self {
        Self::start_as(true, "").await
    }

    /// Starts a server with JetStream and `configuration` (the text of a nats.conf, for accounts and
    /// permissions; its port and store are set here).
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with(configuration: &str) -> Self {
        Self::start_as(true, configuration).await
    }

    /// Starts a server with JetStream and an additional variable in its environment: the clock that waits for
    /// it.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with_environment(variable: (&'static str, PathBuf)) -> Self {
        Self::start_below(&std::env::temp_dir(), true, "", vec![variable]).await
    }

    /// Starts a server without JetStream.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_without_jetstream() -> Self {
        Self::start_as(false, "").await
    }

    /// Starts three servers that are one cluster.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_cluster() -> [Self; 3] {
        let ports = [Port::reserve(), Port::reserve(), Port::reserve()];
        let route = |port: &Port| format!("\"nats://127.0.0.1:{}\"", port.number);
        let routes = ports.each_ref().map(route).join(", ");
        let mut servers = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let configuration = format!(
                "server_name: n{number}\ncluster {{ name: test, listen: \"127.0.0.1:{}\", routes: [{routes}] }}\n",
                port.number
            );
            let mut server = Self::start_with(&configuration).await;
            server.route_port = Some(port);
            servers.push(server);
        }
        servers.try_into().expect("three servers")
    }

    async fn start_as(jetstream: bool, configuration: &str) -> Self {
        Self::start_below(&std::env::temp_dir(), jetstream, configuration, Vec::new()).await
    }

    /// As [`Self::start_with`], with its store in a new folder of `parent`: another disk, for example.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_in(parent: &Path, configuration: &str) -> Self {
        Self::start_below(parent, true, configuration, Vec::new()).await
    }

    async fn start_below(
        parent: &Path,
        jetstream: bool,
        configuration: &str,
        environment: Vec<(&'static str, PathBuf)>,
    ) -> Self {
        let turn = turn(Weight::Light);
        let binary =
            find().unwrap_or_else(|error| panic!("these tests need a real nats-server: {error}"));
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("wattle-nats-{}-{number}", std::process::id()));
        // An earlier process with the same id may have left a folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("the system's temporary folder takes a folder");
        std::fs::write(folder.join("nats.conf"), configuration)
            .expect("the folder just made takes a file");
        let port = Port::reserve();
        let mut server = Self {
            child: None,
            binary,
            folder,
            port,
            route_port: None,
            jetstream,
            environment,
            _turn: turn,
        };
        server.launch().await;
        server
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port.number)
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port.number
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends it with SIGKILL; its store remains.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it with SIGTERM: it stores the positions of consumers before.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }

    /// Restarts it on the same port and store; kills it first if it runs.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&mut self) {
        self.kill();
        self.launch().await;
    }

    /// As [`Self::restart`], but with an empty store, as after a lost disk.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart_empty(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(self.folder.join("store"));
        self.launch().await;
    }

    /// Replaces the configuration and lets the running server read it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn reload(&self, configuration: &str) {
        std::fs::write(self.folder.join("nats.conf"), configuration)
            .expect("the server's own folder takes a file");
        if let Some(child) = &self.child {
            let _ = Command::new("kill").args(["-HUP", &child.id().to_string()]).status();
        }
    }

    /// As [`Self::restart`], with or without JetStream from now on.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart_with_jetstream(&mut self, jetstream: bool) {
        self.jetstream = jetstream;
        self.restart().await;
    }

    /// Copies the stored messages of a stream of the default account, without the positions of its consumers.
    ///
    /// # Panics
    /// If they cannot be copied.
    #[must_use]
    pub fn copy_messages(&self, stream: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let read = |path: PathBuf| (path.clone(), std::fs::read(path).expect("a readable file"));
        let files = std::fs::read_dir(self.messages(stream)).expect("a stream with messages");
        files.map(|file| read(file.expect("a file").path())).collect()
    }

    /// Replaces the stored messages of a stream by an earlier copy, as after a loss of the newer ones. The
    /// server must not run.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn replace_messages(&self, stream: &str, copy: Vec<(PathBuf, Vec<u8>)>) {
        let folder = self.messages(stream);
        std::fs::remove_dir_all(&folder).expect("a stream with messages");
        std::fs::create_dir(&folder).expect("the folder takes a folder");
        for (path, bytes) in copy {
            std::fs::write(path, bytes).expect("the folder takes a file");
        }
    }

    /// Pauses it, or lets it continue.
    pub fn pause(&self, paused: bool) {
        if let Some(child) = &self.child {
            let signal = if paused { "-STOP" } else { "-CONT" };
            let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
        }
    }

    /// Copies its store. The server must not run.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn copy_store(&self) {
        copy(&self.folder.join("store"), &self.folder.join("copy"));
    }

    /// Replaces its store by the copy, as after a loss of what was stored since. The server must not run.
    ///
    /// # Panics
    /// If it cannot be replaced.
    pub fn return_to_copy(&self) {
        let store = self.folder.join("store");
        std::fs::remove_dir_all(&store).expect("a store");
        copy(&self.folder.join("copy"), &store);
    }

    fn messages(&self, stream: &str) -> PathBuf {
        self.folder.join("store/jetstream/$G/streams").join(stream).join("msgs")
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> String {
        logged(&self.folder)
    }

    async fn launch(&mut self) {
        // Configuration errors are written to stderr, before the log is open.
        let stderr = std::fs::File::create(self.folder.join("stderr"))
            .expect("the server's own folder takes a file");
        let child = Command::new(&self.binary)
            .arg("-c")
            .arg(self.folder.join("nats.conf"))
            .args(["-a", "127.0.0.1", "-p", &self.port.number.to_string(), "-sd"])
            .arg(self.folder.join("store"))
            .args(self.jetstream.then_some("-js"))
            .arg("-l")
            .arg(self.folder.join("log"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", self.binary.display()));
        self.child = Some(child);
        let mut last = String::new();
        let ready = async {
            loop {
                match greets(self.port.number).await {
                    Ok(jetstream) if jetstream == self.jetstream => return,
                    Ok(_) => "its greeting states another JetStream setting".clone_into(&mut last),
                    Err(error) => last = error.to_string(),
                }
                if let Some(child) = &mut self.child
                    && let Ok(Some(status)) = child.try_wait()
                {
                    let log = logged(&self.folder);
                    panic!("nats-server ended with {status}; its log:\n{log}");
                }
                tokio::time::sleep(PAUSE_MIN).await;
            }
        };
        if tokio::time::timeout(HANG, ready).await.is_err() {
            panic!("nats-server is not ready after {HANG:?} ({last}); its log:\n{}", self.log());
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            // The log helps to analyse the failure.
            tracing::error!(folder = %self.folder.display(), "nats-server's folder is kept");
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}

fn logged(folder: &Path) -> String {
    ["stderr", "log"]
        .map(|file| std::fs::read_to_string(folder.join(file)).unwrap_or_default())
        .concat()
}

/// Whether the server on `port` has JetStream; an error if it does not respond.
async fn greets(port: u16) -> io::Result<bool> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    if line.starts_with("INFO ") {
        Ok(line.contains("\"jetstream\":true"))
    } else {
        Err(io::Error::other("no greeting"))
    }
}

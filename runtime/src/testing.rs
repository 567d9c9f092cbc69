//! A real nats-server for tests: on a free port, with JetStream in a folder of its own.
//!
//! It can be killed as `kill -9` does and started again on the same port and store. Every wait is
//! for a condition with a deadline. The server and its folder go when the value is dropped.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use crate::server::{SERVER_ENV, find};

/// A server starts in about 30 ms; a machine under load may take many times that.
const READY_WITHIN: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Looks until there is something to see; `None` where there is nothing within `patience`.
///
/// What other processes do cannot be awaited, only looked at again: this is the one place that does.
pub async fn until<T>(patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    tokio::time::timeout(patience, found).await.ok()
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A running nats-server.
#[derive(Debug)]
pub struct NatsServer {
    child: Option<Child>,
    binary: PathBuf,
    folder: PathBuf,
    port: u16,
    jetstream: bool,
}

impl NatsServer {
    /// Starts one.
    ///
    /// # Panics
    /// Where there is no nats-server, with the package to install, or where it does not start, with
    /// its log.
    pub async fn start() -> Self {
        Self::start_as(true, "").await
    }

    /// Starts one with JetStream and `configuration` (the text of a nats.conf, for accounts and
    /// permissions; its port and store are set here).
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with(configuration: &str) -> Self {
        Self::start_as(true, configuration).await
    }

    /// Starts one without JetStream, as a server that nobody configured is.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_without_jetstream() -> Self {
        Self::start_as(false, "").await
    }

    async fn start_as(jetstream: bool, configuration: &str) -> Self {
        let binary = find().unwrap_or_else(|| {
            panic!(
                "these tests need a real nats-server: install the package nats-server \
                 (apt-get install nats-server), or name its binary in {SERVER_ENV}"
            )
        });
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("wattle-nats-{}-{number}", std::process::id()));
        // A process id comes round again; what an earlier one left behind must not be read.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("the system's temporary folder takes a folder");
        std::fs::write(folder.join("nats.conf"), configuration)
            .expect("the folder just made takes a file");
        let mut server = Self { child: None, binary, folder, port: 0, jetstream };
        server.launch().await;
        server
    }

    /// Where clients find it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Ends it with SIGKILL, as a crash would; its store stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; either way it is gone after this.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port and store; kills it first if it still runs.
    ///
    /// # Panics
    /// Where it does not start.
    pub async fn restart(&mut self) {
        self.kill();
        self.launch().await;
    }

    /// As [`Self::restart`], but with an empty store, as after a lost disk.
    ///
    /// # Panics
    /// Where it does not start.
    pub async fn restart_empty(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(self.folder.join("store"));
        self.launch().await;
    }

    /// As [`Self::restart`], with or without JetStream from now on.
    ///
    /// # Panics
    /// Where it does not start.
    pub async fn restart_with_jetstream(&mut self, jetstream: bool) {
        self.jetstream = jetstream;
        self.restart().await;
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        logged(&self.folder)
    }

    async fn launch(&mut self) {
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        // What is wrong with its configuration it says before it has a log.
        let complaints = std::fs::File::create(self.folder.join("stderr"))
            .expect("the server's own folder takes a file");
        let child = Command::new(&self.binary)
            .arg("-c")
            .arg(self.folder.join("nats.conf"))
            .args(["-a", "127.0.0.1", "-p", &port, "-sd"])
            .arg(self.folder.join("store"))
            .args(self.jetstream.then_some("-js"))
            .arg("-l")
            .arg(self.folder.join("log"))
            .arg("--ports_file_dir")
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", self.binary.display()));
        let ports = self.folder.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        let mut last = String::new();
        let ready = async {
            loop {
                if self.port == 0 {
                    self.port = read_port(&ports).unwrap_or(0);
                }
                if self.port != 0 {
                    match greets(self.port).await {
                        Ok(jetstream) if jetstream == self.jetstream => return,
                        Ok(_) => {
                            "its greeting says something else of JetStream".clone_into(&mut last);
                        }
                        Err(error) => last = error.to_string(),
                    }
                }
                if let Some(child) = &mut self.child
                    && let Ok(Some(status)) = child.try_wait()
                {
                    let log = logged(&self.folder);
                    panic!("nats-server ended with {status}; its log:\n{log}");
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        };
        if tokio::time::timeout(READY_WITHIN, ready).await.is_err() {
            panic!(
                "nats-server is not ready after {READY_WITHIN:?} ({last}); its log:\n{}",
                self.log()
            );
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            // The log helps whoever reads the failure; the folder is in the system's care.
            tracing::error!(folder = %self.folder.display(), "nats-server's folder is kept");
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn logged(folder: &Path) -> String {
    ["stderr", "log"]
        .map(|file| std::fs::read_to_string(folder.join(file)).unwrap_or_default())
        .concat()
}

/// The port in the server's own ports file: `{"nats":["nats://127.0.0.1:4222"]}`.
fn read_port(file: &Path) -> Option<u16> {
    let text = std::fs::read_to_string(file).ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    value["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
}

/// Whether the server on `port` greets and has JetStream.
async fn greets(port: u16) -> io::Result<bool> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    if line.starts_with("INFO ") {
        Ok(line.contains("\"jetstream\":true"))
    } else {
        Err(io::Error::other("it does not greet"))
    }
}

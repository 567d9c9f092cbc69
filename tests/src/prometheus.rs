//! A real Prometheus that scrapes the endpoints of a `wattle up`, and plain HTTP requests.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Time limit of a request, wall time.
const REQUEST: Duration = wattle_runtime::testing::HANG;

/// A program of the distribution's package `prometheus`, if it is installed.
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The body of `http://ADDRESS/PATH`.
///
/// # Errors
/// If there is no answer, or another status than 200; the body is then in the error.
pub fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(REQUEST))?;
    // Version 1.0: the answer is not divided into chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(std::io::Error::other(format!("{path}: {text}")))
    }
}

/// A text as part of a query of a URL.
#[must_use]
pub fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The addresses that the services of a `wattle up` in `folder` have written, by service: `profiler-n0`.
#[must_use]
pub fn addresses(folder: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder.join("metrics")).into_iter().flatten().flatten();
    let mut found: Vec<(String, String)> = files
        .filter_map(|file| {
            let name = file.file_name().to_string_lossy().strip_suffix(".json")?.to_owned();
            let text = std::fs::read_to_string(file.path()).ok()?;
            let value: Value = serde_json::from_str(&text).ok()?;
            Some((name, value[0]["targets"][0].as_str()?.to_owned()))
        })
        .collect();
    found.sort();
    found
}

/// A running Prometheus.
pub struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts it in `folder`, with the services of a `wattle up` in `up` as targets of the job `wattle`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(program: &Path, folder: &Path, up: &Path) -> Self {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            free.local_addr().expect("it is bound").port()
        };
        let (address, config) = (format!("127.0.0.1:{port}"), folder.join("prometheus.yml"));
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: wattle\n    file_sd_configs:\n      \
             - files: ['{}/metrics/*.json']\n        refresh_interval: 1s\n",
            up.display()
        );
        std::fs::write(&config, text).expect("the folder takes a file");
        let log = std::fs::File::create(folder.join("prometheus.log")).expect("a file");
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        Self { child, address }
    }

    /// The results of a query at its instant; `None` while it does not answer.
    ///
    /// # Panics
    /// If the query is invalid.
    #[must_use]
    pub fn query(&self, query: &str) -> Option<Vec<Value>> {
        let path = format!("/api/v1/query?query={}", encoded(query));
        match get(&self.address, &path) {
            Ok(body) => {
                let value: Value = serde_json::from_str(&body).ok()?;
                value["data"]["result"].as_array().cloned()
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!error.contains("bad_data"), "{query}: {error}");
                None
            }
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

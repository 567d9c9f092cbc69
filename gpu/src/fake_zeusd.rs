//! A stand-in of zeusd for tests: the same routes, parameters, status codes and error texts, on a Unix socket.
//!
//! Settings go to the test's function. One connection is served at a time.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wattle_common::{Frequency, GpuIndex, Power};

use crate::GpuError;

/// Most bytes of a request.
const REQUEST_LEN_MAX: usize = 16 << 10;
/// Longest wait for the next piece of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A setting that zeusd was requested to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `set_power_limit`
    Cap(GpuIndex, Power),
    /// `set_gpu_locked_clocks`: lowest and highest clock; `reset_gpu_locked_clocks`: none.
    Clocks(GpuIndex, Option<(Frequency, Frequency)>),
}

/// The form of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `POST /gpu/VERB?gpu_ids=0&...&block=true`
    #[default]
    Query,
    /// `POST /gpu/0/VERB` with a JSON body, as the first versions.
    Body,
}

/// How the daemon was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FakeOptions {
    /// The form that it accepts.
    pub form: Form,
    /// The token that it requires.
    pub token: Option<String>,
    /// Whether it runs without the group `gpu-control`.
    pub control_off: bool,
    /// Whether it reads requests and never answers.
    pub hangs: bool,
}

/// A running stand-in; it ends when it is dropped.
pub struct FakeZeusd {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<String>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeZeusd {
    /// Listens on `socket` and makes settings with `set`.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(
        socket: &Path,
        options: FakeOptions,
        set: impl FnMut(Setting) -> Result<(), GpuError> + Send + 'static,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, end) = (Arc::clone(&requests), Arc::clone(&ends));
        let mut server = Server { options, set: Box::new(set), requests: seen, held: Vec::new() };
        let thread =
            std::thread::Builder::new().name("fake-zeusd".to_owned()).spawn(move || {
                for stream in listener.incoming() {
                    if end.load(Ordering::Acquire) {
                        return;
                    }
                    // A client may end at any moment.
                    let _ = stream.and_then(|stream| server.serve(stream));
                }
            })?;
        Ok(Self { socket: socket.to_owned(), requests, ends, thread: Some(thread) })
    }

    /// The request lines and bodies so far, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for FakeZeusd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the thread; without its socket it cannot be reached any more.
        let woken = UnixStream::connect(&self.socket).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

type Set = Box<dyn FnMut(Setting) -> Result<(), GpuError> + Send>;

struct Server {
    options: FakeOptions,
    set: Set,
    requests: Arc<Mutex<Vec<String>>>,
    /// Connections without an answer, kept open.
    held: Vec<UnixStream>,
}

/// A request: its path, parameters and token.
struct Request {
    line: String,
    target: String,
    token: Option<String>,
    body: String,
}

fn read(stream: &mut UnixStream) -> io::Result<Request> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut received = Vec::new();
    let mut piece = [0; 1 << 10];
    loop {
        let len = stream.read(&mut piece)?;
        received.extend_from_slice(&piece[..len]);
        if len == 0 || received.len() > REQUEST_LEN_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut request = httparse::Request::new(&mut headers);
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
        let httparse::Status::Complete(head) = request.parse(&received).map_err(invalid)? else {
            continue;
        };
        let header = |name: &str| {
            let found = request.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
            found.and_then(|h| str::from_utf8(h.value).ok())
        };
        let len = header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        let body = received.get(head..).unwrap_or_default();
        if body.len() < len {
            continue;
        }
        let target = request.path.unwrap_or_default().to_owned();
        return Ok(Request {
            line: format!("{} {target}", request.method.unwrap_or_default()),
            target,
            token: header("authorization").and_then(|v| v.strip_prefix("Bearer ")).map(Into::into),
            body: String::from_utf8_lossy(body).into_owned(),
        });
    }
}

/// A status and a body.
type Answer = (&'static str, String);

const OK: &str = "200 OK";
const BAD_REQUEST: &str = "400 Bad Request";
const NOT_FOUND: &str = "404 Not Found";

fn json(error: &str) -> String {
    serde_json::json!({ "error": error }).to_string()
}

impl Server {
    fn serve(&mut self, mut stream: UnixStream) -> io::Result<()> {
        let request = read(&mut stream)?;
        let text = format!("{} {}", request.line, request.body).trim_end().to_owned();
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        if self.options.hangs {
            self.held.push(stream);
            return Ok(());
        }
        let (status, body) = self.answer(&request);
        let len = body.len();
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n")?;
        stream.write_all(body.as_bytes())
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let controls = path.starts_with("/gpu/set_") || path.starts_with("/gpu/reset_");
        // The first versions have no groups and no tokens.
        let is_first = self.options.form == Form::Body;
        if !is_first && controls && self.options.control_off {
            return (NOT_FOUND, json("API group 'gpu-control' is not enabled on this server."));
        }
        if let Some(token) = self.options.token.as_ref().filter(|_| !is_first) {
            match &request.token {
                None => {
                    let error =
                        "Authentication required. Provide an Authorization: Bearer <token> header.";
                    return ("401 Unauthorized", json(error));
                }
                Some(given) if given != token => {
                    return ("401 Unauthorized", json("Invalid token: InvalidToken"));
                }
                Some(_) => {}
            }
        }
        let rest = path.strip_prefix("/gpu/").unwrap_or_default();
        let named = match self.options.form {
            Form::Query => by_query(rest, query),
            Form::Body => by_body(rest, &request.body),
        };
        match named {
            Ok(setting) => self.set(setting, is_first),
            Err(answer) => answer,
        }
    }

    fn set(&mut self, setting: Setting, is_first: bool) -> Answer {
        let (Setting::Cap(gpu, _) | Setting::Clocks(gpu, _)) = setting;
        let Err(error) = (self.set)(setting) else { return (OK, String::new()) };
        let (status, text) = match error {
            GpuError::Refused { remedy, .. } if remedy.contains("GPUs") => {
                return (BAD_REQUEST, format!("GPU index {gpu} does not exist."));
            }
            GpuError::Refused { remedy, .. } if remedy.contains("ermission") => (
                "403 Forbidden",
                "the current user does not have permission to perform this operation",
            ),
            GpuError::Refused { .. } => (BAD_REQUEST, "a supplied argument was invalid"),
            GpuError::Unsupported { .. } => {
                (BAD_REQUEST, "the requested operation is not available on the target device")
            }
            GpuError::Lost { .. } => (
                "500 Internal Server Error",
                "device fell off the bus or has otherwise become inacessible",
            ),
            GpuError::Retry { .. } | GpuError::DriverAbsent { .. } => {
                ("500 Internal Server Error", "an unknown error occurred")
            }
        };
        let text = format!("NVML error: {text}");
        if is_first {
            return (status, text);
        }
        let errors = serde_json::json!({ "errors": { gpu.to_string(): text } });
        (status, errors.to_string())
    }
}

/// The parameters of a verb; absent: zeusd has no such verb here.
fn parameters_of(verb: &str) -> Option<&'static [&'static str]> {
    match verb {
        "set_power_limit" => Some(&["power_limit_mw"]),
        "set_gpu_locked_clocks" => Some(&["min_clock_mhz", "max_clock_mhz"]),
        "reset_gpu_locked_clocks" => Some(&[]),
        _ => None,
    }
}

fn setting(verb: &str, gpu: GpuIndex, values: &[u32]) -> Setting {
    match (verb, values) {
        ("set_power_limit", [milliwatts]) => {
            Setting::Cap(gpu, Power::from_mw(u64::from(*milliwatts)))
        }
        (_, [lowest, highest]) => {
            let clocks = (Frequency::from_mhz(*lowest), Frequency::from_mhz(*highest));
            Setting::Clocks(gpu, Some(clocks))
        }
        _ => Setting::Clocks(gpu, None),
    }
}

fn by_query(verb: &str, query: &str) -> Result<Setting, Answer> {
    let invalid = |problem: String| (BAD_REQUEST, format!("Query deserialize error: {problem}"));
    let parameters = parameters_of(verb).ok_or((NOT_FOUND, String::new()))?;
    let pairs: Vec<(&str, &str)> = query.split('&').filter_map(|p| p.split_once('=')).collect();
    let known = |name: &str| name == "gpu_ids" || name == "block" || parameters.contains(&name);
    if let Some((name, _)) = pairs.iter().find(|(name, _)| !known(name)) {
        return Err(invalid(format!("unknown field `{name}`")));
    }
    let value = |name: &str| {
        let found = pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        found.ok_or_else(|| invalid(format!("missing field `{name}`")))
    };
    let number = |name: &str| {
        value(name)?.parse::<u32>().map_err(|_| invalid("invalid digit found in string".to_owned()))
    };
    if value("block")? != "true" {
        return Err(invalid("this stand-in requires block=true".to_owned()));
    }
    let gpu = number("gpu_ids")?;
    let values = parameters.iter().map(|name| number(name)).collect::<Result<Vec<_>, _>>()?;
    Ok(setting(verb, gpu, &values))
}

fn by_body(path: &str, body: &str) -> Result<Setting, Answer> {
    let unknown = || (NOT_FOUND, String::new());
    let invalid = |problem: &str| (BAD_REQUEST, format!("Json deserialize error: {problem}"));
    let (gpu, verb) = path.split_once('/').ok_or_else(unknown)?;
    let gpu: GpuIndex = gpu.parse().map_err(|_| unknown())?;
    let parameters = parameters_of(verb).ok_or_else(unknown)?;
    let body: serde_json::Value = serde_json::from_str(body).map_err(|_| invalid("EOF"))?;
    if body.get("block").and_then(serde_json::Value::as_bool) != Some(true) {
        return Err(invalid("missing field `block`"));
    }
    let number = |name: &&str| {
        let value = body.get(*name).and_then(serde_json::Value::as_u64);
        value.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| invalid("missing field"))
    };
    let values = parameters.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    Ok(setting(verb, gpu, &values))
}

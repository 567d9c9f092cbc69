//! A small OpenADR server (VTN) for tests: it lists the programs and events that the test sets, gives tokens and stores
//! reports.
//!
//! It answers as the definitions of OpenADR 3.1 describe; a server of another vendor was not available.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// The secret of its client `ven`.
pub const SECRET: &str = "s3cret&+x";
/// The secret as a value of a form.
const SECRET_IN_FORM: &str = "client_secret=s3cret%26%2Bx";

/// What it lists and has received.
#[derive(Debug, Default)]
pub struct State {
    /// The programs.
    pub programs: Vec<Value>,
    /// The events.
    pub events: Vec<Value>,
    /// The reports by their ids.
    pub reports: BTreeMap<String, Value>,
    /// Methods and targets of all requests.
    pub requests: Vec<String>,
    /// The answer to every request for a list: status and body; absent: as usual.
    pub instead: Option<(u16, String)>,
    /// The number of the valid token. A higher one revokes those before.
    pub token: u32,
}

/// The server; its threads end with the process.
#[derive(Clone, Debug)]
pub struct Vtn {
    /// Its address.
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Vtn {
    /// A server with the program `shed` and no event.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the port is known");
        let programs = vec![json!({ "id": "p-1", "objectType": "PROGRAM", "programName": "shed" })];
        let state = Arc::new(Mutex::new(State { programs, token: 1, ..State::default() }));
        let vtn = Self { url: format!("http://{address}/openadr3/3.1.0"), state };
        let state = Arc::clone(&vtn.state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that breaks the connection gets no answer.
                let _ = serve(stream, &state);
            }
        });
        vtn
    }

    /// What it lists and has received.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event of the program `shed` with one interval.
#[must_use]
pub fn event(id: &str, start: &str, duration: &str, payloads: Value) -> Value {
    json!({
        "id": id, "objectType": "EVENT", "programID": "p-1", "eventName": "test",
        "createdDateTime": "2026-11-29T14:00:00Z", "modificationDateTime": "2026-11-29T14:00:00Z",
        "intervalPeriod": { "start": start, "duration": duration },
        "intervals": [{ "id": 0, "payloads": payloads }],
    })
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let header = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| {
            line.split_once(": ").filter(|(given, _)| given.eq_ignore_ascii_case(name))
        })
    };
    let length = header("content-length").and_then(|(_, length)| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let target = target.strip_prefix("/openadr3/3.1.0").unwrap_or(target);
    let token = header("authorization").map(|(_, value)| value.to_owned());
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.requests.push(format!("{method} {target}"));
    let (status, answer) = answer(&mut state, method, target, token.as_deref(), &body);
    drop(state);
    let head = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(answer.as_bytes())
}

fn problem(status: u16, title: &str) -> (u16, String) {
    (status, json!({ "status": status, "title": title }).to_string())
}

fn answer(
    state: &mut State,
    method: &str,
    target: &str,
    token: Option<&str>,
    body: &[u8],
) -> (u16, String) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let token_now = format!("token-{}", state.token);
    if path == "/auth/token" {
        let form = String::from_utf8_lossy(body);
        let parts = ["grant_type=client_credentials", "client_id=ven", SECRET_IN_FORM];
        if !parts.iter().all(|part| form.split('&').any(|given| given == *part)) {
            return (
                400,
                json!({ "error": "invalid_client", "error_description": form }).to_string(),
            );
        }
        let answer =
            json!({ "access_token": token_now, "token_type": "Bearer", "expires_in": 3_600 });
        return (200, answer.to_string());
    }
    if token != Some(&format!("Bearer {token_now}")) {
        return problem(401, "recorded refusal");
    }
    if let Some(instead) = &state.instead {
        return instead.clone();
    }
    let given_as = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(given, value)| (given == name).then(|| value.to_owned()))
    };
    let number = |name: &str| given_as(name).and_then(|text| text.parse::<usize>().ok());
    let page = |all: Vec<Value>| {
        let page =
            all.into_iter().skip(number("skip").unwrap_or(0)).take(number("limit").unwrap_or(50));
        (200, Value::from(page.collect::<Vec<_>>()).to_string())
    };
    let matches =
        |value: &Value, field: &str| given_as(field).is_none_or(|wanted| value[field] == wanted);
    match (method, path.strip_prefix("/reports/").unwrap_or(path)) {
        ("GET", "/programs") => page(state.programs.clone()),
        ("GET", "/events") => {
            page(state.events.iter().filter(|event| matches(event, "programID")).cloned().collect())
        }
        ("GET", "/reports") => {
            let fits =
                |report: &&Value| matches(report, "eventID") && matches(report, "clientName");
            page(state.reports.values().filter(fits).cloned().collect())
        }
        ("POST", "/reports") => {
            let id = format!("r-{}", state.reports.len() + 1);
            store(state, id, body, 201)
        }
        ("PUT", id) if state.reports.contains_key(id) => store(state, id.to_owned(), body, 200),
        _ => problem(404, "not found"),
    }
}

fn store(state: &mut State, id: String, body: &[u8], status: u16) -> (u16, String) {
    let Ok(mut report) = serde_json::from_slice::<Value>(body) else {
        return problem(400, "not JSON");
    };
    report["id"] = json!(id);
    let answer = report.to_string();
    state.reports.insert(id, report);
    (status, answer)
}

//! Caps and clocks through zeusd, the daemon of Zeus, which runs with the rights that NVML requires and
//! sets GPUs on request of processes without them. Readings stay with the driver of this process.
//!
//! zeusd serves HTTP on a Unix socket or a TCP port. The verbs are `set_power_limit` (milliwatts),
//! `set_gpu_locked_clocks` (lowest and highest clock, MHz) and `reset_gpu_locked_clocks`, each with
//! `block=true`: zeusd answers when NVML has. Current versions take the parameters from the query of
//! `POST /gpu/VERB`, the first ones from a JSON body of `POST /gpu/INDEX/VERB`; a daemon that does not know
//! the first form gets the second.
//!
//! zeusd names GPUs by index and may see other ones than this process, in a container for example. So the
//! cap of each GPU is read back after it was set.

mod exchange;
mod reply;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use wattle_common::{Frequency, GpuIndex, Power};

use self::exchange::exchange;
use self::reply::{Reply, Verdict};
use crate::{Driver, GpuError, GpuHealth, GpuInfo, GpuReading};

/// The socket of zeusd by default.
pub const SOCKET: &str = "/run/zeusd/zeusd.sock";

/// Longest wait for one step of an exchange: wall time. NVML answers within milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Most bytes of a token.
const TOKEN_LEN_MAX: u64 = 16 << 10;

/// Difference between the cap that was set and the one that is read which rounding explains.
const ROUNDING: Power = Power::from_w(1);

/// Where zeusd listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// How zeusd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zeusd {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// File with the token of a daemon that requires one. It is read for every request, because tokens
    /// expire.
    pub token_file: Option<PathBuf>,
    /// Longest wait for one step of an exchange.
    pub timeout: Duration,
}

/// Reads GPUs with a driver of this process and sets them through zeusd.
pub struct ZeusdDriver {
    readings: Box<dyn Driver>,
    zeusd: Zeusd,
    /// Why zeusd is not contacted before the next reading: it did not answer in time, and further waits would
    /// delay readings and reports.
    silent: Option<String>,
}

/// A verb of zeusd with its parameters.
struct Verb {
    name: &'static str,
    parameters: Vec<(&'static str, u32)>,
}

impl Verb {
    fn by_query(&self, gpu: GpuIndex) -> (String, String) {
        let parameters = self.parameters.iter().map(|(name, value)| format!("&{name}={value}"));
        let parameters: String = parameters.collect();
        (format!("/gpu/{}?gpu_ids={gpu}{parameters}&block=true", self.name), String::new())
    }

    fn by_body(&self, gpu: GpuIndex) -> (String, String) {
        let parameters = self.parameters.iter().map(|(name, value)| format!("\"{name}\":{value},"));
        let parameters: String = parameters.collect();
        (format!("/gpu/{gpu}/{}", self.name), format!("{{{parameters}\"block\":true}}"))
    }
}

impl ZeusdDriver {
    /// Reads with `readings` and sets through `zeusd`, which is not contacted before the first setting.
    #[must_use]
    pub fn new(readings: Box<dyn Driver>, zeusd: Zeusd) -> Self {
        Self { readings, zeusd, silent: None }
    }

    fn set(&mut self, gpu: GpuIndex, operation: &'static str, verb: &Verb) -> Result<(), GpuError> {
        if let Some(silent) = &self.silent {
            return Err(GpuError::Retry { gpu, operation, detail: silent.clone() });
        }
        let refused = |remedy: String| GpuError::Refused { gpu, operation, remedy };
        let token = self.zeusd.token().map_err(refused)?;
        let mut reply = self.zeusd.post(verb.by_query(gpu), token.as_deref());
        if matches!(&reply, Ok(reply) if reply.is_unknown_route()) {
            reply = self.zeusd.post(verb.by_body(gpu), token.as_deref());
        }
        let endpoint = &self.zeusd.endpoint;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) if is_timeout(&error) => {
                let silent = format!("zeusd at {endpoint} did not answer; check its log");
                self.silent = Some(silent.clone());
                return Err(GpuError::Retry { gpu, operation, detail: silent });
            }
            Err(error) => return Err(refused(unreachable(endpoint, &error))),
        };
        match reply.verdict() {
            Verdict::Done => Ok(()),
            Verdict::Unsupported => Err(GpuError::Unsupported { gpu, operation }),
            Verdict::Lost => Err(GpuError::Lost { gpu, operation }),
            Verdict::Refused(text) => Err(refused(format!("zeusd at {endpoint}: {text}"))),
            Verdict::Failed(text) => {
                let detail = format!("zeusd at {endpoint}: {text}");
                Err(GpuError::Retry { gpu, operation, detail })
            }
        }
    }
}

impl Zeusd {
    fn post(&self, (target, body): (String, String), token: Option<&str>) -> io::Result<Reply> {
        let authorization =
            token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: zeusd\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(&self.endpoint, self.timeout, request.as_bytes())
    }

    fn token(&self) -> Result<Option<String>, String> {
        self.token_file.as_deref().map(read_token).transpose()
    }
}

fn read_token(file: &Path) -> Result<String, String> {
    let named = |problem: String| {
        format!("token of zeusd: {}: {problem}; correct zeusd_token_file", file.display())
    };
    let len = std::fs::metadata(file).map_err(|error| named(error.to_string()))?.len();
    if len > TOKEN_LEN_MAX {
        return Err(named(format!("{len} bytes are too large for a token")));
    }
    let token = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
    let token = token.trim();
    if token.is_empty() || token.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(named("it has no token in one line".to_owned()));
    }
    Ok(token.to_owned())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Why zeusd cannot be reached, with the remedy.
fn unreachable(endpoint: &Endpoint, error: &io::Error) -> String {
    let remedy = match (error.kind(), endpoint) {
        (io::ErrorKind::NotFound, _) => "start zeusd, or correct zeusd_socket",
        (io::ErrorKind::PermissionDenied, _) => {
            "permit this user to write to the socket (--socket-permissions or --socket-gid of zeusd)"
        }
        (io::ErrorKind::ConnectionRefused, Endpoint::Socket(_)) => {
            "start zeusd; it left this socket behind"
        }
        (io::ErrorKind::ConnectionRefused, Endpoint::Tcp(_)) => {
            "start zeusd with --mode tcp, or correct zeusd_address"
        }
        (io::ErrorKind::InvalidData, _) => "another program listens there",
        _ => "check zeusd and its log",
    };
    format!("zeusd at {endpoint} cannot be reached: {error}; {remedy}")
}

impl Driver for ZeusdDriver {
    fn count(&self) -> Result<u32, GpuError> {
        self.readings.count()
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        self.readings.info(gpu)
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        self.silent = None;
        self.readings.read(gpu)
    }

    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError> {
        self.readings.health(gpu)
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        self.readings.cap(gpu)
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        let operation = "set the power cap";
        let refused = |remedy: String| GpuError::Refused { gpu, operation, remedy };
        let milliwatts = u32::try_from(cap.as_mw())
            .map_err(|_| refused(format!("{cap} is outside the range of NVML")))?;
        let parameters = vec![("power_limit_mw", milliwatts)];
        self.set(gpu, operation, &Verb { name: "set_power_limit", parameters })?;
        match self.readings.cap(gpu) {
            Ok(found) if found.saturating_sub(cap).max(cap.saturating_sub(found)) > ROUNDING => {
                Err(refused(format!(
                    "zeusd at {} has set {cap} and this GPU has {found}; zeusd and this service must see \
                     the same GPUs",
                    self.zeusd.endpoint
                )))
            }
            // The next reading reports a GPU that does not answer.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        let verb = match clock {
            None => Verb { name: "reset_gpu_locked_clocks", parameters: Vec::new() },
            Some(max) => {
                // An upper bound: every lower clock stays allowed.
                let lowest = self.readings.info(gpu)?.clocks.first().copied();
                let lowest = lowest.unwrap_or(max).min(max);
                Verb {
                    name: "set_gpu_locked_clocks",
                    parameters: vec![
                        ("min_clock_mhz", lowest.as_mhz()),
                        ("max_clock_mhz", max.as_mhz()),
                    ],
                }
            }
        };
        self.set(gpu, "lock the clock", &verb)
    }
}

#[cfg(test)]
mod tests;

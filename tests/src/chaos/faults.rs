//! The faults: which one happens when, from a seed, and how it is applied and ended.

use std::time::Duration;

use anyhow::Result;
use wattle_common::rng::Stream;
use wattle_runtime::clock::monotonic;

use super::site::{SERVERS, Site};
use crate::examples::faketime;

/// A fault of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process is killed with SIGKILL.
    Kill(usize),
    /// A process is stopped with SIGSTOP and continues.
    Pause(usize),
    /// A host loses its network.
    Cut(String),
    /// What a host sends to another host is discarded.
    Block(String, String),
    /// A host receives at most 256 kbit/s, with delay and loss.
    Slow(String),
    /// All processes of a host, also its jobs, are killed; it starts again later.
    Down(String),
    /// A host's wall clock is set by this many seconds.
    ClockStep(String, i64),
    /// The disk of a NATS server is full.
    DiskFull(String),
}

impl Fault {
    /// Its kind, for counts.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Kill(_) => "process killed",
            Self::Pause(_) => "process paused",
            Self::Cut(_) => "host cut off",
            Self::Block(..) => "one direction blocked",
            Self::Slow(_) => "slow link with loss",
            Self::Down(_) => "host down",
            Self::ClockStep(..) => "clock set",
            Self::DiskFull(_) => "disk full",
        }
    }

    /// The fault in words.
    #[must_use]
    pub fn describe(&self, site: &Site) -> String {
        match self {
            Self::Kill(index) | Self::Pause(index) => {
                format!("{}: {}", self.kind(), site.processes[*index].name)
            }
            Self::Block(host, other) => format!("{}: {host} to {other}", self.kind()),
            Self::ClockStep(host, seconds) => format!("{}: {host} by {seconds:+} s", self.kind()),
            Self::Cut(host) | Self::Slow(host) | Self::Down(host) | Self::DiskFull(host) => {
                format!("{}: {host}", self.kind())
            }
        }
    }
}

/// A fault in force.
struct Active {
    fault: Fault,
    hosts: Vec<String>,
    until: Duration,
}

/// Draws faults, applies them and ends them.
pub struct Faults {
    draws: Stream,
    next: Duration,
    active: Vec<Active>,
    /// Until when the last affected NATS server copies what it has missed.
    copies_until: Duration,
    /// Every fault so far.
    pub history: Vec<Fault>,
}

/// Mean time between the starts of two faults.
const BETWEEN: Duration = Duration::from_millis(2_500);
/// Longest fault: below the time after which a node is lost.
const LONGEST_S: u64 = 18;
/// Time after a fault of a NATS server in which it copies what it has missed. Another server that fails
/// meanwhile would leave no majority with all messages.
const COPIES: Duration = Duration::from_secs(10);
/// Most faults at a time.
const ACTIVE_MAX: usize = 4;

impl Faults {
    /// The faults of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            draws: Stream::new(seed, "chaos"),
            next: monotonic(),
            active: Vec::new(),
            copies_until: monotonic(),
            history: Vec::new(),
        }
    }

    /// Ends faults whose time has come, and begins new ones.
    ///
    /// # Errors
    /// If a fault cannot be applied.
    pub fn advance(&mut self, site: &mut Site) -> Result<()> {
        self.end(site, monotonic())?;
        if monotonic() < self.next {
            return Ok(());
        }
        self.next =
            monotonic() + BETWEEN.mul_f32(0.5) + BETWEEN / 1_000 * self.draws.below(1_000) as u32;
        let fault = self.draw(site);
        let seconds = 1 + self.draws.below(LONGEST_S);
        let hosts = hosts_of(&fault, site);
        let busy = |host: &String| self.active.iter().any(|active| active.hosts.contains(host));
        // A majority of the servers works: without one the site stands still by design.
        let is_server = |host: &String| host.starts_with("nats");
        let other_server = monotonic() < self.copies_until
            || self.active.iter().any(|active| active.hosts.iter().any(is_server));
        let second_server = hosts.iter().any(is_server) && other_server;
        if self.active.len() >= ACTIVE_MAX || hosts.iter().any(busy) || second_server {
            return Ok(());
        }
        super::log(&format!("{} for {seconds} s", fault.describe(site)));
        apply(&fault, site, true)?;
        self.history.push(fault.clone());
        self.active.push(Active {
            fault,
            hosts,
            until: monotonic() + Duration::from_secs(seconds),
        });
        Ok(())
    }

    /// Ends all faults.
    ///
    /// # Errors
    /// If a fault cannot be ended.
    pub fn end_all(&mut self, site: &mut Site) -> Result<()> {
        self.end(site, Duration::MAX)
    }

    fn end(&mut self, site: &mut Site, now: Duration) -> Result<()> {
        let (ended, active) = self.active.drain(..).partition(|active| active.until <= now);
        self.active = active;
        for Active { fault, hosts, .. } in Vec::from_iter(ended) {
            if hosts.iter().any(|host| host.starts_with("nats")) {
                self.copies_until = monotonic() + COPIES;
            }
            apply(&fault, site, false)?;
        }
        Ok(())
    }

    fn draw(&mut self, site: &Site) -> Fault {
        let process = self.draws.below(site.processes.len() as u64) as usize;
        let hosts: Vec<&String> = site.hosts.keys().collect();
        let host = hosts[self.draws.below(hosts.len() as u64) as usize].clone();
        let server = format!("nats{}", self.draws.below(SERVERS.into()));
        let node = self.draws.pick(&site.nodes).cloned().unwrap_or_default();
        let step = [-3_600, -120, -5, 5, 120, 3_600][self.draws.below(6) as usize];
        match self.draws.below(12) {
            0..=2 => Fault::Kill(process),
            3 | 4 => Fault::Pause(process),
            5 | 6 => Fault::Cut(host),
            7 if host != server => Fault::Block(host, server),
            8 => Fault::Slow(host),
            9 => Fault::Down(node),
            10 if faketime().is_some() && !host.starts_with("nats") => Fault::ClockStep(host, step),
            _ => Fault::DiskFull(server),
        }
    }
}

fn hosts_of(fault: &Fault, site: &Site) -> Vec<String> {
    match fault {
        Fault::Kill(index) | Fault::Pause(index) => vec![site.processes[*index].host.name.clone()],
        Fault::Block(host, other) => vec![host.clone(), other.clone()],
        Fault::Cut(host)
        | Fault::Slow(host)
        | Fault::Down(host)
        | Fault::ClockStep(host, _)
        | Fault::DiskFull(host) => vec![host.clone()],
    }
}

fn apply(fault: &Fault, site: &mut Site, begins: bool) -> Result<()> {
    match fault {
        Fault::Kill(index) if begins => site.processes[*index].kill(),
        Fault::Kill(_) => {}
        Fault::Pause(index) => site.processes[*index].pause(begins),
        Fault::Cut(host) => site.hosts[host].connect(!begins)?,
        Fault::Block(host, other) => site.hosts[host].block(&site.hosts[other], begins)?,
        Fault::Slow(host) => site.hosts[host].slow(begins)?,
        Fault::Down(host) => {
            for process in site.processes.iter_mut().filter(|p| p.host.name == *host) {
                process.host_down(begins);
            }
            if begins {
                kill_jobs(&site.state_of(host));
            }
        }
        Fault::ClockStep(host, seconds) => {
            let offset = if begins { format!("{seconds:+}") } else { "+0".to_owned() };
            std::fs::write(site.clock_of(host), offset)?;
        }
        Fault::DiskFull(host) => {
            let filler = site.disk_of(host).join("filler");
            if begins {
                fill(&filler)?;
            } else {
                std::fs::remove_file(&filler)?;
                // nats-server stops storing until it is restarted (docs/operating.md).
                let name = format!("nats-server-{host}");
                for process in site.processes.iter_mut().filter(|p| p.name == name) {
                    process.kill();
                }
            }
        }
    }
    Ok(())
}

/// Kills the jobs and supervisors of a node: all processes with its state file in their environment that
/// are no services, whose parents end them.
fn kill_jobs(state: &std::path::Path) {
    let marker = format!("WATTLE_SIM_NODE={}\0", state.display());
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&marker) {
            // It may have ended.
            let _ = std::process::Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}

/// Writes a file until the disk is full.
///
/// # Errors
/// If the file cannot be created.
pub fn fill(path: &std::path::Path) -> Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path)?;
    let block = vec![0_u8; 1 << 20];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..4_096]).is_ok() {}
    Ok(())
}

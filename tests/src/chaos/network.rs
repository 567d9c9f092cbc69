//! Hosts with addresses of their own on one machine: network namespaces connected by a bridge.
//!
//! The process must have a network, mount and process namespace of its own ([`enter`]): everything that is
//! created here disappears with it, also after SIGKILL.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Set in the process that has the namespaces.
const INSIDE: &str = "WATTLE_CHAOS_INSIDE";
/// The bridge, and its address, by which this process reaches the hosts.
const BRIDGE: &str = "wattle0";
const BRIDGE_ADDRESS: &str = "10.77.0.1/24";

/// Replaces this process by itself in namespaces of its own, unless it is in them already.
///
/// # Errors
/// Without `unshare` (package util-linux) or the right to create namespaces.
pub fn enter() -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    // As a user other than root, with a user namespace.
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let error = command
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"])
        .arg(std::env::current_exe().context("cannot find this program")?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(error).context("cannot run unshare: install util-linux")
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("cannot run {program}: install it"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", args.join(" "), error.trim());
    }
    Ok(())
}

/// A host of the network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// Its name, at most ten characters.
    pub name: String,
    /// Its address.
    pub address: String,
}

impl Host {
    fn link(&self) -> String {
        format!("v-{}", self.name)
    }

    /// A command that runs on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Cuts the host off, or connects it again.
    ///
    /// # Errors
    /// If the link cannot be changed.
    pub fn connect(&self, connected: bool) -> Result<()> {
        run("ip", &["link", "set", &self.link(), if connected { "up" } else { "down" }])
    }

    /// Discards what this host sends to another one, or no longer.
    ///
    /// # Errors
    /// If the route cannot be changed.
    pub fn block(&self, other: &Self, blocked: bool) -> Result<()> {
        let verb = if blocked { "add" } else { "del" };
        run("ip", &["-n", &self.name, "route", verb, "blackhole", &other.address])
    }

    /// Limits what the host receives to 256 kbit/s with a queue of 400 ms; further packets are lost.
    ///
    /// # Errors
    /// If the kernel has no token bucket filter.
    pub fn slow(&self, slow: bool) -> Result<()> {
        let link = self.link();
        if slow {
            let filter = ["tbf", "rate", "256kbit", "burst", "8kb", "latency", "400ms"];
            return run("tc", &[&["qdisc", "add", "dev", &link, "root"][..], &filter].concat());
        }
        run("tc", &["qdisc", "del", "dev", &link, "root"])
    }
}

/// Creates the bridge.
///
/// # Errors
/// Without iproute2, or the right to change the network.
pub fn create() -> Result<()> {
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
    run("ip", &["link", "set", "lo", "up"])?;
    run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    run("ip", &["addr", "add", BRIDGE_ADDRESS, "dev", BRIDGE])?;
    run("ip", &["link", "set", BRIDGE, "up"])
}

/// Adds a host with the last byte of its address.
///
/// # Errors
/// As [`create`].
pub fn add(name: &str, number: u8) -> Result<Host> {
    let host = Host { name: name.to_owned(), address: format!("10.77.0.{number}") };
    let link = host.link();
    run("ip", &["netns", "add", name])?;
    run("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", name])?;
    run("ip", &["link", "set", &link, "master", BRIDGE, "up"])?;
    run("ip", &["-n", name, "addr", "add", &format!("{}/24", host.address), "dev", "eth0"])?;
    run("ip", &["-n", name, "link", "set", "eth0", "up"])?;
    run("ip", &["-n", name, "link", "set", "lo", "up"])?;
    Ok(host)
}

/// Mounts a file system of `mib` MiB at `path`: a disk that can be filled.
///
/// # Errors
/// If it cannot be mounted.
pub fn mount_disk(path: &std::path::Path, mib: u32) -> Result<()> {
    std::fs::create_dir_all(path)?;
    let path = path.to_str().context("the path is no text")?;
    run("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs", path])
}

//! The GPUs of `wattle up`: those of this machine, or simulated nodes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use wattle_common::topology::ClusterShape;
use wattle_common::{NodeId, Timestamp, env};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver as _, GpuError};

use super::processes::{Program, find_own};
use crate::output::usage;

/// One node with its services.
pub(crate) struct Node {
    /// Its id.
    pub(crate) id: NodeId,
    /// The driver's library; `None`: the system's.
    pub(crate) library: Option<PathBuf>,
    /// Additional environment of its services.
    pub(crate) env: Vec<(String, OsString)>,
    /// Number of GPUs.
    pub(crate) gpus: u32,
    /// Their type.
    pub(crate) gpu_type: String,
    /// Its leaf switch, if known.
    pub(crate) switch: Option<u32>,
    /// GPUs per board, if known.
    pub(crate) gpus_per_board: Option<u32>,
}

/// The nodes and the clock.
pub(crate) struct Hardware {
    /// The nodes, in order.
    pub(crate) nodes: Vec<Node>,
    /// The file with the clock's scale; absent for the wall clock.
    pub(crate) clock: Option<PathBuf>,
    /// Their shape.
    pub(crate) shape: ClusterShape,
}

/// This machine's own GPUs.
pub(crate) fn real() -> anyhow::Result<Hardware> {
    let none = "no NVIDIA GPU found; try simulated nodes: wattle up --simulated 2x4:v100";
    let driver = NvmlDriver::open(None).map_err(|error| match error {
        GpuError::DriverAbsent { library, .. } => usage(format!(
            "no NVIDIA driver: cannot load {}; install the driver, or try simulated nodes: \
             wattle up --simulated 2x4:v100",
            library.display()
        )),
        other => anyhow::Error::new(other).context(none),
    })?;
    let gpus = driver.count().context(none)?;
    if gpus == 0 {
        return Err(usage(none));
    }
    let info = driver.info(0).context("cannot read GPU 0")?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = name.split('.').next().unwrap_or_default().chars().take(64).collect();
    let id = NodeId::new(&host).or_else(|_| NodeId::new("n0")).expect("n0 is an id");
    let shape = ClusterShape::uniform(1, gpus, &info.gpu_type)?;
    let node = Node {
        id,
        library: None,
        env: Vec::new(),
        gpus,
        gpu_type: info.gpu_type,
        switch: None,
        gpus_per_board: None,
    };
    Ok(Hardware { nodes: vec![node], clock: None, shape })
}

/// Simulated nodes of this shape with a clock `rate` times the wall clock and state files in `folder`.
pub(crate) fn simulated(
    shape: &ClusterShape,
    rate: u32,
    epoch: Timestamp,
    folder: &Path,
) -> anyhow::Result<Hardware> {
    let simnode = find_own("wattle-simnode")?;
    let library = find_own("libnvml_sim.so")?;
    let resumes = record_hardware(shape, rate, folder)?;
    let mut nodes = Vec::new();
    let places = shape.switches().zip(shape.boards());
    for (i, ((gpus, kind), (switch, gpus_per_board))) in shape.nodes().zip(places).enumerate() {
        let id = NodeId::new(&format!("n{i}")).expect("a letter and a number are an id");
        let state = folder.join(format!("{id}.state"));
        if !(resumes && state.exists()) {
            create(&simnode, &state, &id, (gpus, kind), rate, epoch)?;
        }
        nodes.push(Node {
            id,
            library: Some(library.clone()),
            env: vec![(env::SIM_NODE.to_owned(), state.clone().into_os_string())],
            gpus,
            gpu_type: kind.to_owned(),
            switch,
            gpus_per_board,
        });
    }
    let clock = nodes.first().map(|node| PathBuf::from(&node.env[0].1));
    let mut hardware = Hardware { nodes, clock, shape: shape.clone() };
    let env = hardware.clock_env();
    for node in &mut hardware.nodes {
        node.env.extend(env.iter().cloned());
    }
    Ok(hardware)
}

impl Hardware {
    /// The program that holds the simulated clock while a service still works; `None` on real hardware.
    pub(crate) fn clock_program(&self) -> anyhow::Result<Option<Program>> {
        if self.clock.is_none() {
            return Ok(None);
        }
        let states = self.nodes.iter().map(|node| node.env[0].1.clone());
        let args = states.flat_map(|state| ["--state".into(), state]);
        // This process submits the jobs of a trace.
        let own = ["--process".into(), std::process::id().to_string().into()];
        let args = std::iter::once("clock".into()).chain(args).chain(own).collect();
        Ok(Some(Program::clock(find_own("wattle-simnode")?, args)))
    }

    /// What a process of this system has in its environment for the clock to wait for it.
    pub(crate) fn clock_env(&self) -> Vec<(String, OsString)> {
        self.clock.iter().map(|path| (env::CLOCK.to_owned(), path.into())).collect()
    }
}

/// Records the shape in the folder. Returns true if it was recorded before; a different shape is an
/// error.
fn record_hardware(shape: &ClusterShape, rate: u32, folder: &Path) -> anyhow::Result<bool> {
    let file = folder.join("hardware");
    let ours = format!("--simulated {shape} --rate {rate}");
    match std::fs::read_to_string(&file) {
        Ok(there) if there == ours => Ok(true),
        Ok(there) => Err(usage(format!(
            "{} holds a system of {there}; give the same, or another --dir",
            folder.parent().unwrap_or(folder).display()
        ))),
        Err(_) => {
            std::fs::write(&file, ours)
                .with_context(|| format!("cannot write {}", file.display()))?;
            Ok(false)
        }
    }
}

fn create(
    simnode: &Path,
    state: &Path,
    id: &NodeId,
    (gpus, kind): (u32, &str),
    rate: u32,
    epoch: Timestamp,
) -> anyhow::Result<()> {
    let output = Command::new(simnode)
        .arg("create")
        .arg("--state")
        .arg(state)
        .args(["--node", id.as_str(), "--gpu-type", kind])
        .args(["--gpus", &gpus.to_string(), "--rate", &rate.to_string()])
        .args(["--epoch-us", &epoch.as_us().to_string()])
        .output()
        .with_context(|| format!("cannot start {}", simnode.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(usage(format!("--simulated: {}", error.trim().trim_start_matches("error: "))))
}

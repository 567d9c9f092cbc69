//! `wattle-simnode`: creates, shows and faults simulated nodes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nvml_sim::fault::Fault;
use nvml_sim::node::{Node, NodeError, NodeSpec, wall_us};
use nvml_sim::nvml::uuid_of;
use nvml_sim::state::{Claim, Phase, StateError};
use serde::Serialize;
use wattle_common::NodeId;
use wattle_common::time::TimeScale;

/// Creates, shows and faults simulated GPU nodes. A node is one file; all processes that name it in
/// WATTLE_SIM_NODE and load libnvml_sim.so as their NVML library share its GPUs.
#[derive(Parser)]
#[command(
    name = "wattle-simnode",
    version,
    after_help = "Example:\n  wattle-simnode create --state /tmp/n0.node --node n0 --gpus 8 --gpu-type v100 --rate 60\n  wattle-simnode show --state /tmp/n0.node\n  wattle-simnode fault --state /tmp/n0.node --gpu 0 lost"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Creates a node with idle GPUs at default cap.
    #[command(
        after_help = "Example:\n  wattle-simnode create --state /tmp/n0.node --node n0 --gpus 8 --gpu-type v100 --rate 60"
    )]
    Create(Create),
    /// Shows a node's GPUs and their tenants.
    #[command(after_help = "Example:\n  wattle-simnode show --state /tmp/n0.node --json")]
    Show(Show),
    /// Injects a fault into a GPU, until it is cleared.
    #[command(
        after_help = "Example:\n  wattle-simnode fault --state /tmp/n0.node --gpu 0 unsupported:energy\n  wattle-simnode fault --state /tmp/n0.node --gpu 0 clear"
    )]
    Fault(InjectFault),
    /// Unloads or loads the driver of a node. A load restarts caps, clocks and counters, switches persistence
    /// mode off, and brings lost GPUs back.
    #[command(
        after_help = "Example:\n  wattle-simnode driver --state /tmp/n0.node unload\n  wattle-simnode driver --state /tmp/n0.node load"
    )]
    Driver(ChangeDriver),
    /// Holds the clock of nodes while a process of their cluster still works, for as long as this command runs.
    /// Processes whose WATTLE_CLOCK or WATTLE_SIM_NODE names one of the nodes are those of the cluster. Without
    /// this command, and after SIGTERM, the clock runs freely; after SIGKILL it stands still until the next start.
    #[command(
        after_help = "Example:\n  wattle-simnode clock --state /tmp/n0.node --state /tmp/n1.node"
    )]
    Clock(Clock),
}

#[derive(Args)]
struct Clock {
    /// State files of all nodes of a cluster.
    #[arg(long = "state", required = true)]
    states: Vec<PathBuf>,
    /// A further process of the cluster, which submits its jobs.
    #[arg(long = "process", value_name = "PID")]
    processes: Vec<u32>,
}

#[derive(Args)]
struct Create {
    /// State file to create.
    #[arg(long)]
    state: PathBuf,
    /// Node id.
    #[arg(long)]
    node: NodeId,
    /// Number of GPUs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// GPU type of the catalog.
    #[arg(long)]
    gpu_type: String,
    /// Seconds of system time per second of wall time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Instant at which both times are equal: microseconds since the Unix epoch, not in the future.
    /// Default: now. All nodes of a cluster need the same value.
    #[arg(long)]
    epoch_us: Option<u64>,
}

#[derive(Args)]
struct Show {
    /// State file.
    #[arg(long)]
    state: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct InjectFault {
    /// State file.
    #[arg(long)]
    state: PathBuf,
    /// GPU index.
    #[arg(long)]
    gpu: u32,
    /// lost, no-permission, stuck-energy, mig, persistence-off, ecc-errors:COUNT, repair-pending,
    /// repair-failed, slowdown:CAUSE, unsupported:NAME, or clear.
    fault: Fault,
}

#[derive(Args)]
struct ChangeDriver {
    /// State file.
    #[arg(long)]
    state: PathBuf,
    /// What happens to the driver.
    change: DriverChange,
}

#[derive(Clone, Copy, ValueEnum)]
enum DriverChange {
    /// No GPU can be used, and processes on the GPUs fail.
    Unload,
    /// The GPUs return with default settings.
    Load,
}

fn main() -> anyhow::Result<ExitCode> {
    let result = match Cli::parse().command {
        Command::Create(args) => create(args),
        Command::Show(args) => show(&args),
        Command::Fault(args) => fault(&args),
        Command::Driver(args) => change_driver(&args),
        Command::Clock(args) => {
            nvml_sim::clock::run(&args.states, &args.processes).map_err(Into::into)
        }
    };
    let Err(error) = result else { return Ok(ExitCode::SUCCESS) };
    // Errors that another command line fixes are usage errors.
    let usage = matches!(
        error.downcast_ref(),
        Some(
            NodeError::UnknownGpuType { .. }
                | NodeError::Count(_)
                | NodeError::Exists { .. }
                | NodeError::Missing { .. }
                | NodeError::Unusable { .. }
                | NodeError::Refused(StateError::NoGpu(_) | StateError::Unsupported(_))
        )
    );
    writeln!(std::io::stderr(), "error: {error:#}")?;
    Ok(ExitCode::from(if usage { 2 } else { 1 }))
}

fn create(args: Create) -> anyhow::Result<()> {
    let epoch_us = args.epoch_us.unwrap_or_else(wall_us);
    let clock = TimeScale { epoch_us, rate: args.rate };
    let spec = NodeSpec { node: args.node, gpus: args.gpus, gpu_type: args.gpu_type, clock };
    Ok(Node::create(&args.state, &spec)?)
}

fn fault(args: &InjectFault) -> anyhow::Result<()> {
    let node = Node::open(&args.state)?;
    node.update(|state, hardware, at| state.set_fault(hardware, at, args.gpu, args.fault))?;
    Ok(())
}

fn change_driver(args: &ChangeDriver) -> anyhow::Result<()> {
    let node = Node::open(&args.state)?;
    node.update(|state, hardware, at| {
        match args.change {
            DriverChange::Unload => state.unload_driver(hardware, at),
            DriverChange::Load => state.load_driver(hardware, at),
        }
        Ok(())
    })?;
    Ok(())
}

#[derive(Serialize)]
struct NodeReport {
    node: String,
    gpu_type: String,
    rate: u32,
    epoch_us: u64,
    at_us: u64,
    clock_held_s: f64,
    driver_loaded: bool,
    gpus: Vec<GpuReport>,
}

#[derive(Serialize)]
struct GpuReport {
    gpu: usize,
    uuid: String,
    power_mw: u64,
    energy_mj: u64,
    cap_mw: u64,
    clock_mhz: u32,
    clock_mhz_max: Option<u32>,
    utilization_gpu: f64,
    utilization_memory: f64,
    memory_used_mib: u64,
    memory_total_mib: u64,
    power_capped: bool,
    faults: Vec<String>,
    tenants: Vec<TenantReport>,
}

#[derive(Serialize)]
struct TenantReport {
    pid: u32,
    job: String,
    workload: String,
    attempt: u32,
    rank: u32,
    nodes: u32,
    gpus_total: u32,
    phase: &'static str,
    memory_mib: u64,
    utilization_gpu: f64,
    steps_per_s: f64,
    steps: u64,
}

fn show(args: &Show) -> anyhow::Result<()> {
    let node = Node::open(&args.state)?;
    let report = report(&node)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: {} x {}, rate {}{}",
        report.node,
        report.gpus.len(),
        node.model().nvml_name,
        report.rate,
        if report.driver_loaded { "" } else { ", driver not loaded" }
    )?;
    writeln!(out, "GPU     POWER       CAP   CLOCK  UTIL   MEMORY MiB        ENERGY  TENANTS")?;
    for gpu in &report.gpus {
        let mut tenants: Vec<String> =
            gpu.tenants.iter().map(|t| format!("{}({})", t.job, t.workload)).collect();
        tenants.extend(gpu.faults.iter().map(|fault| format!("[{fault}]")));
        writeln!(
            out,
            "{:>3}  {:>6.1} W  {:>6.1} W  {:>6}  {:>3.0}%  {:>5}/{:<5}  {:>9.1} kJ  {}",
            gpu.gpu,
            gpu.power_mw as f64 / 1e3,
            gpu.cap_mw as f64 / 1e3,
            gpu.clock_mhz,
            gpu.utilization_gpu * 100.0,
            gpu.memory_used_mib,
            gpu.memory_total_mib,
            gpu.energy_mj as f64 / 1e6,
            tenants.join(" "),
        )?;
    }
    Ok(())
}

fn report(node: &Node) -> Result<NodeReport, NodeError> {
    let snapshot = node.observe()?;
    let tenant = |claim: &Claim, utilization_gpu: f64| TenantReport {
        pid: claim.request.pid,
        job: claim.request.job.to_string(),
        workload: claim.request.workload.to_string(),
        attempt: claim.request.attempt,
        rank: claim.request.rank,
        nodes: claim.request.nodes,
        gpus_total: claim.gpus_total,
        phase: match claim.phase {
            Phase::Waiting => "waiting",
            Phase::Running => "running",
            Phase::Ended => "ended",
        },
        memory_mib: claim.memory_mib,
        utilization_gpu,
        steps_per_s: claim.rate() as f64 / 1e9,
        steps: snapshot.state.steps(claim, snapshot.at),
    };
    let gpus = snapshot.state.gpus.iter().enumerate().map(|(index, gpu)| GpuReport {
        gpu: index,
        uuid: uuid_of(node, index as u32),
        power_mw: gpu.power.as_mw(),
        energy_mj: snapshot.state.energy_counter(gpu, snapshot.at).as_mj(),
        cap_mw: gpu.cap.as_mw(),
        clock_mhz: gpu.clock.as_mhz(),
        clock_mhz_max: gpu.clock_max.map(wattle_common::Frequency::as_mhz),
        utilization_gpu: gpu.utilization_gpu,
        utilization_memory: gpu.utilization_memory,
        memory_used_mib: snapshot.state.memory_mib(gpu),
        memory_total_mib: node.model().memory_mib,
        power_capped: gpu.power_capped,
        faults: gpu.faults().iter().map(ToString::to_string).collect(),
        tenants: gpu
            .shares
            .iter()
            .filter_map(|share| {
                Some(tenant(snapshot.state.claims[share.claim].as_ref()?, share.utilization))
            })
            .collect(),
    });
    Ok(NodeReport {
        node: node.id().to_string(),
        gpu_type: node.model().gpu_type.clone(),
        rate: node.clock().rate,
        epoch_us: node.clock().epoch_us,
        at_us: snapshot.at.as_us(),
        clock_held_s: node.held().as_secs_f64(),
        driver_loaded: snapshot.state.driver.load().is_some(),
        gpus: gpus.collect(),
    })
}

//! `wattle-simnode`: makes, shows and breaks simulated nodes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use nvml_sim::fault::Fault;
use nvml_sim::node::{Node, NodeError, NodeSpec, wall_us};
use nvml_sim::nvml::uuid_of;
use nvml_sim::state::{Claim, Phase, StateError};
use serde::Serialize;
use wattle_common::NodeId;
use wattle_common::time::TimeScale;

/// Makes, shows and breaks simulated GPU nodes. A node is one file; every process that finds it in
/// WATTLE_SIM_NODE and loads libnvml_sim.so as its NVML sees the same cards.
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
    /// Makes a node, idle, with all cards at their default cap.
    #[command(
        after_help = "Example:\n  wattle-simnode create --state /tmp/n0.node --node n0 --gpus 8 --gpu-type v100 --rate 60"
    )]
    Create(Create),
    /// Shows a node's cards and who is on them.
    #[command(after_help = "Example:\n  wattle-simnode show --state /tmp/n0.node --json")]
    Show(Show),
    /// Makes something go wrong with a card, until it is cleared.
    #[command(
        after_help = "Example:\n  wattle-simnode fault --state /tmp/n0.node --gpu 0 unsupported:energy\n  wattle-simnode fault --state /tmp/n0.node --gpu 0 clear"
    )]
    Fault(Break),
}

#[derive(Args)]
struct Create {
    /// The node's file; must not be there yet.
    #[arg(long)]
    state: PathBuf,
    /// The node's id.
    #[arg(long)]
    node: NodeId,
    /// How many cards.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// Their kind, as in the catalog.
    #[arg(long)]
    kind: String,
    /// Seconds of the node's time in one second of the wall's.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// When both times are equal: microseconds since the Unix epoch, not in the future. Now, where
    /// it is not said. Nodes of one cluster need the same.
    #[arg(long)]
    epoch_us: Option<u64>,
}

#[derive(Args)]
struct Show {
    /// The node's file.
    #[arg(long)]
    state: PathBuf,
    /// As one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Break {
    /// The node's file.
    #[arg(long)]
    state: PathBuf,
    /// Which card.
    #[arg(long)]
    gpu: u32,
    /// lost, no-permission, stuck-energy, unsupported:NAME, or clear.
    fault: Fault,
}

fn main() -> anyhow::Result<ExitCode> {
    let result = match Cli::parse().command {
        Command::Create(args) => create(args),
        Command::Show(args) => show(&args),
        Command::Fault(args) => fault(&args),
    };
    let Err(error) = result else { return Ok(ExitCode::SUCCESS) };
    // What another command line would mend is wrong usage.
    let usage = matches!(
        error.downcast_ref(),
        Some(
            NodeError::UnknownKind { .. }
                | NodeError::Count(_)
                | NodeError::Exists { .. }
                | NodeError::Missing { .. }
                | NodeError::Unusable { .. }
                | NodeError::Refused(StateError::NoCard(_))
        )
    );
    writeln!(std::io::stderr(), "error: {error:#}")?;
    Ok(ExitCode::from(if usage { 2 } else { 1 }))
}

fn create(args: Create) -> anyhow::Result<()> {
    let epoch_us = args.epoch_us.unwrap_or_else(wall_us);
    let clock = TimeScale { epoch_us, rate: args.rate };
    let spec = NodeSpec { node: args.node, gpus: args.gpus, kind: args.kind, clock };
    Ok(Node::create(&args.state, &spec)?)
}

fn fault(args: &Break) -> anyhow::Result<()> {
    let node = Node::open(&args.state)?;
    node.update(|state, physics, at| state.set_fault(physics, at, args.gpu, args.fault))?;
    Ok(())
}

#[derive(Serialize)]
struct NodeShown {
    node: String,
    kind: String,
    rate: u32,
    epoch_us: u64,
    at_us: u64,
    gpus: Vec<GpuShown>,
}

#[derive(Serialize)]
struct GpuShown {
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
    tenants: Vec<TenantShown>,
}

#[derive(Serialize)]
struct TenantShown {
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
    let shown = shown(&node)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&shown)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: {} x {}, rate {}",
        shown.node,
        shown.gpus.len(),
        node.gpu().nvml_name,
        shown.rate
    )?;
    writeln!(out, "GPU     POWER       CAP   CLOCK  UTIL   MEMORY MiB        ENERGY  TENANTS")?;
    for gpu in &shown.gpus {
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

fn shown(node: &Node) -> Result<NodeShown, NodeError> {
    let view = node.look()?;
    let tenant = |claim: &Claim, utilization_gpu: f64| TenantShown {
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
        steps: view.state.steps(claim, view.at),
    };
    let gpus = view.state.cards.iter().enumerate().map(|(gpu, card)| GpuShown {
        gpu,
        uuid: uuid_of(node, gpu as u32),
        power_mw: card.power.as_mw(),
        energy_mj: view.state.energy_shown(card, view.at).as_mj(),
        cap_mw: card.cap.as_mw(),
        clock_mhz: card.clock.as_mhz(),
        clock_mhz_max: card.clock_max.map(wattle_common::Frequency::as_mhz),
        utilization_gpu: card.utilization_gpu,
        utilization_memory: card.utilization_memory,
        memory_used_mib: view.state.memory_mib(card),
        memory_total_mib: node.gpu().memory_mib,
        power_capped: card.power_capped,
        faults: card.faults().iter().map(ToString::to_string).collect(),
        tenants: card
            .shares
            .iter()
            .filter_map(|share| {
                Some(tenant(view.state.claims[share.claim].as_ref()?, share.utilization))
            })
            .collect(),
    });
    Ok(NodeShown {
        node: node.id().to_string(),
        kind: node.gpu().gpu_type.clone(),
        rate: node.clock().rate,
        epoch_us: node.clock().epoch_us,
        at_us: view.at.as_us(),
        gpus: gpus.collect(),
    })
}

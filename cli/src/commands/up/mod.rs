//! `wattle up`: the whole system on this machine, until stopped, for a time, or until a trace is done.
//!
//! Starts what an operator would start, each a process of its own: nats-server, placer, predictor,
//! registry, and for every node profiler, power agent and launcher. It decides nothing; it writes their
//! configuration, keeps them running, hands in a trace's jobs at their time, and shows what comes
//! of it.

mod bus;
mod child;
mod configs;
mod feed;
mod hardware;

mod processes;
mod progress;
mod services;
mod simulated_sleep;
mod summary;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::topology::ClusterShape;
use wattle_common::{ClusterId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

pub(crate) use self::child::{CHILD, Child, become_child};
use self::hardware::Hardware;
use self::processes::Processes;
pub(crate) use self::simulated_sleep::{SIMULATED_SLEEP, SimulatedSleep, set_simulated_sleep};
use super::budget::{intensities, set as set_budget};
use super::simulate::usage_chain;
use super::submit::parse_span;
use crate::budget::BudgetOptions;
use crate::connection::{DEFAULT_CLUSTER, Running, block_on};
use crate::output::{note, print, usage};

/// Rate of the system's clock beside simulated GPUs, where none is given.
const RATE_MAX: u32 = 10_000;
/// How long jobs may take to stop when the system ends, wall time.
const JOBS_GRACE: Duration = Duration::from_secs(15);

/// Run the whole system on this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle up\n  wattle up --simulated 4x8:v100 --rate 60\n  wattle up --simulated 2x4:v100 --rate 60 --trace deploy/demo/trace.csv --carbon deploy/demo/carbon.csv"
)]
pub(crate) struct Up {
    /// Simulated nodes instead of this machine's GPUs
    #[arg(long, value_name = "NODESxGPUS:KIND|FILE.toml", value_parser = crate::cluster_file::cluster)]
    simulated: Option<ClusterShape>,
    /// System seconds in a second of the wall; only beside simulated GPUs
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: u32,
    /// Hand in this trace's jobs at their time, and end when they are done
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Carbon intensity over time: for the table at the end, a carbon budget, and jobs that may wait
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetOptions,
    /// Who decides: fifo, fifo-packed, eaco, powerflow, greenflow, wattle and others
    #[arg(long, value_name = "NAME", default_value = "eaco")]
    policy: String,
    /// A power cap on every GPU, watts
    #[arg(long, value_name = "WATTS", value_parser = clap::value_parser!(u64).range(1..))]
    gpu_cap_w: Option<u64>,
    /// Look at running jobs under lower caps for a while, where that would teach enough
    #[arg(long)]
    probe: bool,
    /// Nodes that nobody needs sleep, and wake when a job waits for them
    #[arg(long, requires = "simulated")]
    sleep: bool,
    /// Seed of what is drawn for a trace whose models are not in the catalog
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// End after this time of the wall: 90s, 5m, 2h
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span)]
    for_: Option<Duration>,
    /// Keep everything in this folder (jobs' output, checkpoints, what was learned), and go on with
    /// the jobs that lie there; without it they are cancelled at the end and all is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Use this NATS server instead of starting one
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// The cluster's name on the bus
    #[arg(long, value_name = "ID", default_value = DEFAULT_CLUSTER)]
    cluster: ClusterId,
    /// Print the table at the end as JSON
    #[arg(long)]
    json: bool,
}

/// The folder a run lives in; a fresh one is removed at a good end.
struct Folder {
    path: PathBuf,
    fresh: bool,
    /// Held for as long as this runs, so that there is one master of the folder.
    _lock: File,
}

impl Folder {
    fn new(wanted: Option<&Path>) -> anyhow::Result<Self> {
        let (path, fresh) = match wanted {
            Some(path) => (std::path::absolute(path).context("--dir")?, false),
            None => {
                let name = format!("wattle-up-{}", std::process::id());
                (std::env::temp_dir().join(name), true)
            }
        };
        for part in ["logs", "config", "jobs", "checkpoints", "state"] {
            let folder = path.join(part);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let lock = path.join("lock");
        let lock =
            File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, fresh, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(usage(format!(
                "another `wattle up` runs in {}; stop it, or choose another --dir",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }
}

impl Up {
    fn hardware(&self, folder: &Folder) -> anyhow::Result<Hardware> {
        let Some(shape) = &self.simulated else {
            if self.rate != 1 {
                return Err(usage("--rate needs --simulated: real GPUs live by the wall clock"));
            }
            return hardware::real();
        };
        // Both clocks show the same at the beginning; from there the system's runs ahead.
        hardware::simulated(shape, self.rate, clock::wall_now(), &folder.path.join("state"))
    }
}

/// Runs the command.
pub(crate) fn run(command: Up) -> anyhow::Result<()> {
    wattle_placer::policy(&command.policy).map_err(usage_chain)?;
    command.budget.budget()?;
    if command.budget.carbon_kg.is_some() && command.carbon.is_none() {
        return Err(usage(
            "--carbon-kg needs the grid's carbon intensity; name its file with --carbon",
        ));
    }
    let trace =
        command.trace.as_deref().map(|path| feed::Trace::read(path, &command)).transpose()?;
    block_on(async {
        let folder = Folder::new(command.dir.as_deref())?;
        let hardware = command.hardware(&folder)?;
        if let Some(path) = &hardware.clock {
            clock::use_file(path).context("the simulated node's clock")?;
        }
        let shutdown = Shutdown::listen().context("cannot listen for signals")?;
        let mut processes = Processes::new(folder.path.join("logs"));
        let result =
            command.serve(&folder, &hardware, trace.as_ref(), &shutdown, &mut processes).await;
        processes.stop().await;
        services::kill_jobs(&folder.path, &hardware).await;
        match &result {
            Ok(()) if folder.fresh => {
                let _ = std::fs::remove_dir_all(&folder.path);
            }
            _ => note(&format!("logs and state: {}", folder.path.display())),
        }
        result
    })
}

impl Up {
    async fn serve(
        &self,
        folder: &Folder,
        hardware: &Hardware,
        trace: Option<&feed::Trace>,
        shutdown: &Shutdown,
        processes: &mut Processes,
    ) -> anyhow::Result<()> {
        let url = match &self.nats {
            Some(url) => url.clone(),
            None => bus::start(processes, &folder.path.join("nats"))?,
        };
        let bus = bus::connect(&url, &self.cluster).await?;
        print(bus.url())?;
        if let Some(other) = Running::find() {
            note(&format!(
                "note: another `wattle up` runs here (process {}), and commands find that one; \
                 give them --nats {url} for this one",
                other.pid
            ));
        }
        let running = Running {
            url: url.clone(),
            cluster: self.cluster.clone(),
            pid: std::process::id(),
            clock: hardware.clock.clone(),
        };
        let _run_file = running.publish();
        let site = services::Site {
            cluster: &self.cluster,
            url: &url,
            policy: &self.policy,
            gpu_cap: self.gpu_cap_w.map(Power::from_w),
            probe: self.probe,
            sleep: self.sleep,
            folder: &folder.path,
            rate: self.rate,
        };
        services::start(processes, &site, hardware)?;
        let refused = processes.refused();
        tokio::select! {
            ready = services::ready(&bus, hardware) => ready?,
            () = refused.cancelled() => anyhow::bail!("a service refuses to start"),
            () = shutdown.wait() => return Ok(()),
        }
        let (budget, carbon) = (self.budget.budget()?, self.carbon.as_deref());
        if budget.is_some() || carbon.is_some() {
            let intensity = carbon.map(|path| intensities(path, clock::now())).transpose()?;
            set_budget(&bus, budget, intensity).await?;
        }
        note(&format!(
            "cluster {} is up: {} under {}; logs in {}",
            self.cluster,
            hardware.shape,
            self.policy,
            folder.path.join("logs").display()
        ));
        let run = self.watch(&bus, hardware, trace, shutdown).await;
        if folder.fresh {
            // Nobody will come back for them.
            services::cancel_jobs(&bus, JOBS_GRACE).await;
        } else {
            // The launchers stop them, with a checkpoint; the next `wattle up` here goes on.
            services::say_who_goes_on(&bus).await;
        }
        run
    }

    async fn watch(
        &self,
        bus: &Bus,
        hardware: &Hardware,
        trace: Option<&feed::Trace>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<()> {
        let began = clock::now();
        let shown = progress::show(bus.clone(), trace.map(feed::Trace::len));
        let limit = async {
            match self.for_ {
                Some(span) => tokio::time::sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let done = async {
            match trace {
                Some(trace) => trace.run(bus, began).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = done => result?,
            result = shown => result?,
            () = limit => {}
            () = shutdown.wait() => {}
        }
        progress::end();
        match trace {
            Some(trace) => {
                let shown = summary::show(self, bus, hardware, trace, began, shutdown);
                shown.await
            }
            None => Ok(()),
        }
    }
}

//! `wattle up`: runs all services on this machine until stopped, for a time, or until a trace has ended.
//!
//! Each service is a process: nats-server, placer, predictors, registry, web page, and per node profiler, power
//! agent and launcher. The command writes their configuration, restarts them after a failure, submits
//! the jobs of a trace at their times and prints a summary.

mod bus;
mod child;
mod configs;
mod folder;
mod hardware;
mod keys;
mod ports;
mod processes;
mod progress;
mod replay;
mod services;
mod simulated_sleep;
mod summary;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::aim::AimBound;
use wattle_common::duration::parse_span;
use wattle_common::job::Sharing;
use wattle_common::topology::ClusterShape;
use wattle_common::{Budget, ClusterId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

pub(crate) use self::child::{CHILD, Child, become_child};
use self::folder::{Folder, NATS};
use self::hardware::Hardware;
use self::keys::Keys;
use self::processes::Processes;
pub(crate) use self::simulated_sleep::{SIMULATED_SLEEP, SimulatedSleep, set_simulated_sleep};
use super::budget::{intensities, set as set_budget};
use super::page;
use crate::aim::{AimOptions, FormerOptions};
use crate::budget::BudgetOptions;
use crate::connection::{DEFAULT_CLUSTER, Running, block_on};
use crate::output::{UsageError, note, print, usage, usage_chain};
use crate::policies::names_help;
use crate::quantity::number;
use wattle_placer::policies::POLICIES;

/// Largest rate of the simulated clock.
const RATE_MAX: u32 = 10_000;
/// Time limit for stopping jobs at the end, wall time.
const JOBS_GRACE: Duration = Duration::from_secs(15);

/// Run the whole system on this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle up\n  wattle up --simulated 4x8:v100 --rate 60\n  wattle up --simulated 2x4:v100 --rate 60 --trace deploy/demo/trace.csv --carbon deploy/demo/carbon.csv"
)]
pub(crate) struct Up {
    /// Simulated nodes instead of the GPUs of this machine
    #[arg(long, value_name = "NODESxGPUS:TYPE|FILE.toml", value_parser = crate::cluster_file::cluster)]
    simulated: Option<ClusterShape>,
    /// Most simulated seconds per wall second; needs --simulated
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: u32,
    /// Submit the jobs of this trace at their times, and end when all have ended
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Carbon intensity series: for the summary, a carbon budget and jobs with slack
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetOptions,
    #[arg(
        long, value_name = "NAME", default_value = "wattle", help = names_help("Scheduling policy", &POLICIES)
    )]
    policy: String,
    #[command(flatten)]
    aim: AimOptions,
    #[command(flatten)]
    former: FormerOptions,
    /// Power cap of every GPU, watts
    #[arg(long, value_name = "WATTS", value_parser = |text: &str| number::<NonZeroU64>(text, "W"))]
    gpu_cap_w: Option<NonZeroU64>,
    /// Which jobs may share a GPU: never, consented (those submitted with --share), any (all that were
    /// not submitted with --exclusive); no job of --trace declares consent
    #[arg(long, value_name = "RULE", default_value_t = Sharing::Consented)]
    share: Sharing,
    /// Most jobs on one GPU, under policies that share GPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tenants_max: Option<u32>,
    /// Let unused nodes sleep, and wake them for queued jobs
    #[arg(long, requires = "simulated")]
    sleep: bool,
    /// Random seed for workloads of trace jobs whose models are not in the catalog
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// End after this wall time: 90s, 5m, 2h
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span)]
    for_: Option<Duration>,
    /// Folder for all state (output, checkpoints, history); jobs in it are resumed. Without it, jobs
    /// are cancelled at the end, and only their output and checkpoints are kept
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Use this NATS server instead of starting one, with the key in WATTLE_CREDENTIALS
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// Port of the web page [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Name of the cluster
    #[arg(long, value_name = "ID", default_value = DEFAULT_CLUSTER)]
    cluster: ClusterId,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Up {
    /// The energy aim as text, if the policy follows it.
    fn aim_text(&self) -> anyhow::Result<String> {
        let policy = wattle_placer::policy(&self.policy).map_err(usage_chain)?;
        let bound = self.aim_bound()?.filter(|_| policy.capabilities().prices.is_some());
        Ok(bound.map_or_else(String::new, |bound| format!(", least energy while {bound}")))
    }

    /// The bound of the energy aim; `None` under another aim.
    fn aim_bound(&self) -> anyhow::Result<Option<AimBound>> {
        let has_window =
            self.budget.budget(clock::wall_now())?.is_some_and(|budget| budget.has_window());
        self.former.bound(&self.aim, has_window)
    }

    fn hardware(&self, folder: &Folder) -> anyhow::Result<Hardware> {
        let Some(shape) = &self.simulated else {
            if self.rate != 1 {
                return Err(usage("--rate needs --simulated: real GPUs use the wall clock"));
            }
            return hardware::real();
        };
        // The simulated clock starts at the current wall time.
        hardware::simulated(shape, self.rate, clock::wall_now(), &folder.path.join("state"))
    }
}

/// Runs the command.
pub(crate) fn run(command: Up) -> anyhow::Result<()> {
    wattle_placer::policy(&command.policy).map_err(usage_chain)?;
    command.aim_bound()?;
    if command.budget.carbon_kg.is_some() && command.carbon.is_none() {
        return Err(usage(
            "--carbon-kg needs the grid's carbon intensity; name its file with --carbon",
        ));
    }
    command.port.map_or(Ok(()), bus::require_free)?;
    let trace =
        command.trace.as_deref().map(|path| replay::Trace::read(path, &command)).transpose()?;
    block_on(async {
        let folder = Folder::open(command.dir.as_deref())?;
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
            Ok(()) => folder.end(trace.as_ref().map_or(&[], replay::Trace::ids)),
            // The error names the cause in full.
            Err(error) if error.is::<UsageError>() => {}
            Err(_) => folder.keep(),
        }
        result
    })
}

impl Up {
    async fn serve(
        &self,
        folder: &Folder,
        hardware: &Hardware,
        trace: Option<&replay::Trace>,
        shutdown: &Shutdown,
        processes: &mut Processes,
    ) -> anyhow::Result<()> {
        let keys = Keys::create(&folder.path)?;
        let config = match &self.nats {
            Some(url) => bus::named(url),
            None => bus::start(processes, &folder.path.join(NATS), &keys, hardware.clock_env())?,
        };
        let url = &config.url;
        if let Some(clock) = hardware.clock_program()? {
            processes.start(clock)?;
        }
        let mut failure = Box::pin(processes.failure());
        let bus = tokio::select! {
            bus = bus::connect(&config, &self.cluster) => bus?,
            error = &mut failure => return Err(error),
            () = shutdown.wait() => return Ok(()),
        };
        bus::check_authority(&bus)?;
        print(bus.url())?;
        if let Some(other) = Running::find() {
            note(&format!(
                "note: another `wattle up` runs here (process {}), and commands use it by default; \
                 --nats {url} selects this one",
                other.pid
            ));
        }
        let running = Running {
            url: url.clone(),
            cluster: self.cluster.clone(),
            pid: std::process::id(),
            clock: hardware.clock.clone(),
            credentials: self.nats.is_none().then(|| keys.seed()),
            page: Some(keys.page()),
        };
        let context = self.nats.is_none().then(|| keys.nats_context(self.cluster.as_str(), url));
        let _run_files = running.publish(context.as_deref());
        let port = self.port.map_or_else(ports::free, Ok)?;
        let site = services::Site {
            cluster: &self.cluster,
            bus: &config,
            keys: &keys,
            policy: &self.policy,
            aim: self.aim_bound()?,
            gpu_cap: self.gpu_cap_w.map(|watts| Power::from_w(watts.get())),
            share: self.share,
            tenants_max: self.tenants_max,
            sleep: self.sleep,
            folder: &folder.path,
            rate: self.rate,
            port,
        };
        services::start(processes, &site, hardware)?;
        tokio::select! {
            ready = services::ready(&bus, hardware) => ready?,
            error = &mut failure => return Err(error),
            () = shutdown.wait() => return Ok(()),
        }
        let (budget, carbon) = (self.budget.budget(clock::now())?, self.carbon.as_deref());
        if budget.is_some() || carbon.is_some() {
            let intensity = carbon.map(|path| intensities(path, clock::now())).transpose()?;
            set_budget(&bus, budget.clone(), intensity).await?;
        }
        note(&format!(
            "cluster {} is up: {} under {}{}; logs in {}",
            self.cluster,
            hardware.shape,
            self.policy,
            self.aim_text()?,
            folder.path.join("logs").display()
        ));
        note(&format!("web page: {}", page::address(&keys.page())?));
        // From now on a failed start is a note, and the program is started again.
        drop(failure);
        let run = self.watch(&bus, hardware, trace, budget, shutdown).await;
        if folder.is_temporary {
            services::cancel_jobs(&bus, JOBS_GRACE).await;
        } else {
            // The launchers checkpoint them; the next `wattle up` in this folder resumes them.
            services::note_resumable_jobs(&bus).await;
        }
        run
    }

    async fn watch(
        &self,
        bus: &Bus,
        hardware: &Hardware,
        trace: Option<&replay::Trace>,
        budget: Option<Budget>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<()> {
        let began = clock::now();
        let gpus = hardware.nodes.iter().map(|node| (node.id.clone(), node.gpus as usize));
        let gpus = gpus.collect();
        let shown = progress::show(bus.clone(), gpus, trace.map(replay::Trace::len));
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
                let run = summary::Run { command: self, trace, budget, began };
                summary::show(run, bus, hardware, shutdown).await
            }
            None => Ok(()),
        }
    }
}

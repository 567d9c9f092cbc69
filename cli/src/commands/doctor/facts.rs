//! Reads the facts: the server, the services' answers, the nodes' reports, and this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Table;
use wattle_common::Timestamp;
use wattle_common::messages::{GridStatus, JobRecord};
use wattle_common::subject::{Bucket, GRID_STATUS, Reporter, StreamName};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver as _, GpuError};
use wattle_runtime::bus::{Bus, BusError, Fill, Limit, ServerLimits};
use wattle_runtime::clock;
use wattle_slurm::Level;
use wattle_slurm::check::{Report as SlurmReport, check};
use wattle_slurm::shell::facts::facts as slurm_facts;
use wattle_slurm::shell::programs::Programs;
use wattle_view::node::{Node, summarize};

use crate::commands::nodes::nodes;
use crate::commands::services::{Process, processes};
use crate::connection::{Connection, require_cluster};
use crate::job_records;
use crate::output::UsageError;
use crate::summaries;
use crate::verdict::BudgetValues;

/// Longest wait for a report, whose time shows the server's clock: wall time. Launchers report every 5 s.
const REPORT_WITHIN: Duration = Duration::from_secs(6);
/// Longest time of one of Slurm's programs.
const SLURM_WITHIN: Duration = Duration::from_secs(10);

/// What the rules need.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The version of this program.
    pub(crate) version: String,
    /// The NATS server, or why it cannot be used.
    pub(crate) server: Option<Result<Server, String>>,
    /// The processes that answer.
    pub(crate) processes: Vec<Process>,
    /// The sources of carbon intensity and price, and the system's time.
    pub(crate) grid: Option<(GridStatus, Timestamp)>,
    /// The jobs that have not ended.
    pub(crate) jobs: Vec<JobRecord>,
    /// The budget and the aim.
    pub(crate) budget: BudgetValues,
    /// The system's time.
    pub(crate) now: Timestamp,
    /// The nodes with a report.
    pub(crate) nodes: Vec<NodeFacts>,
    /// The services with a configuration on this host.
    pub(crate) configured: Vec<Configured>,
    /// Configuration files that are not TOML, with the error.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// The disks of this host.
    pub(crate) disks: Vec<Disk>,
    /// The GPUs of this host, or why there are none.
    pub(crate) gpus: Option<Result<u32, String>>,
    /// Whether this process runs as root.
    pub(crate) is_root: bool,
    /// The Slurm of this host, or why it does not answer; absent: no Slurm.
    pub(crate) slurm: Option<Result<SlurmReport, String>>,
}

/// The NATS server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// Its address.
    pub(crate) url: String,
    /// What it states about itself.
    pub(crate) limits: ServerLimits,
    /// Why the cluster's storage is not readable, and the remedy if a limit of the server is the cause.
    pub(crate) storage_error: Option<(String, Option<String>)>,
    /// Streams that the server does not have.
    pub(crate) missing: Vec<String>,
    /// Seconds by which this host's clock is ahead of the server's; absent: not known.
    pub(crate) ahead_s: Option<f64>,
    /// Shares of the buckets that are in use.
    pub(crate) fill: Vec<(&'static str, f64)>,
}

/// A node, from its reports.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    /// Its reports.
    pub(crate) node: Node,
    /// Wall seconds by which its clock is ahead of the server's.
    pub(crate) ahead_s: Option<f64>,
}

/// The units of this host; those that are enabled are linked in its folders `*.wants`.
const UNITS: &str = "/etc/systemd/system";
/// The configurations as their packages install them, of the services that need something of this host.
const EXAMPLES: [(&str, &str); 3] = [
    ("profiler", include_str!("../../../../deploy/profiler.toml")),
    ("power-agent", include_str!("../../../../deploy/power-agent.toml")),
    ("slurm", include_str!("../../../../deploy/slurm.toml")),
];

/// A service with a configuration on this host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configured {
    /// The file without its ending: `power-agent`.
    pub(crate) name: String,
    /// Its configuration.
    pub(crate) table: Table,
    /// Whether it is meant to run here, and not only installed: its unit is enabled, its configuration is not
    /// the example of its package, or it has written its heartbeat.
    pub(crate) is_set_up: bool,
}

impl Configured {
    /// A text of the configuration.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.table.get(key)?.as_str()
    }
}

/// The file system of a folder.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// Free bytes for services that are not root.
    pub(crate) free: u64,
    /// Its size.
    pub(crate) size: u64,
}

/// Reads all facts.
///
/// # Errors
/// Wrong options only; everything else is a fact.
pub(crate) async fn facts(connection: &Connection, config_dir: &Path) -> anyhow::Result<Facts> {
    let (configured, unreadable) = configured(config_dir, &EXAMPLES, Path::new(UNITS));
    let mut facts = Facts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        disks: disks(&configured),
        gpus: Some(gpus(&configured)),
        is_root: rustix::process::geteuid().is_root(),
        slurm: slurm(&configured).await,
        configured,
        unreadable,
        ..Facts::default()
    };
    match connection.open_with_any_key().await {
        Ok(bus) => {
            require_cluster(&bus).await?;
            cluster(&bus, &mut facts).await;
        }
        Err(error) if error.is::<UsageError>() => return Err(error),
        Err(error) => facts.server = Some(Err(format!("{error:#}"))),
    }
    Ok(facts)
}

async fn cluster(bus: &Bus, facts: &mut Facts) {
    let mut server =
        Server { url: bus.url().to_owned(), limits: bus.server_limits(), ..Server::default() };
    facts.processes = processes(bus).await.unwrap_or_default();
    let read = async {
        job_records::require_storage(bus, "doctor")?;
        stored(bus, &mut server, facts).await
    };
    if let Err(error) = read.await {
        let limit = error.downcast_ref::<BusError>().and_then(BusError::limit);
        server.storage_error = Some((format!("{error:#}"), limit.map(Limit::remedy)));
    }
    facts.server = Some(Ok(server));
}

async fn stored(bus: &Bus, server: &mut Server, facts: &mut Facts) -> anyhow::Result<()> {
    let actual = bus.bucket(Bucket::Actual).await?;
    let mut watch = actual.watch().await?;
    watch.initial().await;
    let next = tokio::time::timeout(REPORT_WITHIN, watch.next()).await;
    let received_at = clock::wall_now();
    if let Ok(Some(change)) = next
        && let Some((revision, stored_at)) = actual.stored_at(&change.key).await?
        && revision == change.revision
    {
        server.ahead_s = Some((received_at.as_us() as f64 - stored_at.as_us() as f64) / 1e6);
    }
    let grid = bus.bucket(Bucket::Budget).await?.get::<GridStatus>(GRID_STATUS).await;
    facts.grid = grid.ok().flatten().map(|(status, _)| (status, clock::now()));
    for bucket in Bucket::ALL {
        // A key may not permit all of them.
        match bus.bucket(bucket).await {
            Err(error) if error.limit().is_some() => return Err(error.into()),
            Err(_) => {}
            Ok(bucket_of) => {
                let fill = bucket_of.fill().await.ok();
                server.fill.extend(fill.map(|Fill { share, .. }| (bucket.token(), share)));
            }
        }
    }
    for stream in StreamName::ALL {
        let name = stream.name(bus.cluster());
        if matches!(bus.stream_messages(&name).await, Ok(None)) {
            server.missing.push(name);
        }
    }
    let rate = f64::from(clock::scale().rate);
    let mut found = nodes(bus).await?;
    summarize(&mut found, summaries::of_all_nodes(bus).await.unwrap_or_default());
    for node in found {
        let (key, at) = match (&node.launcher, &node.power) {
            (Some(report), _) => (Reporter::Launcher.key(&node.node), report.at_us),
            (None, Some(report)) => (Reporter::Power.key(&node.node), report.at_us),
            (None, None) => continue,
        };
        let stored_at = actual.stored_at(&key).await?;
        let stored_at = stored_at.and_then(|(_, stored_at)| clock::at_wall(stored_at));
        let ahead_s =
            stored_at.map(|stored_at| (at.as_us() as f64 - stored_at.as_us() as f64) / 1e6 / rate);
        facts.nodes.push(NodeFacts { node, ahead_s });
    }
    facts.now = clock::now();
    facts.jobs = job_records::all(bus).await?;
    facts.jobs.retain(|record| !record.phase.is_final());
    facts.budget = BudgetValues::read(bus).await;
    Ok(())
}

/// The configurations in a folder, and those that are not TOML. `examples` are as the packages install them,
/// and `units` has the host's enabled units.
fn configured(
    folder: &Path,
    examples: &[(&str, &str)],
    units: &Path,
) -> (Vec<Configured>, Vec<(PathBuf, String)>) {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.sort();
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "toml")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let read = std::fs::read_to_string(&file).map_err(|error| error.to_string());
        let parsed = |text: String| match text.parse::<Table>() {
            Ok(table) => Ok((table, examples.contains(&(name.as_str(), text.as_str())))),
            Err(error) => Err(error.to_string()),
        };
        match read.and_then(parsed) {
            Ok((table, is_example)) => {
                let heartbeat = table.get("heartbeat_file").and_then(|path| path.as_str());
                let is_set_up = !is_example
                    || is_enabled(units, &name)
                    || heartbeat.is_some_and(|path| Path::new(path).exists());
                found.push(Configured { name, table, is_set_up });
            }
            Err(error) => wrong.push((file, error)),
        }
    }
    (found, wrong)
}

/// Whether the unit of a service is enabled.
fn is_enabled(units: &Path, service: &str) -> bool {
    let unit = format!("wattle-{service}.service");
    let folders = std::fs::read_dir(units).into_iter().flatten().flatten();
    let mut wanting = folders.map(|folder| folder.path()).filter(|folder| {
        folder.extension().is_some_and(|kind| kind == "wants" || kind == "requires")
    });
    wanting.any(|folder| folder.join(&unit).is_symlink())
}

/// The file systems of the folders that services write to, each once, and the root.
fn disks(configured: &[Configured]) -> Vec<Disk> {
    let keys = ["state_dir", "log_dir", "checkpoint_dir"];
    let folders = configured
        .iter()
        .flat_map(|service| keys.iter().filter_map(|key| service.text(key)))
        .map(PathBuf::from)
        .chain([PathBuf::from("/")]);
    let mut disks: Vec<Disk> = Vec::new();
    let mut known = Vec::new();
    for folder in folders {
        let Ok(stat) = rustix::fs::statvfs(&folder) else { continue };
        if !known.contains(&stat.f_fsid) {
            known.push(stat.f_fsid);
            let (free, size) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
            disks.push(Disk { folder, free, size });
        }
    }
    disks
}

/// The number of GPUs that the driver lists.
fn gpus(configured: &[Configured]) -> Result<u32, String> {
    let library = configured.iter().find_map(|service| service.text("nvml_library"));
    let read = || -> Result<u32, GpuError> {
        let mut driver = NvmlDriver::open(library.map(Path::new))?;
        let gpus = driver.count()?;
        for gpu in 0..gpus {
            driver.read(gpu)?;
        }
        Ok(gpus)
    };
    read().map_err(|error| error.to_string())
}

/// What Slurm lacks; `None` without Slurm on this host where wattle-slurm is not set up either.
async fn slurm(configured: &[Configured]) -> Option<Result<SlurmReport, String>> {
    let service = configured.iter().find(|service| service.name == "slurm");
    let folder = service.and_then(|service| service.text("commands")).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_slurm = std::env::split_paths(&path).any(|folder| folder.join("scontrol").is_file());
    if !has_slurm && !service.is_some_and(|service| service.is_set_up) {
        return None;
    }
    let programs = Programs { folder, time_limit: SLURM_WITHIN, ..Programs::default() };
    let found = slurm_facts(&programs, "wattle").await;
    // Slurm's programs print the same cause several times.
    let first = |text: String| text.split(';').next().unwrap_or_default().to_owned();
    Some(found.map(|found| check(&found)).map_err(|error| first(error.to_string())))
}

/// The level that `slurm.toml` of this host configures; `None` where wattle-slurm is not set up.
pub(crate) fn slurm_level(configured: &[Configured]) -> Option<Level> {
    let mut set_up = configured.iter().filter(|service| service.is_set_up);
    set_up.find(|service| service.name == "slurm")?.text("level")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_service_is_set_up_if_its_unit_configuration_or_heartbeat_shows_it() {
        let folder = tempfile::tempdir().unwrap();
        let (config, units) = (folder.path().join("etc"), folder.path().join("units"));
        let wants = units.join("multi-user.target.wants");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::create_dir_all(&wants).unwrap();
        let beat = folder.path().join("heartbeat");
        let slurm = EXAMPLES[2].1.replace("/run/wattle-slurm/heartbeat", beat.to_str().unwrap());
        let examples = [EXAMPLES[0], EXAMPLES[1], ("slurm", slurm.as_str())];
        for (name, example) in examples {
            std::fs::write(config.join(format!("{name}.toml")), example).unwrap();
        }
        let set_up = || -> Vec<String> {
            let (found, wrong) = configured(&config, &examples, &units);
            assert!(found.len() == examples.len() && wrong.is_empty(), "{wrong:?}");
            found.into_iter().filter(|one| one.is_set_up).map(|one| one.name).collect()
        };
        assert!(set_up().is_empty());
        let unit = "/usr/lib/systemd/system/wattle-profiler.service";
        std::os::unix::fs::symlink(unit, wants.join("wattle-profiler.service")).unwrap();
        assert_eq!(set_up(), ["profiler"], "its unit is enabled");
        let agent = EXAMPLES[1].1.replace("cluster = \"main\"", "cluster = \"site\"");
        std::fs::write(config.join("power-agent.toml"), agent).unwrap();
        assert_eq!(set_up(), ["power-agent", "profiler"], "its configuration is changed");
        let level = || slurm_level(&configured(&config, &examples, &units).0);
        assert_eq!(level(), None);
        std::fs::write(&beat, "1\n").unwrap();
        assert_eq!(set_up(), ["power-agent", "profiler", "slurm"], "its heartbeat is there");
        assert_eq!(level(), Some(Level::Advise));
    }
}

//! The scenarios, fixed: which jobs, which cluster, which loads, what is varied.
//!
//! Each stands in a file of its own, with where it comes from. None may be bent to a policy: loads,
//! seeds and variants are written down here, and a command line only chooses among them.

mod builtin;
mod eaco;
mod greenflow;
mod philly;
mod powerflow;
mod powerlimit;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wattle_baselines::POLICIES;
use wattle_placer::policies::PolicyEntry;
use wattle_world::{CatalogError, World};

use super::options::{Accounting, Neighbours};
use wattle_simulator::LoadError;
use wattle_simulator::carbon::CarbonError;
use wattle_simulator::measured::MeasuredError;
use wattle_simulator::trace::TraceError;
use wattle_simulator::{Scenario, ScenarioError, Work};

/// The scenarios' names.
pub const NAMES: [&str; 7] =
    ["powerflow-16", "powerlimit-16", "greenflow-16", "eaco-28", "eaco-64", "philly", "builtin"];
/// The scenario whose policies are compared below power limits ([`super::Comparer::compare_limits`]).
pub const POWER_LIMITS: &str = powerlimit::NAME;

/// Seed of the first order of generated jobs; each further order adds one.
const SEED: u64 = 7;

/// One comparison to be made.
#[derive(Clone, Debug)]
pub struct Case {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The offered load.
    pub load: f64,
    /// The energy that counts.
    pub accounting: Accounting,
    /// The co-location model.
    pub world: Neighbours,
    /// The variant of the workloads, if the scenario has several.
    pub workload: &'static str,
    /// Whether some jobs have deadlines.
    pub deadlines: bool,
    /// The jobs, shared by cases that differ only in other fields.
    pub jobs: Arc<JobSequences>,
}

impl Case {
    /// The jobs in one of the orders, with their own GPU requests.
    #[must_use]
    pub fn rigid(&self, order: u64) -> &Scenario {
        &self.jobs.rigid[order as usize]
    }

    /// The same jobs with sizes open, where the scenario lets them.
    #[must_use]
    pub fn elastic(&self, order: u64) -> &Scenario {
        &self.jobs.elastic[order as usize]
    }
}

/// The jobs of a case in each order: as they ask, and with sizes open.
#[derive(Clone, Debug)]
pub struct JobSequences {
    /// On the GPUs that they ask for.
    pub rigid: Vec<Scenario>,
    /// The same jobs, each on any power of two of GPUs, where the scenario lets them.
    pub elastic: Vec<Scenario>,
}

impl JobSequences {
    /// Jobs on what they ask for, whatever a policy would like.
    #[must_use]
    pub fn rigid(orders: Vec<Scenario>) -> Self {
        Self { elastic: orders.clone(), rigid: orders }
    }

    /// Jobs that an elastic policy may put on any power of two of GPUs.
    #[must_use]
    pub fn open(orders: Vec<Scenario>) -> Self {
        let mut elastic = orders.clone();
        elastic.iter_mut().for_each(Scenario::open_sizes);
        Self { rigid: orders, elastic }
    }
}

/// The world of a scenario, once for each way in which neighbours slow each other.
#[derive(Clone, Debug)]
pub struct Worlds {
    pairs: World,
    mild: World,
}

impl Worlds {
    /// Everything of `world` but how neighbours slow each other.
    #[must_use]
    pub fn new(world: World) -> Self {
        let mild = world.clone().with_interference(Neighbours::Mild.interference());
        Self { pairs: world.with_interference(Neighbours::Pairs.interference()), mild }
    }

    /// The one with these neighbours.
    #[must_use]
    pub fn of(&self, neighbours: Neighbours) -> &World {
        match neighbours {
            Neighbours::Alone | Neighbours::Pairs => &self.pairs,
            Neighbours::Mild => &self.mild,
        }
    }
}

/// A selection of a scenario's cases; empty lists select all.
#[derive(Clone, Debug)]
pub struct CaseFilter<'a> {
    /// The folder with measured files, for scenarios that need it.
    pub data: Option<&'a Path>,
    /// Offered loads.
    pub loads: &'a [f64],
    /// Energy accountings.
    pub accountings: &'a [Accounting],
    /// Co-location models.
    pub worlds: &'a [Neighbours],
    /// Variants of the workloads.
    pub workloads: &'a [String],
    /// Number of orders of the jobs.
    pub orders: u64,
    /// For a quick look: one load and one accounting where none are selected, and fewer generated jobs.
    pub quick: bool,
}

impl<'a> CaseFilter<'a> {
    /// The selected loads.
    fn loads<'b>(&'b self, all: &'b [f64]) -> &'b [f64] {
        match self.loads {
            [] if self.quick => &all[all.len() / 2..=all.len() / 2],
            [] => all,
            selected => selected,
        }
    }

    fn accountings<'b>(&'b self, all: &'b [Accounting]) -> &'b [Accounting] {
        match self.accountings {
            [] if self.quick => &all[..1],
            [] => all,
            selected => selected,
        }
    }

    fn worlds(&self, all: &[Neighbours]) -> Vec<Neighbours> {
        let selected = |world: &&Neighbours| self.worlds.is_empty() || self.worlds.contains(world);
        all.iter().filter(selected).copied().collect()
    }

    fn includes(&self, workload: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|own| own == workload)
    }

    fn data(&self, scenario: &'static str) -> Result<&'a Path, CompareError> {
        self.data.ok_or(CompareError::NoData { scenario })
    }

    /// The file of this name in the data folder or its subfolders.
    fn file(&self, scenario: &'static str, file: &'static str) -> Result<PathBuf, CompareError> {
        let dir = self.data(scenario)?;
        find(dir, file, 0).ok_or_else(|| CompareError::NoFile { file, dir: dir.into() })
    }

    /// A case for each accounting and co-location model, of elastic jobs without deadlines.
    fn of_elastic_jobs(
        &self,
        scenario: &'static str,
        load: f64,
        workload: &'static str,
        orders: Vec<Scenario>,
    ) -> Vec<Case> {
        let jobs = Arc::new(JobSequences::open(orders));
        let mut cases = Vec::new();
        if workload.is_empty() && !self.workloads.is_empty() {
            return cases;
        }
        for &accounting in self.accountings(&[Accounting::AboveIdle, Accounting::SleepAll]) {
            for world in self.worlds(&Neighbours::ALL) {
                let (deadlines, jobs) = (false, jobs.clone());
                cases.push(Case { scenario, load, accounting, world, workload, deadlines, jobs });
            }
        }
        cases
    }

    /// A scenario in the selected orders: the same arrival times, with the jobs permuted.
    fn permuted(&self, scenario: &Scenario) -> Vec<Scenario> {
        let in_order = |order| {
            let mut scenario = scenario.clone();
            scenario.set_order(order);
            scenario
        };
        (0..self.orders).map(in_order).collect()
    }
}

/// Why a scenario cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The scenario is unknown.
    #[error("unknown scenario `{name}`; use one of {}", NAMES.join(", "))]
    Unknown {
        /// The given name.
        name: String,
    },
    /// No case matches the selection.
    #[error("{scenario} has no case with these options; it has {has}")]
    NoCase {
        /// The scenario.
        scenario: String,
        /// Its cases, by option.
        has: String,
    },
    /// It needs measured files.
    #[error(
        "{scenario} needs measured files; give their folder with --data DIR, or set WATTLE_DATA \
         (docs/comparing.md lists them)"
    )]
    NoData {
        /// The scenario.
        scenario: &'static str,
    },
    /// A file is missing.
    #[error("no {file} in {}; docs/comparing.md names its source", .dir.display())]
    NoFile {
        /// The file's name.
        file: &'static str,
        /// The data folder.
        dir: PathBuf,
    },
    /// The measured files are invalid.
    #[error(transparent)]
    Measured(#[from] MeasuredError),
    /// The measurements give an invalid catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The trace is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace does not fit the cluster.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The load is invalid.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The carbon series is invalid.
    #[error(transparent)]
    Carbon(#[from] CarbonError),
}

/// The selected cases of a scenario, grouped by jobs, with their worlds.
///
/// # Errors
/// Where the scenario is unknown, a file is missing, or no case matches.
pub fn cases(name: &str, filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let (worlds, cases) = match name {
        powerflow::NAME => powerflow::cases(filter)?,
        powerlimit::NAME => powerlimit::cases(filter)?,
        greenflow::NAME => greenflow::cases(filter)?,
        philly::NAME => philly::cases(filter)?,
        builtin::NAME => builtin::cases(filter)?,
        _ => match eaco::CLUSTERS.iter().find(|(known, _)| *known == name) {
            Some((name, cluster)) => eaco::cases(name, cluster, filter)?,
            None => return Err(CompareError::Unknown { name: name.to_owned() }),
        },
    };
    if cases.is_empty() {
        let all = CaseFilter {
            accountings: &[],
            worlds: &[],
            workloads: &[],
            orders: 1,
            quick: false,
            ..*filter
        };
        let filtered = !(filter.accountings.is_empty()
            && filter.worlds.is_empty()
            && filter.workloads.is_empty());
        let there = if filtered { self::cases(name, &all)?.1 } else { Vec::new() };
        return Err(CompareError::NoCase { scenario: name.to_owned(), has: options_of(&there) });
    }
    Ok((worlds, cases))
}

/// The options that select these cases, as text.
fn options_of(cases: &[Case]) -> String {
    let listed = |option: &str, values: Vec<&'static str>| {
        let mut distinct: Vec<&str> = Vec::new();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            if !distinct.contains(&value) {
                distinct.push(value);
            }
        }
        if distinct.is_empty() {
            format!("no {option}")
        } else {
            format!("{option} {}", distinct.join("|"))
        }
    };
    [
        listed("--accounting", cases.iter().map(|case| case.accounting.as_str()).collect()),
        listed("--world", cases.iter().map(|case| case.world.as_str()).collect()),
        listed("--workload", cases.iter().map(|case| case.workload).collect()),
    ]
    .join(", ")
}

/// The policies of a scenario under this co-location model. Without sharing, policies that differ
/// from another one by sharing only are left out.
#[must_use]
pub fn policies(scenario: &str, world: Neighbours) -> Vec<String> {
    let all: &[&str] = match scenario {
        "eaco-28" | "eaco-64" => &["fifo", "fifo-packed", "gandiva", "eaco", "wattle"],
        powerlimit::NAME => &["fifo", "srtf", "powerflow", "wattle"],
        greenflow::NAME => &[
            "fifo",
            "srtf",
            "tiresias",
            "afs",
            "powerflow",
            "powerflow+defer",
            "greenflow",
            "greenflow+defer",
            "wattle",
        ],
        _ => &[
            "fifo",
            "srtf",
            "tiresias",
            "afs",
            "fifo-packed",
            "gandiva",
            "eaco",
            "powerflow",
            "wattle",
        ],
    };
    let only_shares = |policy: &str| {
        let capabilities =
            POLICIES.entry(policy).map(PolicyEntry::capabilities).unwrap_or_default();
        capabilities.shares_gpus && !capabilities.is_elastic
    };
    let kept = |policy: &&&str| world != Neighbours::Alone || !only_shares(policy);
    all.iter().filter(kept).map(|policy| (*policy).to_owned()).collect()
}

/// Converts run times to steps, so that a job's work is independent of its GPU count.
fn in_steps(world: &World, scenario: &mut Scenario) {
    let Some(group) = scenario.cluster.groups().first() else { return };
    let Some(gpu) = world.gpu(&group.gpu_type) else { return };
    for job in &mut scenario.jobs {
        let Some(workload) = world.workload(job.workload.as_str()) else { continue };
        if let Work::Lasts(span) = job.work {
            let nodes = job.gpus.min.div_ceil(group.gpus_per_node.max(1));
            let steps = span.as_secs_f64() * workload.steps_per_s(gpu, job.gpus.min, nodes);
            job.work = Work::Steps((steps.round() as u64).max(1));
        }
    }
}

/// A file of this name in `dir` or its subfolders.
fn find(dir: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    /// Largest folder depth; guards against loops of links.
    const DEPTH_MAX: usize = 32;
    let direct = dir.join(name);
    if direct.is_file() {
        return Some(direct);
    }
    let mut folders: Vec<PathBuf> = std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders.into_iter().filter(|_| depth < DEPTH_MAX).find_map(|sub| find(&sub, name, depth + 1))
}
